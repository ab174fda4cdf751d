// What nothing has written: elements of outputs, and registers.
#include <cstring>
#include <set>

#include "core/machine.h"

namespace core {

void fill_unwritten(u8* at, u64 bytes, Dtype dtype) {
  if (!is_integer(dtype)) {
    std::memset(at, 0xff, bytes);
    return;
  }
  const i64 four = 4;
  for (u64 i = 0; i + size_of(dtype) <= bytes; i += size_of(dtype))
    store_integers(dtype, &four, 1, at + i, size_of(dtype));
}

std::vector<u8> settle_unwritten(const Region& r, Dtype dtype) {
  if (all_written(r, 0, r.size)) return {};
  const i64 bytes = size_of(dtype);
  std::vector<u8> fill(bytes), written(r.size / bytes, 1);
  fill_unwritten(fill.data(), u64(bytes), dtype);
  for (u64 i = 0; i < written.size(); ++i) {
    const u64 at = i * bytes;
    if (all_written(r, at, u64(bytes))) continue;
    written[i] = 0;
    for (i64 k = 0; k < bytes; ++k)
      if (!all_written(r, at + k, 1)) r.base[at + k] = fill[k];
  }
  return written;
}

namespace {

void registers_in(const Program& p, i32 expression, std::set<i32>& out) {
  if (expression < 0) return;
  const Expression& e = p.expressions[expression];
  if (e.op == Node::reg) out.insert(e.a);
  if (e.op < Node::add) return;
  registers_in(p, e.a, out);
  registers_in(p, e.b, out);
}

void registers_in_access(const Program& p, i32 access, std::set<i32>& out) {
  if (access < 0) return;
  const Access& a = p.accesses[access];
  for (const i32 e : {a.offset, a.scalar_expression, a.scalar_stride, a.vector_stride, a.vector_bound})
    registers_in(p, e, out);
  for (int d = 0; d < a.dims; ++d) {
    registers_in(p, a.stride[d], out);
    registers_in(p, a.count[d], out);
  }
  registers_in_access(p, a.scalar_access, out);
  registers_in_access(p, a.vector_access, out);
}

void registers_in_value(const Program& p, const Value& v, std::set<i32>& out) {
  if (v.kind == ValueKind::expression) registers_in(p, i32(v.payload), out);
  if (v.kind == ValueKind::access) registers_in_access(p, i32(v.payload), out);
  if (v.kind == ValueKind::list)
    for (const Value& w : p.lists[v.payload]) registers_in_value(p, w, out);
}

}  // namespace

void Plan::find_registers() {
  const Program& p = *program;
  for (const PlanInstruction& i : instructions) {
    std::set<i32> read;
    const std::vector<Value>& given = p.argument_lists[p.instructions[i.instruction].arguments];
    for (std::size_t n = 0; n < given.size(); ++n)
      if (definition(i.opcode).parameters[n].role != Role::reg) registers_in_value(p, given[n], read);
    registers_read.emplace_back(read.begin(), read.end());
  }
  for (const Loop& l : p.loops) {
    std::set<i32> read;
    for (const i32 e : {l.start, l.stop, l.step}) registers_in(p, e, read);
    if (l.condition >= 0) read.insert(l.condition);
    loop_registers.emplace_back(read.begin(), read.end());
  }
}

void check_registers(Core& core, const std::vector<i32>& read) {
  for (const i32 r : read)
    if (!core.register_written[r])
      fail(Category::undefined_behaviour,
           "reads register '" + core.plan().program->registers[r] + "', which nothing has written",
           "give it a value first: nisa.register_alloc(0), register_move or register_load");
}

void check_loop_registers(Core& core, i32 loop) {
  const Plan& plan = core.plan();
  try {
    check_registers(core, plan.loop_registers[loop]);
  } catch (const Error& e) {
    throw Error(e.category, std::string("a loop ") + e.what(), plan.program->where(plan.program->loops[loop].source),
                e.cure);
  }
}

}  // namespace core
