#include "core/builder.h"

#include <algorithm>
#include <bit>

namespace core {

Builder::Builder(const std::string& chip, int cores, const std::string& name) : program(std::make_shared<Program>()) {
  if (cores != 1 && cores != 2)
    fail(Category::configuration, "a logical core has 1 or 2 cores, not " + std::to_string(cores));
  chip_ = &find_chip(chip);
  capacity_ = {i64((*chip_)["sbuf_bytes_per_partition"]), i64((*chip_)["psum_bytes_per_partition"])};
  program->chip = chip_->name;
  program->name = name;
  program->cores = cores;
  program->steps.resize(cores);
  open_loops_.resize(cores);
  unrolled_.assign(cores, 0);
}

void Builder::select_core(int core) {
  if (core < 0 || core >= program->cores)
    fail(Category::configuration,
         "core " + std::to_string(core) + " of a program with " + std::to_string(program->cores));
  core_ = core;
}

i32 Builder::hbm(const std::string& name, std::vector<i32> shape, Dtype dtype, BufferKind kind, std::vector<u8> data) {
  for (i32 i = 0; i < i32(program->buffers.size()); ++i) {
    const Buffer& b = program->buffers[i];
    if (b.space != Space::hbm || b.name != name || b.kind != kind ||
        (kind == BufferKind::private_scratch && b.core != core_))
      continue;
    if (kind == BufferKind::private_scratch) break;
    if (b.shape != shape || b.dtype != dtype)
      throw Error(Category::configuration, "HBM tensor '" + name + "' exists with another shape or dtype", place(),
                  "give it another name");
    if (b.data != data)
      throw Error(Category::configuration, "constant '" + name + "' exists with other values", place(),
                  "give it another name");
    return i;
  }
  Buffer b;
  b.name = name;
  b.kind = kind;
  b.dtype = dtype;
  b.shape = std::move(shape);
  b.core = kind == BufferKind::private_scratch ? core_ : -1;
  b.data = std::move(data);
  program->buffers.push_back(std::move(b));
  return i32(program->buffers.size()) - 1;
}

i32 Builder::tile(Space space, const std::string& name, std::vector<i32> shape, Dtype dtype, i32 partition, i64 byte,
                  bool pinned) {
  Buffer b;
  b.name = name;
  b.space = space;
  b.dtype = dtype;
  b.core = core_;
  b.pinned = pinned;
  if (shape.empty()) throw Error(Category::configuration, "tensor '" + name + "' has no partition dimension", place());
  i64 row = size_of(dtype), partitions = 0;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    if (!program->expressions.is_constant(shape[d]))
      throw Error(Category::configuration, "the shape of on-chip tensor '" + name + "' is not constant", place());
    (d ? row : partitions) = d ? row * program->expressions.value(shape[d]) : program->expressions.value(shape[0]);
  }
  const i64 capacity = capacity_[space == Space::sbuf ? 0 : 1];
  const char* where = space_names[int(space)];
  if (partitions < 1 || partitions > partitions_max)
    throw Error(Category::capacity,
                "tensor '" + name + "' has " + std::to_string(partitions) + " partitions; " + where + " has 128",
                place(), "tile the first dimension");
  if (row > capacity)
    throw Error(Category::capacity,
                "tensor '" + name + "' needs " + std::to_string(row) + " bytes per partition; " + where + " has " +
                    std::to_string(capacity),
                place(), "tile the free dimensions");
  if (pinned) {
    if (partition < 0 || partition + partitions > partitions_max || byte < 0 || byte + row > capacity)
      throw Error(Category::out_of_bounds,
                  "tensor '" + name + "' is pinned at partition " + std::to_string(partition) + ", byte " +
                      std::to_string(byte) + " and ends at partition " + std::to_string(partition + partitions) +
                      ", byte " + std::to_string(byte + row) + "; " + where + " has 128 partitions of " +
                      std::to_string(capacity) + " bytes",
                  place());
    b.partition = partition;
    b.byte = byte;
  }
  b.shape = std::move(shape);
  program->buffers.push_back(std::move(b));
  const i32 id = i32(program->buffers.size()) - 1;
  begin(id);
  return id;
}

i32 Builder::whole(i32 id) {
  Program& p = *program;
  const Buffer& b = p.buffers[id];
  Access a;
  a.buffer = id;
  a.dtype = b.dtype;
  a.offset = p.expressions.constant(0);
  // More than five dimensions of a contiguous tensor merge into the last one.
  const int dims = std::min<int>(access_dims_max, std::max<int>(1, int(b.shape.size())));
  i32 stride = p.expressions.constant(1);
  a.dims = u8(dims);
  i32 last = p.expressions.constant(1);
  for (int d = int(b.shape.size()) - 1; d >= dims - 1 && d >= 0; --d)
    last = p.expressions.binary(Node::multiply, last, b.shape[d]);
  a.count[dims - 1] = last;
  a.stride[dims - 1] = stride;
  for (int d = dims - 2; d >= 0; --d) {
    stride = p.expressions.binary(Node::multiply, stride, d == dims - 2 ? last : b.shape[d + 1]);
    a.stride[d] = stride;
    a.count[d] = b.shape[d];
  }
  if (b.space != Space::hbm && dims == 1) a.stride[0] = p.expressions.constant(1);
  return p.add_access(a);
}

void Builder::begin(i32 buffer) { emit(Opcode::tensor_begin, {{ValueKind::access, whole(buffer)}}, -1); }

void Builder::release(i32 buffer) { program->buffers[buffer].released_at = i64(program->steps[core_].size()); }

Engine Builder::choose_engine(Opcode op, const std::vector<Value>& arguments,
                              const std::vector<ArgumentShape>& s) const {
  const Definition& d = definition(op);
  const int at = d.find("engine");
  std::string wanted =
      at >= 0 && arguments[at].kind == ValueKind::text ? program->texts[arguments[at].payload] : "unknown";
  for (const char* suffix : {"_engine"})
    if (wanted.size() > 7 && wanted.ends_with(suffix)) wanted.resize(wanted.size() - 7);
  if (wanted != "unknown" && wanted != "none") {
    for (Engine e : d.engines)
      if (wanted == engine_names[int(e)]) return e;
    if (d.dma && wanted == "dma") return d.engines[0];
    std::string allowed;
    for (Engine e : d.engines) allowed += (allowed.empty() ? "" : ", ") + std::string(engine_names[int(e)]);
    throw Error(Category::unsupported,
                std::string(opcode_names[int(op)]) + ": engine '" + wanted + "' cannot execute it", place(),
                "use one of: " + allowed);
  }
  if (compiler_engines && !d.compiler_engines.empty()) {
    auto property = [&](const std::string& what, const std::string& operand) {
      return formula_property(*chip_, op, Engine::unknown, s, what, operand);
    };
    for (const auto& [when, engine] : d.compiler_engines)
      if (when.evaluate(property) != 0) return engine;
  }
  if (op == Opcode::tensor_tensor) {
    bool integer = true, psum = false;
    for (int n = 0; n < 3; ++n) {
      integer = integer && (s[n].dtype == Dtype::int32 || s[n].dtype == Dtype::uint32);
      psum = psum || s[n].space == Space::psum;
    }
    const std::string& alu = s[3].text ? *s[3].text : d.parameters[3].name;
    const bool bitwise = s[3].text && is_bitwise(alu_from_name(alu));
    if (!psum && ((integer && !bitwise) || alu == "power" || alu == "pow")) return Engine::gpsimd;
  }
  if (op == Opcode::nc_transpose) return s[0].space == Space::psum ? Engine::tensor : Engine::vector;
  return d.engines[0];
}

// Throws where a text names no operation of that role; each text is looked up once.
void Builder::check_function(Role role, i32 text) {
  if (role != Role::alu && role != Role::activation) return;
  const u8 bit = role == Role::alu ? 1 : 2;
  if (std::size_t(text) >= known_functions_.size()) known_functions_.resize(program->texts.size());
  if (known_functions_[text] & bit) return;
  role == Role::alu ? void(alu_from_name(program->texts[text])) : void(activation_from_name(program->texts[text]));
  known_functions_[text] |= bit;
}

void Builder::emit(Opcode op, const std::vector<Value>& arguments, i32 name) {
  Program& p = *program;
  if (finished_) fail(Category::configuration, "the program is finished");
  const Definition& d = definition(op);
  if (!d.known) fail(Category::configuration, std::string(opcode_names[int(op)]) + " is not in the instruction table");
  std::vector<ArgumentShape>& shapes = shapes_;
  shapes.assign(arguments.size(), ArgumentShape{});
  bool constant = true;
  const bool free_start = d.dma || d.collective || op == Opcode::tensor_begin || op == Opcode::device_print ||
                          op == Opcode::register_load || op == Opcode::register_store;
  bool skips = false;
  for (std::size_t n = 0; n < arguments.size(); ++n)
    if (arguments[n].kind == ValueKind::text && p.texts[arguments[n].payload] == "skip") skips = true;
  auto described = [&] { return std::string(opcode_names[int(op)]) + (name >= 0 ? " '" + p.texts[name] + "'" : ""); };
  for (std::size_t n = 0; n < arguments.size(); ++n) {
    const Value& v = arguments[n];
    ArgumentShape& s = shapes[n];
    s.present = v.kind != ValueKind::none;
    if (v.kind == ValueKind::integer || v.kind == ValueKind::boolean) s.number = double(v.payload);
    if (v.kind == ValueKind::real) s.number = std::bit_cast<double>(v.payload);
    if (v.kind == ValueKind::text) {
      s.text = &p.texts[v.payload];
      try {
        check_function(d.parameters[n].role, i32(v.payload));
      } catch (const Error& e) {
        throw Error(e.category, described() + ": " + d.parameters[n].name + ": " + e.what(), place(), e.cure);
      }
    }
    if (v.kind == ValueKind::list) s.take(p.lists[v.payload]);
    if (v.kind != ValueKind::access) continue;
    const Access& a = p.accesses[v.payload];
    const ExpressionTable& e = p.expressions;
    s.access = true;
    s.space = p.buffers[a.buffer].space;
    s.dtype = a.dtype;
    s.elements = 1;
    s.partitions = 1;
    for (int k = 0; k < a.dims; ++k) {
      if (!e.is_constant(a.count[k])) {
        constant = false;
        continue;
      }
      (k ? s.elements : s.partitions) = k ? s.elements * e.value(a.count[k]) : e.value(a.count[k]);
    }
    s.unit = a.dims < 2 || (e.is_constant(a.stride[a.dims - 1]) && e.value(a.stride[a.dims - 1]) == 1);
    if (p.buffers[a.buffer].space != Space::hbm && p.buffers[a.buffer].core != core_)
      throw Error(Category::configuration,
                  described() + ": tensor '" + p.buffers[a.buffer].name + "' belongs to core " +
                      std::to_string(p.buffers[a.buffer].core) + ", the instruction to core " + std::to_string(core_),
                  place());
    try {
      check_constant_access(p, a, d.parameters[n].name.c_str(), free_start, !skips);
    } catch (const Error& error) {
      throw Error(error.category, described() + ": " + error.what(), place(), error.cure);
    }
  }
  if (carried.active()) carried.note(p, op, arguments, source_);
  const Engine engine = choose_engine(op, arguments, shapes);
  if (constant && verified_.insert(shape_signature(op, engine, shapes)).second)
    check_limits(*chip_, op, engine, shapes, described(), place());
  Instruction i;
  i.opcode = u16(op);
  i.engine = u8(engine);
  i.arguments = p.add_arguments(arguments);
  i.source = source_;
  i.name = name;
  p.instructions.push_back(i);
  p.steps[core_].push_back({StepKind::instruction, i32(p.instructions.size()) - 1});
}

i32 Builder::loop_begin(i32 start, i32 stop, i32 step, LoopKind kind) {
  Program& p = *program;
  Loop l;
  l.variable = p.loop_variables++;
  l.start = start;
  l.stop = stop;
  l.step = step;
  l.kind = kind;
  l.source = source_;
  p.loops.push_back(l);
  open_loops_[core_].push_back(i32(p.loops.size()) - 1);
  p.steps[core_].push_back({StepKind::loop, i32(p.loops.size()) - 1});
  return p.expressions.leaf(Node::loop, l.variable);
}

void Builder::while_begin(i32 reg) {
  Loop l;
  l.condition = reg;
  l.kind = LoopKind::while_register;
  l.source = source_;
  program->loops.push_back(l);
  open_loops_[core_].push_back(i32(program->loops.size()) - 1);
  program->steps[core_].push_back({StepKind::loop, i32(program->loops.size()) - 1});
}

void Builder::loop_end() {
  if (open_loops_[core_].empty()) fail(Category::configuration, "loop_end without a loop");
  program->steps[core_].push_back({StepKind::end, open_loops_[core_].back()});
  open_loops_[core_].pop_back();
}

i32 Builder::add_register(const std::string& name) {
  program->registers.push_back(name);
  return program->expressions.leaf(Node::reg, i32(program->registers.size()) - 1);
}

i32 Builder::add_symbol(const std::string& name) {
  for (i32 i = 0; i < i32(program->symbols.size()); ++i)
    if (program->symbols[i] == name) return program->expressions.leaf(Node::symbol, i);
  program->symbols.push_back(name);
  return program->expressions.leaf(Node::symbol, i32(program->symbols.size()) - 1);
}

void Builder::unroll_begin() {
  ++unrolled_[core_];
  program->steps[core_].push_back({StepKind::unroll_begin, -1});
}
void Builder::unroll_iteration() {
  if (unrolled_[core_]) program->steps[core_].push_back({StepKind::unroll_iteration, -1});
}
void Builder::unroll_end() {
  if (!unrolled_[core_]) fail(Category::configuration, "unroll_end without unroll_begin");
  --unrolled_[core_];
  program->steps[core_].push_back({StepKind::unroll_end, -1});
}

void Builder::set_kind(i32 buffer, BufferKind kind) {
  Buffer& b = program->buffers[buffer];
  if (b.space != Space::hbm || kind == BufferKind::tile || kind == BufferKind::constant ||
      b.kind == BufferKind::constant)
    throw Error(Category::configuration, "tensor '" + b.name + "' cannot become " + buffer_kind_names[int(kind)],
                place());
  b.kind = kind;
  b.core = kind == BufferKind::private_scratch ? core_ : -1;
}

std::shared_ptr<Program> Builder::complete(Program& p, bool capacity) const {
  if (finished_) fail(Category::configuration, "the program is finished");
  for (const auto& loops : open_loops_)
    if (!loops.empty()) fail(Category::configuration, "a loop is not closed", "call loop_end for each loop_begin");
  for (std::size_t core = 0; core < p.steps.size(); ++core)
    for (i32 k = 0; k < unrolled_[core]; ++k) p.steps[core].push_back({StepKind::unroll_end, -1});
  fold_unrolled(p);
  place_tensors(p, capacity);
  auto result = compacted(p);
  if (result->symbols.empty()) Plan(result, {}).verify();
  return result;
}

std::shared_ptr<Program> Builder::snapshot(bool capacity) const {
  Program copy = *program;
  return complete(copy, capacity);
}

std::shared_ptr<Program> Builder::finish(bool capacity) {
  for (i32 open : unrolled_)
    if (open) fail(Category::configuration, "an unrolled loop is not closed", "call unroll_end for each unroll_begin");
  auto result = complete(*program, capacity);
  finished_ = true;
  // Tensors of the builder outlive it in what a kernel returned; its instructions need not.
  program->instructions = {};
  program->argument_lists = {};
  program->steps.assign(program->steps.size(), {});
  return result;
}

}  // namespace core
