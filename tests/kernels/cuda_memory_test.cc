#include <algorithm>

#include "tests/kernels/cuda_samples.h"

namespace lockstep {
namespace {

using CudaMemory = CudaTest;

TEST_F(CudaMemory, WhatIsReleasedIsHandedOutAgain) {
  const void* first = nullptr;
  {
    const Tensor tensor({12345}, DType::f32, cuda_device());
    first = tensor.view().data;
  }
  const int64_t before = memory_.available();
  const Tensor again({12345}, DType::f32, cuda_device());
  EXPECT_EQ(again.view().data, first);
  EXPECT_LT(memory_.available(), before);
  const Tensor other({12345}, DType::f32, cuda_device());
  EXPECT_NE(other.view().data, first);
}

// Large prompts follow each other like this, a token more or less.
TEST_F(CudaMemory, WhatIsReleasedIsHandedOutAgainToWhomItFits) {
  const void* first = nullptr;
  {
    const Tensor tensor({6144, 4096}, DType::bf16, cuda_device());
    first = tensor.view().data;
  }
  for (const int64_t rows : {6144, 6141, 5600})
    EXPECT_EQ(Tensor({rows, 4096}, DType::bf16, cuda_device()).view().data, first) << rows;
  for (const int64_t rows : {6145, 5000, 1})
    EXPECT_NE(Tensor({rows, 4096}, DType::bf16, cuda_device()).view().data, first) << rows;
}

// Weights and pools are of such sizes.
TEST_F(CudaMemory, RoundSizesTakeNoMoreThanTheyAre) {
  constexpr int64_t kBytes = int64_t{1} << 30;
  const int64_t before = memory_.available();
  std::vector<Tensor> weights;
  for (int64_t bytes = 0; bytes < kBytes; bytes += int64_t{4} * 8192 * 4096)
    weights.emplace_back(Shape{8192, 4096}, DType::f32, cuda_device());
  EXPECT_EQ(before - memory_.available(), kBytes);
}

TEST_F(CudaMemory, IsAlignedAndHoldsWhatIsCopiedThere) {
  // The last ones go by pinned memory, one piece, and several of which the last is no whole one.
  for (const int64_t bytes : {1, 511, 512, 513, 100000, 5000000, 50000001}) {
    const Tensor tensor({bytes}, DType::u8, cuda_device());
    EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.view().data) % 256, 0u);
    std::vector<char> out(static_cast<size_t>(bytes)), back(out.size());
    for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<char>(i * 31);
    std::vector<char> sent = out;
    memory_.copy(tensor.view().data, sent.data(), bytes, nullptr);
    std::ranges::fill(sent, 0);  // what is not pinned has been read by then
    memory_.copy(back.data(), tensor.view().data, bytes, nullptr);
    memory_.wait(nullptr);
    EXPECT_EQ(back, out);
  }
}

// A tensor of the device with numbers of its own, and what they are.
struct Numbers {
  Numbers(int64_t bytes, int seed) : home(static_cast<size_t>(bytes)) {
    for (size_t i = 0; i < home.size(); ++i) home[i] = static_cast<char>(i * 31 + seed);
    away = copy_on(cuda_device(), tensor_of<char>(home, {bytes}, DType::u8));
  }
  // What is there now.
  std::vector<char> seen() const {
    const Tensor back = copy_on(Device::cpu, away);
    return {back.as<char>(), back.as<char>() + back.view().bytes()};
  }
  std::vector<char> home;
  Tensor away;
};

TEST_F(CudaMemory, PartsAreCopiedAtOnceWhereverTheyBegin) {
  // To and from addresses that are multiples of a word and that are none, of any size.
  struct Case {
    int64_t to, from, bytes;
  };
  const Case cases[] = {{0, 0, 16},       {16, 48, 1},      {32, 64, 1000000}, {7, 0, 5000},
                        {0, 9, 70001},    {5, 5, 33},       {160, 16, 0},      {48, 32, 31},
                        {1, 2, 3},        {64, 0, 9999999}, {3, 16, 16},       {16, 3, 17},
                        {112, 128, 4096}, {0, 0, 2},        {15, 1, 40000},    {16, 16, 65537}};
  ASSERT_EQ(std::size(cases), DeviceRuntime::kMostParts);
  std::vector<Numbers> from, to;
  std::vector<CopyPart> parts;
  for (const Case& c : cases) {
    from.emplace_back(c.from + c.bytes + 50, 1), to.emplace_back(c.to + c.bytes + 50, 2);
    parts.push_back(
        {to.back().away.as<char>() + c.to, from.back().away.as<char>() + c.from, c.bytes});
  }
  memory_.copy_parts(parts, memory_.stream);
  for (size_t i = 0; i < parts.size(); ++i) {
    SCOPED_TRACE(i);
    std::vector<char> want = to[i].home;
    std::copy_n(from[i].home.begin() + cases[i].from, cases[i].bytes, want.begin() + cases[i].to);
    EXPECT_EQ(to[i].seen(), want);
    EXPECT_EQ(from[i].seen(), from[i].home);
  }
  parts.emplace_back();
  expect_refused([&] { memory_.copy_parts(parts, memory_.stream); }, {"17 copies", "16 at most"});
}

// More than a launch can bring along, too.
TEST_F(CudaMemory, IsFilledFromTheHostAndThenFromTheDevice) {
  for (const int64_t bytes : {1, 100, 4096, 4097, 20000, 28672, 28673, 300000}) {
    SCOPED_TRACE(bytes);
    // In words and in bytes.
    for (const int64_t begin : {0, 4, 16}) {
      const Numbers to(bytes + 60, 2), then(60, 5);
      std::vector<char> sent = Numbers(bytes, 9).home;
      std::vector<char> want = to.home;
      std::ranges::copy(sent, want.begin());
      std::copy_n(then.home.begin() + begin, 40, want.begin() + begin);
      memory_.fill(to.away.as<char>(), sent.data(), bytes,
                   {to.away.as<char>() + begin, then.away.as<char>() + begin, 40}, memory_.stream);
      std::ranges::fill(sent, 0);  // has been read by then
      EXPECT_EQ(to.seen(), want);
    }
  }
}

TEST_F(CudaMemory, MoreThanTheDeviceHasIsASentence) {
  expect_refused([] { Tensor({int64_t{1} << 45}, DType::f32, cuda_device()); },
                 {"140737488355328 bytes", "device has not that much", "but", "--pages"});
  // And the error is not left behind for the next call, nor is what had been kept.
  Sample x({2, 8}, DType::f32), out({2, 8}, DType::f32);
  x.fill_normal(1);
  run(ops_->add, out, x, x);
}

TEST_F(CudaMemory, KeptMemoryIsGivenUpWhenADifferentSizeIsWanted) {
  const int64_t most = memory_.available() / 10 * 8;
  { const Tensor large({most}, DType::u8, cuda_device()); }
  const Tensor larger({most / 16 * 17}, DType::u8, cuda_device());
  EXPECT_NE(larger.view().data, nullptr);
}

}  // namespace
}  // namespace lockstep
