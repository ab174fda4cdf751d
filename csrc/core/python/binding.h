// What the parts of the Python binding share.
#pragma once
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "core/builder.h"

namespace core::python {

namespace py = pybind11;

struct PyExpression {
  std::shared_ptr<Program> program;
  i32 id;
};
struct PyAccess {
  std::shared_ptr<Program> program;
  i32 id;
};
struct PyTensor {
  std::shared_ptr<Program> program;
  i32 id;
};
struct PyProgram {
  std::shared_ptr<const Program> program;
  std::map<std::map<std::string, i64>, std::shared_ptr<Plan>> plans;
  std::shared_ptr<Plan> plan(const std::map<std::string, i64>& symbols);
};

void register_builder(py::module_& m);
void register_views(py::module_& m);
void register_recorder(py::module_& m);
void register_program(py::module_& m);
void register_execution(py::module_& m);
py::object expression_object(const std::shared_ptr<Program>& program, i32 id);

}  // namespace core::python
