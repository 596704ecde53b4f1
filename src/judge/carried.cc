#include "src/judge/carried.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/base/memory.h"

namespace lockstep {
namespace {

constexpr int64_t kSamples = 32;     // of a column
constexpr int64_t kPatterns = 4;     // of signs; samples are a multiple of them
constexpr int64_t kOfAttention = 8;  // at least: each sample of it has a cache of its own

// The roundings of a chain would hide what moves less than they do.
RoundingContract smooth(RoundingContract contract) {
  const bool of_sum =
      contract == RoundingContract::unrounded_sum || contract == RoundingContract::hf_unrounded_sum;
  return of_sum ? RoundingContract::unrounded_sum : RoundingContract::fused;
}

// Splitmix64, whose bits are as good as drawn.
uint64_t mixed(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// The sign of element i of input t in a sample: drawn for the pair of elements that meet in RoPE
// (half a head of `last` apart) and for all inputs alike, times a pattern of Hadamard's in which
// halves and inputs differ.
double sign_of(int64_t sample, size_t t, int64_t i, int64_t last) {
  const int64_t half = std::max<int64_t>(1, last / 2), in_head = i % last;
  const auto pair = static_cast<uint64_t>(i / last * last + in_head % half);
  const unsigned kind = (t & 1u) | (in_head >= half ? 2u : 0u);
  const bool pattern = std::popcount(static_cast<unsigned>(sample % kPatterns) & kind) % 2 == 1;
  const bool drawn = mixed(static_cast<uint64_t>(sample) << 40 ^ pair) & 1u;
  return pattern != drawn ? -1 : 1;
}

void put_moved(const TensorView& value, const TensorView& deviation, int64_t sample, size_t t,
               double* out) {
  const int64_t last = value.shape.last();
  for (int64_t i = 0; i < value.count(); ++i)
    out[i] = value_at(value, i) + sign_of(sample, t, i, last) * deviation.as<const double>()[i];
}

Shape with_rows(const Shape& shape, int64_t rows) {
  std::vector<int64_t> extents(shape.extents().begin(), shape.extents().end());
  extents[0] = rows;
  return Shape(extents);
}

Tensor moved(const TensorView& value, const TensorView& deviation, int64_t sample, size_t t) {
  Tensor out(value.shape, DType::f64);
  put_moved(value, deviation, sample, t, out.as<double>());
  return out;
}

// The samples of an input one after the other, along the rows.
Tensor stacked(const TensorView& value, const TensorView& deviation, int64_t samples, size_t t) {
  const Shape shape = with_rows(value.shape, value.rows() * samples);
  if (deviation.empty()) {
    Tensor out(shape, value.dtype);
    for (int64_t s = 0; s < samples; ++s)
      std::memcpy(out.as<char>() + s * value.bytes(), value.data,
                  static_cast<size_t>(value.bytes()));
    return out;
  }
  Tensor out(shape, DType::f64);
  for (int64_t s = 0; s < samples; ++s)
    put_moved(value, deviation, s, t, out.as<double>() + s * value.count());
  return out;
}

template <typename T>
std::vector<T> repeated(std::span<const T> values, int64_t times) {
  std::vector<T> all;
  for (int64_t i = 0; i < times; ++i) all.insert(all.end(), values.begin(), values.end());
  return all;
}

// Adds up the squares of what a sample is apart from the result.
void add_squares(const double* sample, const Exact& base, std::vector<double>& squares) {
  for (size_t i = 0; i < squares.size(); ++i) {
    const double apart = sample[i] - base.want[i];
    const double square = apart * apart;
    squares[i] += std::isfinite(square) ? square : std::numeric_limits<double>::infinity();
  }
}

std::vector<double> squares_of_stacked(Oracle& oracle, OracleCall call,
                                       std::span<const TensorView> deviations, const Exact& base,
                                       int64_t samples) {
  const std::vector<Row> rows = repeated(call.rows, samples);
  const std::vector<int32_t> tokens = repeated(call.tokens, samples);
  const std::vector<int64_t> lengths = repeated(call.lengths, samples);
  call.rows = rows, call.tokens = tokens, call.lengths = lengths;
  std::vector<Tensor> inputs;
  for (size_t t = 0; t < call.inputs.size(); ++t)
    inputs.push_back(stacked(call.inputs[t], deviations[t], samples, t));
  call.inputs.assign(inputs.begin(), inputs.end());
  const Exact all = oracle.evaluate(call);
  std::vector<double> squares(base.want.size());
  for (int64_t s = 0; s < samples; ++s)
    add_squares(all.want.begin() + s * std::ssize(squares), base, squares);
  return squares;
}

std::vector<double> squares_of_attention(Oracle& oracle, OracleCall call,
                                         std::span<const TensorView> deviations,
                                         const KeysValuesDeviation& of_cache, const Exact& base,
                                         int64_t samples) {
  const TensorView q = call.inputs.at(0);
  const KeysValues cache = call.keys_values;
  std::vector<double> squares(base.want.size());
  for (int64_t s = 0; s < samples; ++s) {
    Tensor moved_q, moved_k, moved_v;
    if (!deviations[0].empty()) call.inputs[0] = moved_q = moved(q, deviations[0], s, 0);
    if (!of_cache.k.empty()) call.keys_values.k = moved_k = moved(cache.k, of_cache.k, s, 1);
    if (!of_cache.v.empty()) call.keys_values.v = moved_v = moved(cache.v, of_cache.v, s, 2);
    add_squares(oracle.evaluate(call).want.begin(), base, squares);
  }
  return squares;
}

bool mixes(OpKind op) {
  return row_of(op).has_matrix || op == OpKind::attention || op == OpKind::weighted_sum;
}

// Each variance is known by few samples: one of its row times one of its column, within a head, is
// known by many. An element that is far over that is believed in part.
void smoothen(std::vector<double>& variance, size_t rows, size_t heads) {
  const size_t size = variance.size() / rows, columns = size / heads;
  std::vector<double> of_row(rows), of_column(columns);
  for (size_t h = 0; h < heads; ++h) {
    const auto at = [&](size_t r, size_t c) -> double& {
      return variance[r * size + h * columns + c];
    };
    std::ranges::fill(of_row, 0.0), std::ranges::fill(of_column, 0.0);
    double all = 0;
    for (size_t r = 0; r < rows; ++r)
      for (size_t c = 0; c < columns; ++c)
        of_row[r] += at(r, c), of_column[c] += at(r, c), all += at(r, c);
    if (!(all > 0) || !std::isfinite(all)) continue;
    for (size_t r = 0; r < rows; ++r)
      for (size_t c = 0; c < columns; ++c)
        at(r, c) = std::max(of_row[r] * of_column[c] / all, at(r, c) / 4);
  }
}

}  // namespace

Numbers carried_variance(Oracle& oracle, const OracleCall& asked,
                         std::span<const TensorView> deviations,
                         const KeysValuesDeviation& of_cache, const Exact& want) {
  OracleCall call = asked;
  call.contract = smooth(asked.contract);
  const Exact base = call.contract == asked.contract ? want : oracle.evaluate(call);
  const bool attends = call.place.point->op == OpKind::attention;
  const auto rows = std::max<int64_t>(1, std::ssize(call.rows));
  const int64_t of_few = (kSamples / rows + kPatterns - 1) / kPatterns * kPatterns;
  const int64_t samples = std::clamp(of_few, attends ? kOfAttention : kPatterns, kSamples);
  std::vector<double> variance =
      attends ? squares_of_attention(oracle, call, deviations, of_cache, base, samples)
              : squares_of_stacked(oracle, call, deviations, base, samples);
  for (double& v : variance) v /= static_cast<double>(samples);
  const int64_t heads = base.shape.rank() == 3 ? base.shape[1] : 1;
  if (mixes(call.place.point->op) && !variance.empty())
    smoothen(variance, static_cast<size_t>(rows), static_cast<size_t>(heads));
  return variance;
}

}  // namespace lockstep
