// Places on-chip tensors and compacts finished programs.
#include <algorithm>
#include <set>

#include "core/builder.h"

namespace core {

namespace {

struct Life {
  i32 buffer;
  i64 bytes, start, end;
  bool rotates;  // begins in a loop
};

// First to last position at which each tile of a core is in use; a tile used outside the loop it starts in lives
// through it.
std::vector<Life> lifetimes(const Program& p, int core, Space space) {
  const auto& steps = p.steps[core];
  std::vector<i32> parent(steps.size(), -1);  // position of the innermost open loop
  std::vector<i64> loop_end(steps.size(), -1);
  std::vector<i32> open;
  for (i32 s = 0; s < i32(steps.size()); ++s) {
    if (steps[s].kind == StepKind::end) {
      loop_end[open.back()] = s;
      open.pop_back();
    }
    parent[s] = open.empty() ? -1 : open.back();
    if (steps[s].kind == StepKind::loop) open.push_back(s);
  }
  std::map<i32, std::pair<i32, std::pair<i64, i64>>> life;  // buffer: (first position, range)
  auto use = [&](i32 buffer, i32 at) {
    const Buffer& b = p.buffers[buffer];
    if (b.space != space || b.core != core) return;
    auto [it, fresh] = life.try_emplace(buffer, std::pair<i32, std::pair<i64, i64>>{at, {at, at}});
    auto& [first, range] = it->second;
    // climb both positions to the loop they share
    std::set<i32> chain{-1};
    for (i32 q = parent[first]; q >= 0; q = parent[q]) chain.insert(q);
    i64 end = at, start = first;
    i32 q = parent[at];
    while (!chain.count(q)) {
      end = loop_end[q];
      q = parent[q];
    }
    for (i32 r = parent[first]; r != q && r >= 0; r = parent[r]) {
      start = r;
      end = std::max(end, loop_end[r]);
    }
    range.first = std::min(range.first, start);
    range.second = std::max(range.second, end);
  };
  auto use_access = [&](auto&& self, i32 access, i32 at) -> void {
    const Access& a = p.accesses[access];
    use(a.buffer, at);
    if (a.scalar_access >= 0) self(self, a.scalar_access, at);
    if (a.vector_access >= 0) self(self, a.vector_access, at);
  };
  for (i32 s = 0; s < i32(steps.size()); ++s) {
    if (steps[s].kind != StepKind::instruction) continue;
    for (const Value& v : p.argument_lists[p.instructions[steps[s].index].arguments]) {
      if (v.kind == ValueKind::access) use_access(use_access, i32(v.payload), s);
      if (v.kind == ValueKind::list)
        for (const Value& w : p.lists[v.payload])
          if (w.kind == ValueKind::access) use_access(use_access, i32(w.payload), s);
    }
  }
  std::vector<Life> out;
  for (auto& [buffer, entry] : life) {
    const Buffer& b = p.buffers[buffer];
    i64 bytes = size_of(b.dtype);
    for (std::size_t d = 1; d < b.shape.size(); ++d) bytes *= p.expressions.value(b.shape[d]);
    i64 end = entry.second.second;
    out.push_back({buffer, bytes, entry.second.first, end, parent[entry.first] >= 0});
  }
  std::sort(out.begin(), out.end(),
            [](const Life& a, const Life& b) { return std::tie(a.start, a.buffer) < std::tie(b.start, b.buffer); });
  return out;
}

// One pass over the tiles in order of birth, each placed behind the previous one where there is room (so that reuse of
// an address comes as late as possible); `copies` places of each tile for loops to rotate through.
bool place(Program& p, const std::vector<Life>& lives, i64 capacity, i64 align, i64 bank,
           const std::vector<i64>& copies, std::string& holders, std::vector<std::pair<i32, i64>>& placed) {
  struct Block {
    i64 start, end, until;
    i32 buffer;
  };
  auto by_start = [](const Block& a, const Block& b) { return a.start < b.start; };
  std::vector<Block> active;  // by start
  std::vector<Life> pinned;
  for (const Life& l : lives)
    if (p.buffers[l.buffer].pinned) pinned.push_back(l);
  i64 pointer = 0;
  placed.clear();
  for (std::size_t n = 0; n < lives.size(); ++n) {
    const Life& l = lives[n];
    if (p.buffers[l.buffer].pinned) continue;
    std::erase_if(active, [&](const Block& b) { return b.until < l.start; });
    const i64 size = place_bytes(bank ? Space::psum : Space::sbuf, l.bytes);
    const i64 want = size * copies[n];
    std::vector<Block> with_pinned;
    if (!pinned.empty()) {
      with_pinned = active;
      for (const Life& q : pinned)
        if (q.start <= l.end && l.start <= q.end)
          with_pinned.push_back({p.buffers[q.buffer].byte, p.buffers[q.buffer].byte + q.bytes, 0, q.buffer});
      std::sort(with_pinned.begin(), with_pinned.end(), by_start);
    }
    const std::vector<Block>& busy = pinned.empty() ? active : with_pinned;
    auto fit = [&](i64 from) -> i64 {
      i64 at = (from + align - 1) / align * align;
      auto settle = [&](i64 x) {
        return bank && size <= bank ? (x % bank + size > bank ? (x / bank + 1) * bank : x)
               : bank               ? (x + bank - 1) / bank * bank
                                    : x;
      };
      at = settle(at);
      for (const Block& b : busy)
        if (at < b.end && b.start < at + want) at = settle((b.end + align - 1) / align * align);
      return at + want <= capacity ? at : -1;
    };
    i64 at = fit(pointer);
    if (at < 0) at = fit(0);
    if (at < 0) {
      std::vector<Block> held_by = busy;
      std::sort(held_by.begin(), held_by.end(),
                [](const Block& a, const Block& b) { return a.end - a.start > b.end - b.start; });
      i64 held = 0;
      holders.clear();
      for (std::size_t k = 0; k < held_by.size(); ++k) {
        const Block& one = held_by[k];
        held += one.end - one.start;
        if (k < 8) holders += (k ? ", " : "") + p.buffers[one.buffer].name + " " + std::to_string(one.end - one.start);
      }
      if (held_by.size() > 8) holders += ", and " + std::to_string(held_by.size() - 8) + " more";
      holders = "tensor '" + p.buffers[l.buffer].name + "' needs " + std::to_string(l.bytes) +
                " bytes per partition, and of " + std::to_string(capacity) + " there are " + std::to_string(held) +
                " held by " + (holders.empty() ? "nothing" : holders);
      return false;
    }
    placed.push_back({l.buffer, at});
    const Block block{at, at + want, l.end, l.buffer};
    active.insert(std::upper_bound(active.begin(), active.end(), block, by_start), block);
    pointer = at + want >= capacity ? 0 : at + want;
  }
  return true;
}

// More places for the tiles of loops, one more for each in turn, while all fit: iterations then overlap.
template <class Fits>
void spread(const std::vector<Life>& lives, i64 most, std::vector<i64>& copies, Fits&& fits) {
  constexpr std::size_t one_by_one_max = 64;
  const std::size_t rotating =
      std::size_t(std::count_if(lives.begin(), lives.end(), [](const Life& l) { return l.rotates; }));
  if (rotating > one_by_one_max) {
    for (i64 c = most; c > 1; c /= 2) {
      for (std::size_t n = 0; n < lives.size(); ++n) copies[n] = lives[n].rotates ? c : 1;
      if (fits()) return;
    }
    std::fill(copies.begin(), copies.end(), 1);
    return;
  }
  // First two places for each, then small tiles up to the most: a further place for what streams in matters more than
  // one for a large result.
  std::vector<std::size_t> order(lives.size());
  for (std::size_t n = 0; n < order.size(); ++n) order[n] = n;
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return lives[a].bytes < lives[b].bytes; });
  for (i64 limit : {i64(2), most})
    for (std::size_t n : order)
      while (lives[n].rotates &&
             copies[n] < limit) {  // powers of two: loops over several tiles have a short common period
        copies[n] *= 2;
        if (!fits()) {
          copies[n] /= 2;
          break;
        }
      }
}

}  // namespace

void place_tensors(Program& p, bool limited) {
  // places that rotate are safe where dependences are derived; explicit semaphores are written for one place
  const bool explicit_order = has_semaphores(p);
  const Chip& chip = find_chip(p.chip);
  for (int core = 0; core < p.cores; ++core)
    for (Space space : {Space::sbuf, Space::psum}) {
      std::vector<Life> lives = lifetimes(p, core, space);
      if (explicit_order)  // nor does a tile get the place of one whose end only derived dependences know
        for (Life& l : lives) l.start = 0, l.end = i64(p.steps[core].size());
      const bool sbuf = space == Space::sbuf;
      constexpr i64 unlimited = i64(1) << 24;  // 16 MiB a partition
      i64 capacity = i64(chip[sbuf ? "sbuf_bytes_per_partition" : "psum_bytes_per_partition"]) -
                     (sbuf ? i64(chip["sbuf_reserved_bytes_per_partition"]) : 0);
      std::string holders;
      std::vector<std::pair<i32, i64>> placed;
      std::vector<i64> copies(lives.size(), 1);
      auto fits = [&] { return place(p, lives, capacity, 64, sbuf ? 0 : 2048, copies, holders, placed); };
      // Without the limit a program that fits is placed all the same as on the chip, so that its loops overlap.
      bool placeable = fits();
      const bool rotates = placeable;
      if (!placeable && !limited) {
        capacity = unlimited;
        placeable = fits();
      }
      if (!placeable)
        throw Error(Category::capacity,
                    std::string(space_names[int(space)]) + " of core " + std::to_string(core) + " is full: " + holders,
                    "", "use smaller tiles, or let tensors end earlier");
      if (rotates && !explicit_order) spread(lives, sbuf ? 16 : 8, copies, fits);
      fits();
      std::map<i32, i32> places;
      for (std::size_t n = 0; n < lives.size(); ++n) places[lives[n].buffer] = i32(copies[n]);
      for (auto [buffer, byte] : placed) {
        p.buffers[buffer].partition = 0;
        p.buffers[buffer].byte = byte;
        p.buffers[buffer].copies = places.at(buffer);
      }
    }
}

namespace {

struct Compactor {
  const Program& from;
  Program& to;
  // Number in `from` -> number in `to`, -1 where it has none yet.
  std::vector<i32> expressions, buffers, accesses, texts, sources, loops, variables;
  Compactor(const Program& old, Program& fresh)
      : from(old),
        to(fresh),
        expressions(old.expressions.size(), -1),
        buffers(old.buffers.size(), -1),
        accesses(old.accesses.size(), -1),
        texts(old.texts.size(), -1),
        sources(old.sources.size(), -1),
        loops(old.loops.size(), -1),
        variables(old.loop_variables, -1) {}

  i32 text(i32 id) {
    if (id < 0) return -1;
    if (texts[id] < 0) texts[id] = to.intern_text(from.texts[id]);
    return texts[id];
  }
  i32 expression(i32 id) {
    if (id < 0) return -1;
    if (expressions[id] >= 0) return expressions[id];
    const Expression e = from.expressions[id];
    i32 r;
    switch (e.op) {
      case Node::constant:
        r = to.expressions.constant(e.value);
        break;
      case Node::loop:
        r = to.expressions.leaf(Node::loop, variable(e.a));
        break;
      case Node::symbol:
        r = to.expressions.leaf(Node::symbol, e.a);
        break;
      case Node::reg:
        r = to.expressions.leaf(Node::reg, e.a);
        break;
      default: {
        const i32 a = expression(e.a), b = expression(e.b);
        r = to.expressions.append_raw({e.op, a, b, 0});
      }
    }
    return expressions[id] = r;
  }
  i32 variable(i32 v) {
    if (variables[v] < 0) variables[v] = to.loop_variables++;
    return variables[v];
  }
  i32 buffer(i32 id) {
    if (buffers[id] >= 0) return buffers[id];
    Buffer b = from.buffers[id];
    b.released_at = -1;
    for (i32& s : b.shape) s = expression(s);
    to.buffers.push_back(std::move(b));
    return buffers[id] = i32(to.buffers.size()) - 1;
  }
  i32 access(i32 id) {
    if (id < 0) return -1;
    if (accesses[id] >= 0) return accesses[id];
    Access a = from.accesses[id];
    a.buffer = buffer(a.buffer);
    a.offset = expression(a.offset);
    for (int d = 0; d < a.dims; ++d) {
      a.stride[d] = expression(a.stride[d]);
      a.count[d] = expression(a.count[d]);
    }
    a.scalar_access = access(a.scalar_access);
    a.vector_access = access(a.vector_access);
    for (i32* e : {&a.scalar_expression, &a.scalar_stride, &a.vector_stride, &a.vector_bound}) *e = expression(*e);
    return accesses[id] = to.intern_access(a);
  }
  Value value(Value v) {
    switch (v.kind) {
      case ValueKind::access:
        v.payload = access(i32(v.payload));
        break;
      case ValueKind::expression:
        v.payload = expression(i32(v.payload));
        break;
      case ValueKind::text:
        v.payload = text(i32(v.payload));
        break;
      case ValueKind::list: {
        std::vector<Value> copy;
        for (const Value& w : from.lists[v.payload]) copy.push_back(value(w));
        v.payload = to.intern_list(copy);
        break;
      }
      default:
        break;
    }
    return v;
  }
  i32 source(i32 id) {
    if (id < 0) return -1;
    if (sources[id] < 0) sources[id] = to.intern_source({text(from.sources[id].file), from.sources[id].line});
    return sources[id];
  }
};

}  // namespace

std::shared_ptr<Program> compacted(const Program& from) {
  auto result = std::make_shared<Program>();
  Program& to = *result;
  Compactor c(from, to);
  to.name = from.name;
  to.chip = from.chip;
  to.cores = from.cores;
  to.symbols = from.symbols;
  to.registers = from.registers;
  to.steps.resize(from.steps.size());
  // Kernel arguments keep their order, used or not.
  for (i32 b = 0; b < i32(from.buffers.size()); ++b)
    if (from.buffers[b].space == Space::hbm) c.buffer(b);
  std::vector<Value> values;
  for (std::size_t core = 0; core < from.steps.size(); ++core)
    for (const Step& s : from.steps[core]) {
      if (s.kind == StepKind::instruction) {
        Instruction i = from.instructions[s.index];
        values.clear();
        for (const Value& v : from.argument_lists[i.arguments]) values.push_back(c.value(v));
        i.arguments = to.intern_arguments(values);
        i.source = c.source(i.source);
        i.name = c.text(i.name);
        to.instructions.push_back(i);
        to.steps[core].push_back({StepKind::instruction, i32(to.instructions.size()) - 1});
      } else if (s.kind == StepKind::loop) {
        Loop l = from.loops[s.index];
        if (l.variable >= 0) l.variable = c.variable(l.variable);
        l.start = c.expression(l.start);
        l.stop = c.expression(l.stop);
        l.step = c.expression(l.step);
        l.source = c.source(l.source);
        to.loops.push_back(l);
        c.loops[s.index] = i32(to.loops.size()) - 1;
        to.steps[core].push_back({StepKind::loop, i32(to.loops.size()) - 1});
      } else {
        to.steps[core].push_back({StepKind::end, c.loops.at(s.index)});
      }
    }
  return result;
}

}  // namespace core
