// Steady loops: when the state of a loop relative to its engines repeats exactly, whole periods are skipped.
#include <algorithm>

#include "core/time_walker.h"

namespace core {

namespace {

constexpr std::size_t period_max = 16;  // iterations after which a loop's state may repeat: the most places of a tile

template <class F>
void push_resource(const Resource& r, F&& push) {
  push(r.free);
  if (!r.busy) return;
  // gaps as a sorted set: their place in the ring means nothing
  std::array<Resource::Gap, Resource::gap_count> g = r.gaps;
  std::sort(g.begin(), g.end(), [](const auto& a, const auto& b) { return a.start < b.start; });
  for (const auto& x : g) {
    const bool open = x.end > x.start && x.end > r.free - r.reach;
    push(open ? x.start : 0);
    push(open ? x.end : 0);
  }
}

void shift_resource(Resource& r, i64 ref, i64 delta) {
  if (r.free > ref) r.free += delta;
  for (auto& g : r.gaps) {
    if (g.start > ref)
      g.start += delta;
    else if (g.end > ref)
      g.start = ref + delta;
    if (g.end > ref) g.end += delta;
  }
}

}  // namespace

const LoopFacts& Walker::loop_facts(i32 loop, std::size_t begin, std::size_t end) {
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
    if (t.kind == Kind::barrier || t.kind == Kind::sendrecv || t.kind == Kind::registers || t.kind == Kind::signal ||
        t.kind == Kind::wait)
      f.allowed = false;
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
    for (i32 c = m.at(low); c <= m.at(high - 1); ++c)
      for (int g = 0; g < groups; ++g) into[c * groups + g] = 1;
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

i64 Walker::reference(const LoopFacts& f) const {
  i64 r = INT64_MAX;
  for (int e = 0; e < engine_count; ++e)
    if (f.engines >> e & 1) r = std::min(r, free[e]);
  if (f.engines >> 31)
    for (int e = 0; e < engine_count; ++e)
      for (i64 q : queue[e])
        if (q) r = std::min(r, q);
  return r == INT64_MAX ? 0 : r;
}

void Walker::snapshot(const LoopFacts& f, Snapshot& s) {
  s.reference = reference(f);
  s.horizon = horizon;
  s.statistics = statistics;
  s.state.clear();
  auto push = [&](i64 t) { s.state.push_back(t > s.reference ? t - s.reference : 0); };
  for (int e = 0; e < engine_count; ++e)
    if (f.engines >> e & 1) push(free[e]);
  // Idle time of an engine counts for as long as it can still be filled.
  for (const Resource& lane : lanes)
    push_resource(lane, [&](i64 t) { s.state.push_back(std::max<i64>(0, t + reach - s.reference)); });
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
    push(k.earlier);
    s.state.push_back((k.written > s.reference ? k.write_engine : nobody) * 256 +
                      (k.read > s.reference ? k.read_engine : nobody));
  }
  for (i64 p : place) s.state.push_back(p);
  s.stalls.assign(stall_ticks.begin() + i64(f.low_instruction) * cause_count,
                  stall_ticks.begin() + i64(f.high_instruction + 1) * cause_count);
}

// Data that moving reads still wait for would end the steady state.
bool Walker::moving_reads_are_ready(const LoopFacts& f, i64 now) {
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
i64 Walker::uniform_iterations(const LoopFacts& f, i32 variable, i64 value, i64 step, i64 wanted) {
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
void Walker::extrapolate(Frame& frame, i32 loop, std::size_t begin, std::size_t end) {
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

void Walker::skip(Frame& frame, const LoopFacts& f, const Snapshot& then, i64 periods, i64 period, i32 variable) {
  const i64 delta = (reference(f) - then.reference) * periods, one = reference(f) - then.reference, ref = reference(f);
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
          c.earlier += c.earlier ? k * one : 0;
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
  for (int e = 0; e < int(lanes.size()); ++e)
    if (f.engines >> e & 1) {
      Resource& lane = lanes[e];
      lane.free += delta;
      for (Resource::Gap& gap : lane.gaps)
        if (gap.end > gap.start) gap.start += delta, gap.end += delta;
    }
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
      shift(chunks[c].earlier);
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

}  // namespace core
