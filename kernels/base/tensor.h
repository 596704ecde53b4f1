#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/dtype.h"

namespace lockstep {

enum class DeviceKind : uint8_t { cpu, cuda };

// A device by kind and number. A value; what the device can do is its DeviceRuntime (memory.h).
struct Device {
  DeviceKind kind = DeviceKind::cpu;
  int index = 0;  // among this machine's of its kind

  std::string text() const;  // "cpu", "cuda", "cuda:1"
  bool operator==(const Device&) const = default;
  static const Device cpu, cuda;  // the CPU, and the CUDA device of number 0
};
inline constexpr Device Device::cpu{};
inline constexpr Device Device::cuda{DeviceKind::cuda, 0};

// The device that a text names: "cpu", "cuda" or "cuda:N". Throws Error on any other.
Device device_from(const std::string& text);

// Extents of up to five axes, outermost first. A value: nothing is owned elsewhere.
class Shape {
 public:
  Shape() = default;
  Shape(std::initializer_list<int64_t> extents);
  // Throws Error for more than five.
  explicit Shape(std::span<const int64_t> extents);

  int rank() const { return rank_; }
  int64_t operator[](int axis) const { return extents_[axis]; }
  // The shape must have one axis at least.
  int64_t last() const { return extents_[rank_ - 1]; }
  int64_t count() const;  // product of the extents; 1 for rank 0
  std::span<const int64_t> extents() const { return std::span(extents_).first(rank_); }
  std::string text() const;  // "[3, 64]"
  bool operator==(const Shape& other) const;

 private:
  std::array<int64_t, 5> extents_{};
  int rank_ = 0;
};

// A dense row-major array that someone else owns. Whether it may be written is said by the function
// that takes it: outputs come first and are named so.
struct TensorView {
  void* data = nullptr;
  DType dtype = DType::f32;
  Device device = Device::cpu;
  Shape shape;

  bool empty() const { return data == nullptr; }
  int64_t count() const { return shape.count(); }
  int64_t bytes() const { return count() * size_of(dtype); }
  int64_t rows() const { return shape[0]; }
  int64_t row_size() const { return rows() == 0 ? 0 : count() / rows(); }  // elements of a row
  template <typename T>
  T* as() const {
    return static_cast<T*>(data);
  }
  // The same elements under another shape of equal count (throws Error otherwise).
  TensorView reshaped(const Shape& other) const;
  // Rows [first, first + count) along the outermost axis (throws Error when they do not exist).
  TensorView slice(int64_t first, int64_t count) const;
};

// A weight matrix as products take it and checkpoints give it: a tensor of codes, and the scales of
// a quantised one. Borrowed, as a TensorView is.
struct WeightView {
  // How the codes of a weight stand for numbers.
  enum class Kind : uint8_t {
    plain,   // the codes are the numbers, in a dtype that ops compute in
    scaled,  // a number is its code times its scale; no op of this build computes with it yet
  };

  TensorView codes;
  TensorView scales;  // empty: none
  Kind kind = Kind::plain;

  WeightView() = default;
  WeightView(const TensorView& plain) : codes(plain) {}
  WeightView(const TensorView& codes_, const TensorView& scales_)
      : codes(codes_), scales(scales_), kind(Kind::scaled) {}
  bool empty() const { return codes.empty(); }
};
// The codes of a plain weight, which are its numbers. Throws Error, which names `reader`, for any
// other: its codes must not pass for numbers.
const TensorView& plain_codes(std::string_view reader, const WeightView& weight);

// Element i of a CPU tensor of a float or integer dtype, widened exactly (i64 beyond 2^53 rounds).
double value_at(const TensorView& tensor, int64_t i);
// Elements [first, first + out.size()) of a CPU tensor, widened exactly.
void widen(const TensorView& tensor, int64_t first, std::span<double> out);
std::vector<double> widened_row(const TensorView& tensor, int64_t row);

}  // namespace lockstep
