// Shared by the tests of the CUDA twins: samples that travel to the device and back.
#pragma once

#include <exception>
#include <map>
#include <memory>

#include "kernels/cuda/cuda_ops.h"
#include "tests/kernels/samples.h"

namespace lockstep {

// The device of these tests, the last one: number 0 is the one that CUDA takes where nobody says
// which.
inline Device cuda_device() { return {DeviceKind::cuda, lockstep_cuda_devices() - 1}; }

// The arguments of one call, on the device. A tensor stands there as far from a 16-byte border as
// at home, between guards that no op may touch.
class Away {
 public:
  explicit Away(const DeviceRuntime& memory) : memory_(memory) {}

  TensorView operator()(const TensorView& home) {
    TensorView away = home;
    away.device = cuda_device();
    if (home.data == nullptr) return away;
    auto& trip = trips_[home.data];
    if (trip == nullptr) trip = std::make_unique<Trip>(home, memory_);
    away.data = trip->far.as<char>() + trip->begin;
    return away;
  }
  WeightView operator()(const WeightView& home) { return (*this)(home.codes); }
  TensorView operator()(const Sample& home) { return (*this)(home.view()); }
  KvCache operator()(const KvCache& home) { return {(*this)(home.k), (*this)(home.v)}; }
  AttentionBatch operator()(const AttentionBatch& home) {
    return {(*this)(home.query_start), (*this)(home.context_length), (*this)(home.page_table)};
  }
  std::vector<TensorView> operator()(const std::vector<TensorView>& home) {
    std::vector<TensorView> away;
    for (const TensorView& tensor : home) away.push_back((*this)(tensor));
    return away;
  }
  std::vector<Linear> operator()(const std::vector<Linear>& home) {
    std::vector<Linear> away;
    for (const Linear& one : home)
      away.push_back({(*this)(one.out), (*this)(one.weight), (*this)(one.bias)});
    return away;
  }
  QkNormRopeKvWrite operator()(QkNormRopeKvWrite heads) {
    for (TensorView* one :
         {&heads.q, &heads.k, &heads.v, &heads.q_weight, &heads.k_weight, &heads.cos, &heads.sin,
          &heads.positions, &heads.slots, &heads.q_rope, &heads.cache.k, &heads.cache.v,
          &heads.q_norm, &heads.k_norm, &heads.k_rope})
      *one = (*this)(*one);
    return heads;
  }
  AddNormInput operator()(AddNormInput made) {
    for (TensorView* one : {&made.sum, &made.a, &made.b, &made.weight}) *one = (*this)(*one);
    return made;
  }
  const AddNormInput* operator()(const AddNormInput* home) {
    if (home == nullptr) return nullptr;
    made_ = (*this)(*home);
    return &made_;
  }
  template <typename Number>
  Number operator()(Number number) {
    return number;
  }

  // Brings every tensor home. What an op only reads comes back as it went.
  void return_home() {
    for (const auto& [home, trip] : trips_) trip->return_home(memory_);
  }

 private:
  static constexpr size_t kGuard = 256;
  static constexpr char kMark = 0x3c;

  struct Trip {
    Trip(const TensorView& view, const DeviceRuntime& memory)
        : home(view.as<char>()),
          bytes(static_cast<size_t>(view.bytes())),
          begin(kGuard + reinterpret_cast<uintptr_t>(view.data) % 16),
          luggage(begin + bytes + kGuard, kMark),
          far({std::ssize(luggage)}, DType::u8, cuda_device()) {
      std::copy_n(home, bytes, luggage.data() + begin);
      memory.copy(far.view().data, luggage.data(), std::ssize(luggage), nullptr);
    }
    void return_home(const DeviceRuntime& memory) {
      memory.copy(luggage.data(), far.view().data, std::ssize(luggage), nullptr);
      for (size_t i = 0; i < luggage.size(); ++i)
        if (i - begin >= bytes && luggage[i] != kMark) {
          ADD_FAILURE() << "byte " << static_cast<int64_t>(i) - static_cast<int64_t>(begin)
                        << " outside a tensor of " << bytes << " on the device was written";
          break;
        }
      std::copy_n(luggage.data() + begin, bytes, home);
    }
    char* home;
    size_t bytes, begin;
    std::vector<char> luggage;
    Tensor far;
  };

  const DeviceRuntime& memory_;
  std::map<const void*, std::unique_ptr<Trip>> trips_;
  AddNormInput made_;
};

// Tests on cuda_device(). They skip, by name and with the reason, where there is none.
class CudaTest : public testing::Test {
 protected:
  void SetUp() override {
    const int devices = lockstep_cuda_devices();
    if (devices == 0) GTEST_SKIP() << "this machine has no CUDA device that works";
    ops_ = lockstep_cuda_ops(devices - 1, &memory_);
    register_runtime(memory_);
  }
  void TearDown() override { forget_runtimes(); }

  // Calls an op with copies of its arguments on the device, and brings them back. Throws what the
  // op throws, or what it reports; `out` is back then too.
  template <typename Op, typename... Arguments>
  void run(const Op& op, const Arguments&... arguments) const {
    Away away(memory_);
    op({}, away(arguments)...);
    std::exception_ptr trouble;
    try {
      memory_.wait(nullptr);
    } catch (const Error&) {
      trouble = std::current_exception();
    }
    away.return_home();
    if (trouble) std::rethrow_exception(trouble);
  }

  DeviceRuntime memory_;
  const Ops* ops_ = nullptr;
};

}  // namespace lockstep
