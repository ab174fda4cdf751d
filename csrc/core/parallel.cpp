// Iterations of a loop on several host threads, each with tiles of its own.
//
// A loop qualifies when its iterations write HBM disjointly and touch no registers, barriers or random state. Whether
// an iteration reads what an earlier one left on chip is found as it runs: each iteration starts with its tiles
// unwritten, so such a read raises, and the loop is run again in order (everything it wrote is then written again).
#include <omp.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <mutex>
#include <set>

#include "core/instructions.h"
#include "core/team.h"

namespace core {

namespace {

bool forbidden(Opcode op) {
  switch (op) {
    case Opcode::register_load:
    case Opcode::register_move:
    case Opcode::register_store:
    case Opcode::rank_id:
    case Opcode::device_print:
    case Opcode::core_barrier:
    case Opcode::semaphore_signal:
    case Opcode::semaphore_wait:
    case Opcode::sendrecv:
    case Opcode::all_reduce:
    case Opcode::all_gather:
    case Opcode::reduce_scatter:
    case Opcode::all_to_all:
    case Opcode::collective_permute:
    case Opcode::rng:
    case Opcode::rand2:
    case Opcode::dropout:
    case Opcode::set_rng_seed:
    case Opcode::rand_get_state:
    case Opcode::rand_set_state:
      return true;
    default:
      return false;
  }
}

struct Axis {
  i64 stride, count;
};

struct Analysis {
  const Plan& plan;
  const i64* slots;
  i32 variable;
  i64 trips, step;
  std::map<i32, Axis> inner;  // slot of a loop inside the body: (step, trips)
  std::set<i32> written, read, begun, matmul_targets;
  std::set<i32> touched, fresh;  // fresh: an iteration does nothing with the tensor before it begins it anew
  std::map<i32, std::vector<const PlanAccess*>> hbm_writes;
  std::set<i32> hbm_reads;

  // The access without the loop variable's own part: extents per axis; the loop's axis apart. False: unknown.
  bool axes(const PlanAccess& a, std::vector<Axis>& out, i64& own) const {
    own = 0;
    if (a.offset.general >= 0 || a.indirect) return false;
    std::map<i32, i64> coefficient;
    for (i32 t = 0; t < a.offset.terms; ++t) {
      const i32 slot = a.offset.slot[t];
      if (slot == variable) {
        own = a.offset.coefficient[t];
        coefficient[slot] = own;
      } else if (auto it = inner.find(slot); it != inner.end())
        coefficient[slot] = a.offset.coefficient[t];
      else if (slot >= plan.program->loop_variables)
        return false;
    }
    std::map<i32, i64> ragged;  // slot whose last tile is cut: elements in all along (slot, dimension)
    for (int d = 0; d < a.dims; ++d) {
      if (!a.stride[d].constant()) return false;
      i64 count = a.count[d].c;
      if (a.count[d].general >= 0) {
        // min(cap, total - cap * variable): together with the loop it covers `total` elements exactly
        const Expression& e = plan.program->expressions[a.count[d].general];
        if (e.op != Node::minimum) return false;
        Quantity x = plan.compile(e.a), y = plan.compile(e.b);
        if (!x.constant()) std::swap(x, y);
        if (!x.constant() || y.general >= 0 || y.terms != 1 || y.coefficient[0] >= 0) return false;
        const i32 slot = y.slot[0];
        const i64 cap = x.c;
        const bool one_step = slot == variable || inner.count(slot);
        if (one_step && -y.coefficient[0] == cap && coefficient.count(slot) && coefficient[slot] == cap * a.stride[d].c)
          ragged[slot] = y.c;
        count = cap;
      } else if (a.count[d].terms) {
        return false;
      }
      out.push_back({std::abs(a.stride[d].c), count});
    }
    for (auto [slot, k] : coefficient) {
      const i64 by = slot == variable ? step : inner.at(slot).stride,
                n = slot == variable ? trips : inner.at(slot).count;
      Axis x{std::abs(k * by), n};
      if (auto it = ragged.find(slot); it != ragged.end()) {
        // drop the tile axis: the pair is one axis of `total` elements
        for (auto& o : out)
          if (o.count > 1 && o.stride * o.count == x.stride) {
            o.count = it->second;
            x.count = 1;
            break;
          }
        if (slot == variable && x.count == 1) {
          out.push_back({-1, 1});
          continue;
        }
      }
      out.push_back(x);
    }
    return true;
  }

  // No two iterations write one element.
  bool disjoint(const std::vector<const PlanAccess*>& accesses) const {
    i64 low = INT64_MAX, high = INT64_MIN, common = 0;
    for (const PlanAccess* a : accesses) {
      std::vector<Axis> all;
      i64 own;
      if (!axes(*a, all, own) || own == 0) return false;
      if (common && own != common) return false;
      common = own;
      i64 first = a->offset.c, span = 0;
      for (i32 t = 0; t < a->offset.terms; ++t)
        if (a->offset.slot[t] != variable && !inner.count(a->offset.slot[t]))
          first += a->offset.coefficient[t] * slots[a->offset.slot[t]];
      for (const Axis& x : all)
        if (x.stride > 0 && x.stride != std::abs(own * step)) span += x.stride * (x.count - 1);
      low = std::min(low, first);
      high = std::max(high, first + span);
    }
    if (high - low < std::abs(common * step)) return true;
    if (accesses.size() != 1) return false;
    // One access: injective over all its axes if each stride passes everything smaller.
    std::vector<Axis> all;
    i64 own;
    axes(*accesses[0], all, own);
    std::erase_if(all, [](const Axis& x) { return x.count <= 1 || x.stride < 0; });
    std::sort(all.begin(), all.end(), [](const Axis& a, const Axis& b) { return a.stride < b.stride; });
    i64 reach = 0;
    for (const Axis& x : all) {
      if (x.stride <= reach) return false;
      reach += x.stride * (x.count - 1);
    }
    return true;
  }

  bool add_access(const PlanAccess& a, Role role, Opcode op) {
    for (i32 id : {a.scalar_access, a.vector_access})
      if (id >= 0 && !add_access(plan.accesses[id], Role::read, op)) return false;
    const bool first = touched.insert(a.buffer).second;
    if (role == Role::any) return true;
    const bool writes = role != Role::read, reads = role == Role::read;
    if (a.space == Space::hbm) {
      if (writes) hbm_writes[a.buffer].push_back(&a);
      if (role == Role::update || role == Role::accumulate) hbm_reads.insert(a.buffer);
      if (reads) hbm_reads.insert(a.buffer);
      return true;
    }
    if (reads) read.insert(a.buffer);
    if (!writes) return true;
    written.insert(a.buffer);
    if (role == Role::begin) begun.insert(a.buffer);
    // What a pinned tensor begins with may be another's: beginning it forgets nothing.
    if (role == Role::begin && first && !plan.program->buffers[a.buffer].pinned) fresh.insert(a.buffer);
    if (op == Opcode::nc_matmul || op == Opcode::nc_matmul_mx) matmul_targets.insert(a.buffer);
    if (a.offset.general >= 0 || a.indirect) return false;
    for (i32 t = 0; t < a.offset.terms; ++t)
      if (a.offset.slot[t] == variable) return false;
    return true;
  }
};

bool overlap(const Plan& plan, i32 a, i32 b) {
  const Buffer &x = plan.program->buffers[a], &y = plan.program->buffers[b];
  return x.space == y.space && x.core == y.core && x.byte < y.byte + plan.buffer_bytes[b] &&
         y.byte < x.byte + plan.buffer_bytes[a] && x.partition < y.partition + plan.buffer_partitions[b] &&
         y.partition < x.partition + plan.buffer_partitions[a];
}

bool uses_running_accumulator(const Plan& plan, const PlanInstruction& i) {
  const int at = definition(i.opcode).find("reduce_cmd");
  if (at < 0 || i.arguments[at].kind != ValueKind::text) return false;
  const std::string& s = plan.program->texts[i.arguments[at].index];
  const int result = definition(i.opcode).find("reduce_res");
  return s == "reduce" || s == "load_reduce" ||
         (s == "idle" && result >= 0 && i.arguments[result].kind != ValueKind::none);
}

bool analyse(Core& core, std::size_t at, Analysis& a) {
  const Plan& plan = core.plan();
  const auto& code = plan.code[core.index];
  const std::size_t end = code[at].target - 1;
  for (std::size_t s = at + 1; s < end; ++s) {
    if (code[s].kind != StepKind::loop) continue;
    const PlanLoop& l = plan.loops[code[s].index];
    if (l.kind == LoopKind::while_register || !l.start.constant() || l.start.c != 0 || !l.step.constant()) return false;
    i64 stop = l.stop.c;
    if (!l.stop.constant()) {
      for (i32 t = 0; t < l.stop.terms; ++t)
        if (l.stop.slot[t] >= plan.program->loop_variables || l.stop.coefficient[t] > 0) return false;
      if (l.stop.general >= 0) return false;
    }
    a.inner[l.variable] = {l.step.c, ceil_div(std::max<i64>(stop, 0), l.step.c)};
  }
  for (std::size_t s = at + 1; s < end; ++s) {
    if (code[s].kind != StepKind::instruction) continue;
    const PlanInstruction& i = plan.instructions[code[s].index];
    if (forbidden(i.opcode) || uses_running_accumulator(plan, i)) return false;
    const Definition& d = definition(i.opcode);
    for (i32 n = 0; n < i.argument_count; ++n) {
      if (i.arguments[n].kind == ValueKind::access) {
        if (!a.add_access(plan.accesses[i.arguments[n].index], d.parameters[n].role, i.opcode)) return false;
      } else if (i.arguments[n].kind == ValueKind::list) {
        for (const Value& v : plan.program->lists[i.arguments[n].index])
          if (v.kind == ValueKind::access && !a.add_access(plan.accesses[v.payload], Role::read, i.opcode))
            return false;
      }
    }
  }
  for (i32 b : a.matmul_targets)
    if (!a.begun.count(b)) return false;
  for (auto& [b, accesses] : a.hbm_writes)
    if (a.hbm_reads.count(b) || !a.disjoint(accesses)) return false;
  for (i32 r : a.read)
    if (!a.written.count(r))
      for (i32 w : a.written)
        if (overlap(plan, r, w)) return false;
  return true;
}

u64 row_address(const CoreMemory& m, const Buffer& b, i64 p) {
  return u64((b.partition + p) * (b.space == Space::sbuf ? m.sbuf_pitch : m.psum_pitch) + b.byte);
}

void copy_bits(const Region& to, const Region& from, u64 at, u64 n) {
  if (at % 8 == 0 && n % 8 == 0) {
    std::memcpy(to.written + at / 8, from.written + at / 8, n / 8);
    return;
  }
  for (u64 i = 0; i < n; ++i)
    all_written(from, at + i, 1) ? mark_written(to, at + i, 1) : mark_unwritten(to, at + i, 1);
}

}  // namespace

struct Workers {
  std::vector<std::unique_ptr<Core>> cores;
};

bool try_parallel_loop(Core& core, std::size_t at, i64 start, i64 stop, i64 step) {
  const int threads = omp_get_max_threads();
  const Plan& plan = core.plan();
  const CodeStep& loop = plan.code[core.index][at];
  if (threads < 2 || !core.rank.options.check_uninitialised) return false;
  if (core.affine.size() || core.order) return false;
  Analysis a{plan,
             core.slots.data(),
             plan.loops[loop.index].variable,
             ceil_div(stop - start, step),
             step,
             {},
             {},
             {},
             {},
             {},
             {},
             {},
             {},
             {}};
  if (!analyse(core, at, a)) {
    core.parallel_refused[loop.index] = 1;
    return false;
  }
  const Program& program = *plan.program;
  std::vector<u8> shared(program.buffers.size(), 0);
  for (i32 r : a.read)
    if (!a.written.count(r)) shared[r] = 1;
  if (!core.workers) core.workers = std::make_shared<Workers>();
  auto& pool = core.workers->cores;
  while (int(pool.size()) < threads) pool.push_back(std::make_unique<Core>(core.rank, core.index));
  for (auto& w : pool) {
    w->worker = true;
    w->slots = core.slots;
    w->register_written = core.register_written;
    w->main = &core;
    w->shared = &shared;
    w->wait = Wait::none;
    w->stack.clear();
    w->vector_accumulator = core.vector_accumulator;
    w->scalar_accumulator = core.scalar_accumulator;
  }
  std::atomic<bool> failed{false};
  std::exception_ptr interrupt;
  std::mutex interrupting;
  int last_worker = 0;
  const std::size_t end = loop.target - 1;
  const i64 trips = a.trips;
  share_iterations(trips, threads, [&](int worker, i64 n) {
    if (failed.load(std::memory_order_relaxed)) return;
    Core& w = *pool[worker];
    try {
      if (worker == 0 && core.rank.options.poll) core.rank.options.poll();
      for (i32 b : a.written) {
        if (a.fresh.count(b)) continue;
        const Buffer& buffer = program.buffers[b];
        const Region& region = buffer.space == Space::sbuf ? w.memory->sbuf : w.memory->psum;
        for (i64 p = 0; p < plan.buffer_partitions[b]; ++p) {
          const u64 address = row_address(*w.memory, buffer, p);
          mark_unwritten(region, address, u64(plan.buffer_bytes[b]));
        }
        if (buffer.space == Space::psum) {
          Begun& begun = w.begun_of(b);
          std::fill(begun.bits.begin(), begun.bits.end(), u8(0));
        }
      }
      w.slots[a.variable] = start + n * step;
      w.at = at + 1;
      run_steps(w, end);
      if (n == trips - 1) last_worker = worker;
    } catch (const Error&) {
      failed = true;
    } catch (...) {
      failed = true;
      const std::lock_guard lock(interrupting);
      interrupt = std::current_exception();
    }
  });
  if (interrupt) std::rethrow_exception(interrupt);
  if (failed) {
    core.parallel_refused[loop.index] = 1;
    return false;
  }
  // What the last iteration left on chip is the core's state, where anything outside the loop looks at it.
  Core& last = *pool[last_worker];
  std::set<i32> used_outside;
  const auto& code = plan.code[core.index];
  for (std::size_t s = 0; s < code.size(); ++s) {
    if (s >= at && s < std::size_t(loop.target)) continue;
    if (code[s].kind != StepKind::instruction) continue;
    const PlanInstruction& i = plan.instructions[code[s].index];
    if (i.opcode == Opcode::tensor_begin) continue;
    for (i32 n = 0; n < i.argument_count; ++n)
      if (i.arguments[n].kind == ValueKind::access) used_outside.insert(plan.accesses[i.arguments[n].index].buffer);
  }
  for (i32 b : a.written) {
    bool needed = false;
    for (i32 u : used_outside) needed = needed || u == b || overlap(plan, u, b);
    if (!needed) continue;
    core.touch(b);
    const Buffer& buffer = program.buffers[b];
    const bool sbuf = buffer.space == Space::sbuf;
    const Region &to = sbuf ? core.memory->sbuf : core.memory->psum,
                 &from = sbuf ? last.memory->sbuf : last.memory->psum;
    for (i64 p = 0; p < plan.buffer_partitions[b]; ++p) {
      const u64 address = row_address(*core.memory, buffer, p), n = u64(plan.buffer_bytes[b]);
      std::memcpy(to.base + address, from.base + address, n);
      copy_bits(to, from, address, n);
    }
    if (!sbuf) core.begun_of(b).bits = last.begun_of(b).bits;
  }
  core.vector_accumulator = last.vector_accumulator;
  core.scalar_accumulator = last.scalar_accumulator;
  for (auto& w : pool) {
    core.steps += w->steps;
    w->steps = 0;
  }
  core.slots[a.variable] = start + (trips - 1) * step;
  return true;
}

}  // namespace core
