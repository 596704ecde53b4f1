// The engine and LibTorch share the memory of a device, and each keeps there what it once had.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "kernels/base/memory.h"
#include "src/session/reference_library.h"
#include "tests/device.h"
#include "tests/fixtures.h"

namespace lockstep {
namespace {

TEST(DeviceMemory, ThatLibTorchKeepsIsTheEngines) {
  const Device device = TestDevice::device();
  if (device == Device::cpu || !open_reference().has_gpu(device.index))
    GTEST_SKIP() << "memory is a CUDA device's: LOCKSTEP_DEVICE names none that LibTorch can use";
  const Checkpoint checkpoint = Checkpoint::open(data_path("tiny/qwen3-default"));
  const auto oracle =
      open_reference().oracle(checkpoint, {.dtype = DType::bf16, .gpu = device.index});
  const int64_t before = device_memory_left(device);
  const Shape shape{(1 << 26) / checkpoint.config().hidden, checkpoint.config().hidden};
  Tensor addend(shape, DType::bf16);
  std::fill_n(addend.as<uint16_t>(), shape.count(), uint16_t{0});
  const std::vector<Row> rows(static_cast<size_t>(shape[0]));
  oracle->evaluate(
      {.place = {&point("attn.residual"), 0}, .inputs = {addend, addend}, .rows = rows});
  const int64_t after = device_memory_left(device);
  ASSERT_LT(after, before - (int64_t{1} << 30)) << "LibTorch keeps too little to tell";
  const Tensor made({after + (int64_t{1} << 29)}, DType::u8, device);
  EXPECT_NE(made.view().data, nullptr);
}

}  // namespace
}  // namespace lockstep
