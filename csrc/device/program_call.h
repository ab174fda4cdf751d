// A program from outside the dispatcher (an NKI kernel) on its way through the device: the bytes of its arguments, the
// storages of its results, and its simulated time on the clock. What HostCall is to operators.
#pragma once

#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "device/accounting.h"
#include "device/origin.h"

namespace opentrn::device {

class ProgramCall {
 public:
  // arguments: tensors of `device`; raises for any other. While the call is open their bytes may be read and written.
  ProgramCall(const std::string& name, c10::DeviceIndex device, std::vector<at::Tensor> arguments);
  ~ProgramCall();
  ProgramCall(const ProgramCall&) = delete;

  // Whether every argument has bytes: the program can be executed.
  bool backed() const { return backed_; }
  // Whether results of these sizes may have bytes in the present mode (dry runs keep small ones only).
  static bool gets_bytes(size_t bytes, at::ScalarType type);
  // CPU tensors that share the bytes of the arguments.
  std::vector<at::Tensor> views() const;

  // A result: the CPU tensor's bytes become device memory, without a copy.
  at::Tensor give(at::Tensor host);
  // A result of a call that was not executed: no bytes, or a stand-in for small integers and booleans (dry.h).
  at::Tensor give_inferred(c10::IntArrayRef sizes, at::ScalarType type);
  // An argument that a call which was not executed would have written.
  void write_inferred(const at::Tensor& argument);

  // A dry run's ledger entry: something that the program's time assumes.
  void note_assumption(const std::string& text);
  // Closes the bytes, once; also when the call failed.
  void close();
  // Closes the bytes and puts the program on the current stream of the device. Call last.
  timeline::Interval finish(timeline::Nanoseconds duration, int64_t flops, int64_t bytes);

 private:
  OperatorTraits& traits_;
  c10::DeviceIndex device_;
  std::vector<at::Tensor> arguments_;
  std::vector<at::Tensor> results_;
  bool backed_ = true;
  std::optional<OriginScope> origin_;  // none: closed
};

}  // namespace opentrn::device
