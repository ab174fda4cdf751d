#include "device/cost_memo.h"

#include <memory>

#include "device/signature.h"

namespace opentrn::device {
namespace {

// Some 64 bytes each: what a training step repeats fits, and what it displaces is worked out again.
constexpr size_t kEntries = 4096;

struct Entry {
  Signature key{0, 0};
  timeline::KnownCost known;
};

// All that a cost is read from, but the machine and its programs: they have a generation. Sizes tell a contiguous
// tensor's strides.
void mix(Signature& key, const at::TensorBase& tensor) {
  const auto sizes = tensor.sizes();
  const bool contiguous = tensor.is_contiguous();
  key.mix(static_cast<uint64_t>(tensor.scalar_type()) | sizes.size() << 8 | uint64_t{is_neuron(tensor)} << 32 |
          uint64_t{contiguous} << 33);
  for (const int64_t size : sizes) key.mix(static_cast<uint64_t>(size));
  if (contiguous) return;
  for (const int64_t stride : tensor.strides()) key.mix(static_cast<uint64_t>(stride));
}

Signature key_of(const Ran& ran) {
  Signature key;
  key.mix(ran.traits->id | uint64_t{ran.causal} << 32);
  key.mix(static_cast<uint64_t>(ran.dim));
  // Which argument a tensor came from tells lists of different lengths apart; a copy has two tensors in any case.
  for (const uint8_t argument : ran.arguments) key.mix(argument);
  for (const at::TensorBase* tensor : ran.inputs) mix(key, *tensor);
  key.mix(~uint64_t{0});
  for (const at::TensorBase* tensor : ran.outputs) mix(key, *tensor);
  return key;
}

Entry* make_entries() {
  thread_local const auto owner = std::make_unique<Entry[]>(kEntries);
  return owner.get();
}

}  // namespace

timeline::KnownCost& known_cost(const Ran& ran) {
  constinit thread_local Entry* entries = nullptr;  // the owner has a destructor, and costs more to reach
  if (C10_UNLIKELY(!entries)) entries = make_entries();
  const Signature key = key_of(ran);
  Entry& entry = entries[key.low % kEntries];
  if (entry.key != key) entry = {key, {}};
  return entry.known;
}

}  // namespace opentrn::device
