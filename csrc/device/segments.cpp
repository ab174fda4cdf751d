#include "device/segments.h"

#include <algorithm>
#include <bit>

namespace opentrn::memory {
namespace {

constexpr uint64_t kLargeSplitRemainder = 1 << 20;  // a smaller rest of a large block is not split off

void increase(Counters& counters, bool large, int64_t amount) {
  counters[0].increase(amount);
  counters[large ? 2 : 1].increase(amount);
}

void decrease(Counters& counters, bool large, int64_t amount) {
  counters[0].decrease(amount);
  counters[large ? 2 : 1].decrease(amount);
}

uint64_t round_up(uint64_t value, uint64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

}  // namespace

SegmentAllocator::SegmentAllocator(const timeline::Machine& machine, int device_index)
    : machine_(machine),
      capacity_(static_cast<uint64_t>(machine.hbm_bytes - machine.hbm_reserved_bytes)),
      // Each device has its own range of virtual addresses; the first page stays unused, so 0 is never an address.
      next_address_((static_cast<uint64_t>(device_index) << 44) + (1 << 20)) {}

SegmentAllocator::~SegmentAllocator() {
  for (auto& segment : segments_) {
    for (Block* block = segment->first; block;) {
      Block* next = block->next;
      delete block;
      block = next;
    }
  }
  for (Block* block : spare_blocks_) delete block;
}

uint64_t SegmentAllocator::round(uint64_t bytes) const {
  const auto least = static_cast<uint64_t>(machine_.min_block_bytes);
  if (bytes <= least) return least;
  if (bytes >= static_cast<uint64_t>(machine_.size_class_limit_bytes)) return bytes;
  // Eight classes per doubling, and never finer than the least block.
  const uint64_t step = std::max(std::bit_floor(bytes) / kStepsPerDoubling, least);
  return round_up(bytes, step);
}

// The class whose sizes are ≤ size < the next class's.
int SegmentAllocator::class_floor(uint64_t size) {
  const int doubling = std::bit_width(size) - 1;
  const int step = doubling >= 3 ? static_cast<int>((size >> (doubling - 3)) & 7) : 0;
  return std::min(doubling * kStepsPerDoubling + step, kClasses - 1);
}

void SegmentAllocator::push_free(Pool& pool, Block* block) {
  const int index = class_floor(block->size);
  block->free = true;
  block->previous_free = nullptr;
  block->next_free = pool.lists[index];
  if (block->next_free) block->next_free->previous_free = block;
  pool.lists[index] = block;
  pool.occupied[index / 64] |= uint64_t{1} << (index % 64);
}

void SegmentAllocator::pop_free(Pool& pool, Block* block) {
  const int index = class_floor(block->size);
  if (block->previous_free) {
    block->previous_free->next_free = block->next_free;
  } else {
    pool.lists[index] = block->next_free;
    if (!block->next_free) pool.occupied[index / 64] &= ~(uint64_t{1} << (index % 64));
  }
  if (block->next_free) block->next_free->previous_free = block->previous_free;
  block->free = false;
}

Block* SegmentAllocator::find(Pool& pool, uint64_t size) {
  // Blocks of the request's own class may be a little too small; every block of a higher class fits.
  int index = class_floor(size);
  for (Block* block = pool.lists[index]; block; block = block->next_free) {
    if (block->size >= size) return block;
  }
  ++index;
  for (size_t word = index / 64; word < pool.occupied.size(); ++word) {
    uint64_t bits = pool.occupied[word];
    if (word == static_cast<size_t>(index) / 64) bits &= ~uint64_t{0} << (index % 64);
    if (bits) return pool.lists[word * 64 + std::countr_zero(bits)];
  }
  return nullptr;
}

Block* SegmentAllocator::new_block() {
  if (spare_blocks_.empty()) return new Block();
  Block* block = spare_blocks_.back();
  spare_blocks_.pop_back();
  *block = Block();
  return block;
}

Block* SegmentAllocator::new_segment(uint64_t size, bool large) {
  uint64_t bytes = static_cast<uint64_t>(machine_.small_segment_bytes);
  if (large) {
    const auto least = static_cast<uint64_t>(machine_.large_segment_bytes);
    bytes = size <= least / 2 ? least : round_up(size, static_cast<uint64_t>(machine_.segment_round_bytes));
  }
  if (statistics_.reserved_bytes[0].current + bytes > limit()) return nullptr;
  auto segment = std::make_unique<Segment>();
  segment->address = next_address_;
  segment->size = bytes;
  segment->large = large;
  next_address_ += round_up(bytes, 1 << 21);
  Block* block = new_block();
  block->address = segment->address;
  block->size = bytes;
  block->segment = segment.get();
  segment->first = block;
  segments_.push_back(std::move(segment));
  push_free(pool(large), block);
  increase(statistics_.segment, large, 1);
  increase(statistics_.reserved_bytes, large, static_cast<int64_t>(bytes));
  ++statistics_.segment_allocations;
  return block;
}

bool SegmentAllocator::is_whole_segment(const Block* block) const { return !block->previous && !block->next; }

void SegmentAllocator::split(Block* block, uint64_t size, bool large) {
  const uint64_t rest = block->size - size;
  const uint64_t least = large ? kLargeSplitRemainder : static_cast<uint64_t>(machine_.min_block_bytes);
  if (rest < least) return;
  Block* tail = new_block();
  tail->address = block->address + size;
  tail->size = rest;
  tail->segment = block->segment;
  tail->previous = block;
  tail->next = block->next;
  if (tail->next) tail->next->previous = tail;
  block->next = tail;
  block->size = size;
  push_free(pool(large), tail);
}

Block* SegmentAllocator::allocate(uint64_t bytes, const Origin& origin, int64_t time, Shortage* shortage) {
  std::lock_guard<SpinLock> lock(mutex_);
  const bool large = bytes >= static_cast<uint64_t>(machine_.small_request_bytes);
  const uint64_t size = round(bytes);
  Block* block = large ? nullptr : find_quick(size);
  const bool quick = block != nullptr;
  Pool& from = pool(large);
  if (!block) block = find(from, size);
  if (!block && !large) {
    flush_quick();
    block = find(from, size);
  }
  if (!block) block = new_segment(size, large);
  if (!block) {
    ++statistics_.retries;
    empty_cache_locked();
    block = new_segment(size, large);
  }
  if (!block) {
    ++statistics_.out_of_memory;
    *shortage = {bytes, limit(), static_cast<uint64_t>(statistics_.reserved_bytes[0].current),
                 static_cast<uint64_t>(statistics_.allocated_bytes[0].current)};
    return nullptr;
  }
  if (!quick) {
    pop_free(from, block);
    split(block, size, large);
  }
  block->requested = bytes;
  block->serial = next_serial_++;
  block->origin = origin;
  increase(statistics_.allocation, large, 1);
  increase(statistics_.allocated_bytes, large, static_cast<int64_t>(block->size));
  increase(statistics_.requested_bytes, large, static_cast<int64_t>(bytes));
  if (logging_) log(*block, EventKind::kAllocate, time);
  return block;
}

// Joins `other`, a free neighbour that follows `block`, into `block`.
Block* SegmentAllocator::merge(Block* block, Block* other) {
  block->size += other->size;
  block->next = other->next;
  if (block->next) block->next->previous = block;
  spare_blocks_.push_back(other);
  return block;
}

void SegmentAllocator::release(Block* block, int64_t time) {
  std::lock_guard<SpinLock> lock(mutex_);
  const bool large = block->segment->large;
  if (logging_) log(*block, EventKind::kFree, time);
  decrease(statistics_.allocation, large, 1);
  decrease(statistics_.allocated_bytes, large, static_cast<int64_t>(block->size));
  decrease(statistics_.requested_bytes, large, static_cast<int64_t>(block->requested));
  block->requested = 0;
  if (large) {
    merge_free(block);
    return;
  }
  const int index = class_floor(block->size);
  block->free = block->quick = true;
  block->next_free = quick_[index];
  quick_[index] = block;
}

Block* SegmentAllocator::find_quick(uint64_t size) {
  const int index = class_floor(size);
  Block* block = quick_[index];
  if (!block || block->size != size) return nullptr;
  quick_[index] = block->next_free;
  block->free = block->quick = false;
  return block;
}

// Joins a block with its free neighbours and hangs it into its list.
void SegmentAllocator::merge_free(Block* block) {
  Pool& to = pool(block->segment->large);
  for (Block* neighbour : {block->next, block->previous}) {
    if (!neighbour || !neighbour->free || neighbour->quick) continue;
    pop_free(to, neighbour);
    block = neighbour == block->next ? merge(block, neighbour) : merge(neighbour, block);
  }
  push_free(to, block);
}

void SegmentAllocator::flush_quick() {
  for (Block*& list : quick_) {
    while (list) {
      Block* block = list;
      list = block->next_free;
      block->quick = false;
      merge_free(block);
    }
  }
}

void SegmentAllocator::count_inactive(Statistics& statistics) const {
  for (const auto& segment : segments_) {
    for (Block* block = segment->first; block; block = block->next) {
      if (!block->free || is_whole_segment(block)) continue;
      increase(statistics.inactive_split, segment->large, 1);
      increase(statistics.inactive_split_bytes, segment->large, static_cast<int64_t>(block->size));
    }
  }
}

void SegmentAllocator::release_segment(Segment* segment) {
  pop_free(pool(segment->large), segment->first);
  spare_blocks_.push_back(segment->first);
  decrease(statistics_.segment, segment->large, 1);
  decrease(statistics_.reserved_bytes, segment->large, static_cast<int64_t>(segment->size));
  ++statistics_.segment_frees;
}

void SegmentAllocator::empty_cache_locked() {
  flush_quick();
  std::erase_if(segments_, [this](const std::unique_ptr<Segment>& segment) {
    if (!segment->first->free || !is_whole_segment(segment->first)) return false;
    release_segment(segment.get());
    return true;
  });
}

void SegmentAllocator::empty_cache() {
  std::lock_guard<SpinLock> lock(mutex_);
  empty_cache_locked();
}

void SegmentAllocator::set_fraction(double fraction) {
  std::lock_guard<SpinLock> lock(mutex_);
  fraction_ = fraction;
}

uint64_t SegmentAllocator::limit() const { return static_cast<uint64_t>(capacity_ * fraction_); }

Statistics SegmentAllocator::statistics() {
  std::lock_guard<SpinLock> lock(mutex_);
  Statistics statistics = statistics_;
  count_inactive(statistics);
  return statistics;
}

namespace {
template <typename Apply>
void for_all_counters(Statistics& statistics, Apply&& apply) {
  for (Counters* counters : {&statistics.allocation, &statistics.segment, &statistics.allocated_bytes,
                             &statistics.reserved_bytes, &statistics.requested_bytes}) {
    for (Counter& counter : *counters) apply(counter);
  }
}
}  // namespace

void SegmentAllocator::reset_peak() {
  std::lock_guard<SpinLock> lock(mutex_);
  for_all_counters(statistics_, [](Counter& counter) { counter.reset_peak(); });
}

void SegmentAllocator::reset_accumulated() {
  std::lock_guard<SpinLock> lock(mutex_);
  for_all_counters(statistics_, [](Counter& counter) { counter.reset_accumulated(); });
  statistics_.retries = statistics_.out_of_memory = 0;
}

void SegmentAllocator::log(const Block& block, EventKind kind, int64_t time) {
  log_.push_back({time, block.serial, block.address, block.size, block.requested, kind, block.origin});
}

void SegmentAllocator::set_category(Block* block, Category category, int64_t time) {
  std::lock_guard<SpinLock> lock(mutex_);
  if (block->origin.category == category) return;
  block->origin.category = category;
  if (logging_) log(*block, EventKind::kRelabel, time);
}

void SegmentAllocator::start_log(int64_t time) {
  std::lock_guard<SpinLock> lock(mutex_);
  logging_ = true;
  for (const auto& segment : segments_) {
    for (Block* block = segment->first; block; block = block->next) {
      if (!block->free) log(*block, EventKind::kAllocate, time);
    }
  }
}

std::vector<Event> SegmentAllocator::drain_log(bool stop) {
  std::lock_guard<SpinLock> lock(mutex_);
  std::vector<Event> events;
  events.swap(log_);
  if (stop) logging_ = false;
  return events;
}

}  // namespace opentrn::memory
