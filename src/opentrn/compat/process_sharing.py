"""torch.multiprocessing shares a tensor's memory with the receiving process. Virtual device memory belongs to
one process, and a copy instead would let two processes train apart in silence: it is refused by name.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from multiprocessing import reduction
from types import ModuleType
from typing import Any

import torch

from opentrn.errors import UnsupportedError

# The thread of multiprocessing.Queue that pickles: an error there would be printed, and the receiver would
# wait for ever.
_QUEUE_THREAD = "QueueFeederThread"


def _refusal() -> UnsupportedError:
    return UnsupportedError(
        "opentrn: a neuron tensor cannot be shared with another process: device memory belongs to one",
        cure="send tensor.cpu() and call .to('neuron') on arrival",
    )


def _refuse_on_arrival() -> None:
    raise _refusal()


def _refuse(value: Any) -> tuple[Callable[[], None], tuple[()]]:
    if threading.current_thread().name == _QUEUE_THREAD:
        return _refuse_on_arrival, ()
    raise _refusal()


def refuse_device_tensors(module: ModuleType) -> None:
    """module: torch.multiprocessing.reductions. Host tensors go as before."""
    for name in ("reduce_tensor", "reduce_storage"):
        setattr(module, name, _checked(getattr(module, name)))
    # init_reductions ran at import, with the functions of before.
    kinds: list[Any] = [torch.Tensor, torch.nn.parameter.Parameter, *torch._tensor_classes]
    for kind in kinds:
        reduction.register(kind, module.reduce_tensor)
    reduction.register(torch.UntypedStorage, module.reduce_storage)


def _checked(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @functools.wraps(original)
    def reduce(value: Any) -> Any:
        return _refuse(value) if value.device.type == "neuron" else original(value)

    return reduce
