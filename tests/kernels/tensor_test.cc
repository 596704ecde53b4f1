#include "kernels/base/tensor.h"

#include <array>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "kernels/base/memory.h"
#include "tests/kernels/samples.h"

namespace lockstep {
namespace {

TEST(Shape, CountsAndNames) {
  EXPECT_EQ(Shape({2, 3, 4}).count(), 24);
  EXPECT_EQ(Shape({2, 0, 4}).count(), 0);
  EXPECT_EQ(Shape().count(), 1);
  EXPECT_EQ(Shape({2, 3}).text(), "[2, 3]");
  EXPECT_EQ(Shape().text(), "[]");
  EXPECT_EQ(Shape({2, 3}).last(), 3);
  EXPECT_FALSE(Shape({2, 3}) == Shape({2, 3, 1}));
  expect_refused([] { Shape{1, 2, 3, 4, 5, 6}; }, {"5 axes", "6"});
}

TEST(Tensor, TakesALittleMoreMemoryThanItsElements) {
  constexpr int64_t kMega = int64_t{1} << 20;
  for (const int64_t bytes : {int64_t{0}, int64_t{1}, int64_t{511}, int64_t{512}, int64_t{513},
                              5 * kMega + 1, 31 * kMega, 33 * kMega, 1000 * kMega + 3}) {
    for (const Device device : {Device::cpu, Device::cuda})
      EXPECT_GE(memory_for(bytes, device), std::max<int64_t>(1, bytes));
    EXPECT_LE(memory_for(bytes, Device::cpu), bytes + 128);
    EXPECT_LE(memory_for(bytes, Device::cuda), bytes + std::min(bytes / 8 + 512, 2 * kMega));
  }
  for (const int64_t bytes : {int64_t{512}, kMega, 32 * kMega, 96 * kMega})
    EXPECT_EQ(memory_for(bytes, Device::cuda), bytes);
}

TEST(TensorView, SlicesAndReshapes) {
  Sample sample({4, 3}, DType::bf16);
  sample.fill({0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11});
  const TensorView rows = sample.view().slice(1, 2);
  EXPECT_EQ(rows.shape, Shape({2, 3}));
  EXPECT_EQ(value_at(rows, 0), 3);
  EXPECT_EQ(value_at(rows.reshaped({6}), 5), 8);
  EXPECT_EQ(sample.view().slice(4, 0).count(), 0);
  expect_refused([&] { sample.view().slice(3, 2); }, {"3..5", "[4, 3]"});
  expect_refused([&] { sample.view().slice(-1, 2); }, {"-1", "[4, 3]"});
  expect_refused([&] { sample.view().reshaped({5, 2}); }, {"[4, 3]", "[5, 2]"});
}

TEST(TensorView, WidensEveryDtypeExactly) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::i32, DType::i64}) {
    Sample sample({3}, dtype);
    sample.fill({1, -2, 96});
    EXPECT_EQ(sample.values(), (std::vector<double>{1, -2, 96})) << name_of(dtype);
  }
  double wide[] = {0.1};
  uint8_t small[] = {200};
  EXPECT_EQ(value_at({wide, DType::f64, Device::cpu, {1}}, 0), 0.1);
  EXPECT_EQ(value_at({small, DType::u8, Device::cpu, {1}}, 0), 200);
}

TEST(Tensor, OwnsAlignedMemory) {
  Tensor a({3, 5}, DType::bf16);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(a.view().data) % 64, 0u);
  EXPECT_EQ(a.view().bytes(), 30);
  const void* data = a.view().data;
  const Tensor b = std::move(a);
  EXPECT_EQ(b.view().data, data);
  EXPECT_NE(Tensor({0, 4}, DType::f32).view().data, nullptr) << "an empty tensor is still one";
  EXPECT_TRUE(Tensor().view().empty());
  const std::vector<float> values = {1, 2, 3};
  EXPECT_EQ(value_at(tensor_of<float>(values, {3}, DType::f32), 2), 3);
}

#ifndef __SANITIZE_ADDRESS__
// New memory is cleared by the system, page by page: a layer's tensors have that of the last one's.
TEST(Tensor, FindsLargeMemoryAgainThatWasReleased) {
  const Shape large{3, 1 << 20}, other{5, 1 << 20};
  const void *first, *second;
  {
    const Tensor a(large, DType::f32), b(large, DType::f32);
    first = a.view().data, second = b.view().data;
    EXPECT_NE(first, second);
  }
  const Tensor a(large, DType::f32);
  EXPECT_TRUE(a.view().data == first || a.view().data == second);
  const Tensor b(other, DType::f32), c(large, DType::f32);
  EXPECT_NE(b.view().data, a.view().data);
  EXPECT_NE(c.view().data, a.view().data);
  EXPECT_NE(c.view().data, b.view().data);
}
#endif

TEST(Tensor, RefusesWhatCannotBeHad) {
  expect_refused([] { Tensor({3, -1}, DType::f32); }, {"[3, -1]", "negative"});
  expect_refused([] { Tensor({int64_t{1} << 50}, DType::f32); }, {"memory", "1125899906842624"});
  expect_refused([] { Tensor({4}, DType::f32, Device::cuda); }, {"CUDA", "--device cpu"});
}

TEST(Tensor, RefusesValuesOfAnotherWidthOrCount) {
  const std::vector<double> values = {1, 2, 3};
  expect_refused([&] { tensor_of<double>(values, {3}, DType::i32); }, {"[3]", "int32", "12", "24"});
  expect_refused([&] { tensor_of<double>(values, {2}, DType::f64); }, {"[2]", "fp64", "16", "24"});
}

TEST(Device, IsReadFromItsTextAndBack) {
  for (const char* text : {"cpu", "cuda", "cuda:1", "cuda:12"})
    EXPECT_EQ(device_from(text).text(), text);
  EXPECT_EQ(device_from("cuda:0"), Device::cuda);
  EXPECT_EQ(device_from("cuda:7"), (Device{DeviceKind::cuda, 7}));
  EXPECT_NE(device_from("cuda:1"), Device::cuda);
  for (const char* text : {"", "gpu", "cuda:", "cuda:-1", "cuda:1x", "cuda1", "cpu:1"})
    expect_refused([&] { device_from(text); }, {"cpu, cuda or cuda:N", text});
}

// Two devices that are played, each with a memory of its own.
TEST(Tensor, IsInTheMemoryOfItsOwnDevice) {
  static std::array<int, 2> held = {};
  static std::array<int, 2> waits = {};
  static std::array<int, 2> copies = {};
  static int asked = 0;
  for (const int index : {0, 1})
    register_runtime({.index = index,
                      .allocate =
                          [index](int64_t bytes) {
                            ++held[static_cast<size_t>(index)];
                            return std::malloc(static_cast<size_t>(bytes));
                          },
                      .release =
                          [index](void* memory) {
                            --held[static_cast<size_t>(index)];
                            std::free(memory);
                          },
                      .available =
                          [] {
                            ++asked;
                            return int64_t{0};
                          },
                      .copy =
                          [index](void* to, const void* from, int64_t bytes, CUstream_st*) {
                            ++copies[static_cast<size_t>(index)];
                            std::memcpy(to, from, static_cast<size_t>(bytes));
                          },
                      .wait = [index](CUstream_st*) { ++waits[static_cast<size_t>(index)]; }});
  const Device first = Device::cuda, second = device_from("cuda:1");
  {
    const Tensor a = copy_on(second, tensor_of<int32_t>(std::vector{5, 6}, {2}, DType::i32));
    EXPECT_EQ(held, (std::array{0, 1}));
    EXPECT_EQ(a.view().device, second);
    EXPECT_EQ(copies, (std::array{0, 1}));
    const Tensor b = copy_on(first, a);
    EXPECT_EQ(held, (std::array{1, 1}));
    EXPECT_EQ(copies, (std::array{1, 1}));
    EXPECT_EQ(waits, (std::array{0, 1})) << "the one that is copied from";
    EXPECT_EQ(copy_on(Device::cpu, b).as<int32_t>()[1], 6);
    EXPECT_EQ(waits, (std::array{1, 1}));
  }
  EXPECT_EQ(held, (std::array{0, 0}));
  EXPECT_EQ(asked, 0) << "what a device has left, which takes it long to say, and nobody wants";
  expect_refused([] { Tensor({4}, DType::f32, device_from("cuda:2")); }, {"CUDA device 2"});
  forget_runtimes();
}

TEST(Tensor, TakesDeviceMemoryFromWhereItWasTold) {
  static int held = 0;
  register_runtime({.allocate = [](int64_t bytes) -> void* {
                      if (bytes > 1 << 20) return nullptr;
                      ++held;
                      return new char[static_cast<size_t>(bytes)];
                    },
                    .release =
                        [](void* memory) {
                          --held;
                          delete[] static_cast<char*>(memory);
                        },
                    .available = [] { return int64_t{1234567}; }});
  {
    const Tensor a({100}, DType::f32, Device::cuda);
    EXPECT_EQ(held, 1);
    EXPECT_EQ(a.view().device, Device::cuda);
    expect_refused([] { Tensor({1 << 20}, DType::f32, Device::cuda); },
                   {"device", "4194304", "1234567"});
  }
  EXPECT_EQ(held, 0);
  forget_runtimes();
}

// A device of 2 MiB, half of which somebody else in this process keeps.
TEST(Tensor, GetsDeviceMemoryThatAnotherKeeps) {
  static int64_t kept = 1 << 20;
  static std::vector<Device> asked;
  register_runtime({.index = 1,
                    .allocate = [](int64_t bytes) -> void* {
                      return bytes + kept > 2 << 20 ? nullptr : std::malloc(bytes);
                    },
                    .release = std::free,
                    .available = [] { return (2 << 20) - kept; }});
  register_keeper([](Device device) {
    asked.push_back(device);
    kept = 0;
  });
  const Device device = device_from("cuda:1");
  const Tensor small({100}, DType::f32, device);
  EXPECT_TRUE(asked.empty()) << "which makes the other one ask the device again";
  const Tensor large({400, 1000}, DType::f32, device);
  EXPECT_EQ(asked, (std::vector{device}));
  expect_refused([&] { Tensor({600, 1000}, DType::f32, device); }, {"device", "2400000"});
  EXPECT_EQ(asked.size(), 2u);
  register_keeper({});
  forget_runtimes();
}

}  // namespace
}  // namespace lockstep
