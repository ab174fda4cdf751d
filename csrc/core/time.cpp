// The walk itself: every instruction starts when its queue is free and its operands are ready.
#include "core/time.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/time_tables.h"

namespace core {

namespace {

constexpr u8 nobody = 255, dma_engine_id = 254, several = 253;
constexpr std::size_t period_max = 16;  // iterations after which a loop's state may repeat: the most places of a tile
constexpr i64 streaming_bytes = 256;    // rows longer than the pipeline of an engine is deep
constexpr int queue_count = 3;          // loads, stores, others: each in order
constexpr int cause_count = 4;
constexpr const char* cause_names[cause_count] = {"waits for data", "waits for readers of the buffer",
                                                  "waits for an earlier write", "waits for a free place"};

struct Chunk {
  i64 written = 0, read = 0;
  i64 streamed = 0;              // when the writer's own engine may follow it element by element
  i32 writer = -1, reader = -1;  // instruction (static), for stall causes
  i32 writer_event = -1, reader_event = -1;
  u8 write_engine = nobody, read_engine = nobody;
};

// A shared resource: requests come in program order, not in time order, so the last few idle gaps can still be filled.
struct Resource {
  static constexpr int gap_count = 64;
  i64 free = 0, busy = 0;
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
        if (s + duration > g.end) continue;
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
  i64 dma_busy = 0, issue_busy = 0, tensor_ticks = 0, instructions = 0;
  std::array<double, 9> bytes{};
  double flops = 0, hardware_flops = 0, other_bytes = 0;
  template <class F>
  void each(F&& f) {
    for (i64& x : busy) f(x);
    for (i64& x : counts) f(x);
    f(dma_busy);
    f(issue_busy);
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
  std::vector<u8> register_known;
  std::vector<Frame> frames;
  std::vector<Chunk> chunks;  // chunk * groups + group
  int groups;
  std::array<i64, engine_count> free{};
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
  std::array<i64, engine_count> shortest{};  // ticks of the shortest instruction of each engine
  bool shared_port;

  Walker(const Plan& p, const TimeTables& t, const TimeOptions& o, int c, std::vector<std::string>* a)
      : plan(p),
        tables(t),
        options(o),
        core(c),
        slots(p.slots, 0),
        register_known(p.program->registers.size(), 0),
        groups(t.split[c] ? 4 : 1),
        place(t.rotations.size(), -1),
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
    const i64 top = i64(m.chunk_of.size()) - 1;
    first = m.first + m.chunk_of[std::clamp<i64>((byte + o.low) / m.granule, 0, top)];
    last = m.first + m.chunk_of[std::clamp<i64>((byte + o.high - 1) / m.granule, 0, top)];
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
  Need need(const TimeInstruction& t, u8 engine) {
    Need n;
    auto raise = [&](i64 when, int cause, i32 producer, i32 event) {
      if (when > n.ready) n = {when, cause, producer, event};
    };
    for (i32 k = t.first_operand; k < t.last_operand; ++k) {
      const Operand& o = tables.operands[k];
      i32 first, last;
      range_of(o, first, last);
      // a result that is both read and overwritten counts as waiting for data
      // On one engine a long row follows its producer element by element; a short result (a reduction) is waited for.
      const bool follows = o.high - o.low >= streaming_bytes;
      if (!o.write)
        each_chunk(o, first, last, [&](Chunk& c) {
          const i64 when = follows && c.write_engine == engine ? c.streamed : c.written;
          if (when >= n.ready && when > 0) n = {when, 0, c.writer, c.writer_event};
        });
      else
        each_chunk(o, first, last, [&](Chunk& c) {
          if (c.write_engine != engine) raise(c.written, 2, c.writer, c.writer_event);
          if (c.read_engine != engine && c.read_engine != nobody) raise(c.read, 1, c.reader, c.reader_event);
        });
    }
    return n;
  }

  void touch(const TimeInstruction& t, i32 instruction, u8 engine, i64 read_end, i64 visible, i32 event,
             i64 streamed = 0) {
    for (i32 k = t.first_operand; k < t.last_operand; ++k) {
      const Operand& o = tables.operands[k];
      i32 first, last;
      range_of(o, first, last);
      if (o.write)
        each_chunk(o, first, last, [&](Chunk& c) {
          c.written = visible;
          c.streamed = streamed ? streamed : visible;
          c.writer = instruction;
          c.writer_event = event;
          c.write_engine = engine;
          c.read = 0;
          c.read_engine = nobody;
        });
      else
        each_chunk(o, first, last, [&](Chunk& c) {
          c.read_engine = c.read_engine == nobody || c.read_engine == engine ? engine : several;
          if (read_end >= c.read) {
            c.read = read_end;
            c.reader = instruction;
            c.reader_event = event;
          }
        });
    }
  }

  void stall(i32 instruction, const Need& n, i64 idle) {
    const std::size_t k = std::size_t(instruction) * cause_count + n.cause;
    stall_ticks[k] += idle;
    stall_producer[k] = n.producer;
  }

  i32 record(i32 instruction, u8 engine, i64 start, i64 end, i32 before) {
    if (!events) return -1;
    events->push_back({instruction, before, start, end, engine});
    return i32(events->size()) - 1;
  }

  void compute(const TimeInstruction& t, i32 instruction) {
    const int e = int(t.engine);
    const Need n = need(t, u8(e));
    i64 ready = free[e];
    if (shared_port && (t.engine == Engine::vector || t.engine == Engine::gpsimd))
      ready = std::max(ready, free[t.engine == Engine::vector ? int(Engine::gpsimd) : int(Engine::vector)]);
    i64 start = ready;
    i32 before = last_event[e];
    if (n.ready > ready) {
      start = n.ready;
      before = n.event;
      if (ready > 0 || n.ready > 0) stall(instruction, n, n.ready - ready);
    }
    const i64 end = start + t.cost;
    free[e] = end;
    const i32 event = record(instruction, u8(e), start, end, before);
    last_event[e] = event;
    touch(t, instruction, u8(e), end, end + t.latency, event, std::max(end, start + shortest[e] + t.latency));
    statistics.busy[e] += t.cost;
    ++statistics.counts[e];
    ++statistics.instructions;
    statistics.flops += t.flops;
    statistics.hardware_flops += t.hardware_flops;
    horizon = std::max(horizon, end + t.latency);
  }

  void dma(const TimeInstruction& t, i32 instruction) {
    const int e = int(t.engine);
    const Need n = need(t, dma_engine_id);
    i64 ready = std::max(queue[e][t.queue], n.ready);
    if (n.ready > queue[e][t.queue]) stall(instruction, n, n.ready - queue[e][t.queue]);
    if (t.software) {  // GpSimd writes the descriptors
      const int g = int(Engine::gpsimd);
      ready = std::max(ready, free[g]);
      free[g] = ready + t.issue;
      statistics.busy[g] += t.issue;
    }
    const i64 issued = t.software ? ready : generator[e].reserve(ready, t.issue);
    queue[e][t.queue] = issued;
    const i64 first = pool.reserve(issued + dma_latency, t.pool);
    const i64 end = first + std::max(t.transfer, t.pool);
    const i32 event = record(instruction, dma_engine_id, issued, end, n.event);
    touch(t, instruction, dma_engine_id, end, end, event);
    statistics.dma_busy += t.pool;
    statistics.issue_busy += t.issue;
    ++statistics.counts[int(Engine::dma)];
    ++statistics.instructions;
    if (t.path >= 0) statistics.bytes[t.path] += t.bytes;
    horizon = std::max(horizon, end);
  }

  // Waits that this core resolves alone: collectives (all ranks arrive together), registers.
  void fixed_wait(const TimeInstruction& t, i32 instruction) {
    const int e = int(t.engine);
    const Need n = need(t, u8(e));
    const i64 start = std::max(free[e], n.ready);
    const i64 end = start + (t.kind == Kind::collective ? t.transfer : t.cost);
    free[e] = t.kind == Kind::collective ? start + t.cost : end;
    const i32 event = record(instruction, t.kind == Kind::collective ? dma_engine_id : u8(e), start, end, n.event);
    touch(t, instruction, t.kind == Kind::collective ? dma_engine_id : u8(e), end, end + t.latency, event);
    statistics.other_bytes += t.bytes;
    ++statistics.instructions;
    ++statistics.counts[e];
    horizon = std::max(horizon, end);
    if (t.kind == Kind::registers) set_register(plan.instructions[instruction]);
  }

  void set_register(const PlanInstruction& i) {
    if (i.opcode == Opcode::register_store) return;
    const PlanArgument& dst = i.arguments[0];
    if (dst.kind != ValueKind::expression) return;
    const Quantity& q = plan.quantities[dst.index];
    const i32 reg = q.terms ? q.slot[0] - plan.program->loop_variables : -1;
    if (reg < 0) return;
    const std::string& name = plan.program->registers[reg];
    i64 value = 1;
    if (i.opcode == Opcode::register_move) {
      const PlanArgument& src = i.arguments[1];
      value =
          src.kind == ValueKind::expression ? plan.value(plan.quantities[src.index], slots.data()) : i64(src.number);
    } else if (i.opcode == Opcode::rank_id) {
      value = 0;
    } else {
      // A value from memory is not known to the time visitor: the caller's assumption, else 1.
      auto it = options.registers.find(name);
      if (it != options.registers.end()) value = it->second;
      const std::string note =
          "register '" + name + "' loaded at " + plan.where(i) + " assumed to be " + std::to_string(value);
      if (std::find(assumptions->begin(), assumptions->end(), note) == assumptions->end()) assumptions->push_back(note);
    }
    slots[plan.program->loop_variables + reg] = value;
  }

  // ---------------------------------------------------------------------------------------- steady loops

  const LoopFacts& loop_facts(i32 loop, std::size_t begin, std::size_t end) {
    LoopFacts& f = facts[loop];
    if (f.ready) return f;
    f.ready = f.allowed = true;
    f.excluded.assign(chunks.size(), 0);
    const i32 variable = plan.loops[loop].variable;
    std::vector<u8> moved_write(chunks.size(), 0), other_read(chunks.size(), 0);
    for (std::size_t s = begin; s < end && f.allowed; ++s) {
      const CodeStep& step = plan.code[core][s];
      if (step.kind == StepKind::loop) {
        const PlanLoop& l = plan.loops[step.index];
        if (l.kind == LoopKind::while_register || !l.start.constant() || !l.stop.constant()) f.allowed = false;
        continue;
      }
      if (step.kind != StepKind::instruction) continue;
      const TimeInstruction& t = tables.instructions[step.index];
      f.low_instruction = std::min(f.low_instruction, step.index);
      f.high_instruction = std::max(f.high_instruction, step.index);
      if (t.kind == Kind::barrier || t.kind == Kind::sendrecv || t.kind == Kind::registers) f.allowed = false;
      if (t.kind == Kind::dma) f.engines |= 1u << 31;
      if (t.kind == Kind::compute || t.kind == Kind::collective || t.software)
        f.engines |= 1u << int(t.software ? Engine::gpsimd : t.engine);
      for (i32 o = t.first_operand; o < t.last_operand; ++o) {
        const Operand& op = tables.operands[o];
        bool moves = false;
        for (i32 k = 0; k < op.byte.terms; ++k) moves = moves || op.byte.slot[k] == variable;
        if (moves) (op.write ? f.moving_writes : f.moving_reads).push_back(o);
      }
    }
    // A memory that moving accesses both write and read passes data between iterations: not extrapolated.
    auto mark = [&](i32 o, std::vector<u8>& into) {
      const Operand& op = tables.operands[o];
      const ChunkMap& m = tables.maps[core][op.memory];
      i64 low = op.byte.c + op.low, high = op.byte.c + op.high;
      for (i32 k = 0; k < op.byte.terms; ++k) {
        i64 reach = 0;
        for (const PlanLoop& l : plan.loops)
          if (l.variable == op.byte.slot[k]) {
            const i64 start = plan.value(l.start, slots.data()), stop = plan.value(l.stop, slots.data());
            reach = op.byte.coefficient[k] * std::max<i64>(0, stop - 1 - start);
            low += op.byte.coefficient[k] * start;
            high += op.byte.coefficient[k] * start;
          }
        (reach < 0 ? low : high) += reach;
      }
      if (op.rotation >= 0) high += (tables.rotations[op.rotation].copies - 1) * tables.rotations[op.rotation].stride;
      const i64 top = i64(m.chunk_of.size()) - 1;
      for (i32 c = m.chunk_of[std::clamp<i64>(low / m.granule, 0, top)];
           c <= m.chunk_of[std::clamp<i64>((high - 1) / m.granule, 0, top)]; ++c)
        for (int g = 0; g < groups; ++g) into[(m.first + c) * groups + g] = 1;
    };
    for (i32 o : f.moving_writes) {
      mark(o, moved_write);
      mark(o, f.excluded);
    }
    for (i32 o : f.moving_reads) {
      mark(o, other_read);
      mark(o, f.excluded);
    }
    for (std::size_t c = 0; c < chunks.size(); ++c)
      if (moved_write[c] && other_read[c]) f.allowed = false;
    return f;
  }

  i64 reference(const LoopFacts& f) const {
    i64 r = INT64_MAX;
    for (int e = 0; e < engine_count; ++e)
      if (f.engines >> e & 1) r = std::min(r, free[e]);
    if (f.engines >> 31)
      for (int e = 0; e < engine_count; ++e)
        for (i64 q : queue[e])
          if (q) r = std::min(r, q);
    return r == INT64_MAX ? 0 : r;
  }

  void snapshot(const LoopFacts& f, Snapshot& s) {
    s.reference = reference(f);
    s.horizon = horizon;
    s.statistics = statistics;
    s.state.clear();
    auto push = [&](i64 t) { s.state.push_back(t > s.reference ? t - s.reference : 0); };
    for (int e = 0; e < engine_count; ++e)
      if (f.engines >> e & 1) push(free[e]);
    if (f.engines >> 31) {
      for (int e = 0; e < engine_count; ++e) {
        for (i64 q : queue[e]) push(q);
        push_resource(generator[e], push);
      }
      push_resource(pool, push);
    }
    for (std::size_t c = 0; c < chunks.size(); ++c) {
      if (f.excluded[c]) continue;
      const Chunk& k = chunks[c];
      push(k.written);
      push(k.read);
      push(k.streamed);
      s.state.push_back((k.written > s.reference ? k.write_engine : nobody) * 256 +
                        (k.read > s.reference ? k.read_engine : nobody));
    }
    for (i64 p : place) s.state.push_back(p);
    s.stalls.assign(stall_ticks.begin() + i64(f.low_instruction) * cause_count,
                    stall_ticks.begin() + i64(f.high_instruction + 1) * cause_count);
  }

  template <class F>
  static void push_resource(const Resource& r, F&& push) {
    push(r.free);
    if (!r.busy) return;
    // gaps as a sorted set: their place in the ring means nothing
    std::array<Resource::Gap, Resource::gap_count> g = r.gaps;
    std::sort(g.begin(), g.end(), [](const auto& a, const auto& b) { return a.start < b.start; });
    for (const auto& x : g) {
      push(x.end > x.start ? x.start : 0);
      push(x.end > x.start ? x.end : 0);
    }
  }

  // Data that moving reads still wait for would end the steady state.
  bool moving_reads_are_ready(const LoopFacts& f, i64 now) {
    std::vector<u8> seen(chunks.size(), 0);
    for (i32 o : f.moving_reads) {
      const Operand& op = tables.operands[o];
      const ChunkMap& m = tables.maps[core][op.memory];
      for (i32 c = m.first; c < m.first + m.chunks; ++c)
        for (int g = 0; g < groups; ++g) {
          const std::size_t k = std::size_t(c) * groups + g;
          if (f.excluded[k] && chunks[k].written > now) return false;
        }
    }
    return true;
  }

  // Iterations that keep every count at its present value: a ragged last tile is walked.
  i64 uniform_iterations(const LoopFacts& f, i32 variable, i64 value, i64 step, i64 wanted) {
    i64 n = wanted;
    for (i32 i = f.low_instruction; i <= f.high_instruction; ++i) {
      const TimeInstruction& t = tables.instructions[i];
      if (t.fixed || t.kind == Kind::begin) continue;
      const PlanInstruction& p = plan.instructions[i];
      for (i32 a = 0; a < p.argument_count; ++a) {
        if (p.arguments[a].kind != ValueKind::access) continue;
        const PlanAccess& access = plan.accesses[p.arguments[a].index];
        for (int d = 0; d < access.dims; ++d) {
          const Quantity& q = access.count[d];
          if (q.constant()) continue;
          const i64 keep = slots[variable];
          const i64 now = plan.value(q, slots.data());
          slots[variable] = value + n * step;  // counts shrink monotonically: the last equal one by bisection
          if (plan.value(q, slots.data()) != now) {
            i64 good = 0, bad = n;
            while (bad - good > 1) {
              const i64 mid = (good + bad) / 2;
              slots[variable] = value + mid * step;
              (plan.value(q, slots.data()) == now ? good : bad) = mid;
            }
            n = good;
          }
          slots[variable] = keep;
        }
      }
    }
    return n;
  }

  // At the end of an iteration: if the relative state is that of `period` iterations ago, skip whole periods.
  void extrapolate(Frame& frame, i32 loop, std::size_t begin, std::size_t end) {
    if (!frame.extrapolates || frame.index < frame.next_try) return;
    const LoopFacts& f = loop_facts(loop, begin, end);
    const i64 remaining = (frame.stop - 1 - frame.value) / frame.step;  // iterations after this one
    if (!f.allowed || remaining < 2 || f.high_instruction < 0) {
      frame.extrapolates = false;
      return;
    }
    frame.history.emplace_back();
    snapshot(f, frame.history.back());
    if (frame.history.size() > period_max + 1) frame.history.erase(frame.history.begin());
    const Snapshot& now = frame.history.back();
    for (std::size_t period = 1; period < frame.history.size(); ++period) {
      const Snapshot& then = frame.history[frame.history.size() - 1 - period];
      if (then.state != now.state) continue;
      if (!moving_reads_are_ready(f, now.reference)) break;
      const i64 same = uniform_iterations(f, plan.loops[loop].variable, frame.value, frame.step, remaining);
      const i64 periods = same / i64(period);
      if (periods < 1) break;
      skip(frame, f, then, periods, i64(period), plan.loops[loop].variable);
      ++extrapolated;
      frame.extrapolates = false;
      frame.history.clear();
      return;
    }
    if (frame.index >= frame.next_try + 64)
      frame.extrapolates = frame.index < 2000, frame.next_try = frame.index * 2, frame.history.clear();
  }

  void skip(Frame& frame, const LoopFacts& f, const Snapshot& then, i64 periods, i64 period, i32 variable) {
    const i64 delta = (reference(f) - then.reference) * periods, one = reference(f) - then.reference,
              ref = reference(f);
    // Moving writes: the chunk of each skipped iteration gets the time of its counterpart in the last period.
    for (i32 o : f.moving_writes) {
      const Operand& op = tables.operands[o];
      for (i64 back = 0; back < period; ++back) {
        const i64 keep = slots[variable];
        slots[variable] = frame.value - back * frame.step;
        i32 first, last;
        range_of(op, first, last);
        const Chunk source = chunks[std::size_t(first) * groups];
        for (i64 k = 1; k <= periods; ++k) {
          slots[variable] = frame.value - back * frame.step + k * period * frame.step;
          range_of(op, first, last);
          each_chunk(op, first, last, [&](Chunk& c) {
            c = source;
            c.written += k * one;
            c.streamed += k * one;
            c.read += c.read ? k * one : 0;
          });
        }
        slots[variable] = keep;
      }
    }
    auto shift = [&](i64& t) {
      if (t > ref) t += delta;
    };
    for (int e = 0; e < engine_count; ++e)
      if (f.engines >> e & 1) free[e] += delta;
    if (f.engines >> 31) {
      for (int e = 0; e < engine_count; ++e) {
        for (i64& q : queue[e])
          if (q) q += delta;
        shift_resource(generator[e], ref, delta);
      }
      shift_resource(pool, ref, delta);
    }
    for (std::size_t c = 0; c < chunks.size(); ++c)
      if (!f.excluded[c]) {
        shift(chunks[c].written);
        shift(chunks[c].read);
        shift(chunks[c].streamed);
      }
    horizon += horizon > ref ? (horizon - then.horizon) * periods : 0;
    Statistics before = then.statistics, after = statistics;
    std::vector<double> growth;
    std::vector<double> a, b;
    before.each([&](auto& x) { a.push_back(double(x)); });
    after.each([&](auto& x) { b.push_back(double(x)); });
    std::size_t n = 0;
    statistics.each([&](auto& x) {
      using T = std::decay_t<decltype(x)>;
      x += T((b[n] - a[n]) * double(periods));
      ++n;
    });
    const i64 base = i64(f.low_instruction) * cause_count;
    for (std::size_t k = 0; k < then.stalls.size(); ++k)
      stall_ticks[base + i64(k)] += (stall_ticks[base + i64(k)] - then.stalls[k]) * periods;
    frame.value += periods * period * frame.step;
    frame.index += periods * period;
  }

  static void shift_resource(Resource& r, i64 ref, i64 delta) {
    if (r.free > ref) r.free += delta;
    for (auto& g : r.gaps) {
      if (g.start > ref)
        g.start += delta;
      else if (g.end > ref)
        g.start = ref + delta;
      if (g.end > ref) g.end += delta;
    }
  }

  // The cost of an instruction whose counts vary, by its counts: a loop has few different tiles.
  struct Ragged {
    std::vector<i64> counts;
    TimeInstruction cost;
  };
  std::vector<std::vector<Ragged>> ragged;
  std::vector<i64> ragged_key;
  const TimeInstruction& ragged_cost(i32 instruction, const TimeInstruction& base) {
    if (ragged.empty()) ragged.resize(plan.instructions.size());
    const PlanInstruction& p = plan.instructions[instruction];
    ragged_key.clear();
    auto add = [&](const PlanAccess& a) {
      if (!a.fixed)
        for (int d = 0; d < a.dims; ++d) {
          ragged_key.push_back(plan.value(a.count[d], slots.data()));
          ragged_key.push_back(plan.value(a.stride[d], slots.data()));
        }
    };
    for (i32 n = 0; n < p.argument_count; ++n) {
      if (p.arguments[n].kind == ValueKind::access) add(plan.accesses[p.arguments[n].index]);
      if (p.arguments[n].kind == ValueKind::list)
        for (const Value& v : plan.program->lists[p.arguments[n].index])
          if (v.kind == ValueKind::access) add(plan.accesses[v.payload]);
    }
    auto& known = ragged[instruction];
    for (const Ragged& r : known)
      if (r.counts == ragged_key) return r.cost;
    if (known.size() >= 16) known.clear();
    known.reserve(16);
    known.push_back({ragged_key, base});
    tables.cost(instruction, slots.data(), known.back().cost);
    return known.back().cost;
  }

  // ---------------------------------------------------------------------------------------- the walk

  void run() {
    const auto& code = plan.code[core];
    const std::size_t end = code.size();
    while (at < end) {
      const CodeStep& step = code[at];
      if (step.kind == StepKind::instruction) {
        const TimeInstruction* t = &tables.instructions[step.index];
        if ((++stepped & 0xfffff) == 0) {
          if (options.poll) options.poll();
          if (stepped > options.step_limit)
            fail(Category::undefined_behaviour,
                 "the program takes more than " + std::to_string(options.step_limit) + " steps",
                 "check its loops, or raise the limit");
        }
        if (!t->fixed && t->kind != Kind::begin) {
          t = &ragged_cost(step.index, *t);
          if (t->cost < 0) {
            ++at;
            continue;
          }
        }
        switch (t->kind) {
          case Kind::compute:
            compute(*t, step.index);
            break;
          case Kind::dma:
            dma(*t, step.index);
            break;
          case Kind::begin:
            if (t->rotation >= 0) place[t->rotation] = (place[t->rotation] + 1) % tables.rotations[t->rotation].copies;
            break;
          case Kind::registers:
          case Kind::collective:
            fixed_wait(*t, step.index);
            break;
          case Kind::barrier:
          case Kind::sendrecv:
            waiting = t->kind == Kind::barrier ? Waiting::barrier : Waiting::sendrecv;
            waiting_instruction = step.index;
            ++at;
            return;
          case Kind::nothing:
            break;
        }
        ++at;
      } else if (step.kind == StepKind::loop) {
        const PlanLoop& l = plan.loops[step.index];
        Frame f{};
        if (l.kind == LoopKind::while_register) {
          if (slots[plan.program->loop_variables + l.condition] == 0) {
            at = step.target;
            continue;
          }
          f.index = 0;
        } else {
          f.value = plan.value(l.start, slots.data());
          f.stop = plan.value(l.stop, slots.data());
          f.step = plan.value(l.step, slots.data());
          if (f.step <= 0) fail(Category::unsupported, "a loop steps by " + std::to_string(f.step));
          if (f.value >= f.stop) {
            at = step.target;
            continue;
          }
          slots[l.variable] = f.value;
          f.extrapolates = options.extrapolate && !options.record && (f.stop - f.value) / f.step > 3;
        }
        frames.push_back(std::move(f));
        ++at;
      } else {
        const PlanLoop& l = plan.loops[step.index];
        Frame& f = frames.back();
        if (l.kind == LoopKind::while_register) {
          // a condition that is loaded from memory stays at its assumption: one pass
          if (slots[plan.program->loop_variables + l.condition] != 0 && ++f.index < trips_of(l)) {
            at = step.target + 1;
            continue;
          }
          frames.pop_back();
          ++at;
          continue;
        }
        if (f.extrapolates) extrapolate(f, step.index, step.target + 1, at);
        f.value += f.step;
        ++f.index;
        if (f.value < f.stop) {
          slots[l.variable] = f.value;
          at = step.target + 1;
        } else {
          frames.pop_back();
          ++at;
        }
      }
    }
    waiting = Waiting::finished;
  }

  i64 trips_of(const PlanLoop& l) {
    const std::string& name = plan.program->registers[l.condition];
    auto it = options.registers.find("while " + name);
    const i64 trips = it == options.registers.end() ? 1 : it->second;
    const std::string note = "while loop on register '" + name + "' assumed to run " + std::to_string(trips) + " times";
    if (std::find(assumptions->begin(), assumptions->end(), note) == assumptions->end()) assumptions->push_back(note);
    return trips;
  }
};

// Two cores that wait for each other go on together.
bool release(std::vector<Walker>& walkers, const TimeTables& tables) {
  if (walkers.size() < 2) {
    if (walkers[0].waiting == Waiting::no || walkers[0].waiting == Waiting::finished) return false;
    walkers[0].waiting = Waiting::no;
    return true;
  }
  Walker &a = walkers[0], &b = walkers[1];
  auto open = [](const Walker& w) { return w.waiting == Waiting::barrier || w.waiting == Waiting::sendrecv; };
  if (open(a) && open(b) && a.waiting == b.waiting) {
    const bool barrier = a.waiting == Waiting::barrier;
    i64 arrive = 0;
    for (Walker* w : {&a, &b}) {
      const TimeInstruction& t = tables.instructions[w->waiting_instruction];
      const Walker::Need n = w->need(t, u8(t.engine));
      arrive = std::max({arrive, w->free[int(t.engine)], n.ready});
      if (barrier) {
        // the barrier waits for what this core still moves and computes
        arrive = std::max(arrive, w->horizon);
      }
    }
    for (Walker* w : {&a, &b}) {
      const TimeInstruction& t = tables.instructions[w->waiting_instruction];
      const i64 end = arrive + (barrier ? tables.ticks(w->plan.chip["barrier_ns"]) : t.transfer);
      const i32 event = w->record(w->waiting_instruction, barrier ? u8(t.engine) : dma_engine_id, arrive, end, -1);
      if (barrier) {
        for (i64& f : w->free) f = std::max(f, end);
        for (auto& q : w->queue)
          for (i64& x : q) x = std::max(x, end);
      } else {
        w->touch(t, w->waiting_instruction, dma_engine_id, end, end, event);
        w->statistics.other_bytes += t.bytes;
      }
      w->horizon = std::max(w->horizon, end);
      ++w->statistics.instructions;
      ++w->statistics.counts[int(t.engine)];
      w->waiting = Waiting::no;
    }
    return true;
  }
  // a barrier of one core alone
  bool any = false;
  for (Walker* w : {&a, &b}) {
    if (w->waiting != Waiting::barrier) continue;
    const PlanInstruction& i = w->plan.instructions[w->waiting_instruction];
    if (i.arguments[1].kind == ValueKind::list && w->plan.program->lists[i.arguments[1].index].size() < 2) {
      w->waiting = Waiting::no;
      any = true;
    }
  }
  return any;
}

void collect(const Walker& w, const TimeTables& tables, TimeResult& r) {
  const double tick = tables.tick_ns;
  CoreTime c;
  c.nanoseconds = double(w.horizon) * tick;
  for (int e = 0; e < engine_count; ++e) {
    c.busy[e] = double(w.statistics.busy[e]) * tick;
    c.counts[e] = w.statistics.counts[e];
  }
  c.busy[int(Engine::dma)] = double(w.statistics.dma_busy) * tick;
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
      cause += " of " + w.plan.describe(w.plan.instructions[producer]) +
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

}  // namespace

TimeResult time_plan(const Plan& plan, const TimeOptions& options) {
  const std::shared_ptr<TimeTables> tables =
      plan.time_tables ? std::static_pointer_cast<TimeTables>(plan.time_tables) : std::make_shared<TimeTables>(plan);
  plan.time_tables = tables;
  TimeResult r;
  std::vector<Walker> walkers;
  walkers.reserve(plan.program->cores);
  std::vector<std::vector<Event>> events(plan.program->cores);
  for (int c = 0; c < plan.program->cores; ++c) {
    walkers.emplace_back(plan, *tables, options, c, &r.assumptions);
    if (options.record) walkers.back().events = &events[c];
  }
  for (;;) {
    bool finished = true;
    for (Walker& w : walkers) {
      if (w.waiting == Waiting::no) w.run();
      finished = finished && w.waiting == Waiting::finished;
    }
    if (finished) break;
    if (!release(walkers, *tables))
      fail(Category::undefined_behaviour, "deadlock: the cores wait at different barriers or transfers",
           "every core must reach the same core_barrier or sendrecv");
  }
  for (const Walker& w : walkers) collect(w, *tables, r);
  std::sort(r.stalls.begin(), r.stalls.end(),
            [](const Stall& a, const Stall& b) { return a.nanoseconds > b.nanoseconds; });
  if (options.record) {
    int longest = 0;
    for (int c = 0; c < plan.program->cores; ++c) {
      if (r.cores[c].nanoseconds > r.cores[longest].nanoseconds) longest = c;
      for (const Event& e : events[c]) {
        r.interval_instruction.push_back(plan.instructions[e.instruction].instruction);
        r.interval_engine.push_back(e.engine == dma_engine_id ? u8(Engine::dma) : e.engine);
        r.interval_core.push_back(u8(c));
        r.interval_start.push_back(double(e.start) * tables->tick_ns);
        r.interval_end.push_back(double(e.end) * tables->tick_ns);
      }
    }
    add_path(events[longest], plan, tables->tick_ns, r);
  }
  return r;
}

}  // namespace core
