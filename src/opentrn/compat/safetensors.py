"""safetensors' reader is compiled with a list of device names (0.8). Files are read to the host and moved."""

from __future__ import annotations

from types import ModuleType, TracebackType
from typing import Any


def read_through_host(module: ModuleType) -> None:
    """Lets `safe_open(..., device="neuron:1")` work; other devices go to the compiled reader as before."""
    original = module.safe_open

    class _Slice:
        def __init__(self, of: Any, device: Any) -> None:
            self._of, self._device = of, device

        def __getitem__(self, index: Any) -> Any:
            return self._of[index].to(self._device)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._of, name)

    class _NeuronFile:
        """The reader's interface, with tensors on a neuron device."""

        def __init__(self, file: Any, device: Any) -> None:
            self._file, self._device = file, device

        def get_tensor(self, name: str) -> Any:
            return self._file.get_tensor(name).to(self._device)

        def get_tensors(self, *names: Any) -> dict[str, Any]:
            return {key: value.to(self._device) for key, value in self._file.get_tensors(*names).items()}

        def get_slice(self, name: str) -> _Slice:
            return _Slice(self._file.get_slice(name), self._device)

        def __enter__(self) -> _NeuronFile:
            self._file.__enter__()
            return self

        def __exit__(
            self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
        ) -> Any:
            return self._file.__exit__(kind, error, trace)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._file, name)

    class _SafeOpen(type):
        def __call__(cls, filename: Any, framework: str, device: Any = "cpu", **options: Any) -> Any:
            if getattr(device, "type", str(device).partition(":")[0]) != "neuron":
                return original(filename, framework, device=device, **options)
            return _NeuronFile(original(filename, framework, device="cpu", **options), device)

        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, original | _NeuronFile)

    class safe_open(metaclass=_SafeOpen):
        __doc__ = original.__doc__

    module.safe_open = safe_open  # type: ignore[attr-defined]
