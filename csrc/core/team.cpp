#include "core/team.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace core {

namespace {

struct Loop {
  const std::function<void(int, i64)>& body;
  i64 trips;
  int seats;  // workers that may still join
  int workers = 1;
  std::atomic<i64> next{0};

  void work(int worker) {
    for (i64 n; (n = next.fetch_add(1, std::memory_order_relaxed)) < trips;) body(worker, n);
  }
};

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

// Whether `done` came true within the time in which going to sleep and being woken would not have paid.
template <class F>
bool soon(std::chrono::microseconds patience, F&& done) {
  const auto end = std::chrono::steady_clock::now() + patience;
  do {
    for (int k = 0; k < 64; ++k) {
      if (done()) return true;
      pause();
    }
  } while (std::chrono::steady_clock::now() < end);
  return done();
}

class Team {
 public:
  void share(Loop& loop) {
    {
      std::unique_lock lock(mutex_);
      if (loop_) {  // another thread's
        lock.unlock();
        return loop.work(0);
      }
      recruit(loop.seats);
      keep_off_this_processor();
      loop_ = &loop;
      loops_.fetch_add(1, std::memory_order_release);
      for (int k = std::min(loop.seats, asleep_); k > 0; --k) wake_.notify_one();
    }
    loop.work(0);
    {
      const std::lock_guard lock(mutex_);
      loop_ = nullptr;  // who comes now comes too late
    }
    const auto empty = [&] { return inside_.load(std::memory_order_acquire) == 0; };
    if (soon(std::chrono::microseconds(50), empty)) return;
    for (int n; (n = inside_.load(std::memory_order_acquire)) != 0;) inside_.wait(n);
  }

 private:
  void recruit(int seats) {
    while (int(helpers_.size()) < seats) {
      // Signals are for the threads that were there before.
      sigset_t all, before;
      sigfillset(&all);
      pthread_sigmask(SIG_SETMASK, &all, &before);
      std::thread helper;
      try {
        helper = std::thread([this] { help(); });
      } catch (const std::system_error&) {  // no threads left: those that are there have to do
      }
      pthread_sigmask(SIG_SETMASK, &before, nullptr);
      if (!helper.joinable()) return;
      helpers_.push_back(helper.native_handle());
      helper.detach();
      caller_at_ = -1;
    }
  }

  // On the caller's processor a helper would only take turns with it, and a host whose other processors are busy too
  // is slow to see that.
  void keep_off_this_processor() {
    const int here = sched_getcpu();
    if (here < 0 || here == caller_at_) return;
    caller_at_ = here;
    cpu_set_t processors;
    if (sched_getaffinity(0, sizeof processors, &processors)) return;
    CPU_CLR(here, &processors);
    if (!CPU_COUNT(&processors)) return;
    for (const pthread_t helper : helpers_) pthread_setaffinity_np(helper, sizeof processors, &processors);
  }

  void help() {
    for (u64 seen = 0;;) {
      // Loops of one program, and of a program that runs again and again, follow each other closely.
      soon(std::chrono::microseconds(200), [&] { return loops_.load(std::memory_order_acquire) != seen; });
      Loop* loop;
      int worker = 0;
      {
        std::unique_lock lock(mutex_);
        ++asleep_;
        wake_.wait(lock, [&] { return loops_.load(std::memory_order_relaxed) != seen; });
        --asleep_;
        seen = loops_.load(std::memory_order_relaxed);
        loop = loop_;
        if (!loop || !loop->seats) continue;
        --loop->seats;
        worker = loop->workers++;
        inside_.fetch_add(1, std::memory_order_relaxed);
      }
      loop->work(worker);
      if (inside_.fetch_sub(1, std::memory_order_release) == 1) inside_.notify_one();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  Loop* loop_ = nullptr;
  std::atomic<u64> loops_{0};   // that were ever shared
  std::atomic<int> inside_{0};  // helpers that work on the loop
  std::vector<pthread_t> helpers_;
  int asleep_ = 0;
  int caller_at_ = -1;  // the processor that the helpers keep off
};

// Leaked on purpose: helpers outlive static objects. A forked child has none of its parent's threads.
std::atomic<Team*> team{nullptr};

Team& the_team() {
  static const bool once = [] {
    team = new Team;
    pthread_atfork(nullptr, nullptr, [] { team = new Team; });
    return true;
  }();
  (void)once;
  return *team.load();
}

}  // namespace

void share_iterations(i64 trips, int threads, const std::function<void(int worker, i64 n)>& body) {
  Loop loop{body, trips, int(std::min<i64>(threads, trips)) - 1};
  if (loop.seats <= 0) return loop.work(0);
  the_team().share(loop);
}

}  // namespace core
