#include "core/instructions.h"

#include "core/order.h"

#include <bit>

namespace core {

namespace {
using Routine = void (*)(Call&);
Routine routine_of(Opcode op) {
  switch (op) {
    case Opcode::tensor_begin:
    case Opcode::memset:
    case Opcode::iota:
    case Opcode::tensor_copy:
    case Opcode::tensor_copy_dynamic_src:
    case Opcode::tensor_copy_dynamic_dst:
    case Opcode::tensor_copy_predicated:
    case Opcode::nc_stream_shuffle:
    case Opcode::nc_transpose:
      return move_instruction;
    case Opcode::tensor_tensor:
    case Opcode::tensor_scalar:
    case Opcode::scalar_tensor_tensor:
    case Opcode::activation:
    case Opcode::activation_reduce:
    case Opcode::activate2:
    case Opcode::exponential:
    case Opcode::reciprocal:
    case Opcode::tensor_scalar_reduce:
      return pointwise_instruction;
    case Opcode::tensor_reduce:
    case Opcode::tensor_partition_reduce:
    case Opcode::bn_stats:
    case Opcode::bn_aggr:
    case Opcode::tensor_tensor_scan:
    case Opcode::tensor_scalar_cumulative:
      return reduce_instruction;
    case Opcode::select_reduce:
    case Opcode::range_select:
    case Opcode::affine_select:
      return select_instruction;
    case Opcode::max8:
    case Opcode::nc_find_index8:
    case Opcode::nc_match_replace8:
    case Opcode::topk:
    case Opcode::nonzero_with_count:
    case Opcode::sequence_bounds:
      return search_instruction;
    case Opcode::nc_matmul:
      return matmul_instruction;
    case Opcode::nc_matmul_mx:
    case Opcode::quantize_mx:
      return mx_instruction;
    case Opcode::dma_copy:
    case Opcode::dma_transpose:
    case Opcode::dma_compute:
      return dma_instruction;
    case Opcode::dropout:
    case Opcode::rng:
    case Opcode::rand2:
    case Opcode::set_rng_seed:
    case Opcode::rand_get_state:
    case Opcode::rand_set_state:
      return random_instruction;
    case Opcode::local_gather:
    case Opcode::nc_n_gather:
      return gather_instruction;
    default:
      return control_instruction;
  }
}
const auto routines = [] {
  std::array<Routine, opcode_count> r{};
  for (int i = 0; i < opcode_count; ++i) r[i] = routine_of(Opcode(i));
  return r;
}();
}  // namespace

void execute_instruction(Core& core, const PlanInstruction& i) {
  if (core.order) core.order->before(core, i);
  Call c(core, i);
  routines[int(i.opcode)](c);
}

i64 Call::number_of(const Value& v) const {
  if (v.kind == ValueKind::expression) {
    const i32 id = i32(v.payload);
    return core.plan().program->expressions.evaluate(id, [&](Node op, i32 index) {
      return op == Node::symbol ? core.plan().symbol_values[index]
                                : core.slots[op == Node::loop ? index : core.plan().program->loop_variables + index];
    });
  }
  return v.kind == ValueKind::real ? i64(std::bit_cast<double>(v.payload)) : v.payload;
}

double Call::real_of(const Value& v) const {
  return v.kind == ValueKind::real ? std::bit_cast<double>(v.payload) : double(number_of(v));
}

Call::Scalar Call::scalar(int n) const {
  Scalar s;
  if (is_tile(n)) {
    s.is_tile = true;
    s.tile = tile(n);
    for (i64 p = 0; p < std::min<i64>(s.tile.partitions, partitions_max); ++p) s.values[p] = read_float(s.tile, p);
  } else
    s.value = float(number(n));
  return s;
}

ReduceCommand reduce_command(const std::string& text) {
  if (text == "idle" || text.empty()) return ReduceCommand::idle;
  if (text == "reset") return ReduceCommand::reset;
  if (text == "reduce") return ReduceCommand::reduce;
  if (text == "reset_reduce") return ReduceCommand::reset_reduce;
  if (text == "load_reduce") return ReduceCommand::load_reduce;
  fail(Category::configuration, "'" + text + "' is not a reduce_cmd",
       "use idle, reset, reduce, reset_reduce or load_reduce");
}

Accumulator::Accumulator(std::array<float, partitions_max>& registers, Alu op, ReduceCommand command)
    : registers_(registers), op_(op), command_(command) {}

void Accumulator::begin(i64 p) {
  if (command_ == ReduceCommand::reset || command_ == ReduceCommand::reset_reduce) registers_[p] = alu_identity(op_);
}

void Accumulator::feed(i64 p, const float* row, i64 n) {
  if (command_ == ReduceCommand::reduce || command_ == ReduceCommand::reset_reduce ||
      command_ == ReduceCommand::load_reduce)
    registers_[p] = alu_reduce(op_, row, n, registers_[p]);
}

}  // namespace core
