#include "core/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>

namespace core {

Pages::Pages(u64 bytes) : size_(bytes ? bytes : 1) {
  void* p = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED)
    fail(Category::capacity, "the host has no " + std::to_string(bytes) + " bytes for the virtual core",
         "use a smaller program, or a dry run");
  data_ = static_cast<u8*>(p);
}
void Pages::prefer_large() { madvise(data_, size_, MADV_HUGEPAGE); }
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

typedef u64 Bits __attribute__((vector_size(16)));

inline Bits bits_at(const u8* p) {
  Bits bits;
  std::memcpy(&bits, p, sizeof bits);
  return bits;
}

}  // namespace

bool all_written(const Region& r, u64 at, u64 n) {
  if (!r.written) return true;
  return walk_bits(
      at, n, [&](u64 i, u8 mask) { return (r.written[i] & mask) == mask; },
      [&](u64 i, u64 count) {
        const u8* p = r.written + i;
        for (; count >= 128; p += 128, count -= 128) {
          Bits all = bits_at(p);
          for (int k = 16; k < 128; k += 16) all &= bits_at(p + k);
          if ((all[0] & all[1]) != ~u64(0)) return false;
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

namespace {

// Pages that nobody uses, the latest last.
struct Idle {
  static constexpr u64 most = u64(64) << 20;
  std::mutex mutex;
  std::vector<Pages> pages;
  u64 bytes = 0;
};
Idle& idle_pages() {
  static auto& idle = *new Idle;  // leaked on purpose: arrays may die after static objects do
  return idle;
}

}  // namespace

Pages take_pages(u64 bytes) {
  Idle& idle = idle_pages();
  {
    const std::lock_guard lock(idle.mutex);
    for (std::size_t i = idle.pages.size(); i--;) {
      if (idle.pages[i].size() != bytes) continue;
      Pages found = std::move(idle.pages[i]);
      idle.pages.erase(idle.pages.begin() + i);
      idle.bytes -= bytes;
      return found;
    }
  }
  Pages pages(bytes);
  if (bytes >= u64(4) << 20) pages.prefer_large();
  return pages;
}

void give_pages(Pages pages) {
  Idle& idle = idle_pages();
  if (!pages.data() || pages.size() > Idle::most / 2) return;
  std::vector<Pages> dropped;  // unmapped after the lock
  const std::lock_guard lock(idle.mutex);
  idle.bytes += pages.size();
  idle.pages.push_back(std::move(pages));
  while (idle.bytes > Idle::most) {
    idle.bytes -= idle.pages.front().size();
    dropped.push_back(std::move(idle.pages.front()));
    idle.pages.erase(idle.pages.begin());
  }
}

// 403 cache lines more than a multiple of 64 KiB, whose multiples are far from each other modulo 64 and modulo 1024.
constexpr i64 padding = 25792;

CoreMemory::CoreMemory(i64 sbuf_bytes, i64 psum_bytes)
    : sbuf_pitch(sbuf_bytes + padding),
      psum_pitch(psum_bytes + padding),
      sbuf_pages_(u64(sbuf_pitch) * partitions_max),
      sbuf_bits_(u64(sbuf_pitch) * partitions_max / 8 + 8),
      psum_pages_(u64(psum_pitch) * partitions_max),
      psum_bits_(u64(psum_pitch) * partitions_max / 8 + 8) {
  // A tile has a few KiB in each of 128 partitions: with pages of 4 KiB nearly every row costs a look-up of its own.
  for (Pages* pages : {&sbuf_pages_, &sbuf_bits_, &psum_pages_, &psum_bits_}) pages->prefer_large();
  sbuf = {sbuf_pages_.data(), u64(sbuf_pitch) * partitions_max, sbuf_bits_.data(), false};
  psum = {psum_pages_.data(), u64(psum_pitch) * partitions_max, psum_bits_.data(), false};
}

void CoreMemory::use(bool in_sbuf, i64 begin, i64 end) {
  if (begin < end) (in_sbuf ? sbuf_used_ : psum_used_).push_back({begin, end});
}

void CoreMemory::forget() {
  auto clear = [](std::vector<std::pair<i64, i64>>& used, const Region& region, i64 pitch) {
    std::sort(used.begin(), used.end());
    for (std::size_t i = 0; i < used.size();) {
      auto [begin, end] = used[i];
      for (++i; i < used.size() && used[i].first <= end; ++i) end = std::max(end, used[i].second);
      for (i64 p = 0; p < partitions_max; ++p) mark_unwritten(region, u64(p * pitch + begin), u64(end - begin));
    }
    used.clear();
  };
  clear(sbuf_used_, sbuf, sbuf_pitch);
  clear(psum_used_, psum, psum_pitch);
}

std::shared_ptr<CoreMemory> CoreMemory::take(i64 sbuf_bytes, i64 psum_bytes) {
  constexpr std::size_t kept = 8;
  // Leaked on purpose: a core may die after static objects do.
  static auto& mutex = *new std::mutex;
  static auto& idle = *new std::vector<std::unique_ptr<CoreMemory>>;
  std::unique_ptr<CoreMemory> memory;
  {
    const std::lock_guard lock(mutex);
    for (auto& m : idle)
      if (m->sbuf_pitch == sbuf_bytes + padding && m->psum_pitch == psum_bytes + padding) {
        memory = std::move(m);
        m = std::move(idle.back());
        idle.pop_back();
        break;
      }
  }
  if (!memory) memory = std::make_unique<CoreMemory>(sbuf_bytes, psum_bytes);
  return {memory.release(), [](CoreMemory* m) {
            std::unique_ptr<CoreMemory> mine(m);
            mine->forget();
            const std::lock_guard lock(mutex);
            if (idle.size() < kept) idle.push_back(std::move(mine));
          }};
}

}  // namespace core
