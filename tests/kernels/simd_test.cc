#include "kernels/cpu/simd.h"

#include "tests/kernels/samples.h"

namespace lockstep {
namespace {

struct Exp {
  const float* x;
  float* y;
  int64_t n;
  template <int N>
  [[gnu::always_inline]] void operator()() const {
    for (int64_t i = 0; i < n; i += N)
      simd::store<N>(y + i, simd::exp<N>(simd::load<N>(x + i, n - i)), n - i);
  }
};

std::vector<float> exp_of(const std::vector<float>& x) {
  std::vector<float> y(x.size());
  on_best_isa(Exp{x.data(), y.data(), static_cast<int64_t>(x.size())});
  return y;
}

TEST(Simd, ExpIsWithinTwoUlpOverTheWholeRange) {
  std::vector<float> x;
  for (double v = -104; v < 89; v += 1.0 / 4096) x.push_back(static_cast<float>(v + v * 1e-5));
  for (float v = 1; v > 1e-30f; v /= 1.01f) x.insert(x.end(), {v, -v});
  on_every_isa([&] {
    const std::vector<float> y = exp_of(x);
    for (size_t i = 0; i < x.size(); ++i) {
      const double want = std::exp(static_cast<double>(x[i]));
      if (want > format_of(DType::f32).max) continue;
      ASSERT_LE(std::fabs(static_cast<double>(y[i]) - want), 2 * ulp(want, DType::f32)) << x[i];
    }
  });
}

TEST(Simd, ExpOfSpecialValues) {
  on_every_isa([] {
    const std::vector<float> y =
        exp_of({0.0f, -0.0f, INFINITY, -INFINITY, NAN, 1e30f, -1e30f, 89.0f, -110.0f});
    EXPECT_EQ(y[0], 1);
    EXPECT_EQ(y[1], 1);
    EXPECT_EQ(y[2], INFINITY);
    EXPECT_EQ(y[3], 0);
    EXPECT_TRUE(std::isnan(y[4]));
    EXPECT_EQ(y[5], INFINITY);
    EXPECT_EQ(y[6], 0);
    EXPECT_EQ(y[7], INFINITY);
    EXPECT_EQ(y[8], 0);
  });
}

template <typename T>
struct Widen {
  const T* x;
  float* y;
  int64_t n;
  template <int N>
  [[gnu::always_inline]] void operator()() const {
    for (int64_t i = 0; i < n; i += N) simd::store<N>(y + i, simd::load<N>(x + i, n - i), n - i);
  }
};

template <typename T>
struct Narrow {
  const float* x;
  T* y;
  int64_t n;
  template <int N>
  [[gnu::always_inline]] void operator()() const {
    for (int64_t i = 0; i < n; i += N) simd::store<N>(y + i, simd::load<N>(x + i, n - i), n - i);
  }
};

// The vector conversions are to_float and from_float, which dtype_test holds to the definition.
template <typename T>
void expect_scalar_conversions() {
  std::vector<T> all(65536);
  for (size_t i = 0; i < all.size(); ++i) all[i].bits = static_cast<uint16_t>(i);
  std::vector<float> wide(all.size());
  on_best_isa(Widen<T>{all.data(), wide.data(), 65536});
  std::vector<float> near = wide;  // and points between neighbours: halves, and just off them
  for (const float x : wide)
    for (const float factor : {1 + 0x1p-9f, 1 + 0x1p-8f, 1 + 0x1.001p-9f, 1 + 0x1p-12f,
                               1 + 0x1p-11f, 1 + 0x1.01p-12f, 1 - 0x1p-12f, 1e5f})
      near.push_back(x * factor);
  std::vector<T> narrow(near.size());
  on_best_isa(Narrow<T>{near.data(), narrow.data(), static_cast<int64_t>(near.size())});
  for (size_t i = 0; i < all.size(); ++i) {
    const float want = to_float(all[i]);
    ASSERT_EQ(std::isnan(wide[i]), std::isnan(want)) << i;
    if (!std::isnan(want)) {
      ASSERT_EQ(std::bit_cast<uint32_t>(wide[i]), std::bit_cast<uint32_t>(want)) << i;
    }
  }
  for (size_t i = 0; i < near.size(); ++i) {
    const T want = from_float<T>(near[i]);
    ASSERT_EQ(std::isnan(to_float(narrow[i])), std::isnan(near[i])) << near[i];
    if (!std::isnan(near[i])) {
      ASSERT_EQ(narrow[i].bits, want.bits) << near[i];
    }
  }
}

TEST(Simd, ConversionsAreThoseOfTheDtypes) {
  on_every_isa([] {
    expect_scalar_conversions<BFloat16>();
    expect_scalar_conversions<Float16>();
  });
}

// The sums of N rows of N numbers, in both ways.
struct Sums {
  const float* rows;
  float *one, *each;
  template <int N>
  [[gnu::always_inline]] void operator()() const {
    simd::F<N> v[N];
    for (int i = 0; i < N; ++i) {
      v[i] = simd::load<N>(rows + i * N);
      one[i] = simd::sum<N>(v[i]);
    }
    simd::store<N>(each, simd::sum_each<N>(v));
  }
};

TEST(Simd, SumsOfManyVectorsAreThoseOfEach) {
  on_every_isa([] {
    Sample rows({16, 16}, DType::f32);
    rows.fill_normal(7);
    std::vector<float> one(16), each(16);
    on_best_isa(Sums{rows.view().as<float>(), one.data(), each.data()});
    EXPECT_NE(one[0], one[1]);
    EXPECT_EQ(one, each);
  });
}

}  // namespace
}  // namespace lockstep
