// Errors of an op's inputs are sent through the op itself: the oracle runs on inputs that are moved
// by each of 16 samples, and the results are compared with those of inputs that are not. No op
// needs a formula for it, and errors that elements have in common meet again where an op adds them
// up.
//
//     rows that stand for themselves   stacked: each row once a sample, some 1000 rows a call
//     attention                        a call a sample, since K and V move as well
//
// A contract that rounds on the way is replaced by one that does not, whose result shows errors
// that are smaller than a spacing. A variance from 16 samples is rough. Ops that sum over many
// elements have it smoothed, over rows and columns of a head; others have at least the variance of
// independent errors, by four patterns of signs (Hadamard's), which separate two errors that meet
// in one element.
#include "src/judge/carried.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "src/judge/halving_oracle.h"

namespace lockstep {
namespace {

constexpr int64_t kPatterns = 4;        // of signs
constexpr int64_t kStackedRows = 1024;  // that the oracle is asked for at once

// The roundings of a chain would hide what moves less than they do.
RoundingContract smooth(RoundingContract contract) {
  return is_of_sum(contract) ? RoundingContract::unrounded_sum : RoundingContract::fused;
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
  const uint64_t pair = i / last * last + in_head % half;
  const unsigned kind = (t & 1u) | (in_head >= half ? 2u : 0u);
  const bool pattern = std::popcount(static_cast<unsigned>(sample % kPatterns) & kind) % 2 == 1;
  const bool drawn = mixed(sample << 40 ^ pair) & 1u;
  return pattern != drawn ? -1 : 1;
}

// Indices are exact.
Tensor repeated_rows(const TensorView& value, int64_t times) {
  std::vector<int64_t> extents(value.shape.extents().begin(), value.shape.extents().end());
  extents[0] = value.rows() * times;
  Tensor out{Shape(extents), value.dtype};
  for (int64_t s = 0; s < times; ++s)
    std::memcpy(out.as<char>() + s * value.bytes(), value.data, value.bytes());
  return out;
}

// The rows of an input once for each of `times`, moved by what error(row, time, element) says.
// One call of the oracle then evaluates all samples.
template <typename Error>
Tensor stacked(const TensorView& value, int64_t times, Error error) {
  if (!is_float(value.dtype)) return repeated_rows(value, times);
  std::vector<int64_t> extents(value.shape.extents().begin(), value.shape.extents().end());
  extents[0] = value.rows() * times;
  Tensor out{Shape(extents), DType::f64};
  double* to = out.as<double>();
  const int64_t size = value.row_size();
  for (int64_t s = 0; s < times; ++s)
    for (int64_t r = 0; r < value.rows(); ++r)
      for (int64_t i = 0; i < size; ++i) *to++ = value_at(value, r * size + i) + error(r, s, i);
  return out;
}

double sample_at(const TensorView& samples, int64_t row, int64_t sample, int64_t i) {
  const int64_t size = samples.row_size() / kErrorSamples;
  return samples.as<const float>()[(row * kErrorSamples + sample) * size + i];
}

template <typename T>
std::vector<T> repeated(std::span<const T> values, int64_t times) {
  std::vector<T> all;
  for (int64_t i = 0; i < times; ++i) all.insert(all.end(), values.begin(), values.end());
  return all;
}

// Returns the results of the rows moved `times` times by error(input, row, time, element).
template <typename Error>
Numbers of_stacked(Oracle& oracle, OracleCall call, int64_t times, Error error) {
  const std::vector<Row> rows = repeated(call.rows, times);
  const std::vector<int32_t> tokens = repeated(call.tokens, times);
  const std::vector<int64_t> lengths = repeated(call.lengths, times);
  call.rows = rows, call.tokens = tokens, call.lengths = lengths;
  std::vector<Tensor> inputs;
  for (size_t t = 0; t < call.inputs.size(); ++t)
    inputs.push_back(stacked(call.inputs[t], times,
                             [&](int64_t r, int64_t s, int64_t i) { return error(t, r, s, i); }));
  call.inputs.assign(inputs.begin(), inputs.end());
  return oracle.evaluate(call).want;
}

bool mixes(OpKind op) {
  return row_of(op).has_matrix || row_of(op).attends || op == OpKind::weighted_sum;
}

// An Inf or NaN that a moved input makes has an infinite square: the element is then held to
// nothing.
double square_of(double apart) {
  const double square = apart * apart;
  return std::isfinite(square) ? square : std::numeric_limits<double>::infinity();
}

// Each variance is known by few samples, and one of its row times one of its column, within a head,
// by many: the row's sum times the column's over the sum of all, as if the two acted independently.
// An element that is over that keeps its own.
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
        at(r, c) = std::max(of_row[r] * of_column[c] / all, at(r, c));
  }
}

// One call of some rows, and how its results go into all.
class Carrying {
 public:
  Carrying(Oracle& oracle, const OracleCall& call, const InputErrors& errors, const Exact& base,
           CarriedErrors& into)
      : oracle_(oracle),
        call_(call),
        errors_(errors),
        base_(base),
        size_(base.want.size() / std::max<size_t>(1, call.rows.size())),
        into_(into) {
    into_.samples.resize(base.want.size() * kErrorSamples);
    into_.variance.assign(base.want.size(), 0.0);
  }

  void attend() {
    OracleCall call = call_;
    const KeysValues cache = call_.keys_values;
    for (int64_t s = 0; s < kErrorSamples; ++s) {
      const auto moved = [&](const TensorView& value, const TensorView& samples) {
        return stacked(value, 1,
                       [&](int64_t r, int64_t, int64_t i) { return sample_at(samples, r, s, i); });
      };
      Tensor q, k, v;
      if (!errors_.samples[0].empty())
        call.inputs[0] = q = moved(call_.inputs[0], errors_.samples[0]);
      if (!errors_.k_samples.empty()) call.keys_values.k = k = moved(cache.k, errors_.k_samples);
      if (!errors_.v_samples.empty()) call.keys_values.v = v = moved(cache.v, errors_.v_samples);
      put(oracle_.evaluate(call).want, s, 0, call_.rows.size());
    }
  }

  // Rows that stand for themselves, some at a time.
  void stack() {
    const auto count = std::ssize(call_.rows);
    const int64_t some = kStackedRows / kErrorSamples;
    for (int64_t first = 0; first < count; first += some) {
      const int64_t rows = std::min(some, count - first);
      const OracleCall call = rows_of_call(call_, first, rows);
      const Numbers all =
          of_stacked(oracle_, call, kErrorSamples, [&](size_t t, int64_t r, int64_t s, int64_t i) {
            const TensorView& samples = errors_.samples[t];
            return samples.empty() ? 0 : sample_at(samples, first + r, s, i);
          });
      for (int64_t s = 0; s < kErrorSamples; ++s)
        put(std::span(all).subspan((s * rows) * size_, rows * size_), s, first, rows);
    }
  }

  // The variance of independent errors, where that is more.
  void add_independent() {
    const auto count = std::ssize(call_.rows);
    const int64_t some = kStackedRows / kPatterns;
    for (int64_t first = 0; first < count; first += some) {
      const int64_t rows = std::min(some, count - first);
      const OracleCall call = rows_of_call(call_, first, rows);
      const Numbers all =
          of_stacked(oracle_, call, kPatterns, [&](size_t t, int64_t r, int64_t s, int64_t i) {
            const TensorView& deviation = errors_.deviations[t];
            if (deviation.empty()) return 0.0;
            const int64_t size = deviation.row_size();
            return sign_of(s, t, (first + r) * size + i, deviation.shape.last()) *
                   deviation.as<const double>()[(first + r) * size + i];
          });
      const size_t part_size = rows * size_;
      for (size_t i = 0; i < part_size; ++i) {
        const size_t at = first * size_ + i;
        double squares = 0;
        for (size_t s = 0; s < kPatterns; ++s)
          squares += square_of(all[s * part_size + i] - base_.want[at]);
        into_.variance[at] = std::max(into_.variance[at], squares / kPatterns);
      }
    }
  }

 private:
  void put(std::span<const double> results, int64_t sample, size_t first, size_t rows) {
    for (size_t r = 0; r < rows; ++r)
      for (size_t i = 0; i < size_; ++i) {
        const size_t at = (first + r) * size_ + i;
        const double apart = results[r * size_ + i] - base_.want[at];
        into_.variance[at] += square_of(apart) / kErrorSamples;
        into_.samples[((first + r) * kErrorSamples + sample) * size_ + i] =
            static_cast<float>(apart);
      }
  }

  Oracle& oracle_;
  const OracleCall& call_;
  const InputErrors& errors_;
  const Exact& base_;
  size_t size_;  // of a row
  CarriedErrors& into_;
};

}  // namespace

// A rounding error is uniform over an ulp: its deviation is ulp / sqrt(12).
Tensor deviation_of_rounding(const TensorView& rounded, DType dtype) {
  Tensor deviation(rounded.shape, DType::f64);
  for (int64_t i = 0; i < rounded.count(); ++i)
    deviation.as<double>()[i] = ulp(value_at(rounded, i), dtype) / std::sqrt(12.0);
  return deviation;
}

// Signs drawn at random at the size of the deviation, from a hash of the place: the same every time
// the run is judged.
std::vector<float> samples_of(std::span<const double> deviation, size_t row_size, uint64_t seed) {
  std::vector<float> samples(deviation.size() * kErrorSamples);
  for (size_t i = 0; i < deviation.size(); ++i) {
    const uint64_t drawn = mixed(mixed(seed) ^ i);
    for (size_t s = 0; s < kErrorSamples; ++s)
      samples[(i / row_size * kErrorSamples + s) * row_size + i % row_size] =
          static_cast<float>((drawn >> s & 1) == 1 ? deviation[i] : -deviation[i]);
  }
  return samples;
}

// How errors of the inputs show in the output, measured: the op is evaluated at inputs that differ
// by them. A contract that rounds inside would drown small differences, so the smooth one is
// evaluated.
CarriedErrors carried_errors(Oracle& oracle, const OracleCall& asked, const InputErrors& errors,
                             const Exact& want) {
  OracleCall call = asked;
  // The base of the differences must be of the same contract as the moved results; `want` is it
  // unless the asked contract rounds.
  call.contract = smooth(asked.contract);
  const Exact smooth_one = call.contract == asked.contract ? Exact{} : oracle.evaluate(call);
  const Exact& base = call.contract == asked.contract ? want : smooth_one;
  CarriedErrors carried;
  if (base.want.empty()) return carried;
  Carrying carrying(oracle, call, errors, base, carried);
  if (row_of(call.place.point->op).attends)
    carrying.attend();
  else
    carrying.stack();
  if (!mixes(call.place.point->op)) {
    carrying.add_independent();
    return carried;
  }
  const size_t heads = base.shape.rank() == 3 ? base.shape[1] : 1;
  smoothen(carried.variance, call.rows.size(), heads);
  return carried;
}

}  // namespace lockstep
