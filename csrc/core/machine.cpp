#include "core/machine.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "core/gemm.h"
#include "core/instructions.h"
#include "core/order.h"

namespace core {

const Plan& Core::plan() const { return rank.plan; }

Core::Core(Rank& r, int i)
    : rank(r),
      index(i),
      slots(r.plan.slots, 0),
      register_written(r.plan.program->registers.size(), !r.options.check_uninitialised),
      parallel_refused(r.plan.loops.size(), 0) {
  const Chip& chip = r.plan.chip;
  // Programs built without the capacity check may reach beyond the chip's memory.
  i64 sbuf = i64(chip["sbuf_bytes_per_partition"]), psum = i64(chip["psum_bytes_per_partition"]);
  for (i32 b = 0; b < i32(r.plan.program->buffers.size()); ++b) {
    const Buffer& buffer = r.plan.program->buffers[b];
    if (buffer.space == Space::hbm) continue;
    i64& size = buffer.space == Space::sbuf ? sbuf : psum;
    size = std::max(size, (buffer.byte + r.plan.buffer_bytes[b] + 63) / 64 * 64);
  }
  memory = CoreMemory::take(sbuf, psum);
  // What an uninitialised integer reads as where that is allowed.
  if (!r.options.check_uninitialised) std::fill(slots.begin() + r.plan.program->loop_variables, slots.end(), 4);
  touched.resize(r.plan.program->buffers.size(), 0);
  begun.resize(r.plan.program->buffers.size());
  if (r.plan.explicit_order && r.options.check_uninitialised) order = std::make_shared<OrderCheck>();
  for (int p = 0; p < partitions_max; ++p) {
    random_state[p][0] = 0x9E3779B97F4A7C15ULL * u64(p + 1 + 128 * i);
    random_state[p][1] = 0xD1B54A32D192ED03ULL ^ u64(p);
  }
}

void Core::touch(i32 b) {
  if (touched[b]) return;
  touched[b] = 1;
  const Buffer& buffer = plan().program->buffers[b];
  memory->use(buffer.space == Space::sbuf, buffer.byte, buffer.byte + plan().buffer_bytes[b]);
}

Begun& Core::begun_of(i32 buffer) {
  auto& b = begun[buffer];
  if (!b) {
    b = std::make_unique<Begun>();
    b->row = plan().buffer_bytes[buffer];
    b->pitch = memory->psum_pitch;
    const Buffer& tensor = plan().program->buffers[buffer];
    b->origin = memory->psum.base + tensor.partition * memory->psum_pitch + tensor.byte;
    b->bits.assign(plan().buffer_partitions[buffer] * b->row / 8 + 2, 0);
  }
  return *b;
}

static Pages unset_bits(u64 bytes) {
  if (bytes > u64(1) << 20) return Pages(bytes);  // much of it may never be touched
  Pages bits = take_pages(bytes);
  std::memset(bits.data(), 0, bytes);
  return bits;
}

Rank::Rank(const Plan& p, int i, int n, const Options& o) : plan(p), index(i), ranks(n), options(o) {
  hbm.resize(p.program->buffers.size());
  for (i32 b = 0; b < i32(hbm.size()); ++b) {
    const Buffer& buffer = p.program->buffers[b];
    if (buffer.space != Space::hbm) continue;
    const int copies = buffer.kind == BufferKind::private_scratch ? p.program->cores : 1;
    for (int c = 0; c < copies; ++c) {
      auto h = std::make_unique<HbmBuffer>();
      const u64 bytes = u64(p.buffer_bytes[b]);
      h->region.size = bytes;
      h->region.shared = true;
      if (buffer.kind == BufferKind::constant) {
        if (buffer.data.size() != bytes)
          fail(Category::corrupt_file, "constant '" + buffer.name + "' has " + std::to_string(buffer.data.size()) +
                                           " bytes instead of " + std::to_string(bytes));
        h->region.base = const_cast<u8*>(buffer.data.data());
      } else if (buffer.kind != BufferKind::input && buffer.kind != BufferKind::inout) {
        if (buffer.kind != BufferKind::output) {
          h->pages = Pages(bytes);
          h->region.base = h->pages.data();
        }
        if (o.check_uninitialised || (o.follow_outputs && buffer.kind == BufferKind::output)) {
          h->bits = unset_bits(bytes / 8 + 8);
          h->region.written = h->bits.data();
          h->region.lenient = !o.check_uninitialised;
        } else if (h->region.base) {
          fill_unwritten(h->region.base, bytes, buffer.dtype);
        }
      }
      if (o.check_uninitialised && p.program->cores == 2 && copies == 1 && buffer.kind != BufferKind::constant &&
          buffer.kind != BufferKind::input)
        for (int k = 0; k < 2; ++k) {
          h->read_by[k] = Pages(bytes / 8 + 8);
          h->written_by[k] = Pages(bytes / 8 + 8);
          h->own[k] = Pages(bytes / 8 + 8);
        }
      hbm[b][c] = std::move(h);
    }
  }
  for (int c = 0; c < p.program->cores; ++c) cores.push_back(std::make_unique<Core>(*this, c));
}

HbmBuffer& Rank::memory_of(i32 buffer, int core) { return *(hbm[buffer][1] ? hbm[buffer][core] : hbm[buffer][0]); }

void Rank::bind_input(i32 buffer, u8* data, u64 bytes) {
  HbmBuffer& h = *hbm[buffer][0];
  if (bytes != h.region.size)
    fail(Category::configuration, "input '" + plan.program->buffers[buffer].name + "' has " + std::to_string(bytes) +
                                      " bytes; the program expects " + std::to_string(h.region.size));
  h.region.base = data;
}

Tile Core::resolve(i32 id, const char* operand, bool allow_outside, bool merge) {
  const Plan& plan = this->plan();
  const PlanAccess& a = plan.accesses[id];
  const Buffer& buffer = plan.program->buffers[a.buffer];
  const i64* now = slots.data();
  Tile t;
  t.operand = operand;
  t.dtype = a.dtype;
  t.bytes = a.bytes;
  t.space = a.space;
  t.buffer = a.buffer;
  i64 offset = plan.value(a.offset, now);
  if (a.indirect) {
    if (a.scalar_access >= 0)
      offset += read_integer(resolve(a.scalar_access, operand), 0) * plan.value(a.scalar_stride, now);
    if (a.has_scalar_value) offset += plan.value(a.scalar_value, now) * plan.value(a.scalar_stride, now);
  }
  t.partitions = a.dims ? plan.value(a.count[0], now) : 1;
  t.elements = 1;
  i64 low = offset, high = offset, free_high = 0, free_low = 0;
  for (int d = 1; d < a.dims; ++d) {
    const i64 stride = plan.value(a.stride[d], now), count = plan.value(a.count[d], now);
    t.elements *= std::max<i64>(0, count);
    (stride < 0 ? free_low : free_high) += stride * (count - 1);
    if (merge && count == 1) continue;
    if (merge && t.dims && t.stride[t.dims - 1] == stride * count * a.bytes) {
      t.stride[t.dims - 1] = stride * a.bytes;
      t.count[t.dims - 1] *= count;
    } else {
      t.stride[t.dims] = stride * a.bytes;
      t.count[t.dims++] = count;
    }
  }
  if (t.partitions <= 0 || t.elements <= 0) {
    t.partitions = t.elements = 0;
    return t;
  }
  const i64 row_stride = a.dims ? plan.value(a.stride[0], now) : 0;
  const bool gathered = a.vector_access >= 0;
  if (!gathered) (row_stride < 0 ? low : high) += row_stride * (t.partitions - 1);
  low += free_low;
  high += free_high;
  auto outside = [&](i64 element) {
    fail(Category::out_of_bounds,
         std::string("operand '") + operand + "' reaches element " + std::to_string(element) + " of tensor '" +
             buffer.name + "', which has " + std::to_string(a.capacity),
         "check the offset and the counts of the access pattern");
  };
  i64 row_bytes;
  const bool beyond = !gathered && !allow_outside && (low < 0 || high >= a.capacity);
  if (a.space == Space::hbm) {
    if (beyond) outside(low < 0 ? low : high);
    HbmBuffer& h = rank.memory_of(a.buffer, index);
    t.region = &h.region;
    t.data = h.region.base + offset * a.bytes;
    t.pitch = row_stride * a.bytes;
    row_bytes = a.bytes;
  } else {
    if (row_stride % a.row && t.partitions > 1)
      fail(Category::unsupported,
           std::string("operand '") + operand + "': the partition stride " + std::to_string(row_stride) +
               " is not a multiple of the " + std::to_string(a.row) + " elements per partition of tensor '" +
               buffer.name + "'",
           "the first entry of an on-chip pattern walks over partitions");
    const i64 partition = floor_div(offset, a.row), element = offset - partition * a.row;
    if (element + free_high >= a.row || element + free_low < 0)
      fail(Category::out_of_bounds,
           std::string("operand '") + operand + "' reaches element " + std::to_string(element + free_high) +
               " of a partition of tensor '" + buffer.name + "', which has " + std::to_string(a.row) +
               " elements per partition",
           "check the offset and the counts of the access pattern");
    if (beyond) outside(low < 0 ? low : high);
    t.first_partition = buffer.partition + partition;
    const i64 step = row_stride / a.row;
    if (!gathered && (t.first_partition < 0 || t.first_partition + step * (t.partitions - 1) >= partitions_max))
      fail(Category::out_of_bounds, std::string("operand '") + operand + "' reaches partition " +
                                        std::to_string(t.first_partition + step * (t.partitions - 1)) +
                                        "; there are 128");
    const bool sbuf = a.space == Space::sbuf;
    const bool borrowed = shared && (*shared)[a.buffer];
    if (!borrowed) touch(a.buffer);
    CoreMemory& m = borrowed ? *main->memory : *memory;
    t.region = sbuf ? &m.sbuf : &m.psum;
    row_bytes = sbuf ? m.sbuf_pitch : m.psum_pitch;
    t.data = t.region->base + t.first_partition * row_bytes + buffer.byte + element * a.bytes;
    t.pitch = step * row_bytes;
    if (!sbuf) t.begun = &begun_of(a.buffer);
  }
  if (gathered) {
    const Tile indices = resolve(a.vector_access, operand);
    const i64 stride = plan.value(a.vector_stride, now),
              bound = a.vector_bound.constant() && a.vector_bound.c == 0 ? INT64_MAX : plan.value(a.vector_bound, now);
    if (indices.partitions * indices.elements < t.partitions)
      fail(Category::out_of_bounds, std::string("operand '") + operand + "' needs " + std::to_string(t.partitions) +
                                        " indices, its vector_offset has " +
                                        std::to_string(indices.partitions * indices.elements));
    if (rows_used_ == row_pool_.size()) row_pool_.push_back(std::make_unique<std::vector<i64>>());
    std::vector<i64>& rows = *row_pool_[rows_used_++];
    rows.assign(t.partitions, Tile::absent);
    const i64 unit = a.space == Space::hbm ? a.bytes : row_bytes;
    for (i64 i = 0; i < t.partitions; ++i) {
      const i64 value = indices.partitions == 1 ? read_integer(indices, 0, i)
                                                : read_integer(indices, i % indices.partitions, i / indices.partitions);
      const i64 first = offset + value * stride;
      if (value < 0 || value >= bound || first + free_low < 0 || first + free_high >= a.capacity) {
        if (!allow_outside)
          fail(Category::out_of_bounds,
               std::string("operand '") + operand + "': index " + std::to_string(value) +
                   " of its vector_offset (entry " + std::to_string(i) + ") leaves tensor '" + buffer.name +
                   "': element " + std::to_string(first + free_low) + " of " + std::to_string(a.capacity),
               "use oob_mode=skip to leave such rows out");
        continue;
      }
      rows[i] = a.space == Space::hbm ? value * stride * unit : value * (stride / a.row) * unit;
    }
    t.rows = &rows;
  } else if (allow_outside && (low < 0 || high >= a.capacity)) {
    // oob_mode skip: rows that leave the tensor are left out.
    if (rows_used_ == row_pool_.size()) row_pool_.push_back(std::make_unique<std::vector<i64>>());
    std::vector<i64>& rows = *row_pool_[rows_used_++];
    rows.assign(t.partitions, Tile::absent);
    for (i64 i = 0; i < t.partitions; ++i) {
      const i64 first = offset + i * row_stride;
      if (first + free_low >= 0 && first + free_high < a.capacity) rows[i] = i * t.pitch;
    }
    t.rows = &rows;
  }
  return t;
}

// ------------------------------------------------------------------------------------------------ races between cores

namespace {

bool bit(const u8* bits, u64 at) { return bits[at / 8] >> (at % 8) & 1; }

bool any_bit(const u8* bits, u64 at, u64 n) {
  for (u64 i = at; i < at + n;) {
    if (i % 8 == 0 && i + 8 <= at + n) {
      if (bits[i / 8]) return true;
      i += 8;
    } else {
      if (bit(bits, i)) return true;
      ++i;
    }
  }
  return false;
}

// f(first byte within the buffer, bytes) for every contiguous piece of an HBM tile.
template <class F>
void each_range(const HbmBuffer& h, const Tile& t, F&& f) {
  for (i64 p = 0; p < t.partitions; ++p) {
    if (t.rows && (*t.rows)[p] == Tile::absent) continue;
    for_runs(t, t.row(p), 0, t.elements, [&](u8* to, i64 step, i64 n, i64) {
      const u64 at = u64(to - h.region.base);
      if (step == t.bytes)
        f(at, u64(n * t.bytes));
      else
        for (i64 k = 0; k < n; ++k) f(at + k * step, u64(t.bytes));
    });
  }
}

Region bits_of(const HbmBuffer& h, const Pages& bits) { return {h.region.base, h.region.size, bits.data(), true}; }

void note_read(Core& core, HbmBuffer& h, const Tile& t) {
  const Region read = bits_of(h, h.read_by[core.index]);
  h.last_reader[core.index] = core.current;
  if (h.last_writer[core.index] < 0) {
    each_range(h, t, [&](u64 at, u64 n) { mark_written(read, at, n); });
    return;
  }
  const u8* own = h.own[core.index].data();
  each_range(h, t, [&](u64 at, u64 n) {
    if (!any_bit(own, at, n)) return mark_written(read, at, n);
    for (u64 i = at; i < at + n; ++i)
      if (!bit(own, i)) mark_written(read, i, 1);
  });
}

void note_write(Core& core, HbmBuffer& h, const Tile& t) {
  const int other = 1 - core.index;
  const bool shared = h.last_writer[other] >= 0;
  const Region written = bits_of(h, h.written_by[core.index]), own = bits_of(h, h.own[core.index]);
  h.last_writer[core.index] = core.current;
  each_range(h, t, [&](u64 at, u64 n) {
    if (shared && any_bit(h.own[other].data(), at, n))
      core.rewrites.push_back({&h, at, {h.region.base + at, h.region.base + at + n}});
    mark_written(written, at, n);
    mark_written(own, at, n);
  });
}

}  // namespace

void settle_rewrites(Core& core) {
  const int other = 1 - core.index;
  for (const Core::Rewrite& r : core.rewrites) {
    HbmBuffer& h = *r.memory;
    for (u64 i = r.at; i < r.at + r.before.size(); ++i) {
      if (!bit(h.own[other].data(), i)) continue;
      const bool agree =
          h.region.base[i] == r.before[i - r.at] && !bit(h.read_by[0].data(), i) && !bit(h.read_by[1].data(), i);
      if (agree) {
        mark_unwritten(bits_of(h, h.written_by[core.index]), i, 1);
        mark_unwritten(bits_of(h, h.written_by[other]), i, 1);
      } else {
        mark_written(bits_of(h, h.written_by[other]), i, 1);
      }
    }
  }
  core.rewrites.clear();
}

void note_hbm(Core& core, const Tile& t, bool write) {
  if (t.space != Space::hbm || core.rank.cores.size() < 2) return;
  if (write && !core.worker) core.wrote_hbm = true;
  HbmBuffer& h = core.rank.memory_of(t.buffer, core.index);
  if (!h.read_by[0].data()) return;
  if (write)
    note_write(core, h, t);
  else
    note_read(core, h, t);
}

void check_race(Rank& rank) {
  if (rank.cores.size() < 2) return;
  for (auto& copies : rank.hbm) {
    if (!copies[0] || !copies[0]->read_by[0].data()) continue;
    HbmBuffer& h = *copies[0];
    if (h.last_writer[0] < 0 && h.last_writer[1] < 0 && h.last_reader[0] < 0 && h.last_reader[1] < 0) continue;
    if (h.last_writer[0] >= 0 || h.last_writer[1] >= 0) {
      const u8 *r0 = h.read_by[0].data(), *r1 = h.read_by[1].data(), *w0 = h.written_by[0].data(),
               *w1 = h.written_by[1].data();
      for (u64 i = 0; i < (h.region.size + 7) / 8; ++i) {
        const u8 clash = u8((w0[i] & (w1[i] | r1[i])) | (w1[i] & r0[i]));
        if (!clash) continue;
        const bool first_writes = w0[i] & clash;
        const int writer = first_writes ? 0 : 1, other = 1 - writer;
        const i32 a = h.last_writer[writer],
                  b = (first_writes ? w1[i] & clash : 0) ? h.last_writer[other] : h.last_reader[other];
        const Plan& plan = rank.plan;
        std::string where_b =
            b >= 0 ? plan.describe(plan.instructions[b]) + " at " + plan.where(plan.instructions[b]) : "?";
        const std::string name = plan.program->buffers[&copies - rank.hbm.data()].name;
        throw Error(Category::undefined_behaviour,
                    "race: core " + std::to_string(writer) + " writes byte " +
                        std::to_string(i * 8 + __builtin_ctz(clash)) + " of HBM tensor '" + name + "' (" +
                        plan.describe(plan.instructions[a]) + ") and core " + std::to_string(other) + " accesses it (" +
                        where_b + ") with no barrier in between",
                    plan.where(plan.instructions[a]), "put a core_barrier between the two accesses");
      }
    }
    for (int k = 0; k < 2; ++k) {
      std::memset(h.read_by[k].data(), 0, h.read_by[k].size());
      std::memset(h.written_by[k].data(), 0, h.written_by[k].size());
      std::memset(h.own[k].data(), 0, h.own[k].size());
      h.last_reader[k] = h.last_writer[k] = -1;
    }
  }
}

// ------------------------------------------------------------------------------------------------ control flow

void rethrow_with_place(Core& core, const Error& e) {
  if (core.current < 0 || !e.where.empty()) throw e;
  const PlanInstruction& i = core.plan().instructions[core.current];
  std::string cause = e.what();
  const std::string name = core.plan().describe(i);
  if (cause.rfind(name, 0) != 0) cause = name + ": " + cause;
  throw Error(e.category, cause, core.plan().where(i), e.cure);
}

namespace {

// Tensors that the loop at `at` writes; targets of matmuls may accumulate over iterations and are left out.
std::vector<i32> written_in_loop(const Core& core, std::size_t at) {
  const Plan& plan = core.plan();
  const auto& code = plan.code[core.index];
  std::set<i32> written, accumulated;
  for (std::size_t s = at + 1; s < std::size_t(code[at].target); ++s) {
    if (code[s].kind != StepKind::instruction) continue;
    const PlanInstruction& i = plan.instructions[code[s].index];
    for (i32 n = 0; n < i.argument_count; ++n) {
      if (i.arguments[n].kind != ValueKind::access) continue;
      const PlanAccess& a = plan.accesses[i.arguments[n].index];
      const Role role = definition(i.opcode).parameters[n].role;
      if (a.space == Space::hbm || role == Role::read || role == Role::any) continue;
      (role == Role::accumulate ? accumulated : written).insert(a.buffer);
    }
  }
  std::vector<i32> out;
  for (i32 b : written)
    if (!accumulated.count(b)) out.push_back(b);
  return out;
}

// f(first byte of bits, bytes of bits) for every partition row of the frame's tensors, widened to whole bytes.
template <class F>
void each_row_bits(Core& core, const std::vector<i32>& buffers, F&& f) {
  const Plan& plan = core.plan();
  for (i32 b : buffers) {
    const Buffer& buffer = plan.program->buffers[b];
    const bool sbuf = buffer.space == Space::sbuf;
    const Region& r = sbuf ? core.memory->sbuf : core.memory->psum;
    const i64 pitch = sbuf ? core.memory->sbuf_pitch : core.memory->psum_pitch;
    for (i64 p = 0; p < plan.buffer_partitions[b]; ++p) {
      const i64 at = (buffer.partition + p) * pitch + buffer.byte;
      f(r.written + at / 8, std::size_t((at + plan.buffer_bytes[b] + 7) / 8 - at / 8));
    }
  }
}

void begin_affine(Core& core, std::size_t at) {
  Core::AffineFrame f;
  f.depth = core.stack.size();
  f.buffers = written_in_loop(core, at);
  each_row_bits(core, f.buffers, [&](u8* bits, std::size_t n) { f.before.insert(f.before.end(), bits, bits + n); });
  f.all = f.before;
  core.affine.push_back(std::move(f));
}

// What this iteration wrote is hidden from the next one: reading it there is a loop-carried dependence.
void next_affine(Core& core, bool last) {
  Core::AffineFrame& f = core.affine.back();
  std::size_t at = 0;
  each_row_bits(core, f.buffers, [&](u8* bits, std::size_t n) {
    for (std::size_t i = 0; i < n; ++i) f.all[at + i] |= bits[i];
    std::memcpy(bits, (last ? f.all : f.before).data() + at, n);
    at += n;
  });
  if (last) core.affine.pop_back();
}

}  // namespace

void forget_converted();  // matmul.cpp

void run_steps(Core& core, std::size_t end) {
  forget_converted();
  const Plan& plan = core.plan();
  const auto& code = plan.code[core.index];
  const Options& options = core.rank.options;
  while (core.at < end) {
    const CodeStep& step = code[core.at];
    if (step.kind == StepKind::instruction) {
      const PlanInstruction& i = plan.instructions[step.index];
      core.current = step.index;
      if ((++core.steps & 4095) == 0) {
        if (core.steps > options.step_limit)
          fail(Category::undefined_behaviour,
               "the kernel has executed " + std::to_string(options.step_limit) + " instructions and does not end",
               "check the condition of its while loop, or raise step_limit");
        if (options.poll && !core.worker) options.poll();
      }
      try {
        core.rows_used_ = 0;
        if (!plan.registers_read.empty()) check_registers(core, plan.registers_read[step.index]);
        execute_instruction(core, i);
        if (!core.rewrites.empty()) settle_rewrites(core);
      } catch (const Error& e) {
        if (!core.affine.empty() && e.category == Category::undefined_behaviour && e.where.empty() &&
            std::string(e.what()).find("nothing has written") != std::string::npos)
          rethrow_with_place(
              core, Error(Category::undefined_behaviour,
                          std::string("race: loop-carried dependence in an affine_range loop, or ") + e.what(), "",
                          "use sequential_range where an iteration reads what an earlier one wrote"));
        rethrow_with_place(core, e);
      }
      if (core.wait != Wait::none) return;  // `at` advances when the wait is over
      ++core.at;
      // Two cores take turns at their writes to HBM: of kernels that rely on the cores' equal pace, values are those
      // of an equal pace.
      if (core.wrote_hbm) {
        core.wrote_hbm = false;
        if (!core.worker) return;
      }
    } else if (step.kind == StepKind::loop) {
      const PlanLoop& l = plan.loops[step.index];
      if (!plan.loop_registers.empty()) check_loop_registers(core, step.index);
      if (l.kind == LoopKind::while_register) {
        if (core.slots[plan.program->loop_variables + l.condition] == 0)
          core.at = step.target;
        else
          core.stack.push_back({0, 0, 0}), ++core.at;
        continue;
      }
      const i64 start = core.quantity(l.start), stop = core.quantity(l.stop), by = core.quantity(l.step);
      if (by <= 0) fail(Category::unsupported, "a loop steps by " + std::to_string(by), "use a positive step");
      if (start >= stop) {
        core.at = step.target;
        continue;
      }
      if (options.parallel && !core.worker && stop - start > by && !core.parallel_refused[step.index] &&
          try_parallel_loop(core, core.at, start, stop, by)) {
        core.at = step.target;
        continue;
      }
      core.slots[l.variable] = start;
      core.stack.push_back({start, stop, by});
      if (l.kind == LoopKind::affine && options.check_uninitialised && !core.worker) begin_affine(core, core.at);
      ++core.at;
    } else {
      const PlanLoop& l = plan.loops[step.index];
      Core::LoopState& s = core.stack.back();
      if (l.kind == LoopKind::while_register) {
        core.stack.pop_back();
        core.at = step.target;
        if ((++core.steps & 1023) == 0 && options.poll && !core.worker) options.poll();
        continue;
      }
      s.value += s.step;
      const bool last = s.value >= s.stop;
      if (!core.affine.empty() && core.affine.back().depth == core.stack.size()) next_affine(core, last);
      if (last) {
        core.stack.pop_back();
        ++core.at;
      } else {
        core.slots[l.variable] = s.value;
        core.at = step.target + 1;
      }
    }
  }
}

void run(std::vector<std::unique_ptr<Rank>>& ranks) {
  const SingleThreadedProducts products;
  std::vector<Core*> all;
  for (auto& r : ranks)
    for (auto& c : r->cores) all.push_back(c.get());
  for (;;) {
    bool progress = false, finished = true;
    for (Core* c : all) {
      if (c->wait != Wait::none) {
        finished = finished && c->wait == Wait::finished;
        continue;
      }
      const std::size_t end = c->plan().code[c->index].size();
      run_steps(*c, end);
      progress = true;
      finished = false;
      if (c->wait == Wait::none && c->at >= end) c->wait = Wait::finished;
    }
    if (finished) break;
    if (release_waiting(ranks)) continue;
    if (!progress) {
      std::string who;
      for (Core* c : all)
        if (c->wait != Wait::finished) {
          const PlanInstruction& i = c->plan().instructions[c->current];
          who += (who.empty() ? "" : "; ") + std::string("rank ") + std::to_string(c->rank.index) + " core " +
                 std::to_string(c->index) + " waits at " + c->plan().describe(i) + " (" + c->plan().where(i) + ")";
        }
      fail(Category::undefined_behaviour, "deadlock: " + who,
           "every core of the group must reach the same barrier, sendrecv or collective");
    }
  }
  for (auto& r : ranks) check_race(*r);
}

}  // namespace core
