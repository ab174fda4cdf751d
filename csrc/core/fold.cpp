// Folding: Python-unrolled iterations that are equal up to constant steps of their offsets become a loop.
#include <algorithm>
#include <optional>

#include "core/builder.h"

namespace core {

namespace {

// How iteration k differs from iteration 0; the difference must be k times the first one.
struct Matcher {
  Program& p;
  std::vector<std::pair<i32, i32>> tiles;  // tile of iteration 0, tile of this iteration
  std::vector<i32>& place_of;              // buffer -> 1 + its place in `tiles`, 0: none
  std::map<i32, i32> loop_pairs;           // loop of iteration 0 -> loop of this iteration (folded inner loops)
  Matcher(Program& program, std::vector<i32>& places) : p(program), place_of(places) {}
  ~Matcher() {
    for (auto [a, b] : tiles) place_of[a] = 0;
  }
  Matcher(const Matcher&) = delete;

  std::optional<i64> difference(i32 a, i32 b) const {  // b - a, if constant
    if (a == b) return 0;
    if (a < 0 || b < 0) return std::nullopt;
    if (p.expressions.is_constant(a) && p.expressions.is_constant(b))
      return p.expressions.value(b) - p.expressions.value(a);
    const i32 mapped = rename(a);
    const i32 d =
        p.expressions.binary(Node::add, b, p.expressions.binary(Node::multiply, mapped, p.expressions.constant(-1)));
    if (p.expressions.is_constant(d)) return p.expressions.value(d);
    // u + c against u: strip the constant
    auto strip = [&](i32 id, i64& c) {
      const Expression e = p.expressions[id];
      if (e.op == Node::add && p.expressions.is_constant(e.b)) {
        c = p.expressions.value(e.b);
        return e.a;
      }
      c = 0;
      return id;
    };
    i64 ca, cb;
    if (strip(mapped, ca) == strip(b, cb)) return cb - ca;
    if (p.expressions.is_constant(mapped) && p.expressions[b].op == Node::add) return std::nullopt;
    return std::nullopt;
  }
  // The expression with iteration 0's inner loop variables replaced by this iteration's.
  i32 rename(i32 id) const {
    if (loop_pairs.empty()) return id;
    const Expression e = p.expressions[id];
    if (e.op == Node::loop) {
      for (auto [a, b] : loop_pairs)
        if (p.loops[a].variable == e.a) return p.expressions.leaf(Node::loop, p.loops[b].variable);
      return id;
    }
    if (e.op < Node::add) return id;
    return p.expressions.binary(e.op, rename(e.a), rename(e.b));
  }
  bool same(i32 a, i32 b) const { return a == b || (a >= 0 && b >= 0 && rename(a) == b); }
  bool tile_pair(i32 a, i32 b) {
    if (a == b) return true;
    i32& place = place_of[a];
    if (place) return tiles[place - 1].second == b;
    tiles.push_back({a, b});
    place = i32(tiles.size());
    return true;
  }
  bool access(i32 x, i32 y, i64& step) {
    const Access &a = p.accesses[x], &b = p.accesses[y];
    if (a.dtype != b.dtype || a.dims != b.dims || !tile_pair(a.buffer, b.buffer)) return false;
    for (int d = 0; d < a.dims; ++d)
      if (!same(a.stride[d], b.stride[d]) || !same(a.count[d], b.count[d])) return false;
    if (!same(a.scalar_expression, b.scalar_expression) || !same(a.scalar_stride, b.scalar_stride) ||
        !same(a.vector_stride, b.vector_stride) || !same(a.vector_bound, b.vector_bound))
      return false;
    i64 inner = 0;
    if ((a.scalar_access >= 0) != (b.scalar_access >= 0) ||
        (a.scalar_access >= 0 && (!access(a.scalar_access, b.scalar_access, inner) || inner)))
      return false;
    if ((a.vector_access >= 0) != (b.vector_access >= 0) ||
        (a.vector_access >= 0 && (!access(a.vector_access, b.vector_access, inner) || inner)))
      return false;
    const auto d = difference(a.offset, b.offset);
    if (!d) return false;
    step = *d;
    return true;
  }
};

using Steps = std::vector<Step>;

// Steps from `first` up to `last`, positions in the program before it was folded.
struct Range {
  std::size_t first, last;
};

// The steps that use each buffer, from the first to the last one.
std::vector<Range> uses_of(const Program& p, const Steps& steps) {
  std::vector<Range> uses(p.buffers.size(), {SIZE_MAX, 0});
  for (std::size_t at = 0; at < steps.size(); ++at) {
    auto add = [&](auto&& self, i32 access) -> void {
      const Access& a = p.accesses[access];
      Range& r = uses[a.buffer];
      r = {std::min(r.first, at), at + 1};
      if (a.scalar_access >= 0) self(self, a.scalar_access);
      if (a.vector_access >= 0) self(self, a.vector_access);
    };
    if (steps[at].kind != StepKind::instruction) continue;
    for (const Value& v : p.argument_lists[p.instructions[steps[at].index].arguments]) {
      if (v.kind == ValueKind::access) add(add, i32(v.payload));
      if (v.kind == ValueKind::list)
        for (const Value& w : p.lists[v.payload])
          if (w.kind == ValueKind::access) add(add, i32(w.payload));
    }
  }
  return uses;
}

struct Folder {
  Program& p;
  std::vector<Range> uses;      // by buffer
  std::vector<i32> place_of{};  // of the matcher at work, by buffer

  bool compare(const std::vector<Steps>& iterations, const std::vector<Range>& ranges,
               std::vector<std::vector<i64>>& differences) {
    const Steps& first = iterations[0];
    differences.assign(first.size(), {});
    for (std::size_t k = 1; k < iterations.size(); ++k) {
      if (iterations[k].size() != first.size()) return false;
      Matcher m(p, place_of);
      for (std::size_t s = 0; s < first.size(); ++s) {
        const Step x = first[s], y = iterations[k][s];
        if (x.kind != y.kind) return false;
        if (x.kind == StepKind::loop) {
          const Loop a = p.loops[x.index], b = p.loops[y.index];
          if (a.kind != b.kind || a.kind == LoopKind::while_register || a.source != b.source ||
              !m.same(a.start, b.start) || !m.same(a.stop, b.stop) || !m.same(a.step, b.step))
            return false;
          m.loop_pairs[x.index] = y.index;
        }
        if (x.kind == StepKind::instruction && !same_instruction(m, x.index, y.index, k, differences[s])) return false;
      }
      auto within = [&](i32 buffer, const Range& r) {
        return uses[buffer].first >= r.first && uses[buffer].last <= r.last;
      };
      for (auto [a, b] : m.tiles) {
        // a renamed tile is alike and lives in its own iteration only
        const Buffer &x = p.buffers[a], &y = p.buffers[b];
        if (x.space == Space::hbm || x.space != y.space || x.dtype != y.dtype || x.shape != y.shape || x.pinned ||
            y.pinned)
          return false;
        if (!within(a, ranges[0]) || !within(b, ranges[k])) return false;
      }
    }
    return true;
  }

  bool same_instruction(Matcher& m, i32 x, i32 y, std::size_t k, std::vector<i64>& expected) {
    const Instruction a = p.instructions[x], b = p.instructions[y];
    if (a.opcode != b.opcode || a.engine != b.engine || a.source != b.source) return false;
    const auto &values_a = p.argument_lists[a.arguments], &values_b = p.argument_lists[b.arguments];
    if (k == 1) expected.assign(values_a.size(), 0);
    for (std::size_t v = 0; v < values_a.size(); ++v) {
      const Value &l = values_a[v], &r = values_b[v];
      if (l.kind != r.kind) return false;
      i64 step = 0;
      if (l.kind == ValueKind::access) {
        if (!m.access(i32(l.payload), i32(r.payload), step)) return false;
      } else if (l.kind == ValueKind::integer && takes_number(Opcode(a.opcode), v))
        step = r.payload - l.payload;
      else if (!(l == r))
        return false;
      if (k == 1)
        expected[v] = step;
      else if (step != expected[v] * i64(k))
        return false;
    }
    return true;
  }

  static bool takes_number(Opcode op, std::size_t parameter) {
    const Parameter& q = definition(op).parameters[parameter];
    return q.role == Role::number || q.or_number;
  }

  Steps as_loop(const std::vector<Steps>& iterations, const std::vector<std::vector<i64>>& differences) {
    Loop l;
    l.variable = p.loop_variables++;
    l.start = p.expressions.constant(0);
    l.stop = p.expressions.constant(i64(iterations.size()));
    l.step = p.expressions.constant(1);
    l.kind = LoopKind::unrolled;
    p.loops.push_back(l);
    const i32 loop = i32(p.loops.size()) - 1, variable = p.expressions.leaf(Node::loop, l.variable);
    Steps out{{StepKind::loop, loop}};
    for (std::size_t s = 0; s < iterations[0].size(); ++s) {
      const Step step = iterations[0][s];
      if (step.kind == StepKind::instruction) {
        auto values = p.argument_lists[p.instructions[step.index].arguments];
        for (std::size_t v = 0; v < values.size(); ++v) {
          const i64 by = differences[s][v];
          if (!by) continue;
          const i32 shift = p.expressions.binary(Node::multiply, variable, p.expressions.constant(by));
          if (values[v].kind == ValueKind::access) {
            Access a = p.accesses[values[v].payload];
            a.offset = p.expressions.binary(Node::add, a.offset, shift);
            values[v].payload = p.add_access(a);
          } else {
            values[v] = {ValueKind::expression,
                         p.expressions.binary(Node::add, shift, p.expressions.constant(values[v].payload))};
          }
        }
        p.instructions[step.index].arguments = p.add_arguments(values);
      }
      out.push_back(step);
    }
    out.push_back({StepKind::end, loop});
    return out;
  }

  // Steps from `at` to the matching unroll_end (or the end of all); marks are gone from the result.
  Steps run(const Steps& in, std::size_t& at) {
    Steps out;
    while (at < in.size() && in[at].kind != StepKind::unroll_iteration && in[at].kind != StepKind::unroll_end) {
      if (in[at].kind != StepKind::unroll_begin) {
        out.push_back(in[at++]);
        continue;
      }
      ++at;
      const Steps before = run(in, at);  // steps in front of the first iteration
      out.insert(out.end(), before.begin(), before.end());
      std::vector<Steps> iterations;
      std::vector<Range> ranges;
      while (at < in.size() && in[at].kind == StepKind::unroll_iteration) {
        const std::size_t from = ++at;
        iterations.push_back(run(in, at));
        ranges.push_back({from, at});
      }
      ++at;  // unroll_end
      // Steps between the last iteration's end and unroll_end belong to that iteration; a differing count stops the
      // fold.
      std::vector<std::vector<i64>> differences;
      if (iterations.size() >= 3 && !iterations[0].empty() && balanced(iterations) &&
          compare(iterations, ranges, differences)) {
        const Steps loop = as_loop(iterations, differences);
        out.insert(out.end(), loop.begin(), loop.end());
      } else {
        for (const Steps& s : iterations) out.insert(out.end(), s.begin(), s.end());
      }
    }
    return out;
  }

  static bool balanced(const std::vector<Steps>& iterations) {
    for (const Steps& steps : iterations) {
      i64 depth = 0;
      for (const Step& s : steps) {
        depth += s.kind == StepKind::loop ? 1 : s.kind == StepKind::end ? -1 : 0;
        if (depth < 0) return false;
      }
      if (depth) return false;
    }
    return true;
  }
};

}  // namespace

void fold_unrolled(Program& program) {
  for (auto& steps : program.steps) {
    const bool marked =
        std::any_of(steps.begin(), steps.end(), [](const Step& s) { return s.kind >= StepKind::unroll_begin; });
    if (!marked) continue;
    Folder f{program, uses_of(program, steps), std::vector<i32>(program.buffers.size(), 0)};
    std::size_t at = 0;
    const Steps in = std::move(steps);
    steps = f.run(in, at);
  }
}

}  // namespace core
