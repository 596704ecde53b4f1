// A model's attention against the definition, and in fp32 against the bits of LibTorch's formula.
#include "reference/causal_attention.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_scaled_dot_product_attention_math.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <tuple>

namespace lockstep {
namespace {

constexpr int64_t kDim = 16;

// Of a request whose last `queries` positions are computed.
struct Case {
  int64_t queries, keys, heads, kv_heads, window;
};
constexpr Case kCases[] = {
    {1, 1, 4, 2, 0},    {1, 37, 4, 2, 0},   {37, 37, 4, 2, 0},  {37, 37, 4, 4, 0},
    {12, 37, 6, 2, 0},  {12, 37, 3, 1, 0},  {37, 37, 4, 2, 5},  {12, 37, 4, 2, 5},
    {12, 37, 4, 2, 30}, {12, 37, 4, 2, 40}, {1, 37, 4, 2, 5},   {1, 37, 4, 2, 1},
    {37, 37, 4, 2, 1},  {20, 37, 4, 2, 18}, {20, 37, 4, 2, 17}, {37, 37, 4, 2, 37},
};

struct Operands {
  at::Tensor q, k, v;
};
Operands operands_of(const Case& c, at::ScalarType dtype) {
  at::Generator random = at::make_generator<at::CPUGeneratorImpl>(1);
  const auto some = [&](int64_t rows, int64_t heads) {
    return at::randn({rows, heads, kDim}, random, at::TensorOptions().dtype(dtype));
  };
  const at::Tensor q = some(c.queries, c.heads), k = some(c.keys, c.kv_heads);
  return {q, k, some(c.keys, c.kv_heads)};
}

// One query of one head after the other, over just the keys that it sees.
at::Tensor by_definition(const Operands& x, const Case& c) {
  at::Tensor y = at::empty(x.q.sizes(), x.q.options());
  for (int64_t i = 0; i < c.queries; ++i) {
    const int64_t end = c.keys - c.queries + i + 1;
    const int64_t begin = c.window == 0 ? 0 : std::max<int64_t>(0, end - c.window);
    for (int64_t h = 0; h < c.heads; ++h) {
      const auto seen = [&](const at::Tensor& of) {
        return of.select(1, h / (c.heads / c.kv_heads)).narrow(0, begin, end - begin);
      };
      const at::Tensor scores = at::matmul(seen(x.k), x.q[i][h]) / std::sqrt(kDim);
      y[i][h].copy_(at::matmul(at::softmax(scores, -1), seen(x.v)));
    }
  }
  return y;
}

TEST(CausalAttention, IsWhatTheDefinitionSays) {
  for (const Case& c : kCases) {
    const Operands x = operands_of(c, at::kDouble);
    const at::Tensor want = by_definition(x, c);
    const auto off = [&](const at::Tensor& y) { return (y - want).abs().max().item<double>(); };
    EXPECT_LE(off(causal_attention(x.q, x.k, x.v, c.window)), 1e-13)
        << c.queries << " " << c.window;
  }
}

TEST(CausalAttention, InFp32HasTheBitsOfLibTorch) {
  for (const Case& c : kCases) {
    const Operands x = operands_of(c, at::kFloat);
    const auto by_head = [](const at::Tensor& of) { return of.transpose(0, 1).unsqueeze(0); };
    const at::Tensor key = at::arange(c.keys);
    const at::Tensor query = at::arange(c.keys - c.queries, c.keys).unsqueeze(1);
    const at::Tensor seen = (key <= query) & (key > query - (c.window == 0 ? c.keys : c.window));
    const at::Tensor mask =
        at::zeros({c.queries, c.keys}, x.q.options())
            .masked_fill(seen.logical_not(), -std::numeric_limits<double>::infinity());
    const at::Tensor want = std::get<0>(at::_scaled_dot_product_attention_math(
                                            by_head(x.q), by_head(x.k), by_head(x.v), mask,
                                            /*dropout_p=*/0.0, /*is_causal=*/false,
                                            /*dropout_mask=*/std::nullopt,
                                            /*scale=*/std::nullopt, /*enable_gqa=*/true))
                                .squeeze(0)
                                .transpose(0, 1);
    EXPECT_TRUE(causal_attention(x.q, x.k, x.v, c.window).equal(want))
        << c.queries << " " << c.window;
  }
}

// Weights of scores far apart, and far from 0, where an exponential overflows by itself.
TEST(CausalAttention, TakesScoresOfAnySize) {
  for (const double size : {1e-3, 1e2, 1e6}) {
    const Case c{9, 21, 4, 2, 0};
    Operands x = operands_of(c, at::kDouble);
    x.q = x.q * size;
    const at::Tensor off = causal_attention(x.q, x.k, x.v, 0) - by_definition(x, c);
    EXPECT_LE(off.abs().max().item<double>(), 1e-9) << size;
  }
}

// What no query's window reaches is not read at all.
TEST(CausalAttention, LeavesOutWhatNoWindowReaches) {
  const Case c{4, 30, 4, 2, 6};
  const Operands x = operands_of(c, at::kDouble);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const auto spoilt = [&](const at::Tensor& of) {
    const int64_t behind = c.keys - c.queries - c.window + 1;
    return at::cat({at::full({behind, c.kv_heads, kDim}, nan, of.options()),
                    of.narrow(0, behind, c.keys - behind)});
  };
  EXPECT_TRUE(causal_attention(x.q, spoilt(x.k), spoilt(x.v), c.window)
                  .equal(causal_attention(x.q, x.k, x.v, c.window)));
}

}  // namespace
}  // namespace lockstep
