"""What behaving as the real stack costs on the virtual clock: compilations, and operators on the host."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from opentrn.device import _C
from opentrn.port.behaviours import CompileTime

TO_HOST, TO_DEVICE = "fallback::to_host", "fallback::to_device"


@dataclass
class Charges:
    """Charges and counts. compile_time: seconds of one operator, None where the release states none.

    The host waits for a compilation. An operator that falls back has its inputs sent to the host, which waits
    for them, and its results sent back; what the host then computes is charged like the device's own work.
    """

    compile_time: CompileTime | None
    compilations: int = 0
    fallbacks: int = 0

    def compile(self) -> None:
        self.compilations += 1
        if self.compile_time is not None:
            _C.advance_host(int(self.compile_time.seconds * 1e9))

    def send_to_host(self, tensors: Iterable[torch.Tensor]) -> None:
        self.fallbacks += 1
        self._transfer(TO_HOST, tensors, from_host=False)

    def send_back(self, tensors: Iterable[torch.Tensor]) -> None:
        self._transfer(TO_DEVICE, tensors, from_host=True)

    def notes(self) -> list[str]:
        """What was charged, for a report."""
        lines = []
        if self.compile_time is not None and self.compilations:
            total = self.compilations * self.compile_time.seconds
            lines.append(
                f"charged {total:,.1f} s for compiling {self.compilations:,} operators in eager mode, "
                f"{self.compile_time.seconds} s each ({self.compile_time.status}: {self.compile_time.text}; "
                f"{self.compile_time.source})"
            )
        if self.fallbacks:
            lines.append(f"charged the transfers of {self.fallbacks:,} operators that run on the host")
        return lines

    def _transfer(self, name: str, tensors: Iterable[torch.Tensor], from_host: bool) -> None:
        sizes: dict[int, int] = {}
        for tensor in tensors:
            index = tensor.device.index
            sizes[index] = sizes.get(index, 0) + tensor.nbytes
        for index, size in sizes.items():
            _C.account_transfer(name, index, size, from_host)
