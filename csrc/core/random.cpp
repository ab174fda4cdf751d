// Random numbers. Each partition has its own state; the sequence is ours (the hardware's generator is not published).
#include <algorithm>

#include "core/instructions.h"

namespace core {

namespace {

// xorshift128+ (Vigna), one state per partition.
u32 next(u64 (&s)[2]) {
  u64 x = s[0];
  const u64 y = s[1];
  s[0] = y;
  x ^= x << 23;
  s[1] = x ^ y ^ (x >> 17) ^ (y >> 26);
  return u32((s[1] + y) >> 32);
}

void seed(u64 (&s)[2], u64 a, u64 b) {
  auto mix = [](u64 z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
  };
  s[0] = mix(a + 0x9E3779B97F4A7C15ULL);
  s[1] = mix(b + 0x3C6EF372FE94F82AULL) | 1;
}

}  // namespace

void random_instruction(Call& c) {
  const Tile t = c.tile(0);
  Core& core = c.core;
  for (i64 p = 0; p < t.partitions; ++p) {
    u64(&state)[2] = core.random_state[t.first_partition + p];
    std::vector<float> row(t.elements);
    std::vector<i64> integers(std::max<i64>(t.elements, 4));
    switch (c.i.opcode) {
      case Opcode::rng:
        for (i64 i = 0; i < t.elements; ++i) integers[i] = next(state);
        if (is_integer(t.dtype))
          write_integers(t, p, 0, t.elements, integers.data(), true);
        else {
          for (i64 i = 0; i < t.elements; ++i) row[i] = float(integers[i] >> 8) * 0x1p-24f;
          write_floats(t, p, 0, t.elements, row.data());
        }
        break;
      case Opcode::rand2: {
        const float low = c.scalar(1).at(p), high = c.scalar(2).at(p);
        for (float& x : row) x = low + (high - low) * (float(next(state) >> 8) * 0x1p-24f);
        write_floats(t, p, 0, t.elements, row.data());
        break;
      }
      case Opcode::dropout: {
        const Tile data = c.tile(1);
        const float drop = c.scalar(2).at(p);
        std::vector<float> in(t.elements);
        const float* from = read_floats(data, p, 0, t.elements, in.data());
        for (i64 i = 0; i < t.elements; ++i) row[i] = float(next(state) >> 8) * 0x1p-24f < drop ? 0.0f : from[i];
        write_floats(t, p, 0, t.elements, row.data());
        break;
      }
      case Opcode::set_rng_seed:
      case Opcode::rand_set_state:
        read_integers(t, p, 0, t.elements, integers.data());
        if (c.i.opcode == Opcode::rand_set_state && t.elements >= 4) {
          state[0] = u64(u32(integers[0])) | u64(u32(integers[1])) << 32;
          state[1] = u64(u32(integers[2])) | u64(u32(integers[3])) << 32;
          if (!(state[0] | state[1])) state[1] = 1;
        } else {
          seed(state, u64(integers[0]) + u64(p) * 0x632BE59BD9B4E019ULL, t.elements > 1 ? u64(integers[1]) : u64(p));
        }
        break;
      default: {  // rand_get_state
        std::fill(integers.begin(), integers.end(), 0);
        integers[0] = i64(state[0] & 0xffffffff);
        integers[1] = i64(state[0] >> 32);
        integers[2] = i64(state[1] & 0xffffffff);
        integers[3] = i64(state[1] >> 32);
        write_integers(t, p, 0, t.elements, integers.data(), true);
      }
    }
  }
}

}  // namespace core
