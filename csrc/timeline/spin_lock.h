// A lock for sections of a few dozen instructions, taken several times per operator and almost never contended.
#pragma once

#include <atomic>
#include <thread>

namespace opentrn {

class SpinLock {
 public:
  void lock() {
    int spins = 0;
    while (held_.exchange(true, std::memory_order_acquire)) {
      if (++spins > 64) std::this_thread::yield();  // the holder may not be running
    }
  }
  void unlock() { held_.store(false, std::memory_order_release); }

 private:
  std::atomic<bool> held_{false};
};

}  // namespace opentrn
