"""`nki.typing`: annotations of kernel parameters."""

from __future__ import annotations

from typing import Any

import numpy as np

from opentrn.errors import OpenTRNError
from opentrn.nki.dtypes import host_type, name_of
from opentrn.nki.tensor import NkiTensor


class TensorType:
    """``tensor[[rows, columns], dtype]``: a shape and a data type, in place of an argument of a benchmark."""

    def __init__(self, name: str, shape: Any, dtype: Any) -> None:
        self.name, self.shape, self.dtype = (
            name,
            tuple(int(extent) for extent in shape),
            host_type(name_of(dtype)),
        )

    def zeros(self) -> np.ndarray:
        """Data of this type."""
        return np.zeros(self.shape, self.dtype)

    def __repr__(self) -> str:
        return f"nki.typing.{self.name}[{list(self.shape)}, {self.dtype}]"


class _Annotation:
    def __init__(self, name: str) -> None:
        self.name = name

    def __getitem__(self, item: Any) -> Any:
        if isinstance(item, tuple) and len(item) == 2 and isinstance(item[0], (list, tuple)):
            try:
                return TensorType(self.name, *item)
            except (TypeError, ValueError, OpenTRNError):
                return self  # an annotation of a parameter: extents may be names
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
