// A tile: an access resolved to host addresses, read and written row by row (a row = the free elements of one
// partition).
#pragma once
#include "core/dtype.h"
#include "core/memory.h"

namespace core {

// Which bytes of one PSUM tensor were written through it since it began: an automatic accumulation adds to those and
// overwrites the others, whatever another tensor left in the same bank.
struct Begun {
  std::vector<u8> bits;
  i64 row = 0, pitch = 0;      // bytes of a partition of the tensor; bytes between partitions
  const u8* origin = nullptr;  // its first byte
  u64 place(const u8* at) const {
    const i64 d = at - origin;
    return u64(d / pitch * row + d % pitch);
  }
};

struct Tile {
  const Region* region = nullptr;
  u8* data = nullptr;  // element 0 of partition 0
  Dtype dtype = Dtype::float32;
  Space space = Space::hbm;
  i32 bytes = 4, buffer = -1;
  i32 dims = 0;  // free dimensions, merged where contiguous
  i64 partitions = 0, pitch = 0, elements = 0;
  i64 first_partition = 0;
  std::array<i64, 4> stride{}, count{};    // bytes, elements
  const std::vector<i64>* rows = nullptr;  // indirect: byte offset of each row from data, or `absent`
  static constexpr i64 absent = INT64_MIN;
  const char* operand = "";
  Begun* begun = nullptr;  // PSUM only
  bool contiguous() const { return dims == 0 || (dims == 1 && stride[0] == bytes); }
  u8* row(i64 p) const { return data + (rows ? (*rows)[p] : p * pitch); }
};

// Runs of equally spaced elements: f(pointer, stride, n, elements before it).
template <class F>
inline void for_runs(const Tile& t, u8* row, i64 start, i64 n, F&& f) {
  if (t.dims <= 1) {
    const i64 s = t.dims ? t.stride[0] : t.bytes;
    f(row + start * s, s, n, i64(0));
    return;
  }
  std::array<i64, 4> at{};
  const int last = t.dims - 1;
  i64 rest = start;
  u8* p = row;
  for (int d = last; d >= 0; --d) {
    at[d] = rest % t.count[d];
    rest /= t.count[d];
    p += at[d] * t.stride[d];
  }
  for (i64 done = 0;;) {
    const i64 run = std::min(t.count[last] - at[last], n - done);
    f(p, t.stride[last], run, done);
    done += run;
    if (done >= n) return;
    p -= at[last] * t.stride[last];
    at[last] = 0;
    for (int d = last - 1; d >= 0; --d) {
      p += t.stride[d];
      if (++at[d] < t.count[d]) break;
      p -= t.stride[d] * t.count[d];
      at[d] = 0;
    }
  }
}

[[noreturn]] void uninitialised(const Tile& t, i64 partition, u64 address);

void check_row(const Tile& t, i64 p, i64 start, i64 n);
// The row as floats; returns a pointer into the memory where it already is a contiguous float32 row, else `buffer`.
const float* read_floats(const Tile& t, i64 p, i64 start, i64 n, float* buffer, bool check = true);
void read_integers(const Tile& t, i64 p, i64 start, i64 n, i64* buffer);
void write_floats(const Tile& t, i64 p, i64 start, i64 n, const float* from);
void write_integers(const Tile& t, i64 p, i64 start, i64 n, const i64* from, bool wrap = false);
void mark_row(const Tile& t, i64 p, i64 start, i64 n);
float read_float(const Tile& t, i64 p, i64 element = 0);
i64 read_integer(const Tile& t, i64 p, i64 element = 0);
// Where float32 rows may be written in place; nullptr where they need conversion.
float* float_row(const Tile& t, i64 p, i64 start);

}  // namespace core
