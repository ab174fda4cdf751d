#include "core/tile.h"

#include <algorithm>

namespace core {

void uninitialised(const Tile& t, i64 partition, u64 address) {
  (void)address;
  fail(Category::undefined_behaviour,
       std::string("operand '") + t.operand + "' reads bytes of " + space_names[int(t.space)] +
           " that nothing has written (row " + std::to_string(partition) + " of the operand)",
       "write the whole tile first (memset, dma_copy), or read only the part that was written");
}

void check_row(const Tile& t, i64 p, i64 start, i64 n) {
  const Region& r = *t.region;
  if (!r.written || r.lenient || !n) return;
  for_runs(t, t.row(p), start, n, [&](u8* at, i64 stride, i64 count, i64) {
    if (stride == t.bytes) {
      if (!all_written(r, u64(at - r.base), u64(count) * t.bytes)) uninitialised(t, p, u64(at - r.base));
    } else {
      for (i64 i = 0; i < count; ++i)
        if (!all_written(r, u64(at + i * stride - r.base), t.bytes)) uninitialised(t, p, u64(at - r.base));
    }
  });
}

void mark_row(const Tile& t, i64 p, i64 start, i64 n) {
  const Region& r = *t.region;
  if (t.begun) {
    const Region own{nullptr, 0, t.begun->bits.data(), false};
    for_runs(t, t.row(p), start, n, [&](u8* at, i64 stride, i64 count, i64) {
      if (stride == t.bytes)
        mark_written(own, t.begun->place(at), u64(count) * t.bytes);
      else
        for (i64 i = 0; i < count; ++i) mark_written(own, t.begun->place(at + i * stride), t.bytes);
    });
  }
  if (!r.written) return;
  for_runs(t, t.row(p), start, n, [&](u8* at, i64 stride, i64 count, i64) {
    if (stride == t.bytes)
      mark_written(r, u64(at - r.base), u64(count) * t.bytes);
    else
      for (i64 i = 0; i < count; ++i) mark_written(r, u64(at + i * stride - r.base), t.bytes);
  });
}

const float* read_floats(const Tile& t, i64 p, i64 start, i64 n, float* buffer, bool check) {
  if (check) check_row(t, p, start, n);
  if (t.dtype == Dtype::float32 && t.contiguous()) return reinterpret_cast<const float*>(t.row(p)) + start;
  for_runs(t, t.row(p), start, n,
           [&](u8* at, i64 stride, i64 count, i64 done) { load_floats(t.dtype, at, stride, count, buffer + done); });
  return buffer;
}

void read_integers(const Tile& t, i64 p, i64 start, i64 n, i64* buffer) {
  check_row(t, p, start, n);
  for_runs(t, t.row(p), start, n,
           [&](u8* at, i64 stride, i64 count, i64 done) { load_integers(t.dtype, at, stride, count, buffer + done); });
}

void write_floats(const Tile& t, i64 p, i64 start, i64 n, const float* from) {
  for_runs(t, t.row(p), start, n, [&](u8* at, i64 stride, i64 count, i64 done) {
    if (t.dtype == Dtype::float32 && at == reinterpret_cast<const u8*>(from + done)) return;  // written in place
    store_floats(t.dtype, from + done, count, at, stride);
  });
  mark_row(t, p, start, n);
}

void write_integers(const Tile& t, i64 p, i64 start, i64 n, const i64* from, bool wrap) {
  for_runs(t, t.row(p), start, n, [&](u8* at, i64 stride, i64 count, i64 done) {
    if (wrap)
      store_integers_wrapping(t.dtype, from + done, count, at, stride);
    else
      store_integers(t.dtype, from + done, count, at, stride);
  });
  mark_row(t, p, start, n);
}

float read_float(const Tile& t, i64 p, i64 element) {
  float x;
  return *read_floats(t, p, element, 1, &x);
}

i64 read_integer(const Tile& t, i64 p, i64 element) {
  if (!is_integer(t.dtype)) return i64(read_float(t, p, element));
  i64 x;
  read_integers(t, p, element, 1, &x);
  return x;
}

float* float_row(const Tile& t, i64 p, i64 start) {
  return t.dtype == Dtype::float32 && t.contiguous() ? reinterpret_cast<float*>(t.row(p)) + start : nullptr;
}

}  // namespace core
