// Slices and patterns of a front end's views (`describe_views` says of which class), for tracing makes millions. Only
// what needs no explanation is done here: integers and slices within bounds. None sends the caller to its own code,
// which knows the rest and words the errors.
#include "core/python/view.h"

#include <structmember.h>  // after Python.h

namespace core::python {

ViewLayout view_layout;

namespace {

// The offset of a member of a class with __slots__.
Py_ssize_t offset_of(py::handle type, const char* name) {
  const py::object member = type.attr("__dict__")[name];
  if (Py_TYPE(member.ptr()) != &PyMemberDescr_Type)
    fail(Category::configuration, std::string("'") + name + "' is no slot of its class");
  return reinterpret_cast<PyMemberDescrObject*>(member.ptr())->d_member->offset;
}

void describe_views(py::type view, py::type storage) {
  ViewLayout& l = view_layout;
  l = {reinterpret_cast<PyTypeObject*>(view.inc_ref().ptr()),
       offset_of(view, "_storage"),
       offset_of(view, "_steps"),
       offset_of(view, "_counts"),
       offset_of(view, "offset"),
       offset_of(view, "dtype"),
       offset_of(view, "indirection"),
       offset_of(view, "whole"),
       offset_of(storage, "key"),
       offset_of(storage, "on_chip"),
       offset_of(storage, "partitions"),
       offset_of(storage, "partition_bytes"),
       offset_of(storage, "address")};
}

// An int that fits, or false.
bool number(PyObject* o, i64& value) {
  if (!PyLong_CheckExact(o)) return false;
  int overflow = 0;
  value = PyLong_AsLongLongAndOverflow(o, &overflow);
  return !overflow;
}

PyObject* tuple_of(const i64* values, int n) {
  PyObject* out = PyTuple_New(n);
  for (int i = 0; out && i < n; ++i) PyTuple_SET_ITEM(out, i, PyLong_FromLongLong(values[i]));
  return out;
}

// Another view of the same storage and dtype; a new reference, or nullptr with Python's error set.
PyObject* view_like(PyObject* view, i64 offset, const i64* steps, const i64* counts, int dims) {
  const ViewLayout& l = view_layout;
  PyObject* made = l.view->tp_alloc(l.view, 0);
  if (!made) return nullptr;
  auto set = [&](Py_ssize_t at, PyObject* owned) {
    *reinterpret_cast<PyObject**>(reinterpret_cast<char*>(made) + at) = owned;
  };
  set(l.storage, Py_NewRef(slot(view, l.storage)));
  set(l.dtype, Py_NewRef(slot(view, l.dtype)));
  set(l.offset, PyLong_FromLongLong(offset));
  set(l.steps, tuple_of(steps, dims));
  set(l.counts, tuple_of(counts, dims));
  set(l.indirect, Py_NewRef(Py_None));
  set(l.whole, Py_NewRef(Py_False));
  return made;
}

constexpr int dims_max = 8;

PyObject* unknown() { Py_RETURN_NONE; }

// view[key]; None where `key` holds anything but integers and slices of integers within bounds.
PyObject* cut(PyObject* view, PyObject* key) {
  const ViewLayout& l = view_layout;
  if (!is_view(view)) return unknown();
  PyObject *steps = slot(view, l.steps), *counts = slot(view, l.counts);
  const bool several = PyTuple_Check(key);
  const Py_ssize_t rank = PyTuple_GET_SIZE(counts), given = several ? PyTuple_GET_SIZE(key) : 1;
  i64 offset;
  if (rank != given || rank > dims_max || slot(view, l.indirect) != Py_None || !number(slot(view, l.offset), offset))
    return unknown();
  const bool on_chip = slot(slot(view, l.storage), l.on_chip) == Py_True;
  i64 new_steps[dims_max], new_counts[dims_max], dropped[dims_max];
  int dims = 0, drops = 0;
  for (Py_ssize_t axis = 0; axis < rank; ++axis) {
    PyObject* item = several ? PyTuple_GET_ITEM(key, axis) : key;
    i64 step, count, start = 0;
    if (!number(PyTuple_GET_ITEM(steps, axis), step) || !number(PyTuple_GET_ITEM(counts, axis), count))
      return unknown();
    if (number(item, start)) {
      if (start < 0) start += count;
      if (start < 0 || start >= count) return unknown();
      offset += start * step;
      if (axis == 0 && on_chip) {
        new_steps[dims] = step;
        new_counts[dims++] = 1;
      } else
        dropped[drops++] = step;
      continue;
    }
    if (!PySlice_Check(item)) return unknown();
    auto* slice = reinterpret_cast<PySliceObject*>(item);
    i64 stop = count, stride = 1;
    if ((slice->start != Py_None && !number(slice->start, start)) ||
        (slice->stop != Py_None && !number(slice->stop, stop)) ||
        (slice->step != Py_None && !number(slice->step, stride)))
      return unknown();
    if (start < 0) start += count;
    if (stop < 0) stop += count;
    if (stride < 1 || start < 0 || start >= stop || stop > count) return unknown();
    offset += start * step;
    new_steps[dims] = step * stride;
    new_counts[dims++] = ceil_div(stop - start, stride);
  }
  for (const int least = on_chip ? 2 : 1; dims < least && drops;) {
    new_steps[dims] = dropped[--drops];
    new_counts[dims++] = 1;
  }
  return view_like(view, offset, new_steps, new_counts, dims);
}

// The view of the whole storage with that [[step, count], ...] and offset, `item` bytes an element; None where it is
// not plain integers, leaves the storage, or walks over partitions by anything but their width.
PyObject* pattern(PyObject* view, PyObject* pairs, PyObject* offset_object, PyObject* item_object) {
  const ViewLayout& l = view_layout;
  i64 offset, item;
  if (!is_view(view) || !number(offset_object, offset) || !number(item_object, item) || item < 1 ||
      !(PyList_Check(pairs) || PyTuple_Check(pairs)))
    return unknown();
  const Py_ssize_t dims = PySequence_Fast_GET_SIZE(pairs);
  if (dims < 1 || dims > dims_max || offset < 0) return unknown();
  PyObject* storage = slot(view, l.storage);
  i64 partitions, bytes;
  if (!number(slot(storage, l.partitions), partitions) || !number(slot(storage, l.bytes), bytes)) return unknown();
  const bool on_chip = slot(storage, l.on_chip) == Py_True;
  const i64 width = bytes / item;
  i64 steps[dims_max], counts[dims_max], last = offset, inside = on_chip ? offset % std::max<i64>(1, width) : 0;
  for (Py_ssize_t d = 0; d < dims; ++d) {
    PyObject* pair = PySequence_Fast_GET_ITEM(pairs, d);
    if (!(PyList_Check(pair) || PyTuple_Check(pair)) || PySequence_Fast_GET_SIZE(pair) != 2 ||
        !number(PySequence_Fast_GET_ITEM(pair, 0), steps[d]) || !number(PySequence_Fast_GET_ITEM(pair, 1), counts[d]) ||
        counts[d] < 1 || steps[d] < 0)
      return unknown();
    if (on_chip && d == 0) {
      if (steps[0] != width) return unknown();
    } else
      inside += steps[d] * (counts[d] - 1);
    last += steps[d] * (counts[d] - 1);
  }
  if (last >= partitions * bytes / item || (on_chip && dims > 1 && inside >= width)) return unknown();
  return view_like(view, offset, steps, counts, int(dims));
}

PyObject* cut_function(PyObject*, PyObject* const* arguments, Py_ssize_t n) {
  return n == 2 ? cut(arguments[0], arguments[1]) : unknown();
}
PyObject* pattern_function(PyObject*, PyObject* const* arguments, Py_ssize_t n) {
  return n == 4 ? pattern(arguments[0], arguments[1], arguments[2], arguments[3]) : unknown();
}

PyCFunction as_method(PyObject* (*f)(PyObject*, PyObject* const*, Py_ssize_t)) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(f));
}

}  // namespace

void register_views(py::module_& m) {
  m.def("describe_views", &describe_views, py::arg("view"), py::arg("storage"),
        "The classes of a front end's views and storages, both with __slots__.");
  static PyMethodDef methods[] = {{"cut_view", as_method(cut_function), METH_FASTCALL,
                                   "view[key] for plain integers and slices within bounds, else None."},
                                  {"view_pattern", as_method(pattern_function), METH_FASTCALL,
                                   "view.ap(pairs, offset), item bytes an element, for integers within bounds, else "
                                   "None."},
                                  {}};
  if (PyModule_AddFunctions(m.ptr(), methods) < 0) throw py::error_already_set();
}

}  // namespace core::python
