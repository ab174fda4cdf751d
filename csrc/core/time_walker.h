// One core's walk over its plan: the state that time.cpp advances and time_steady.cpp extrapolates.
#pragma once
#include <algorithm>
#include <map>

#include "core/time_tables.h"

namespace core {

inline constexpr u8 nobody = 255, dma_engine_id = 254, several = 253;
inline constexpr int queue_count = 3;  // loads, stores, others: each in order
inline constexpr int cause_count = 5, waits_for_semaphore = 4;

struct Chunk {
  i64 written = 0, read = 0;
  i64 earlier = 0;               // when the readers of what stood here before that were done
  i64 streamed = 0;              // when the writer's own engine may follow it element by element
  i32 writer = -1, reader = -1;  // instruction (static), for stall causes
  i32 writer_event = -1, reader_event = -1;
  u8 write_engine = nobody, read_engine = nobody;
};

// A shared resource: requests come in program order, not in time order, so the last few idle gaps can still be filled.
struct Resource {
  static constexpr int gap_count = 64;
  i64 free = 0, busy = 0;
  i64 reach = INT64_MAX / 2;  // how long before `free` idle time may lie to be filled
  struct Gap {
    i64 start = 0, end = 0;
  };
  std::array<Gap, gap_count> gaps;
  int oldest = 0;
  i64 reserve(i64 ready, i64 duration) {
    busy += duration;
    Gap* best = nullptr;
    i64 first = 0;
    if (ready < free)
      for (Gap& g : gaps) {
        const i64 s = std::max(g.start, ready);
        if (s + duration > g.end || g.end <= free - reach) continue;
        if (!best || s < first) {
          best = &g;
          first = s;
        }
      }
    if (best) {
      if (first - best->start >= best->end - (first + duration))
        best->end = first;
      else
        best->start = first + duration;
      return first;
    }
    const i64 s = std::max(free, ready);
    if (s > free) {
      gaps[oldest] = {free, s};
      oldest = (oldest + 1) % gap_count;
    }
    free = s + duration;
    return s;
  }
  // Nothing starts before `when` any more.
  void close(i64 when) {
    free = std::max(free, when);
    gaps.fill({});
  }
};

struct Event {
  i32 instruction, before;
  i64 start, end;
  u8 engine;
};

// Facts about one loop that extrapolation needs, found once.
struct LoopFacts {
  bool ready = false, allowed = false;
  u32 engines = 0;                 // bit per Engine; bit 31: DMA
  std::vector<u8> excluded;        // chunk of the core: its place moves with the loop variable
  std::vector<i32> moving_writes;  // operands
  std::vector<i32> moving_reads;
  i32 low_instruction = INT32_MAX, high_instruction = -1;
};

struct Statistics {
  std::array<i64, engine_count> busy{}, counts{};
  std::array<i64, engine_count> issue{};  // writing DMA descriptors in hardware, by the engine that asks for them
  i64 dma_busy = 0, tensor_ticks = 0, instructions = 0;
  std::array<double, 9> bytes{};
  double flops = 0, hardware_flops = 0, other_bytes = 0;
  template <class F>
  void each(F&& f) {
    for (i64& x : busy) f(x);
    for (i64& x : counts) f(x);
    for (i64& x : issue) f(x);
    f(dma_busy);
    f(tensor_ticks);
    f(instructions);
    for (double& x : bytes) f(x);
    f(flops);
    f(hardware_flops);
    f(other_bytes);
  }
};

struct Snapshot {
  std::vector<i64> state;
  i64 reference = 0, horizon = 0;
  Statistics statistics;
  std::vector<i64> stalls;
};

struct Frame {
  i64 value, stop, step, index = 0;
  std::vector<Snapshot> history;  // newest last
  i64 next_try = 1;
  bool extrapolates = false;
};

enum class Waiting : u8 { no, barrier, sendrecv, finished };

struct Walker {
  const Plan& plan;
  const TimeTables& tables;
  const TimeOptions& options;
  int core;
  std::size_t at = 0;
  std::vector<i64> slots;
  std::vector<Frame> frames;
  std::vector<Chunk> chunks;  // chunk * groups + group
  int groups;
  std::array<i64, engine_count> free{};
  std::vector<Resource> lanes;  // per engine: its idle time, where the options let instructions be reordered
  i64 reach;                    // ticks over which they are
  std::array<i32, engine_count> last_event;
  std::array<std::array<i64, queue_count>, engine_count> queue{};
  std::array<Resource, engine_count> generator;  // descriptor generation, by issuing engine
  Resource pool;
  std::vector<i64> place;  // per rotation
  i64 horizon = 0;
  Statistics statistics;
  std::vector<i64> stall_ticks;  // instruction * causes
  std::vector<i32> stall_producer;
  std::vector<Event>* events = nullptr;
  std::vector<LoopFacts> facts;
  std::vector<std::string>* assumptions;
  i64 stepped = 0, extrapolated = 0;
  Waiting waiting = Waiting::no;
  i32 waiting_instruction = -1;
  i64 dma_latency, semaphore;
  // explicit semaphores: when each reached which value, when what an engine computed or moved was there
  struct Reached {
    i64 value, time;
    i32 instruction;
  };
  std::map<i64, std::vector<Reached>> semaphores;
  std::array<i64, engine_count> visible{}, moved{};
  std::array<i64, engine_count> shortest{};  // ticks of the shortest instruction of each engine
  bool shared_port;

  Walker(const Plan& p, const TimeTables& t, const TimeOptions& o, int c, std::vector<std::string>* a)
      : plan(p),
        tables(t),
        options(o),
        core(c),
        slots(p.slots, 0),
        groups(t.split[c] ? 4 : 1),
        place(t.rotations.size(), -1),
        lanes(o.reorder && !p.explicit_order ? engine_count : 0),
        stall_ticks(p.instructions.size() * cause_count, 0),
        stall_producer(p.instructions.size() * cause_count, -1),
        facts(p.loops.size()),
        assumptions(a) {
    i32 n = 0;
    for (const ChunkMap& m : t.maps[c]) n += m.chunks;
    chunks.resize(std::size_t(n) * groups);
    last_event.fill(-1);
    for (int e = 0; e < engine_count; ++e) shortest[e] = i64(p.chip["min_ii"]) * t.cycle[e];
    dma_latency = t.ticks(p.chip["dma_latency_ns"]);
    semaphore = t.ticks(p.chip["semaphore_ns"]);
    reach = t.ticks(p.chip["reorder_window_ns"]);
    for (Resource& lane : lanes) lane.reach = reach;
    shared_port = p.chip["vector_gpsimd_share_port"] != 0;
  }

  void range_of(const Operand& o, i32& first, i32& last) const {
    if (o.fixed) {
      first = o.first;
      last = o.last;
      return;
    }
    const ChunkMap& m = tables.maps[core][o.memory];
    i64 byte = o.byte.c;
    for (i32 k = 0; k < o.byte.terms; ++k) byte += o.byte.coefficient[k] * slots[o.byte.slot[k]];
    if (o.rotation >= 0) byte += std::max<i64>(0, place[o.rotation]) * tables.rotations[o.rotation].stride;
    first = m.at(byte + o.low);
    last = m.at(byte + o.high - 1);
  }

  // Chunk ranges of the operands of the instruction being walked: `need` finds them, `touch` uses them again.
  std::vector<std::pair<i32, i32>> ranges;
  void find_ranges(const TimeInstruction& t) {
    ranges.resize(t.last_operand - t.first_operand);
    for (i32 k = t.first_operand; k < t.last_operand; ++k)
      range_of(tables.operands[k], ranges[k - t.first_operand].first, ranges[k - t.first_operand].second);
  }

  template <class F>
  void each_chunk(const Operand& o, i32 first, i32 last, F&& f) {
    if (groups == 1) {
      for (i32 k = first; k <= last; ++k) f(chunks[k]);
      return;
    }
    for (i32 k = first; k <= last; ++k)
      for (int g = 0; g < 4; ++g)
        if (o.groups >> g & 1) f(chunks[k * 4 + g]);
  }

  struct Need {
    i64 ready = 0;
    int cause = 0;
    i32 producer = -1, event = -1;
  };
  // When the operands of an instruction of `engine` are ready.
  Need need(const TimeInstruction& t, u8 engine);
  void touch(const TimeInstruction& t, i32 instruction, u8 engine, i64 read_end, i64 visible, i32 event,
             i64 streamed = 0);
  i32 record(i32 instruction, u8 engine, i64 start, i64 end, i32 before);
  void run();  // until the end, or until it waits for the other core

 private:
  bool reorders() const { return !lanes.empty(); }
  Resource& lane_of(int engine) {  // engines that share a port share their time
    return lanes[shared_port && Engine(engine) == Engine::gpsimd ? int(Engine::vector) : engine];
  }
  void stall(i32 instruction, const Need& n, i64 idle);
  void compute(const TimeInstruction& t, i32 instruction);
  void compute_reordered(const TimeInstruction& t, i32 instruction, const Need& n);
  void finish(const TimeInstruction& t, i32 instruction, i64 start, i32 before);
  void dma(const TimeInstruction& t, i32 instruction);
  void fixed_wait(const TimeInstruction& t, i32 instruction);
  void signal(const TimeInstruction& t, i32 instruction);
  void wait(const TimeInstruction& t, i32 instruction);
  void set_register(const PlanInstruction& i);
  i64 number_of(const PlanArgument& a) const;
  i64 trips_of(const PlanLoop& l);
  const TimeInstruction& ragged_cost(i32 instruction, const TimeInstruction& base);

  // time_steady.cpp
  const LoopFacts& loop_facts(i32 loop, std::size_t begin, std::size_t end);
  i64 reference(const LoopFacts& f) const;
  void snapshot(const LoopFacts& f, Snapshot& s);
  bool moving_reads_are_ready(const LoopFacts& f, i64 now);
  i64 uniform_iterations(const LoopFacts& f, i32 variable, i64 value, i64 step, i64 wanted);
  void extrapolate(Frame& frame, i32 loop, std::size_t begin, std::size_t end);
  void skip(Frame& frame, const LoopFacts& f, const Snapshot& then, i64 periods, i64 period, i32 variable);

  // The cost of an instruction whose counts vary, by its counts: a loop has few different tiles.
  struct Ragged {
    std::vector<i64> counts;
    TimeInstruction cost;
  };
  std::vector<std::vector<Ragged>> ragged;
  std::vector<i64> ragged_key;
};

// What a finished walk adds to the result (time_report.cpp).
void collect(const Walker& w, const TimeTables& tables, TimeResult& r);
void add_path(const std::vector<Event>& events, const Plan& plan, double tick, TimeResult& r);

}  // namespace core
