// Right attentions.
#include <algorithm>
#include <cmath>

#include "tests/other_hand/attention.h"
#include "tests/other_hand/families.h"

namespace lockstep::other_hand {
namespace {

constexpr float kLog2E = 1.4426950408889634F;

// --- All scores first ---------------------------------------------------------------------------

// Scores, maximum, exponentials, and then the values. `normalise`: each weight is divided by the
// sum before P V; else the result is.
template <Dot* dot, bool normalise, bool backward>
void in_two_passes(const Query& query, double* out) {
  std::vector<float> weights = scores(query, dot);
  const float highest = *std::max_element(weights.begin(), weights.end());
  float sum = 0;
  for (float& weight : weights) sum += weight = std::exp(weight - highest);
  std::vector<float> output(static_cast<size_t>(query.dim));
  for (int64_t turn = 0; turn < query.keys; ++turn) {
    const int64_t j = backward ? query.keys - 1 - turn : turn;
    float weight = weights[static_cast<size_t>(j)];
    if (normalise) weight /= sum;
    for (int64_t i = 0; i < query.dim; ++i)
      output[static_cast<size_t>(i)] += weight * query.value(j)[i];
  }
  for (size_t i = 0; i < output.size(); ++i) out[i] = normalise ? output[i] : output[i] / sum;
}

void in_fp64(const Query& query, double* out) {
  std::vector<double> weights(static_cast<size_t>(query.keys));
  for (int64_t j = 0; j < query.keys; ++j)
    weights[static_cast<size_t>(j)] =
        dot_fp64(query.q, query.key(j), query.dim, query.kind) * query.scale;
  const double highest = *std::max_element(weights.begin(), weights.end());
  double sum = 0;
  for (double& weight : weights) sum += weight = std::exp(weight - highest);
  for (int64_t j = 0; j < query.keys; ++j)
    for (int64_t i = 0; i < query.dim; ++i)
      out[i] += weights[static_cast<size_t>(j)] / sum * query.value(j)[i];
}

// Each output's sum over the keys by itself, compensated.
void with_compensated_sums(const Query& query, double* out) {
  std::vector<float> weights = scores(query, dot_kahan);
  const float highest = *std::max_element(weights.begin(), weights.end());
  for (float& weight : weights) weight = std::exp(weight - highest);
  const std::vector<float> ones(weights.size(), 1.0F);
  std::vector<float> column(weights.size());
  const double sum = dot_kahan(weights.data(), ones.data(), query.keys, query.kind);
  for (int64_t i = 0; i < query.dim; ++i) {
    for (int64_t j = 0; j < query.keys; ++j) column[static_cast<size_t>(j)] = query.value(j)[i];
    const double output = dot_kahan(weights.data(), column.data(), query.keys, query.kind);
    out[i] = static_cast<float>(output) / static_cast<float>(sum);
  }
}

// The query is scaled, in fp32, and not the score.
void with_scaled_query(const Query& query, double* out) {
  std::vector<float> q(query.q, query.q + query.dim);
  for (float& value : q) value *= query.scale;
  Query scaled = query;
  scaled.q = q.data();
  scaled.scale = 1;
  in_two_passes<dot_warp, false, false>(scaled, out);
}

// --- Rounding more ------------------------------------------------------------------------------

// Hugging Face's softmax in fp32, whose result takes the dtype of the query before it meets V.
template <bool backward>
void as_hf(const Query& query, double* out) {
  std::vector<float> weights = scores(query);
  const float highest = *std::max_element(weights.begin(), weights.end());
  float sum = 0;
  for (float& weight : weights) sum += weight = std::exp(weight - highest);
  std::vector<float> output(static_cast<size_t>(query.dim));
  for (int64_t turn = 0; turn < query.keys; ++turn) {
    const int64_t j = backward ? query.keys - 1 - turn : turn;
    const float weight = rounded(weights[static_cast<size_t>(j)] / sum, query.kind);
    for (int64_t i = 0; i < query.dim; ++i)
      output[static_cast<size_t>(i)] += weight * query.value(j)[i];
  }
  for (size_t i = 0; i < output.size(); ++i) out[i] = output[i];
}

// eager_attention_forward: q k^T is a tensor of the dtype, and so is its product with the scale.
template <Dot* dot, bool backward>
void eagerly(const Query& query, double* out) {
  std::vector<float> weights;
  for (int64_t j = 0; j < query.keys; ++j) {
    const double product = nearest(dot(query.q, query.key(j), query.dim, query.kind), query.kind);
    weights.push_back(rounded(static_cast<float>(product) * query.scale, query.kind));
  }
  const float highest = *std::max_element(weights.begin(), weights.end());
  float sum = 0;
  for (float& weight : weights) sum += weight = std::exp(weight - highest);
  std::vector<float> output(static_cast<size_t>(query.dim));
  for (int64_t turn = 0; turn < query.keys; ++turn) {
    const int64_t j = backward ? query.keys - 1 - turn : turn;
    const float weight = rounded(weights[static_cast<size_t>(j)] / sum, query.kind);
    for (int64_t i = 0; i < query.dim; ++i)
      output[static_cast<size_t>(i)] += weight * query.value(j)[i];
  }
  for (size_t i = 0; i < output.size(); ++i) out[i] = output[i];
}

// --- Splits -------------------------------------------------------------------------------------

// Parts of different lengths, as a scheduler cuts the work of a pass: FlashInfer's and
// FlashAttention's split-KV.
template <int64_t count, auto style>
void split_unevenly(const Query& query, double* out) {
  std::vector<Partial> parts;
  int64_t from = 0;
  for (int64_t part = 0; part < count && from < query.keys; ++part) {
    const int64_t share = part + 1 == count ? query.keys : (query.keys * (part + 1)) / 11 + 1;
    const int64_t to = std::min(query.keys, from + share);
    parts.push_back(walk(query, style(), from, to));
    from = to;
  }
  divide(together(parts, style().exp), out);
}

// Outputs that are divided already, merged by the logarithms of their sums: FlashInfer's and
// vLLM's merge_attn_states.
template <int64_t part>
void split_and_merged_by_logarithms(const Query& query, double* out) {
  std::vector<Partial> parts;
  for (int64_t from = 0; from < query.keys; from += part)
    parts.push_back(walk(query, Style{}, from, std::min(from + part, query.keys)));
  float highest = -std::numeric_limits<float>::infinity(), sum = 0;
  for (const Partial& each : parts) highest = std::max(highest, each.maximum + std::log(each.sum));
  std::vector<float> output(static_cast<size_t>(query.dim));
  for (const Partial& each : parts) {
    const float weight = std::exp(each.maximum + std::log(each.sum) - highest);
    sum += weight;
    for (size_t i = 0; i < output.size(); ++i) output[i] += weight * (each.output[i] / each.sum);
  }
  for (size_t i = 0; i < output.size(); ++i) out[i] = output[i] / sum;
}

using Attention = Family<decltype(lockstep_paged_attention)>;

void add_fused(Attention& list) {
  list.right("attention-two-passes", attention_by<in_two_passes<dot_forward, false, false>>,
             "fused", "all scores, their maximum, then the values");
  list.right("attention-normalised-first", attention_by<in_two_passes<dot_pairwise, true, true>>,
             "fused", "weights divided before P V; values last to first");
  list.right("attention-fma", attention_by<in_two_passes<dot_fma, false, false>>, "fused",
             "q k^T by fused multiply-adds");
  list.right("attention-fp64", attention_by<in_fp64>, "fused", "fp64 inside");
  list.right("attention-compensated", attention_by<with_compensated_sums>, "fused",
             "compensated sums everywhere");
  list.right("attention-scaled-query", attention_by<with_scaled_query>, "fused",
             "the query is scaled, in fp32, and not the scores");
  list.right("attention-online-1", attention_by<online<[] { return Style{.block = 1}; }>>, "fused",
             "online softmax, key by key");
  list.right("attention-online-16",
             attention_by<online<[] { return Style{.block = 16, .dot = dot_lanes16}; }>>, "fused",
             "online softmax over blocks of 16 keys");
  list.right("attention-online-32", attention_by<online<[] { return Style{.block = 32}; }>>,
             "fused", "online softmax over blocks of 32 keys");
  list.right("attention-online-64",
             attention_by<online<[] { return Style{.block = 64, .dot = dot_warp}; }>>, "fused",
             "online softmax over blocks of 64 keys");
  list.right("attention-online-128", attention_by<online<[] { return Style{.block = 128}; }>>,
             "fused", "online softmax over blocks of 128 keys");
  list.right("attention-backward",
             attention_by<online<[] { return Style{.block = 16, .backward = true}; }>>, "fused",
             "the last keys first");
  list.right("attention-key-by-key-backward",
             attention_by<online<[] { return Style{.block = 1, .backward = true}; }>>, "fused",
             "the last key first, one by one");
  list.right("attention-exp2",
             attention_by<online<[] { return Style{.exp = power_of_two, .factor = kLog2E}; }>>,
             "fused", "powers of two, log2(e) within the scale");
  list.right("attention-lazy-scaling",
             attention_by<online<[] { return Style{.block = 16, .slack = 5}; }>>, "fused",
             "scaled again only when the maximum grows by 5, as FlashAttention 4");
  list.right("attention-split-2",
             attention_by<split_unevenly<2, [] { return Style{.block = 16}; }>>, "fused",
             "two parts, the second the longer, merged by their maxima");
  list.right("attention-split-4",
             attention_by<split_unevenly<4, [] { return Style{.block = 32}; }>>, "fused",
             "four uneven parts");
  list.right(
      "attention-split-8-exp2",
      attention_by<split_unevenly<8, [] { return Style{.exp = power_of_two, .factor = kLog2E}; }>>,
      "fused", "eight uneven parts, in powers of two");
  list.right("attention-split-by-256", attention_by<split_by_length<256, [] { return Style{}; }>>,
             "fused", "parts of 256 keys");
  list.right("attention-split-by-8",
             attention_by<split_by_length<8, [] { return Style{.block = 4}; }>>, "fused",
             "parts of 8 keys");
  list.right("attention-merged-by-logarithms", attention_by<split_and_merged_by_logarithms<48>>,
             "fused", "parts of 48 keys, merged by log-sum-exp");
}

void add_others(Attention& list) {
  list.right("attention-flash-16",
             attention_by<online<[] { return Style{.block = 16, .round_probabilities = true}; }>>,
             "hf", "probabilities to the dtype before P V, scaled online every 16 keys");
  list.right("attention-flash-64", attention_by<online<[] {
               return Style{.exp = power_of_two, .factor = kLog2E, .round_probabilities = true};
             }>>,
             "hf", "the same every 64 keys, in powers of two: FlashAttention 2");
  list.right("attention-flash-128-backward", attention_by<online<[] {
               return Style{.block = 128, .backward = true, .round_probabilities = true};
             }>>,
             "hf", "the same every 128 keys, the last first: FlashAttention 3");
  list.right("attention-flash-sums-rounded", attention_by<online<[] {
               return Style{.block = 32, .round_probabilities = true, .sum_rounded = true};
             }>>,
             "hf", "the denominator sums the rounded probabilities");
  list.right("attention-flash-split-4",
             attention_by<
                 split_unevenly<4, [] { return Style{.block = 16, .round_probabilities = true}; }>>,
             "hf", "four parts with rounded probabilities, merged in fp32");
  list.right("attention-hf", attention_by<as_hf<false>>, "hf",
             "softmax in fp32, its result to the dtype");
  list.right("attention-hf-backward", attention_by<as_hf<true>>, "hf",
             "the same, values last to first");
  list.right("attention-eager", attention_by<eagerly<dot_forward, false>>, "eager",
             "scores, scaled scores and probabilities to the dtype");
  list.right("attention-eager-backward", attention_by<eagerly<dot_warp, true>>, "eager",
             "the same in other orders");
}

}  // namespace

std::vector<OtherKernel> right_attentions() {
  Attention list("lockstep_paged_attention", "attn.out");
  add_fused(list);
  add_others(list);
  return list.rows();
}

}  // namespace lockstep::other_hand
