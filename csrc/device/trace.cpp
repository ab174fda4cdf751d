#include "device/trace.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <unordered_map>

#include <ATen/SequenceNumber.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/ScalarType.h>
#include <torch/csrc/autograd/node.h>

#include "device/signature.h"

namespace opentrn::device::trace {
namespace {

// Strings by id; id 0 is the empty one.
class Interner {
 public:
  uint32_t intern(const std::string& text) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto [found, inserted] = ids_.try_emplace(text, static_cast<uint32_t>(texts_.size()));
    if (inserted) texts_.push_back(text);
    return found->second;
  }
  std::string at(uint32_t id) {
    std::lock_guard<std::mutex> lock(mutex_);
    return id < texts_.size() ? texts_[id] : std::string();
  }
  std::vector<std::string> from(size_t first) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (first >= texts_.size()) return {};
    return {texts_.begin() + static_cast<std::ptrdiff_t>(first), texts_.end()};
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> texts_{""};
  std::unordered_map<std::string, uint32_t> ids_{{"", 0}};
};

Interner& module_table() {
  static auto* table = new Interner();
  return *table;
}
Interner& frame_table() {
  static auto* table = new Interner();
  return *table;
}

std::atomic<bool> is_active{false};
std::atomic<bool> frames_on{false};
Options options;
Columns columns;
std::mutex columns_mutex;
CaptureFrame capture = nullptr;

// ---- Signatures: shapes and dtypes of an operator's tensors ------------------------------------------------------

std::unordered_map<Signature, uint32_t, SignatureHash> signature_ids;
std::vector<std::pair<std::string, std::string>> signature_texts{{"", ""}};

void mix_shapes(Signature& signature, c10::ArrayRef<const at::TensorBase*> tensors) {
  for (const at::TensorBase* tensor : tensors) {
    if (!tensor->defined()) continue;
    // The number of dimensions tells where the sizes of one tensor end.
    signature.mix(static_cast<uint64_t>(tensor->scalar_type()) << 32 | static_cast<uint64_t>(tensor->dim()));
    for (int64_t size : tensor->sizes()) signature.mix(static_cast<uint64_t>(size));
  }
}

void describe(std::pair<std::string, std::string>& texts, c10::ArrayRef<const at::TensorBase*> tensors) {
  auto& [shapes, dtypes] = texts;
  bool first = true;
  for (const at::TensorBase* tensor : tensors) {
    if (!tensor->defined()) continue;
    if (!first) {
      shapes += ',';
      dtypes += ',';
    }
    first = false;
    dtypes += c10::getDtypeNames(tensor->scalar_type()).first;
    shapes += '[';
    for (size_t d = 0; d < tensor->sizes().size(); ++d) {
      if (d) shapes += ',';
      shapes += std::to_string(tensor->sizes()[d]);
    }
    shapes += ']';
  }
}

uint32_t signature_of(c10::ArrayRef<const at::TensorBase*> inputs, c10::ArrayRef<const at::TensorBase*> outputs) {
  Signature signature;
  mix_shapes(signature, inputs);
  signature.mix(~uint64_t{0});  // no tensor: outputs begin
  mix_shapes(signature, outputs);
  auto found = signature_ids.find(signature);
  if (found != signature_ids.end()) return found->second;
  std::pair<std::string, std::string> text;
  describe(text, inputs);
  text.first += "->";
  text.second += "->";
  describe(text, outputs);
  const auto id = static_cast<uint32_t>(signature_texts.size());
  signature_texts.push_back(std::move(text));
  signature_ids.emplace(signature, id);
  return id;
}

// ---- Modules -----------------------------------------------------------------------------------------------------

// What every operator asks for; the rest of the thread's state has constructors and costs more to reach.
struct Innermost {
  uint32_t module = 0;
  bool inside = false;
  Phase announced = kOutside;
};
constinit thread_local Innermost innermost;

struct ModuleState {
  std::vector<uint32_t> stack{0};
  // Which module was current from which autograd sequence number on, in increasing order.
  std::vector<std::pair<uint64_t, uint32_t>> since;
};
thread_local ModuleState module_state;

void note_module() {
  innermost.module = module_state.stack.back();
  innermost.inside = module_state.stack.size() > 1;
  auto& since = module_state.since;
  const uint64_t sequence = at::sequence_number::peek();
  const uint32_t module = innermost.module;
  if (!since.empty() && since.back().first == sequence) {
    since.back().second = module;
  } else {
    if (since.size() > (1u << 20)) since.erase(since.begin(), since.begin() + (1 << 19));  // bounded
    since.emplace_back(sequence, module);
  }
}

uint32_t module_of_sequence(uint64_t sequence) {
  const auto& since = module_state.since;
  auto after = std::upper_bound(since.begin(), since.end(), sequence,
                                [](uint64_t value, const auto& entry) { return value < entry.first; });
  return after == since.begin() ? 0 : std::prev(after)->second;
}

uint32_t capture_frame() {
  if (!frames_on.load(std::memory_order_relaxed) || !capture) return 0;
  return frame_table().intern(capture());
}

}  // namespace

bool active() { return is_active.load(std::memory_order_relaxed); }

void start(const Options& wanted) {
  std::lock_guard<std::mutex> lock(columns_mutex);
  options = wanted;
  frames_on = wanted.frames;
  is_active = true;
}

void stop() {
  is_active = false;
  frames_on = false;
}

Columns drain() {
  std::lock_guard<std::mutex> lock(columns_mutex);
  Columns taken;
  std::swap(taken, columns);
  return taken;
}

size_t pending() {
  std::lock_guard<std::mutex> lock(columns_mutex);
  return columns.operator_id.size();
}

void add(const Record& record, c10::ArrayRef<const at::TensorBase*> inputs,
         c10::ArrayRef<const at::TensorBase*> outputs) {
  std::lock_guard<std::mutex> lock(columns_mutex);
  columns.operator_id.push_back(record.operator_id);
  columns.signature_id.push_back(options.shapes ? signature_of(inputs, outputs) : 0);
  columns.module_id.push_back(record.place.module);
  columns.frame_id.push_back(record.place.frame);
  columns.host_start.push_back(record.interval.host_start);
  columns.host_end.push_back(record.interval.host_end);
  columns.device_start.push_back(record.interval.device_start);
  columns.device_end.push_back(record.interval.device_end);
  columns.flops.push_back(record.cost.flops);
  columns.bytes.push_back(record.cost.bytes);
  columns.memory_allocated.push_back(record.memory_allocated);
  columns.stream.push_back(record.stream);
  columns.device.push_back(record.device);
  columns.phase.push_back(record.place.phase);
  columns.provenance.push_back(static_cast<int8_t>(record.cost.provenance));
}

uint32_t intern_module(const std::string& path) { return module_table().intern(path); }

void enter_module(uint32_t module_id) {
  module_state.stack.push_back(module_id);
  note_module();
}

void exit_module() {
  if (module_state.stack.size() > 1) module_state.stack.pop_back();
  note_module();
}

Place current_place() {
  // Outside every module, in backward, the node knows. Checkpointing runs the forward again, with gradients on, inside
  // a backward node.
  const auto node = torch::autograd::get_current_node();
  Place place{innermost.module, innermost.announced, capture_frame()};
  if (node && !innermost.inside) place.module = module_of_sequence(node->sequence_nr());
  if (place.phase != kOutside) return place;
  place.phase = node ? (at::GradMode::is_enabled() ? kRecompute : kBackward) : innermost.inside ? kForward : kOutside;
  return place;
}

std::string module_name(uint32_t id) { return module_table().at(id); }

Phase announce_phase(Phase phase) {
  const Phase before = innermost.announced;
  innermost.announced = phase;
  return before;
}

void set_capture_frame(CaptureFrame hook) { capture = hook; }

std::string python_frame_now() { return capture ? capture() : std::string(); }

void set_frames(bool on) { frames_on = on; }
std::string frame_name(uint32_t id) { return frame_table().at(id); }
std::vector<std::string> modules(size_t from) { return module_table().from(from); }
std::vector<std::string> frames(size_t from) { return frame_table().from(from); }

std::vector<std::pair<std::string, std::string>> signatures(size_t from) {
  std::lock_guard<std::mutex> lock(columns_mutex);
  if (from >= signature_texts.size()) return {};
  return {signature_texts.begin() + static_cast<std::ptrdiff_t>(from), signature_texts.end()};
}

}  // namespace opentrn::device::trace
