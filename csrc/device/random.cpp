#include "device/random.h"

#include <cstring>
#include <mutex>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <ATen/Utils.h>

#include "device/context.h"

namespace opentrn::device {
namespace {

// Random numbers are drawn four at a time, so that the offset stays a multiple of four, as counter-based generators
// elsewhere have it.
constexpr int64_t kDrawn = 4;
constexpr size_t kStateBytes = 2 * sizeof(uint64_t);

uint64_t scramble(uint64_t value) {
  value += 0x9e3779b97f4a7c15ULL;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ULL;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebULL;
  return value ^ (value >> 31);
}

}  // namespace

NeuronGenerator::NeuronGenerator(c10::DeviceIndex device)
    : c10::GeneratorImpl(c10::Device(kNeuron, device), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)) {}

void NeuronGenerator::set_current_seed(uint64_t seed) {
  seed_ = seed;
  offset_ = 0;
}

void NeuronGenerator::set_offset(uint64_t offset) { offset_ = offset; }
uint64_t NeuronGenerator::get_offset() const { return offset_; }
uint64_t NeuronGenerator::current_seed() const { return seed_; }

uint64_t NeuronGenerator::seed() {
  const uint64_t random = c10::detail::getNonDeterministicRandom(true);
  set_current_seed(random);
  return random;
}

void NeuronGenerator::set_state(const c10::TensorImpl& state) {
  at::detail::check_rng_state(state);
  TORCH_CHECK(static_cast<size_t>(state.numel()) == kStateBytes, "opentrn: a neuron generator state has ", kStateBytes,
              " bytes (seed, offset), this one has ", state.numel());
  const auto* bytes = static_cast<const uint8_t*>(state.data());
  std::memcpy(&seed_, bytes, sizeof(uint64_t));
  std::memcpy(&offset_, bytes + sizeof(uint64_t), sizeof(uint64_t));
}

c10::intrusive_ptr<c10::TensorImpl> NeuronGenerator::get_state() const {
  at::Tensor state =
      at::empty({static_cast<int64_t>(kStateBytes)}, at::TensorOptions().dtype(at::kByte).device(at::kCPU));
  auto* bytes = state.mutable_data_ptr<uint8_t>();
  std::memcpy(bytes, &seed_, sizeof(uint64_t));
  std::memcpy(bytes + sizeof(uint64_t), &offset_, sizeof(uint64_t));
  return state.getIntrusivePtr();
}

c10::DeviceType NeuronGenerator::device_type() { return kNeuron; }

uint64_t NeuronGenerator::advance(int64_t elements) {
  const uint64_t before = offset_;
  offset_ += static_cast<uint64_t>((std::max<int64_t>(elements, 1) + kDrawn - 1) / kDrawn * kDrawn);
  return before;
}

NeuronGenerator* NeuronGenerator::clone_impl() const {
  auto* copy = new NeuronGenerator(device().index());
  copy->seed_ = seed_;
  copy->offset_ = offset_;
  return copy;
}

const at::Generator& default_generator(c10::DeviceIndex device) {
  Context::get().check_index(device);
  static std::mutex mutex;
  static auto* generators = new std::vector<at::Generator>(128);
  std::lock_guard<std::mutex> lock(mutex);
  at::Generator& generator = (*generators)[device];
  if (!generator.defined()) generator = at::make_generator<NeuronGenerator>(device);
  return generator;
}

at::Generator host_generator(const std::optional<at::Generator>& given, c10::DeviceIndex device, int64_t elements) {
  const bool own = given && given->defined();
  TORCH_CHECK(!own || given->device().type() == kNeuron, "Expected a 'neuron' device type for generator but found '",
              own ? given->device().type() : kNeuron, "'\n  what to do: torch.Generator(device='neuron')");
  const at::Generator& source = own ? *given : default_generator(device);
  auto* generator = at::check_generator<NeuronGenerator>(source);
  uint64_t seed, offset;
  {
    std::lock_guard<std::mutex> lock(generator->mutex_);
    seed = generator->current_seed();
    offset = generator->advance(elements);
  }
  thread_local at::Generator host = at::make_generator<at::CPUGeneratorImpl>();
  host.set_current_seed(scramble(seed) ^ scramble(offset + 1));
  return host;
}

}  // namespace opentrn::device
