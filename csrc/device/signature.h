// The signature of an operator call: everything its result's shape, its cost and its backing can depend on, as a hash.
#pragma once

#include <cstdint>

#include <ATen/core/stack.h>

#include "device/alias.h"
#include "device/traits.h"

namespace opentrn::device {

struct Signature {
  // 128 bits: two calls with equal keys are taken as equal (a collision is out of reach of any run).
  uint64_t low = 0x243f6a8885a308d3ULL;
  uint64_t high = 0x13198a2e03707344ULL;
  bool operator==(const Signature&) const = default;

  void mix(uint64_t value) {
    low = (low ^ value) * 0x9e3779b97f4a7c15ULL;
    low ^= low >> 29;
    high = (high + value) * 0xc2b2ae3d27d4eb4fULL;
    high ^= high >> 31;
  }
};

struct SignatureHash {
  size_t operator()(const Signature& signature) const { return signature.low ^ (signature.high << 1); }
};

// Up to how many tensor arguments are compared for being one and the same (lists of an optimizer are not).
constexpr size_t kMostCompared = 4;

// What one scan over the arguments finds.
struct Scan {
  Signature signature;
  bool all_backed = true;
  bool hashable = true;  // false: an argument whose value cannot be hashed; the call is inferred every time
  c10::DeviceIndex device = -1;
  struct Tensor {
    at::Tensor tensor;
    int argument;
    bool backed;
  };
  c10::SmallVector<Tensor, 6> tensors;  // every defined tensor, lists flattened
};

Scan scan(const OperatorTraits& traits, const torch::jit::Stack& stack);

// True for a neuron tensor without bytes.
bool is_unbacked(const at::TensorBase& tensor);

}  // namespace opentrn::device
