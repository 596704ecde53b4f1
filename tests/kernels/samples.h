#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "kernels/base/check.h"
#include "kernels/base/tensor.h"
#include "kernels/cpu/simd.h"

namespace lockstep {

constexpr DType kFloats[] = {DType::f32, DType::f16, DType::bf16};
constexpr double kUnit = 0x1p-24;  // of one rounding in fp32

// A tensor for tests: begins `offset` elements after a 64-byte border, filled with 0xff (NaN in
// every float dtype), between two rows of guard bytes that no op may touch.
class Sample {
 public:
  Sample(const Shape& shape, DType dtype, int64_t offset = 0)
      : begin_(static_cast<size_t>(kGuard + offset * size_of(dtype))),
        bytes_(static_cast<size_t>(shape.count() * size_of(dtype))),
        storage_(begin_ + bytes_ + kGuard + 64, kMark) {
    void* aligned = storage_.data();
    size_t space = storage_.size();
    std::align(64, begin_ + bytes_ + kGuard, aligned, space);
    first_ = static_cast<unsigned char*>(aligned) + begin_;
    view_ = {first_, dtype, Device::cpu, shape};
    std::memset(first_, 0xff, bytes_);
  }
  Sample(const Sample&) = delete;
  Sample& operator=(const Sample&) = delete;
  ~Sample() {
    const unsigned char* base = storage_.data();
    for (const unsigned char* p = base; p < base + storage_.size(); ++p) {
      const bool inside = p >= first_ && p < first_ + bytes_;
      if (!inside && *p != kMark) {
        ADD_FAILURE() << "byte " << p - first_ << " outside a tensor of " << bytes_
                      << " was written";
        return;
      }
    }
  }

  operator TensorView() const { return view_; }
  operator WeightView() const { return view(); }
  const TensorView& view() const { return view_; }

  void set(int64_t i, double value) {
    const auto x = static_cast<float>(value);
    if (view_.dtype == DType::f32)
      view_.as<float>()[i] = x;
    else if (view_.dtype == DType::f16)
      view_.as<Float16>()[i] = from_float<Float16>(x);
    else if (view_.dtype == DType::bf16)
      view_.as<BFloat16>()[i] = from_float<BFloat16>(x);
    else if (view_.dtype == DType::i32)
      view_.as<int32_t>()[i] = static_cast<int32_t>(value);
    else
      view_.as<int64_t>()[i] = static_cast<int64_t>(value);
  }
  Sample& fill(const std::vector<double>& values) {
    EXPECT_EQ(static_cast<int64_t>(values.size()), view_.count());
    for (size_t i = 0; i < values.size(); ++i) set(static_cast<int64_t>(i), values[i]);
    return *this;
  }
  // Normal numbers of that spread.
  Sample& fill_normal(unsigned seed, double spread = 1, double mean = 0) {
    std::mt19937 random(seed);
    std::normal_distribution<double> normal(mean, spread);
    for (int64_t i = 0; i < view_.count(); ++i) set(i, normal(random));
    return *this;
  }
  std::vector<double> values() const {
    std::vector<double> out(static_cast<size_t>(view_.count()));
    widen(view_, 0, out);
    return out;
  }
  std::string bits() const { return {reinterpret_cast<const char*>(first_), bytes_}; }

 private:
  static constexpr int64_t kGuard = 64;
  static constexpr unsigned char kMark = 0x5a;
  size_t begin_, bytes_;
  std::vector<unsigned char> storage_;
  unsigned char* first_ = nullptr;
  TensorView view_;
};

// Every element of `got` lies within half an ulp (the one rounding of the store) of `want`, plus
// what fp32 arithmetic may have done before it.
inline void expect_rounded(const Sample& got, const std::vector<double>& want,
                           const std::vector<double>& arithmetic) {
  const std::vector<double> values = got.values();
  const DType dtype = got.view().dtype;
  ASSERT_EQ(values.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    const double limit =
        0.5 * ulp(std::max(std::fabs(want[i]), std::fabs(values[i])), dtype) + arithmetic[i];
    ASSERT_LE(std::fabs(values[i] - want[i]), limit)
        << "element " << i << " of " << want.size() << " in " << name_of(dtype) << ": got "
        << values[i] << ", want " << want[i];
  }
}

// Runs the test once with each set of instructions that this CPU has.
template <typename Test>
void on_every_isa(Test test) {
  for (const Isa isa : {Isa::generic, Isa::avx2, Isa::avx512}) {
    limit_isa(isa);
    if (best_isa() != isa) continue;
    SCOPED_TRACE("instructions " + std::to_string(static_cast<int>(isa)));
    test();
  }
  limit_isa(Isa::avx512);
}

// The op refuses with a sentence that has all these words in it.
template <typename Call>
void expect_refused(Call call, std::initializer_list<std::string> words) {
  try {
    call();
    ADD_FAILURE() << "nothing was refused";
  } catch (const Error& error) {
    for (const std::string& word : words)
      EXPECT_NE(std::string(error.what()).find(word), std::string::npos)
          << "'" << word << "' was wanted in: " << error.what();
  }
}

}  // namespace lockstep
