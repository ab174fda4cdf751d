// Program for Python: bytes, tables (for the text form), verification.
#include <bit>

#include "core/python/binding.h"

namespace core::python {

std::shared_ptr<Plan> PyProgram::plan(const std::map<std::string, i64>& symbols) {
  std::map<std::string, i64> used;
  for (const std::string& s : program->symbols)
    if (auto it = symbols.find(s); it != symbols.end()) used[s] = it->second;
  auto& p = plans[used];
  if (!p) {
    if (plans.size() > 64) {
      plans.clear();
      return plans[used] = std::make_shared<Plan>(program, used);
    }
    p = std::make_shared<Plan>(program, used);
  }
  return p;
}

namespace {

py::list values_list(const std::vector<std::vector<Value>>& lists) {
  py::list out;
  for (const auto& l : lists) {
    py::list one;
    for (const Value& v : l) {
      if (v.kind == ValueKind::real)
        one.append(py::make_tuple(int(v.kind), std::bit_cast<double>(v.payload)));
      else
        one.append(py::make_tuple(int(v.kind), v.payload));
    }
    out.append(one);
  }
  return out;
}

py::dict tables(const PyProgram& self) {
  const Program& p = *self.program;
  py::dict d;
  d["name"] = p.name;
  d["chip"] = p.chip;
  d["cores"] = p.cores;
  d["loop_variables"] = p.loop_variables;
  d["texts"] = p.texts;
  d["symbols"] = p.symbols;
  d["registers"] = p.registers;
  py::list expressions, buffers, accesses, sources, instructions, loops, steps;
  for (i32 i = 0; i < p.expressions.size(); ++i) {
    const Expression& e = p.expressions[i];
    expressions.append(py::make_tuple(int(e.op), e.a, e.b, e.value));
  }
  for (const Buffer& b : p.buffers)
    buffers.append(py::make_tuple(b.name, int(b.space), int(b.kind), int(b.dtype), b.core, b.shape, b.partition, b.byte,
                                  b.pinned, b.copies,
                                  py::bytes(reinterpret_cast<const char*>(b.data.data()), b.data.size())));
  for (const Access& a : p.accesses) {
    py::list dims;
    for (int i = 0; i < a.dims; ++i) dims.append(py::make_tuple(a.stride[i], a.count[i]));
    accesses.append(py::make_tuple(a.buffer, int(a.dtype), a.offset, dims, a.scalar_access, a.scalar_expression,
                                   a.scalar_stride, a.vector_access, a.vector_stride, a.vector_bound));
  }
  for (const Source& s : p.sources) sources.append(py::make_tuple(s.file, s.line));
  for (const Instruction& i : p.instructions)
    instructions.append(py::make_tuple(opcode_names[i.opcode], int(i.engine), i.arguments, i.source, i.name));
  for (const Loop& l : p.loops)
    loops.append(py::make_tuple(l.variable, l.start, l.stop, l.step, l.condition, int(l.kind), l.source));
  for (const auto& core : p.steps) {
    py::list one;
    for (const Step& s : core) one.append(py::make_tuple(int(s.kind), s.index));
    steps.append(one);
  }
  d["expressions"] = expressions;
  d["buffers"] = buffers;
  d["accesses"] = accesses;
  d["lists"] = values_list(p.lists);
  d["arguments"] = values_list(p.argument_lists);
  d["sources"] = sources;
  d["instructions"] = instructions;
  d["loops"] = loops;
  d["steps"] = steps;
  return d;
}

std::vector<Value> values_from(py::handle list) {
  std::vector<Value> out;
  for (py::handle h : list) {
    auto pair = py::reinterpret_borrow<py::tuple>(h);
    Value v{ValueKind(pair[0].cast<int>()), 0};
    v.payload = v.kind == ValueKind::real ? std::bit_cast<i64>(pair[1].cast<double>()) : pair[1].cast<i64>();
    out.push_back(v);
  }
  return out;
}

// The inverse of tables(); the ids may be in any order, the result is compacted.
PyProgram assemble(const py::dict& d) {
  Program p;
  p.name = d["name"].cast<std::string>();
  p.chip = find_chip(d["chip"].cast<std::string>()).name;
  p.cores = d["cores"].cast<int>();
  p.loop_variables = d["loop_variables"].cast<int>();
  for (py::handle t : d["texts"]) p.intern_text(t.cast<std::string>());
  p.symbols = d["symbols"].cast<std::vector<std::string>>();
  p.registers = d["registers"].cast<std::vector<std::string>>();
  for (py::handle h : d["expressions"]) {
    auto e = h.cast<std::tuple<int, int, int, i64>>();
    p.expressions.append_raw({Node(std::get<0>(e)), std::get<1>(e), std::get<2>(e), std::get<3>(e)});
  }
  for (py::handle h : d["buffers"]) {
    auto t = py::reinterpret_borrow<py::tuple>(h);
    Buffer b;
    b.name = t[0].cast<std::string>();
    b.space = Space(t[1].cast<int>());
    b.kind = BufferKind(t[2].cast<int>());
    b.dtype = Dtype(t[3].cast<int>());
    b.core = t[4].cast<int>();
    b.shape = t[5].cast<std::vector<i32>>();
    b.partition = t[6].cast<int>();
    b.byte = t[7].cast<i64>();
    b.pinned = t[8].cast<bool>();
    b.copies = t[9].cast<int>();
    const std::string data = t[10].cast<std::string>();
    b.data.assign(data.begin(), data.end());
    p.buffers.push_back(std::move(b));
  }
  for (py::handle h : d["accesses"]) {
    auto t = py::reinterpret_borrow<py::tuple>(h);
    Access a;
    a.buffer = t[0].cast<int>();
    a.dtype = Dtype(t[1].cast<int>());
    a.offset = t[2].cast<int>();
    for (py::handle x : t[3]) {
      auto pair = x.cast<std::pair<i32, i32>>();
      a.stride[a.dims] = pair.first;
      a.count[a.dims++] = pair.second;
    }
    a.scalar_access = t[4].cast<int>();
    a.scalar_expression = t[5].cast<int>();
    a.scalar_stride = t[6].cast<int>();
    a.vector_access = t[7].cast<int>();
    a.vector_stride = t[8].cast<int>();
    a.vector_bound = t[9].cast<int>();
    p.intern_access(a);
  }
  for (py::handle l : d["lists"]) p.intern_list(values_from(l));
  for (py::handle l : d["arguments"]) p.intern_arguments(values_from(l));
  for (py::handle h : d["sources"]) {
    auto s = h.cast<std::pair<i32, i32>>();
    p.intern_source({s.first, s.second});
  }
  for (py::handle h : d["instructions"]) {
    auto t = py::reinterpret_borrow<py::tuple>(h);
    Instruction i;
    const int op = opcode_from_name(t[0].cast<std::string>());
    if (op < 0) fail(Category::unsupported, "'" + t[0].cast<std::string>() + "' is not an instruction");
    i.opcode = u16(op);
    i.engine = u8(t[1].cast<int>());
    i.arguments = t[2].cast<int>();
    i.source = t[3].cast<int>();
    i.name = t[4].cast<int>();
    p.instructions.push_back(i);
  }
  for (py::handle h : d["loops"]) {
    auto t = h.cast<std::tuple<int, int, int, int, int, int, int>>();
    p.loops.push_back({std::get<0>(t), std::get<1>(t), std::get<2>(t), std::get<3>(t), std::get<4>(t),
                       LoopKind(std::get<5>(t)), std::get<6>(t)});
  }
  for (py::handle core : d["steps"]) {
    p.steps.emplace_back();
    for (py::handle h : core) {
      auto s = h.cast<std::pair<int, int>>();
      p.steps.back().push_back({StepKind(s.first), s.second});
    }
  }
  PyProgram result;
  result.program = compacted(Program::from_bytes(p.to_bytes()));  // with every check of a file
  return result;
}

i64 dynamic_count(PyProgram& self, const std::map<std::string, i64>& symbols) {
  const auto plan = self.plan(symbols);
  std::vector<i64> slots(plan->slots, 0);
  i64 total = 0;
  for (const auto& code : plan->code) {
    // nested constant loops multiply; others are walked
    auto walk = [&](auto&& recurse, std::size_t from, std::size_t to) -> i64 {
      i64 n = 0;
      for (std::size_t s = from; s < to; ++s) {
        if (code[s].kind == StepKind::instruction) {
          if (plan->instructions[code[s].index].opcode != Opcode::tensor_begin) ++n;
          continue;
        }
        if (code[s].kind != StepKind::loop) continue;
        const PlanLoop& l = plan->loops[code[s].index];
        const std::size_t end = code[s].target - 1;
        if (l.kind == LoopKind::while_register) {
          n += recurse(recurse, s + 1, end);
          s = end;
          continue;
        }
        const i64 start = plan->value(l.start, slots.data()), stop = plan->value(l.stop, slots.data()),
                  step = std::max<i64>(1, plan->value(l.step, slots.data()));
        bool simple = true;
        for (std::size_t k = s + 1; k < end; ++k)
          if (code[k].kind == StepKind::loop) {
            const PlanLoop& q = plan->loops[code[k].index];
            simple = simple && q.start.constant() && q.stop.constant();
          }
        if (simple) {
          slots[l.variable] = start;
          n += (stop > start ? ceil_div(stop - start, step) : 0) * recurse(recurse, s + 1, end);
        } else
          for (i64 v = start; v < stop; v += step) {
            slots[l.variable] = v;
            n += recurse(recurse, s + 1, end);
          }
        s = end;
      }
      return n;
    };
    total += walk(walk, 0, code.size());
  }
  return total;
}

}  // namespace

void register_program(py::module_& m) {
  using P = PyProgram&;
  py::class_<PyProgram>(m, "ProgramBase")
      .def("to_bytes", [](P p) { return py::bytes(p.program->to_bytes()); })
      .def_static("from_bytes",
                  [](const py::bytes& b) {
                    PyProgram r;
                    r.program = std::make_shared<Program>(Program::from_bytes(std::string(b)));
                    return r;
                  })
      .def("tables", &tables)
      .def_static("assemble", &assemble)
      .def(
          "verify", [](P p, const std::map<std::string, i64>& symbols) { p.plan(symbols)->verify(); },
          py::arg("symbols") = std::map<std::string, i64>{})
      .def("dynamic_count", &dynamic_count, py::arg("symbols") = std::map<std::string, i64>{})
      .def_property_readonly("name", [](P p) { return p.program->name; })
      .def_property_readonly("chip", [](P p) { return p.program->chip; })
      .def_property_readonly("cores", [](P p) { return p.program->cores; })
      .def_property_readonly("symbols", [](P p) { return p.program->symbols; })
      .def_property_readonly("instruction_count",
                             [](P p) {
                               i64 n = 0;
                               for (const Instruction& i : p.program->instructions)
                                 n += Opcode(i.opcode) != Opcode::tensor_begin;
                               return n;
                             })
      .def("_buffers", [](P p) {
        auto q = std::const_pointer_cast<Program>(p.program);
        py::list out;
        for (i32 i = 0; i < i32(q->buffers.size()); ++i) out.append(PyTensor{q, i});
        return out;
      });
}

}  // namespace core::python
