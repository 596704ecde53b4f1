// Choosing one token from a row of logits, in fp64. The filters are those of Hugging Face's logits
// processors, in their order:
//
//   penalty of tokens in the text -> temperature -> top-k -> top-p -> min-p -> softmax -> draw
//
// A filter takes a token out by setting its logit to -inf. The draw is Philox4x32-10 with the
// request's seed as its key, so that a text does not depend on what is served beside it. The
// device's twin (kernels/cuda/sample.cu) follows the same definition.
#include "src/engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <string>

#include "kernels/base/check.h"

namespace lockstep {
namespace {

constexpr double kNone = -std::numeric_limits<double>::infinity();

// The argmax of kernels/argmax.h: the first NaN, else the first of the largest.
size_t argmax_of(std::span<const double> logits) {
  size_t best = 0;
  for (size_t i = 1; i < logits.size() && !std::isnan(logits[best]); ++i)
    if (!(logits[i] <= logits[best])) best = i;
  return best;
}

// The row in fp64, whatever its dtype.
std::vector<double> widened(const TensorView& logits) {
  check(logits.count() > 0 && logits.count() == logits.shape.last(),
        "a token is chosen from one row of logits, found the shape {}", logits.shape.text());
  std::vector<double> row(logits.count());
  widen(logits, 0, row);
  return row;
}

// exp(logit - largest), which is 1 for the most likely; 0 for what a filter took out.
std::vector<double> weights_of(std::span<const double> logits) {
  const double top = *std::ranges::max_element(logits);
  std::vector<double> weights(logits.size());
  std::ranges::transform(logits, weights.begin(), [&](double x) { return std::exp(x - top); });
  return weights;
}

// Keskar et al. 2019 (CTRL), as Hugging Face has it: a token that is in the text loses, once,
// however often it is there; negative logits are multiplied, so that they fall too.
void penalise(std::span<double> logits, double penalty, std::span<const int32_t> text) {
  std::vector<bool> seen(logits.size());
  for (const int32_t token : text) {
    const size_t i = token;
    if (seen[i]) continue;
    seen[i] = true;
    logits[i] = logits[i] > 0 ? logits[i] / penalty : logits[i] * penalty;
  }
}

// The k largest; of several that are equal to the last of them, all stay.
void keep_top_k(std::span<double> logits, int64_t k) {
  if (k == 0 || k >= std::ssize(logits)) return;
  std::vector<double> sorted(logits.begin(), logits.end());
  std::ranges::nth_element(sorted, sorted.begin() + (k - 1), std::greater{});
  const double least = sorted[k - 1];
  for (double& x : logits)
    if (x < least) x = kNone;
}

// Holtzman et al. 2020, nucleus sampling: the fewest that together are at least that likely.
void keep_top_p(std::span<double> logits, double p) {
  if (p >= 1) return;
  const std::vector<double> weights = weights_of(logits);
  const double wanted = p * std::reduce(weights.begin(), weights.end());
  std::vector<size_t> heap(logits.size());
  std::iota(heap.begin(), heap.end(), size_t{0});
  // A heap, because the few that are kept are found without sorting the vocabulary. Of equals the
  // smaller id counts as likelier, which makes the order total.
  const auto less_likely = [&](size_t a, size_t b) {
    return logits[a] < logits[b] || (logits[a] == logits[b] && a > b);
  };
  std::ranges::make_heap(heap, less_likely);
  for (double sum = 0; sum < wanted && !heap.empty(); heap.pop_back()) {
    std::ranges::pop_heap(heap, less_likely);
    sum += weights[heap.back()];
  }
  for (const size_t i : heap) logits[i] = kNone;
}

// Those at least p times as likely as the most likely one.
void keep_min_p(std::span<double> logits, double p) {
  if (p == 0) return;
  const std::vector<double> weights = weights_of(logits);
  for (size_t i = 0; i < logits.size(); ++i)
    if (weights[i] < p) logits[i] = kNone;  // the most likely one has the weight 1
}

std::vector<double> certain(size_t token, size_t vocab) {
  std::vector<double> all(vocab, 0.0);
  all[token] = 1;
  return all;
}

}  // namespace

void Sampling::check_ranges(const std::string& whose) const {
  check(temperature >= 0 && temperature <= 1e6,
        "{} asks for the temperature {}, but it must be 0 (greedy) to 1e6", whose, temperature);
  check(top_k >= 0, "{} asks for the top_k {}, but it must be 0 (all) or more", whose, top_k);
  check(top_p > 0 && top_p <= 1, "{} asks for the top_p {}, but it must be over 0, at most 1",
        whose, top_p);
  check(min_p >= 0 && min_p <= 1, "{} asks for the min_p {}, but it must be 0 to 1", whose, min_p);
  check(repetition_penalty > 0 && repetition_penalty <= 1e6,
        "{} asks for the repetition_penalty {}, but it must be over 0, at most 1e6", whose,
        repetition_penalty);
  check(logprobs >= 0, "{} asks for {} logprobs, but it must be 0 (none) or more", whose, logprobs);
}

std::array<uint32_t, 4> philox(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  constexpr uint64_t kMultipliers[] = {0xD2511F53, 0xCD9E8D57};
  constexpr uint32_t kSteps[] = {0x9E3779B9, 0xBB67AE85};
  auto& [a, b, c, d] = counter;
  for (int round = 0; round < 10; ++round) {
    const uint64_t first = kMultipliers[0] * a, second = kMultipliers[1] * c;
    counter = {static_cast<uint32_t>(second >> 32) ^ b ^ key[0], static_cast<uint32_t>(second),
               static_cast<uint32_t>(first >> 32) ^ d ^ key[1], static_cast<uint32_t>(first)};
    for (size_t i = 0; i < 2; ++i) key[i] += kSteps[i];
  }
  return counter;
}

double uniform(uint64_t seed, Draw draw) {
  const auto low = [](uint64_t x) { return static_cast<uint32_t>(x); };
  const auto high = [](uint64_t x) { return static_cast<uint32_t>(x >> 32); };
  const auto bits =
      philox({low(draw.choice), high(draw.choice), draw.sample, 0}, {low(seed), high(seed)});
  const uint64_t mantissa = (uint64_t{bits[1]} << 32 | bits[0]) >> 11;
  return static_cast<double>(mantissa) * 0x1p-53;
}

std::vector<double> probabilities(std::span<const double> logits, const Sampling& sampling,
                                  std::span<const int32_t> text) {
  const size_t raw_best = argmax_of(logits);
  if (!std::isfinite(logits[raw_best])) return certain(raw_best, logits.size());
  std::vector<double> kept(logits.begin(), logits.end());
  if (sampling.repetition_penalty != 1) penalise(kept, sampling.repetition_penalty, text);
  if (sampling.temperature == 0) return certain(argmax_of(kept), kept.size());
  // The temperature divides the distance to the largest, so that a tiny one cannot overflow.
  const double top = *std::ranges::max_element(kept);
  for (double& x : kept) x = (x - top) / sampling.temperature;
  keep_top_k(kept, sampling.top_k);
  keep_top_p(kept, sampling.top_p);
  keep_min_p(kept, sampling.min_p);
  std::vector<double> weights = weights_of(kept);
  const double total = std::reduce(weights.begin(), weights.end());
  for (double& w : weights) w /= total;
  return weights;
}

int32_t pick(std::span<const double> probabilities, double uniform) {
  const double wanted = uniform * std::accumulate(probabilities.begin(), probabilities.end(), 0.0);
  double sum = 0;
  size_t last = 0;
  // Tokens that a filter took out are passed over, so that a uniform number of 0 does not choose
  // one of them.
  for (size_t i = 0; i < probabilities.size(); ++i) {
    if (probabilities[i] == 0) continue;
    sum += probabilities[i];
    last = i;
    if (sum > wanted) break;
  }
  return static_cast<int32_t>(last);
}

int32_t choose(const TensorView& logits, const Sampling& sampling, std::span<const int32_t> text,
               Draw draw) {
  return pick(probabilities(widened(logits), sampling, text), uniform(sampling.seed, draw));
}

Logprobs logprobs_of(const TensorView& logits, int32_t chosen, int64_t count) {
  const std::vector<double> row = widened(logits);
  const std::vector<double> weights = weights_of(row);
  const double norm =
      *std::ranges::max_element(row) + std::log(std::reduce(weights.begin(), weights.end()));
  const auto at = [&](size_t i) { return Logprobs::Token{static_cast<int32_t>(i), row[i] - norm}; };
  std::vector<size_t> order(row.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto end = order.begin() + std::min(count, std::ssize(order));
  // NaN compares with nothing: last, so that the order stays one.
  std::partial_sort(order.begin(), end, order.end(), [&](size_t a, size_t b) {
    if (std::isnan(row[a]) || std::isnan(row[b])) return !std::isnan(row[a]) && std::isnan(row[b]);
    return row[a] > row[b] || (row[a] == row[b] && a < b);
  });
  Logprobs logprobs{.chosen = at(chosen)};
  std::transform(order.begin(), end, std::back_inserter(logprobs.top), at);
  return logprobs;
}

}  // namespace lockstep
