// The engine and LibTorch share the memory of a device, and each keeps there what it once had.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
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

// What a run was shown may be held, or not: the judge says the same of it.
TEST(DeviceMemory, OfWhatIsHeldTheJudgeSaysWhatItSaysOfSavedNumbers) {
  const Device device = TestDevice::device();
  if (device == Device::cpu || !open_reference().has_gpu(device.index))
    GTEST_SKIP() << "memory is a CUDA device's: LOCKSTEP_DEVICE names none that LibTorch can use";
  const std::string model = " --model " + data_path("bard-qwen3"), trace = temp_path("t.trace");
  std::string prompt = "1";
  for (int i = 1; i < 200; ++i) prompt += "," + std::to_string(1 + i * 7 % 400);
  // The last line is the verdict, with its place and how much was compared.
  const auto verdict = [](const Outcome& outcome) {
    const std::string text = outcome.out.substr(0, outcome.out.find_last_not_of('\n') + 1);
    return text.substr(text.rfind('\n') + 1);
  };
  for (const char* fault : {"", " --fault softmax-scale-missing@layer=3"}) {
    const Outcome live =
        call_lockstep("run" + model + " --device cuda --tokens " + prompt +
                      " --max-new 2 --ignore-eos --keep full --trace " + trace + fault);
    const Outcome saved = call_lockstep("judge " + trace + model);
    EXPECT_NE(verdict(live), "") << live.err;
    EXPECT_EQ(verdict(live), verdict(saved)) << fault << saved.err;
    std::filesystem::remove_all(trace);
  }
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

// Numbers that the device has already are read there, whole or some rows of them, for as long as
// their owner lives. That they are read shows in numbers that differ from those of the host.
TEST(DeviceMemory, HoldsWhatIsThereForAsLongAsItsOwnerLives) {
  const Device device = TestDevice::device();
  if (device == Device::cpu || !open_reference().has_gpu(device.index))
    GTEST_SKIP() << "memory is a CUDA device's: LOCKSTEP_DEVICE names none that LibTorch can use";
  const Checkpoint checkpoint = Checkpoint::open(data_path("tiny/qwen3-default"));
  const auto oracle =
      open_reference().oracle(checkpoint, {.dtype = DType::bf16, .gpu = device.index, .least = 0});
  const int64_t hidden = checkpoint.config().hidden;
  const Shape shape{(1 << 17) / hidden, hidden};
  const auto filled = [&](float value) {
    Tensor tensor(shape, DType::bf16);
    std::fill_n(tensor.as<BFloat16>(), shape.count(), from_float<BFloat16>(value));
    return tensor;
  };
  const auto sum_of = [&](const Tensor& x, int64_t first, int64_t count) {
    const TensorView some = x.view().slice(first, count);
    const std::vector<Row> rows(static_cast<size_t>(count));
    const std::shared_ptr<const void> owner(x.memory(), some.data);
    const Exact exact = oracle->evaluate({.place = {&point("attn.residual"), 0},
                                          .inputs = {some, some},
                                          .owners = {owner, owner},
                                          .rows = rows});
    EXPECT_EQ(exact.want.size(), static_cast<size_t>(some.count()));
    EXPECT_TRUE(std::ranges::all_of(exact.want, [&](double v) { return v == exact.want[0]; }));
    return exact.want[0];
  };
  const auto hold = [&](const Tensor& here, const Tensor& there) {
    oracle->hold(here, {here.memory(), here.view().data}, copy_on(device, there));
  };
  const Tensor one = filled(1), other = filled(1);
  hold(one, filled(4));
  EXPECT_EQ(sum_of(one, 0, shape[0]), 8);
  EXPECT_EQ(sum_of(one, 3, shape[0] / 2), 8);
  EXPECT_EQ(sum_of(other, 0, shape[0]), 2);
  // Another owner of the same numbers, as when what was there is gone.
  const std::shared_ptr<const void> stranger(std::make_shared<int>(), one.view().data);
  const std::vector<Row> rows(static_cast<size_t>(shape[0]));
  const Exact anew = oracle->evaluate({.place = {&point("attn.residual"), 0},
                                       .inputs = {one, one},
                                       .owners = {stranger, stranger},
                                       .rows = rows});
  EXPECT_EQ(anew.want[0], 2);
}

}  // namespace
}  // namespace lockstep
