// Integer expressions over loop variables, symbols and registers, interned in one table.
#pragma once
#include <functional>
#include <unordered_map>

#include "core/types.h"

namespace core {

enum class Node : u8 { constant, loop, symbol, reg, add, multiply, floor_div, ceil_div, modulo, minimum, maximum };

struct Expression {
  Node op;
  i32 a = -1, b = -1;  // children, or the index of the variable in a
  i64 value = 0;
  bool operator==(const Expression&) const = default;
};

// `+ - *` fold constants; products distribute over sums, so that bound expressions come out affine.
class ExpressionTable {
 public:
  i32 constant(i64 value);
  i32 leaf(Node op, i32 index);
  i32 binary(Node op, i32 a, i32 b);
  const Expression& operator[](i32 id) const { return nodes_[id]; }
  i32 size() const { return i32(nodes_.size()); }
  i32 append_raw(const Expression& e) { return intern(e); }
  bool is_constant(i32 id) const { return nodes_[id].op == Node::constant; }
  i64 value(i32 id) const { return nodes_[id].value; }
  i64 evaluate(i32 id, const std::function<i64(Node, i32)>& lookup) const;
  bool depends_on(i32 id, Node op, i32 index) const;
  bool depends_on_any(i32 id, Node op) const;
  // loop variable `variable` replaced: the same expression with the constant `offset` more
  i32 shifted(i32 id, i64 offset) { return binary(Node::add, id, constant(offset)); }

 private:
  i32 intern(const Expression& e);
  struct Hash {
    std::size_t operator()(const Expression& e) const {
      return std::hash<i64>()((i64(e.op) << 56) ^ (i64(e.a) << 28) ^ i64(e.b) ^ (e.value * 0x9E3779B97F4A7C15LL));
    }
  };
  // The last constants by hash: most of what a program names is a few numbers.
  struct Recent {
    i64 value = 0;
    i32 id = -1;
  };
  std::array<Recent, 256> recent_{};
  std::vector<Expression> nodes_;
  std::unordered_map<Expression, i32, Hash> index_;
};

i64 apply(Node op, i64 a, i64 b);

}  // namespace core
