// The kernels of the roofs do the work that they are timed by.
#include <random>

#include "kernels/bench/device_roofs.h"
#include "tests/helpers.h"
#include "tests/kernels/cuda_samples.h"

namespace lockstep {
namespace {

class CudaRoofs : public CudaTest {
 protected:
  // The sum of `vectors` of 16 bytes of the device, of which the first does not begin a tensor.
  static uint32_t sum_of(int way, const Tensor& data, int64_t vectors, uint32_t before) {
    const Tensor sum =
        copy_on(cuda_device(),
                tensor_of<int32_t>(std::vector{static_cast<int32_t>(before)}, {1}, DType::i32));
    lockstep_cuda_roofs()->read(way, data.as<char>() + 16, 16 * vectors, sum.as<uint32_t>(),
                                runtime_of(cuda_device()).stream);
    return *copy_on(Device::cpu, sum).as<uint32_t>();
  }
};

TEST_F(CudaRoofs, ReadEveryWordOnceWhateverTheSize) {
  constexpr int64_t kMost = (8 << 20) + 4099;
  std::mt19937 random(1);
  const Tensor host({4 * (kMost + 1)}, DType::i32);
  std::generate_n(host.as<uint32_t>(), host.view().count(), std::ref(random));
  const Tensor data = copy_on(cuda_device(), host);
  for (const int64_t vectors : {int64_t{0}, int64_t{1}, int64_t{33}, int64_t{4097},
                                int64_t{132 * 2 * 8192 + 1}, int64_t{1000003}, kMost}) {
    uint32_t want = 7;
    for (int64_t i = 4; i < 4 * (vectors + 1); ++i) want += host.as<uint32_t>()[i];
    for (int way = 0; way < RoofKernels::kWays; ++way)
      EXPECT_EQ(sum_of(way, data, vectors, 7), want) << vectors << " vectors, way " << way;
  }
}

TEST_F(CudaRoofs, ReadInNoOtherWayThanThereIs) {
  const Tensor data({64}, DType::u8, cuda_device());
  EXPECT_NE(error_of([&] { sum_of(RoofKernels::kWays, data, 1, 0); }), "");
  EXPECT_NE(error_of([&] { sum_of(-1, data, 1, 0); }), "");
}

}  // namespace
}  // namespace lockstep
