// The instruction table as the core sees it: loaded once from src/opentrn/core/data/instructions.toml by the Python
// side.
#pragma once
#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/types.h"

namespace core {

// clang-format off: it never settles on a layout of such a list
#define CORE_INSTRUCTIONS(X) \
  X(tensor_begin) X(memset) X(iota) X(tensor_copy) X(tensor_copy_dynamic_src) X(tensor_copy_dynamic_dst) \
  X(tensor_copy_predicated) X(tensor_tensor) X(tensor_scalar) X(tensor_scalar_reduce) \
  X(tensor_scalar_cumulative) X(scalar_tensor_tensor) X(tensor_tensor_scan) X(tensor_reduce) \
  X(tensor_partition_reduce) X(activation) X(activation_reduce) X(activate2) X(exponential) X(reciprocal) \
  X(dropout) X(rng) X(rand2) X(set_rng_seed) X(rand_get_state) X(rand_set_state) X(select_reduce) \
  X(range_select) X(affine_select) X(bn_stats) X(bn_aggr) X(max8) X(nc_find_index8) X(nc_match_replace8) X(topk) \
  X(nc_stream_shuffle) X(nc_transpose) X(nc_matmul) X(nc_matmul_mx) X(quantize_mx) X(local_gather) \
  X(nc_n_gather) X(nonzero_with_count) X(sequence_bounds) X(dma_copy) X(dma_transpose) X(dma_compute) \
  X(sendrecv) X(core_barrier) X(semaphore_signal) X(semaphore_wait) X(register_load) X(register_move) \
  X(register_store) X(device_print) X(rank_id) X(all_reduce) X(all_gather) X(reduce_scatter) X(all_to_all) \
  X(collective_permute)
// clang-format on

enum class Opcode : u16 {
#define X(name) name,
  CORE_INSTRUCTIONS(X)
#undef X
      count
};
inline constexpr int opcode_count = int(Opcode::count);
extern const std::array<const char*, opcode_count> opcode_names;

enum class Role : u8 {
  write,
  read,
  update,
  accumulate,
  begin,
  any,
  alu,
  activation,
  number,
  boolean,
  list,
  text,
  reg,
  engine
};

struct Parameter {
  std::string name;
  Role role = Role::read;
  u8 spaces = 0;  // bit per Space
  bool or_number = false;
  bool optional = false;
  int kind_of_default = 0;  // 0 none given, 1 none, 2 number, 3 text, 4 bool
  double number_default = 0;
  std::string text_default;
  bool is_access() const { return role <= Role::any; }
};

// A condition or a cost: numbers, variables, + - * / %, comparisons, and/or/not, min max ceil floor. Undefined operands
// count as 0.
class Formula {
 public:
  Formula() = default;
  explicit Formula(const std::string& text);
  double evaluate(const std::function<double(const std::string& property, const std::string& operand)>& variable) const;
  const std::string& text() const { return text_; }

 private:
  struct Node {
    int op;
    double value;
    int a, b;
    std::string property, operand;
  };
  std::string text_;
  std::vector<Node> nodes_;
  int root_ = -1;
  double run(int node, const std::function<double(const std::string&, const std::string&)>& variable) const;
  friend struct FormulaParser;
};

struct Definition {
  bool known = false;
  std::vector<Parameter> parameters;
  std::vector<Engine> engines;
  int generation = 2;
  bool dma = false, collective = false;
  std::vector<std::pair<Formula, std::string>> limits;
  std::vector<std::pair<Formula, Formula>> cycles;
  std::vector<std::pair<Formula, Engine>> compiler_engines;  // where the classic compiler puts it, engine open
  int find(const std::string& parameter) const;
};

Definition& definition(Opcode op);
int opcode_from_name(const std::string& name);  // -1: unknown

// Constants of one core of one chip; filled from data/core_timing.toml and opentrn.chips.
struct Chip {
  std::string name;
  std::unordered_map<std::string, double> values;
  double operator[](const std::string& key) const;
  int generation() const { return int((*this)["generation"]); }
};
void define_chip(const Chip& chip);
const Chip& find_chip(const std::string& name);

}  // namespace core
