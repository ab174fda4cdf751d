// The hot path of tracing: instructions, access patterns and source lines from Python objects.
#include <bit>
#include <pybind11/detail/exception_translation.h>

#include "core/python/builder.h"

namespace core::python {

namespace {

PyObject* attribute(const char* name) { return PyUnicode_InternFromString(name); }

// Position of each keyword of a call in the parameters of its instruction, kept by the tuple of names: a call site has
// one, so no name is looked up twice.
constexpr int is_name = -1;
const std::vector<int>& positions_of(int op, PyObject* names, const Builder& builder) {
  static auto& known = *new std::map<std::pair<int, PyObject*>, std::vector<int>>;
  if (known.size() > 4096) {  // calls with ** bring a new tuple each time
    for (auto& [key, positions] : known) Py_DECREF(key.second);
    known.clear();
  }
  auto [it, fresh] = known.try_emplace({op, names});
  if (!fresh) return it->second;
  const Definition& d = definition(Opcode(op));
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(names); ++i) {
    const std::string name = PyUnicode_AsUTF8(PyTuple_GET_ITEM(names, i));
    const int at = d.find(name);
    if (at < 0 && name != "name") {
      known.erase(it);
      throw Error(Category::configuration, std::string(opcode_names[op]) + " has no argument '" + name + "'",
                  builder.place(), "docs/instructions.md lists its arguments");
    }
    it->second.push_back(at < 0 ? is_name : at);
  }
  Py_INCREF(names);
  return it->second;
}

int opcode_of(PyObject* name) {
  static PyObject* index = PyDict_New();
  if (!PyUnicode_Check(name)) return -1;
  if (PyObject* known = PyDict_GetItemWithError(index, name)) return int(PyLong_AsLong(known));
  const int op = opcode_from_name(PyUnicode_AsUTF8(name));
  if (op >= 0) PyDict_SetItem(index, name, py::int_(op).ptr());
  return op;
}

}  // namespace

i32 PyBuilder::text_of(PyObject* text) {
  auto it = texts_.find(text);
  if (it != texts_.end()) return it->second.second;
  const i32 id = b.program->intern_text(PyUnicode_AsUTF8(text));
  texts_.emplace(text, std::pair{py::reinterpret_borrow<py::object>(text), id});
  return id;
}

Dtype PyBuilder::dtype_of(PyObject* name) {
  auto it = dtypes_.find(name);
  if (it != dtypes_.end()) return it->second.second;
  const Dtype dtype = dtype_from_name(py::handle(name).cast<std::string>());
  dtypes_.emplace(name, std::pair{py::reinterpret_borrow<py::object>(name), dtype});
  return dtype;
}

i32 PyBuilder::access_of_view(PyObject* view) {
  static PyObject *storage_name = attribute("_storage"), *key_name = attribute("key"),
                  *offset_name = attribute("offset"), *steps_name = attribute("_steps"),
                  *counts_name = attribute("_counts"), *dtype_name = attribute("dtype"),
                  *indirect_name = attribute("indirect");
  auto get = [](PyObject* o, PyObject* name) {
    PyObject* value = PyObject_GetAttr(o, name);
    if (!value) throw py::error_already_set();
    return py::reinterpret_steal<py::object>(value);
  };
  const py::object offset = get(view, offset_name), steps = get(view, steps_name), counts = get(view, counts_name);
  const Py_ssize_t dims = PyTuple_Check(counts.ptr()) ? PyTuple_GET_SIZE(counts.ptr()) : 0;
  if (!PyLong_CheckExact(offset.ptr()) || dims < 1 || dims > access_dims_max ||
      get(view, indirect_name).ptr() != Py_None) {
    const py::object made = convert(py::handle(view));
    if (!is_a(made.ptr(), access_type)) fail(Category::configuration, "a view was not converted to an access");
    return as<PyAccess>(made.ptr())->id;
  }
  Program& p = *b.program;
  const py::object tensor = get(get(view, storage_name).ptr(), key_name);
  Access a;
  a.buffer = as<PyTensor>(tensor.ptr())->id;
  a.dtype = dtype_of(get(view, dtype_name).ptr());
  a.dims = u8(dims);
  a.offset = p.expressions.constant(PyLong_AsLongLong(offset.ptr()));
  for (Py_ssize_t i = 0; i < dims; ++i) {
    a.stride[i] = expression_of(p, PyTuple_GET_ITEM(steps.ptr(), i));
    a.count[i] = expression_of(p, PyTuple_GET_ITEM(counts.ptr(), i));
  }
  return p.add_access(a);
}

Value PyBuilder::value_of(PyObject* o) {
  Program& p = *b.program;
  if (o == Py_None) return {};
  if (o == Py_True || o == Py_False) return {ValueKind::boolean, o == Py_True};
  if (is_a(o, view_type.ptr())) return {ValueKind::access, access_of_view(o)};
  if (is_a(o, access_type)) return {ValueKind::access, as<PyAccess>(o)->id};
  if (is_a(o, tensor_type)) return {ValueKind::access, b.whole(as<PyTensor>(o)->id)};
  if (is_a(o, expression_type)) return {ValueKind::expression, as<PyExpression>(o)->id};
  if (PyFloat_Check(o)) return {ValueKind::real, std::bit_cast<i64>(PyFloat_AS_DOUBLE(o))};
  if (PyLong_Check(o)) {
    const i64 v = PyLong_AsLongLong(o);
    if (v == -1 && PyErr_Occurred()) throw py::error_already_set();
    return {ValueKind::integer, v};
  }
  if (PyUnicode_Check(o)) return {ValueKind::text, text_of(o)};
  if (PyList_Check(o) || PyTuple_Check(o)) {
    std::vector<Value> list;
    const Py_ssize_t n = PySequence_Fast_GET_SIZE(o);
    for (Py_ssize_t i = 0; i < n; ++i) list.push_back(value_of(PySequence_Fast_GET_ITEM(o, i)));
    return {ValueKind::list, p.intern_list(list)};
  }
  if (PyIndex_Check(o)) {
    py::object i = py::reinterpret_steal<py::object>(PyNumber_Index(o));
    return {ValueKind::integer, PyLong_AsLongLong(i.ptr())};
  }
  if (PyNumber_Check(o)) {
    py::object f = py::reinterpret_steal<py::object>(PyNumber_Float(o));
    if (!f) throw py::error_already_set();
    return {ValueKind::real, std::bit_cast<i64>(PyFloat_AS_DOUBLE(f.ptr()))};
  }
  throw Error(Category::configuration,
              "an argument of type '" + std::string(Py_TYPE(o)->tp_name) + "' is not understood", b.place(),
              "pass an Access, a number, a string, or a list of them");
}

void PyBuilder::emit(PyObject* const* given_arguments, Py_ssize_t positional, PyObject* names) {
  if (positional != 1) fail(Category::configuration, "emit takes the instruction and its arguments by keyword");
  const int op = opcode_of(given_arguments[0]);
  if (op < 0)
    throw Error(Category::unsupported,
                "'" + py::str(py::handle(given_arguments[0])).cast<std::string>() + "' is not an instruction",
                b.place(), "docs/instructions.md lists them");
  const Definition& d = definition(Opcode(op));
  arguments_.assign(d.parameters.size(), Value{});
  u64 given = 0;
  i32 name = -1;
  if (names) {
    const std::vector<int>& positions = positions_of(op, names, b);
    for (std::size_t k = 0; k < positions.size(); ++k) {
      PyObject* value = given_arguments[1 + k];
      if (value == Py_None) continue;
      if (positions[k] == is_name) {
        name = text_of(value);
        continue;
      }
      arguments_[positions[k]] = value_of(value);
      given |= u64(1) << positions[k];
    }
  }
  for (std::size_t i = 0; i < arguments_.size(); ++i) {
    const Parameter& q = d.parameters[i];
    if (given >> i & 1) {
      if (q.is_access() && !q.or_number && arguments_[i].kind != ValueKind::access)
        throw Error(Category::configuration,
                    std::string(opcode_names[op]) + ": argument '" + q.name + "' must be a tensor access", b.place());
      if ((q.role == Role::alu || q.role == Role::activation || q.role == Role::text || q.role == Role::engine) &&
          arguments_[i].kind != ValueKind::text)
        throw Error(Category::configuration,
                    std::string(opcode_names[op]) + ": argument '" + q.name + "' must be a name (str)", b.place());
      if (q.role == Role::list && arguments_[i].kind == ValueKind::integer)
        arguments_[i] = {ValueKind::list, b.program->intern_list({arguments_[i]})};
      if (q.role == Role::list && arguments_[i].kind != ValueKind::list)
        throw Error(Category::configuration,
                    std::string(opcode_names[op]) + ": argument '" + q.name + "' must be a list", b.place());
      continue;
    }
    switch (q.kind_of_default) {
      case 0:
        if (!q.optional && q.role != Role::engine)
          throw Error(Category::configuration, std::string(opcode_names[op]) + ": argument '" + q.name + "' is missing",
                      b.place());
        break;
      case 2:
        arguments_[i] = {ValueKind::real, std::bit_cast<i64>(q.number_default)};
        break;
      case 3:
        arguments_[i] = {ValueKind::text, b.program->intern_text(q.text_default)};
        break;
      case 4:
        arguments_[i] = {ValueKind::boolean, q.number_default != 0};
        break;
      case 5:
        arguments_[i] = {ValueKind::integer, i64(q.number_default)};
        break;
      default:
        break;
    }
  }
  b.emit(Opcode(op), arguments_, name);
}

PyAccess PyBuilder::access(PyObject* const* arguments, Py_ssize_t positional, PyObject* names) {
  static const std::array<const char*, 9> parameters = {"tensor",        "pattern",       "offset",
                                                        "dtype",         "scalar_offset", "scalar_stride",
                                                        "vector_offset", "vector_stride", "vector_bound"};
  std::array<PyObject*, 9> given{};
  if (positional > 9) fail(Category::configuration, "access takes at most 9 arguments");
  std::copy_n(arguments, positional, given.begin());
  for (Py_ssize_t k = 0; names && k < PyTuple_GET_SIZE(names); ++k) {
    PyObject* name = PyTuple_GET_ITEM(names, k);
    std::size_t at = 0;
    while (at < parameters.size() && PyUnicode_CompareWithASCIIString(name, parameters[at])) ++at;
    if (at == parameters.size())
      fail(Category::configuration, "access has no argument '" + std::string(PyUnicode_AsUTF8(name)) + "'");
    given[at] = arguments[positional + k];
  }
  if (!given[0] || !is_a(given[0], tensor_type))
    throw Error(Category::configuration, "access needs a tensor of this builder", b.place());
  auto none = [&](int at) { return !given[at] || given[at] == Py_None; };
  Program& p = *b.program;
  const i32 tensor = as<PyTensor>(given[0])->id;
  Access a;
  if (none(1)) {
    a = p.accesses[b.whole(tensor)];
    if (!none(3) && dtype_of(given[3]) != a.dtype)
      throw Error(Category::configuration, "an access that reinterprets the dtype needs a pattern", b.place());
  } else {
    a.buffer = tensor;
    a.dtype = none(3) ? p.buffers[tensor].dtype : dtype_of(given[3]);
    py::object fast =
        py::reinterpret_steal<py::object>(PySequence_Fast(given[1], "pattern must be a sequence of [stride, count]"));
    if (!fast) throw py::error_already_set();
    const Py_ssize_t n = PySequence_Fast_GET_SIZE(fast.ptr());
    if (n < 1 || n > access_dims_max)
      throw Error(Category::unsupported, "an access pattern has 1 to 5 entries; found " + std::to_string(n), b.place(),
                  "merge contiguous dimensions, or split the instruction");
    a.dims = u8(n);
    for (Py_ssize_t i = 0; i < n; ++i) {
      PyObject* entry = PySequence_Fast_GET_ITEM(fast.ptr(), i);
      py::object pair =
          py::reinterpret_steal<py::object>(PySequence_Fast(entry, "each entry of a pattern is [stride, count]"));
      if (!pair) throw py::error_already_set();
      if (PySequence_Fast_GET_SIZE(pair.ptr()) != 2)
        throw Error(Category::configuration, "each entry of a pattern is [stride, count]", b.place());
      a.stride[i] = expression_of(p, PySequence_Fast_GET_ITEM(pair.ptr(), 0));
      a.count[i] = expression_of(p, PySequence_Fast_GET_ITEM(pair.ptr(), 1));
    }
  }
  auto expression = [&](int at, i64 otherwise) {
    return given[at] ? expression_of(p, given[at]) : p.expressions.constant(otherwise);
  };
  a.offset = expression(2, 0);
  if (!none(4)) {
    if (is_a(given[4], access_type))
      a.scalar_access = as<PyAccess>(given[4])->id;
    else if (is_a(given[4], view_type.ptr()))
      a.scalar_access = access_of_view(given[4]);
    else
      a.scalar_expression = expression_of(p, given[4]);
    a.scalar_stride = expression(5, 1);
  }
  if (!none(6)) {
    if (is_a(given[6], view_type.ptr()))
      a.vector_access = access_of_view(given[6]);
    else if (is_a(given[6], access_type))
      a.vector_access = as<PyAccess>(given[6])->id;
    else
      throw Error(Category::configuration, "vector_offset must be an access", b.place());
    a.vector_stride = expression(7, 1);
    a.vector_bound = none(8) ? -1 : expression_of(p, given[8]);
  }
  return {b.program, p.add_access(a)};
}

py::object PyBuilder::locate(PyObject* package) {
  py::object frame = py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(PyEval_GetFrame()));
  while (frame) {
    auto* f = reinterpret_cast<PyFrameObject*>(frame.ptr());
    const py::object code = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetCode(f)));
    PyObject* file = reinterpret_cast<PyCodeObject*>(code.ptr())->co_filename;
    auto it = packages_.find(code.ptr());
    if (it == packages_.end()) {
      const Py_ssize_t n = PyUnicode_GET_LENGTH(package);
      it = packages_.emplace(code.ptr(), std::pair{code, PyUnicode_Tailmatch(file, package, 0, n, -1) == 1}).first;
    }
    if (!it->second.second) {
      const int line = PyFrame_GetLineNumber(f);
      if (file == file_ && line == line_) return py::none();
      file_ = file;
      line_ = line;
      b.set_source(text_of(file), line);
      return py::make_tuple(py::reinterpret_borrow<py::object>(file), line);
    }
    frame = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetBack(f)));
  }
  return py::none();
}

namespace {

template <class F>
PyObject* guarded(F&& f) {
  try {
    return f();
  } catch (py::error_already_set& e) {
    e.restore();
  } catch (...) {
    py::detail::try_translate_exceptions();
  }
  return nullptr;
}

PyObject* emit_function(PyObject* self, PyObject* const* arguments, Py_ssize_t positional, PyObject* names) {
  return guarded([&] {
    as<PyBuilder>(self)->emit(arguments, positional, names);
    Py_RETURN_NONE;
  });
}

PyObject* access_function(PyObject* self, PyObject* const* arguments, Py_ssize_t positional, PyObject* names) {
  return guarded([&] { return py::cast(as<PyBuilder>(self)->access(arguments, positional, names)).release().ptr(); });
}

PyObject* locate_function(PyObject* self, PyObject* package) {
  return guarded([&] { return as<PyBuilder>(self)->locate(package).release().ptr(); });
}

}  // namespace

void add_emit(py::class_<PyBuilder>& builder) {
  static PyMethodDef methods[] = {
      {"emit", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(emit_function)),
       METH_FASTCALL | METH_KEYWORDS, "emit(instruction, /, **arguments): append one instruction."},
      {"access", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(access_function)),
       METH_FASTCALL | METH_KEYWORDS,
       "access(tensor, pattern=None, offset=0, dtype=None, scalar_offset=None, scalar_stride=1, vector_offset=None, "
       "vector_stride=1, vector_bound=None): an access pattern, in elements of dtype."},
      {"locate", locate_function, METH_O,
       "locate(package): record the innermost line outside of `package`; (file, line) where it changed, else None."}};
  auto* type = reinterpret_cast<PyTypeObject*>(builder.ptr());
  for (PyMethodDef& m : methods) {
    const py::object method = py::reinterpret_steal<py::object>(PyDescr_NewMethod(type, &m));
    builder.attr(m.ml_name) = method;
  }
}

}  // namespace core::python
