#include "tests/other_hand/sums.h"

#include <algorithm>
#include <cmath>

namespace lockstep::other_hand {
namespace {

// fp32 arithmetic, one product after the other.
float forward(const float* a, const float* b, int64_t n) {
  float sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

float pairwise(const float* a, const float* b, int64_t n) {
  if (n <= 8) return forward(a, b, n);
  const int64_t half = n / 2;
  return pairwise(a, b, half) + pairwise(a + half, b + half, n - half);
}

template <int count>
void fill_lanes(const float* a, const float* b, int64_t n, float* lanes) {
  int64_t i = 0;
  for (; i + count <= n; i += count)
    for (int lane = 0; lane < count; ++lane) lanes[lane] += a[i + lane] * b[i + lane];
  for (int lane = 0; i < n; ++i, ++lane) lanes[lane] += a[i] * b[i];
}

template <int count>
float lanes_then_tree(const float* a, const float* b, int64_t n) {
  float lanes[count] = {};
  fill_lanes<count>(a, b, n, lanes);
  for (int step = count / 2; step > 0; step /= 2)
    for (int lane = 0; lane < step; ++lane) lanes[lane] += lanes[lane + step];
  return lanes[0];
}

template <int parts>
float split(const float* a, const float* b, int64_t n) {
  const int64_t part = (n + parts - 1) / parts;
  float sum = 0;
  for (int64_t from = 0; from < n; from += part)
    sum += lanes_then_tree<4>(a + from, b + from, std::min(part, n - from));
  return sum;
}

double tf32(double x) { return to_bits(x, 11); }

double in_kind(const float* a, const float* b, int64_t n, Kind kind) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i)
    sum = nearest(sum + nearest(static_cast<double>(a[i]) * b[i], kind), kind);
  return sum;
}

}  // namespace

double dot_forward(const float* a, const float* b, int64_t n, Kind) { return forward(a, b, n); }

double dot_backward(const float* a, const float* b, int64_t n, Kind) {
  float sum = 0;
  for (int64_t i = n - 1; i >= 0; --i) sum += a[i] * b[i];
  return sum;
}

double dot_pairwise(const float* a, const float* b, int64_t n, Kind) { return pairwise(a, b, n); }

double dot_kahan(const float* a, const float* b, int64_t n, Kind) {
  float sum = 0, lost = 0;
  for (int64_t i = 0; i < n; ++i) {
    const float term = a[i] * b[i] - lost;
    const float next = sum + term;
    lost = (next - sum) - term;
    sum = next;
  }
  return sum;
}

double dot_fma(const float* a, const float* b, int64_t n, Kind) {
  float sum = 0;
  for (int64_t i = 0; i < n; ++i) sum = std::fma(a[i], b[i], sum);
  return sum;
}

double dot_lanes4(const float* a, const float* b, int64_t n, Kind) {
  return lanes_then_tree<4>(a, b, n);
}
double dot_lanes8(const float* a, const float* b, int64_t n, Kind) {
  return lanes_then_tree<8>(a, b, n);
}
double dot_lanes16(const float* a, const float* b, int64_t n, Kind) {
  return lanes_then_tree<16>(a, b, n);
}
double dot_split2(const float* a, const float* b, int64_t n, Kind) { return split<2>(a, b, n); }
double dot_split3(const float* a, const float* b, int64_t n, Kind) { return split<3>(a, b, n); }
double dot_split8(const float* a, const float* b, int64_t n, Kind) { return split<8>(a, b, n); }

double dot_warp(const float* a, const float* b, int64_t n, Kind) {
  float lanes[32] = {}, others[32];
  fill_lanes<32>(a, b, n, lanes);
  for (unsigned mask = 16; mask > 0; mask /= 2) {
    for (unsigned lane = 0; lane < 32; ++lane) others[lane] = lanes[lane ^ mask];
    for (unsigned lane = 0; lane < 32; ++lane) lanes[lane] += others[lane];
  }
  return lanes[0];
}

double dot_blocks32(const float* a, const float* b, int64_t n, Kind) {
  float sum = 0;
  for (int64_t from = 0; from < n; from += 32)
    sum += forward(a + from, b + from, std::min<int64_t>(32, n - from));
  return sum;
}

double dot_fp64(const float* a, const float* b, int64_t n, Kind) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += static_cast<double>(a[i]) * b[i];
  return sum;
}

double dot_tensor_core(const float* a, const float* b, int64_t n, Kind kind) {
  double sum = 0;
  for (int64_t from = 0; from < n; from += 16) {
    const int64_t count = std::min<int64_t>(16, n - from);
    sum = cut_to_bits(sum + dot_fp64(a + from, b + from, count, kind), 24);
  }
  return sum;
}

double dot_3xtf32(const float* a, const float* b, int64_t n, Kind) {
  float sum = 0;
  for (int64_t i = 0; i < n; ++i) {
    const auto big_a = static_cast<float>(tf32(a[i])), big_b = static_cast<float>(tf32(b[i]));
    const auto small_a = static_cast<float>(tf32(a[i] - big_a));
    const auto small_b = static_cast<float>(tf32(b[i] - big_b));
    sum += small_a * big_b;
    sum += big_a * small_b;
    sum += big_a * big_b;
  }
  return sum;
}

double dot_in_bf16(const float* a, const float* b, int64_t n, Kind) {
  return in_kind(a, b, n, Kind::bf16);
}
double dot_in_fp16(const float* a, const float* b, int64_t n, Kind) {
  return in_kind(a, b, n, Kind::fp16);
}

double dot_lanes_in_dtype(const float* a, const float* b, int64_t n, Kind kind) {
  const Kind narrow = kind == Kind::fp32 ? Kind::bf16 : kind;
  double lanes[32] = {};
  for (int64_t i = 0; i < n; ++i)
    lanes[i % 32] = nearest(lanes[i % 32] + static_cast<double>(a[i]) * b[i], narrow);
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

double dot_fp22(const float* a, const float* b, int64_t n, Kind kind) {
  double sum = 0;
  for (int64_t from = 0; from < n; from += 32) {
    const int64_t count = std::min<int64_t>(32, n - from);
    sum = cut_to_bits(sum + dot_fp64(a + from, b + from, count, kind), 14);
  }
  return sum;
}

double dot_split4_dtype(const float* a, const float* b, int64_t n, Kind kind) {
  const Kind narrow = kind == Kind::fp32 ? Kind::bf16 : kind;
  const int64_t part = (n + 3) / 4;
  double sum = 0;
  for (int64_t from = 0; from < n; from += part) {
    const int64_t count = std::min(part, n - from);
    sum = nearest(sum + nearest(forward(a + from, b + from, count), narrow), narrow);
  }
  return sum;
}

double dot_split4_partials(const float* a, const float* b, int64_t n, Kind kind) {
  const Kind narrow = kind == Kind::fp32 ? Kind::bf16 : kind;
  const int64_t part = (n + 3) / 4;
  float sum = 0;
  for (int64_t from = 0; from < n; from += part)
    sum += rounded(forward(a + from, b + from, std::min(part, n - from)), narrow);
  return sum;
}

double dot_split5_tail_lost(const float* a, const float* b, int64_t n, Kind) {
  return lanes_then_tree<4>(a, b, n / 5 * 5);
}

double dot_last_vector_lost(const float* a, const float* b, int64_t n, Kind) {
  return lanes_then_tree<4>(a, b, std::max<int64_t>(n - 8, 1));
}

double dot_one_lane_lost(const float* a, const float* b, int64_t n, Kind) {
  float lanes[32] = {};
  fill_lanes<32>(a, b, n, lanes);
  float sum = 0;
  for (int lane = 0; lane < 31; ++lane) sum += lanes[lane];
  return sum;
}

double dot_tiles_of_128(const float* a, const float* b, int64_t n, Kind) {
  return lanes_then_tree<4>(a, b, n < 128 ? n : n / 128 * 128);
}

double dot_tiles_of_32(const float* a, const float* b, int64_t n, Kind) {
  return lanes_then_tree<4>(a, b, n < 32 ? n : n / 32 * 32);
}

}  // namespace lockstep::other_hand
