// Virtual time: one host clock per thread, one clock per stream.
//
// An operator is issued at host time, starts when its stream is free and the launch has arrived, and ends after its
// duration. The host runs ahead of the device by at most the queue depth. All times are nanoseconds since attach.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

#include "timeline/machine.h"
#include "timeline/spin_lock.h"

namespace opentrn::timeline {

using Nanoseconds = int64_t;

// When one operator was issued and ran.
struct Interval {
  Nanoseconds host_start;
  Nanoseconds host_end;
  Nanoseconds device_start;
  Nanoseconds device_end;
};

// The calling thread's virtual host clock. A thread that starts late starts at the latest time any thread has reached.
Nanoseconds host_now();
void set_host_now(Nanoseconds time);
void advance_host(Nanoseconds duration);

// The in-order queues (streams) of one logical core.
class DeviceTimeline {
 public:
  // Issues work of the given duration from the calling thread; stream 0 is the default one.
  Interval issue(const Machine& machine, int64_t stream, Nanoseconds duration);
  // Blocks the calling thread's host clock until the stream (or all streams) has drained.
  void synchronize_stream(int64_t stream);
  void synchronize();
  // Work issued later on `stream` starts no earlier than `time` (an event's wait).
  void wait_until(int64_t stream, Nanoseconds time);
  Nanoseconds ready(int64_t stream);
  Nanoseconds latest();

 private:
  struct Stream {
    Nanoseconds ready = 0;
    std::vector<Nanoseconds> in_flight;  // ring of the last `queue_depth` end times
    size_t next = 0;
  };
  Stream& at(int64_t stream);

  SpinLock mutex_;
  std::vector<Stream> streams_;
};

}  // namespace opentrn::timeline
