#include "core/order.h"

#include <algorithm>

#include "core/instructions.h"

namespace core {

namespace {

template <class Clock>
void join(Clock& into, const Clock& from) {
  for (std::size_t a = 0; a < into.size(); ++a) into[a] = std::max(into[a], from[a]);
}

u32* entries(Pages& pages, u64 bytes) {
  if (!pages.data()) pages = Pages(bytes * sizeof(u32));
  return reinterpret_cast<u32*>(pages.data());
}

}  // namespace

void OrderCheck::before(Core& core, const PlanInstruction& i) {
  if (i.opcode == Opcode::tensor_begin) return;
  if (i.opcode == Opcode::semaphore_signal) return signal(core, i);
  if (i.opcode == Opcode::semaphore_wait) return wait(core, i);
  const Definition& d = definition(i.opcode);
  const int engine = int(i.engine);
  if (i.opcode == Opcode::core_barrier) {  // everything before it is over
    Clock all{};
    for (const Clock& c : clocks_) join(all, c);
    clocks_.fill(all);
  }
  const bool transfer = d.dma || d.collective;
  const int agent = transfer ? engine_count + engine : engine;
  if (transfer) join(clocks_[agent], clocks_[engine]);
  events_.push_back({u32(agent), ++clocks_[agent][agent], core.current});
  const Call call(core, i);
  bool skip = false;
  for (i32 n = 0; n < i.argument_count; ++n) skip = skip || call.text(n) == "skip";
  for (bool write : {false, true})  // a result may overwrite an operand: reads first
    for (i32 n = 0; n < i.argument_count; ++n) {
      const Role role = d.parameters[n].role;
      const char* name = d.parameters[n].name.c_str();
      if (i.arguments[n].kind == ValueKind::access) {
        const bool writes = role == Role::write || role == Role::update || role == Role::accumulate;
        if (writes == write && role != Role::any) access(core, i.arguments[n].index, name, write, skip, agent);
      } else if (i.arguments[n].kind == ValueKind::list && !write) {
        for (const Value& v : call.list(n))
          if (v.kind == ValueKind::access) access(core, i32(v.payload), name, false, skip, agent);
      }
    }
}

void OrderCheck::access(Core& core, i32 id, const char* operand, bool write, bool skip, int agent) {
  const PlanAccess& a = core.plan().accesses[id];
  for (i32 index : {a.scalar_access, a.vector_access})
    if (index >= 0) access(core, index, operand, false, false, agent);
  touch(core, core.resolve(id, operand, skip), write, agent);
}

void OrderCheck::touch(Core& core, const Tile& t, bool write, int agent) {
  if (!t.partitions || !t.elements) return;
  Shadow& shadow = shadows_[t.region->base];
  const u64 size = t.region->size;
  u32* writer = entries(shadow.writer, size);
  const u32 now = u32(events_.size());
  const Clock& clock = clocks_[agent];
  auto ordered = [&](u32 event) {
    const Event& e = events_[event - 1];
    return event == now || clock[e.agent] >= e.count;
  };
  for (i64 p = 0; p < t.partitions; ++p) {
    if (t.rows && (*t.rows)[p] == Tile::absent) continue;
    for_runs(t, t.row(p), 0, t.elements, [&](u8* at, i64 stride, i64 n, i64) {
      for (i64 k = 0; k < n; ++k)
        for (i64 b = 0; b < t.bytes; ++b) {
          const u64 byte = u64(at + k * stride + b - t.region->base);
          if (writer[byte] && !ordered(writer[byte])) race(core, t, events_[writer[byte] - 1], true, write);
          if (!write) {
            entries(shadow.reader[agent], size)[byte] = now;
            continue;
          }
          for (Pages& pages : shadow.reader)
            if (pages.data()) {
              u32& reader = reinterpret_cast<u32*>(pages.data())[byte];
              if (reader && !ordered(reader)) race(core, t, events_[reader - 1], false, true);
              reader = 0;
            }
          writer[byte] = now;
        }
    });
  }
}

void OrderCheck::race(const Core& core, const Tile& t, const Event& earlier, bool wrote, bool write) const {
  const Plan& plan = core.plan();
  const PlanInstruction &before = plan.instructions[earlier.instruction], &now = plan.instructions[core.current];
  const std::string where = plan.where(before);
  fail(
      Category::undefined_behaviour,
      std::string("race: ") + (write ? "writes" : "reads") + " tensor '" + plan.program->buffers[t.buffer].name +
          "' (" + t.operand + ") that " + plan.describe(before) + (where.empty() ? "" : " at " + where) + " " +
          (wrote ? "writes" : "reads") + " on the " + engine_names[int(before.engine)] +
          (earlier.agent >= engine_count ? " engine's DMA queue" : " engine") + ", and no semaphore orders the two",
      std::string("let the first signal a semaphore and the ") + engine_names[int(now.engine)] + " engine wait for it");
}

void OrderCheck::signal(Core& core, const PlanInstruction& i) {
  const Call call(core, i);
  const std::string& after = call.text(2);
  if (!after.empty() && after != "dma" && after != "none")
    fail(Category::configuration, "after='" + after + "'", "use dma (transfers this engine issued are over) or none");
  const int engine = int(i.engine), agent = after == "dma" ? engine_count + engine : engine;
  const i64 by = i64(call.number(1));
  if (by <= 0) fail(Category::configuration, "a semaphore is raised by " + std::to_string(by), "use a positive value");
  Semaphore& s = semaphores_[i64(call.number(0))];
  if (s.agent >= 0 && s.agent != agent)
    fail(Category::unsupported,
         "semaphore " + std::to_string(i64(call.number(0))) +
             " is signalled from two queues, so that a value does not "
             "say which of them is done",
         "use one semaphore for each signalling engine");
  s.agent = agent;
  s.value += by;
  s.reached.push_back({s.value, clocks_[agent]});
}

void OrderCheck::wait(Core& core, const PlanInstruction& i) {
  const Call call(core, i);
  const i64 index = i64(call.number(0)), value = i64(call.number(1));
  const Semaphore& s = semaphores_[index];
  if (value > s.value)
    fail(Category::undefined_behaviour,
         "deadlock: waits for semaphore " + std::to_string(index) + " to reach " + std::to_string(value) +
             ", and what comes before raises it to " + std::to_string(s.value),
         "signal it earlier in the program, or wait for less");
  const auto at = std::lower_bound(s.reached.begin(), s.reached.end(), value,
                                   [](const auto& entry, i64 v) { return entry.first < v; });
  if (at != s.reached.end()) join(clocks_[int(i.engine)], at->second);
}

}  // namespace core
