#include "timeline/clock.h"

#include <algorithm>

namespace opentrn::timeline {
namespace {

std::atomic<Nanoseconds> latest_host{0};

constinit thread_local Nanoseconds host_clock = -1;  // not started: no initialiser runs at each access

}  // namespace

Nanoseconds host_now() {
  if (host_clock < 0) host_clock = latest_host.load(std::memory_order_relaxed);
  return host_clock;
}

void set_host_now(Nanoseconds time) {
  host_clock = time;
  latest_host.store(time, std::memory_order_relaxed);
}

void advance_host(Nanoseconds duration) { set_host_now(host_now() + duration); }

DeviceTimeline::Stream& DeviceTimeline::at(int64_t stream) {
  if (static_cast<size_t>(stream) >= streams_.size()) streams_.resize(stream + 1);
  return streams_[stream];
}

Interval DeviceTimeline::issue(const Machine& machine, int64_t stream, Nanoseconds duration) {
  std::lock_guard<SpinLock> lock(mutex_);
  Stream& queue = at(stream);
  if (queue.in_flight.empty()) queue.in_flight.assign(static_cast<size_t>(std::max(machine.queue_depth, 1.0)), 0);
  Interval interval;
  // A full queue holds the host back until the oldest entry has finished.
  interval.host_start = std::max(host_now(), queue.in_flight[queue.next]);
  interval.host_end = interval.host_start + static_cast<Nanoseconds>(machine.host_ns_per_op);
  interval.device_start = std::max(queue.ready, interval.host_end + static_cast<Nanoseconds>(machine.launch_ns));
  interval.device_end = interval.device_start + duration;
  queue.ready = interval.device_end;
  queue.in_flight[queue.next] = interval.device_end;
  if (++queue.next == queue.in_flight.size()) queue.next = 0;
  set_host_now(interval.host_end);
  return interval;
}

void DeviceTimeline::synchronize_stream(int64_t stream) {
  std::lock_guard<SpinLock> lock(mutex_);
  set_host_now(std::max(host_now(), at(stream).ready));
}

void DeviceTimeline::synchronize() { set_host_now(std::max(host_now(), latest())); }

void DeviceTimeline::wait_until(int64_t stream, Nanoseconds time) {
  std::lock_guard<SpinLock> lock(mutex_);
  Stream& queue = at(stream);
  queue.ready = std::max(queue.ready, time);
}

Nanoseconds DeviceTimeline::ready(int64_t stream) {
  std::lock_guard<SpinLock> lock(mutex_);
  return at(stream).ready;
}

Nanoseconds DeviceTimeline::latest() {
  std::lock_guard<SpinLock> lock(mutex_);
  Nanoseconds time = 0;
  for (const Stream& queue : streams_) time = std::max(time, queue.ready);
  return time;
}

}  // namespace opentrn::timeline
