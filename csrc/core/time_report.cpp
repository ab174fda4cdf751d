// From a finished walk to what a user reads: busy times, bytes, stalls with their causes, the critical path.
#include <algorithm>

#include "core/time_walker.h"

namespace core {

namespace {
constexpr const char* cause_names[cause_count] = {"waits for data", "waits for readers of the buffer",
                                                  "waits for an earlier write", "waits for a free place",
                                                  "waits for a semaphore, signalled by"};
}  // namespace

void collect(const Walker& w, const TimeTables& tables, TimeResult& r) {
  const double tick = tables.tick_ns;
  CoreTime c;
  c.nanoseconds = double(w.horizon) * tick;
  for (int e = 0; e < engine_count; ++e) {
    c.busy[e] = double(w.statistics.busy[e]) * tick;
    c.counts[e] = w.statistics.counts[e];
  }
  c.busy[int(Engine::dma)] = double(w.statistics.dma_busy) * tick;
  c.dma_issue = double(*std::max_element(w.statistics.issue.begin(), w.statistics.issue.end())) * tick;
  c.tensor_cycles = double(w.statistics.busy[int(Engine::tensor)]) / double(tables.cycle[int(Engine::tensor)]);
  r.cores.push_back(c);
  r.nanoseconds = std::max(r.nanoseconds, c.nanoseconds);
  r.instructions += w.statistics.instructions;
  r.stepped += w.stepped;
  r.extrapolated_loops += w.extrapolated;
  r.flops += w.statistics.flops;
  r.hardware_flops += w.statistics.hardware_flops;
  for (int p = 0; p < 9; ++p)
    if (w.statistics.bytes[p])
      r.bytes[std::string(space_names[p / 3]) + "->" + space_names[p % 3]] += w.statistics.bytes[p];
  if (w.statistics.other_bytes) r.bytes["between cores"] += w.statistics.other_bytes;
  for (std::size_t k = 0; k < w.stall_ticks.size(); ++k) {
    if (!w.stall_ticks[k]) continue;
    const PlanInstruction& i = w.plan.instructions[k / cause_count];
    std::string cause = cause_names[k % cause_count];
    const i32 producer = w.stall_producer[k];
    if (producer >= 0)
      cause += (k % cause_count == waits_for_semaphore ? " " : " of ") +
               w.plan.describe(w.plan.instructions[producer]) +
               (w.plan.where(w.plan.instructions[producer]).empty()
                    ? ""
                    : " (" + w.plan.where(w.plan.instructions[producer]) + ")");
    const bool dma = w.tables.instructions[k / cause_count].kind == Kind::dma;
    r.stalls.push_back({cause, double(w.stall_ticks[k]) * tick, w.plan.describe(i), w.plan.where(i),
                        dma ? "dma" : engine_names[int(i.engine)]});
  }
}

void add_path(const std::vector<Event>& events, const Plan& plan, double tick, TimeResult& r) {
  if (events.empty()) return;
  i32 last = 0;
  for (i32 i = 0; i < i32(events.size()); ++i)
    if (events[i].end > events[last].end) last = i;
  std::vector<PathStep> path;
  for (i32 i = last; i >= 0; i = events[i].before) {
    const Event& e = events[i];
    const PlanInstruction& p = plan.instructions[e.instruction];
    const std::string engine = e.engine == dma_engine_id ? "dma" : engine_names[e.engine], name = plan.describe(p),
                      where = plan.where(p);
    if (!path.empty() && path.back().instruction == name && path.back().where == where &&
        path.back().engine == engine) {
      path.back().start = double(e.start) * tick;
      ++path.back().count;
    } else
      path.push_back({name, where, double(e.start) * tick, double(e.end) * tick, engine, 1});
  }
  std::reverse(path.begin(), path.end());
  r.critical_path = std::move(path);
}

}  // namespace core
