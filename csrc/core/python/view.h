// A front end's views of tensors: objects with __slots__, read and made here without Python's attribute lookup.
#pragma once
#include "core/python/binding.h"

namespace core::python {

// Where the attributes of a view and of its storage lie within the objects.
struct ViewLayout {
  PyTypeObject* view = nullptr;  // exactly this class
  Py_ssize_t storage = 0, steps = 0, counts = 0, offset = 0, dtype = 0, indirect = 0, whole = 0;
  Py_ssize_t key = 0, on_chip = 0, partitions = 0, bytes = 0, address = 0;  // of the storage
};
extern ViewLayout view_layout;

inline bool is_view(PyObject* o) { return Py_TYPE(o) == view_layout.view; }

// The value of a slot, borrowed; nullptr where it has none.
inline PyObject* slot(PyObject* o, Py_ssize_t at) {
  return *reinterpret_cast<PyObject**>(reinterpret_cast<char*>(o) + at);
}

}  // namespace core::python
