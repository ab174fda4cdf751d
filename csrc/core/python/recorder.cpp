// Instructions as kernels call them. A kernel records a hundred thousand, so the common call, tiles and plain values to
// the builder at work, takes no step in Python. Every other call goes to the same function in Python, which knows the
// rest and words the errors.
#include <bit>
#include <optional>

#include "core/python/builder.h"
#include "core/python/view.h"

#include <structmember.h>  // after Python.h

namespace core::python {

namespace {

// What an argument may be; anything else is Python's to understand.
enum class Takes : u8 {
  write,             // a view
  write_if_given,    // a view or None
  read,              // a view
  read_if_given,     // a view or None
  scalar,            // a number, a view or None
  filling,           // a number of the kind that the first argument, a view, holds
  flag,              // True or False
  integer,           // an int
  integer_if_given,  // an int or None
  real,              // a float or an int
  sequence,          // a tuple; None is an empty one
  token,             // an operation or a member of an enumeration, named by `name_of`
  plain,             // what emit takes
  ignored,
  absent  // None; anything else is Python's
};
constexpr std::array<const char*, 15> takes_names = {
    "write", "write_if_given", "read",  "read_if_given", "scalar",  "filling", "flag", "integer", "integer_if_given",
    "real",  "sequence",       "token", "plain",         "ignored", "absent"};
constexpr std::size_t arguments_max = 32;

struct Argument {
  PyObject* name;
  Takes takes;
  int parameter;            // of the instruction; -1: its label
  PyObject* default_value;  // nullptr: must be given
  PyObject* name_of;
  // Tokens seen -> their names (nullptr: None). Tokens are functions and enumeration members, and are kept.
  std::unordered_map<PyObject*, PyObject*> names{};
};

}  // namespace

struct Recorded {
  Opcode op;
  std::vector<Argument> arguments;
  // Keyword names of a call -> the arguments they mean; a call site has one tuple of names. Empty: Python's.
  std::unordered_map<PyObject*, std::vector<int>> keywords;
};

namespace {

struct Recorder {
  PyObject_HEAD PyObject* attributes;  // __dict__
  vectorcallfunc call;
  PyObject* python;
  Recorded* instruction;
};

thread_local PyObject* at_work = nullptr;  // the builder that calls record into

const std::vector<int>& meant_by(Recorded& r, PyObject* names) {
  auto [it, fresh] = r.keywords.try_emplace(names);
  if (!fresh) return it->second;
  Py_INCREF(names);  // a tuple that lives has no other's address
  std::vector<int> found;
  for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(names); ++k) {
    int at = -1;
    for (std::size_t n = 0; n < r.arguments.size(); ++n)
      if (PyUnicode_Compare(r.arguments[n].name, PyTuple_GET_ITEM(names, k)) == 0) at = int(n);
    if (at < 0) return it->second;
    found.push_back(at);
  }
  return it->second = std::move(found);
}

// The arguments of a call by position, defaults included; false where Python has to look at it.
bool bind(Recorded& r, PyObject* const* given, Py_ssize_t positional, PyObject* names, PyObject** out) {
  const std::size_t n = r.arguments.size();
  if (positional > Py_ssize_t(n)) return false;
  for (std::size_t k = 0; k < n; ++k) out[k] = k < std::size_t(positional) ? given[k] : r.arguments[k].default_value;
  if (names && PyTuple_GET_SIZE(names)) {
    if (r.keywords.size() > 1024) return false;  // calls with ** bring a new tuple each time
    const std::vector<int>& meant = meant_by(r, names);
    if (meant.empty()) return false;
    for (std::size_t k = 0; k < meant.size(); ++k) {
      if (meant[k] < positional) return false;
      out[meant[k]] = given[positional + Py_ssize_t(k)];
    }
  }
  return std::find(out, out + n, nullptr) == out + n;
}

PyObject* call(PyObject* self, PyObject* const* given, std::size_t flags, PyObject* names) {
  auto* recorder = reinterpret_cast<Recorder*>(self);
  PyObject* arguments[arguments_max];
  if (at_work && bind(*recorder->instruction, given, PyVectorcall_NARGS(flags), names, arguments)) {
    PyObject* done = guarded([&] {
      return Py_NewRef(as<PyBuilder>(at_work)->record(*recorder->instruction, arguments) ? Py_True : Py_False);
    });
    if (!done) return nullptr;
    Py_DECREF(done);
    if (done == Py_True) Py_RETURN_NONE;
  }
  return PyObject_Vectorcall(recorder->python, given, flags, names);
}

PyObject* bound_to(PyObject* self, PyObject* instance, PyObject*) {
  return !instance || instance == Py_None ? Py_NewRef(self) : PyMethod_New(self, instance);
}

// Copies and pickles by name, as functions do.
PyObject* reduce(PyObject* self, PyObject*) { return PyObject_GetAttrString(self, "__qualname__"); }

PyTypeObject* recorder_type() {
  static PyMemberDef members[] = {{"__vectorcalloffset__", T_PYSSIZET, offsetof(Recorder, call), READONLY, nullptr},
                                  {"__dictoffset__", T_PYSSIZET, offsetof(Recorder, attributes), READONLY, nullptr},
                                  {}};
  static PyGetSetDef computed[] = {{"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, nullptr, nullptr},
                                   {}};
  static PyMethodDef methods[] = {{"__reduce__", reduce, METH_NOARGS, nullptr}, {}};
  static PyType_Slot slots[] = {{Py_tp_members, members},
                                {Py_tp_methods, methods},
                                {Py_tp_getset, computed},
                                {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
                                {Py_tp_descr_get, reinterpret_cast<void*>(bound_to)},
                                {0, nullptr}};
  static PyType_Spec spec = {"opentrn.core._C.Recorder", sizeof(Recorder), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                             slots};
  static auto* type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
  if (!type) throw py::error_already_set();
  return type;
}

// A function that records `instruction` with its arguments, or leaves the call to `python`. arguments: (name, what it
// takes, name_of or None); both live as long as the process, like the modules that define them.
py::object recorder(py::function python, const std::string& instruction, py::list arguments, py::dict defaults) {
  const int op = opcode_from_name(instruction);
  if (op < 0 || arguments.size() > arguments_max)
    fail(Category::configuration, "'" + instruction + "' cannot be recorded");
  auto* r = new Recorded{Opcode(op), {}, {}};
  for (py::handle h : arguments) {
    auto [name, takes, name_of] = h.cast<std::tuple<py::str, std::string, py::object>>();
    const auto it = std::find(takes_names.begin(), takes_names.end(), takes);
    const int parameter = definition(Opcode(op)).find(name);
    const bool known = parameter >= 0 || name.cast<std::string>() == "name" || takes == "ignored" || takes == "absent";
    if (it == takes_names.end() || !known)
      fail(Category::configuration, instruction + ": argument '" + name.cast<std::string>() + "' (" + takes + ")");
    r->arguments.push_back({name.inc_ref().ptr(), Takes(it - takes_names.begin()), parameter,
                            defaults.contains(name) ? py::object(defaults[name]).inc_ref().ptr() : nullptr,
                            name_of.inc_ref().ptr()});
  }
  auto* made = PyObject_New(Recorder, recorder_type());
  if (!made) throw py::error_already_set();
  made->attributes = PyDict_New();
  made->call = call;
  made->python = python.inc_ref().ptr();
  made->instruction = r;
  return py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(made));
}

// The name of a token, or nullptr; asks Python once for each.
PyObject* name_of(Argument& a, PyObject* token) {
  auto it = a.names.find(token);
  if (it != a.names.end()) return it->second;
  PyObject* name = py::reinterpret_borrow<py::object>(a.name_of)(py::handle(token)).release().ptr();
  if (name == Py_None) name = nullptr;
  if (a.names.size() < 4096) a.names.emplace(Py_NewRef(token), name);
  return name;
}

}  // namespace

bool PyBuilder::record(Recorded& r, PyObject* const* given) {
  const ViewLayout& l = view_layout;
  locate();
  arguments_.assign(definition(r.op).parameters.size(), Value{});
  u64 present = 0;
  i32 label = -1;
  // A pinned tensor may lie over another one: Python follows those.
  auto view = [&](PyObject* o) -> std::optional<Value> {
    if (!is_view(o) || slot(slot(o, l.storage), l.address) != Py_None) return std::nullopt;
    return Value{ValueKind::access, access_of_view(o)};
  };
  auto value = [&](Argument& a, PyObject* o) -> std::optional<Value> {
    switch (a.takes) {
      case Takes::write:
      case Takes::write_if_given: {
        const auto v = view(o);
        PyObject* storage = v ? slot(o, l.storage) : nullptr;
        if (v && slot(storage, l.on_chip) != Py_True && PySet_Add(written.ptr(), storage) < 0)
          throw py::error_already_set();
        return v;
      }
      case Takes::read:
      case Takes::read_if_given:
        return view(o);
      case Takes::scalar:
        return PyFloat_CheckExact(o) || PyLong_CheckExact(o) ? value_of(o) : view(o);
      case Takes::filling: {
        const Dtype dtype = b.program->accesses[arguments_[0].payload].dtype;
        const bool packed = std::string_view(dtype_names[int(dtype)]).ends_with("_x4");
        const bool fits = PyLong_CheckExact(o) || (PyFloat_CheckExact(o) && !is_integer(dtype));
        return fits && !packed ? std::optional(value_of(o)) : std::nullopt;
      }
      case Takes::flag:
        return o == Py_True || o == Py_False ? std::optional(value_of(o)) : std::nullopt;
      case Takes::integer:
      case Takes::integer_if_given:
        return PyLong_CheckExact(o) ? std::optional(value_of(o)) : std::nullopt;
      case Takes::real:
        if (!PyFloat_CheckExact(o) && !PyLong_CheckExact(o)) return std::nullopt;
        return Value{ValueKind::real, std::bit_cast<i64>(PyFloat_AsDouble(o))};
      case Takes::sequence:
        return PyTuple_CheckExact(o) ? std::optional(value_of(o)) : std::nullopt;
      default:
        return value_of(o);
    }
  };
  for (std::size_t n = 0; n < r.arguments.size(); ++n) {
    Argument& a = r.arguments[n];
    PyObject* o = given[n];
    if (a.takes == Takes::ignored) continue;
    if (a.takes == Takes::absent) {
      if (o != Py_None) return false;
      continue;
    }
    if (a.takes == Takes::token) o = name_of(a, o);
    if (!o || o == Py_None) {
      const bool none = a.takes == Takes::write_if_given || a.takes == Takes::read_if_given ||
                        a.takes == Takes::scalar || a.takes == Takes::integer_if_given || a.takes == Takes::token ||
                        a.takes == Takes::plain;
      if (none) continue;
      if (a.takes != Takes::sequence) return false;
      static PyObject* nothing = PyTuple_New(0);
      o = nothing;
    }
    if (a.parameter < 0) {
      if (!PyUnicode_Check(o)) return false;
      label = text_of(o);
      continue;
    }
    const auto v = value(a, o);
    if (!v) return false;
    arguments_[a.parameter] = *v;
    present |= u64(1) << a.parameter;
  }
  emit_given(r.op, present, label);
  return true;
}

void register_recorder(py::module_& m) {
  m.def("recorder", &recorder, py::arg("python"), py::arg("instruction"), py::arg("arguments"), py::arg("defaults"));
  m.def(
      "record_into",
      [](py::object builder) {
        Py_XDECREF(at_work);
        at_work = builder.is_none() ? nullptr : builder.release().ptr();
      },
      py::arg("builder"), "The builder that instructions of this thread go to; None: Python's functions are called.");
}

}  // namespace core::python
