#include "probes/digest.h"

#include <gtest/gtest.h>
#include <xxhash.h>

#include <cmath>
#include <limits>
#include <random>

#include "kernels/base/check.h"
#include "kernels/base/memory.h"

namespace lockstep {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// The contract of digest.h in the plainest loops, two passes, long double sums.
struct Plain {
  int64_t nan = 0, pos_inf = 0, neg_inf = 0, zeros = 0, subnormals = 0, finite = 0, at = -1;
  double min = kInf, max = -kInf, absmax = 0;
  long double sum = 0, sum_abs = 0, sum_squares = 0, m2 = 0;
  std::array<uint32_t, 256> exponents{};
};

Plain plain(const TensorView& tensor, double smallest_normal) {
  Plain p;
  for (int64_t i = 0; i < tensor.count(); ++i) {
    const double x = value_at(tensor, i);
    if (std::isnan(x)) ++p.nan;
    if (x == kInf) ++p.pos_inf;
    if (x == -kInf) ++p.neg_inf;
    const int bin = x == 0 ? 0 : std::isfinite(x) ? std::ilogb(x) + 127 : 255;
    ++p.exponents[static_cast<size_t>(std::min(std::max(bin, 0), 255))];
    if (!std::isfinite(x)) continue;
    ++p.finite;
    if (x == 0) ++p.zeros;
    if (x != 0 && std::fabs(x) < smallest_normal) ++p.subnormals;
    p.min = std::min(p.min, x);
    p.max = std::max(p.max, x);
    if (p.at < 0 || std::fabs(x) > p.absmax) p.absmax = std::fabs(x), p.at = i;
    p.sum += x;
    p.sum_abs += std::fabs(x);
    p.sum_squares += static_cast<long double>(x) * x;
  }
  for (int64_t i = 0; i < tensor.count(); ++i) {
    const long double x = value_at(tensor, i);
    if (std::isfinite(x)) p.m2 += (x - p.sum / p.finite) * (x - p.sum / p.finite);
  }
  return p;
}

void expect_close(double got, long double want) {
  EXPECT_NEAR(got, static_cast<double>(want), 1e-11 * (1 + std::fabs(static_cast<double>(want))));
}

void expect_plain(const TensorView& tensor, double smallest_normal) {
  const Digest got = digest_of(tensor);
  const Plain want = plain(tensor, smallest_normal);
  EXPECT_EQ(got.hash, XXH3_64bits(tensor.data, static_cast<size_t>(tensor.bytes())));
  EXPECT_EQ(got.count, tensor.count());
  EXPECT_EQ(got.nan, want.nan);
  EXPECT_EQ(got.pos_inf, want.pos_inf);
  EXPECT_EQ(got.neg_inf, want.neg_inf);
  EXPECT_EQ(got.finite(), want.finite);
  EXPECT_EQ(got.zeros, want.zeros);
  EXPECT_EQ(got.subnormals, want.subnormals);
  EXPECT_EQ(got.absmax, want.absmax);
  EXPECT_EQ(got.absmax_index, want.at);
  EXPECT_EQ(got.exponents, want.exponents);
  if (want.finite == 0) return;
  EXPECT_EQ(got.min, want.min);
  EXPECT_EQ(got.max, want.max);
  expect_close(got.mean, want.sum / want.finite);
  expect_close(got.m2, want.m2);
  expect_close(got.sum_abs, want.sum_abs);
  expect_close(got.sum_squares, want.sum_squares);
  expect_close(got.rms(), std::sqrt(want.sum_squares / want.finite));
}

// Any bits are a float: NaNs with payloads, both zeros, subnormals and infinities among them.
template <typename Bits>
Tensor random_bits(int64_t rows, int64_t columns, DType dtype, Bits mask) {
  std::mt19937_64 random(7);
  Tensor tensor({rows, columns}, dtype);
  for (int64_t i = 0; i < rows * columns; ++i)
    tensor.as<Bits>()[i] = static_cast<Bits>(random()) & (i % 3 ? mask : static_cast<Bits>(~0ull));
  return tensor;
}

TEST(Digest, EqualsPlainLoopsOnEveryKindOfHalf) {
  // Without its top exponent bits a half is small, zero or subnormal; every third one is anything.
  expect_plain(random_bits<uint16_t>(37, 83, DType::bf16, 0xbfff), 0x1p-126);
  expect_plain(random_bits<uint16_t>(37, 83, DType::bf16, 0x80ff), 0x1p-126);
  expect_plain(random_bits<uint16_t>(37, 83, DType::f16, 0xbfff), 0x1p-14);
  expect_plain(random_bits<uint16_t>(37, 83, DType::f16, 0x87ff), 0x1p-14);
}

TEST(Digest, EqualsPlainLoopsOnIntegersAndDoubles) {
  expect_plain(random_bits<uint32_t>(3, 700, DType::i32, 0xff), 0);
  expect_plain(random_bits<uint8_t>(5, 1, DType::u8, 0xff), 0);
  std::vector<double> values(3000);
  std::mt19937 random(3);
  for (double& x : values) x = std::normal_distribution<double>(1e3, 1)(random);
  expect_plain(tensor_of<double>(values, {3, 1000}, DType::f64), 0x1p-1022);
  const std::vector<float> tiny = {0x1p-126f, 0x1p-127f, -0x1p-149f, -0.f, 0.f, 3.f};
  expect_plain(tensor_of<float>(tiny, {6}, DType::f32), 0x1p-126);
}

TEST(Digest, OfNothingFiniteHasNoExtremes) {
  const std::vector<float> values = {NAN, INFINITY, -INFINITY, -INFINITY};
  const Digest digest = digest_of(tensor_of<float>(values, {4}, DType::f32));
  EXPECT_EQ(digest.nan, 1);
  EXPECT_EQ(digest.pos_inf, 1);
  EXPECT_EQ(digest.neg_inf, 2);
  EXPECT_EQ(digest.absmax_index, -1);
  EXPECT_EQ(digest.min, 0);
  EXPECT_EQ(digest.max, 0);
  EXPECT_EQ(digest.rms(), 0);
  EXPECT_EQ(digest.exponents[255], 4u);
}

TEST(Digest, OfAnEmptyTensorIsAllZero) {
  const Digest digest = digest_of(Tensor({0, 5}, DType::bf16));
  EXPECT_EQ(digest.count, 0);
  EXPECT_EQ(digest.rms(), 0);
  EXPECT_EQ(digest.absmax_index, -1);
}

TEST(Digest, OfHashesAloneHasNoNumbers) {
  std::vector<float> values = {1, 2, 3, 4};
  const auto tensor = [&] { return tensor_of<float>(values, {2, 2}, DType::f32); };
  const std::vector<uint64_t> rows = row_hashes_of(tensor());
  const Digest digest = digest_of_rows(rows, 4);
  EXPECT_EQ(digest.hash, hash_of(rows.data(), 16));
  EXPECT_EQ(digest.count, 4);
  EXPECT_FALSE(digest.has_numbers());
  EXPECT_EQ(digest.finite(), -1);
  for (double number : {digest.rms(), digest.min, digest.max, digest.absmax, digest.mean, digest.m2,
                        digest.sum_abs, digest.sum_squares})
    EXPECT_TRUE(std::isnan(number));
  for (const Digest& of : {digest, digest_of(tensor())}) EXPECT_EQ(contradiction(of, tensor()), "");
  EXPECT_EQ(contradiction(digest, 4, digest.rms(), rows), "");
  EXPECT_EQ(contradiction(digest, 4, digest.rms(), {}), "") << "not kept";
  EXPECT_EQ(contradiction(digest, 4, digest.rms(), std::vector<uint64_t>{rows[1], rows[0]}),
            "xxh3");
  const Digest whole = digest_of(tensor());
  std::swap(values[0], values[3]);
  for (const Digest& of : {digest, whole}) EXPECT_EQ(contradiction(of, tensor()), "xxh3");
}

// Each column of a digest, made other than the tensor has it.
TEST(Digest, ContradictsItsTensorInTheColumnThatIsNotSo) {
  std::vector<float> values = {3, -4, 0, 0.5f, 1e-40f, INFINITY, NAN, 4};
  const Tensor tensor = tensor_of<float>(values, {2, 4}, DType::f32);
  const Digest right = digest_of(tensor);
  ASSERT_EQ(contradiction(right, tensor), "");
  const auto with = [&](auto member, auto value) {
    Digest other = right;
    other.*member = value;
    return std::string(contradiction(other, tensor));
  };
  EXPECT_EQ(with(&Digest::hash, uint64_t{1}), "xxh3");
  EXPECT_EQ(with(&Digest::count, int64_t{7}), "n");
  EXPECT_EQ(with(&Digest::nan, int64_t{0}), "nan");
  EXPECT_EQ(with(&Digest::pos_inf, int64_t{2}), "posinf");
  EXPECT_EQ(with(&Digest::neg_inf, int64_t{1}), "neginf");
  EXPECT_EQ(with(&Digest::zeros, int64_t{2}), "zeros");
  EXPECT_EQ(with(&Digest::subnormals, int64_t{0}), "subnormal");
  EXPECT_EQ(with(&Digest::min, -3.), "min");
  EXPECT_EQ(with(&Digest::max, INFINITY), "max");
  EXPECT_EQ(with(&Digest::absmax, 5.), "absmax");
  for (int64_t at : {0, -1, 5, 8}) EXPECT_EQ(with(&Digest::absmax_index, at), "absmax_at") << at;
  EXPECT_EQ(with(&Digest::absmax_index, int64_t{7}), "") << "as large, and later";
  EXPECT_EQ(with(&Digest::mean, right.mean * (1 + 1e-12)), "mean");
  EXPECT_EQ(with(&Digest::mean, NAN), "mean");
  EXPECT_EQ(with(&Digest::m2, right.m2 * (1 + 1e-12)), "m2");
  EXPECT_EQ(with(&Digest::sum_abs, right.sum_abs * (1 + 1e-12)), "sum_abs");
  EXPECT_EQ(with(&Digest::sum_squares, right.sum_squares * (1 + 1e-12)), "sum_squares");
  Digest other = right;
  std::swap(other.exponents[0], other.exponents[127]);
  EXPECT_EQ(contradiction(other, tensor), "exponent_count");
}

// What is said of a tensor that is not there can only contradict itself.
TEST(Digest, ContradictsItselfWhereItsNumbersDoNotFit) {
  std::vector<float> values = {3, -4, 0, NAN};
  const Digest right = digest_of(tensor_of<float>(values, {4}, DType::f32));
  const auto with = [&](auto member, auto value) {
    Digest other = right;
    other.*member = value;
    return std::string(contradiction(other, 4, right.rms(), {}));
  };
  EXPECT_EQ(with(&Digest::zeros, right.zeros), "");
  EXPECT_EQ(contradiction(right, 5, right.rms(), {}), "n");
  EXPECT_EQ(contradiction(right, 4, right.rms() * (1 + 1e-12), {}), "rms");
  EXPECT_EQ(with(&Digest::zeros, int64_t{5}), "zeros");
  EXPECT_EQ(with(&Digest::neg_inf, int64_t{-1}), "neginf");
  EXPECT_EQ(with(&Digest::nan, int64_t{-7}), "nan");
  EXPECT_EQ(with(&Digest::pos_inf, int64_t{4}), "nan") << "5 of 4 elements";
  Digest other = right;
  other.exponents[3] = 1;
  EXPECT_EQ(contradiction(other, 4, right.rms(), {}), "exponent_count");
}

// 200000 terms in the opposite order: other sums, and no contradiction.
TEST(Digest, OfAnotherOrderOfTheSumsIsNoContradiction) {
  std::mt19937 random(5);
  std::vector<float> values(200'000);
  for (float& value : values)
    value =
        std::ldexp(static_cast<float>(random()) - 0x1p31f, static_cast<int>(random() % 60) - 60);
  std::vector<float> turned(values.rbegin(), values.rend());
  const Digest of_turned = digest_of(tensor_of<float>(turned, {200'000}, DType::f32));
  const Tensor tensor = tensor_of<float>(values, {200'000}, DType::f32);
  Digest digest = digest_of(tensor);
  for (auto number : {&Digest::mean, &Digest::m2, &Digest::sum_abs, &Digest::sum_squares}) {
    EXPECT_NE(digest.*number, of_turned.*number);
    digest.*number = of_turned.*number;
  }
  EXPECT_EQ(contradiction(digest, tensor), "");
}

TEST(Digest, SeesAPermutationAndTheSignOfZeroByItsHash) {
  const std::vector<float> a = {1, 2, 0.f}, b = {2, 1, 0.f}, c = {1, 2, -0.f};
  const auto hash = [](const std::vector<float>& values) {
    return digest_of(tensor_of<float>(values, {3}, DType::f32)).hash;
  };
  EXPECT_NE(hash(a), hash(b));
  EXPECT_NE(hash(a), hash(c));
}

TEST(Digest, RefusesWhatIsNotInHostMemory) {
  float x = 0;
  EXPECT_THROW(digest_of({&x, DType::f32, Device::cuda, {1}}), Error);
  EXPECT_THROW(digest_of({nullptr, DType::f32, Device::cpu, {1}}), Error);
  EXPECT_THROW(row_hashes_of({&x, DType::f32, Device::cpu, {}}), Error);
}

TEST(RowHashes, AreOfEachRowAlone) {
  const std::vector<float> values = {1, 2, 3, 1, 2, 4, 1, 2, 3};
  const auto hashes = row_hashes_of(tensor_of<float>(values, {3, 3}, DType::f32));
  ASSERT_EQ(hashes.size(), 3u);
  EXPECT_EQ(hashes[0], XXH3_64bits(values.data(), 12));
  EXPECT_EQ(hashes[1], XXH3_64bits(values.data() + 3, 12));
  EXPECT_EQ(hashes[2], hashes[0]);
  EXPECT_TRUE(row_hashes_of(Tensor({0, 3}, DType::f32)).empty());
}

}  // namespace
}  // namespace lockstep
