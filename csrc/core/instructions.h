// What the value routines share: argument access, row buffers, reductions into accumulator registers.
#pragma once
#include "core/alu.h"
#include "core/machine.h"

namespace core {

constexpr i64 chunk = 2048;  // elements handled at once: a few rows of floats in the host's first-level cache

// The arguments of one executing instruction, by position in the table (see data/instructions.toml).
struct Call {
  Core& core;
  const PlanInstruction& i;
  const Definition& d;
  Call(Core& c, const PlanInstruction& instruction) : core(c), i(instruction), d(definition(instruction.opcode)) {}
  bool present(int n) const { return i.arguments[n].kind != ValueKind::none; }
  bool is_tile(int n) const { return i.arguments[n].kind == ValueKind::access; }
  Tile tile(int n, bool allow_outside = false) const {
    return core.resolve(i.arguments[n].index, d.parameters[n].name.c_str(), allow_outside);
  }
  Tile unmerged(int n) const { return core.resolve(i.arguments[n].index, d.parameters[n].name.c_str(), false, false); }
  double number(int n) const {
    const PlanArgument& a = i.arguments[n];
    if (a.kind == ValueKind::expression) return double(core.quantity(core.plan().quantities[a.index]));
    return a.number;
  }
  bool flag(int n) const { return number(n) != 0; }
  Alu alu(int n) const { return present(n) ? Alu(int(i.arguments[n].number)) : Alu::none; }
  Activation function(int n) const { return Activation(int(i.arguments[n].number)); }
  const std::string& text(int n) const {
    static const std::string none;
    return i.arguments[n].kind == ValueKind::text ? core.plan().program->texts[i.arguments[n].index] : none;
  }
  const std::vector<Value>& list(int n) const {
    static const std::vector<Value> none;
    return i.arguments[n].kind == ValueKind::list ? core.plan().program->lists[i.arguments[n].index] : none;
  }
  const std::vector<Value>& sublist(const Value& v) const { return core.plan().program->lists[v.payload]; }
  std::vector<i64> integers(int n) const {
    std::vector<i64> out;
    for (const Value& v : list(n)) out.push_back(number_of(v));
    return out;
  }
  i64 number_of(const Value& v) const;
  double real_of(const Value& v) const;
  // An operand that is one value per partition, one value for all, or a number.
  // Tile values are read at once: the destination may be the same memory.
  struct Scalar {
    bool is_tile = false;
    Tile tile;
    float value = 0;
    std::array<float, partitions_max> values;
    float at(i64 p) const { return is_tile ? values[tile.partitions == 1 ? 0 : p] : value; }
    i64 integer(i64 p) const { return is_tile ? read_integer(tile, tile.partitions == 1 ? 0 : p) : i64(value); }
  };
  Scalar scalar(int n) const;
};

enum class ReduceCommand { idle, reset, reduce, reset_reduce, load_reduce };
ReduceCommand reduce_command(const std::string& text);

// Feeds rows into an accumulator register set and writes it out.
class Accumulator {
 public:
  Accumulator(std::array<float, partitions_max>& registers, Alu op, ReduceCommand command);
  void load(i64 p, float value) { registers_[p] = value; }
  void begin(i64 p);
  void feed(i64 p, const float* row, i64 n);
  float value(i64 p) const { return registers_[p]; }
  ReduceCommand command() const { return command_; }

 private:
  std::array<float, partitions_max>& registers_;
  Alu op_;
  ReduceCommand command_;
};

// clang-format off: it never settles on a layout of such a list
#define CORE_ROUTINES(X) \
  X(move_instruction) X(pointwise_instruction) X(reduce_instruction) X(select_instruction) X(search_instruction) \
  X(matmul_instruction) X(dma_instruction) X(random_instruction) X(gather_instruction) X(control_instruction) \
  X(mx_instruction)
// clang-format on
#define X(name) void name(Call& c);
CORE_ROUTINES(X)
#undef X

// Barriers, sendrecv and collectives whose partners have all arrived; false if nothing could be released.
bool release_waiting(std::vector<std::unique_ptr<Rank>>& ranks);
// dst = src, element by element in flattened order, converting; rows may be absent on either side.
void copy_elements(Core& core, const Tile& dst, const Tile& src);

}  // namespace core
