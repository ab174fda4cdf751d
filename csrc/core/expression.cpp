#include "core/expression.h"

#include <algorithm>

namespace core {

i64 apply(Node op, i64 a, i64 b) {
  switch (op) {
    case Node::add:
      return a + b;
    case Node::multiply:
      return a * b;
    case Node::floor_div:
      return floor_div(a, b);
    case Node::ceil_div:
      return -floor_div(-a, b);
    case Node::modulo:
      return a - b * floor_div(a, b);
    case Node::minimum:
      return std::min(a, b);
    case Node::maximum:
      return std::max(a, b);
    default:
      return 0;
  }
}

i32 ExpressionTable::intern(const Expression& e) {
  auto [it, fresh] = index_.try_emplace(e, i32(nodes_.size()));
  if (fresh) nodes_.push_back(e);
  return it->second;
}

i32 ExpressionTable::constant(i64 value) {
  Recent& recent = recent_[u64(value) * 0x9E3779B97F4A7C15ULL >> 56];
  if (recent.id < 0 || recent.value != value) recent = {value, intern({Node::constant, -1, -1, value})};
  return recent.id;
}
i32 ExpressionTable::leaf(Node op, i32 index) { return intern({op, index, -1, 0}); }

i32 ExpressionTable::binary(Node op, i32 a, i32 b) {
  const Expression x = nodes_[a], y = nodes_[b];
  const bool ca = x.op == Node::constant, cb = y.op == Node::constant;
  const bool divides = op == Node::floor_div || op == Node::ceil_div || op == Node::modulo;
  if (divides && cb && y.value <= 0)
    fail(Category::configuration, "division of an index expression by " + std::to_string(y.value),
         "divide by a positive integer");
  if (ca && cb) return constant(apply(op, x.value, y.value));
  if (a == b && (op == Node::minimum || op == Node::maximum)) return a;
  if (op == Node::add || op == Node::multiply) {
    if (ca) return binary(op, b, a);  // constants stand on the right
    if (cb && y.value == (op == Node::add ? 0 : 1)) return a;
    if (cb && op == Node::multiply && y.value == 0) return b;
    if (cb && x.op == op && nodes_[x.b].op == Node::constant)  // (u + 1) + 2 -> u + 3
      return binary(op, x.a, constant(apply(op, nodes_[x.b].value, y.value)));
    if (op == Node::multiply && x.op == Node::add) return binary(Node::add, binary(op, x.a, b), binary(op, x.b, b));
    if (op == Node::multiply && y.op == Node::add) return binary(Node::add, binary(op, a, y.a), binary(op, a, y.b));
    if (op == Node::add && x.op == Node::add && nodes_[x.b].op == Node::constant)  // constants move outwards
      return binary(op, binary(op, x.a, b), x.b);
    if (op == Node::add && y.op == Node::add && nodes_[y.b].op == Node::constant)
      return binary(op, binary(op, a, y.a), y.b);
  }
  if (divides && cb && y.value == 1) return op == Node::modulo ? constant(0) : a;
  return intern({op, a, b, 0});
}

i64 ExpressionTable::evaluate(i32 id, const std::function<i64(Node, i32)>& lookup) const {
  const Expression& e = nodes_[id];
  switch (e.op) {
    case Node::constant:
      return e.value;
    case Node::loop:
    case Node::symbol:
    case Node::reg:
      return lookup(e.op, e.a);
    default: {
      const i64 b = evaluate(e.b, lookup);
      if (b <= 0 && (e.op == Node::floor_div || e.op == Node::ceil_div || e.op == Node::modulo))
        fail(Category::configuration, "an index expression divides by " + std::to_string(b));
      return apply(e.op, evaluate(e.a, lookup), b);
    }
  }
}

bool ExpressionTable::depends_on(i32 id, Node op, i32 index) const {
  const Expression& e = nodes_[id];
  if (e.op == Node::constant) return false;
  if (e.op == Node::loop || e.op == Node::symbol || e.op == Node::reg) return e.op == op && e.a == index;
  return depends_on(e.a, op, index) || depends_on(e.b, op, index);
}

bool ExpressionTable::depends_on_any(i32 id, Node op) const {
  const Expression& e = nodes_[id];
  if (e.op == Node::constant) return false;
  if (e.op == Node::loop || e.op == Node::symbol || e.op == Node::reg) return e.op == op;
  return depends_on_any(e.a, op) || depends_on_any(e.b, op);
}

}  // namespace core
