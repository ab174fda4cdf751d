#pragma once

#include <pybind11/pybind11.h>

namespace opentrn::device {

void bind_memory(pybind11::module_& m);   // bindings_memory.cpp
void bind_trace(pybind11::module_& m);    // bindings_trace.cpp
void bind_program(pybind11::module_& m);  // program_call.cpp

}  // namespace opentrn::device
