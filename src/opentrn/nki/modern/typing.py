"""`nki.typing`: annotations of kernel parameters."""

from __future__ import annotations

from typing import Any

from opentrn.nki.tensor import NkiTensor


class _Annotation:
    def __init__(self, name: str) -> None:
        self.name = name

    def __getitem__(self, item: Any) -> _Annotation:
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> _Annotation:
        return self

    def __or__(self, other: Any) -> Any:
        return self

    __ror__ = __or__

    def __repr__(self) -> str:
        return f"nki.typing.{self.name}"


tensor = _Annotation("tensor")
mutable_tensor = _Annotation("mutable_tensor")
Tensor = NkiTensor
