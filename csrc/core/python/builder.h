// The builder as Python sees it. Emitting is the hot path of tracing a kernel, so `emit`, `access` and `locate` are
// plain CPython functions (emit.cpp); the rest is bound with pybind11 (builder.cpp).
#pragma once
#include <pybind11/detail/exception_translation.h>

#include "core/python/binding.h"

namespace core::python {

extern PyObject *expression_type, *access_type, *tensor_type;  // Python types of PyExpression, PyAccess, PyTensor

template <class T>
T* as(PyObject* o) {
  return reinterpret_cast<py::detail::instance*>(o)->simple_layout
             ? static_cast<T*>(reinterpret_cast<py::detail::instance*>(o)->simple_value_holder[0])
             : py::handle(o).cast<T*>();
}
inline bool is_a(PyObject* o, PyObject* type) { return reinterpret_cast<PyObject*>(Py_TYPE(o)) == type; }

// int or Expr -> expression id
i32 expression_of(Program& p, py::handle h);

struct Recorded;  // recorder.cpp

struct PyBuilder {
  Builder b;
  PyBuilder(const std::string& chip, int cores, const std::string& name) : b(chip, cores, name) {}

  // A front end whose views (view.h) emit takes as they are: `convert` makes the access of a view with a runtime offset
  // or more than five dimensions; recorded instructions (recorder.cpp) add the storages in HBM that they write to the
  // set `written`. Its own files are under `package`; more than `instructions_max` located instructions are an error.
  py::object convert, written;
  void take_views(py::object converter, py::set storages, py::str package, i64 instructions_max);

  Value value_of(PyObject* o);
  void emit(PyObject* const* arguments, Py_ssize_t positional, PyObject* names);
  PyAccess access(PyObject* const* arguments, Py_ssize_t positional, PyObject* names);
  // An instruction of the front end with the arguments of a call; false: nothing was emitted, and Python has to.
  bool record(Recorded& instruction, PyObject* const* arguments);
  // What follows is of the innermost Python line whose file is not of the front end.
  void locate();

  std::vector<i32> shape_of(py::handle shape);
  PyTensor hbm(const std::string& name, py::handle shape, const std::string& dtype, const std::string& kind,
               py::handle data);
  PyTensor tile(Space space, PyObject* const* arguments, Py_ssize_t positional, PyObject* names);
  LoopKind loop_kind(const std::string& kind);

 private:
  struct Code {
    py::object code;
    PyObject* file = nullptr;
    bool ours = false;
    std::unordered_map<int, i32> sources;  // by the last instruction of Python's
  };
  std::unordered_map<PyObject*, std::pair<py::object, i32>> texts_;     // str object -> text id
  std::unordered_map<PyObject*, std::pair<py::object, Dtype>> dtypes_;  // str object -> dtype
  std::unordered_map<PyObject*, Code> codes_;                           // code object -> what is known of it
  std::vector<Value> arguments_;
  py::object package_;
  i64 located_ = 0, instructions_max_ = 0;
  i32 text_of(PyObject* text);
  Dtype dtype_of(PyObject* name);
  i32 access_of_view(PyObject* view);
  void emit_given(Opcode op, u64 given, i32 name);
};

// f(), whose C++ exceptions become Python's.
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

void add_emit(py::class_<PyBuilder>& builder);

}  // namespace core::python
