// Builds programs: tensors, accesses, instructions, loops; folds unrolled iterations; places tensors.
#pragma once
#include <set>
#include <unordered_set>

#include "core/carried.h"
#include "core/plan.h"

namespace core {

class Builder {
 public:
  Builder(const std::string& chip, int cores, const std::string& name);
  std::shared_ptr<Program> program;
  bool compiler_engines = false;  // open engines are chosen as the classic compiler does, by the instruction table
  CarriedDependences carried;

  void select_core(int core);
  void set_source(const std::string& file, int line) { set_source(program->intern_text(file), line); }
  void set_source(i32 file, int line) { set_source(program->intern_source({file, line})); }  // file: text id
  void set_source(i32 source) { source_ = source; }
  i32 current_source_id() const { return source_; }
  Source current_source() const { return source_ < 0 ? Source{} : program->sources[source_]; }
  i32 hbm(const std::string& name, std::vector<i32> shape, Dtype dtype, BufferKind kind, std::vector<u8> data);
  i32 tile(Space space, const std::string& name, std::vector<i32> shape, Dtype dtype, i32 partition, i64 byte,
           bool pinned);
  void begin(i32 buffer);
  void release(i32 buffer);
  i32 whole(i32 buffer);  // access of the whole tensor
  void emit(Opcode op, const std::vector<Value>& arguments, i32 name);
  i32 loop_begin(i32 start, i32 stop, i32 step, LoopKind kind);  // returns the expression of the variable
  void while_begin(i32 reg);
  void loop_end();
  void unroll_begin();
  void unroll_iteration();
  void unroll_end();
  std::shared_ptr<Program> finish(bool capacity);
  std::shared_ptr<Program> snapshot(bool capacity) const;  // the program so far; the builder goes on
  void set_kind(i32 buffer, BufferKind kind);
  i32 add_register(const std::string& name);
  i32 add_symbol(const std::string& name);
  const std::string place() const { return program->where(source_); }

 private:
  int core_ = 0;
  i32 source_ = -1;
  bool finished_ = false;
  std::vector<std::vector<i32>> open_loops_;  // per core
  std::vector<i32> unrolled_;                 // open unrolled loops, per core
  std::unordered_set<u64> verified_;
  const Chip* chip_ = nullptr;
  std::array<i64, 2> capacity_{};      // bytes per partition of SBUF and PSUM
  std::vector<ArgumentShape> shapes_;  // of the instruction being emitted
  std::vector<u8> known_functions_;    // by text: bit 0 an ALU operation, bit 1 an activation function
  void check_function(Role role, i32 text);
  std::shared_ptr<Program> complete(Program& p, bool capacity) const;  // folds and places `p`, the result is compact
  Engine choose_engine(Opcode op, const std::vector<Value>& arguments, const std::vector<ArgumentShape>& shapes) const;
};

// Replaces the marks of unrolled loops: equal iterations become a loop, others stay as they are.
void fold_unrolled(Program& program);
// Gives every unplaced tensor an address (SBUF and PSUM of each core); CapacityError names the holders. Without
// `capacity` they may reach beyond the chip's memory.
void place_tensors(Program& program, bool capacity);
// Bytes between two places of a tile that rotates.
inline i64 place_bytes(Space space, i64 bytes) {
  const i64 size = (bytes + 63) / 64 * 64;
  return space == Space::psum && size > 1024 ? (size + 2047) / 2048 * 2048 : size;
}
// Drops what no step refers to and numbers the rest by first use: equal programs, equal bytes.
std::shared_ptr<Program> compacted(const Program& program);

}  // namespace core
