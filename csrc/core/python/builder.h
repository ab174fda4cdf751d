// The builder as Python sees it. Emitting is the hot path of tracing a kernel, so `emit`, `access` and `locate` are
// plain CPython functions (emit.cpp); the rest is bound with pybind11 (builder.cpp).
#pragma once
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

struct PyBuilder {
  Builder b;
  PyBuilder(const std::string& chip, int cores, const std::string& name) : b(chip, cores, name) {}

  // A front end's views of tensors that emit takes as they are: objects of exactly this type whose attributes _storage
  // (with `key`, a Tensor), offset, _steps, _counts (elements) and dtype say what `access` is told otherwise. `convert`
  // makes the access of a view with a runtime offset or more than five dimensions.
  py::object view_type, convert;

  Value value_of(PyObject* o);
  void emit(PyObject* const* arguments, Py_ssize_t positional, PyObject* names);
  PyAccess access(PyObject* const* arguments, Py_ssize_t positional, PyObject* names);
  // Records the innermost Python line whose file does not start with `package`; None where that is the line already
  // recorded, else (file, line).
  py::object locate(PyObject* package);
  void forget_line() { file_ = nullptr; }

  std::vector<i32> shape_of(py::handle shape);
  PyTensor hbm(const std::string& name, py::handle shape, const std::string& dtype, const std::string& kind,
               py::handle data);
  PyTensor tile(Space space, const std::string& name, py::handle shape, const std::string& dtype, py::handle address);
  LoopKind loop_kind(const std::string& kind);

 private:
  std::unordered_map<PyObject*, std::pair<py::object, i32>> texts_;      // str object -> text id
  std::unordered_map<PyObject*, std::pair<py::object, Dtype>> dtypes_;   // str object -> dtype
  std::unordered_map<PyObject*, std::pair<py::object, bool>> packages_;  // code object -> part of the front end
  std::vector<Value> arguments_;
  PyObject* file_ = nullptr;
  int line_ = 0;
  i32 text_of(PyObject* text);
  Dtype dtype_of(PyObject* name);
  i32 access_of_view(PyObject* view);
};

void add_emit(py::class_<PyBuilder>& builder);

}  // namespace core::python
