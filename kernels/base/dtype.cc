// Names, sizes and formats of dtypes, one row each.
#include "kernels/base/dtype.h"

#include <algorithm>

#include "kernels/base/check.h"
#include "kernels/base/printable.h"

namespace lockstep {
namespace {

// A dtype is a row here.
struct Row {
  DType dtype;
  std::string_view name;
  int64_t size;
};
constexpr Row kDTypes[] = {
    {DType::f64, "fp64", 8},  {DType::f32, "fp32", 4},  {DType::f16, "fp16", 2},
    {DType::bf16, "bf16", 2}, {DType::i64, "int64", 8}, {DType::i32, "int32", 4},
    {DType::u8, "uint8", 1},
};

// Rows stand in the order of the enum, so that a dtype is its own index.
const Row& row_of(DType dtype) { return kDTypes[static_cast<size_t>(dtype)]; }

}  // namespace

int64_t size_of(DType dtype) { return row_of(dtype).size; }

std::string_view name_of(DType dtype) { return row_of(dtype).name; }

bool is_dtype(std::string_view name) {
  return std::ranges::any_of(kDTypes, [&](const Row& row) { return row.name == name; });
}

DType dtype_from(std::string_view name) {
  for (const Row& row : kDTypes)
    if (row.name == name) return row.dtype;
  fail("dtype '{}' is not known: use fp32, bf16 or fp16", shown(name));
}

bool is_float(DType dtype) {
  return dtype == DType::f64 || dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16;
}

void fail_no_float(DType dtype) { fail("{} is no floating-point dtype", name_of(dtype)); }

double unit_roundoff(DType dtype) { return std::ldexp(1.0, -format_of(dtype).precision); }

// Exact: every fp16 is an fp32.
float to_float(Float16 x) {
  const uint32_t sign = (x.bits & 0x8000u) << 16;
  const uint32_t magnitude = x.bits & 0x7fffu;
  if (magnitude >= 0x7c00u)  // Inf and NaN
    return std::bit_cast<float>(sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13));
  // 2^112 moves the exponent bias from 15 to 127 and normalises subnormals on the way.
  const float scaled = std::bit_cast<float>(magnitude << 13) * 0x1p112f;
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(scaled));
}

// To nearest, ties to even: half of the last place, less one where it would stay odd, is added to
// the bits, and a carry into the exponent is right as it comes. From 65520 on, halfway past the
// largest, it is Inf.
Float16 to_float16(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  const float magnitude = std::fabs(x);
  if (std::isnan(x)) return {static_cast<uint16_t>(sign | 0x7e00u)};
  if (magnitude >= 65520.0f) return {static_cast<uint16_t>(sign | 0x7c00u)};
  if (magnitude < 0x1p-14f) {  // subnormal: adding 0.5 leaves the rounded multiple of 2^-24
    const float shifted = magnitude + 0.5f;
    return {static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000u))};
  }
  const uint32_t m = bits & 0x7fffffffu;
  const uint32_t rounded = m + 0xfffu + ((m >> 13) & 1u) - (112u << 23);
  return {static_cast<uint16_t>(sign | (rounded >> 13))};
}

}  // namespace lockstep
