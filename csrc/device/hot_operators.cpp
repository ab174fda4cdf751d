// The operators that training steps are made of: each with a typed kernel (typed.h), everything else is boxed.
#include <ATen/Operators.h>

#include "device/host_kernels.h"
#include "device/typed.h"

// clang-format off: it never settles on a layout of such a list
#define OPENTRN_HOT_OPERATORS(_) \
  _(add_Tensor) _(add__Tensor) _(sub_Tensor) _(sub__Tensor) _(mul_Tensor) _(mul__Tensor) _(div_Tensor) \
  _(div__Tensor) _(neg) _(mm) _(bmm) _(addmm) _(baddbmm) _(relu) _(relu_) _(gelu) _(gelu_backward) _(silu) \
  _(silu_backward) _(sigmoid) _(tanh) _(exp) _(log) _(sqrt) _(rsqrt) _(cos) _(sin) _(abs) _(pow_Tensor_Scalar) \
  _(threshold_backward) _(mean_dim) _(sum_dim_IntList) _(amax) _(cat) _(index_Tensor) _(index_select) _(gather) \
  _(embedding_dense_backward) _(native_layer_norm) _(native_layer_norm_backward) _(_softmax) \
  _(_softmax_backward_data) _(_log_softmax) _(_log_softmax_backward_data) _(nll_loss_forward) \
  _(nll_loss_backward) _(where_self) _(eq_Scalar) _(eq_Tensor) _(ne_Scalar) _(lt_Scalar) _(gt_Scalar) \
  _(ge_Scalar) _(le_Scalar) _(lt_Tensor) _(le_Tensor) _(gt_Tensor) _(ge_Tensor) _(bitwise_and_Tensor) \
  _(logical_not) _(masked_fill__Scalar) _(fill__Scalar) _(zero_) _(copy_) _(lerp__Scalar) _(addcmul_) \
  _(addcdiv_) _(mul_out) _(argmax) _(cumsum)
// clang-format on

namespace opentrn::device {

void register_hot_operators(torch::Library& aten) {
#define OPENTRN_REGISTER(op) register_typed<at::_ops::op>(aten);
  OPENTRN_HOT_OPERATORS(OPENTRN_REGISTER)
#undef OPENTRN_REGISTER
}

}  // namespace opentrn::device
