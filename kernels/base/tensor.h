#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

#include "kernels/base/dtype.h"

namespace lockstep {

enum class Device : uint8_t { cpu, cuda };

// Extents of up to five axes, outermost first. A value: nothing is owned elsewhere.
class Shape {
 public:
  Shape() = default;
  Shape(std::initializer_list<int64_t> extents);
  explicit Shape(std::span<const int64_t> extents);

  int rank() const { return rank_; }
  int64_t operator[](int axis) const { return extents_[static_cast<size_t>(axis)]; }
  int64_t last() const { return extents_[static_cast<size_t>(rank_ - 1)]; }
  int64_t count() const;  // product of the extents; 1 for rank 0
  std::span<const int64_t> extents() const { return {extents_.data(), static_cast<size_t>(rank_)}; }
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

// Element i of a CPU tensor of a float or integer dtype, widened exactly (i64 beyond 2^53 rounds).
double value_at(const TensorView& tensor, int64_t i);
// Elements [first, first + out.size()) of a CPU tensor, widened exactly.
void widen(const TensorView& tensor, int64_t first, std::span<double> out);

}  // namespace lockstep
