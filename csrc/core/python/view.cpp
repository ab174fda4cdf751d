// Slices and patterns of a front end's views (objects as `take_views` describes them), for tracing makes millions. Only
// what needs no explanation is done here: integers and slices within bounds. None sends the caller to its own code,
// which knows the rest and words the errors.
#include "core/python/builder.h"

namespace core::python {

namespace {

struct Names {
  PyObject *storage = intern("_storage"), *steps = intern("_steps"), *counts = intern("_counts"),
           *offset = intern("offset"), *dtype = intern("dtype"), *indirect = intern("indirect"),
           *whole = intern("whole"), *on_chip = intern("on_chip"), *partitions = intern("partitions"),
           *bytes = intern("partition_bytes");
  static PyObject* intern(const char* s) { return PyUnicode_InternFromString(s); }
};
const Names& names() {
  static const Names n;
  return n;
}

py::object get(PyObject* o, PyObject* name) {
  PyObject* value = PyObject_GetAttr(o, name);
  if (!value) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(value);
}

// An int that fits, or false.
bool number(PyObject* o, i64& value) {
  if (!PyLong_CheckExact(o)) return false;
  int overflow = 0;
  value = PyLong_AsLongLongAndOverflow(o, &overflow);
  return !overflow;
}

py::tuple tuple_of(const i64* values, int n) {
  py::tuple out(n);
  for (int i = 0; i < n; ++i) PyTuple_SET_ITEM(out.ptr(), i, PyLong_FromLongLong(values[i]));
  return out;
}

// Another view of the same storage and dtype.
py::object view_like(PyObject* view, i64 offset, const i64* steps, const i64* counts, int dims) {
  PyTypeObject* type = Py_TYPE(view);
  static PyObject* nothing = PyTuple_New(0);
  py::object made = py::reinterpret_steal<py::object>(type->tp_new(type, nothing, nullptr));
  if (!made) throw py::error_already_set();
  auto set = [&](PyObject* name, PyObject* value) {
    if (PyObject_SetAttr(made.ptr(), name, value) < 0) throw py::error_already_set();
  };
  const Names& n = names();
  set(n.storage, get(view, n.storage).ptr());
  set(n.dtype, get(view, n.dtype).ptr());
  set(n.offset, py::int_(offset).ptr());
  set(n.steps, tuple_of(steps, dims).ptr());
  set(n.counts, tuple_of(counts, dims).ptr());
  set(n.indirect, Py_None);
  set(n.whole, Py_False);
  return made;
}

constexpr int dims_max = 8;

// view[key]; None where `key` holds anything but integers and slices of integers within bounds.
py::object cut(py::handle view, py::handle key) {
  const Names& n = names();
  const py::object steps = get(view.ptr(), n.steps), counts = get(view.ptr(), n.counts);
  const Py_ssize_t rank = PyTuple_GET_SIZE(counts.ptr()),
                   given = PyTuple_Check(key.ptr()) ? PyTuple_GET_SIZE(key.ptr()) : 1;
  i64 offset;
  if (rank != given || rank > dims_max || get(view.ptr(), n.indirect).ptr() != Py_None ||
      !number(get(view.ptr(), n.offset).ptr(), offset))
    return py::none();
  const bool on_chip = get(get(view.ptr(), n.storage).ptr(), n.on_chip).ptr() == Py_True;
  i64 new_steps[dims_max], new_counts[dims_max], dropped[dims_max];
  int dims = 0, drops = 0;
  for (Py_ssize_t axis = 0; axis < rank; ++axis) {
    PyObject* item = PyTuple_Check(key.ptr()) ? PyTuple_GET_ITEM(key.ptr(), axis) : key.ptr();
    i64 step, count, start = 0;
    if (!number(PyTuple_GET_ITEM(steps.ptr(), axis), step) || !number(PyTuple_GET_ITEM(counts.ptr(), axis), count))
      return py::none();
    if (number(item, start)) {
      if (start < 0) start += count;
      if (start < 0 || start >= count) return py::none();
      offset += start * step;
      if (axis == 0 && on_chip) {
        new_steps[dims] = step;
        new_counts[dims++] = 1;
      } else
        dropped[drops++] = step;
      continue;
    }
    if (!PySlice_Check(item)) return py::none();
    auto* slice = reinterpret_cast<PySliceObject*>(item);
    i64 stop = count, stride = 1;
    if ((slice->start != Py_None && !number(slice->start, start)) ||
        (slice->stop != Py_None && !number(slice->stop, stop)) ||
        (slice->step != Py_None && !number(slice->step, stride)))
      return py::none();
    if (start < 0) start += count;
    if (stop < 0) stop += count;
    if (stride < 1 || start < 0 || start >= stop || stop > count) return py::none();
    offset += start * step;
    new_steps[dims] = step * stride;
    new_counts[dims++] = ceil_div(stop - start, stride);
  }
  for (const int least = on_chip ? 2 : 1; dims < least && drops;) {
    new_steps[dims] = dropped[--drops];
    new_counts[dims++] = 1;
  }
  return view_like(view.ptr(), offset, new_steps, new_counts, dims);
}

// The view of the whole storage with that [[step, count], ...] and offset, `item` bytes an element; None where it is
// not plain integers, leaves the storage, or walks over partitions by anything but their width.
py::object pattern(py::handle view, py::handle pairs, py::handle offset_object, i64 item) {
  const Names& n = names();
  i64 offset;
  if (!number(offset_object.ptr(), offset) || !(PyList_Check(pairs.ptr()) || PyTuple_Check(pairs.ptr())))
    return py::none();
  const Py_ssize_t dims = PySequence_Fast_GET_SIZE(pairs.ptr());
  if (dims < 1 || dims > dims_max || offset < 0) return py::none();
  const py::object storage = get(view.ptr(), n.storage);
  i64 partitions, bytes;
  if (!number(get(storage.ptr(), n.partitions).ptr(), partitions) || !number(get(storage.ptr(), n.bytes).ptr(), bytes))
    return py::none();
  const bool on_chip = get(storage.ptr(), n.on_chip).ptr() == Py_True;
  const i64 width = bytes / item;
  i64 steps[dims_max], counts[dims_max], last = offset, inside = on_chip ? offset % std::max<i64>(1, width) : 0;
  for (Py_ssize_t d = 0; d < dims; ++d) {
    PyObject* pair = PySequence_Fast_GET_ITEM(pairs.ptr(), d);
    if (!(PyList_Check(pair) || PyTuple_Check(pair)) || PySequence_Fast_GET_SIZE(pair) != 2 ||
        !number(PySequence_Fast_GET_ITEM(pair, 0), steps[d]) || !number(PySequence_Fast_GET_ITEM(pair, 1), counts[d]) ||
        counts[d] < 1 || steps[d] < 0)
      return py::none();
    if (on_chip && d == 0) {
      if (steps[0] != width) return py::none();
    } else
      inside += steps[d] * (counts[d] - 1);
    last += steps[d] * (counts[d] - 1);
  }
  if (last >= partitions * bytes / item || (on_chip && dims > 1 && inside >= width)) return py::none();
  return view_like(view.ptr(), offset, steps, counts, int(dims));
}

}  // namespace

void register_views(py::module_& m) {
  m.def("cut_view", &cut, "view[key] for plain integers and slices within bounds, else None.");
  m.def("view_pattern", &pattern, "view.ap(pairs, offset) for plain integers within bounds, else None.");
}

}  // namespace core::python
