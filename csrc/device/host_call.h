// One operator on its way through the host: device tensors in, CPU aliases to the kernel, device tensors out, and the
// work on the virtual clock. The boxed fallback and the typed kernels of hot operators are two front ends to it.
#pragma once

#include <ATen/Tensor.h>
#include <ATen/core/List.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/MaybeOwned.h>
#include <c10/util/SmallVector.h>

#include "device/accounting.h"
#include "device/alias.h"
#include "device/origin.h"
#include "device/traits.h"

namespace opentrn::device {

// Every neuron operator calls this first: attaches the machine, refuses forked children, and makes backward run on the
// calling thread (so that clock, dry state and Python frames follow it).
void enter_operator();

// Raises for an argument that is not on `device`, unless the operator may mix devices. As on CUDA, a zero-dimensional
// CPU tensor may be read beside device tensors, and never written.
void check_place(const OperatorTraits& traits, const at::Tensor& tensor, int argument, c10::DeviceIndex device);

// Raises for a result that is sparse or quantised.
void check_dense(const OperatorTraits& traits, const at::Tensor& result);

// The device of the operator that is running on the calling thread, for host kernels that draw random numbers.
c10::DeviceIndex running_device();

class HostCall {
 public:
  explicit HostCall(OperatorTraits& traits);
  ~HostCall();
  HostCall(const HostCall&) = delete;

  // Owned, or borrowed of somebody who holds it until finish().
  using Held = c10::MaybeOwned<at::Tensor>;

  // What the kernel gets for argument number `argument`: the alias of a neuron tensor, anything else as it is.
  // Raises for a tensor on another device, unless the operator may mix devices.
  at::Tensor take(Held tensor, int argument);
  at::Tensor take(const at::Tensor& tensor, int argument) { return take(Held::owned(at::Tensor(tensor)), argument); }
  // A device argument: returns CPU for a neuron device, and remembers where results belong.
  c10::Device take(c10::Device device);
  // A generator argument (or none) of a random operator: the host generator that stands in for it.
  at::Generator take_generator(const std::optional<at::Generator>& generator);

  // Between the last take and the first give. Excludes autograd and autocast while it lives, and opens guarded memory.
  class Running {
   public:
    explicit Running(HostCall& call);
    ~Running();

   private:
    HostCall& call_;
    c10::DeviceIndex before_;
    c10::impl::ExcludeDispatchKeyGuard guard_;
  };

  // After the kernel: follows resizes of what was written; call before give().
  void follow_written();
  // Attention whose scores above the diagonal do not count.
  void set_causal(bool causal) { causal_ = causal; }
  // A number given as argument `argument`; only `dim` is kept.
  void see_number(int64_t number, int argument) {
    if (argument == traits_.dim_argument) dim_ = number;
  }
  // The device tensor for a result of the kernel, which the caller holds until finish().
  at::Tensor give(at::Tensor&& result);
  // Puts the operator on the clock. Call last.
  void finish();

  // Set when an alias has its conjugate or negative bit set: the kernel must be reached through the full dispatcher.
  bool needs_full_dispatch() const { return needs_full_dispatch_; }
  c10::DeviceIndex device() const { return device_; }

 private:
  struct Argument {
    Held original;
    at::Tensor alias;  // undefined: not a neuron tensor
    bool written;
    uint8_t number;  // of the operator's schema
  };

  at::Tensor known_alias(const at::Tensor& tensor) const;
  const c10::StorageImpl* storage_of_host(const c10::StorageImpl* host) const;
  void move_guards(bool open);

  OperatorTraits& traits_;
  OriginScope origin_;
  c10::DeviceIndex device_ = -1;
  bool device_elsewhere_ = false;
  bool needs_full_dispatch_ = false;
  bool causal_ = false;
  int64_t dim_ = Ran::kNoDim;
  bool ran_ = false, followed_ = false;
  c10::SmallVector<Argument, 4> arguments_;
  // Results by the host storage they came in.
  c10::SmallVector<std::pair<const c10::StorageImpl*, Held>, 3> fresh_;
};

}  // namespace opentrn::device
