// The time visitor: walks a plan over in-order engine queues and says when everything ran.
#pragma once
#include <functional>
#include <map>

#include "core/plan.h"

namespace core {

struct TimeOptions {
  bool extrapolate = true;  // loops whose relative state repeats are not walked to their end
  // Instructions may start in earlier idle time of their engine, as a compiler that reschedules would place them.
  bool reorder = false;
  bool record = false;  // keep every interval and the critical path (no extrapolation)
  i64 step_limit = i64(1) << 36;
  std::map<std::string, i64> registers;  // assumed values of registers that are loaded from memory
  std::function<void()> poll;
};

struct CoreTime {
  double nanoseconds = 0;
  std::array<double, engine_count> busy{};  // ns; `dma` is the time in which the DMA engines moved bytes
  std::array<i64, engine_count> counts{};
  double tensor_cycles = 0;
  double dma_issue = 0;  // ns in which the busiest queue's descriptors were written, one after another
};

struct Stall {
  std::string cause;
  double nanoseconds;
  std::string instruction, where, engine;
};
struct PathStep {
  std::string instruction, where;
  double start, end;
  std::string engine;
  i64 count;
};

struct TimeResult {
  double nanoseconds = 0;
  i64 instructions = 0, stepped = 0, extrapolated_loops = 0;
  double flops = 0, hardware_flops = 0;
  std::vector<CoreTime> cores;
  std::map<std::string, double> bytes;  // "hbm->sbuf": bytes
  std::vector<Stall> stalls;
  std::vector<PathStep> critical_path;
  std::vector<std::string> assumptions;
  std::vector<i32> interval_instruction;
  std::vector<u8> interval_engine, interval_core;
  std::vector<double> interval_start, interval_end;
};

TimeResult time_plan(const Plan& plan, const TimeOptions& options);

}  // namespace core
