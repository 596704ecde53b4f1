// The engine and LibTorch share the memory of a device, and each keeps there what it once had.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "kernels/base/memory.h"
#include "src/session/reference_library.h"
#include "tests/device.h"
#include "tests/fixtures.h"
#include "tests/lockstep_binary.h"

namespace lockstep {
namespace {

// LibTorch is told once a process, so that each run is one of its own; before this one takes all of
// the device.
TEST(DeviceMemory, OfTheReferenceHasABound) {
  const std::string run =
      "run --model " + data_path("bard-qwen3") + " --tokens 5,6,7,8 --max-new 2 --judge-memory ";
  EXPECT_EQ(trouble_of(run + "2"),
            "--judge-memory 2 is of a CUDA device, and the run is on the CPU: leave it out, or add "
            "--device cuda\n");
  for (const char* text : {"0", "-1", "x"})
    EXPECT_NE(trouble_of(run + text).find("--judge-memory"), std::string::npos) << text;
  if (TestDevice::device() == Device::cpu)
    GTEST_SKIP() << "memory is a CUDA device's: LOCKSTEP_DEVICE names none";
  EXPECT_EQ(call_lockstep(run + "2 --device cuda").status, 0);
  EXPECT_TRUE(
      trouble_of(run + "0.01 --device cuda").starts_with("the reference has no memory left for "));
}

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
