#include "device/accounting.h"

#include "device/trace.h"

namespace opentrn::device {

std::mutex& totals_mutex() {
  static auto* mutex = new std::mutex();
  return *mutex;
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
  std::lock_guard<std::mutex> lock(totals_mutex());
  add(device.totals, cost);
  add(device.phase_totals[phase], cost);
  ++traits.count;
  traits.device_ns += cost.duration;
  traits.flops += cost.flops;
  traits.bytes += cost.bytes;
  if (cost.provenance == timeline::Provenance::kSimulated) traits.simulated_ns += cost.duration;
}

}  // namespace

void account(const Ran& ran, const timeline::Work* given) {
  if (ran.traits->operator_class == timeline::OperatorClass::kNone && !given) return;
  Context& context = Context::get();
  Device& device = context.device(ran.device);
  const timeline::Work work = given ? *given : describe_work(*ran.traits, ran.inputs, ran.written, ran.outputs);
  const timeline::OperatorCost cost = timeline::modelled_cost(context.machine(), work);
  const int64_t stream = current_stream(ran.device);
  const timeline::Interval interval = device.timeline.issue(context.machine(), stream, cost.duration);
  const trace::Phase phase = trace::current_phase();
  count(device, *ran.traits, cost, phase);
  if (trace::active()) {
    trace::add({ran.traits->id, static_cast<int8_t>(ran.device), static_cast<int32_t>(stream), interval, cost,
                device.memory.allocated(), phase},
               ran.inputs, ran.outputs);
  }
}

void synchronize_host(c10::DeviceIndex index) {
  Context& context = Context::get();
  context.device(index).timeline.synchronize_stream(current_stream(index));
  timeline::advance_host(static_cast<timeline::Nanoseconds>(context.machine().synchronize_ns));
}

}  // namespace opentrn::device
