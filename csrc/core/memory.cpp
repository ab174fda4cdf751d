#include "core/memory.h"

#include <sys/mman.h>

#include <atomic>
#include <cstring>
#include <utility>

namespace core {

Pages::Pages(u64 bytes) : size_(bytes ? bytes : 1) {
  void* p = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED)
    fail(Category::capacity, "the host has no " + std::to_string(bytes) + " bytes for the virtual core",
         "use a smaller program, or a dry run");
  data_ = static_cast<u8*>(p);
}
Pages::~Pages() {
  if (data_) munmap(data_, size_);
}
Pages& Pages::operator=(Pages&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

namespace {

// Applies f(byte index, mask) to the bits [at, at + n): edges by mask, whole bytes by `whole`.
template <class Edge, class Whole>
inline bool walk_bits(u64 at, u64 n, Edge&& edge, Whole&& whole) {
  if (!n) return true;
  const u64 end = at + n, first = at >> 3, last = (end - 1) >> 3;
  const u8 low = u8(0xff << (at & 7)), high = u8(0xff >> (7 - ((end - 1) & 7)));
  if (first == last) return edge(first, u8(low & high));
  u64 begin = first, stop = last + 1;
  if (low != 0xff) {
    if (!edge(first, low)) return false;
    ++begin;
  }
  if (high != 0xff) {
    if (!edge(last, high)) return false;
    --stop;
  }
  return begin >= stop || whole(begin, stop - begin);
}

}  // namespace

bool all_written(const Region& r, u64 at, u64 n) {
  if (!r.written) return true;
  return walk_bits(
      at, n, [&](u64 i, u8 mask) { return (r.written[i] & mask) == mask; },
      [&](u64 i, u64 count) {
        const u8* p = r.written + i;
        while (count >= 64) {
          u64 words[8];
          std::memcpy(words, p, 64);
          u64 all = ~u64(0);
          for (u64 w : words) all &= w;
          if (all != ~u64(0)) return false;
          p += 64;
          count -= 64;
        }
        while (count >= 8) {
          u64 word;
          std::memcpy(&word, p, 8);
          if (word != ~u64(0)) return false;
          p += 8;
          count -= 8;
        }
        while (count--)
          if (*p++ != 0xff) return false;
        return true;
      });
}

void mark_written(const Region& r, u64 at, u64 n) {
  if (!r.written) return;
  walk_bits(
      at, n,
      [&](u64 i, u8 mask) {
        if (r.shared)
          std::atomic_ref<u8>(r.written[i]).fetch_or(mask, std::memory_order_relaxed);
        else
          r.written[i] |= mask;
        return true;
      },
      [&](u64 i, u64 count) {
        std::memset(r.written + i, 0xff, count);
        return true;
      });
}

void mark_unwritten(const Region& r, u64 at, u64 n) {
  if (!r.written) return;
  walk_bits(
      at, n,
      [&](u64 i, u8 mask) {
        r.written[i] &= u8(~mask);
        return true;
      },
      [&](u64 i, u64 count) {
        std::memset(r.written + i, 0, count);
        return true;
      });
}

CoreMemory::CoreMemory(i64 sbuf_bytes, i64 psum_bytes)
    : sbuf_pitch(sbuf_bytes + 192),
      psum_pitch(psum_bytes + 192),
      sbuf_pages_(u64(sbuf_pitch) * partitions_max),
      sbuf_bits_(u64(sbuf_pitch) * partitions_max / 8 + 8),
      psum_pages_(u64(psum_pitch) * partitions_max),
      psum_bits_(u64(psum_pitch) * partitions_max / 8 + 8) {
  sbuf = {sbuf_pages_.data(), u64(sbuf_pitch) * partitions_max, sbuf_bits_.data(), false};
  psum = {psum_pages_.data(), u64(psum_pitch) * partitions_max, psum_bits_.data(), false};
}

}  // namespace core
