#pragma once

#include <pybind11/pybind11.h>

namespace opentrn::device {

void bind_memory(pybind11::module_& m);    // bindings_memory.cpp
void bind_program(pybind11::module_& m);   // program_call.cpp
void bind_programs(pybind11::module_& m);  // bindings_programs.cpp
void bind_trace(pybind11::module_& m);     // bindings_trace.cpp

}  // namespace opentrn::device
