// Memories: linear byte arrays, each with one bit per byte that says whether the byte was ever written.
#pragma once
#include <memory>
#include <utility>
#include <vector>

#include "core/types.h"

namespace core {

struct Region {
  u8* base = nullptr;
  u64 size = 0;
  u8* written = nullptr;  // bit per byte; nullptr: always written (kernel inputs, constants)
  bool shared = false;    // several host threads may write neighbouring bytes: edges of bit ranges are atomic
  bool lenient = false;   // what nothing has written may be read; `written` is asked at the end only
};

bool all_written(const Region& r, u64 at, u64 n);
void mark_written(const Region& r, u64 at, u64 n);
void mark_unwritten(const Region& r, u64 at, u64 n);

// Anonymous zero pages: memory that a program does not touch costs nothing.
class Pages {
 public:
  Pages() = default;
  explicit Pages(u64 bytes);
  ~Pages();
  Pages(Pages&& other) noexcept { *this = std::move(other); }
  Pages& operator=(Pages&& other) noexcept;
  Pages(const Pages&) = delete;
  void prefer_large();  // large pages of the host where it has them
  u8* data() const { return data_; }
  u64 size() const { return size_; }

 private:
  u8* data_ = nullptr;
  u64 size_ = 0;
};

// Pages with whatever is in them: those of an owner that is gone where there are some of that size, for the host hands
// out every new page one by one; else new ones.
Pages take_pages(u64 bytes);
void give_pages(Pages pages);

// SBUF and PSUM of one core. Partition p of a memory starts at base + p * pitch; the pitch is padded such that the rows
// of a tile spread over all the cache sets of the host.
struct CoreMemory {
  CoreMemory(i64 sbuf_bytes, i64 psum_bytes);
  Region sbuf, psum;
  i64 sbuf_pitch, psum_pitch;
  // Bytes [begin, end) of every partition will be used: what `take` has to forget before the next owner.
  void use(bool in_sbuf, i64 begin, i64 end);
  // A memory of that size in which nothing is written: one whose owner is gone, for its pages are already there, or a
  // new one.
  static std::shared_ptr<CoreMemory> take(i64 sbuf_bytes, i64 psum_bytes);

 private:
  void forget();
  Pages sbuf_pages_, sbuf_bits_, psum_pages_, psum_bits_;
  std::vector<std::pair<i64, i64>> sbuf_used_, psum_used_;
};

}  // namespace core
