// Which experts a token is sent to, and with what weights: right and wrong.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "tests/other_hand/families.h"
#include "tests/other_hand/numbers.h"

namespace lockstep::other_hand {
namespace {

// --- top_k --------------------------------------------------------------------------------------

using Indices = std::vector<int32_t>;
// The choices of one row, as many as `count`.
using Choose = Indices(const std::vector<float>& logits, size_t count);

template <Choose* choose>
const char* top_k(const LockstepCall*, const DLTensor* out, const DLTensor* logits) {
  if (const char* why = refused({logits})) return why;
  const Tensor from(logits);
  const int64_t experts = from.axis(1), count = out->shape[1];
  std::vector<float> row(static_cast<size_t>(experts));
  auto* to = const_cast<int32_t*>(indices(out));
  for (int64_t token = 0; token < from.axis(0); ++token) {
    from.load(token * experts, experts, row.data());
    const Indices chosen = choose(row, static_cast<size_t>(count));
    std::copy(chosen.begin(), chosen.end(), to + token * count);
  }
  return nullptr;
}

// NaN is larger than any number.
bool is_larger(float a, float b) { return std::isnan(a) ? !std::isnan(b) : a > b; }

Indices all_of(const std::vector<float>& logits) {
  Indices all(logits.size());
  std::iota(all.begin(), all.end(), 0);
  return all;
}

Indices ranked(const std::vector<float>& logits) {
  Indices all = all_of(logits);
  std::stable_sort(all.begin(), all.end(), [&](int32_t a, int32_t b) {
    return is_larger(logits[static_cast<size_t>(a)], logits[static_cast<size_t>(b)]);
  });
  return all;
}

Indices by_sorting(const std::vector<float>& logits, size_t count) {
  Indices all = ranked(logits);
  all.resize(count);
  return all;
}

// One maximum after the other, each struck out; from behind, so that equals are met last to first.
Indices by_striking_out(const std::vector<float>& logits, size_t count) {
  std::vector<bool> taken(logits.size());
  Indices chosen;
  while (chosen.size() < count) {
    size_t best = logits.size();
    for (size_t i = logits.size(); i-- > 0;) {
      if (taken[i]) continue;
      if (best == logits.size() || !is_larger(logits[best], logits[i])) best = i;
    }
    taken[best] = true;
    chosen.push_back(static_cast<int32_t>(best));
  }
  return chosen;
}

// Equal logits the other way round: no logit that is chosen is another number.
Indices with_last_of_equals(const std::vector<float>& logits, size_t count) {
  Indices all = all_of(logits);
  std::reverse(all.begin(), all.end());
  std::stable_sort(all.begin(), all.end(), [&](int32_t a, int32_t b) {
    return is_larger(logits[static_cast<size_t>(a)], logits[static_cast<size_t>(b)]);
  });
  all.resize(count);
  return all;
}

Indices smallest_first(const std::vector<float>& logits, size_t count) {
  Indices chosen = by_sorting(logits, count);
  std::reverse(chosen.begin(), chosen.end());
  return chosen;
}
Indices in_order_of_number(const std::vector<float>& logits, size_t count) {
  Indices chosen = by_sorting(logits, count);
  std::sort(chosen.begin(), chosen.end());
  return chosen;
}
Indices without_the_best(const std::vector<float>& logits, size_t count) {
  Indices all = ranked(logits);
  if (all.size() > count) all.erase(all.begin());
  all.resize(count);
  return all;
}
Indices with_next_for_last(const std::vector<float>& logits, size_t count) {
  const Indices all = ranked(logits);
  Indices chosen(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(count));
  if (all.size() > count) chosen.back() = all[count];
  return chosen;
}
Indices of_first_half(const std::vector<float>& logits, size_t count) {
  const size_t half = std::max(count, logits.size() / 2);
  return by_sorting({logits.begin(), logits.begin() + static_cast<std::ptrdiff_t>(half)}, count);
}
Indices with_best_twice(const std::vector<float>& logits, size_t count) {
  Indices chosen = by_sorting(logits, count);
  chosen.back() = chosen.front();
  return chosen;
}
Indices one_further(const std::vector<float>& logits, size_t count) {
  Indices chosen = by_sorting(logits, count);
  for (int32_t& index : chosen)
    index = static_cast<int32_t>((static_cast<size_t>(index) + 1) % logits.size());
  return chosen;
}
Indices of_sizes(const std::vector<float>& logits, size_t count) {
  std::vector<float> sizes = logits;
  for (float& value : sizes) value = std::fabs(value);
  return by_sorting(sizes, count);
}
Indices in_fp8(const std::vector<float>& logits, size_t count) {
  std::vector<float> narrow = logits;
  for (float& value : narrow) value = static_cast<float>(e4m3(value));
  return by_sorting(narrow, count);
}

// --- softmax_of ---------------------------------------------------------------------------------

struct Row {
  std::vector<float> logits;
  std::vector<int32_t> index;
  bool normalised;
  Kind kind;
  float chosen(size_t c) const { return logits[static_cast<size_t>(index[c])]; }
};
using Weigh = void(const Row& row, double* out);

template <Weigh* weigh>
const char* routing_weights(const LockstepCall*, const DLTensor* out, const DLTensor* logits,
                            const DLTensor* index, int32_t normalised) {
  if (const char* why = refused({out, logits})) return why;
  const Tensor to(out), from(logits);
  const int64_t experts = from.axis(1), count = index->shape[1];
  Row row = {std::vector<float>(static_cast<size_t>(experts)), {}, normalised != 0, to.kind()};
  std::vector<double> result(static_cast<size_t>(count));
  for (int64_t token = 0; token < from.axis(0); ++token) {
    from.load(token * experts, experts, row.logits.data());
    const int32_t* begin = indices(index) + token * count;
    row.index.assign(begin, begin + count);
    weigh(row, result.data());
    for (int64_t c = 0; c < count; ++c) to.put(token * count + c, result[static_cast<size_t>(c)]);
  }
  return nullptr;
}

float highest_of(const Row& row) { return *std::max_element(row.logits.begin(), row.logits.end()); }

// Softmax over all, then divided by the sum of the chosen, as Hugging Face does; each step changed
// by `of_weight`.
template <typename OfWeight>
void over_all(const Row& row, bool normalised, double* out, OfWeight of_weight) {
  const float highest = highest_of(row);
  float sum = 0, chosen = 0;
  for (const float logit : row.logits)
    sum += static_cast<float>(of_weight(std::exp(logit - highest)));
  for (size_t c = 0; c < row.index.size(); ++c) {
    const auto weight = static_cast<float>(of_weight(std::exp(row.chosen(c) - highest)));
    out[c] = weight / sum;
    chosen += static_cast<float>(out[c]);
  }
  if (!normalised) return;
  for (size_t c = 0; c < row.index.size(); ++c) out[c] = static_cast<float>(out[c]) / chosen;
}

double same(double x) { return x; }

void as_hf(const Row& row, double* out) { over_all(row, row.normalised, out, same); }

// Over the chosen alone where they are normalised: vLLM's fused kernel.
void over_chosen(const Row& row, double* out) {
  if (!row.normalised) return over_all(row, false, out, same);
  float highest = row.chosen(0), sum = 0;
  for (size_t c = 0; c < row.index.size(); ++c) highest = std::max(highest, row.chosen(c));
  for (size_t c = row.index.size(); c-- > 0;) sum += std::exp(row.chosen(c) - highest);
  for (size_t c = 0; c < row.index.size(); ++c) out[c] = std::exp(row.chosen(c) - highest) / sum;
}

void in_fp64(const Row& row, double* out) {
  const double highest = highest_of(row);
  double sum = 0, chosen = 0;
  for (const float logit : row.logits) sum += std::exp(logit - highest);
  for (size_t c = 0; c < row.index.size(); ++c)
    chosen += out[c] = std::exp(row.chosen(c) - highest) / sum;
  for (size_t c = 0; c < row.index.size() && row.normalised; ++c) out[c] /= chosen;
}

// One pass with a running maximum.
void online(const Row& row, double* out) {
  float highest = row.logits[0], sum = 0, chosen = 0;
  for (const float logit : row.logits) {
    const float before = highest;
    highest = std::max(highest, logit);
    sum = sum * std::exp(before - highest) + std::exp(logit - highest);
  }
  for (size_t c = 0; c < row.index.size(); ++c) {
    out[c] = std::exp(row.chosen(c) - highest) * (1 / sum);
    chosen += static_cast<float>(out[c]);
  }
  for (size_t c = 0; c < row.index.size() && row.normalised; ++c) out[c] /= chosen;
}

void never_normalised(const Row& row, double* out) { over_all(row, false, out, same); }
void always_normalised(const Row& row, double* out) { over_all(row, true, out, same); }
// The logits themselves (sgl-project/sglang#35160).
void raw(const Row& row, double* out) {
  for (size_t c = 0; c < row.index.size(); ++c) out[c] = row.chosen(c);
}
void sigmoids(const Row& row, double* out) {  // DeepSeek-V3's scores
  double sum = 0;
  for (size_t c = 0; c < row.index.size(); ++c)
    sum += out[c] = 1 / (1 + std::exp(-static_cast<double>(row.chosen(c))));
  for (size_t c = 0; c < row.index.size(); ++c) out[c] /= sum;
}
void one_further_weight(const Row& row, double* out) {
  std::vector<double> own(row.index.size());
  in_fp64(row, own.data());
  for (size_t c = 0; c < own.size(); ++c) out[c] = own[(c + 1) % own.size()];
}
void without_last_expert(const Row& row, double* out) {  // one of the sum is not summed
  const double highest = highest_of(row);
  double sum = 0, chosen = 0;
  for (size_t i = 0; i + 1 < row.logits.size(); ++i) sum += std::exp(row.logits[i] - highest);
  for (size_t c = 0; c < row.index.size(); ++c) out[c] = std::exp(row.chosen(c) - highest) / sum;
  for (size_t c = 0; c + 1 < row.index.size(); ++c) chosen += out[c];
  for (size_t c = 0; c < row.index.size() && row.normalised; ++c) out[c] /= chosen;
}
void with_narrow_exponentials(const Row& row, double* out) {
  over_all(row, row.normalised, out, [](double x) { return nearest(x, Kind::bf16); });
}
void with_quadratic_exponentials(const Row& row, double* out) {
  const float highest = highest_of(row);
  double sum = 0, chosen = 0;
  for (const float logit : row.logits) sum += quadratic_exp(logit - highest);
  for (size_t c = 0; c < row.index.size(); ++c)
    chosen += out[c] = quadratic_exp(row.chosen(c) - highest) / sum;
  for (size_t c = 0; c < row.index.size() && row.normalised; ++c) out[c] /= chosen;
}
// The softmax is rounded to the dtype before it is divided by the sum of the chosen.
void rounded_in_between(const Row& row, double* out) {
  over_all(row, false, out, same);
  double chosen = 0;
  for (size_t c = 0; c < row.index.size(); ++c) chosen += out[c] = nearest(out[c], Kind::bf16);
  for (size_t c = 0; c < row.index.size() && row.normalised; ++c)
    out[c] /= nearest(chosen, Kind::bf16);
}
void cut_off(const Row& row, double* out) {
  in_fp64(row, out);
  for (size_t c = 0; c < row.index.size(); ++c) out[c] = truncated(out[c], row.kind);
}

}  // namespace

std::vector<OtherKernel> routings() {
  Family<decltype(lockstep_top_k)> list("lockstep_top_k", "mlp.experts");
  const Shows experts = {.needs = "experts"};
  const char* all = "bf16,fp16,fp32";
  list.right("topk-sorted", top_k<by_sorting>, "fused", "a stable sort", all, "experts");
  list.right("topk-struck-out", top_k<by_striking_out>, "fused", "one maximum after the other", all,
             "experts");
  list.right("topk-last-of-equals", top_k<with_last_of_equals>, "fused",
             "of equal logits the larger index first: other indices, the same logits", all,
             "experts");
  list.wrong("topk-smallest-first", top_k<smallest_first>, 86, "the chosen, smallest first",
             experts);
  list.wrong("topk-in-order-of-number", top_k<in_order_of_number>, 69,
             "the chosen in the order of their indices", experts);
  list.wrong("topk-without-the-best", top_k<without_the_best>, 80, "ranks 2 to k + 1", experts);
  list.wrong("topk-next-for-last", top_k<with_next_for_last>, 11, "rank k + 1 in place of rank k",
             experts);
  list.wrong("topk-of-first-half", top_k<of_first_half>, 76, "chosen of the first half of experts",
             experts);
  list.wrong("topk-best-twice", top_k<with_best_twice>, 11, "the best again in place of the last",
             experts);
  list.wrong("topk-one-further", top_k<one_further>, 88, "each index is one further", experts);
  list.wrong("topk-of-sizes", top_k<of_sizes>, 84, "by absolute values",
             {.needs = "experts, and negative logits among the largest in size"});
  list.wrong("topk-in-fp8", top_k<in_fp8>, 34, "logits compared as e4m3",
             {.needs = "experts, and logits within 6 % of each other at the k-th"});
  return list.rows();
}

std::vector<OtherKernel> routing_weights() {
  Family<decltype(lockstep_softmax_of)> list("lockstep_softmax_of", "mlp.weights");
  const Shows experts = {.needs = "experts"};
  const char* all = "bf16,fp16,fp32";
  list.right("router-hf", routing_weights<as_hf>, "fused",
             "over all, then divided by the chosen's sum", all, "experts");
  list.right("router-over-chosen", routing_weights<over_chosen>, "fused",
             "over the chosen alone where they are normalised", all, "experts");
  list.right("router-fp64", routing_weights<in_fp64>, "fused", "fp64 inside", all, "experts");
  list.right("router-online", routing_weights<online>, "fused", "one pass with a running maximum",
             all, "experts");
  list.wrong("router-not-normalised", routing_weights<never_normalised>, 130,
             "the chosen are not divided by their sum", {.needs = "experts with norm_topk_prob"});
  list.wrong("router-normalised", routing_weights<always_normalised>, 350,
             "the chosen are divided by their sum", {.needs = "experts without norm_topk_prob"});
  list.wrong("router-raw-logits", routing_weights<raw>, 52000, "the logits themselves", experts);
  list.wrong("router-sigmoids", routing_weights<sigmoids>, 3800, "sigmoids, normalised", experts);
  list.wrong("router-weights-one-further", routing_weights<one_further_weight>, 14000,
             "each choice has the next one's weight", experts);
  list.wrong("router-sum-short", routing_weights<without_last_expert>, 50,
             "one term is left out of the sum", experts);
  list.wrong("router-exp-in-bf16", routing_weights<with_narrow_exponentials>, 0.68,
             "exponentials rounded to bf16", experts);
  list.wrong("router-quadratic-exp", routing_weights<with_quadratic_exponentials>, 0.45,
             "e^x with a polynomial of degree 2: 0.17 % off", experts);
  list.wrong("router-rounded-in-between", routing_weights<rounded_in_between>, 0.63,
             "the softmax and the sum of the chosen rounded to bf16 before the division",
             {.needs = "experts with norm_topk_prob"});
  list.wrong("router-truncated-store", routing_weights<cut_off>, 0.5,
             "the store cuts off instead of rounding", {.dtypes = "bf16,fp16", .needs = "experts"});
  return list.rows();
}

}  // namespace lockstep::other_hand
