// Registers, printing, and everything that waits for another core or rank.
#include <algorithm>
#include <cstring>

#include "core/instructions.h"

namespace core {

namespace {

i64& register_of(Call& c, int n) {
  const PlanArgument& a = c.i.arguments[n];
  const Program& p = *c.core.plan().program;
  if (a.kind == ValueKind::expression) {
    const Quantity& q = c.core.plan().quantities[a.index];
    if (q.terms == 1 && q.c == 0 && q.coefficient[0] == 1 && q.slot[0] >= p.loop_variables) {
      c.core.register_written[q.slot[0] - p.loop_variables] = 1;
      return c.core.slots[q.slot[0]];
    }
  }
  fail(Category::configuration, "dst is not a register");
}

// The flattened elements of a tile as bytes, and back.
std::vector<u8> take(Core& core, const Tile& t) {
  std::vector<u8> out(t.partitions * t.elements * t.bytes);
  Region region{out.data(), out.size(), nullptr, false};
  Tile flat = t;
  flat.region = &region;
  flat.space = Space::sbuf;  // not HBM: nothing to note
  flat.rows = nullptr;
  flat.data = out.data();
  flat.pitch = t.elements * t.bytes;
  flat.dims = 1;
  flat.stride[0] = t.bytes;
  flat.count[0] = t.elements;
  copy_elements(core, flat, t);
  return out;
}

void put(Core& core, const Tile& t, std::vector<u8>& bytes) {
  if (i64(bytes.size()) != t.partitions * t.elements * t.bytes)
    fail(Category::configuration, "a destination holds " + std::to_string(t.partitions * t.elements * t.bytes) +
                                      " bytes and receives " + std::to_string(bytes.size()));
  Region region{bytes.data(), bytes.size(), nullptr, false};
  Tile flat = t;
  flat.region = &region;
  flat.space = Space::sbuf;
  flat.rows = nullptr;
  flat.data = bytes.data();
  flat.pitch = t.elements * t.bytes;
  flat.dims = 1;
  flat.stride[0] = t.bytes;
  flat.count[0] = t.elements;
  copy_elements(core, t, flat);
}

Call call_of(Core& core) { return Call(core, core.plan().instructions[core.current]); }

void finish_wait(Core& core) {
  if (!core.rewrites.empty()) settle_rewrites(core);
  core.wait = Wait::none;
  ++core.at;
}

template <class F>
void with_place(Core& core, F&& f) {
  try {
    f();
  } catch (const Error& e) {
    rethrow_with_place(core, e);
  }
}

bool release_barriers(Rank& rank) {
  bool any = false;
  for (auto& core : rank.cores) {
    if (core->wait != Wait::barrier) continue;
    const std::vector<i64> group = call_of(*core).integers(1);
    bool all = true;
    for (i64 k : group) {
      if (k < 0 || k >= i64(rank.cores.size()))
        with_place(*core, [&] {
          fail(Category::configuration, "core " + std::to_string(k) + " is not part of this logical core");
        });
      all = all && rank.cores[k]->wait == Wait::barrier;
    }
    if (!all) continue;
    if (group.size() >= rank.cores.size()) check_race(rank);
    for (i64 k : group) finish_wait(*rank.cores[k]);
    any = true;
  }
  return any;
}

bool release_sendrecv(Rank& rank) {
  std::vector<Core*> waiting;
  for (auto& c : rank.cores)
    if (c->wait == Wait::sendrecv) waiting.push_back(c.get());
  // Everyone whose partners wait on the same pipe.
  for (Core* a : waiting) {
    Call mine = call_of(*a);
    const i64 to = i64(mine.number(2)), from = i64(mine.number(3));
    with_place(*a, [&] {
      if (to < 0 || from < 0 || to >= i64(rank.cores.size()) || from >= i64(rank.cores.size()))
        fail(Category::configuration, "sendrecv names a core that is not part of this logical core");
    });
    Core *sender = rank.cores[from].get(), *receiver = rank.cores[to].get();
    if (sender->wait != Wait::sendrecv || receiver->wait != Wait::sendrecv) continue;
    Call theirs = call_of(*sender);
    if (i64(theirs.number(4)) != i64(mine.number(4)) || i64(theirs.number(2)) != a->index) continue;
    std::vector<Core*> group{a};
    if (sender != a) group.push_back(sender);
    if (sender != receiver) continue;  // only pairs and self-sends exist within a logical core
    std::vector<std::vector<u8>> data;
    std::vector<Tile> sources;
    for (Core* c : group)
      with_place(*c, [&] {
        c->rows_used_ = 0;
        sources.push_back(call_of(*c).tile(0));
        data.push_back(take(*c, sources.back()));
      });
    for (std::size_t k = 0; k < group.size(); ++k)
      with_place(*group[k], [&] {
        const std::size_t other = group.size() - 1 - k;
        const Tile dst = call_of(*group[k]).tile(1);
        if (dst.dtype != sources[other].dtype || dst.partitions != sources[other].partitions ||
            dst.elements != sources[other].elements)
          fail(Category::undefined_behaviour, "the two sides of a sendrecv differ in shape or dtype");
        put(*group[k], dst, data[other]);
      });
    for (Core* c : group) finish_wait(*c);
    return true;
  }
  return false;
}

// --------------------------------------------------------------------------------------------- collectives

struct Axis {
  i64 outer, inner;
};  // bytes: before and from the collective axis on

Axis axis_of(Core& core, i32 access, i64 dimension) {
  const Tile t = core.resolve(access, "srcs", false, false);
  std::vector<i64> shape{t.partitions};
  for (int d = 0; d < t.dims; ++d) shape.push_back(t.count[d]);
  if (dimension < 0) dimension += i64(shape.size());
  if (dimension < 0 || dimension >= i64(shape.size()))
    fail(Category::configuration, "collective_dim " + std::to_string(dimension) + " does not exist");
  Axis a{1, t.bytes};
  for (i64 d = 0; d < i64(shape.size()); ++d) (d < dimension ? a.outer : a.inner) *= shape[d];
  return a;
}

void reduce_bytes(std::vector<u8>& sum, const std::vector<u8>& other, Dtype dtype, Alu op) {
  const i64 n = i64(sum.size()) / size_of(dtype);
  if (is_integer(dtype)) {
    std::vector<i64> a(n), b(n);
    load_integers(dtype, sum.data(), size_of(dtype), n, a.data());
    load_integers(dtype, other.data(), size_of(dtype), n, b.data());
    alu_integers(op, a.data(), b.data(), a.data(), n, 64, true);
    store_integers(dtype, a.data(), n, sum.data(), size_of(dtype));
    return;
  }
  std::vector<float> a(n), b(n);
  load_floats(dtype, sum.data(), size_of(dtype), n, a.data());
  load_floats(dtype, other.data(), size_of(dtype), n, b.data());
  alu_rows(op, a.data(), b.data(), a.data(), n);
  store_floats(dtype, a.data(), n, sum.data(), size_of(dtype));
}

// Part `part` of `parts` along the axis.
std::vector<u8> part_of(const std::vector<u8>& all, Axis axis, i64 parts, i64 part) {
  const i64 width = axis.inner / parts;
  std::vector<u8> out(axis.outer * width);
  for (i64 o = 0; o < axis.outer; ++o) std::memcpy(&out[o * width], &all[o * axis.inner + part * width], width);
  return out;
}

std::vector<u8> joined(const std::vector<std::vector<u8>>& parts, Axis axis) {
  std::vector<u8> out;
  for (i64 o = 0; o < axis.outer; ++o)
    for (const auto& p : parts) {
      const i64 width = i64(p.size()) / axis.outer;
      out.insert(out.end(), p.begin() + o * width, p.begin() + (o + 1) * width);
    }
  return out;
}

void exchange(std::vector<Core*>& group) {
  Call first = call_of(*group[0]);
  const Opcode op = first.i.opcode;
  const i64 n = i64(group.size());
  const std::size_t tensors = first.list(0).size();
  for (std::size_t t = 0; t < tensors; ++t) {
    std::vector<std::vector<u8>> data;
    Axis axis{1, 1};
    Dtype dtype = Dtype::float32;
    for (Core* c : group)
      with_place(*c, [&] {
        Call call = call_of(*c);
        const i32 access = i32(call.list(0).at(t).payload);
        const Tile src = c->resolve(access, "srcs");
        dtype = src.dtype;
        data.push_back(take(*c, src));
        const i64 dimension = op == Opcode::all_gather || op == Opcode::reduce_scatter || op == Opcode::all_to_all
                                  ? i64(call.number(3))
                                  : 0;
        axis = axis_of(*c, access, dimension);
        if (data.back().size() != data[0].size())
          fail(Category::undefined_behaviour, "ranks bring sources of different sizes to one collective");
      });
    std::vector<u8> sum;
    if (op == Opcode::all_reduce || op == Opcode::reduce_scatter) {
      sum = data[0];
      const Alu alu = first.alu(op == Opcode::all_reduce ? 3 : 4);
      for (i64 k = 1; k < n; ++k) reduce_bytes(sum, data[k], dtype, alu);
    }
    for (i64 k = 0; k < n; ++k)
      with_place(*group[k], [&] {
        const Tile dst = group[k]->resolve(i32(call_of(*group[k]).list(1).at(t).payload), "dsts");
        std::vector<u8> out;
        if (op == Opcode::all_reduce) out = sum;
        if (op == Opcode::all_gather) out = joined(data, axis);
        if (op == Opcode::reduce_scatter) out = part_of(sum, axis, n, k);
        if (op == Opcode::all_to_all) {
          std::vector<std::vector<u8>> parts;
          for (i64 j = 0; j < n; ++j) parts.push_back(part_of(data[j], axis, n, k));
          out = joined(parts, axis);
        }
        put(*group[k], dst, out);
      });
  }
}

bool release_collectives(std::vector<std::unique_ptr<Rank>>& ranks) {
  bool any = false;
  const i64 n = i64(ranks.size());
  for (auto& rank : ranks)
    for (auto& core : rank->cores) {
      if (core->wait != Wait::collective) continue;
      Call c = call_of(*core);
      auto core_of = [&](i64 r) -> Core* {
        if (r < 0 || r >= n)
          with_place(*core, [&] {
            fail(Category::configuration,
                 "rank " + std::to_string(r) + " takes part in a collective, and there are " + std::to_string(n) +
                     " ranks",
                 "run with execute_ranks and as many ranks");
          });
        Core* other = ranks[r]->cores[core->index].get();
        return other->wait == Wait::collective && call_of(*other).i.opcode == c.i.opcode ? other : nullptr;
      };
      if (c.i.opcode == Opcode::collective_permute) {
        std::vector<std::array<i64, 2>> pairs;
        for (const Value& v : c.list(2)) {
          const auto& p = c.sublist(v);
          pairs.push_back({c.number_of(p.at(0)), c.number_of(p.at(1))});
        }
        std::vector<Core*> all;
        bool ready = true;
        for (auto& p : pairs)
          for (i64 r : p) {
            Core* o = core_of(r);
            ready = ready && o;
            if (o && std::find(all.begin(), all.end(), o) == all.end()) all.push_back(o);
          }
        if (!ready) continue;
        std::vector<std::pair<Core*, std::vector<u8>>> moves;
        for (std::size_t t = 0; t < c.list(0).size(); ++t) {
          moves.clear();
          for (auto& p : pairs) {
            Core *from = core_of(p[0]), *to = core_of(p[1]);
            from->rows_used_ = 0;
            with_place(*from, [&] {
              moves.push_back({to, take(*from, from->resolve(i32(call_of(*from).list(0).at(t).payload), "srcs"))});
            });
          }
          for (auto& [to, bytes] : moves)
            with_place(*to, [&] { put(*to, to->resolve(i32(call_of(*to).list(1).at(t).payload), "dsts"), bytes); });
        }
        if (std::find(all.begin(), all.end(), core.get()) == all.end()) all.push_back(core.get());
        for (Core* o : all) finish_wait(*o);
        any = true;
        continue;
      }
      std::vector<i64> members;
      for (const Value& v : c.list(2)) {
        std::vector<i64> group;
        for (const Value& r : c.sublist(v)) group.push_back(c.number_of(r));
        if (std::find(group.begin(), group.end(), rank->index) != group.end()) members = group;
      }
      if (members.empty())
        with_place(*core, [&] {
          fail(Category::configuration, "rank " + std::to_string(rank->index) + " is in no replica group");
        });
      std::vector<Core*> group;
      for (i64 r : members) {
        Core* o = core_of(r);
        if (!o) break;
        group.push_back(o);
      }
      if (group.size() != members.size()) continue;
      for (Core* o : group) o->rows_used_ = 0;
      exchange(group);
      for (Core* o : group) finish_wait(*o);
      any = true;
    }
  return any;
}

}  // namespace

bool release_waiting(std::vector<std::unique_ptr<Rank>>& ranks) {
  bool any = false;
  for (auto& r : ranks) {
    any = release_barriers(*r) || any;
    while (release_sendrecv(*r)) any = true;
  }
  return release_collectives(ranks) || any;
}

void control_instruction(Call& c) {
  switch (c.i.opcode) {
    case Opcode::register_load: {
      const Tile src = c.tile(1);
      note_hbm(c.core, src, false);
      const i64 value = read_integer(src, 0, 0);
      register_of(c, 0) = value;
      return;
    }
    case Opcode::register_move: {
      const i64 value = i64(c.number(1));
      register_of(c, 0) = value;
      return;
    }
    case Opcode::register_store: {
      const Tile dst = c.tile(0);
      const i64 value = i64(c.number(1));
      const float real = float(value);
      if (is_integer(dst.dtype))
        write_integers(dst, 0, 0, 1, &value);
      else
        write_floats(dst, 0, 0, 1, &real);
      note_hbm(c.core, dst, true);
      return;
    }
    case Opcode::rank_id:
      register_of(c, 0) = c.core.rank.index;
      return;
    case Opcode::device_print: {
      const Tile src = c.tile(1);
      note_hbm(c.core, src, false);
      for (i64 p = 0; p < src.partitions; ++p) check_row(src, p, 0, src.elements);
      if (c.core.rank.options.print) c.core.rank.options.print(c.text(0), src);
      return;
    }
    case Opcode::core_barrier:
      c.core.wait = Wait::barrier;
      return;
    case Opcode::semaphore_signal:
    case Opcode::semaphore_wait:  // values follow program order; order.cpp says whether the semaphores do
      return;
    case Opcode::sendrecv: {
      const Tile src = c.tile(0);
      if (c.text(5) == "gpsimd_dma" && src.elements * src.bytes > 1024 / (4 / std::min(4, src.bytes)))
        fail(Category::unsupported,
             "the GpSimd DMA moves at most " + std::to_string(1024 / (4 / std::min(4, src.bytes))) +
                 " bytes per partition of this dtype; found " + std::to_string(src.elements * src.bytes),
             "use dma_engine.dma");
      c.core.wait = Wait::sendrecv;
      return;
    }
    case Opcode::all_reduce:
    case Opcode::all_gather:
    case Opcode::reduce_scatter:
    case Opcode::all_to_all:
    case Opcode::collective_permute:
      c.core.wait = Wait::collective;
      return;
    default:
      fail(Category::unimplemented, c.core.plan().describe(c.i) + " has no value routine");
  }
}

}  // namespace core
