// How numbers are stored and rounded, written here anew: these kernels share no arithmetic with the
// engine that they are plugged into.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <vector>

#include "kernels/lockstep_ops.h"

namespace lockstep::other_hand {

enum class Kind : uint8_t { fp32, fp16, bf16 };

struct Format {
  int precision;     // significant bits, the leading one counted
  int min_exponent;  // of the smallest normal number
  double max;        // the largest finite value
};
Format format_of(Kind kind);

// x with that many significant bits, to the nearest (halves to even), or cut off. Exponents above
// are not bounded; below `min_exponent` there are fewer bits, as of subnormals.
double to_bits(double x, int precision, int min_exponent = -126);
double cut_to_bits(double x, int precision, int min_exponent = -126);

// x as that dtype has it: to the nearest, one rounding, overflowing to Inf; or cut off.
double nearest(double x, Kind kind);
double truncated(double x, Kind kind);
double ulp(double x, Kind kind);  // the distance between its neighbours around x
inline float rounded(float x, Kind kind) { return static_cast<float>(nearest(x, kind)); }

// fp8 with 4 exponent bits (saturating at 448), with 5 of them (57344), and 8-bit integers, each
// with the scale that makes `largest` the largest number that there is.
double e4m3(double x, double largest = 448);
double e5m2(double x, double largest = 57344);
double int8(double x, double largest);

// Approximations of e^x as kernels have them.
float bit_trick_exp(float x);  // Schraudolph's: the bits of a float, off by up to 4 %
float quadratic_exp(float x);  // 2^f by a polynomial of degree 2: off by 0.17 %
float straight_exp(float x);   // of degree 1: off by 3 %
inline float to_float(int64_t x) { return static_cast<float>(x); }
inline double to_double(int64_t x) { return static_cast<double>(x); }

// A typed look at a tensor of the C interface. Elements are counted in row-major order.
class Tensor {
 public:
  explicit Tensor(const DLTensor* tensor);

  Kind kind() const { return kind_; }
  int64_t axis(int i) const { return tensor_->shape[i]; }
  int64_t last_axis() const { return axis(tensor_->ndim - 1); }
  int64_t count() const;
  int64_t rows() const { return last_axis() == 0 ? 0 : count() / last_axis(); }
  int64_t element_size() const { return kind_ == Kind::fp32 ? 4 : 2; }

  float at(int64_t i) const;                // exactly
  void put(int64_t i, double value) const;  // to the nearest
  void load(int64_t from, int64_t count, float* to) const;
  std::vector<float> all() const;
  char* bytes(int64_t i) const { return base_ + i * element_size(); }

 private:
  const DLTensor* tensor_;
  char* base_;
  Kind kind_;
};

const int32_t* indices(const DLTensor* tensor);  // of int32
const int64_t* slots(const DLTensor* tensor);    // of int64

// A sentence when a kernel of this library cannot take these, or null: every kernel asks first.
const char* refused(std::initializer_list<const DLTensor*> floats);

}  // namespace lockstep::other_hand
