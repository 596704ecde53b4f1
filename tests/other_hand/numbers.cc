#include "tests/other_hand/numbers.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

namespace lockstep::other_hand {
namespace {

// The distance between neighbours around x, of `precision` significant bits.
double spacing(double x, int precision, int min_exponent) {
  const int biased = static_cast<int>(std::bit_cast<uint64_t>(x) >> 52) & 0x7ff;
  const int exponent = std::max(biased - 1023, min_exponent) - precision + 1;
  return std::bit_cast<double>(static_cast<uint64_t>(exponent + 1023) << 52);
}

float from_half(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t size = static_cast<uint32_t>(bits & 0x7fffu) << 13;
  if (size >= 0x7c00u << 13) return std::bit_cast<float>(sign | 0x7f800000u | size);
  // The exponent's bias is 15 and not 127; the product is exact, for subnormals too.
  return std::bit_cast<float>(sign |
                              std::bit_cast<uint32_t>(std::bit_cast<float>(size) * 0x1p112F));
}

// Of a number that fp16 has.
uint16_t half_bits(double x) {
  const uint16_t sign = std::signbit(x) ? 0x8000u : 0u;
  if (std::isnan(x)) return 0x7e00u;
  const double size = std::fabs(x);
  if (std::isinf(x)) return static_cast<uint16_t>(sign | 0x7c00u);
  if (size < 0x1p-14) return static_cast<uint16_t>(sign | static_cast<unsigned>(size * 0x1p24));
  const auto bits = std::bit_cast<uint64_t>(size);
  const auto exponent = static_cast<unsigned>((bits >> 52) - 1023 + 15);
  return static_cast<uint16_t>(sign | (exponent << 10) | ((bits >> 42) & 0x3ffu));
}

double of_scale(double x, double largest, double most, int precision, int min_exponent) {
  const double scale = largest > 0 ? most / largest : 1;
  return to_bits(std::clamp(x * scale, -most, most), precision, min_exponent) / scale;
}

}  // namespace

Format format_of(Kind kind) {
  switch (kind) {
    case Kind::fp16:
      return {11, -14, 65504};
    case Kind::bf16:
      return {8, -126, 0x1.fep127};
    case Kind::fp32:
      break;
  }
  return {24, -126, std::numeric_limits<float>::max()};
}

double to_bits(double x, int precision, int min_exponent) {
  if (!std::isfinite(x) || x == 0) return x;
  // Beside 1.5 * 2^52 spacings a double has room for whole spacings alone.
  const double shift = 0x1.8p52 * spacing(x, precision, min_exponent);
  return std::copysign((x + shift) - shift, x);
}

double cut_to_bits(double x, int precision, int min_exponent) {
  if (!std::isfinite(x) || x == 0) return x;
  const double step = spacing(x, precision, min_exponent);
  return std::trunc(x / step) * step;
}

double nearest(double x, Kind kind) {
  const Format format = format_of(kind);
  const double value = to_bits(x, format.precision, format.min_exponent);
  if (std::fabs(value) <= format.max || std::isnan(value)) return value;
  return std::copysign(std::numeric_limits<double>::infinity(), x);
}

double truncated(double x, Kind kind) {
  const Format format = format_of(kind);
  return cut_to_bits(x, format.precision, format.min_exponent);
}

double ulp(double x, Kind kind) {
  const Format format = format_of(kind);
  return spacing(x, format.precision, format.min_exponent);
}

double e4m3(double x, double largest) { return of_scale(x, largest, 448, 4, -6); }
double e5m2(double x, double largest) { return of_scale(x, largest, 57344, 3, -14); }

double int8(double x, double largest) {
  if (largest <= 0) return x;
  return std::nearbyint(std::clamp(x / largest * 127, -127.0, 127.0)) * largest / 127;
}

float bit_trick_exp(float x) {
  if (std::isnan(x)) return x;
  const float bits = 12102203.0F * std::max(x, -87.0F) + 1064866805.0F;
  return std::bit_cast<float>(static_cast<int32_t>(bits));
}

float quadratic_exp(float x) {
  if (std::isnan(x)) return x;
  const float t = std::clamp(x * 1.4426950408889634F, -126.0F, 126.0F);
  const float whole = std::floor(t), f = t - whole;
  const float power = 1.001724763156928F + f * (0.6576362762773907F + f * 0.3371894342518255F);
  return std::ldexp(power, static_cast<int>(whole));
}

float straight_exp(float x) {
  if (std::isnan(x)) return x;
  const float t = std::clamp(x * 1.4426950408889634F, -126.0F, 126.0F);
  const float whole = std::floor(t);
  return std::ldexp(0.9701787945539003F * (1 + t - whole), static_cast<int>(whole));
}

Tensor::Tensor(const DLTensor* tensor)
    : tensor_(tensor),
      base_(static_cast<char*>(tensor->data) + tensor->byte_offset),
      kind_(tensor->dtype.code == kDLBfloat ? Kind::bf16
            : tensor->dtype.bits == 16      ? Kind::fp16
                                            : Kind::fp32) {}

int64_t Tensor::count() const {
  int64_t n = 1;
  for (int i = 0; i < tensor_->ndim; ++i) n *= axis(i);
  return n;
}

float Tensor::at(int64_t i) const {
  if (kind_ == Kind::fp32) return reinterpret_cast<const float*>(base_)[i];
  const uint16_t bits = reinterpret_cast<const uint16_t*>(base_)[i];
  if (kind_ == Kind::fp16) return from_half(bits);
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

void Tensor::put(int64_t i, double value) const {
  const double stored = nearest(value, kind_);
  if (kind_ == Kind::fp32) {
    reinterpret_cast<float*>(base_)[i] = static_cast<float>(stored);
  } else if (kind_ == Kind::fp16) {
    reinterpret_cast<uint16_t*>(base_)[i] = half_bits(stored);
  } else {
    const auto bits = std::bit_cast<uint32_t>(static_cast<float>(stored));
    reinterpret_cast<uint16_t*>(base_)[i] = static_cast<uint16_t>(bits >> 16);
  }
}

void Tensor::load(int64_t from, int64_t count, float* to) const {
  for (int64_t i = 0; i < count; ++i) to[i] = at(from + i);
}

std::vector<float> Tensor::all() const {
  std::vector<float> values(static_cast<size_t>(count()));
  load(0, count(), values.data());
  return values;
}

const int32_t* indices(const DLTensor* tensor) {
  return reinterpret_cast<const int32_t*>(static_cast<const char*>(tensor->data) +
                                          tensor->byte_offset);
}

const int64_t* slots(const DLTensor* tensor) {
  return reinterpret_cast<const int64_t*>(static_cast<const char*>(tensor->data) +
                                          tensor->byte_offset);
}

const char* refused(std::initializer_list<const DLTensor*> floats) {
  for (const DLTensor* tensor : floats) {
    if (tensor->device.device_type != kDLCPU)
      return "the kernels of the other hand run on the CPU: leave out --device cuda";
    const DLDataType type = tensor->dtype;
    const bool known = (type.code == kDLFloat && (type.bits == 32 || type.bits == 16)) ||
                       (type.code == kDLBfloat && type.bits == 16);
    if (!known) return "the kernels of the other hand know fp32, fp16 and bf16";
  }
  return nullptr;
}

}  // namespace lockstep::other_hand
