// Unit tests of the parts that need no program: expressions, formulas, conversions, bit ranges, rows, the product
// kernel, shared loops. tests/core/test_cpp_units.py compiles and runs this file; it prints what failed and exits with
// their number.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <thread>
#include <vector>

#include "core/dtype.h"
#include "core/expression.h"
#include "core/gemm.h"
#include "core/memory.h"
#include "core/table.h"
#include "core/team.h"
#include "core/tile.h"

using namespace core;

static int failures = 0, checks = 0;
#define CHECK(condition) \
  (++checks, (condition) ? void() : (++failures, std::printf("%s:%d: %s\n", __FILE__, __LINE__, #condition), void()))

static void expressions() {
  ExpressionTable t;
  const i32 i = t.leaf(Node::loop, 0), m = t.leaf(Node::symbol, 0);
  CHECK(t.binary(Node::add, t.constant(2), t.constant(3)) == t.constant(5));
  CHECK(t.binary(Node::add, i, t.constant(0)) == i);
  CHECK(t.binary(Node::multiply, i, t.constant(1)) == i);
  CHECK(t.binary(Node::multiply, i, t.constant(0)) == t.constant(0));
  CHECK(t.binary(Node::add, t.binary(Node::add, i, t.constant(1)), t.constant(2)) ==
        t.binary(Node::add, i, t.constant(3)));
  // a product distributes: (i + 2) * 4 is i * 4 + 8
  CHECK(t.binary(Node::multiply, t.binary(Node::add, i, t.constant(2)), t.constant(4)) ==
        t.binary(Node::add, t.binary(Node::multiply, i, t.constant(4)), t.constant(8)));
  auto values = [](Node op, i32) { return op == Node::loop ? i64(7) : i64(300); };
  CHECK(t.evaluate(t.binary(Node::minimum, t.constant(128),
                            t.binary(Node::add, m, t.binary(Node::multiply, i, t.constant(-40)))),
                   values) == 20);
  CHECK(t.evaluate(t.binary(Node::ceil_div, m, t.constant(128)), values) == 3);
  CHECK(t.evaluate(t.binary(Node::floor_div, t.constant(-7), t.constant(2)), values) == -4);
  CHECK(t.evaluate(t.binary(Node::modulo, m, t.constant(128)), values) == 44);
  CHECK(t.depends_on(t.binary(Node::add, i, m), Node::symbol, 0) && !t.depends_on(i, Node::symbol, 0));
  bool refused = false;
  try {
    t.binary(Node::floor_div, i, t.constant(0));
  } catch (const Error&) {
    refused = true;
  }
  CHECK(refused);
}

static void formulas() {
  auto value = [](const std::string& property, const std::string& operand) {
    return operand == "x" ? (property == "free" ? 300.0 : 1.0) : property == "N" ? 10.0 : 0.0;
  };
  CHECK(Formula("max(64, N / 2)").evaluate(value) == 64);
  CHECK(Formula("2 * free.x + 1").evaluate(value) == 601);
  CHECK(Formula("free.x <= 300 and not (free.x < 300 or sbuf.y)").evaluate(value) == 1);
  CHECK(Formula("13 * N / 3 - -1").evaluate(value) == 130.0 / 3 + 1);
  CHECK(Formula("ceil(free.x / 128) % 2").evaluate(value) == 1);
  for (const char* text : {"1 +", "max(1", "free.x <", "foo(1)", "1 2"}) {
    bool refused = false;
    try {
      Formula f(text);
    } catch (const Error&) {
      refused = true;
    }
    CHECK(refused);
  }
}

static void conversions() {
  const float in[] = {1.0f, -2.5f, 0.3f, 70000.0f, NAN};
  u16 half[5];
  store_floats(Dtype::float16, in, 5, reinterpret_cast<u8*>(half), 2);
  CHECK(half[0] == 0x3c00 && half[1] == 0xc100 && half[3] == 0x7c00);
  float out[5];
  load_floats(Dtype::float16, reinterpret_cast<u8*>(half), 2, 5, out);
  CHECK(out[1] == -2.5f && std::isinf(out[3]) && std::isnan(out[4]));
  CHECK(bfloat16_round(1.00390625f) == 1.0f && bfloat16_round(1.01171875f) == 1.015625f);  // ties to even
  u8 packed[4];
  const float four[] = {1, -2, 0.5f, 448};
  pack_x4(Dtype::float8_e4m3fn_x4, four, 1, packed, 4);
  float back[4];
  unpack_x4(Dtype::float8_e4m3fn_x4, packed, 4, 1, back);
  for (int k = 0; k < 4; ++k) CHECK(back[k] == four[k]);
  std::int8_t integers[3];
  const float wide[] = {127.6f, -500, 2.5f};
  store_floats(Dtype::int8, wide, 3, reinterpret_cast<u8*>(integers), 1);
  CHECK(integers[0] == 127 && integers[1] == -128 && integers[2] == 2);
}

static void written_bits() {
  std::vector<u8> memory(1000), bits(130, 0);
  const Region r{memory.data(), 1000, bits.data(), false};
  u64 seed = 1;
  std::vector<bool> expected(1000, false);
  for (int round = 0; round < 500; ++round) {
    seed = seed * 6364136223846793005ULL + 1442695040888963407ULL;
    const u64 at = (seed >> 33) % 900, n = (seed >> 20) % 100;
    const bool set = seed >> 62 & 1;
    set ? mark_written(r, at, n) : mark_unwritten(r, at, n);
    for (u64 k = at; k < at + n; ++k) expected[k] = set;
    const u64 from = (seed >> 40) % 900, length = (seed >> 10) % 90;
    bool all = true;
    for (u64 k = from; k < from + length; ++k) all = all && expected[k];
    CHECK(all_written(r, from, length) == all);
  }
}

static void rows() {
  std::vector<float> memory(200);
  for (int k = 0; k < 200; ++k) memory[k] = float(k);
  Region r{reinterpret_cast<u8*>(memory.data()), 800, nullptr, false};
  Tile t;
  t.region = &r;
  t.data = r.base + 4;
  t.dims = 2;
  t.partitions = 2;
  t.pitch = 400;
  t.elements = 6;
  t.stride = {40, 8};
  t.count = {2, 3};
  float buffer[6];
  const float* row = read_floats(t, 1, 1, 5, buffer);
  const float expected[] = {103, 105, 111, 113, 115};
  for (int k = 0; k < 5; ++k) CHECK(row[k] == expected[k]);
}

static void products() {
  for (i64 m : {1, 4, 7, 130})
    for (i64 n : {1, 16, 19, 70}) {
      const i64 k = 33;
      std::vector<float> a(k * m), b(k * n), c(m * n, 1.0f);
      for (std::size_t i = 0; i < a.size(); ++i) a[i] = float(int(i * 7 % 11) - 5);
      for (std::size_t i = 0; i < b.size(); ++i) b[i] = float(int(i * 5 % 13) - 6);
      gemm(m, n, k, a.data(), m, b.data(), n, c.data(), n, true);
      bool right = true;
      for (i64 i = 0; i < m; ++i)
        for (i64 j = 0; j < n; ++j) {
          float s = 1;
          for (i64 x = 0; x < k; ++x) s += a[x * m + i] * b[x * n + j];
          right = right && c[i * n + j] == s;
        }
      CHECK(right);
    }
}

// Every iteration once, whoever comes to help; also from two threads at once, and in a forked child.
static bool shares_all(i64 trips, int threads) {
  std::vector<std::atomic<int>> runs(trips);
  std::atomic<bool> known{true};
  share_iterations(trips, threads, [&](int worker, i64 n) {
    known = known && worker >= 0 && worker < threads && worker < trips;
    ++runs[n];
  });
  return known && std::all_of(runs.begin(), runs.end(), [](auto& n) { return n == 1; });
}

static void shared_iterations() {
  for (i64 trips : {0, 1, 2, 5, 1000})
    for (int threads : {1, 2, 4}) CHECK(shares_all(trips, threads));
  bool right = true, other_right = true;
  auto many = [](bool& right) {
    for (int k = 0; k < 200; ++k) right = right && shares_all(50, 3);
  };
  std::thread other([&] { many(other_right); });
  many(right);
  other.join();
  CHECK(right && other_right);
  const pid_t child = fork();
  if (!child) _exit(shares_all(100, 4) ? 0 : 1);
  int status = -1;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
}

static void kept_pages() {
  Pages pages = take_pages(123456);
  const u8* data = pages.data();
  give_pages(std::move(pages));
  Pages other = take_pages(123457), same = take_pages(123456);
  CHECK(other.data() != data && same.data() == data && same.size() == 123456);
}

int main() {
  expressions();
  formulas();
  conversions();
  written_bits();
  rows();
  products();
  shared_iterations();
  kept_pages();
  std::printf("%d checks, %d failed\n", checks, failures);
  return failures ? 1 : 0;
}
