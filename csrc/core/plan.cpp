#include "core/plan.h"

#include <algorithm>
#include <bit>

namespace core {

namespace {

// Sum of (slot, coefficient) and a constant; fails over to `general`.
struct Linear {
  bool affine = true;
  i64 c = 0;
  std::map<i32, i64> terms;
};

Linear linear_of(const Program& p, const std::vector<i64>& symbols, i32 id) {
  const Expression& e = p.expressions[id];
  Linear r;
  switch (e.op) {
    case Node::constant:
      r.c = e.value;
      return r;
    case Node::symbol:
      r.c = symbols[e.a];
      return r;
    case Node::loop:
      r.terms[e.a] = 1;
      return r;
    case Node::reg:
      r.terms[p.loop_variables + e.a] = 1;
      return r;
    default:
      break;
  }
  const Linear a = linear_of(p, symbols, e.a), b = linear_of(p, symbols, e.b);
  if (!a.affine || !b.affine) return {false, 0, {}};
  if (e.op == Node::add) {
    r = a;
    r.c += b.c;
    for (auto [s, k] : b.terms)
      if (!(r.terms[s] += k)) r.terms.erase(s);
    return r;
  }
  if (e.op == Node::multiply && (a.terms.empty() || b.terms.empty())) {
    const Linear& x = b.terms.empty() ? a : b;
    const i64 k = b.terms.empty() ? b.c : a.c;
    if (k) {
      r.c = x.c * k;
      for (auto [s, q] : x.terms) r.terms[s] = q * k;
    }
    return r;
  }
  if (a.terms.empty() && b.terms.empty()) {
    if (b.c <= 0 && (e.op == Node::floor_div || e.op == Node::ceil_div || e.op == Node::modulo))
      fail(Category::configuration, "an index expression divides by " + std::to_string(b.c));
    r.c = apply(e.op, a.c, b.c);
    return r;
  }
  return {false, 0, {}};
}

}  // namespace

Quantity Plan::compile(i32 id) const {
  Quantity q;
  if (id < 0) return q;
  const Linear l = linear_of(*program, symbol_values, id);
  if (!l.affine || l.terms.size() > q.slot.size()) {
    q.general = id;
    return q;
  }
  q.c = l.c;
  for (auto [slot, k] : l.terms) {
    q.slot[q.terms] = slot;
    q.coefficient[q.terms++] = k;
  }
  return q;
}

i64 Plan::general_value(i32 id, const i64* slots_now) const {
  const Expression& e = program->expressions[id];
  switch (e.op) {
    case Node::constant:
      return e.value;
    case Node::symbol:
      return symbol_values[e.a];
    case Node::loop:
      return slots_now[e.a];
    case Node::reg:
      return slots_now[program->loop_variables + e.a];
    default:
      return apply(e.op, general_value(e.a, slots_now), general_value(e.b, slots_now));
  }
}

Plan::Plan(std::shared_ptr<const Program> p, const std::map<std::string, i64>& symbols)
    : program(std::move(p)), chip(find_chip(program->chip)) {
  for (const std::string& s : program->symbols) {
    auto it = symbols.find(s);
    if (it == symbols.end())
      fail(Category::configuration, "symbol '" + s + "' of program '" + program->name + "' has no value",
           "pass symbols={'" + s + "': ...}");
    symbol_values.push_back(it->second);
  }
  slots = program->loop_variables + i32(program->registers.size());
  explicit_order = has_semaphores(*program);
  for (const Buffer& b : program->buffers) {
    std::vector<i64> shape;
    i64 elements = 1;
    for (i32 s : b.shape) {
      const Quantity q = compile(s);
      if (!q.constant())
        fail(Category::configuration, "the shape of tensor '" + b.name + "' depends on a loop variable or register");
      if (q.c < 0) fail(Category::configuration, "tensor '" + b.name + "' has a negative dimension");
      shape.push_back(q.c);
      elements *= q.c;
    }
    const bool on_chip = b.space != Space::hbm;
    if (on_chip && (b.partition < 0 || b.byte < 0 || shape.empty() || b.partition + shape[0] > partitions_max))
      fail(Category::corrupt_file, "tensor '" + b.name + "' has no place in " + space_names[int(b.space)]);
    buffer_partitions.push_back(on_chip && !shape.empty() ? shape[0] : 1);
    buffer_bytes.push_back(size_of(b.dtype) * (on_chip && !shape.empty() && shape[0] ? elements / shape[0] : elements));
    buffer_shape.push_back(std::move(shape));
  }
  for (const Loop& l : program->loops)
    loops.push_back({l.kind, l.variable, l.condition, compile(l.start), compile(l.stop), compile(l.step)});
  accesses.resize(program->accesses.size());
  for (i32 i = 0; i < i32(accesses.size()); ++i) compile_access(i);
  compile_arguments();
  if (!program->registers.empty()) find_registers();
  for (const auto& steps : program->steps) {
    std::vector<CodeStep> out;
    std::vector<i32> open;
    for (const Step& s : steps) {
      CodeStep c{s.kind, s.index, -1};
      if (s.kind == StepKind::loop) open.push_back(i32(out.size()));
      if (s.kind == StepKind::end) {
        c.target = open.back();
        c.index = out[open.back()].index;
        out[open.back()].target = i32(out.size()) + 1;
        open.pop_back();
      }
      out.push_back(c);
    }
    code.push_back(std::move(out));
  }
}

// min(cap, total - step * variable) that stays at its cap over the whole loop is the cap: no last tile is ragged.
Quantity Plan::uncut(const Quantity& q) const {
  if (q.general < 0) return q;
  const Expression& e = program->expressions[q.general];
  if (e.op != Node::minimum) return q;
  Quantity cap = compile(e.a), rest = compile(e.b);
  if (!cap.constant()) std::swap(cap, rest);
  if (!cap.constant() || rest.general >= 0) return q;
  i64 least = rest.c;
  for (i32 t = 0; t < rest.terms; ++t) {
    const PlanLoop* loop = nullptr;
    for (const PlanLoop& l : loops)
      if (l.variable == rest.slot[t]) loop = &l;
    if (!loop || !loop->start.constant() || !loop->stop.constant() || !loop->step.constant() || loop->step.c <= 0)
      return q;
    if (loop->stop.c <= loop->start.c) continue;
    const i64 last = loop->start.c + (loop->stop.c - 1 - loop->start.c) / loop->step.c * loop->step.c;
    least += std::min(rest.coefficient[t] * loop->start.c, rest.coefficient[t] * last);
  }
  return least >= cap.c ? cap : q;
}

void Plan::compile_access(i32 id) {
  const Access& a = program->accesses[id];
  const Buffer& b = program->buffers[a.buffer];
  PlanAccess& p = accesses[id];
  p.buffer = a.buffer;
  p.space = b.space;
  p.dtype = a.dtype;
  p.bytes = size_of(a.dtype);
  p.dims = a.dims;
  p.row = b.space == Space::hbm ? 1 : std::max<i64>(1, buffer_bytes[a.buffer] / p.bytes);
  p.capacity = b.space == Space::hbm ? buffer_bytes[a.buffer] / p.bytes : p.row * buffer_partitions[a.buffer];
  p.offset = compile(a.offset);
  for (int d = 0; d < a.dims; ++d) {
    p.stride[d] = compile(a.stride[d]);
    p.count[d] = uncut(compile(a.count[d]));
    p.fixed = p.fixed && p.stride[d].constant() && p.count[d].constant();
  }
  p.scalar_access = a.scalar_access;
  p.vector_access = a.vector_access;
  p.has_scalar_value = a.scalar_expression >= 0;
  p.scalar_value = compile(a.scalar_expression);
  p.scalar_stride = compile(a.scalar_stride);
  p.vector_stride = compile(a.vector_stride);
  p.vector_bound = compile(a.vector_bound);
  p.indirect = a.scalar_access >= 0 || a.vector_access >= 0 || p.has_scalar_value;
}

void Plan::compile_arguments() {
  // Argument lists are interned, but what a text means depends on the parameter: decode per (opcode, list).
  std::map<std::pair<u16, i32>, std::pair<const PlanArgument*, i32>> known;
  for (i32 n = 0; n < i32(program->instructions.size()); ++n) {
    const Instruction& instruction = program->instructions[n];
    if (instruction.opcode >= opcode_count)
      fail(Category::corrupt_file, "instruction number " + std::to_string(instruction.opcode) + " does not exist");
    auto [it, fresh] = known.try_emplace({instruction.opcode, instruction.arguments});
    if (fresh) {
      const Definition& d = definition(Opcode(instruction.opcode));
      const auto& values = program->argument_lists[instruction.arguments];
      if (values.size() != d.parameters.size())
        fail(Category::corrupt_file,
             std::string(opcode_names[instruction.opcode]) + " has the wrong number of arguments");
      auto storage = std::make_unique<PlanArgument[]>(values.size());
      for (std::size_t i = 0; i < values.size(); ++i) {
        PlanArgument& a = storage[i];
        const Value& v = values[i];
        a.kind = v.kind;
        switch (v.kind) {
          case ValueKind::none:
            break;
          case ValueKind::integer:
          case ValueKind::boolean:
            a.number = double(v.payload);
            break;
          case ValueKind::real:
            a.number = std::bit_cast<double>(v.payload);
            break;
          case ValueKind::expression:
            a.index = i32(quantities.size());
            quantities.push_back(compile(i32(v.payload)));
            break;
          case ValueKind::text:
            a.index = i32(v.payload);
            if (d.parameters[i].role == Role::alu) a.number = double(alu_from_name(program->texts[a.index]));
            if (d.parameters[i].role == Role::activation)
              a.number = double(activation_from_name(program->texts[a.index]));
            break;
          default:
            a.index = i32(v.payload);
        }
      }
      it->second = {storage.get(), i32(values.size())};
      argument_storage_.push_back(std::move(storage));
    }
    instructions.push_back(
        {Opcode(instruction.opcode), Engine(instruction.engine), it->second.first, it->second.second, n});
  }
}

std::string Plan::describe(const PlanInstruction& i) const {
  const Instruction& raw = program->instructions[i.instruction];
  std::string s = opcode_names[int(i.opcode)];
  if (raw.name >= 0) s += " '" + program->texts[raw.name] + "'";
  return s;
}

bool Plan::has_fixed_shape(const PlanInstruction& i) const {
  for (i32 n = 0; n < i.argument_count; ++n)
    if (i.arguments[n].kind == ValueKind::access && !accesses[i.arguments[n].index].fixed)
      return false;
    else if (i.arguments[n].kind == ValueKind::list)
      for (const Value& v : program->lists[i.arguments[n].index])
        if (v.kind == ValueKind::access && !accesses[v.payload].fixed) return false;
  return true;
}

void Plan::shapes(const PlanInstruction& i, const i64* now, std::vector<ArgumentShape>& out) const {
  out.assign(i.argument_count, {});
  for (i32 n = 0; n < i.argument_count; ++n) {
    const PlanArgument& a = i.arguments[n];
    ArgumentShape& s = out[n];
    s.present = a.kind != ValueKind::none;
    s.number = a.number;
    if (a.kind == ValueKind::text) s.text = &program->texts[a.index];
    if (a.kind == ValueKind::list) s.take(program->lists[a.index]);
    if (a.kind != ValueKind::access) continue;
    const PlanAccess& p = accesses[a.index];
    s.access = true;
    s.space = p.space;
    s.dtype = p.dtype;
    s.partitions = p.dims ? value(p.count[0], now) : 1;
    s.elements = 1;
    for (int d = 1; d < p.dims; ++d) s.elements *= value(p.count[d], now);
    s.unit = p.dims < 2 || value(p.stride[p.dims - 1], now) == 1 || value(p.count[p.dims - 1], now) == 1;
  }
}

double formula_property(const Chip& chip, Opcode op, Engine engine, const std::vector<ArgumentShape>& shapes,
                        const std::string& property, const std::string& operand) {
  const Definition& d = definition(op);
  if (operand.empty()) {
    if (property == "N") {
      i64 n = 0;
      for (const auto& s : shapes)
        if (s.access) n = std::max(n, s.elements);
      return double(n);
    }
    if (property == "gen") return chip["generation"];
    if (property.rfind("on_", 0) == 0) return engine_names[int(engine)] == property.substr(3);
    if (property == "gather_cycles") {  // SDK 2.26: num_valid * npe / C
      auto of = [&](const char* name) -> const ArgumentShape& { return shapes[d.find(name)]; };
      const double npe = of("num_elem_per_idx").number, size = size_of(of("src_buffer").dtype);
      const double valid =
          of("num_valid_indices").present ? of("num_valid_indices").number : double(of("index").elements * 16);
      const double c = ((28 + 4 * npe) / (4 * npe)) / std::min(4.0 / size, npe);
      return valid * npe / c;
    }
    return chip[property];
  }
  const int n = d.find(operand);
  if (n < 0)
    fail(Category::configuration,
         std::string("a formula of ") + opcode_names[int(op)] + " names '" + operand + "', which is no operand");
  const ArgumentShape& s = shapes[n];
  if (property == "present") return s.access;
  if (property == "given") return s.present;
  if (property == "value" || property == "true") return s.number;
  if (property == "length") return double(s.length);
  if (property == "first") return double(s.item[0]);
  if (property == "second") return double(s.item[1]);
  auto text_is = [&](std::initializer_list<const char*> names) {
    if (s.text)
      for (const char* name : names)
        if (*s.text == name) return 1.0;
    return 0.0;
  };
  if (property == "plain") return text_is({"add", "subtract", "multiply"});
  if (property == "add_max") return text_is({"add", "maximum", "max"});
  if (property == "subtract") return text_is({"subtract"});
  if (property == "multiply") return text_is({"multiply"});
  if (property == "plain_copy") return text_is({"copy", "identity"});
  if (property == "double_row") return text_is({"double_row", "double_row_gen3", "double_column", "double_pixel"});
  if (!s.access) return 0;
  if (property == "partitions") return double(s.partitions);
  if (property == "elements" || property == "free") return double(s.elements);
  if (property == "total") return double(s.elements * s.partitions);
  if (property == "row") {
    // double_row holds two contraction rows side by side in the free dimension
    const int mode = d.find("perf_mode");
    const bool halves = mode >= 0 && shapes[mode].text && shapes[mode].text->rfind("double_row", 0) == 0;
    return double(s.elements / (halves ? 2 : 1));
  }
  if (property == "row_bytes") return double(s.elements * size_of(s.dtype));
  if (property == "bytes") return size_of(s.dtype);
  if (property == "sbuf") return s.space == Space::sbuf;
  if (property == "psum") return s.space == Space::psum;
  if (property == "hbm") return s.space == Space::hbm;
  if (property == "unit") return s.unit;
  if (property == "half") return is_16bit_float(s.dtype);
  if (property == "bf16") return s.dtype == Dtype::bfloat16;
  if (property == "f32") return s.dtype == Dtype::float32;
  if (property == "fp8") return is_float8(s.dtype);
  if (property == "packed") return is_packed(s.dtype);
  if (property == "integer") return is_integer(s.dtype);
  fail(Category::configuration, "unknown property '" + property + "' in a formula of " + opcode_names[int(op)]);
}

void check_limits(const Chip& chip, Opcode op, Engine engine, const std::vector<ArgumentShape>& shapes,
                  const std::string& name, const std::string& where) {
  const Definition& d = definition(op);
  auto complain = [&](Category c, const std::string& what, const std::string& cure = "") {
    throw Error(c, name + ": " + what, where, cure);
  };
  if (chip.generation() < d.generation)
    complain(Category::unsupported,
             "exists from generation " + std::to_string(d.generation) + " on, and " + chip.name + " is generation " +
                 std::to_string(chip.generation()),
             "choose a newer chip, or another instruction");
  for (std::size_t n = 0; n < shapes.size(); ++n) {
    const Parameter& p = d.parameters[n];
    const ArgumentShape& s = shapes[n];
    if (p.is_access() && !s.access && !(s.present && p.or_number) && !p.optional)
      complain(Category::configuration, "argument '" + p.name + "' is missing or not a tensor");
    if (!s.access) continue;
    if (!p.is_access()) complain(Category::configuration, "argument '" + p.name + "' must not be a tensor");
    if (!(p.spaces >> int(s.space) & 1))
      complain(Category::unsupported, "operand '" + p.name + "' may not be in " + space_names[int(s.space)]);
    if (s.partitions > partitions_max && s.space != Space::hbm)
      complain(Category::out_of_bounds,
               "operand '" + p.name + "' spans " + std::to_string(s.partitions) + " partitions; there are 128");
    const bool moves = d.dma || d.collective || op == Opcode::device_print || op == Opcode::core_barrier ||
                       op == Opcode::memset || op == Opcode::tensor_begin || op == Opcode::register_load;
    if (!moves && size_of(s.dtype) > 4)
      complain(
          Category::unsupported,
          "operand '" + p.name + "' is " + dtype_names[int(s.dtype)] + "; 8-byte elements can only be moved by DMA",
          "convert to a 32-bit dtype on the host");
  }
  auto property = [&](const std::string& what, const std::string& operand) {
    return formula_property(chip, op, engine, shapes, what, operand);
  };
  for (const auto& [formula, text] : d.limits)
    if (formula.evaluate(property) == 0) {
      std::string found;
      for (std::size_t n = 0; n < shapes.size(); ++n)
        if (shapes[n].access)
          found += (found.empty() ? "" : ", ") + d.parameters[n].name + " [" + std::to_string(shapes[n].partitions) +
                   " x " + std::to_string(shapes[n].elements) + "] " + dtype_names[int(shapes[n].dtype)] + " in " +
                   space_names[int(shapes[n].space)];
      complain(Category::unsupported, text + " (limit: " + formula.text() + "; found: " + found + ")",
               "docs/instructions.md lists the limits of " + std::string(opcode_names[int(op)]));
    }
}

double cycles_of(const Chip& chip, Opcode op, Engine engine, const std::vector<ArgumentShape>& shapes) {
  auto property = [&](const std::string& what, const std::string& operand) {
    return formula_property(chip, op, engine, shapes, what, operand);
  };
  for (const auto& [when, cost] : definition(op).cycles)
    if (when.evaluate(property) != 0) return cost.evaluate(property);
  return 0;
}

u64 shape_signature(Opcode op, Engine engine, const std::vector<ArgumentShape>& shapes) {
  u64 h = (u64(op) << 8 | u64(engine)) * 0x9E3779B97F4A7C15ULL;
  auto mix = [&](u64 x) {
    h = (h ^ x) * 0xff51afd7ed558ccdULL;
    h ^= h >> 32;
  };
  for (const ArgumentShape& s : shapes) {
    if (s.access) {
      mix((u64(s.unit) << 60 | u64(s.space) << 56 | u64(s.dtype) << 48 | u64(s.partitions) << 36) ^ u64(s.elements));
      continue;
    }
    mix(s.present + 2);
    if (s.length) mix(u64(s.length) << 56 ^ u64(s.item[0]) << 24 ^ u64(s.item[1]));
    if (s.text)
      mix(std::hash<std::string>()(*s.text));
    else if (s.present)
      mix(std::bit_cast<u64>(s.number));
  }
  return h;
}

void check_partition_start(i64 start, i64 partitions, const char* operand) {
  const i64 step = partitions > 64 ? 128 : partitions > 32 ? 64 : 32;
  if (start % step || start + partitions > partitions_max)
    fail(Category::unsupported,
         std::string("operand '") + operand + "' starts at partition " + std::to_string(start) + " with " +
             std::to_string(partitions) + " partitions",
         "more than 64 partitions start at 0, 33 to 64 at 0 or 64, up to 32 at 0, 32, 64 or 96");
}

bool check_constant_access(const Program& program, const Access& a, const char* operand, bool dma, bool bounds) {
  const ExpressionTable& e = program.expressions;
  const Buffer& buffer = program.buffers[a.buffer];
  if (!e.is_constant(a.offset) || a.scalar_access >= 0 || a.scalar_expression >= 0 || a.vector_access >= 0)
    return false;
  i64 capacity = size_of(buffer.dtype), row = 1;
  for (std::size_t d = 0; d < buffer.shape.size(); ++d) {
    if (!e.is_constant(buffer.shape[d])) return false;
    capacity *= e.value(buffer.shape[d]);
  }
  capacity /= size_of(a.dtype);
  if (buffer.space != Space::hbm) row = std::max<i64>(1, capacity / std::max<i64>(1, e.value(buffer.shape[0])));
  const i64 offset = e.value(a.offset);
  i64 low = offset, high = offset, free_high = 0;
  for (int d = 0; d < a.dims; ++d) {
    if (!e.is_constant(a.stride[d]) || !e.is_constant(a.count[d])) return false;
    const i64 reach = e.value(a.stride[d]) * (e.value(a.count[d]) - 1);
    if (e.value(a.count[d]) <= 0) return true;
    (reach < 0 ? low : high) += reach;
    if (d) free_high += std::max<i64>(0, reach);
  }
  const std::string name = std::string("operand '") + operand + "'";
  const bool on_chip = buffer.space != Space::hbm;
  if (on_chip && bounds && low >= 0 && offset % row + free_high >= row)
    fail(Category::out_of_bounds,
         name + " reaches element " + std::to_string(offset % row + free_high) + " of a partition of tensor '" +
             buffer.name + "', which has " + std::to_string(row) + " elements per partition",
         "check the offset and the counts of the access pattern");
  if (bounds && (low < 0 || high >= capacity))
    fail(Category::out_of_bounds,
         name + " reaches element " + std::to_string(low < 0 ? low : high) + " of tensor '" + buffer.name +
             "', which has " + std::to_string(capacity),
         "check the offset and the counts of the access pattern");
  if (!on_chip || !bounds) return true;
  if (a.dims && e.value(a.count[0]) > 1 && e.value(a.stride[0]) % row)
    fail(Category::unsupported,
         name + ": the partition stride " + std::to_string(e.value(a.stride[0])) + " is not a multiple of the " +
             std::to_string(row) + " elements per partition of tensor '" + buffer.name + "'",
         "the first entry of an on-chip pattern walks over partitions");
  if (!dma)
    check_partition_start(std::max(0, buffer.partition) + offset / row, a.dims ? e.value(a.count[0]) : 1, operand);
  return true;
}

void Plan::verify() const {
  const std::vector<i64> zeros(slots, 0);
  std::vector<ArgumentShape> s;
  std::unordered_set<u64> seen;
  for (const PlanInstruction& i : instructions) {
    const Definition& d = def(i);
    const bool skips = d.find("oob_mode") >= 0 && i.arguments[d.find("oob_mode")].kind == ValueKind::text &&
                       program->texts[i.arguments[d.find("oob_mode")].index] == "skip";
    const bool free_start = d.dma || d.collective || i.opcode == Opcode::tensor_begin ||
                            i.opcode == Opcode::device_print || i.opcode == Opcode::register_load ||
                            i.opcode == Opcode::register_store;
    for (i32 n = 0; n < i.argument_count; ++n) {
      if (i.arguments[n].kind != ValueKind::access) continue;
      try {
        check_constant_access(*program, program->accesses[i.arguments[n].index], d.parameters[n].name.c_str(),
                              free_start, !skips);
      } catch (Error& e) {
        throw Error(e.category, describe(i) + ": " + e.what(), where(i), e.cure);
      }
    }
    if (!has_fixed_shape(i)) continue;  // its limits are checked as it runs, with the counts it then has
    shapes(i, zeros.data(), s);
    if (seen.insert(shape_signature(i.opcode, i.engine, s)).second) check_limits(i, s);
  }
}

}  // namespace core
