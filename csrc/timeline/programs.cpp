#include "timeline/programs.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "timeline/spin_lock.h"

namespace opentrn::timeline::programs {
namespace {

// Some 150 bytes each: a run with more signatures than this starts over, and times its programs again.
constexpr size_t kMostSignatures = 1 << 16;

struct SignatureHash {
  size_t operator()(const ProgramSignature& signature) const {
    static_assert(sizeof(ProgramSignature::Operand) == 2);
    uint64_t words[3];
    std::memcpy(words, signature.operands.data(), sizeof(words));
    uint64_t hash = signature.operator_id | static_cast<uint64_t>(signature.operator_class) << 32;
    for (const uint64_t word : words) hash = (hash ^ word) * 0x9e3779b97f4a7c15ULL;
    for (const int64_t dim : signature.dims) {
      hash = (hash ^ static_cast<uint64_t>(dim)) * 0x9e3779b97f4a7c15ULL;
      hash ^= hash >> 29;
    }
    return hash;
  }
};

struct Table {
  SpinLock lock;
  std::shared_ptr<const ProgramProvider> provider;
  std::unordered_map<ProgramSignature, ProgramAnswer, SignatureHash> answers;
  ProgramCounters count;
};

Table& table() {
  static auto* made = new Table();
  return *made;
}

std::atomic<bool> has_provider{false};
std::atomic<bool> switched_on{true};
std::atomic<int64_t> current_generation{0};

}  // namespace

void set_provider(ProgramProvider provider) {
  auto kept = provider ? std::make_shared<const ProgramProvider>(std::move(provider)) : nullptr;
  Table& all = table();
  {
    std::lock_guard<SpinLock> hold(all.lock);
    all.provider.swap(kept);  // the old one goes after the lock
    all.answers.clear();
    all.count = {};
    ++current_generation;
  }
  has_provider = table().provider != nullptr;
}

bool enabled() { return has_provider.load(std::memory_order_relaxed) && switched_on.load(std::memory_order_relaxed); }

bool set_enabled(bool on) {
  const bool before = switched_on.exchange(on);
  if (before != on) ++current_generation;
  return before;
}

int64_t generation() { return current_generation.load(std::memory_order_relaxed); }

ProgramAnswer find(const ProgramSignature& signature) {
  Table& all = table();
  std::shared_ptr<const ProgramProvider> provider;
  int64_t asked;
  {
    std::lock_guard<SpinLock> hold(all.lock);
    ++all.count.lookups;
    const auto found = all.answers.find(signature);
    if (found != all.answers.end()) return found->second;
    provider = all.provider;
    asked = generation();
  }
  // Not under the lock: the provider may wait for the interpreter, whose holder may be waiting for this lock.
  const ProgramAnswer answer = provider ? (*provider)(signature) : ProgramAnswer{};
  std::lock_guard<SpinLock> hold(all.lock);
  if (asked != generation()) return answer;  // of an earlier provider
  ++all.count.misses;
  all.count.programs += answer.exists();
  if (all.answers.size() >= kMostSignatures) {
    all.answers.clear();
    ++all.count.evictions;
  }
  all.answers.emplace(signature, answer);
  return answer;
}

ProgramCounters counters() {
  Table& all = table();
  std::lock_guard<SpinLock> hold(all.lock);
  ProgramCounters result = all.count;
  result.signatures = static_cast<int64_t>(all.answers.size());
  return result;
}

}  // namespace opentrn::timeline::programs

namespace opentrn::timeline {

OperatorCost simulated_cost(const Machine& machine, const Work& work, double program_ns) {
  OperatorCost cost;
  cost.flops = work.flops;
  cost.bytes = work.read_bytes + work.written_bytes;
  const double share_ns = static_cast<double>(cost.bytes) / machine.hbm_bytes_per_s * 1e9;
  cost.duration = static_cast<Nanoseconds>(std::max(program_ns, share_ns));
  cost.provenance = Provenance::kSimulated;
  return cost;
}

}  // namespace opentrn::timeline
