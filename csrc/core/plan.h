// A program with its symbols bound: every index affine in loop variables and registers, every argument decoded once.
// Both visitors (values and time) and the verifier read plans.
#pragma once
#include <memory>
#include <unordered_set>

#include "core/alu.h"
#include "core/program.h"
#include "core/table.h"

namespace core {

// c + sum coefficient * variable, or a general expression where that is not enough (minimum, //, %).
struct Quantity {
  i64 c = 0;
  i32 terms = 0, general = -1;
  std::array<i32, 4> slot{};
  std::array<i64, 4> coefficient{};
  bool constant() const { return terms == 0 && general < 0; }
};

struct PlanAccess {
  i32 buffer = -1;
  Space space = Space::hbm;
  Dtype dtype = Dtype::float32;
  i32 bytes = 4, dims = 0;
  i64 row = 1;       // on chip: elements per partition of the tensor, in this dtype
  i64 capacity = 0;  // elements in all
  Quantity offset;
  std::array<Quantity, access_dims_max> stride, count;
  bool fixed = true;  // strides and counts are constants
  bool indirect = false;
  i32 scalar_access = -1, vector_access = -1;
  Quantity scalar_value, scalar_stride, vector_stride, vector_bound;
  bool has_scalar_value = false;
};

struct PlanArgument {
  ValueKind kind = ValueKind::none;
  double number = 0;  // integer, real, boolean, or the token code (Alu, Activation)
  i32 index = -1;     // access, quantity, list or text id
};

struct PlanInstruction {
  Opcode opcode;
  Engine engine;
  const PlanArgument* arguments;
  i32 argument_count;
  i32 instruction;  // index in the program
};

struct CodeStep {
  StepKind kind;
  i32 index;   // plan instruction or loop
  i32 target;  // loop: position after its end; end: position of its loop
};

struct PlanLoop {
  LoopKind kind;
  i32 variable = -1, condition = -1;
  Quantity start, stop, step;
};

// What a formula may ask of one argument.
struct ArgumentShape {
  bool present = false, access = false, unit = false;
  Space space = Space::hbm;
  Dtype dtype = Dtype::float32;
  i64 partitions = 0, elements = 0;
  double number = 0;
  const std::string* text = nullptr;
  i64 length = 0;             // of a list
  std::array<i64, 2> item{};  // its first two entries, where they are integers
  void take(const std::vector<Value>& list) {
    length = i64(list.size());
    for (std::size_t i = 0; i < 2 && i < list.size(); ++i)
      if (list[i].kind == ValueKind::integer) item[i] = list[i].payload;
  }
};

// Throws where an instruction breaks a documented limit.
void check_limits(const Chip& chip, Opcode op, Engine engine, const std::vector<ArgumentShape>& shapes,
                  const std::string& name, const std::string& where);
double formula_property(const Chip& chip, Opcode op, Engine engine, const std::vector<ArgumentShape>& shapes,
                        const std::string& property, const std::string& operand);
double cycles_of(const Chip& chip, Opcode op, Engine engine, const std::vector<ArgumentShape>& shapes);
// Equal for instructions that no limit and no cost formula can tell apart.
u64 shape_signature(Opcode op, Engine engine, const std::vector<ArgumentShape>& shapes);
// Bounds and partition starts of an access whose indices are all constant; true if they were.
bool check_constant_access(const Program& program, const Access& a, const char* operand, bool dma, bool bounds);

class Plan {
 public:
  Plan(std::shared_ptr<const Program> program, const std::map<std::string, i64>& symbols);

  std::shared_ptr<const Program> program;
  const Chip& chip;
  std::vector<i64> symbol_values;
  i32 slots = 0;  // loop variables, then registers
  std::vector<PlanAccess> accesses;
  std::vector<Quantity> quantities;
  std::vector<PlanInstruction> instructions;
  std::vector<PlanLoop> loops;
  std::vector<std::vector<CodeStep>> code;  // per core
  // Registers that each instruction and the head of each loop read; nothing for programs without registers.
  std::vector<std::vector<i32>> registers_read, loop_registers;
  std::vector<std::vector<i64>> buffer_shape;
  std::vector<i64> buffer_bytes;  // HBM: in all; on chip: per partition
  std::vector<i64> buffer_partitions;
  bool explicit_order = false;                // semaphores of the program, not derived dependences, order its engines
  mutable std::shared_ptr<void> time_tables;  // made by the first time_plan

  i64 value(const Quantity& q, const i64* slots_now) const {
    i64 v = q.c;
    for (i32 i = 0; i < q.terms; ++i) v += q.coefficient[i] * slots_now[q.slot[i]];
    if (q.general >= 0) v += general_value(q.general, slots_now);
    return v;
  }
  Quantity compile(i32 expression) const;
  std::string describe(const PlanInstruction& i) const;  // "tensor_copy" or "tensor_copy 'name'"
  std::string where(const PlanInstruction& i) const {
    return program->where(program->instructions[i.instruction].source);
  }
  const Definition& def(const PlanInstruction& i) const { return definition(i.opcode); }

  // Shapes of every argument with counts as they are at `slots_now` (nullptr: unknown counts count as their maximum).
  void shapes(const PlanInstruction& i, const i64* slots_now, std::vector<ArgumentShape>& out) const;
  void check_limits(const PlanInstruction& i, const std::vector<ArgumentShape>& shapes) const {
    core::check_limits(chip, i.opcode, i.engine, shapes, describe(i), where(i));
  }
  bool has_fixed_shape(const PlanInstruction& i) const;
  // Verifies the limits and, where indices are constant, bounds and partition starts. Throws core::Error.
  void verify() const;

 private:
  i64 general_value(i32 expression, const i64* slots_now) const;
  std::vector<std::unique_ptr<PlanArgument[]>> argument_storage_;
  std::vector<i32> argument_counts_;
  void compile_access(i32 id);
  Quantity uncut(const Quantity& q) const;
  void compile_arguments();
  void find_registers();
};

// Names where an access leaves its tensor or breaks the partition-start rule; throws.
void check_partition_start(i64 start, i64 partitions, const char* operand);

}  // namespace core
