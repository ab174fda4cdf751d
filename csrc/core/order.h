// Explicit semaphores: what a program with semaphore_signal and semaphore_wait orders by itself, and what it forgot.
//
// Engines run independent, in-order queues; DMA transfers run behind the engine that issues them. Each is an agent with
// a vector clock. A wait joins the clock that the signalling agent had when the semaphore reached the value. An access
// that no chain of queue order and semaphores puts after an earlier conflicting one is a race.
#pragma once
#include "core/machine.h"

namespace core {

class OrderCheck {
 public:
  // Counts the instruction and checks its operands; throws where it races.
  void before(Core& core, const PlanInstruction& i);

 private:
  static constexpr int agent_count = 2 * engine_count;  // engines, then the DMA transfers each of them issues
  using Clock = std::array<u32, agent_count>;
  struct Event {
    u32 agent, count;
    i32 instruction;
  };
  // Per byte: 1 + the event that wrote it last, and that read it last since, by agent.
  struct Shadow {
    Pages writer;
    std::array<Pages, agent_count> reader;
  };
  struct Semaphore {
    i64 value = 0;
    int agent = -1;
    std::vector<std::pair<i64, Clock>> reached;  // value -> clock of the signal that made it
  };

  std::array<Clock, agent_count> clocks_{};
  std::vector<Event> events_;
  std::map<const u8*, Shadow> shadows_;  // by base of the region
  std::map<i64, Semaphore> semaphores_;

  void signal(Core& core, const PlanInstruction& i);
  void wait(Core& core, const PlanInstruction& i);
  void access(Core& core, i32 access, const char* operand, bool write, bool skip, int agent);
  void touch(Core& core, const Tile& t, bool write, int agent);
  [[noreturn]] void race(const Core& core, const Tile& t, const Event& earlier, bool wrote, bool write) const;
};

}  // namespace core
