// Builder, tensors, accesses and expressions for Python.
#include "core/python/builder.h"

namespace core::python {

PyObject *expression_type = nullptr, *access_type = nullptr, *tensor_type = nullptr;

i32 expression_of(Program& p, py::handle h) {
  PyObject* o = h.ptr();
  if (PyLong_Check(o)) return p.expressions.constant(PyLong_AsLongLong(o));
  if (is_a(o, expression_type)) return as<PyExpression>(o)->id;
  if (PyIndex_Check(o)) {
    py::object i = py::reinterpret_steal<py::object>(PyNumber_Index(o));
    return p.expressions.constant(PyLong_AsLongLong(i.ptr()));
  }
  fail(Category::configuration,
       "'" + std::string(Py_TYPE(o)->tp_name) + "' is neither an integer nor an index expression",
       "pass an int or an Expr of this builder");
}

namespace {

py::object combine(Node op, const PyExpression& a, py::handle b, bool reversed = false) {
  Program& p = *a.program;
  const i32 other = expression_of(p, b);
  return expression_object(a.program,
                           reversed ? p.expressions.binary(op, other, a.id) : p.expressions.binary(op, a.id, other));
}

py::tuple shape_tuple(const std::shared_ptr<Program>& p, const std::vector<i32>& shape) {
  py::tuple out(shape.size());
  for (std::size_t i = 0; i < shape.size(); ++i) out[i] = expression_object(p, shape[i]);
  return out;
}

}  // namespace

py::object expression_object(const std::shared_ptr<Program>& program, i32 id) {
  if (program->expressions.is_constant(id)) return py::int_(program->expressions.value(id));
  return py::cast(PyExpression{program, id});
}

void PyBuilder::take_views(py::object converter, py::set storages, py::str package, i64 instructions_max) {
  convert = std::move(converter);
  written = std::move(storages);
  package_ = std::move(package);
  instructions_max_ = instructions_max;
}

std::vector<i32> PyBuilder::shape_of(py::handle shape) {
  std::vector<i32> out;
  for (py::handle s : shape) out.push_back(expression_of(*b.program, s));
  return out;
}

PyTensor PyBuilder::hbm(const std::string& name, py::handle shape, const std::string& dtype, const std::string& kind,
                        py::handle data) {
  auto it = std::find(buffer_kind_names.begin(), buffer_kind_names.end(), kind);
  if (it == buffer_kind_names.end() || kind == "tile")
    throw Error(Category::configuration, "'" + kind + "' is not a kind of HBM tensor", b.place(),
                "use input, output, inout, internal, private or constant");
  std::vector<u8> bytes;
  if (!data.is_none()) {
    py::buffer_info info = py::reinterpret_borrow<py::array>(data).request();
    bytes.assign(static_cast<const u8*>(info.ptr), static_cast<const u8*>(info.ptr) + info.size * info.itemsize);
  } else if (kind == "constant") {
    throw Error(Category::configuration, "constant '" + name + "' has no data", b.place());
  }
  return {b.program, b.hbm(name, shape_of(shape), dtype_from_name(dtype), BufferKind(it - buffer_kind_names.begin()),
                           std::move(bytes))};
}

LoopKind PyBuilder::loop_kind(const std::string& kind) {
  auto it = std::find(loop_kind_names.begin(), loop_kind_names.end(), kind);
  if (it == loop_kind_names.end() || kind == "while")
    throw Error(Category::configuration, "'" + kind + "' is not a kind of loop", b.place(),
                "use affine, sequential or dynamic");
  return LoopKind(it - loop_kind_names.begin());
}

void register_builder(py::module_& m) {
  py::class_<PyExpression> expression(m, "Expr");
  expression_type = expression.ptr();
  using E = const PyExpression&;
  expression.def("__add__", [](E a, py::handle b) { return combine(Node::add, a, b); })
      .def("__radd__", [](E a, py::handle b) { return combine(Node::add, a, b); })
      .def("__sub__",
           [](E a, py::handle b) {
             Program& p = *a.program;
             const i32 n = p.expressions.binary(Node::multiply, expression_of(p, b), p.expressions.constant(-1));
             return expression_object(a.program, p.expressions.binary(Node::add, a.id, n));
           })
      .def("__rsub__",
           [](E a, py::handle b) {
             Program& p = *a.program;
             const i32 n = p.expressions.binary(Node::multiply, a.id, p.expressions.constant(-1));
             return expression_object(a.program, p.expressions.binary(Node::add, n, expression_of(p, b)));
           })
      .def("__mul__", [](E a, py::handle b) { return combine(Node::multiply, a, b); })
      .def("__rmul__", [](E a, py::handle b) { return combine(Node::multiply, a, b); })
      .def("__neg__", [](E a) { return combine(Node::multiply, a, py::int_(-1)); })
      .def("__floordiv__", [](E a, py::handle b) { return combine(Node::floor_div, a, b); })
      .def("__mod__", [](E a, py::handle b) { return combine(Node::modulo, a, b); })
      .def("__eq__",
           [](E a, py::handle b) {
             return is_a(b.ptr(), expression_type) && as<PyExpression>(b.ptr())->id == a.id &&
                    as<PyExpression>(b.ptr())->program == a.program;
           })
      .def("__hash__", [](E a) { return a.id; })
      .def("__bool__",
           [](E) -> bool {
             fail(Category::unsupported, "an index expression has no value while the program is built",
                  "branch on Python numbers; a dynamic condition needs a while loop");
           })
      .def("__index__",
           [](E) -> i64 {
             fail(Category::unsupported, "an index expression has no value while the program is built",
                  "use it in offsets and loop bounds only");
           })
      .def_property_readonly("id", [](E a) { return a.id; })
      .def_property_readonly("register_index", [](E a) {
        const Expression& e = a.program->expressions[a.id];
        return e.op == Node::reg ? e.a : -1;
      });

  py::class_<PyTensor> tensor(m, "Tensor");
  tensor_type = tensor.ptr();
  using T = const PyTensor&;
  auto buffer = [](T t) -> const Buffer& { return t.program->buffers[t.id]; };
  tensor.def_readonly("id", &PyTensor::id)
      .def_property_readonly("name", [=](T t) { return buffer(t).name; })
      .def_property_readonly("space", [=](T t) { return space_names[int(buffer(t).space)]; })
      .def_property_readonly("kind", [=](T t) { return buffer_kind_names[int(buffer(t).kind)]; })
      .def_property_readonly("dtype", [=](T t) { return dtype_names[int(buffer(t).dtype)]; })
      .def_property_readonly("shape", [=](T t) { return shape_tuple(t.program, buffer(t).shape); })
      .def_property_readonly("core", [=](T t) { return buffer(t).core; })
      .def_property_readonly("address",
                             [=](T t) -> py::object {
                               const Buffer& b = buffer(t);
                               if (b.byte < 0) return py::none();
                               return py::make_tuple(b.partition, b.byte);
                             })
      .def_property_readonly("partition_bytes",
                             [=](T t) -> i64 {
                               const Buffer& b = buffer(t);
                               i64 n = size_of(b.dtype);
                               for (std::size_t d = 1; d < b.shape.size(); ++d)
                                 n *= t.program->expressions.value(b.shape[d]);
                               return n;
                             })
      .def("__eq__",
           [](T a, py::handle b) {
             return is_a(b.ptr(), tensor_type) && as<PyTensor>(b.ptr())->id == a.id &&
                    as<PyTensor>(b.ptr())->program == a.program;
           })
      .def("__hash__", [](T a) { return a.id; })
      .def("__repr__", [=](T t) {
        return "Tensor(" + buffer(t).name + ", " + space_names[int(buffer(t).space)] + ", " +
               dtype_names[int(buffer(t).dtype)] + ")";
      });

  py::class_<PyAccess> access(m, "Access");
  access_type = access.ptr();
  using A = const PyAccess&;
  access.def_readonly("id", &PyAccess::id)
      .def_property_readonly("tensor", [](A a) { return PyTensor{a.program, a.program->accesses[a.id].buffer}; })
      .def_property_readonly("dtype", [](A a) { return dtype_names[int(a.program->accesses[a.id].dtype)]; })
      .def_property_readonly("offset",
                             [](A a) { return expression_object(a.program, a.program->accesses[a.id].offset); })
      .def_property_readonly("shape",
                             [](A a) {
                               const Access& x = a.program->accesses[a.id];
                               return shape_tuple(a.program,
                                                  std::vector<i32>(x.count.begin(), x.count.begin() + x.dims));
                             })
      .def_property_readonly("pattern",
                             [](A a) {
                               const Access& x = a.program->accesses[a.id];
                               py::list out;
                               for (int d = 0; d < x.dims; ++d)
                                 out.append(py::make_tuple(expression_object(a.program, x.stride[d]),
                                                           expression_object(a.program, x.count[d])));
                               return out;
                             })
      .def_property_readonly("elements",
                             [](A a) {
                               const Access& x = a.program->accesses[a.id];
                               i32 n = a.program->expressions.constant(1);
                               for (int d = 1; d < x.dims; ++d)
                                 n = a.program->expressions.binary(Node::multiply, n, x.count[d]);
                               return expression_object(a.program, n);
                             })
      .def_property_readonly("count", [](A a) {
        const Access& x = a.program->accesses[a.id];
        i32 n = a.program->expressions.constant(1);
        for (int d = 0; d < x.dims; ++d) n = a.program->expressions.binary(Node::multiply, n, x.count[d]);
        return expression_object(a.program, n);
      });

  using B = PyBuilder&;
  py::class_<PyBuilder> builder(m, "BuilderBase");
  add_emit(builder);
  builder
      .def(py::init<const std::string&, int, const std::string&>(), py::arg("chip"), py::arg("cores") = 1,
           py::arg("name") = "program")
      .def("core", [](B b, int k) { b.b.select_core(k); })
      .def_property(
          "compiler_engines", [](B b) { return b.b.compiler_engines; }, [](B b, bool on) { b.b.compiler_engines = on; })
      .def("source", [](B b, const std::string& file, int line) { b.b.set_source(file, line); })
      .def("hbm", &PyBuilder::hbm, py::arg("name"), py::arg("shape"), py::arg("dtype"), py::arg("kind") = "input",
           py::arg("data") = py::none())
      .def("begin", [](B b, T t) { b.b.begin(t.id); })
      .def("release", [](B b, T t) { b.b.release(t.id); })
      .def("take_views", &PyBuilder::take_views, py::arg("convert"), py::arg("written"), py::arg("package"),
           py::arg("instructions_max"))
      .def_property_readonly("line",
                             [](B b) -> py::object {
                               const Source s = b.b.current_source();
                               if (s.file < 0) return py::make_tuple("", 0);
                               return py::make_tuple(b.b.program->texts[s.file], s.line);
                             })
      .def("symbol", [](B b, const std::string& name) { return expression_object(b.b.program, b.b.add_symbol(name)); })
      .def("_register",
           [](B b, const std::string& name) { return expression_object(b.b.program, b.b.add_register(name)); })
      .def(
          "loop_begin",
          [](B b, py::handle start, py::handle stop, py::handle step, const std::string& kind) {
            Program& p = *b.b.program;
            return expression_object(b.b.program, b.b.loop_begin(expression_of(p, start), expression_of(p, stop),
                                                                 expression_of(p, step), b.loop_kind(kind)));
          },
          py::arg("start"), py::arg("stop"), py::arg("step") = 1, py::arg("kind") = "sequential")
      .def("while_begin",
           [](B b, const PyExpression& r) {
             const Expression& e = r.program->expressions[r.id];
             if (e.op != Node::reg)
               throw Error(Category::configuration, "a while loop needs a register as its condition", b.b.place());
             b.b.while_begin(e.a);
           })
      .def("loop_end", [](B b) { b.b.loop_end(); })
      .def("unroll_begin", [](B b) { b.b.unroll_begin(); })
      .def("unroll_iteration", [](B b) { b.b.unroll_iteration(); })
      .def("unroll_end", [](B b) { b.b.unroll_end(); })
      .def("affine_begin", [](B b) { b.b.carried.loop_begin(b.b.current_source_id()); })
      .def("affine_iteration", [](B b) { b.b.carried.iteration(); })
      .def("affine_end", [](B b) { b.b.carried.loop_end(); })
      .def("keep_begin", [](B b) { b.b.carried.pause(); })
      .def("keep_end", [](B b) { b.b.carried.resume(); })
      .def_property_readonly("carried",
                             [](B b) {
                               py::list out;
                               const Program& p = *b.b.program;
                               for (const CarriedDependence& c : b.b.carried.found())
                                 out.append(py::make_tuple(p.where(c.loop), p.buffers[c.buffer].name, p.where(c.read),
                                                           p.where(c.written)));
                               return out;
                             })
      .def("_binary",
           [](B b, int op, py::handle x, py::handle y) {
             Program& p = *b.b.program;
             return expression_object(b.b.program,
                                      p.expressions.binary(Node(op), expression_of(p, x), expression_of(p, y)));
           })
      .def("set_kind",
           [](B b, T t, const std::string& kind) {
             auto it = std::find(buffer_kind_names.begin(), buffer_kind_names.end(), kind);
             if (it == buffer_kind_names.end())
               throw Error(Category::configuration, "'" + kind + "' is not a kind of HBM tensor", b.b.place(),
                           "use input, output, inout, internal or private");
             b.b.set_kind(t.id, BufferKind(it - buffer_kind_names.begin()));
           })
      .def(
          "snapshot",
          [](B b, bool capacity) {
            PyProgram r;
            r.program = b.b.snapshot(capacity);
            return r;
          },
          py::arg("capacity") = true)
      .def(
          "finish",
          [](B b, bool capacity) {
            PyProgram r;
            r.program = b.b.finish(capacity);
            return r;
          },
          py::arg("capacity") = true);
}

}  // namespace core::python
