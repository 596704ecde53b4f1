#include <thread>

#include "kernels/base/device_graph.h"
#include "tests/helpers.h"
#include "tests/kernels/cuda_samples.h"

namespace lockstep {
namespace {

class CudaGraph : public CudaTest {
 protected:
  static Tensor filled(float value) {
    Tensor host({1000}, DType::f32);
    std::fill_n(host.as<float>(), 1000, value);
    return copy_on(cuda_device(), host);
  }
  static float first_of(const TensorView& tensor) {
    return copy_on(Device::cpu, tensor).as<float>()[0];
  }
  OpContext context() const { return {.stream = memory_.stream}; }
};

TEST_F(CudaGraph, DoesWhatWasQueuedWithWhatTheMemoryHoldsThen) {
  const Tensor a = filled(1), b = filled(2), out = filled(0);
  const DeviceGraph graph(cuda_device(), [&] { ops_->add(context(), out, a, b); });
  EXPECT_EQ(first_of(out), 0) << "it was done while it was queued";
  graph.replay(memory_.stream);
  EXPECT_EQ(first_of(out), 3);
  copy(a, filled(40));
  graph.replay(memory_.stream);
  graph.replay(memory_.stream);
  EXPECT_EQ(first_of(out), 42);
}

TEST_F(CudaGraph, KeepsTheMemoryThatItsWorkTookUntilItGoes) {
  const Tensor a = filled(1), out = filled(0);
  const void* inner = nullptr;
  {
    const DeviceGraph graph(cuda_device(), [&] {
      const Tensor sum({1000}, DType::f32, cuda_device());
      inner = sum.view().data;
      ops_->add(context(), sum, a, a);
      ops_->add(context(), out, sum, a);
    });
    std::vector<Tensor> others;
    for (int i = 0; i < 20; ++i) {
      others.push_back(filled(7));
      EXPECT_NE(others.back().view().data, inner);
    }
    graph.replay(memory_.stream);
    EXPECT_EQ(first_of(out), 3);
    for (const Tensor& other : others) EXPECT_EQ(first_of(other), 7);
  }
  std::vector<Tensor> after;
  while (std::ssize(after) < 30) after.emplace_back(Shape{1000}, DType::f32, cuda_device());
  EXPECT_EQ(std::ranges::count(after, inner, [](const Tensor& t) { return t.view().data; }), 1);
}

TEST_F(CudaGraph, LeavesAloneWhatAnotherThreadReleasesMeanwhile) {
  Tensor read_out({3000}, DType::f32, cuda_device());
  const void* place = read_out.view().data;
  const Tensor a = filled(1), out = filled(0);
  const DeviceGraph graph(cuda_device(), [&] {
    std::jthread([&] { read_out = {}; }).join();
    ops_->add(context(), out, a, a);
  });
  EXPECT_EQ(Tensor({3000}, DType::f32, cuda_device()).view().data, place);
  graph.replay(memory_.stream);
  EXPECT_EQ(first_of(out), 2);
}

TEST_F(CudaGraph, ThatCannotBeMadeLeavesTheDeviceAsItWas) {
  const Tensor a = filled(1), out = filled(0);
  const auto queue = [&] {
    ops_->add(context(), out, a, a);
    fail("no more of this");
  };
  EXPECT_EQ(error_of([&] { const DeviceGraph graph(cuda_device(), queue); }), "no more of this");
  EXPECT_NE(
      error_of([&] { const DeviceGraph graph(cuda_device(), [&] { wait_for(cuda_device()); }); }),
      "");
  EXPECT_EQ(first_of(out), 0);
  ops_->add(context(), out, a, a);
  EXPECT_EQ(first_of(out), 2);
}

}  // namespace
}  // namespace lockstep
