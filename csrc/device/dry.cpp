#include "device/dry.h"

#include <atomic>
#include <map>
#include <mutex>

#include <ATen/EmptyTensor.h>
#include <c10/util/flat_hash_map.h>

#include "device/host_call.h"
#include "device/infer.h"
#include "device/operators.h"
#include "device/random.h"
#include "device/sizes.h"
#include "device/stand_in.h"
#include "device/trace.h"

namespace opentrn::device::dry {
namespace {

// Results up to these sizes have bytes in a dry run. Integers and booleans are masks, positions and routing: they may
// be larger before they lose their values.
std::atomic<size_t> backed_float_bytes{size_t{64} << 10};
std::atomic<size_t> backed_integer_bytes{size_t{8} << 20};
constexpr size_t kMostPlans = 1 << 16;

std::atomic<bool> dry_mode{false};
std::atomic<int64_t> unbacked_storages{0};

std::mutex plans_mutex;
using Plans = ska::flat_hash_map<Signature, std::shared_ptr<Plan>, SignatureHash>;
Plans& plans() {
  static auto* made = new Plans();
  return *made;
}
// Threads may run operators at the same time.
std::atomic<int64_t> count_inferred{0}, count_ran{0}, count_misses{0};

struct LedgerKey {
  std::string operator_name, rule, frame;
  auto operator<=>(const LedgerKey&) const = default;
};
std::mutex ledger_mutex;
std::map<LedgerKey, int64_t>& ledger_entries() {
  static auto* made = new std::map<LedgerKey, int64_t>();
  return *made;
}

// Values made in a dry run and asked for after it.
void check_may_stand_in(const OperatorTraits& traits) {
  TORCH_CHECK(mode(), "opentrn: ", traits.name, " asks for values that a dry run never computed (at ",
              trace::python_frame_now(),
              ")\n  what to do: ask inside opentrn.dry_run(), which reports what stands in, ",
              "or make the tensor outside");
}

std::shared_ptr<Plan> plan_for(const c10::OperatorHandle& op, const OperatorTraits& traits, torch::jit::Stack& stack,
                               const Scan& scan, const HostKernel* kernel) {
  if (scan.hashable) {
    std::lock_guard<std::mutex> lock(plans_mutex);
    auto found = plans().find(scan.signature);
    if (found != plans().end()) return found->second;
  }
  auto plan = std::make_shared<Plan>(infer(op, traits, stack, scan, kernel));
  std::lock_guard<std::mutex> lock(plans_mutex);
  ++count_misses;
  if (scan.hashable) {
    if (plans().size() >= kMostPlans) plans().clear();  // bounded; a run with that many signatures starts over
    plans()[scan.signature] = plan;
  }
  return plan;
}

// One inferred call: gives results and writes by the plan.
class InferredCall {
 public:
  InferredCall(OperatorTraits& traits, torch::jit::Stack& stack, const Scan& scan, Plan& plan)
      : traits_(traits), origin_(traits), stack_(stack), scan_(scan), plan_(plan) {
    device_ = scan.device >= 0 ? scan.device : current_device();
  }

  void run() {
    for (const auto& [index, geometry] : plan_.changed) change(scan_.tensors[index].tensor, geometry);
    write_arguments();
    made_.reserve(plan_.results.size());
    for (size_t index = 0; index < plan_.results.size(); ++index) made_.push_back(make(index));
    put_on_clock();
    torch::jit::drop(stack_, traits_.argument_count);
    push_results();
  }

 private:
  static void change(const at::Tensor& tensor, const Geometry& geometry) {
    c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
    impl->set_sizes_and_strides(geometry.sizes, geometry.strides);
    if (impl->is_conj() != geometry.conjugate) impl->_set_conj(geometry.conjugate);
    const size_t bytes = at::detail::computeStorageNbytes(geometry.sizes, geometry.strides, tensor.itemsize(),
                                                          static_cast<size_t>(tensor.storage_offset()));
    c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
    if (bytes > storage->nbytes()) resize_storage(storage, bytes);
  }

  // What is written from data without bytes loses its bytes; small integers and booleans keep theirs, unchanged.
  void write_arguments() {
    size_t written = 0;
    for (const auto& entry : scan_.tensors) {
      if (!traits_.writes(entry.argument)) continue;
      const size_t position = written++;
      if (!is_neuron(entry.tensor)) {
        write_host_tensor(entry.tensor);
        continue;
      }
      if (!entry.backed) continue;
      if (is_integer(entry.tensor.scalar_type()) || traits_.base == "_amp_foreach_non_finite_check_and_unscale_") {
        keep_or_fill(entry.tensor, position);
      } else {
        drop_bytes(entry.tensor.storage().unsafeGetStorageImpl());
      }
    }
  }

  // An out= argument is overwritten, so it gets the operator's stand-in; anything else keeps what it has.
  void keep_or_fill(const at::Tensor& tensor, size_t position) {
    if (traits_.has_out) {
      write_stand_in(traits_, position, index_extent(), tensor);
    } else {
      note_kept_values(traits_);
    }
  }

  // A copy to the host of something without bytes: zeros, up to a size at which filling would cost real time.
  void write_host_tensor(const at::Tensor& tensor) {
    check_may_stand_in(traits_);
    note_stand_in(traits_, "copied to the host: zeros");
    constexpr size_t kMostFilled = size_t{64} << 20;
    if (tensor.nbytes() <= kMostFilled) const_cast<at::Tensor&>(tensor).zero_();
  }

  at::Tensor make(size_t index) {
    const Result& result = plan_.results[index];
    switch (result.kind) {
      case Result::kUndefined:
      case Result::kConstant:
        return {};
      case Result::kArgument:
        return scan_.tensors[result.source].tensor;
      case Result::kArgumentView: {
        const at::Tensor& base = scan_.tensors[result.source].tensor;
        return tensor_in(base.storage(), result.geometry, result.geometry.offset + base.storage_offset());
      }
      case Result::kFreshView:
        return tensor_in(made_[result.source].storage(), result.geometry, result.geometry.offset);
      case Result::kFresh:
        return make_fresh(index, result.geometry);
    }
    return {};
  }

  static at::Tensor tensor_in(c10::Storage storage, const Geometry& geometry, int64_t offset) {
    auto impl =
        c10::make_intrusive<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                             c10::scalarTypeToTypeMeta(geometry.type));
    impl->set_sizes_and_strides(geometry.sizes, geometry.strides, offset);
    if (geometry.conjugate) impl->_set_conj(true);
    if (geometry.negative) impl->_set_neg(true);
    return at::Tensor(std::move(impl));
  }

  at::Tensor make_fresh(size_t index, const Geometry& geometry) {
    const bool stand_in = mode() && is_integer(geometry.type) && gets_bytes(geometry.storage_bytes, geometry.type);
    c10::Storage storage = new_storage(geometry.storage_bytes, device_, stand_in || geometry.storage_bytes == 0);
    at::Tensor made = tensor_in(std::move(storage), geometry, geometry.offset);
    if (stand_in && geometry.storage_bytes > 0) write_stand_in(traits_, index, index_extent(), made);
    return made;
  }

  // The size of the dimension that a result's indices point into: the operator's `dim` argument, else the last.
  int64_t index_extent() const {
    if (scan_.tensors.empty()) return 1;
    const at::Tensor& input = scan_.tensors[0].tensor;
    if (input.dim() == 0) return 1;
    int64_t dim = -1;
    const size_t first = stack_.size() - traits_.argument_count;
    if (traits_.dim_argument >= 0) {
      const c10::IValue& value = stack_[first + traits_.dim_argument];
      if (value.isInt()) dim = value.toInt();
      if (value.isNone()) return input.numel();
    } else if (traits_.base == "argmax" || traits_.base == "argmin") {
      return input.numel();
    }
    return input.size(dim);
  }

  void put_on_clock() {
    if (traits_.operator_class == timeline::OperatorClass::kNone) return;
    c10::SmallVector<const at::TensorBase*, 8> inputs, outputs;
    c10::SmallVector<uint8_t, 8> arguments;
    for (const auto& entry : scan_.tensors) {
      inputs.push_back(&entry.tensor);
      arguments.push_back(static_cast<uint8_t>(entry.argument));
    }
    for (size_t index = 0; index < made_.size(); ++index) {
      const auto kind = plan_.results[index].kind;
      if (kind == Result::kFresh || kind == Result::kFreshView) outputs.push_back(&made_[index]);
    }
    if (traits_.is_copy) {
      account_copy(traits_, device_, inputs);
      return;
    }
    const bool causal = traits_.causal_argument >= 0 && argument(traits_.causal_argument).toBool();
    const bool has_dim = traits_.dim_argument >= 0 && argument(traits_.dim_argument).isInt();
    const int64_t dim = has_dim ? argument(traits_.dim_argument).toInt() : Ran::kNoDim;
    account({&traits_, device_, inputs, arguments, outputs, &plan_.cost, causal, dim});
    if (traits_.synchronizes) synchronize_host(device_);
  }

  const c10::IValue& argument(int index) const { return stack_[stack_.size() - traits_.argument_count + index]; }

  void push_results() {
    size_t next = 0;
    for (const int length : plan_.list_lengths) {
      if (length >= 0) {
        c10::List<at::Tensor> list;
        for (int i = 0; i < length; ++i) list.push_back(std::move(made_[next++]));
        stack_.emplace_back(std::move(list));
      } else if (plan_.results[next].kind == Result::kConstant) {
        stack_.push_back(plan_.results[next++].constant);
      } else {
        stack_.emplace_back(std::move(made_[next++]));
      }
    }
  }

  OperatorTraits& traits_;
  OriginScope origin_;
  torch::jit::Stack& stack_;
  const Scan& scan_;
  Plan& plan_;
  c10::DeviceIndex device_ = 0;
  std::vector<at::Tensor> made_;
};

// A copy or fill that overwrites a whole small storage from data with bytes gives the storage bytes again.
bool restores(const OperatorTraits& traits, const Scan& scan) {
  const bool overwrites = traits.base == "copy_" || traits.base == "fill_" || traits.base == "zero_";
  if (!overwrites || scan.tensors.empty() || scan.tensors[0].backed || !is_neuron(scan.tensors[0].tensor)) return false;
  for (size_t i = 1; i < scan.tensors.size(); ++i) {
    if (!scan.tensors[i].backed) return false;
  }
  const at::Tensor& target = scan.tensors[0].tensor;
  const bool whole = target.nbytes() == target.storage().nbytes() && target.is_non_overlapping_and_dense();
  return whole && gets_bytes(target.nbytes(), target.scalar_type());
}

}  // namespace

void set_backing_limits(size_t float_bytes, size_t integer_bytes) {
  backed_float_bytes = float_bytes;
  backed_integer_bytes = integer_bytes;
}

bool mode() { return dry_mode.load(std::memory_order_relaxed); }
bool set_mode(bool on) { return dry_mode.exchange(on); }
void count_unbacked(int by) { unbacked_storages.fetch_add(by, std::memory_order_relaxed); }
bool concerned() { return mode() || unbacked_storages.load(std::memory_order_relaxed) > 0; }

bool gets_bytes(size_t bytes, at::ScalarType type) {
  if (!mode()) return true;
  return bytes <= (is_integer(type) ? backed_integer_bytes : backed_float_bytes).load(std::memory_order_relaxed);
}

bool run(const c10::OperatorHandle& op, OperatorTraits& traits, torch::jit::Stack* stack, const HostKernel* kernel) {
  Scan found = scan(traits, *stack);
  if (found.all_backed && !mode()) return false;
  if (found.device < 0) found.device = current_device();
  for (const auto& entry : found.tensors) check_place(traits, entry.tensor, entry.argument, found.device);
  if (restores(traits, found)) {
    restore_bytes(found.tensors[0].tensor.storage().unsafeGetStorageImpl());
    return false;
  }
  if (found.all_backed && (traits.synchronizes || traits.is_copy)) return false;
  adapt_data_dependent(traits, *stack, found);
  std::shared_ptr<Plan> plan = plan_for(op, traits, *stack, found, kernel);
  if (found.all_backed && plan->fits_bytes) {
    ++count_ran;
    return false;
  }
  ++count_inferred;
  if (plan->stands_in) check_may_stand_in(traits);
  note_stand_in(traits, plan->stands_in);
  if (traits.random) {
    // The generator advances as if the numbers had been drawn.
    const c10::IValue& given = (*stack)[stack->size() - traits.argument_count + traits.generator_argument];
    host_generator(given.isNone() ? std::optional<at::Generator>() : given.toGenerator(), found.device,
                   found.tensors.empty() ? 1 : found.tensors[0].tensor.numel());
  }
  InferredCall(traits, *stack, found, *plan).run();
  return true;
}

at::Scalar stand_in_scalar(const at::TensorBase& tensor) {
  static OperatorTraits& reading = traits_by_name("aten::_local_scalar_dense", timeline::OperatorClass::kNone);
  check_may_stand_in(reading);
  const at::ScalarType type = tensor.scalar_type();
  if (type == at::kBool) {
    note_stand_in(reading, "read by the host: False");
    return false;
  }
  if (is_integer(type)) {
    note_stand_in(reading, "read by the host: 0");
    return int64_t{0};
  }
  if (c10::isComplexType(type)) {
    note_stand_in(reading, "read by the host: 1+0j");
    return c10::complex<double>(1.0);
  }
  note_stand_in(reading, "read by the host: 1.0");
  return 1.0;
}

void write_stand_in(const OperatorTraits& traits, size_t index, int64_t extent, const at::Tensor& tensor) {
  const OpenedBytes bytes(tensor);
  const c10::impl::ExcludeDispatchKeyGuard below(c10::autograd_dispatch_keyset_with_ADInplaceOrView);
  at::Tensor host = host_alias(tensor);
  note_stand_in(traits, fill_stand_in(traits, index, extent, host));
}

void note_kept_values(const OperatorTraits& traits) {
  note_stand_in(traits, "written integers and flags keep their values");
}

void note_stand_in(const OperatorTraits& traits, const char* rule) {
  if (!rule) return;
  std::string frame = trace::python_frame_now();
  std::lock_guard<std::mutex> lock(ledger_mutex);
  ++ledger_entries()[{traits.name, rule, std::move(frame)}];
}

std::vector<StandIn> ledger() {
  std::lock_guard<std::mutex> lock(ledger_mutex);
  std::vector<StandIn> entries;
  for (const auto& [key, times] : ledger_entries()) entries.push_back({key.operator_name, key.rule, key.frame, times});
  return entries;
}

void clear_ledger() {
  std::lock_guard<std::mutex> lock(ledger_mutex);
  ledger_entries().clear();
}

Counters counters() {
  std::lock_guard<std::mutex> lock(plans_mutex);
  return {count_inferred, count_ran, count_misses, static_cast<int64_t>(plans().size())};
}

}  // namespace opentrn::device::dry
