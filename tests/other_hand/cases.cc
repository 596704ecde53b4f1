#include "tests/other_hand/cases.h"

#include <cmath>
#include <cstring>
#include <numeric>
#include <tuple>

namespace lockstep::other_hand {
namespace {

constexpr size_t kOffset = 64, kGuard = 64;
constexpr char kPattern = 0x5a;

int64_t product(const std::vector<int64_t>& shape) {
  int64_t n = 1;
  for (const int64_t axis : shape) n *= axis;
  return n;
}

DLDataType type_of(Kind kind) {
  if (kind == Kind::bf16) return {kDLBfloat, 16, 1};
  return {kDLFloat, static_cast<uint8_t>(kind == Kind::fp16 ? 16 : 32), 1};
}

// A number of 16 bits: sign, exponent, and `fraction` bits behind the point.
double value_of(unsigned bits, int fraction) {
  const int exponent_bits = 15 - fraction, bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = static_cast<int>(bits & 0x7fffu) >> fraction;
  const int rest = static_cast<int>(bits) & ((1 << fraction) - 1);
  const double size = exponent == 0
                          ? std::ldexp(rest, 1 - bias - fraction)
                          : std::ldexp((1 << fraction) + rest, exponent - bias - fraction);
  return bits & 0x8000u ? -size : size;
}

std::string trouble_with_dtype(Kind kind, int fraction) {
  Array array(kind, {2});
  const Tensor tensor(array.get());
  auto* stored = reinterpret_cast<uint16_t*>(tensor.bytes(0));
  const unsigned largest = (0x7fffu >> fraction << fraction) - 1;  // of the finite ones
  for (unsigned bits = 0; bits < largest; ++bits) {
    const double value = value_of(bits, fraction), next = value_of(bits + 1, fraction);
    stored[0] = static_cast<uint16_t>(bits);
    if (tensor.at(0) != value) return "is read wrongly";
    tensor.put(1, -value);
    if (stored[1] != (bits | 0x8000u)) return "is stored wrongly";
    const double half = value / 2 + next / 2, even = bits % 2 == 0 ? value : next;
    if (nearest(half, kind) != even || nearest(-half, kind) != -even) return "breaks ties wrongly";
    if (nearest(std::nextafter(half, next), kind) != next) return "rounds up wrongly";
    if (nearest(std::nextafter(half, value), kind) != value) return "rounds down wrongly";
    if (truncated(std::nextafter(next, value), kind) != value) return "is cut off wrongly";
    if (ulp(value, kind) != (bits == 0 ? next : next - value)) return "has a wrong ulp";
  }
  const double top = value_of(largest, fraction);
  const bool overflows = std::isinf(nearest(top + ulp(top, kind) / 2, kind));
  return overflows && nearest(top, kind) == top ? "" : "overflows wrongly";
}

}  // namespace

std::string trouble_with_numbers() {
  for (const auto& [kind, name, fraction] :
       {std::tuple{Kind::bf16, "bf16 ", 7}, std::tuple{Kind::fp16, "fp16 ", 10}}) {
    const std::string trouble = trouble_with_dtype(kind, fraction);
    if (!trouble.empty()) return name + trouble;
  }
  for (const double x : {1.0, 0.1, 3e38, 1e-42, -7e-39, 1 + 0x1p-24, 1 + 0x3p-24})
    if (nearest(x, Kind::fp32) != static_cast<double>(static_cast<float>(x)))
      return "fp32 is rounded wrongly";
  return "";
}

double Random::uniform() {
  state_ ^= state_ << 13;
  state_ ^= state_ >> 7;
  state_ ^= state_ << 17;
  return static_cast<double>(state_ >> 11) * 0x1p-53;
}

double Random::normal(double size) {
  const double radius = std::sqrt(-2 * std::log(1 - uniform()));
  return size * radius * std::cos(6.283185307179586 * uniform());
}

std::vector<int64_t> Random::permutation(int64_t n) {
  std::vector<int64_t> all(static_cast<size_t>(n));
  std::iota(all.begin(), all.end(), 0);
  for (size_t i = all.size(); i > 1; --i)
    std::swap(all[i - 1], all[static_cast<size_t>(below(static_cast<int64_t>(i)))]);
  return all;
}

Array::Array(std::vector<int64_t> shape, DLDataType type) : shape_(std::move(shape)) {
  const auto size = static_cast<size_t>(product(shape_)) * type.bits / 8;
  bytes_.assign(kOffset + size + kGuard, kPattern);
  tensor_.device = {kDLCPU, 0};
  tensor_.ndim = static_cast<int32_t>(shape_.size());
  tensor_.dtype = type;
  tensor_.byte_offset = kOffset;
  clear();
}

Array::Array(Kind kind, std::vector<int64_t> shape, const std::vector<double>& values)
    : Array(std::move(shape), type_of(kind)) {
  const Tensor to(get());
  for (size_t i = 0; i < values.size(); ++i) to.put(static_cast<int64_t>(i), values[i]);
  pristine_ = bytes_;
}

Array Array::of_int32(std::vector<int64_t> shape, const std::vector<int64_t>& values) {
  Array array(std::move(shape), {kDLInt, 32, 1});
  auto* to = const_cast<int32_t*>(indices(array.get()));
  for (size_t i = 0; i < values.size(); ++i) to[i] = static_cast<int32_t>(values[i]);
  array.pristine_ = array.bytes_;
  return array;
}

Array Array::of_int64(std::vector<int64_t> shape, const std::vector<int64_t>& values) {
  Array array(std::move(shape), {kDLInt, 64, 1});
  std::memcpy(array.bytes_.data() + kOffset, values.data(), values.size() * sizeof(int64_t));
  array.pristine_ = array.bytes_;
  return array;
}

const DLTensor* Array::get() {
  tensor_.data = bytes_.data();
  tensor_.shape = shape_.data();
  return &tensor_;
}

int64_t Array::count() const { return product(shape_); }

std::vector<double> Array::values() {
  std::vector<double> all;
  for (int64_t i = 0; i < count(); ++i)
    all.push_back(tensor_.dtype.code == kDLInt ? indices(get())[i]
                                               : static_cast<double>(Tensor(get()).at(i)));
  return all;
}

void Array::clear() {
  // All bits set are a NaN of every dtype, and -1.
  std::memset(bytes_.data() + kOffset, 0xff, bytes_.size() - kOffset - kGuard);
}

bool Array::guards_are_whole() const {
  for (size_t i = 0; i < kOffset; ++i)
    if (bytes_[i] != kPattern) return false;
  for (size_t i = bytes_.size() - kGuard; i < bytes_.size(); ++i)
    if (bytes_[i] != kPattern) return false;
  return true;
}

bool Array::is_unchanged() const { return bytes_ == pristine_; }

std::vector<double> sizes_of_rows(const std::vector<double>& results, int64_t width) {
  std::vector<double> sizes;
  const auto step = static_cast<size_t>(width);
  for (size_t from = 0; from < results.size(); from += step) {
    double squares = 0;
    for (size_t i = from; i < from + step; ++i) squares += results[i] * results[i];
    sizes.insert(sizes.end(), step, std::sqrt(squares / to_double(width)));
  }
  return sizes;
}

double roundoff(Kind kind) { return std::ldexp(1.0, -format_of(kind).precision); }

double underflow(Kind kind) {
  const Format format = format_of(kind);
  return std::ldexp(1.0, format.min_exponent - format.precision);
}

double sum_slack(int64_t n) { return (4 + 2 * std::sqrt(to_double(n))) * kFp32; }

std::vector<double> normals(Random& random, int64_t count, double size) {
  std::vector<double> values;
  for (int64_t i = 0; i < count; ++i) values.push_back(random.normal(size));
  return values;
}

std::vector<double> with_outliers(Random& random, int64_t rows, int64_t width, double size) {
  std::vector<double> values = normals(random, rows * width, size);
  for (int64_t row = 0; row < rows; ++row)
    for (const int64_t channel : {width / 7, width * 2 / 3})
      values[static_cast<size_t>(row * width + channel)] *= 40;
  return values;
}

}  // namespace lockstep::other_hand
