// The trace buffer: one fixed-size record per operator, in columns, with names, shapes and frames interned.
//
// Python drains it in chunks and writes Parquet (src/opentrn/trace). Nothing here allocates per record once the
// columns have grown.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "timeline/clock.h"
#include "timeline/cost.h"

namespace opentrn::device::trace {

struct Options {
  bool shapes = true;
  bool frames = false;
};

struct Columns {
  std::vector<uint32_t> operator_id, signature_id, module_id, frame_id;
  std::vector<int64_t> host_start, host_end, device_start, device_end, flops, bytes, memory_allocated;
  std::vector<int32_t> stream;
  std::vector<int8_t> device, phase, provenance;
};

// Which part of a training step an operator belongs to. Backward and recompute are read off autograd; optimizer steps
// are announced from Python.
enum Phase : int8_t { kOutside = 0, kForward = 1, kBackward = 2, kOptimizer = 3, kRecompute = 4 };
constexpr int kPhaseCount = 5;

// Where in the program an operator is called: the module, by its interned path, the part of the step, and the Python
// frame, interned too (0 unless frames are on).
struct Place {
  uint32_t module = 0;
  Phase phase = kOutside;
  uint32_t frame = 0;
};

bool active();
void start(const Options& options);
void stop();
Columns drain();
size_t pending();

// One operator. `inputs` and `outputs` are read for shapes and dtypes only.
struct Record {
  uint32_t operator_id;
  int8_t device;
  int32_t stream;
  timeline::Interval interval;
  timeline::OperatorCost cost;
  int64_t memory_allocated;
  Place place;
};
void add(const Record& record, c10::ArrayRef<const at::TensorBase*> inputs,
         c10::ArrayRef<const at::TensorBase*> outputs);

// Module paths: the stack of nn.Modules the calling thread is in; the backward pass finds its module through the
// sequence number of the autograd node.
uint32_t intern_module(const std::string& path);
void enter_module(uint32_t module_id);
void exit_module();
Place current_place();
std::string module_name(uint32_t id);
// The phase announced by Python, 0 for none; returns the one before.
Phase announce_phase(Phase phase);

// Python frames, captured by the hook where they are asked for.
using CaptureFrame = std::string (*)();
void set_capture_frame(CaptureFrame capture);
std::string python_frame_now();  // whether or not frames are on
void set_frames(bool on);
std::string frame_name(uint32_t id);

// Interned tables since index `from`.
std::vector<std::string> modules(size_t from);
std::vector<std::string> frames(size_t from);
// Per signature: the shapes "[16,16],[16]" and the dtypes "float32,float32" of inputs, then "->", then outputs.
std::vector<std::pair<std::string, std::string>> signatures(size_t from);

}  // namespace opentrn::device::trace
