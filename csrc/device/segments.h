// The caching segment allocator of one device, on virtual addresses.
//
// As the real stack documents it: memory is reserved from the runtime in segments; tensors are blocks inside them;
// requests below 1 MB use the small pool, others the large one; requests below 16 MB are rounded to a size class and
// larger ones are not; reserved ≥ allocated ≥ active. What is not documented (the classes themselves, the sizes of
// segments) is an assumption of the chip files. Finding a block costs O(1): free blocks hang in lists by size class.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "timeline/machine.h"
#include "timeline/spin_lock.h"

namespace opentrn::memory {

enum class Category : uint8_t {
  kOther,
  kParameter,
  kGradient,
  kOptimizerState,
  kActivation,
  kTemporary,
  kInput,
  kBuffer,
  kCache
};
constexpr int kCategoryCount = 9;

struct Segment;

// Who asked for a block: interned identifiers, 0 where unknown.
struct Origin {
  uint32_t operator_id = 0;
  uint32_t module_id = 0;
  uint32_t frame_id = 0;
  Category category = Category::kOther;
  uint8_t phase = 0;  // of the training step
};

struct Block {
  uint64_t address = 0;
  uint64_t size = 0;       // rounded
  uint64_t requested = 0;  // 0 while free
  uint64_t serial = 0;     // identifies the allocation, never reused
  Segment* segment = nullptr;
  Block* previous = nullptr;  // neighbours by address
  Block* next = nullptr;
  Block* previous_free = nullptr;
  Block* next_free = nullptr;
  bool free = true;
  bool quick = false;  // free, and in a quick list: not to be merged
  Origin origin;
};

struct Segment {
  uint64_t address = 0;
  uint64_t size = 0;
  bool large = false;
  Block* first = nullptr;
};

struct Counter {
  int64_t current = 0, peak = 0, allocated = 0, freed = 0;
  void increase(int64_t amount) {
    current += amount;
    allocated += amount;
    if (current > peak) peak = current;
  }
  void decrease(int64_t amount) {
    current -= amount;
    freed += amount;
  }
  void reset_peak() { peak = current; }
  void reset_accumulated() { allocated = freed = 0; }
};

// Index 0 is both pools together, 1 the small one, 2 the large one.
using Counters = std::array<Counter, 3>;

struct Statistics {
  // active = allocated: a block is reusable as soon as its tensor is gone.
  Counters allocation, segment, allocated_bytes, reserved_bytes, requested_bytes;
  // Worked out when asked for; their peaks are not followed.
  Counters inactive_split, inactive_split_bytes;
  int64_t retries = 0, out_of_memory = 0, segment_allocations = 0, segment_frees = 0;
};

enum class EventKind : uint8_t { kAllocate, kFree, kRelabel };

struct Event {
  int64_t time;  // virtual nanoseconds
  uint64_t serial;
  uint64_t address;
  uint64_t size;
  uint64_t requested;
  EventKind kind;
  Origin origin;
};

// What an allocation that does not fit gets to know.
struct Shortage {
  uint64_t requested, capacity, reserved, allocated;
};

class SegmentAllocator {
 public:
  SegmentAllocator(const timeline::Machine& machine, int device_index);
  ~SegmentAllocator();
  SegmentAllocator(const SegmentAllocator&) = delete;

  // A block of at least `bytes` (> 0), or null with `shortage` filled.
  Block* allocate(uint64_t bytes, const Origin& origin, int64_t time, Shortage* shortage);
  void release(Block* block, int64_t time);
  void empty_cache();

  void set_fraction(double fraction);  // of the capacity; 1 at first
  uint64_t limit() const;
  uint64_t capacity() const { return capacity_; }

  Statistics statistics();
  int64_t allocated() const { return statistics_.allocated_bytes[0].current; }  // a racy read is fine for a trace
  void reset_peak();
  void reset_accumulated();
  // Calls visit(segment, block) for every block, in address order within a segment.
  template <typename Visit>
  void visit(Visit&& visit) {
    std::lock_guard<SpinLock> lock(mutex_);
    for (const auto& segment : segments_) {
      for (Block* block = segment->first; block; block = block->next) visit(*segment, *block);
    }
  }
  void set_category(Block* block, Category category, int64_t time);

  // Blocks alive now are logged as allocations at `time`.
  void start_log(int64_t time);
  std::vector<Event> drain_log(bool stop);
  bool logging() const { return logging_; }

 private:
  static constexpr int kStepsPerDoubling = 8;
  static constexpr int kClasses = 48 * kStepsPerDoubling;
  struct Pool {
    std::array<Block*, kClasses> lists{};
    std::array<uint64_t, (kClasses + 63) / 64> occupied{};
  };

  uint64_t round(uint64_t bytes) const;
  static int class_floor(uint64_t size);
  Pool& pool(bool large) { return large ? large_ : small_; }
  Block* find(Pool& pool, uint64_t size);
  Block* find_quick(uint64_t size);
  void merge_free(Block* block);
  void flush_quick();
  void count_inactive(Statistics& statistics) const;
  void push_free(Pool& pool, Block* block);
  void pop_free(Pool& pool, Block* block);
  Block* new_segment(uint64_t size, bool large);
  void split(Block* block, uint64_t size, bool large);
  Block* merge(Block* block, Block* other);
  void release_segment(Segment* segment);
  void empty_cache_locked();
  void log(const Block& block, EventKind kind, int64_t time);
  bool is_whole_segment(const Block* block) const;
  Block* new_block();

  const timeline::Machine& machine_;
  uint64_t capacity_;
  uint64_t next_address_;
  double fraction_ = 1;
  uint64_t next_serial_ = 1;
  Pool small_, large_;
  // Small blocks freed lately, by exact size: most are asked for again at once, so they are not merged until the pool
  // runs short.
  std::array<Block*, kClasses> quick_{};
  std::vector<std::unique_ptr<Segment>> segments_;
  std::vector<Block*> spare_blocks_;
  Statistics statistics_;
  std::vector<Event> log_;
  bool logging_ = false;
  SpinLock mutex_;
};

}  // namespace opentrn::memory
