// Draws made again from what a trace says of them, by code that shares nothing with the engine's
// sampler: Philox4x32-10, the filters in Hugging Face's order, the cumulative sum. Where a uniform
// number falls within 1e-9 of the border between two tokens both are possible, since two right
// programs may sum in another order.
#include "src/judge/draw.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>

namespace lockstep {
namespace {

constexpr double kGone = -std::numeric_limits<double>::infinity();
// A share of the whole; the sums of two programs differ by some 1e-16 a token.
constexpr double kBorder = 1e-9;

// One of the two products of a round: its low and its high word.
struct Product {
  uint32_t low, high;
};
Product product(uint32_t a, uint32_t b) {
  const uint64_t both = uint64_t{a} * b;
  return {static_cast<uint32_t>(both), static_cast<uint32_t>(both >> 32)};
}

// Philox 4x32-10 (Salmon et al., SC 2011): counter (choice, sample), key the seed; 53 bits of the
// second and first word make a double in [0, 1). Written apart from the engine's, which it holds to
// account.
double uniform_of(const DrawInfo& draw, uint64_t choice) {
  std::array<uint32_t, 4> word = {static_cast<uint32_t>(choice),
                                  static_cast<uint32_t>(choice >> 32), draw.sample, 0};
  auto key0 = static_cast<uint32_t>(draw.seed), key1 = static_cast<uint32_t>(draw.seed >> 32);
  for (int round = 0; round < 10; ++round, key0 += 0x9E3779B9u, key1 += 0xBB67AE85u) {
    const Product a = product(0xD2511F53u, word[0]), b = product(0xCD9E8D57u, word[2]);
    word = {b.high ^ word[1] ^ key0, b.low, a.high ^ word[3] ^ key1, a.low};
  }
  // 53 bits are all that a double holds: every number is exact, and below 1.
  const uint64_t bits = (uint64_t{word[1]} << 32) + word[0];
  return std::ldexp(bits >> 11, -53);
}

// CTRL's penalty: a token of the text loses, whatever the sign of its logit.
void penalise(std::vector<double>& scores, double penalty, std::span<const int32_t> text) {
  for (const int32_t token : std::set<int32_t>(text.begin(), text.end())) {
    if (token < 0 || token >= std::ssize(scores)) continue;
    double& score = scores[token];
    score = score > 0 ? score / penalty : score * penalty;
  }
}

// Drops scores below the k-th largest; its equals stay.
void keep_largest(std::vector<double>& scores, int64_t k) {
  if (k <= 0 || k >= std::ssize(scores)) return;
  std::vector<double> sorted = scores;
  std::ranges::nth_element(sorted, sorted.begin() + (k - 1), std::greater());
  const double least = sorted[k - 1];
  for (double& score : scores)
    if (score < least) score = kGone;
}

std::vector<double> exponentials(std::span<const double> scores) {
  const double top = *std::ranges::max_element(scores);
  std::vector<double> all;
  for (const double score : scores) all.push_back(std::exp(score - top));
  return all;
}

// The fewest of the most likely that add up to p stay, of equals those with the smaller id.
void keep_likely(std::vector<double>& scores, double p) {
  if (p >= 1) return;
  const std::vector<double> weights = exponentials(scores);
  std::vector<size_t> order(scores.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, [&](size_t a, size_t b) { return scores[a] > scores[b]; });
  const double wanted = p * std::reduce(weights.begin(), weights.end());
  double sum = 0;
  for (const size_t i : order) {
    // The sum is compared before the token is added, so that the one that reaches p stays.
    if (sum >= wanted) scores[i] = kGone;
    sum += weights[i];
  }
}

void keep_near_best(std::vector<double>& scores, double least) {
  if (least <= 0) return;
  const std::vector<double> weights = exponentials(scores);  // of the best: 1
  for (size_t i = 0; i < scores.size(); ++i)
    if (weights[i] < least) scores[i] = kGone;
}

}  // namespace

// Tokens whose interval of the cumulated weights holds the number that was drawn, or has it on its
// border: the engine may add in another order.
std::vector<int32_t> possible_draws(std::span<const double> logits, const DrawInfo& draw,
                                    std::span<const int32_t> text, uint64_t choice) {
  if (logits.empty() || !std::isfinite(*std::ranges::max_element(logits))) return {};
  if (std::ranges::any_of(logits, [](double x) { return std::isnan(x); })) return {};
  std::vector<double> scores(logits.begin(), logits.end());
  if (draw.repetition_penalty != 1) penalise(scores, draw.repetition_penalty, text);
  const double top = *std::ranges::max_element(scores);
  std::vector<int32_t> possible;
  if (draw.temperature == 0) {
    for (size_t i = 0; i < scores.size(); ++i)
      if (scores[i] == top) possible.push_back(static_cast<int32_t>(i));
    return possible;
  }
  for (double& score : scores) score = (score - top) / draw.temperature;
  keep_largest(scores, draw.top_k);
  keep_likely(scores, draw.top_p);
  keep_near_best(scores, draw.min_p);
  const std::vector<double> weights = exponentials(scores);
  const double total = std::reduce(weights.begin(), weights.end());
  const double wanted = uniform_of(draw, choice) * total, near = kBorder * total;
  double sum = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    const double before = sum;
    sum += weights[i];
    if (weights[i] > 0 && before <= wanted + near && wanted <= sum + near)
      possible.push_back(static_cast<int32_t>(i));
  }
  return possible;
}

}  // namespace lockstep
