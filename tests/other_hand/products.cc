// Right linear layers.
#include "tests/other_hand/products.h"

#include <algorithm>

#include "tests/other_hand/families.h"

namespace lockstep::other_hand {

double add_bias(double sum, const float* bias, Kind) {
  const auto product = static_cast<float>(sum);
  return bias == nullptr ? product : product + *bias;
}

double add_bias_in_fp64(double sum, const float* bias, Kind) {
  return bias == nullptr ? sum : sum + *bias;
}

Products multiply(const Recipe& recipe, const DLTensor* x, const DLTensor* weight,
                  const DLTensor* bias) {
  const Tensor weights(weight);
  const Kind kind = weights.kind();
  const int64_t depth = weights.axis(1);
  Products made = {x->shape[0], weights.axis(0), {}};
  made.values.resize(static_cast<size_t>(made.tokens * made.columns));
  std::vector<float> all_x = Tensor(x).all(), row(static_cast<size_t>(depth));
  const std::vector<float> biases = bias == nullptr ? std::vector<float>{} : Tensor(bias).all();
  if (recipe.change_x != nullptr) recipe.change_x(all_x);
  for (int64_t column = 0; column < made.columns; ++column) {
    weights.load(column * depth, depth, row.data());
    if (recipe.change_weight != nullptr) recipe.change_weight(row);
    const float* its_bias = bias == nullptr ? nullptr : &biases[static_cast<size_t>(column)];
    for (int64_t token = 0; token < made.tokens; ++token) {
      const double sum = recipe.dot(all_x.data() + token * depth, row.data(), depth, kind);
      made.at(token, column) = recipe.finish(sum, its_bias, kind);
    }
  }
  return made;
}

void put_all(const Products& products, const DLTensor* out) {
  const Tensor to(out);
  for (size_t i = 0; i < products.values.size(); ++i)
    to.put(static_cast<int64_t>(i), products.values[i]);
}

void round_all_to_tf32(std::vector<float>& values) {
  for (float& value : values) value = static_cast<float>(to_bits(value, 11));
}
void round_all_to_bf16(std::vector<float>& values) {
  for (float& value : values) value = rounded(value, Kind::bf16);
}
void round_all_to_fp16(std::vector<float>& values) {
  for (float& value : values) value = rounded(value, Kind::fp16);
}

namespace {

// cuBLAS with the bias in a kernel of its own, or torch.matmul and an addition.
double add_bias_after_store(double sum, const float* bias, Kind kind) {
  const double product = nearest(sum, kind);
  return bias == nullptr ? product : static_cast<float>(product) + *bias;
}

// The tokens in the inner loop and k in the outer one: every sum grows by one product at a time, as
// in a kernel that holds a tile of sums in registers.
const char* outer_products(const LockstepCall*, const DLTensor* out, const DLTensor* x,
                           const DLTensor* weight, const DLTensor* bias) {
  if (const char* why = refused({out, x, weight})) return why;
  const Tensor weights(weight), from(x);
  const int64_t depth = weights.axis(1);
  Products made = {x->shape[0], weights.axis(0), {}};
  std::vector<float> sums(static_cast<size_t>(made.tokens));
  made.values.resize(sums.size() * static_cast<size_t>(made.columns));
  for (int64_t column = 0; column < made.columns; ++column) {
    // The accumulators begin with the bias.
    const float begin = bias == nullptr ? 0 : Tensor(bias).at(column);
    std::fill(sums.begin(), sums.end(), begin);
    for (int64_t i = 0; i < depth; ++i) {
      const float factor = weights.at(column * depth + i);
      for (int64_t token = 0; token < made.tokens; ++token)
        sums[static_cast<size_t>(token)] += from.at(token * depth + i) * factor;
    }
    for (int64_t token = 0; token < made.tokens; ++token)
      made.at(token, column) = sums[static_cast<size_t>(token)];
  }
  put_all(made, out);
  return nullptr;
}

using Matmul = Family<decltype(lockstep_matmul)>;

void add_fused(Matmul& list) {
  list.right("product-forward", matmul<dot_forward>, "fused", "k first to last");
  list.right("product-backward", matmul<dot_backward>, "fused", "k last to first");
  list.right("product-pairwise", matmul<dot_pairwise>, "fused", "k by halves");
  list.right("product-lanes-4", matmul<dot_lanes4>, "fused", "four partial sums");
  list.right("product-lanes-8", matmul<dot_lanes8>, "fused", "eight partial sums");
  list.right("product-lanes-16", matmul<dot_lanes16>, "fused", "sixteen partial sums");
  list.right("product-warp", matmul<dot_warp>, "fused", "32 lanes and a butterfly");
  list.right("product-kahan", matmul<dot_kahan>, "fused", "a compensated sum");
  list.right("product-fma", matmul<dot_fma>, "fused", "fused multiply-adds");
  list.right("product-fp64", matmul<dot_fp64, add_bias_in_fp64>, "fused", "fp64 inside");
  list.right("product-split-2", matmul<dot_split2>, "fused", "split-K in two, partials in fp32");
  list.right("product-split-3", matmul<dot_split3>, "fused", "split-K in three, the last shorter");
  list.right("product-split-8", matmul<dot_split8>, "fused", "split-K in eight");
  list.right("product-blocks-32", matmul<dot_blocks32>, "fused", "blocks of 32 summed alone");
  list.right("product-tensor-core", matmul<dot_tensor_core>, "fused",
             "16 products at a time into an fp32 accumulator that is cut off, as tensor cores do");
  list.right("product-3xtf32", matmul<dot_3xtf32>, "fused",
             "each operand as a sum of two tf32 numbers");
  list.right("product-outer", outer_products, "fused",
             "k in the outer loop; accumulators begin with the bias");
}

}  // namespace

std::vector<OtherKernel> right_products() {
  Matmul list("lockstep_matmul", "attn.q");
  add_fused(list);
  list.right("product-bias-after-store", matmul<dot_lanes8, add_bias_after_store>,
             "bias_after_store", "the product to the dtype, then the bias");
  list.right("product-bias-after-store-backward", matmul<dot_backward, add_bias_after_store>,
             "bias_after_store", "the same, k last to first");
  list.right("product-tf32", matmul<dot_lanes8, add_bias, round_all_to_tf32, round_all_to_tf32>,
             "tf32", "operands rounded to tf32", "fp32");
  list.right("product-tf32-split-8",
             matmul<dot_split8, add_bias, round_all_to_tf32, round_all_to_tf32>, "tf32",
             "the same with split-K", "fp32");
  list.right("product-operands-bf16", matmul<dot_lanes8, add_bias, round_all_to_bf16>,
             "operands_bf16", "activations rounded to bf16", "fp32");
  list.right("product-operands-fp16", matmul<dot_lanes8, add_bias, round_all_to_fp16>,
             "operands_fp16", "activations rounded to fp16", "fp32");
  return list.rows();
}

}  // namespace lockstep::other_hand
