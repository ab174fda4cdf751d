// The hot path of tracing: instructions, access patterns and source lines from Python objects.
#include <bit>

#include "core/python/builder.h"
#include "core/python/view.h"

namespace core::python {

namespace {

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

// 1000000 as 1,000,000.
std::string grouped(i64 n) {
  std::string s = std::to_string(n);
  for (i64 at = i64(s.size()) - 3; at > 0; at -= 3) s.insert(std::size_t(at), ",");
  return s;
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
  const ViewLayout& l = view_layout;
  PyObject *offset = slot(view, l.offset), *steps = slot(view, l.steps), *counts = slot(view, l.counts);
  const Py_ssize_t dims = PyTuple_Check(counts) ? PyTuple_GET_SIZE(counts) : 0;
  if (!PyLong_CheckExact(offset) || dims < 1 || dims > access_dims_max || slot(view, l.indirect) != Py_None) {
    const py::object made = convert(py::handle(view));
    if (!is_a(made.ptr(), access_type)) fail(Category::configuration, "a view was not converted to an access");
    return as<PyAccess>(made.ptr())->id;
  }
  Program& p = *b.program;
  Access a;
  a.buffer = as<PyTensor>(slot(slot(view, l.storage), l.key))->id;
  a.dtype = dtype_of(slot(view, l.dtype));
  a.dims = u8(dims);
  a.offset = p.expressions.constant(PyLong_AsLongLong(offset));
  for (Py_ssize_t i = 0; i < dims; ++i) {
    a.stride[i] = expression_of(p, PyTuple_GET_ITEM(steps, i));
    a.count[i] = expression_of(p, PyTuple_GET_ITEM(counts, i));
  }
  return p.add_access(a);
}

Value PyBuilder::value_of(PyObject* o) {
  Program& p = *b.program;
  if (o == Py_None) return {};
  if (o == Py_True || o == Py_False) return {ValueKind::boolean, o == Py_True};
  if (is_view(o)) return {ValueKind::access, access_of_view(o)};
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
  emit_given(Opcode(op), given, name);
}

// Emits `op` with those of `arguments_` that were given and the defaults of the others.
void PyBuilder::emit_given(Opcode op, u64 given, i32 name) {
  const Definition& d = definition(op);
  for (std::size_t i = 0; i < arguments_.size(); ++i) {
    const Parameter& q = d.parameters[i];
    if (given >> i & 1) {
      if (q.is_access() && !q.or_number && arguments_[i].kind != ValueKind::access)
        throw Error(Category::configuration,
                    std::string(opcode_names[int(op)]) + ": argument '" + q.name + "' must be a tensor access",
                    b.place());
      if ((q.role == Role::alu || q.role == Role::activation || q.role == Role::text || q.role == Role::engine) &&
          arguments_[i].kind != ValueKind::text)
        throw Error(Category::configuration,
                    std::string(opcode_names[int(op)]) + ": argument '" + q.name + "' must be a name (str)", b.place());
      if (q.role == Role::list && arguments_[i].kind == ValueKind::integer)
        arguments_[i] = {ValueKind::list, b.program->intern_list({arguments_[i]})};
      if (q.role == Role::list && arguments_[i].kind != ValueKind::list)
        throw Error(Category::configuration,
                    std::string(opcode_names[int(op)]) + ": argument '" + q.name + "' must be a list", b.place());
      continue;
    }
    switch (q.kind_of_default) {
      case 0:
        if (!q.optional && q.role != Role::engine)
          throw Error(Category::configuration,
                      std::string(opcode_names[int(op)]) + ": argument '" + q.name + "' is missing", b.place());
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
  b.emit(op, arguments_, name);
}

// The arguments of a call by the place of their parameters; nullptr where there is none.
template <std::size_t n>
static std::array<PyObject*, n> by_parameter(const char* function, const std::array<const char*, n>& parameters,
                                             PyObject* const* arguments, Py_ssize_t positional, PyObject* names) {
  std::array<PyObject*, n> given{};
  if (positional > Py_ssize_t(n))
    fail(Category::configuration, std::string(function) + " takes at most " + std::to_string(n) + " arguments");
  std::copy_n(arguments, positional, given.begin());
  for (Py_ssize_t k = 0; names && k < PyTuple_GET_SIZE(names); ++k) {
    PyObject* name = PyTuple_GET_ITEM(names, k);
    std::size_t at = 0;
    while (at < n && PyUnicode_CompareWithASCIIString(name, parameters[at])) ++at;
    if (at == n)
      fail(Category::configuration, std::string(function) + " has no argument '" + PyUnicode_AsUTF8(name) + "'");
    given[at] = arguments[positional + k];
  }
  return given;
}

PyTensor PyBuilder::tile(Space space, PyObject* const* arguments, Py_ssize_t positional, PyObject* names) {
  static const std::array<const char*, 4> parameters = {"name", "shape", "dtype", "address"};
  const auto given = by_parameter(space_names[int(space)], parameters, arguments, positional, names);
  if (!given[0] || !PyUnicode_Check(given[0]) || !given[1] || !given[2] || !PyUnicode_Check(given[2]))
    throw Error(Category::configuration, "an on-chip tensor needs a name, a shape and a dtype", b.place());
  i32 partition = -1;
  i64 byte = -1;
  const bool pinned = given[3] && given[3] != Py_None;
  if (pinned) std::tie(partition, byte) = py::handle(given[3]).cast<std::pair<i32, i64>>();
  return {b.program,
          b.tile(space, PyUnicode_AsUTF8(given[0]), shape_of(given[1]), dtype_of(given[2]), partition, byte, pinned)};
}

PyAccess PyBuilder::access(PyObject* const* arguments, Py_ssize_t positional, PyObject* names) {
  static const std::array<const char*, 9> parameters = {"tensor",        "pattern",       "offset",
                                                        "dtype",         "scalar_offset", "scalar_stride",
                                                        "vector_offset", "vector_stride", "vector_bound"};
  const auto given = by_parameter("access", parameters, arguments, positional, names);
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
    else if (is_view(given[4]))
      a.scalar_access = access_of_view(given[4]);
    else
      a.scalar_expression = expression_of(p, given[4]);
    a.scalar_stride = expression(5, 1);
  }
  if (!none(6)) {
    if (is_view(given[6]))
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

void PyBuilder::locate() {
  if (++located_ > instructions_max_)
    throw Error(Category::undefined_behaviour,
                "a kernel has recorded " + grouped(instructions_max_) + " instructions and goes on", b.place(),
                "let its Python loops end, or use nl.dynamic_range, which stays one loop");
  py::object frame = py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(PyEval_GetFrame()));
  while (frame) {
    auto* f = reinterpret_cast<PyFrameObject*>(frame.ptr());
    const py::object code = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetCode(f)));
    auto [known, fresh] = codes_.try_emplace(code.ptr());
    Code& c = known->second;
    if (fresh) {
      c.code = code;
      c.file = reinterpret_cast<PyCodeObject*>(code.ptr())->co_filename;
      c.ours = PyUnicode_Tailmatch(c.file, package_.ptr(), 0, PyUnicode_GET_LENGTH(package_.ptr()), -1) == 1;
    }
    if (!c.ours) {
      // Python finds a line by walking the whole table of its code object.
      i32& source = c.sources.try_emplace(PyFrame_GetLasti(f), -1).first->second;
      if (source < 0) source = b.program->intern_source({text_of(c.file), PyFrame_GetLineNumber(f)});
      b.set_source(source);
      return;
    }
    frame = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetBack(f)));
  }
}

namespace {

PyObject* emit_function(PyObject* self, PyObject* const* arguments, Py_ssize_t positional, PyObject* names) {
  return guarded([&] {
    as<PyBuilder>(self)->emit(arguments, positional, names);
    Py_RETURN_NONE;
  });
}

PyObject* access_function(PyObject* self, PyObject* const* arguments, Py_ssize_t positional, PyObject* names) {
  return guarded([&] { return py::cast(as<PyBuilder>(self)->access(arguments, positional, names)).release().ptr(); });
}

template <Space space>
PyObject* tile_function(PyObject* self, PyObject* const* arguments, Py_ssize_t positional, PyObject* names) {
  return guarded(
      [&] { return py::cast(as<PyBuilder>(self)->tile(space, arguments, positional, names)).release().ptr(); });
}

PyCFunction with_keywords(PyObject* (*f)(PyObject*, PyObject* const*, Py_ssize_t, PyObject*)) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(f));
}

PyObject* locate_function(PyObject* self, PyObject*) {
  return guarded([&] {
    as<PyBuilder>(self)->locate();
    Py_RETURN_NONE;
  });
}

}  // namespace

void add_emit(py::class_<PyBuilder>& builder) {
  constexpr int flags = METH_FASTCALL | METH_KEYWORDS;
  static PyMethodDef methods[] = {
      {"emit", with_keywords(emit_function), flags, "emit(instruction, /, **arguments): append one instruction."},
      {"access", with_keywords(access_function), flags,
       "access(tensor, pattern=None, offset=0, dtype=None, scalar_offset=None, scalar_stride=1, vector_offset=None, "
       "vector_stride=1, vector_bound=None): an access pattern, in elements of dtype."},
      {"sbuf", with_keywords(tile_function<Space::sbuf>), flags,
       "sbuf(name, shape, dtype, address=None): a tensor in SBUF; address: (partition, byte) pins it."},
      {"psum", with_keywords(tile_function<Space::psum>), flags,
       "psum(name, shape, dtype, address=None): a tensor in PSUM; address: (partition, byte) pins it."},
      {"locate", locate_function, METH_NOARGS,
       "locate(): what follows is of the innermost Python line outside of the front end (`take_views`)."}};
  auto* type = reinterpret_cast<PyTypeObject*>(builder.ptr());
  for (PyMethodDef& m : methods) {
    const py::object method = py::reinterpret_steal<py::object>(PyDescr_NewMethod(type, &m));
    builder.attr(m.ml_name) = method;
  }
}

}  // namespace core::python
