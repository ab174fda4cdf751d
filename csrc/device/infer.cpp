#include "device/infer.h"

#include <ATen/EmptyTensor.h>
#include <ATen/Functions.h>
#include <ATen/MemoryOverlap.h>

#include <string_view>
#include <unordered_set>

#include "device/boxed_arguments.h"
#include "device/dry.h"
#include "device/host_call.h"
#include "device/operators.h"

namespace opentrn::device::dry {
namespace {

constexpr size_t kZeroRunLimit = size_t{256} << 20;  // bytes of inputs up to which a CPU kernel may run on zeros
constexpr size_t kSmall = size_t{1} << 20;  // and up to which it may where the meta kernel nearly always agrees

using Names = std::unordered_set<std::string_view>;

// PyTorch's meta kernels give these contiguous results where its CPU kernels give column-major or permuted ones (LAPACK
// and FFT layouts), so their shapes are learned from the CPU kernel.
bool has_own_layout(const OperatorTraits& traits) {
  static const Names names = {"_fft_c2c",
                              "_fft_c2r",
                              "_fft_r2c",
                              "linalg_eig",
                              "linalg_eigvals",
                              "_linalg_eigvals",
                              "_linalg_eigh",
                              "_linalg_svd",
                              "linalg_qr",
                              "linalg_lu",
                              "linalg_lu_factor_ex",
                              "linalg_lu_solve",
                              "lu_unpack",
                              "linalg_inv_ex",
                              "_linalg_solve_ex",
                              "_linalg_det",
                              "_linalg_slogdet",
                              "linalg_ldl_factor_ex",
                              "linalg_ldl_solve",
                              "linalg_householder_product",
                              "cholesky_inverse",
                              "linalg_cholesky_ex",
                              "linalg_solve_triangular",
                              "linalg_lstsq",
                              "triangular_solve",
                              "ormqr",
                              "max_unpool2d",
                              "max_unpool3d",
                              "geqrf",
                              "_cholesky_solve_helper",
                              "cholesky",
                              "linalg_matrix_exp"};
  return names.count(traits.base) > 0;
}

// Meta kernels that agree with the CPU kernel but in odd layouts (gaps, no elements, a given out=) or in what they
// refuse: small calls ask the CPU kernel.
bool is_odd_at_times(const OperatorTraits& traits) {
  static const Names names = {"abs",
                              "sort",
                              "native_group_norm",
                              "binary_cross_entropy_backward",
                              "rms_norm",
                              "_fused_rms_norm",
                              "nonzero_static",
                              "masked_scatter_",
                              "normal"};
  return names.count(traits.base) > 0 || (traits.has_out && traits.base == "native_batch_norm");
}

// Few CPU kernels take complex32, and meta kernels do not tell which.
bool is_seldom_supported(const Scan& scan) {
  for (const auto& entry : scan.tensors) {
    if (entry.tensor.scalar_type() == at::kComplexHalf) return true;
  }
  return false;
}

// In-place operators whose CPU kernel does resize what they write.
bool resizes_in_place(const OperatorTraits& traits) { return traits.base == "addbmm_"; }

// Stands for each argument tensor by a tensor without meaning: on the meta device, or zeros on the CPU.
class StandInTaker {
 public:
  StandInTaker(bool zeros, bool ones, bool identity) : zeros_(zeros), ones_(ones), identity_(identity) {}

  at::Tensor take(const at::Tensor& tensor, int argument) {
    // A tensor passed twice is one tensor to the kernel as well (out is self).
    for (const auto& [original, known, where] : seen_) {
      if (where != argument && original.is_same(tensor)) {
        made_.push_back(known);
        return known;
      }
    }
    at::Tensor made = make(tensor);
    made_.push_back(made);
    if (seen_.size() < kMostCompared) seen_.push_back({tensor, made, argument});
    return made;
  }
  c10::Device take(c10::Device device) {
    return device.type() == kNeuron ? c10::Device(zeros_ ? c10::DeviceType::CPU : c10::DeviceType::Meta) : device;
  }
  c10::IValue take_generator(const std::optional<at::Generator>&) { return {}; }

  const std::vector<at::Tensor>& made() const { return made_; }

 private:
  at::Tensor make(const at::Tensor& tensor) {
    if (!is_neuron(tensor) && tensor.dim() == 0) return tensor;  // scalars keep their value
    at::Tensor made;
    if (zeros_) {
      const size_t bytes = at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.itemsize());
      at::Tensor storage = at::zeros({static_cast<int64_t>(bytes)}, at::TensorOptions().dtype(at::kByte));
      made = at::empty({0}, at::TensorOptions().dtype(tensor.scalar_type()));
      made.set_(storage.storage(), 0, tensor.sizes(), tensor.strides());
      if (!is_unbacked(tensor)) {
        // What has bytes is used as it is, in a copy that the kernel may write.
        copy_flags(tensor, made.unsafeGetTensorImpl());
        const OpenedBytes bytes(tensor);
        const at::Tensor source = is_neuron(tensor) ? host_alias(tensor) : tensor;
        return at::has_internal_overlap(tensor) == at::MemOverlap::Yes ? source.clone() : made.copy_(source);
      }
      if (ones_) made.fill_(1);
      // Identity matrices are triangular, definite and invertible: no decomposition refuses them.
      if (identity_ && made.dim() >= 2) made.diagonal(0, -2, -1).fill_(1);
    } else {
      made = at::detail::empty_strided_meta(tensor.sizes(), tensor.strides(), tensor.scalar_type());
    }
    copy_flags(tensor, made.unsafeGetTensorImpl());
    return made;
  }

  struct Seen {
    at::Tensor original, made;
    int argument;
  };

  bool zeros_, ones_, identity_;
  std::vector<at::Tensor> made_;
  c10::SmallVector<Seen, kMostCompared> seen_;
};

Geometry geometry_of(const at::Tensor& tensor) {
  Geometry geometry;
  geometry.sizes.assign(tensor.sizes().begin(), tensor.sizes().end());
  geometry.strides.assign(tensor.strides().begin(), tensor.strides().end());
  geometry.offset = tensor.storage_offset();
  geometry.type = tensor.scalar_type();
  geometry.storage_bytes = tensor.storage().nbytes();
  geometry.conjugate = tensor.is_conj();
  geometry.negative = tensor.is_neg();
  return geometry;
}

class PlanMaker {
 public:
  PlanMaker(Plan& plan, const OperatorTraits& traits, const StandInTaker& taker)
      : plan_(plan), traits_(traits), taker_(taker) {}

  void returns(const c10::IValue* values, int count) {
    for (int index = 0; index < count; ++index) {
      const c10::IValue& value = values[index];
      if (value.isTensor()) {
        plan_.list_lengths.push_back(-1);
        tensor(value.toTensor());
      } else if (value.isTensorList()) {
        const auto list = value.toTensorVector();
        plan_.list_lengths.push_back(static_cast<int>(list.size()));
        for (const at::Tensor& element : list) tensor(element);
      } else {
        plan_.list_lengths.push_back(-1);
        Result& result = plan_.results.emplace_back();
        result.kind = Result::kConstant;
        result.constant = value;
      }
    }
  }

  // Written arguments whose geometry the operator changed (resized out=, or given conjugated).
  void written(const Scan& scan) {
    for (size_t i = 0; i < scan.tensors.size(); ++i) {
      if (!traits_.writes(scan.tensors[i].argument)) continue;
      const at::Tensor& after = taker_.made()[i];
      const at::Tensor& before = scan.tensors[i].tensor;
      if (after.sizes() != before.sizes() || after.strides() != before.strides() ||
          after.is_conj() != before.is_conj()) {
        plan_.changed.emplace_back(static_cast<int>(i), geometry_of(after));
      }
    }
  }

 private:
  void tensor(const at::Tensor& made) {
    Result& result = plan_.results.emplace_back();
    if (!made.defined()) return;
    check_dense(traits_, made);
    fresh_.push_back(made);
    result.geometry = geometry_of(made);
    for (size_t i = 0; i < taker_.made().size(); ++i) {
      const at::Tensor& argument = taker_.made()[i];
      if (!argument.defined()) continue;
      const bool same = argument.unsafeGetTensorImpl() == made.unsafeGetTensorImpl();
      if (same || argument.storage().is_alias_of(made.storage())) {
        result.kind = same ? Result::kArgument : Result::kArgumentView;
        result.source = static_cast<int>(i);
        result.geometry.offset -= argument.storage_offset();
        return;
      }
    }
    for (size_t i = 0; i + 1 < fresh_.size(); ++i) {
      if (fresh_[i].defined() && fresh_[i].storage().is_alias_of(made.storage())) {
        result.kind = Result::kFreshView;
        result.source = index_of_fresh(i);
        return;
      }
    }
    result.kind = Result::kFresh;
    fresh_index_.emplace_back(fresh_.size() - 1, static_cast<int>(plan_.results.size() - 1));
    plan_.fresh_bytes += result.geometry.storage_bytes;
    plan_.fits_bytes &= gets_bytes(result.geometry.storage_bytes, result.geometry.type);
  }

  int index_of_fresh(size_t position) const {
    for (const auto& [fresh, result] : fresh_index_) {
      if (fresh == position) return result;
    }
    return -1;
  }

  Plan& plan_;
  const OperatorTraits& traits_;
  const StandInTaker& taker_;
  std::vector<at::Tensor> fresh_;
  std::vector<std::pair<size_t, int>> fresh_index_;
};

bool only_returns_arguments(const c10::FunctionSchema& schema) {
  for (const c10::Argument& result : schema.returns()) {
    if (!result.alias_info() || !result.alias_info()->isWrite()) return false;
  }
  return true;
}

// In-place operators and those that return nothing need no inference: what they return is what they write.
bool plan_in_place(const c10::OperatorHandle& op, const OperatorTraits& traits, const Scan& scan, Plan& plan) {
  const c10::FunctionSchema& schema = op.schema();
  const bool has_out =
      !schema.arguments().empty() && schema.arguments().back().kwarg_only() && schema.arguments().back().is_out();
  if (!only_returns_arguments(schema) || has_out) return false;
  int next_written = 0;
  for (int index = 0; index < traits.return_count; ++index) {
    plan.list_lengths.push_back(-1);
    Result& result = plan.results.emplace_back();
    result.kind = Result::kArgument;
    for (; next_written < static_cast<int>(scan.tensors.size()); ++next_written) {
      if (traits.writes(scan.tensors[next_written].argument)) break;
    }
    if (next_written == static_cast<int>(scan.tensors.size())) return false;
    result.source = next_written++;
  }
  return true;
}

void run_on_stand_ins(const c10::OperatorHandle& op, const OperatorTraits& traits, torch::jit::Stack& stack,
                      const HostKernel* kernel, bool zeros, StandInTaker& taker) {
  BoxedArguments<StandInTaker>(taker, traits, stack).take();
  const c10::impl::ExcludeDispatchKeyGuard below(c10::autograd_dispatch_keyset_with_ADInplaceOrView |
                                                 c10::autocast_dispatch_keyset);
  const c10::DispatchKeySet keys(zeros ? c10::DispatchKey::CPU : c10::DispatchKey::Meta);
  if (kernel) {
    kernel->callBoxed(op, keys, &stack);
  } else {
    op.redispatchBoxed(keys, &stack);
  }
}

size_t input_bytes(const Scan& scan) {
  size_t bytes = 0;
  for (const auto& entry : scan.tensors) bytes += entry.tensor.nbytes();
  return bytes;
}

Plan plan_from(const c10::OperatorHandle& op, const OperatorTraits& traits, const torch::jit::Stack& stack,
               const Scan& scan, const HostKernel* kernel, bool zeros) {
  Plan plan;
  // Sizes that depend on values are those of every element selected.
  StandInTaker taker(zeros, zeros && (traits.base == "nonzero" || traits.base == "masked_select"),
                     zeros && has_own_layout(traits));
  torch::jit::Stack copy(stack.end() - traits.argument_count, stack.end());
  run_on_stand_ins(op, traits, copy, kernel, zeros, taker);
  PlanMaker maker(plan, traits, taker);
  maker.returns(copy.data() + copy.size() - traits.return_count, traits.return_count);
  maker.written(scan);
  return plan;
}

// In evaluation mode CPU's batch norm returns empty statistics, and its meta kernel full ones.
void correct_batch_norm(const c10::OperatorHandle& op, const OperatorTraits& traits, const torch::jit::Stack& stack,
                        Plan& plan) {
  static const std::unordered_set<std::string_view> names = {"native_batch_norm", "_native_batch_norm_legit"};
  if (names.count(traits.base) == 0 || plan.results.size() < 3) return;
  const auto index = op.schema().argumentIndexWithName("training");
  const size_t first = stack.size() - traits.argument_count;
  if (!index || stack[first + *index].toBool()) return;
  for (size_t i = 1; i < 3; ++i) {
    if (plan.results[i].kind != Result::kFresh) continue;
    Geometry& geometry = plan.results[i].geometry;
    plan.fresh_bytes -= geometry.storage_bytes;
    geometry.sizes = {0};
    geometry.strides = {1};
    geometry.storage_bytes = 0;
  }
}

// CPU keeps the statistics of 16-bit inputs in the type of the parameters (without any: of the input), meta kernels in
// float32.
void correct_statistics(const OperatorTraits& traits, const Scan& scan, Plan& plan) {
  static const Names names = {"native_layer_norm", "native_group_norm", "native_batch_norm", "_native_batch_norm_legit",
                              "_batch_norm_with_update"};
  if (names.count(traits.base) == 0 || traits.has_out || plan.results.size() < 3) return;
  at::ScalarType type = scan.tensors[0].tensor.scalar_type();
  if (!at::isReducedFloatingType(type)) return;
  for (const auto& entry : scan.tensors) {
    if (entry.tensor.scalar_type() == at::kFloat) type = at::kFloat;
  }
  for (size_t i = 1; i < 3; ++i) {
    Geometry& geometry = plan.results[i].geometry;
    if (plan.results[i].kind != Result::kFresh || geometry.type == type) continue;
    plan.fresh_bytes -= geometry.storage_bytes;
    geometry.storage_bytes = geometry.storage_bytes / c10::elementSize(geometry.type) * c10::elementSize(type);
    geometry.type = type;
    plan.fresh_bytes += geometry.storage_bytes;
  }
}

// Whether an argument that the operator writes is another argument of it as well.
bool is_read_too(const Scan& scan, int index) {
  const auto& written = scan.tensors[index];
  for (const auto& entry : scan.tensors) {
    if (entry.argument != written.argument && entry.tensor.is_same(written.tensor)) return true;
  }
  return false;
}

// Some of PyTorch's meta kernels resize what an operator must not resize: what it writes in place, and an out= that it
// reads.
void check_resized(const OperatorTraits& traits, const Scan& scan, const Plan& plan) {
  const bool in_place = !traits.has_out && traits.base.ends_with('_') && !resizes_in_place(traits);
  const bool pointwise = traits.operator_class == timeline::OperatorClass::kPointwise;
  for (const auto& [index, geometry] : plan.changed) {
    TORCH_CHECK(!in_place && !(pointwise && is_read_too(scan, index)), "output with shape ",
                scan.tensors[index].tensor.sizes(), " doesn't match the broadcast shape ",
                at::IntArrayRef(geometry.sizes));
  }
}

Plan infer_on_meta(const c10::OperatorHandle& op, const OperatorTraits& traits, const torch::jit::Stack& stack,
                   const Scan& scan, const HostKernel* kernel) {
  Plan plan = plan_from(op, traits, stack, scan, kernel, false);
  check_resized(traits, scan, plan);
  correct_batch_norm(op, traits, stack, plan);
  correct_statistics(traits, scan, plan);
  return plan;
}

}  // namespace

Plan infer(const c10::OperatorHandle& op, const OperatorTraits& traits, const torch::jit::Stack& stack,
           const Scan& scan, const HostKernel* kernel) {
  const size_t bytes = input_bytes(scan);
  const bool allowed = bytes <= kZeroRunLimit, small = bytes <= kSmall;
  if (traits.synchronizes) {
    Plan plan = plan_from(op, traits, stack, scan, kernel, true);
    plan.stands_in = "size or answer as computed from zeros (masks: every element)";
    return plan;
  }
  if ((has_own_layout(traits) && allowed) || ((is_odd_at_times(traits) || is_seldom_supported(scan)) && small))
    return plan_from(op, traits, stack, scan, kernel, true);
  if (kernel || op.hasComputedKernelForDispatchKey(c10::DispatchKey::Meta)) {
    try {
      return infer_on_meta(op, traits, stack, scan, kernel);
    } catch (const c10::NotImplementedError&) {
      // No meta kernel behind the composite one: learn the shapes in another way below.
    }
  }
  // The CPU kernel also refuses shapes that do not fit, so a small call asks it.
  const bool ask = small && traits.operator_class == timeline::OperatorClass::kPointwise;
  Plan in_place;
  if (!ask && plan_in_place(op, traits, scan, in_place)) return in_place;
  TORCH_CHECK_NOT_IMPLEMENTED(allowed, "opentrn: a dry run cannot infer the shapes of ", traits.name,
                              ": PyTorch has no meta kernel for it, and its inputs are too large to run it on zeros\n"
                              "  what to do: compute it on the host (.cpu()), or see docs/unsupported.md for the list");
  return plan_from(op, traits, stack, scan, kernel, true);
}

}  // namespace opentrn::device::dry
