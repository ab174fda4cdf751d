// Program: the one form in which eager ops, compiled graphs and NKI kernels reach the core.
//
// A program holds, per core, a flat list of nodes (instructions, loop begins, ends) that spells a loop tree, and tables
// that the fixed-size instruction records point into.
#pragma once
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/expression.h"
#include "core/types.h"

namespace core {

enum class BufferKind : u8 { input, output, inout, internal, private_scratch, constant, tile };
inline constexpr std::array<const char*, 7> buffer_kind_names = {"input",   "output",   "inout", "internal",
                                                                 "private", "constant", "tile"};

struct Buffer {
  std::string name;
  Space space = Space::hbm;
  BufferKind kind = BufferKind::tile;
  Dtype dtype = Dtype::float32;
  i32 core = -1;           // owner; -1: shared by all cores
  std::vector<i32> shape;  // expressions
  i32 partition = -1;      // SBUF/PSUM: address; -1: not placed yet
  i64 byte = -1;
  bool pinned = false;
  i32 copies = 1;        // places in a row that a tile of a loop rotates through (time only)
  i64 released_at = -1;  // node position where its life was said to end (builder only)
  std::vector<u8> data;  // constants
};

inline constexpr int access_dims_max = 5;

// `.ap()` of NKI: offset and strides count elements of `dtype` in the flattened base storage.
struct Access {
  i32 buffer = -1;
  Dtype dtype = Dtype::float32;
  u8 dims = 0;
  i32 offset = -1;
  std::array<i32, access_dims_max> stride{-1, -1, -1, -1, -1};
  std::array<i32, access_dims_max> count{-1, -1, -1, -1, -1};
  i32 scalar_access = -1, scalar_expression = -1, scalar_stride = -1;
  i32 vector_access = -1, vector_stride = -1, vector_bound = -1;
  bool operator==(const Access&) const = default;
};

enum class ValueKind : u8 { none, access, integer, real, expression, text, list, boolean };

// One argument of an instruction; `payload` is an id, an integer, or the bits of a double.
struct Value {
  ValueKind kind = ValueKind::none;
  i64 payload = 0;
  bool operator==(const Value&) const = default;
};

struct Instruction {
  u16 opcode = 0;
  u8 engine = 0;  // resolved Engine
  u8 reserved = 0;
  i32 arguments = 0;  // index into argument_lists
  i32 source = -1;
  i32 name = -1;
  bool operator==(const Instruction&) const = default;
};

enum class LoopKind : u8 { affine, sequential, dynamic, unrolled, while_register };
inline constexpr std::array<const char*, 5> loop_kind_names = {"affine", "sequential", "dynamic", "unrolled", "while"};

struct Loop {
  i32 variable = -1;  // index into loop variables; for a while loop unused
  i32 start = -1, stop = -1, step = -1;
  i32 condition = -1;  // register of a while loop
  LoopKind kind = LoopKind::sequential;
  i32 source = -1;
};

// The last three exist only while a program is built: the bounds of Python-unrolled loops.
enum class StepKind : u8 { instruction, loop, end, unroll_begin, unroll_iteration, unroll_end };

struct Step {
  StepKind kind = StepKind::instruction;
  i32 index = -1;
};

struct Source {
  i32 file = -1, line = 0;
  bool operator==(const Source&) const = default;
};

struct Symbol {
  std::string name;
};

template <class T>
struct Interner {
  std::vector<T> items;
  std::unordered_map<std::string, i32> index;  // key: raw bytes
};

class Program {
 public:
  std::string name, chip;
  i32 cores = 1;
  i32 loop_variables = 0;
  std::vector<std::string> texts;
  std::vector<std::string> symbols;
  std::vector<std::string> registers;
  ExpressionTable expressions;
  std::vector<Buffer> buffers;
  std::vector<Access> accesses;
  std::vector<std::vector<Value>> lists;
  std::vector<std::vector<Value>> argument_lists;
  std::vector<Source> sources;
  std::vector<Instruction> instructions;
  std::vector<Loop> loops;
  std::vector<std::vector<Step>> steps;  // per core

  i32 intern_text(const std::string& s);
  i32 intern_access(const Access& a);
  i32 intern_list(const std::vector<Value>& v);
  i32 intern_arguments(const std::vector<Value>& v);
  i32 intern_source(const Source& s);
  // As the two above, without a look for an equal one: while a program is built, most are new (`compacted` interns).
  i32 add_access(const Access& a);
  i32 add_arguments(const std::vector<Value>& v);

  std::string where(i32 source) const;  // "file.py:12", "" where unknown
  std::string to_bytes() const;
  static Program from_bytes(const std::string& bytes);

 private:
  struct ValuesHash {
    std::size_t operator()(const std::vector<Value>& v) const;
  };
  struct AccessHash {
    std::size_t operator()(const Access& a) const;
  };
  struct SourceHash {
    std::size_t operator()(const Source& s) const { return std::hash<i64>()((i64(s.file) << 32) | s.line); }
  };
  std::unordered_map<std::string, i32> text_index_;
  std::unordered_map<Access, i32, AccessHash> access_index_;
  std::unordered_map<std::vector<Value>, i32, ValuesHash> list_index_, argument_index_;
  std::unordered_map<Source, i32, SourceHash> source_index_;
};

bool has_semaphores(const Program& p);

}  // namespace core
