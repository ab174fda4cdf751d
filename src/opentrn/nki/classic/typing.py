"""`neuronxcc.nki.typing`: annotations of kernel parameters."""

from opentrn.nki.modern.typing import Tensor, mutable_tensor, tensor

__all__ = ["Tensor", "mutable_tensor", "tensor"]
