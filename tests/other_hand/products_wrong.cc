// Wrong linear layers.
#include <algorithm>
#include <cmath>

#include "tests/other_hand/families.h"
#include "tests/other_hand/products.h"

namespace lockstep::other_hand {
namespace {

// --- Operands -----------------------------------------------------------------------------------

double largest_of(const std::vector<float>& values) {
  double largest = 0;
  for (const float value : values)
    largest = std::max(largest, static_cast<double>(std::fabs(value)));
  return largest;
}

void quantise_to_e4m3(std::vector<float>& values) {
  const double largest = largest_of(values);
  for (float& value : values) value = static_cast<float>(e4m3(value, largest));
}

// A cast without the scale that belongs to it: small weights are subnormals of e4m3
// (Lightricks/LTX-2#172).
void cast_to_e4m3(std::vector<float>& values) {
  for (float& value : values) value = static_cast<float>(e4m3(value));
}

void quantise_to_int8(std::vector<float>& values) {
  const double largest = largest_of(values);
  for (float& value : values) value = static_cast<float>(int8(value, largest));
}

// The scale was calibrated on texts without the outliers: they saturate.
void saturate_outliers(std::vector<float>& values) {
  double squares = 0;
  for (const float value : values) squares += static_cast<double>(value) * value;
  const auto most = static_cast<float>(6 * std::sqrt(squares / static_cast<double>(values.size())));
  for (float& value : values) value = std::clamp(value, -most, most);
}

// --- The end ------------------------------------------------------------------------------------

double truncate(double sum, const float* bias, Kind kind) {
  return truncated(add_bias(sum, bias, kind), kind);
}
double forget_bias(double sum, const float*, Kind) { return sum; }
// All-reduced over two devices that both added it (huggingface/text-generation-inference#1036).
double add_bias_twice(double sum, const float* bias, Kind kind) {
  return add_bias(sum, bias, kind) + (bias == nullptr ? 0 : *bias);
}
// The product cut off to the dtype, and the bias added to that.
double add_bias_after_truncation(double sum, const float* bias, Kind kind) {
  return add_bias(truncated(sum, kind), bias, kind);
}
double cap_at_30(double sum, const float* bias, Kind kind) {  // Gemma 2's logits
  return 30 * std::tanh(add_bias(sum, bias, kind) / 30);
}

// --- Places -------------------------------------------------------------------------------------

using Edit = void(Products& made, const DLTensor* x, const DLTensor* weight, const DLTensor* bias);

template <Edit* edit>
const char* edited(const LockstepCall*, const DLTensor* out, const DLTensor* x,
                   const DLTensor* weight, const DLTensor* bias) {
  if (const char* why = refused({out, x, weight})) return why;
  Products made = multiply({}, x, weight, bias);
  edit(made, x, weight, bias);
  put_all(made, out);
  return nullptr;
}

void zero_last_column(Products& made, const DLTensor*, const DLTensor*, const DLTensor*) {
  for (int64_t token = 0; token < made.tokens; ++token) made.at(token, made.columns - 1) = 0;
}

// A column that one block writes for all tokens: every token but the first has the first one's.
void keep_a_column(Products& made, const DLTensor*, const DLTensor*, const DLTensor*) {
  const int64_t column = made.columns / 2;
  for (int64_t token = 1; token < made.tokens; ++token) made.at(token, column) = made.at(0, column);
}

// The last tile of columns begins one too late.
void shift_last_columns(Products& made, const DLTensor*, const DLTensor*, const DLTensor*) {
  const int64_t from = (made.columns - 1) / 16 * 16;
  for (int64_t token = 0; token < made.tokens; ++token)
    for (int64_t column = made.columns - 1; column > from; --column)
      made.at(token, column) = made.at(token, column - 1);
}

void take_bias_of_neighbour(Products& made, const DLTensor*, const DLTensor*,
                            const DLTensor* bias) {
  if (bias == nullptr) return;
  const std::vector<float> all = Tensor(bias).all();
  for (int64_t token = 0; token < made.tokens; ++token)
    for (size_t column = 0; column < all.size(); ++column)
      made.at(token, static_cast<int64_t>(column)) += all[(column + 1) % all.size()] - all[column];
}

// The bias of a batch is that of its first token alone: the others find the pointer advanced
// (FasterTransformer's add_QKV_bias, NVIDIA/DeepLearningExamples#664).
void bias_for_first_token_alone(Products& made, const DLTensor*, const DLTensor*,
                                const DLTensor* bias) {
  if (bias == nullptr) return;
  for (int64_t token = 1; token < made.tokens; ++token)
    for (int64_t column = 0; column < made.columns; ++column)
      made.at(token, column) -= Tensor(bias).at(column);
}

// Tokens in pairs: the second of a pair has the first one's row.
void repeat_tokens(Products& made, const DLTensor*, const DLTensor*, const DLTensor*) {
  for (int64_t token = 1; token < made.tokens; token += 2)
    for (int64_t column = 0; column < made.columns; ++column)
      made.at(token, column) = made.at(token - 1, column);
}

// The first 8 by 8 weights are read by columns.
void transpose_a_tile(Products& made, const DLTensor* x, const DLTensor* weight, const DLTensor*) {
  const Tensor from(x), weights(weight);
  const int64_t depth = weights.axis(1), size = std::min<int64_t>({8, depth, made.columns});
  for (int64_t token = 0; token < made.tokens; ++token)
    for (int64_t column = 0; column < size; ++column)
      for (int64_t i = 0; i < size; ++i)
        made.at(token, column) += from.at(token * depth + i) *
                                  (weights.at(i * depth + column) - weights.at(column * depth + i));
}

// Accumulators of the second tile of 8 tokens begin with what the first one left.
void keep_accumulators(Products& made, const DLTensor*, const DLTensor*, const DLTensor*) {
  for (int64_t token = made.tokens - 1; token >= 8; --token)
    for (int64_t column = 0; column < made.columns; ++column)
      made.at(token, column) += made.at(token % 8, column);
}

// The matrix-vector kernel, which serves one token alone: a block adds 31 of its 32 partial sums.
void lose_a_warp_of_one_token(Products& made, const DLTensor* x, const DLTensor* weight,
                              const DLTensor* bias) {
  if (made.tokens == 1) made = multiply({.dot = dot_one_lane_lost}, x, weight, bias);
}

Kind kind_of(const DLTensor* tensor) { return Tensor(tensor).kind(); }

// One element of a call, three neighbours on: a cosmic ray, or a race that is lost once.
void move_one_element(Products& made, const DLTensor*, const DLTensor* weight, const DLTensor*) {
  double& value = made.at(made.tokens / 2, made.columns / 3);
  const Kind kind = kind_of(weight);
  value = nearest(value, kind) + 3 * ulp(nearest(value, kind), kind);
}

// One column of a call, one neighbour up: a scale that is a little too large for it.
void move_one_column(Products& made, const DLTensor*, const DLTensor* weight, const DLTensor*) {
  const Kind kind = kind_of(weight);
  for (int64_t token = 0; token < made.tokens; ++token) {
    double& value = made.at(token, made.columns / 3);
    value = nearest(value, kind) + ulp(nearest(value, kind), kind);
  }
}

using Matmul = Family<decltype(lockstep_matmul)>;

void add_sums(Matmul& list) {
  list.wrong("product-sum-in-bf16", matmul<dot_in_bf16>, 30, "accumulates in bf16");
  list.wrong("product-sum-in-fp16", matmul<dot_in_fp16>, 4.8,
             "accumulates in fp16 (torch's allow_fp16_accumulation)");
  list.wrong("product-lanes-in-16-bits", matmul<dot_lanes_in_dtype>, 6.9,
             "32 partial sums, each in 16 bits");
  list.wrong("product-fp22", matmul<dot_fp22>, 0.91,
             "an accumulator of 14 bits that is cut off, as fp8 on Hopper (DeepGEMM#37)",
             {.needs = "a depth over 500 in bf16 runs"});
  list.wrong("product-split-4-in-16-bits", matmul<dot_split4_dtype>, 1.4,
             "split-K whose partials are added in 16 bits (modular#7165, TransformerEngine#3440)");
  list.wrong("product-split-4-partials", matmul<dot_split4_partials>, 1,
             "split-K whose partials are stored in 16 bits and added in fp32");
  list.wrong("product-split-5-tail-lost", matmul<dot_split5_tail_lost>, 30,
             "five parts of k / 5: the rest is in none",
             {.needs = "a depth that is no multiple of 5"});
  list.wrong("product-last-vector-lost", matmul<dot_last_vector_lost>, 79,
             "the last 8 of k are not summed (cutlass#3536)");
  list.wrong("product-lane-lost", matmul<dot_one_lane_lost>, 170, "one of 32 lanes is not added");
  list.wrong("product-tiles-of-128", matmul<dot_tiles_of_128>, 310,
             "k beyond the last whole tile of 128 is not summed",
             {.needs = "a depth over 128 that is no multiple of it"});
}

void add_operands(Matmul& list) {
  list.wrong("product-weights-e4m3", matmul<dot_lanes8, add_bias, nullptr, quantise_to_e4m3>, 20,
             "weights rounded to e4m3 with a scale for each row");
  list.wrong("product-weights-cast-to-e4m3", matmul<dot_lanes8, add_bias, nullptr, cast_to_e4m3>,
             18, "weights cast to e4m3 without a scale");
  list.wrong("product-weights-int8", matmul<dot_lanes8, add_bias, nullptr, quantise_to_int8>, 5.8,
             "weights rounded to int8 with a scale for each row");
  list.wrong("product-activations-e4m3", matmul<dot_lanes8, add_bias, quantise_to_e4m3>, 15,
             "activations rounded to e4m3 with one scale");
  list.wrong("product-activations-int8", matmul<dot_lanes8, add_bias, quantise_to_int8>, 93,
             "activations rounded to int8 with one scale");
  list.wrong("product-outliers-saturated", matmul<dot_lanes8, add_bias, saturate_outliers>, 290,
             "activations saturate at 6 times their root mean square",
             {.needs = "activations with outliers"});
  list.wrong("product-operands-bf16-in-fp16", matmul<dot_lanes8, add_bias, round_all_to_bf16>, 8.7,
             "activations rounded to bf16 in an fp16 run", {.dtypes = "fp16"});
  list.wrong("product-tf32-in-fp32",
             matmul<dot_lanes8, add_bias, round_all_to_tf32, round_all_to_tf32>, 13000,
             "operands rounded to tf32 where fp32 is declared",
             {.dtypes = "fp32", .needs = "held to fused"});
  list.wrong(
      "product-operands-bf16-in-fp32",
      matmul<dot_lanes8, add_bias, round_all_to_bf16, round_all_to_bf16>, 1.1e5,
      "both operands rounded to bf16 where fp32 is declared: float32_matmul_precision medium",
      {.dtypes = "fp32", .needs = "held to fused"});
}

void add_ends(Matmul& list) {
  const Shows biases = {.points = "attn.q,attn.k,attn.v", .needs = "biases, as Qwen2 has"};
  list.wrong("product-truncated-store", matmul<dot_lanes8, truncate>, 0.49,
             "the store cuts off instead of rounding", {.dtypes = "bf16,fp16"});
  list.wrong("product-no-bias", matmul<dot_lanes8, forget_bias>, 370, "no bias", biases);
  list.wrong("product-bias-twice", matmul<dot_lanes8, add_bias_twice>, 370,
             "the bias is added twice", biases);
  list.wrong("product-bias-of-neighbour", edited<take_bias_of_neighbour>, 600,
             "each column has the next one's bias", biases);
  list.wrong("product-bias-for-first-token", edited<bias_for_first_token_alone>, 270,
             "only the first token of a pass has a bias",
             {.points = biases.points, .needs = "biases and a pass with several tokens"});
  list.wrong("product-bias-after-truncation", matmul<dot_lanes8, add_bias_after_truncation>, 0.56,
             "the product is cut off to the dtype before the bias",
             {.points = biases.points,
              .dtypes = "bf16,fp16",
              .needs = biases.needs,
              .rounding = "bias_after_store"});
  list.wrong("logits-capped-at-30", matmul<dot_lanes8, cap_at_30>, 140, "Gemma 2's cap on logits",
             {.points = "logits", .first_point = "logits"});
}

void add_places(Matmul& list) {
  const Shows tokens = {.needs = "a pass with several tokens"};
  list.wrong("product-last-column-zero", edited<zero_last_column>, 230, "the last column is zero");
  list.wrong("product-column-kept", edited<keep_a_column>, 540,
             "one column has the first token's value for all", tokens);
  list.wrong("product-last-columns-shifted", edited<shift_last_columns>, 740,
             "the last tile of columns is one further");
  list.wrong("product-tokens-repeated", edited<repeat_tokens>, 770,
             "odd tokens have the row of the one before", tokens);
  list.wrong("product-tile-transposed", edited<transpose_a_tile>, 42,
             "the first 8 by 8 weights are transposed");
  list.wrong("product-accumulators-kept", edited<keep_accumulators>, 770,
             "tokens from the eighth on also have the sums of the first tile",
             {.needs = "a pass with more than 8 tokens"});
  list.wrong("product-decode-lane-lost", edited<lose_a_warp_of_one_token>, 18,
             "with one token, one of 32 partial sums is lost", {.needs = "a pass of one token"});
  list.wrong("product-one-element", edited<move_one_element>, 3,
             "one element of a call is 3 ulp too large", {.dtypes = "bf16,fp16"});
  list.wrong("product-one-column", edited<move_one_column>, 0.97,
             "one column is 1 ulp larger than right", {.dtypes = "bf16,fp16"});
}

}  // namespace

std::vector<OtherKernel> wrong_products() {
  Matmul list("lockstep_matmul", "attn.q");
  add_sums(list);
  add_operands(list);
  add_ends(list);
  add_places(list);
  return list.rows();
}

}  // namespace lockstep::other_hand
