// The device's random state: counter based, (seed, offset), 16 bytes, as DTensor's trackers ask.
//
// Values come from the host's generator seeded by (seed, offset) for each operator; they need not equal CPU's, and
// depend on nothing but seed, offset and the operator. The real chip's generator is another one.
#pragma once

#include <optional>

#include <ATen/core/Generator.h>
#include <c10/core/GeneratorImpl.h>

namespace opentrn::device {

class NeuronGenerator final : public c10::GeneratorImpl {
 public:
  explicit NeuronGenerator(c10::DeviceIndex device);
  void set_current_seed(uint64_t seed) override;
  void set_offset(uint64_t offset) override;
  uint64_t get_offset() const override;
  uint64_t current_seed() const override;
  uint64_t seed() override;
  void set_state(const c10::TensorImpl& state) override;
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override;
  static c10::DeviceType device_type();
  // The offset before, after advancing it by what `elements` random elements use.
  uint64_t advance(int64_t elements);

 private:
  NeuronGenerator* clone_impl() const override;
  uint64_t seed_ = c10::default_rng_seed_val;
  uint64_t offset_ = 0;
};

const at::Generator& default_generator(c10::DeviceIndex device);

// A CPU generator for one operator on `device`, taken from `given` or the device's default generator, which advances.
at::Generator host_generator(const std::optional<at::Generator>& given, c10::DeviceIndex device, int64_t elements);

}  // namespace opentrn::device
