"""`nki.tensor`."""

from opentrn.nki.tensor import DynamicSlice, NKIObject, NkiTensor

Tensor = NkiTensor
__all__ = ["DynamicSlice", "NKIObject", "NkiTensor", "Tensor"]
