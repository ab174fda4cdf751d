#include "device/accounting.h"

#include "device/alias.h"
#include "device/cost_memo.h"
#include "device/simulated.h"
#include "device/trace.h"

namespace opentrn::device {

SpinLock& totals_mutex() {
  static SpinLock lock;
  return lock;
}

namespace {

void add(Totals& totals, const timeline::OperatorCost& cost) {
  ++totals.operators;
  totals.device_busy_ns += cost.duration;
  (cost.provenance == timeline::Provenance::kSimulated ? totals.simulated_ns : totals.modelled_ns) += cost.duration;
  totals.flops += cost.flops;
  totals.hbm_bytes += cost.bytes;
}

void count(Device& device, OperatorTraits& traits, const timeline::OperatorCost& cost, trace::Phase phase) {
  std::lock_guard<SpinLock> lock(totals_mutex());
  add(device.totals, cost);
  add(device.phase_totals[phase], cost);
  ++traits.count;
  traits.device_ns += cost.duration;
  traits.flops += cost.flops;
  traits.bytes += cost.bytes;
  if (cost.provenance == timeline::Provenance::kSimulated) {
    ++traits.simulated_count;
    traits.simulated_ns += cost.duration;
    traits.simulated_flops += cost.flops;
    traits.simulated_bytes += cost.bytes;
  }
}

// Where the running operator was called; work that is no operator (collectives, transfers) belongs where it is issued.
trace::Place place_of_work() {
  const memory::Origin& origin = current_origin();
  if (C10_UNLIKELY(!origin.operator_id)) return trace::current_place();
  return {origin.module_id, static_cast<trace::Phase>(origin.phase), origin.frame_id};
}

// Nowhere to keep the cost of work that no tensor tells.
timeline::KnownCost* place_of_cost(const Ran& ran, const timeline::Work* given) {
  if (ran.known) return ran.known;
  return given ? nullptr : &known_cost(ran);
}

timeline::OperatorCost cost_of(const timeline::Machine& machine, const Ran& ran, const timeline::Work* given) {
  timeline::KnownCost* known = place_of_cost(ran, given);
  const int64_t generation = timeline::programs::generation();
  if (known && known->generation == generation) return known->cost;
  const timeline::Work work = given ? *given : describe_work(*ran.traits, ran.inputs, ran.arguments, ran.outputs);
  const std::optional<double> program =
      timeline::programs::enabled() ? simulated_ns(ran, work) : std::optional<double>();
  const timeline::OperatorCost cost =
      program ? timeline::simulated_cost(machine, work, *program) : timeline::modelled_cost(machine, work);
  if (known) *known = {cost, generation};
  return cost;
}

}  // namespace

timeline::Interval account_known(OperatorTraits& traits, c10::DeviceIndex index, int64_t stream,
                                 const timeline::OperatorCost& cost, TensorRefs inputs, TensorRefs outputs) {
  Context& context = Context::get();
  Device& device = context.device(index);
  const timeline::Interval interval = device.timeline.issue(context.machine(), stream, cost.duration);
  const trace::Place place = place_of_work();
  count(device, traits, cost, place.phase);
  if (trace::active()) {
    trace::add({traits.id, static_cast<int8_t>(index), static_cast<int32_t>(stream), interval, cost,
                device.memory.allocated(), place},
               inputs, outputs);
  }
  return interval;
}

void account(const Ran& ran, const timeline::Work* given) {
  if (ran.traits->operator_class == timeline::OperatorClass::kNone && !given) return;
  const timeline::OperatorCost cost = cost_of(Context::get().machine(), ran, given);
  account_known(*ran.traits, ran.device, current_stream(ran.device), cost, ran.inputs, ran.outputs);
}

void account_copy(OperatorTraits& traits, c10::DeviceIndex device, TensorRefs inputs) {
  if (inputs.size() < 2) return;
  // copy_(self, src) and _copy_from(self, dst).
  const bool source_first = traits.base != "copy_";
  const at::TensorBase& source = *inputs[source_first ? 0 : 1];
  const at::TensorBase& target = *inputs[source_first ? 1 : 0];
  timeline::Work work;
  work.operator_class = timeline::OperatorClass::kCopy;
  work.read_bytes = static_cast<int64_t>(source.nbytes());
  work.written_bytes = static_cast<int64_t>(target.nbytes());
  work.output_elements = target.numel();
  const bool from_host = !is_neuron(source), to_host = !is_neuron(target);
  if (from_host || to_host) {
    work.operator_class = timeline::OperatorClass::kTransfer;
    work.from_host = from_host;
  }
  if (from_host) mark_category(target, memory::Category::kInput);
  Ran ran{&traits, device, inputs, {}, {}};
  ran.known = &known_cost(ran);  // the tensors tell this work, if not as other operators' do
  account(ran, &work);
  if (to_host) synchronize_host(device);
}

void occupy(c10::DeviceIndex index, int64_t stream, timeline::Nanoseconds duration) {
  Context& context = Context::get();
  context.device(index).timeline.issue(context.machine(), stream, duration);
}

void synchronize_host(c10::DeviceIndex index) {
  Context& context = Context::get();
  context.device(index).timeline.synchronize_stream(current_stream(index));
  timeline::advance_host(static_cast<timeline::Nanoseconds>(context.machine().synchronize_ns));
}

}  // namespace opentrn::device
