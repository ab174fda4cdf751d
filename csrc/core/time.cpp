// The walk itself: every instruction starts when its queue is free and its operands are ready.
#include "core/time.h"

#include <algorithm>

#include "core/time_walker.h"

namespace core {

namespace {
constexpr i64 streaming_bytes = 256;  // rows longer than the pipeline of an engine is deep
}  // namespace

// When the operands of an instruction of `engine` are ready.
Walker::Need Walker::need(const TimeInstruction& t, u8 engine) {
  Need n;
  find_ranges(t);
  if (plan.explicit_order) return n;  // semaphores say when
  auto raise = [&](i64 when, int cause, i32 producer, i32 event) {
    if (when > n.ready) n = {when, cause, producer, event};
  };
  for (i32 k = t.first_operand; k < t.last_operand; ++k) {
    const Operand& o = tables.operands[k];
    const auto [first, last] = ranges[k - t.first_operand];
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
        // A compiler that reorders has a second place for what is loaded: a load may be one version ahead.
        if (reorders() && engine == dma_engine_id) return raise(c.earlier, 1, c.reader, c.reader_event);
        // An engine keeps its own order, unless instructions may be reordered.
        if (c.write_engine != engine) raise(c.written, 2, c.writer, c.writer_event);
        if (reorders() && c.write_engine == engine) raise(c.streamed, 2, c.writer, c.writer_event);
        if (reorders() || c.read_engine != engine) raise(c.read, 1, c.reader, c.reader_event);
      });
  }
  return n;
}

void Walker::touch(const TimeInstruction& t, i32 instruction, u8 engine, i64 read_end, i64 visible, i32 event,
                   i64 streamed) {
  for (i32 k = t.first_operand; k < t.last_operand; ++k) {
    const Operand& o = tables.operands[k];
    const auto [first, last] = ranges[k - t.first_operand];
    if (o.write)
      each_chunk(o, first, last, [&](Chunk& c) {
        c.earlier = std::max(c.read, c.written);
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

void Walker::stall(i32 instruction, const Need& n, i64 idle) {
  const std::size_t k = std::size_t(instruction) * cause_count + n.cause;
  stall_ticks[k] += idle;
  stall_producer[k] = n.producer;
}

i32 Walker::record(i32 instruction, u8 engine, i64 start, i64 end, i32 before) {
  if (!events) return -1;
  events->push_back({instruction, before, start, end, engine});
  return i32(events->size()) - 1;
}

void Walker::compute(const TimeInstruction& t, i32 instruction) {
  const int e = int(t.engine);
  const Need n = need(t, u8(e));
  i64 ready = free[e];
  if (reorders()) return compute_reordered(t, instruction, n);
  if (shared_port && (t.engine == Engine::vector || t.engine == Engine::gpsimd))
    ready = std::max(ready, free[t.engine == Engine::vector ? int(Engine::gpsimd) : int(Engine::vector)]);
  i64 start = ready;
  i32 before = last_event[e];
  if (n.ready > ready) {
    start = n.ready;
    before = n.event;
    if (ready > 0 || n.ready > 0) stall(instruction, n, n.ready - ready);
  }
  finish(t, instruction, start, before);
}

// Into the first idle time of the engine that is long enough.
void Walker::compute_reordered(const TimeInstruction& t, i32 instruction, const Need& n) {
  Resource& lane = lane_of(int(t.engine));
  const i64 before = lane.free, start = lane.reserve(n.ready, t.cost);
  if (start > before && before > 0) stall(instruction, n, start - before);
  finish(t, instruction, start, start > before ? n.event : last_event[int(t.engine)]);
}

void Walker::finish(const TimeInstruction& t, i32 instruction, i64 start, i32 before) {
  const int e = int(t.engine);
  const i64 end = start + t.cost;
  free[e] = std::max(free[e], end);
  const i32 event = record(instruction, u8(e), start, end, before);
  last_event[e] = event;
  touch(t, instruction, u8(e), end, end + t.latency, event, std::max(end, start + shortest[e] + t.latency));
  statistics.busy[e] += t.cost;
  ++statistics.counts[e];
  ++statistics.instructions;
  statistics.flops += t.flops;
  statistics.hardware_flops += t.hardware_flops;
  visible[e] = std::max(visible[e], end + t.latency);
  horizon = std::max(horizon, end + t.latency);
}

void Walker::dma(const TimeInstruction& t, i32 instruction) {
  const int e = int(t.engine);
  const Need n = need(t, dma_engine_id);
  i64 ready = reorders() ? n.ready : std::max(queue[e][t.queue], n.ready);
  if (plan.explicit_order) ready = std::max(ready, free[e]);
  if (n.ready > queue[e][t.queue]) stall(instruction, n, n.ready - queue[e][t.queue]);
  if (t.software) {  // GpSimd writes the descriptors
    const int g = int(Engine::gpsimd);
    ready = reorders() ? lane_of(g).reserve(ready, t.issue) : std::max(ready, free[g]);
    free[g] = std::max(free[g], ready + t.issue);
    statistics.busy[g] += t.issue;
  }
  const i64 issued = t.software ? ready : generator[e].reserve(ready, t.issue);
  queue[e][t.queue] = std::max(queue[e][t.queue], issued);
  const i64 first = pool.reserve(issued + dma_latency, t.pool);
  const i64 end = first + std::max(t.transfer, t.pool);
  const i32 event = record(instruction, dma_engine_id, issued, end, n.event);
  touch(t, instruction, dma_engine_id, end, end, event);
  moved[e] = std::max(moved[e], end);
  statistics.dma_busy += t.pool;
  if (!t.software) statistics.issue[e] += t.issue;
  ++statistics.counts[int(Engine::dma)];
  ++statistics.instructions;
  if (t.path >= 0) statistics.bytes[t.path] += t.bytes;
  horizon = std::max(horizon, end);
}

// Waits that this core resolves alone: collectives (all ranks arrive together), registers.
void Walker::fixed_wait(const TimeInstruction& t, i32 instruction) {
  const int e = int(t.engine);
  const Need n = need(t, u8(e));
  const i64 start = std::max(free[e], n.ready);
  const i64 end = start + (t.kind == Kind::collective ? t.transfer : t.cost);
  free[e] = t.kind == Kind::collective ? start + t.cost : end;
  if (reorders()) lane_of(e).close(free[e]);
  const i32 event = record(instruction, t.kind == Kind::collective ? dma_engine_id : u8(e), start, end, n.event);
  touch(t, instruction, t.kind == Kind::collective ? dma_engine_id : u8(e), end, end + t.latency, event);
  statistics.other_bytes += t.bytes;
  ++statistics.instructions;
  ++statistics.counts[e];
  horizon = std::max(horizon, end);
  if (t.kind == Kind::registers) set_register(plan.instructions[instruction]);
}

void Walker::signal(const TimeInstruction& t, i32 instruction) {
  const int e = int(t.engine);
  const PlanInstruction& i = plan.instructions[instruction];
  auto number = [&](int n) { return number_of(i.arguments[n]); };
  const PlanArgument& after = i.arguments[2];
  const bool transfers = after.kind == ValueKind::text && plan.program->texts[after.index] == "dma";
  auto& reached = semaphores[number(0)];
  const i64 time = std::max({transfers ? moved[e] : visible[e], free[e], reached.empty() ? 0 : reached.back().time});
  reached.push_back({(reached.empty() ? 0 : reached.back().value) + number(1), time, instruction});
  ++statistics.instructions;
  ++statistics.counts[e];
}

void Walker::wait(const TimeInstruction& t, i32 instruction) {
  const int e = int(t.engine);
  const PlanInstruction& i = plan.instructions[instruction];
  const auto& reached = semaphores[number_of(i.arguments[0])];
  const i64 value = number_of(i.arguments[1]);
  const auto at = std::find_if(reached.begin(), reached.end(), [&](const Reached& r) { return r.value >= value; });
  ++statistics.instructions;
  ++statistics.counts[e];
  if (value <= 0) return;
  if (at == reached.end())
    throw Error(Category::undefined_behaviour,
                "deadlock: semaphore_wait waits for semaphore " + std::to_string(number_of(i.arguments[0])) +
                    " to reach " + std::to_string(value) + ", which nothing before it does",
                plan.where(i), "signal it earlier in the program, or wait for less");
  const i64 ready = at->time + semaphore;
  if (ready > free[e]) {
    stall(instruction, {ready, waits_for_semaphore, at->instruction, -1}, ready - free[e]);
    free[e] = ready;
  }
}

i64 Walker::number_of(const PlanArgument& a) const {
  return a.kind == ValueKind::expression ? plan.value(plan.quantities[a.index], slots.data()) : i64(a.number);
}

void Walker::set_register(const PlanInstruction& i) {
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
    value = src.kind == ValueKind::expression ? plan.value(plan.quantities[src.index], slots.data()) : i64(src.number);
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

const TimeInstruction& Walker::ragged_cost(i32 instruction, const TimeInstruction& base) {
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

void Walker::run() {
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
        case Kind::signal:
          signal(*t, step.index);
          break;
        case Kind::wait:
          wait(*t, step.index);
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

i64 Walker::trips_of(const PlanLoop& l) {
  const std::string& name = plan.program->registers[l.condition];
  auto it = options.registers.find("while " + name);
  const i64 trips = it == options.registers.end() ? 1 : it->second;
  const std::string note = "while loop on register '" + name + "' assumed to run " + std::to_string(trips) + " times";
  if (std::find(assumptions->begin(), assumptions->end(), note) == assumptions->end()) assumptions->push_back(note);
  return trips;
}

namespace {

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
        for (Resource& lane : w->lanes) lane.close(end);
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
