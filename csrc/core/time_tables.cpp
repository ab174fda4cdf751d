#include "core/time_tables.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <set>

namespace core {

namespace {

constexpr i64 enumerated_max = 4096;  // instances of an access that are cut exactly

Kind kind_of(Opcode op) {
  switch (op) {
    case Opcode::tensor_begin:
      return Kind::begin;
    case Opcode::dma_copy:
    case Opcode::dma_transpose:
    case Opcode::dma_compute:
      return Kind::dma;
    case Opcode::core_barrier:
      return Kind::barrier;
    case Opcode::semaphore_signal:
      return Kind::signal;
    case Opcode::semaphore_wait:
      return Kind::wait;
    case Opcode::sendrecv:
      return Kind::sendrecv;
    case Opcode::all_reduce:
    case Opcode::all_gather:
    case Opcode::reduce_scatter:
    case Opcode::all_to_all:
    case Opcode::collective_permute:
      return Kind::collective;
    case Opcode::register_load:
    case Opcode::register_move:
    case Opcode::register_store:
    case Opcode::rank_id:
      return Kind::registers;
    case Opcode::device_print:
      return Kind::nothing;
    default:
      return Kind::compute;
  }
}

bool writes(Role r) { return r == Role::write || r == Role::update || r == Role::accumulate; }
bool reads(Role r) { return r == Role::read || r == Role::update; }

}  // namespace

TimeTables::TimeTables(const Plan& p) : plan(p) {
  const Chip& chip = plan.chip;
  // Every engine clock divides twice the Tensor clock on the published chips; else ticks are a tenth of a picosecond.
  const double base = 2 * chip["tensor_ghz"];
  bool whole = true;
  std::array<double, engine_count> ghz{};
  ghz[int(Engine::tensor)] = chip["tensor_ghz"];
  ghz[int(Engine::vector)] = chip["vector_ghz"];
  ghz[int(Engine::scalar)] = chip["scalar_ghz"];
  ghz[int(Engine::gpsimd)] = chip["gpsimd_ghz"];
  ghz[int(Engine::sync)] = chip["sync_ghz"];
  for (double g : ghz)
    if (g > 0) whole = whole && std::fabs(base / g - std::round(base / g)) < 1e-9;
  tick_ns = whole ? 1.0 / base : 1e-4;
  for (int e = 0; e < engine_count; ++e) cycle[e] = ghz[e] > 0 ? i64(std::llround(1.0 / ghz[e] / tick_ns)) : 1;
  instructions.resize(plan.instructions.size());
  const int cores = plan.program->cores;
  map_of_buffer.assign(cores, std::vector<i32>(plan.program->buffers.size(), -1));
  maps.resize(cores);
  split.assign(cores, false);
  std::vector<i32> rotation_of(plan.program->buffers.size(), -1);
  for (i32 b = 0; b < i32(plan.program->buffers.size()); ++b) {
    const Buffer& buffer = plan.program->buffers[b];
    if (buffer.space == Space::hbm || buffer.copies <= 1) continue;
    rotation_of[b] = i32(rotations.size());
    rotations.push_back({b, buffer.copies, place_bytes(buffer.space, plan.buffer_bytes[b])});
  }
  const std::vector<i64> zeros(plan.slots, 0);
  for (int core = 0; core < cores; ++core) add_operands(core);
  for (Operand& o : operands)
    if (plan.program->buffers[o.buffer].space != Space::hbm) o.rotation = rotation_of[o.buffer];
  std::map<u64, i32> known;  // shape signature -> an instruction of the same cost
  std::vector<ArgumentShape> shape;
  for (i32 n = 0; n < i32(instructions.size()); ++n) {
    TimeInstruction& t = instructions[n];
    const PlanInstruction& i = plan.instructions[n];
    t.kind = kind_of(i.opcode);
    t.engine = i.engine;
    t.fixed = plan.has_fixed_shape(i);
    if (t.kind == Kind::begin) {
      t.rotation = rotation_of[plan.accesses[i.arguments[0].index].buffer];
      continue;
    }
    if (t.kind == Kind::compute && t.fixed) {
      plan.shapes(i, zeros.data(), shape);
      auto [it, fresh] = known.try_emplace(shape_signature(i.opcode, i.engine, shape), n);
      if (!fresh) {
        const TimeInstruction& same = instructions[it->second];
        t.cost = same.cost;
        t.latency = same.latency;
        t.flops = same.flops;
        t.hardware_flops = same.hardware_flops;
        continue;
      }
    }
    cost(n, zeros.data(), t);
  }
  for (int core = 0; core < cores; ++core) cut(core);
}

void TimeTables::cost(i32 n, const i64* slots, TimeInstruction& t) const {
  const PlanInstruction& i = plan.instructions[n];
  const Chip& chip = plan.chip;
  std::vector<ArgumentShape> s;
  plan.shapes(i, slots, s);
  for (const ArgumentShape& a : s)
    if (a.access && (a.partitions <= 0 || a.elements <= 0)) {
      t.cost = t.issue = t.transfer = t.pool = -1;
      return;
    }
  const double cycles = cycles_of(chip, i.opcode, i.engine, s);
  t.cost = i64(std::ceil(cycles)) * cycle[int(i.engine)];
  t.latency = ticks(i.engine == Engine::tensor ? chip["matmul_latency_ns"] : chip["result_latency_ns"]);
  const Definition& d = definition(i.opcode);
  if (i.opcode == Opcode::nc_matmul || i.opcode == Opcode::nc_matmul_mx) {
    const bool f32 = s[1].dtype == Dtype::float32 && s[2].dtype == Dtype::float32;
    const int mode = d.find("perf_mode");
    const bool halves = mode >= 0 && s[mode].text && s[mode].text->rfind("double_row", 0) == 0;
    const double k = double(s[1].partitions) * (i.opcode == Opcode::nc_matmul_mx ? 4 : halves ? 2 : 1);
    t.flops = 2.0 * k * double(s[0].partitions) * double(s[0].elements);
    // what neuron-profile counts: transposes too, and fp32 twice, for it runs as two instructions
    t.hardware_flops = t.flops * (f32 ? 2 : 1);
    if (i.opcode == Opcode::nc_matmul && s[5].number != 0) t.flops = 0;  // a transpose
  }
  if (t.kind != Kind::dma && t.kind != Kind::sendrecv && t.kind != Kind::collective) return;
  // bytes: what dst receives; run: contiguous bytes of one descriptor element
  auto extent = [&](const PlanAccess& a, i64& run, i64& partitions, double& bytes) {
    i64 total = 1, inner = a.bytes;
    bool contiguous = true;
    for (int k = a.dims - 1; k >= 0; --k) {
      const i64 count = plan.value(a.count[k], slots), stride = plan.value(a.stride[k], slots);
      total *= count;
      if (k == 0 && a.space != Space::hbm) break;
      if (k == 0 && a.vector_access >= 0) break;
      if (contiguous && (stride * a.bytes == inner || count == 1))
        inner = std::max(inner, count == 1 ? inner : inner * count);
      else if (count != 1)
        contiguous = false;
    }
    run = inner;
    partitions = a.dims ? plan.value(a.count[0], slots) : 1;
    bytes = double(total) * a.bytes;
  };
  if (t.kind == Kind::collective) {
    double bytes = 0;
    for (const Value& v : plan.program->lists[i.arguments[0].index])
      if (v.kind == ValueKind::access) {
        i64 run, p;
        double b;
        extent(plan.accesses[v.payload], run, p, b);
        bytes += b;
      }
    double members = 2;
    if (d.find("replica_group") >= 0 && i.arguments[2].kind == ValueKind::list) {
      const auto& groups = plan.program->lists[i.arguments[2].index];
      if (!groups.empty() && groups[0].kind == ValueKind::list)
        members = double(plan.program->lists[groups[0].payload].size());
    }
    const double rounds = i.opcode == Opcode::all_reduce ? 2 * (members - 1) : members - 1,
                 share = i.opcode == Opcode::all_gather ? 1.0 : 1.0 / members;
    t.bytes = bytes * rounds * share;
    t.transfer = ticks(std::max(1.0, rounds) * chip["collective_hop_ns"] + t.bytes / chip["collective_bytes_per_ns"]);
    return;
  }
  const int dst_at = i.opcode == Opcode::sendrecv ? 1 : 0;
  const PlanAccess& dst = plan.accesses[i.arguments[dst_at].index];
  std::vector<const PlanAccess*> srcs;
  if (i.opcode == Opcode::dma_compute) {
    for (const Value& v : plan.program->lists[i.arguments[1].index])
      if (v.kind == ValueKind::access) srcs.push_back(&plan.accesses[v.payload]);
  } else
    srcs.push_back(&plan.accesses[i.arguments[1 - dst_at].index]);
  i64 dst_run, dst_partitions;
  double dst_bytes;
  extent(dst, dst_run, dst_partitions, dst_bytes);
  double moved = 0, weighted = 0;
  i64 src_partitions = 1;
  for (const PlanAccess* src : srcs) {
    i64 run, partitions;
    double bytes;
    extent(*src, run, partitions, bytes);
    moved += bytes;
    run = std::min(run, dst_run);
    weighted += bytes * std::max(1.0, chip["dma_element_minimum_bytes"] / double(run)) +
                bytes / double(run) * chip["dma_descriptor_ns"] * chip["dma_engine_bytes_per_ns"];
    src_partitions = std::max(src_partitions, partitions);
  }
  t.bytes = moved;
  if (t.kind == Kind::sendrecv) {
    t.transfer = ticks(chip["sendrecv_ns"] + moved / chip["sendrecv_bytes_per_ns"]);
    return;
  }
  double efficiency = 1;
  const PlanAccess& src = *srcs[0];
  if (i.opcode == Opcode::dma_transpose) {
    efficiency = src.space == Space::sbuf ? chip["dma_sbuf_transpose_efficiency"] : chip["dma_transpose_efficiency"];
    weighted = moved;
  }
  if (i.opcode == Opcode::dma_compute) efficiency = chip["dma_accumulate_efficiency"];
  // eight partitions to a DMA engine; HBM to HBM spreads over all
  const bool on_chip = dst.space != Space::hbm || src.space != Space::hbm;
  const i64 partitions = dst.space != Space::hbm ? dst_partitions : src.space != Space::hbm ? src_partitions : 128;
  const double engines = chip["dma_engines"],
               used = on_chip ? std::min(engines, std::ceil(double(partitions) / 8)) : engines,
               rate = chip["dma_engine_bytes_per_ns"] * efficiency;
  t.transfer = ticks(weighted / (used * rate));
  t.pool = ticks(weighted / (engines * rate));
  const int mode_at = d.find("dge_mode");
  const std::string mode = mode_at >= 0 && s[mode_at].text ? *s[mode_at].text : "unknown";
  const bool converts = src.dtype != dst.dtype && size_of(src.dtype) != size_of(dst.dtype);
  t.software = mode == "swdge" || (mode == "unknown" && (converts || i.opcode == Opcode::dma_compute));
  const bool ready = mode == "none" || (mode == "unknown" && chip.generation() < 3);
  t.issue = ticks(t.software ? chip["dma_software_issue_ns"]
                  : ready    ? chip["dma_static_issue_ns"]
                             : chip["dma_issue_ns"]);
  t.queue = src.space == Space::hbm && dst.space != Space::hbm   ? 0
            : dst.space == Space::hbm && src.space != Space::hbm ? 1
                                                                 : 2;
  t.path = int(src.space) * 3 + int(dst.space);
}

void TimeTables::add_operands(int core) {
  const Program& program = *plan.program;
  // HBM tensors need tracking where the program both writes and reads them.
  std::set<i32> read, written;
  auto scan = [&](auto&& each) {
    for (const CodeStep& s : plan.code[core]) {
      if (s.kind != StepKind::instruction) continue;
      const PlanInstruction& i = plan.instructions[s.index];
      const Definition& d = definition(i.opcode);
      for (i32 n = 0; n < i.argument_count; ++n) {
        if (i.arguments[n].kind == ValueKind::access) each(s.index, i.arguments[n].index, d.parameters[n].role);
        if (i.arguments[n].kind == ValueKind::list) {
          const bool destinations = d.parameters[n].name == "dsts";
          for (const Value& v : program.lists[i.arguments[n].index])
            if (v.kind == ValueKind::access) each(s.index, i32(v.payload), destinations ? Role::write : Role::read);
        }
      }
    }
  };
  scan([&](i32, i32 access, Role role) {
    if (writes(role)) written.insert(plan.accesses[access].buffer);
    if (reads(role)) read.insert(plan.accesses[access].buffer);
  });
  i32 current = -1;
  scan([&](i32 instruction, i32 access, Role role) {
    TimeInstruction& t = instructions[instruction];
    if (instruction != current) {
      t.first_operand = i32(operands.size());
      current = instruction;
    }
    auto add = [&](auto&& self, i32 id, bool write, bool accumulate) -> void {
      const PlanAccess& a = plan.accesses[id];
      if (a.scalar_access >= 0) self(self, a.scalar_access, false, false);
      if (a.vector_access >= 0) self(self, a.vector_access, false, false);
      const bool hbm = a.space == Space::hbm;
      if (hbm && !(read.count(a.buffer) && written.count(a.buffer))) return;
      Operand o;
      o.write = write;
      o.accumulate = accumulate;
      o.buffer = a.buffer;
      i64 low = 0, high = 0;
      for (int k = hbm ? 0 : 1; k < a.dims; ++k) {
        i64 count = a.count[k].constant() ? a.count[k].c : 1;
        if (!a.count[k].constant() && a.count[k].general >= 0) {  // ragged: the cap
          const Expression& e = program.expressions[a.count[k].general];
          if (e.op == Node::minimum) {
            const Quantity x = plan.compile(e.a), y = plan.compile(e.b);
            count = x.constant() ? x.c : y.constant() ? y.c : 1;
          }
        }
        const i64 reach = (a.stride[k].constant() ? a.stride[k].c : 0) * std::max<i64>(0, count - 1);
        (reach < 0 ? low : high) += reach;
      }
      o.low = low * a.bytes;
      o.high = (high + 1) * a.bytes;
      const Buffer& b = program.buffers[a.buffer];
      i64 first_partition = 0, partitions = a.dims && a.count[0].constant() ? a.count[0].c : 128;
      if (hbm) {
        if (a.offset.general >= 0 || a.indirect) {
          o.low = 0;
          o.high = plan.buffer_bytes[a.buffer];
        } else {
          o.byte = a.offset;
          o.byte.c *= a.bytes;
          for (i32 k = 0; k < o.byte.terms; ++k) o.byte.coefficient[k] *= a.bytes;
        }
      } else {
        first_partition = b.partition;
        if (a.offset.general >= 0 || a.indirect) {
          o.byte.c = b.byte;
          o.low = 0;
          o.high = plan.buffer_bytes[a.buffer];
          partitions = 128;
          first_partition = 0;
        } else {
          o.byte.c = b.byte + (a.offset.c - floor_div(a.offset.c, a.row) * a.row) * a.bytes;
          first_partition += floor_div(a.offset.c, a.row);
          for (i32 k = 0; k < a.offset.terms; ++k) {
            if (a.offset.coefficient[k] % a.row == 0) {
              partitions = 128;
              first_partition = 0;
              continue;
            }
            o.byte.slot[o.byte.terms] = a.offset.slot[k];
            o.byte.coefficient[o.byte.terms++] = a.offset.coefficient[k] * a.bytes;
          }
          for (i32 k = 0; k < o.byte.terms; ++k)
            if (o.byte.slot[k] >= program.loop_variables) {
              o.byte = Quantity{};
              o.byte.c = b.byte;
              o.low = 0;
              o.high = plan.buffer_bytes[a.buffer];
              break;
            }
        }
      }
      o.groups = 0;
      for (i64 g = std::max<i64>(0, first_partition) / 32;
           g <= std::min<i64>(127, first_partition + std::max<i64>(1, partitions) - 1) / 32; ++g)
        o.groups |= u8(1 << g);
      if (!hbm && !(o.groups & 1)) split[core] = true;
      if (hbm) o.groups = 1;
      operands.push_back(o);
    };
    if (role == Role::begin || role == Role::any) {
      t.last_operand = i32(operands.size());
      return;
    }
    if (role == Role::update) add(add, access, false, false);
    add(add, access, writes(role), role == Role::accumulate);
    t.last_operand = i32(operands.size());
  });
}

void TimeTables::cut(int core) {
  const Program& program = *plan.program;
  auto on_chip_size = [&](Space space) {
    i64 size = i64(plan.chip[space == Space::sbuf ? "sbuf_bytes_per_partition" : "psum_bytes_per_partition"]);
    for (i32 b = 0; b < i32(program.buffers.size()); ++b)
      if (program.buffers[b].space == space) size = std::max(size, program.buffers[b].byte + plan.buffer_bytes[b]);
    return (size + 63) / 64 * 64;
  };
  // one map for SBUF, one for PSUM, one per tracked HBM tensor
  std::map<i32, std::vector<i32>> members;  // key: -1 SBUF, -2 PSUM, else buffer
  for (const CodeStep& s : plan.code[core]) {
    if (s.kind != StepKind::instruction) continue;
    const TimeInstruction& t = instructions[s.index];
    for (i32 o = t.first_operand; o < t.last_operand; ++o) {
      const Space space = program.buffers[operands[o].buffer].space;
      members[space == Space::sbuf ? -1 : space == Space::psum ? -2 : operands[o].buffer].push_back(o);
    }
  }
  // trip counts of the loops that surround nothing but constants; others are cut coarsely
  std::map<i32, std::pair<i64, i64>> loops;
  for (const PlanLoop& l : plan.loops)
    if (l.variable >= 0)
      loops[l.variable] = {l.step.constant() ? std::max<i64>(1, l.step.c) : 1,
                           l.start.constant() && l.stop.constant() && l.step.constant()
                               ? ceil_div(std::max<i64>(0, l.stop.c - l.start.c), std::max<i64>(1, l.step.c))
                               : 64};
  i32 next = 0;
  for (auto& [key, list] : members) {
    const i64 size =
        key < 0 ? on_chip_size(key == -1 ? Space::sbuf : Space::psum) : std::max<i64>(1, plan.buffer_bytes[key]);
    std::set<i64> breaks{0, size};
    auto cut_at = [&](i64 x) {
      if (x > 0 && x < size && breaks.size() < 16384) breaks.insert(x);
    };
    for (i32 o : list) {
      const Operand& op = operands[o];
      const Rotation* r = op.rotation >= 0 ? &rotations[op.rotation] : nullptr;
      i64 instances = r ? r->copies : 1;
      for (i32 k = 0; k < op.byte.terms; ++k)
        instances *= std::max<i64>(1, loops.count(op.byte.slot[k]) ? loops[op.byte.slot[k]].second : 1);
      if (key >= 0 && instances > 256) {
        for (i64 k = 1; k < 64; ++k) cut_at(size * k / 64);
        continue;
      }
      if (instances > enumerated_max) continue;
      for (i64 n = 0; n < instances; ++n) {
        i64 rest = n, at = op.byte.c;
        if (r) {
          at += (rest % r->copies) * r->stride;
          rest /= r->copies;
        }
        for (i32 k = 0; k < op.byte.terms; ++k) {
          auto [step, trips] = loops[op.byte.slot[k]];
          trips = std::max<i64>(1, trips);
          at += op.byte.coefficient[k] * step * (rest % trips);
          rest /= trips;
        }
        cut_at(at + op.low);
        cut_at(at + op.high);
      }
    }
    ChunkMap map;
    map.granule = 0;
    for (i64 b : breaks) map.granule = std::gcd(map.granule, b);
    if (size / map.granule > (1 << 18)) map.granule = std::max<i64>(1, size >> 18);
    if (std::has_single_bit(u64(map.granule))) map.shift = std::countr_zero(u64(map.granule));
    map.chunk_of.assign(size / map.granule + 2, 0);
    i32 chunk = -1;
    auto it = breaks.begin();
    for (i64 g = 0; g < i64(map.chunk_of.size()); ++g) {
      while (it != breaks.end() && *it <= g * map.granule && *it < size) {
        ++chunk;
        ++it;
      }
      map.chunk_of[g] = std::max(0, chunk);
    }
    map.chunks = std::max(0, chunk) + 1;
    map.first = next;
    next += map.chunks;
    const i32 index = i32(maps[core].size());
    maps[core].push_back(std::move(map));
    for (i32 o : list) {
      Operand& op = operands[o];
      op.memory = index;
      map_of_buffer[core][op.buffer] = index;
      op.fixed = op.byte.terms == 0 && op.rotation < 0;
      if (!op.fixed) continue;
      const ChunkMap& m = maps[core][index];
      op.first = m.at(op.byte.c + op.low);
      op.last = m.at(op.byte.c + op.high - 1);
    }
  }
}

}  // namespace core
