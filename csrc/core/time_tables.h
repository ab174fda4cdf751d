// What the time visitor knows of a plan before it walks it.
#pragma once
#include <algorithm>

#include "core/builder.h"
#include "core/time.h"

namespace core {

enum class Kind : u8 { compute, dma, begin, barrier, sendrecv, collective, registers, signal, wait, nothing };

// One tracked memory of a core, cut into chunks at every boundary some access has.
struct ChunkMap {
  i64 granule = 1;
  int shift = -1;             // of a granule that is a power of two: a division for every operand would show
  std::vector<i32> chunk_of;  // granule -> chunk
  i32 chunks = 0, first = 0;  // first: index of chunk 0 in the core's state
  // The chunk that holds a byte (the nearest one for bytes outside), as an index in the core's state.
  i32 at(i64 byte) const {
    const i64 place = shift >= 0 ? byte >> shift : byte / granule;
    return first + chunk_of[std::clamp<i64>(place, 0, i64(chunk_of.size()) - 1)];
  }
};

struct Operand {
  bool write = false, accumulate = false, tracked = true;
  i32 memory = -1;  // index into TimeTables::maps
  i32 buffer = -1;
  Quantity byte;          // first byte, without rotation
  i64 low = 0, high = 0;  // extent around it
  i32 rotation = -1;      // index of the rotating tile, or -1
  bool fixed = false;
  i32 first = 0, last = 0;  // chunk range when fixed
  u8 groups = 1;            // 32-partition groups touched
};

struct TimeInstruction {
  Kind kind = Kind::compute;
  Engine engine = Engine::sync;
  bool fixed = true;
  i64 cost = 0, latency = 0;  // ticks
  i64 issue = 0, transfer = 0,
      pool = 0;  // DMA: ticks of descriptor generation, of the transfer, of all DMA engines together
  bool software = false;
  u8 queue = 0;  // DMA: 0 load, 1 store, 2 other
  i32 path = -1;
  double bytes = 0, flops = 0, hardware_flops = 0;
  i32 first_operand = 0, last_operand = 0;
  i32 rotation = -1;  // begin: which tile rotates
};

struct Rotation {
  i32 buffer;
  i64 copies, stride;
};

struct TimeTables {
  explicit TimeTables(const Plan& plan);
  const Plan& plan;
  double tick_ns;
  std::array<i64, engine_count> cycle{};  // ticks
  std::vector<TimeInstruction> instructions;
  std::vector<Operand> operands;
  std::vector<std::vector<ChunkMap>> maps;      // per core
  std::vector<std::vector<i32>> map_of_buffer;  // per core: buffer -> map, -1 untracked
  std::vector<Rotation> rotations;
  std::vector<std::string> paths;
  std::vector<bool> split;  // per core: partition groups matter
  i64 ticks(double ns) const { return i64(ns / tick_ns + 0.5); }
  void cost(i32 instruction, const i64* slots, TimeInstruction& t) const;

 private:
  void add_operands(int core);
  void cut(int core);
};

}  // namespace core
