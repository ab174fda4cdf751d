"""Weight files in a dry run: opened for names and shapes, their large tensors never read, and never written.

Loading: safetensors maps its file and a copy to an unbacked tensor reads nothing, so it needs no change.
`torch.load` is made to map its file too. Distributed checkpoints skip large pieces. Saving values that do not
exist raises.
"""

from __future__ import annotations

import importlib
import os
import zipfile
from collections.abc import Callable
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import torch

from opentrn.device import _C
from opentrn.device.dry_host import LARGE_BYTES, note, untouched
from opentrn.device.replaced import Replacements
from opentrn.errors import UnbackedReadError


def refuse_unbacked(tensor: Any, doing: str) -> None:
    """Raises UnbackedReadError for a device tensor without bytes."""
    local = getattr(tensor, "_local_tensor", tensor)
    if isinstance(local, torch.Tensor) and local.device.type == "neuron" and not _C.is_backed(local):
        raise UnbackedReadError(
            f"a dry run has no values for a tensor {tuple(tensor.shape)} of {tensor.dtype}, "
            f"so {doing} would write zeros",
            where=_C.python_frame() or None,
            cure="leave saving out of the dry run, or run without --dry",
        )


class WeightFiles:
    """Context manager: replaces readers and writers of weight files."""

    def __enter__(self) -> WeightFiles:
        self._changes = Replacements()
        replace = self._changes.replace
        replace(torch, "load", _mapped_load(torch.load))
        replace(torch, "save", _checked_save(torch.save))
        # The three functions of torch.serialization are those of torch.
        replace(torch.serialization, "load", torch.load)
        replace(torch.serialization, "save", torch.save)
        if find_spec("safetensors") is not None:
            writer = importlib.import_module("safetensors.torch")
            replace(writer, "_evaluate_tensors_for_save", _checked_tensors(writer._evaluate_tensors_for_save))
        if torch.distributed.is_available():
            filesystem = importlib.import_module("torch.distributed.checkpoint.filesystem")
            reader, writer = filesystem.FileSystemReader, filesystem._FileSystemWriter
            replace(reader, "read_data", _skipping_read(reader.read_data))
            replace(writer, "write_data", _checked_write(writer.write_data))
        return self

    def __exit__(self, *error: Any) -> None:
        self._changes.close()


def _mapped_load(original: Callable[..., Any]) -> Callable[..., Any]:
    def load(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        # Only files in the zip format can be mapped; map_location to a device still copies, and that copy
        # reads nothing.
        if isinstance(f, str | os.PathLike) and kwargs.get("mmap") is None and zipfile.is_zipfile(f):
            kwargs["mmap"] = True
        return original(f, map_location, *args, **kwargs)

    load.__doc__ = original.__doc__
    return load


def _checked_save(original: Callable[..., Any]) -> Callable[..., Any]:
    def save(obj: Any, *args: Any, **kwargs: Any) -> Any:
        # Before the file is opened: a refusal leaves no half of one.
        _refuse_inside(obj, set())
        return original(obj, *args, **kwargs)

    save.__doc__ = original.__doc__
    return save


def _refuse_inside(obj: Any, seen: set[int]) -> None:
    if id(obj) in seen:
        return
    seen.add(id(obj))
    if isinstance(obj, torch.Tensor):
        refuse_unbacked(obj, "saving it")
    elif isinstance(obj, dict):
        for value in obj.values():
            _refuse_inside(value, seen)
    elif isinstance(obj, list | tuple | set):
        for value in obj:
            _refuse_inside(value, seen)
    elif isinstance(obj, torch.nn.Module):
        for value in (*obj.parameters(), *obj.buffers()):
            _refuse_inside(value, seen)
    elif not isinstance(obj, type | ModuleType):
        _refuse_inside(getattr(obj, "__dict__", None), seen)


def _checked_tensors(original: Callable[..., Any]) -> Callable[..., Any]:
    # safetensors calls it before it opens the file.
    def _evaluate_tensors_for_save(tensors: Any) -> None:
        _refuse_inside(tensors, set())
        original(tensors)

    return _evaluate_tensors_for_save


def _skipping_read(original: Callable[..., Any]) -> Callable[..., Any]:
    def read_data(self: Any, plan: Any, planner: Any) -> Any:
        """Large tensors get a transfer of their size instead of their bytes."""
        from dataclasses import replace

        from torch.distributed.checkpoint.planner import LoadItemType

        kept = []
        for request in plan.items:
            if request.type == LoadItemType.BYTE_IO:
                kept.append(request)
                continue
            target = planner.resolve_tensor(request).detach()
            if target.numel() * target.element_size() < LARGE_BYTES or not target.dtype.is_floating_point:
                kept.append(request)
                continue
            note("torch.distributed.checkpoint.load", "large tensor of the checkpoint: not read")
            if target.device.type == "neuron":
                target.copy_(untouched(target.shape, target.contiguous().stride(), target.dtype))
            planner.commit_tensor(request, target)
        return original(self, replace(plan, items=kept), planner)

    return read_data


def _checked_write(original: Callable[..., Any]) -> Callable[..., Any]:
    def write_data(self: Any, plan: Any, planner: Any) -> Any:
        for item in plan.items:
            refuse_unbacked(planner.resolve_data(item), "saving it")
        return original(self, plan, planner)

    return write_data
