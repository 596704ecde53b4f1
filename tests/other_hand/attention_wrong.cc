// Attentions that look at the right keys and compute wrongly. Those of what an attention looks at
// are in attention_reads.cc.
#include <algorithm>
#include <cmath>

#include "tests/other_hand/attention.h"
#include "tests/other_hand/families.h"

namespace lockstep::other_hand {
namespace {

constexpr float kLog2E = 1.4426950408889634F;

double keep_bf16(double x, Kind) { return nearest(x, Kind::bf16); }
double keep_fp16(double x, Kind) { return nearest(x, Kind::fp16); }

// --- Scores -------------------------------------------------------------------------------------

// Gemma 2's cap in a model that has none.
float capped_at_50(float score) { return 50 * std::tanh(score / 50); }
// e^11 is about what fp16 can hold, so kernels without a running maximum clamp there.
float clamped(float score) { return std::clamp(score, -11.0F, 11.0F); }

float without_scale(float, int64_t) { return 1; }
float scale_twice(float scale, int64_t) { return scale * scale; }
float scale_in_bf16(float scale, int64_t) { return rounded(scale, Kind::bf16); }
float scale_of_twice_the_width(float scale, int64_t) {
  return scale * 0.70710678F;
}  // padded heads

// --- Sums ---------------------------------------------------------------------------------------

// The sum of the weights rounded to 16 bits on its way to shared memory, so that all of a row is
// off by the same.
void with_narrow_sum(const Query& query, double* out) {
  Partial all = walk(query, Style{}, 0, query.keys);
  all.sum = rounded(all.sum, Kind::bf16);
  divide(all, out);
}

// A sink's logit of zero, which gpt-oss has and Qwen does not: one more key without a value.
void with_a_sink(const Query& query, double* out) {
  Partial all = walk(query, Style{}, 0, query.keys);
  all.sum += std::exp(-all.maximum);
  divide(all, out);
}

// The weights in an 8-bit format before P V: FlashAttention 3's fp8 forward in a run that never
// asked for it.
void with_weights_in_fp8(const Query& query, double* out) {
  std::vector<float> weights = scores(query);
  const float highest = *std::max_element(weights.begin(), weights.end());
  float sum = 0;
  for (float& weight : weights) sum += weight = std::exp(weight - highest);
  for (int64_t j = 0; j < query.keys; ++j)
    for (int64_t i = 0; i < query.dim; ++i)
      out[i] += e4m3(weights[static_cast<size_t>(j)]) / sum * query.value(j)[i];
}

// A key at the border of two blocks of 64 falls between them.
void without_key_64(const Query& query, double* out) {
  const int64_t lost = 64 - query.first;
  std::vector<Partial> parts = {walk(query, Style{}, 0, std::min(query.keys, lost > 0 ? lost : 0))};
  if (lost < 0 || query.keys <= lost) {
    parts = {walk(query, Style{}, 0, query.keys)};
  } else if (query.keys > lost + 1) {
    parts.push_back(walk(query, Style{}, lost + 1, query.keys));
  }
  divide(together(parts, exact_exp), out);
}

// --- Splits -------------------------------------------------------------------------------------

std::vector<Partial> split_by(const Query& query, int64_t part, const Style& style = {}) {
  std::vector<Partial> parts;
  for (int64_t from = 0; from < query.keys; from += part)
    parts.push_back(walk(query, style, from, std::min(from + part, query.keys)));
  return parts;
}

// out = sum of weight_i output_i / sum_i over the sum of the weights.
template <typename Weight>
void merge(const std::vector<Partial>& parts, Weight weight, double* out) {
  double highest = -std::numeric_limits<double>::infinity(), sum = 0;
  for (const Partial& part : parts) highest = std::max(highest, static_cast<double>(weight(part)));
  for (const Partial& part : parts) sum += std::exp(weight(part) - highest);
  for (const Partial& part : parts)
    for (size_t i = 0; i < part.output.size(); ++i)
      out[i] += std::exp(weight(part) - highest) / sum * part.output[i] / part.sum;
}

double natural_logarithm(const Partial& part) { return part.maximum + std::log(part.sum); }

// FlashInfer says its log-sum-exp to base 2; merged as if it were to base e (sgl-project/sglang
// #35045, vllm-project/vllm#28840).
void merged_in_another_base(const Query& query, double* out) {
  merge(
      split_by(query, 16), [](const Partial& p) { return natural_logarithm(p) * kLog2E; }, out);
}

// The maximum of a part is left out of its logarithm.
void merged_without_maxima(const Query& query, double* out) {
  merge(
      split_by(query, 16), [](const Partial& p) { return std::log(p.sum); }, out);
}

// Each part counts the same.
void merged_as_means(const Query& query, double* out) {
  merge(
      split_by(query, 16), [](const Partial&) { return 0.0; }, out);
}

// The scale is in the maximum already and is put to it again (HKUSTDial/flash-sparse-attention
// #106): weights nearer to one another than they should be.
void merged_with_scale_twice(const Query& query, double* out) {
  merge(
      split_by(query, 16),
      [&query](const Partial& p) { return p.maximum * query.scale + std::log(p.sum); }, out);
}

// Three parts of keys / 3 each; what is left of the division is in none (tile-ai/tilelang#2010).
// It is the newest keys.
void without_the_remainder(const Query& query, double* out) {
  const int64_t part = query.keys / 3;
  if (part == 0) return divide(walk(query, Style{}, 0, query.keys), out);
  Query shorter = query;
  shorter.keys = part * 3;
  divide(together(split_by(shorter, part), exact_exp), out);
}

void without_the_last_part(const Query& query, double* out) {
  std::vector<Partial> parts = split_by(query, 32);
  if (parts.size() > 1) parts.pop_back();
  divide(together(parts, exact_exp), out);
}

// What a part made is stored in bf16 until it is merged. vLLM's paged_attention_v2 keeps it in the
// dtype of the query; where that has more bits, this is less than it should be.
void with_parts_in_bf16(const Query& query, double* out) {
  std::vector<Partial> parts = split_by(query, 16);
  for (Partial& part : parts)
    for (float& value : part.output) value = part.sum * rounded(value / part.sum, Kind::bf16);
  divide(together(parts, exact_exp), out);
}

// The logarithms that weigh the parts are stored in 16 bits: 0.03 off at a score of 10.
void with_logarithms_in_bf16(const Query& query, double* out) {
  merge(
      split_by(query, 16),
      [](const Partial& p) { return nearest(natural_logarithm(p), Kind::bf16); }, out);
}

using Attention = Family<decltype(lockstep_paged_attention)>;

void add_scores(Attention& list) {
  list.wrong("attention-no-scale", attention<[] {
               return Plan{.attend = online<[] { return Style{}; }>, .scale = without_scale};
             }>,
             6700, "the scores are not scaled");
  list.wrong("attention-scaled-twice", attention<[] {
               return Plan{.attend = online<[] { return Style{}; }>, .scale = scale_twice};
             }>,
             1600, "the scores are scaled twice: 1 / head_dim");
  list.wrong("attention-scale-of-padded-heads", attention<[] {
               return Plan{.attend = online<[] { return Style{}; }>,
                           .scale = scale_of_twice_the_width};
             }>,
             710, "the scale of heads twice as wide");
  list.wrong("attention-scale-in-bf16", attention<[] {
               return Plan{.attend = online<[] { return Style{}; }>, .scale = scale_in_bf16};
             }>,
             0.17, "the scale rounded to bf16: 0.01 % off for heads of 32 or 128",
             {.needs = "held to fused; a head_dim that is no power of 4"});
  list.wrong("attention-log2e-of-3-digits",
             attention_by<online<[] { return Style{.exp = power_of_two, .factor = 1.44F}; }>>, 4.5,
             "log2(e) taken as 1.44: a temperature 0.2 % off", {.needs = "held to fused"});
  list.wrong("attention-capped-at-50",
             attention_by<online<[] { return Style{.score = capped_at_50}; }>>, 20,
             "Gemma 2's soft cap of 50", {.needs = "scores over 5"});
  list.wrong("attention-clamped-at-11",
             attention_by<online<[] { return Style{.score = clamped}; }>>, 430,
             "scores clamped at 11, so that e^x stays within fp16", {.needs = "scores over 11"});
  list.wrong("attention-scores-summed-in-bf16",
             attention_by<online<[] { return Style{.dot = dot_in_bf16}; }>>, 16,
             "q k^T accumulates in bf16", {.rounding = "eager"});
  list.wrong("attention-scores-summed-in-fp16",
             attention_by<online<[] { return Style{.dot = dot_in_fp16}; }>>, 7.8,
             "q k^T accumulates in fp16 (llama.cpp before GGML_PREC_F32)",
             {.needs = "held to fused"});
  list.wrong("attention-bit-trick-exp",
             attention_by<online<[] { return Style{.exp = bit_trick_exp}; }>>, 80,
             "e^x from the bits of a float: up to 4 % off");
  list.wrong("attention-straight-exp",
             attention_by<online<[] { return Style{.exp = straight_exp}; }>>, 92,
             "e^x with a polynomial of degree 1, 3 % off (openvino#37857)");
  list.wrong("attention-quadratic-exp",
             attention_by<online<[] { return Style{.exp = quadratic_exp}; }>>, 3.2,
             "e^x with a polynomial of degree 2, 0.17 % off (flash-attention#2316)",
             {.needs = "held to fused"});
}

void add_sums(Attention& list) {
  const Shows blocks = {.needs = "a context over 16 keys"};
  list.wrong("attention-output-not-scaled-again",
             attention_by<online<[] { return Style{.block = 16, .forget_output = true}; }>>, 2600,
             "a new maximum does not scale what P V has summed", blocks);
  list.wrong("attention-sum-not-scaled-again",
             attention_by<online<[] { return Style{.block = 16, .forget_sum = true}; }>>, 220,
             "a new maximum does not scale the denominator", blocks);
  list.wrong("attention-stale-stage",
             attention_by<online<[] { return Style{.block = 16, .stale_value = true}; }>>, 2300,
             "a last block that is not full reads V from the other stage's buffer", blocks);
  list.wrong("attention-sums-in-bf16",
             attention_by<online<[] { return Style{.keep = keep_bf16}; }>>, 37,
             "P V accumulates in bf16");
  list.wrong("attention-sums-in-fp16",
             attention_by<online<[] { return Style{.keep = keep_fp16}; }>>, 6.4,
             "P V accumulates in fp16", {.needs = "held to fused"});
  list.wrong("attention-output-kept-in-bf16",
             attention_by<online<[] { return Style{.block = 16, .keep_blocks = keep_bf16}; }>>, 7.4,
             "the running output is stored in bf16 after every 16 keys",
             {.needs = "held to fused; a context over 16 keys"});
  list.wrong("attention-sum-in-bf16", attention_by<with_narrow_sum>, 0.83,
             "the denominator rounded to bf16", {.needs = "held to fused"});
  list.wrong("attention-with-a-sink", attention_by<with_a_sink>, 250,
             "the denominator has a sink of logit 0");
  list.wrong("attention-weights-in-fp8", attention_by<with_weights_in_fp8>, 61,
             "probabilities rounded to e4m3 before P V");
  list.wrong("attention-without-key-64", attention_by<without_key_64>, 130,
             "key 64 falls between two blocks", {.needs = "a context over 64 keys"});
  list.wrong(
      "attention-truncated-store",
      attention<[] { return Plan{.attend = online<[] { return Style{}; }>, .truncate = true}; }>,
      0.5, "the store cuts off instead of rounding",
      {.dtypes = "bf16,fp16", .needs = "held to fused"});
}

void add_splits(Attention& list) {
  const Shows parts = {.needs = "a context over 16 keys"};
  list.wrong("attention-merged-in-another-base", attention_by<merged_in_another_base>, 340,
             "parts of 16 keys merged with logarithms of base 2 taken for natural ones", parts);
  list.wrong("attention-merged-without-maxima", attention_by<merged_without_maxima>, 2100,
             "parts of 16 keys merged without their maxima", parts);
  list.wrong("attention-merged-as-means", attention_by<merged_as_means>, 2300,
             "parts of 16 keys count the same", parts);
  list.wrong("attention-merged-with-scale-twice", attention_by<merged_with_scale_twice>, 1700,
             "the maxima of parts are scaled again before they are merged", parts);
  list.wrong("attention-remainder-lost", attention_by<without_the_remainder>, 2400,
             "three parts of n / 3 keys: the newest one or two are in none");
  list.wrong("attention-last-part-lost", attention_by<without_the_last_part>, 4000,
             "the last of the parts of 32 keys is not merged", {.needs = "a context over 32 keys"});
  list.wrong("attention-parts-in-bf16", attention_by<with_parts_in_bf16>, 47,
             "outputs of parts stored in bf16 until they are merged",
             {.dtypes = "fp16,fp32", .needs = "a context over 16 keys"});
  list.wrong("attention-logarithms-in-bf16", attention_by<with_logarithms_in_bf16>, 15,
             "log-sum-exps of parts stored in bf16",
             {.needs = "held to fused; a context over 16 keys"});
}

}  // namespace

std::vector<OtherKernel> wrong_attentions() {
  Attention list("lockstep_paged_attention", "attn.out");
  add_scores(list);
  add_sums(list);
  add_splits(list);
  return list.rows();
}

}  // namespace lockstep::other_hand
