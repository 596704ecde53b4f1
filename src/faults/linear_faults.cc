// Bugs of the projections: their weights, their sums and what they leave unwritten.
//
// A projection is told by the point that its output is shown at (OpContext::point), since all of
// them are the same op. Most of these bugs compute the right product by the op that was there, from
// other arguments; those about sums compute it anew, in plain loops.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <initializer_list>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/base/check.h"
#include "src/faults/seeds.h"

namespace lockstep {
namespace {

using Product = decltype(Ops::matmul);

// A product that is about to be computed; `right` computes it.
struct LinearCall {
  const Product& right;
  const OpContext& context;
  TensorView out, x, weight, bias;

  void run() const { right(context, out, x, weight, bias); }
};

// Has the products at those points made by `wrong`.
void seed_linear(const Seams& seams, const FaultRequest& request,
                 std::vector<std::string_view> points, std::function<void(LinearCall)> wrong) {
  inject(seams, &Ops::matmul, request,
         [points = std::move(points), wrong = std::move(wrong)](
             const auto& inner, const OpContext& context, TensorView out, TensorView x,
             WeightView weight, TensorView bias) {
           const bool here = std::ranges::count(points, context.point) > 0;
           if (!here) return inner(context, out, x, weight, bias);
           wrong({inner, context, out, x, plain_codes("a fault", weight), bias});
         });
}

std::vector<float> row_of(const TensorView& t, int64_t row) {
  std::vector<float> values;
  for (int64_t i = 0; i < t.row_size(); ++i) values.push_back(get(t, row * t.row_size() + i));
  return values;
}

// Each row with what the row after it holds, the last with what the first does.
Tensor one_row_on(const TensorView& right) {
  Tensor shifted = copy_of(right);
  auto* first = shifted.as<char>();
  std::rotate(first, first + right.row_size() * size_of(right.dtype), first + right.bytes());
  return shifted;
}

void seed_bias_dropped(const Seams& seams, const FaultRequest& request) {
  seed_linear(seams, request, {"attn.q", "attn.k", "attn.v"}, [](LinearCall linear) {
    linear.bias = {};
    linear.run();
  });
}

// In fused projections the bias is an argument of the product and of a kernel behind it.
void seed_bias_twice(const Seams& seams, const FaultRequest& request) {
  seed_linear(seams, request, {"attn.q", "attn.k", "attn.v"}, [](LinearCall linear) {
    const Tensor twice(linear.bias.shape, linear.bias.dtype);
    for (int64_t i = 0; i < linear.bias.count(); ++i) put(twice, i, 2 * get(linear.bias, i));
    linear.bias = twice;
    linear.run();
  });
}

void seed_projection_dead(const Seams& seams, const FaultRequest& request) {
  seed_linear(seams, request, {"attn.o"}, [](const LinearCall& linear) {
    std::memset(linear.out.data, 0, linear.out.bytes());
  });
}

// Checkpoints have [out, in], and some frameworks' layers [in, out]: of a square weight no shape
// tells which it is.
void seed_weight_layout_transposed(const Seams& seams, const FaultRequest& request) {
  seed_linear(seams, request, {"attn.o"}, [](LinearCall linear) {
    const int64_t n = linear.weight.shape[0], k = linear.weight.shape[1];
    const Tensor read(linear.weight.shape, linear.weight.dtype);
    for (int64_t i = 0; i < n; ++i)
      for (int64_t j = 0; j < k; ++j) put(read, i * k + j, get(linear.weight, j * n + i));
    linear.weight = read;
    linear.run();
  });
}

// A fused q|k|v weight that is cut one row late.
void seed_weight_rows_shifted(const Seams& seams, const FaultRequest& request) {
  seed_linear(seams, request, {"attn.q"}, [](LinearCall linear) {
    const Tensor shifted = one_row_on(linear.weight);
    linear.weight = shifted;
    linear.run();
  });
}

// Split-K kernels that keep their partial sums in the dtype of the run do this once a split.
void seed_accumulator_16_bit(const Seams& seams, const FaultRequest& request) {
  check(request.size >= 1 && request.size == std::floor(request.size),
        "fault {} has as its size how many products are added between two roundings, found {}",
        request.name, request.size);
  const auto every = static_cast<size_t>(request.size);
  seed_linear(seams, request, {"mlp.down"}, [every](const LinearCall& linear) {
    for (int64_t n = 0; n < linear.weight.rows(); ++n) {
      const std::vector<float> w = row_of(linear.weight, n);
      for (int64_t t = 0; t < linear.x.rows(); ++t) {
        const std::vector<float> x = row_of(linear.x, t);
        float total = 0;
        for (size_t first = 0; first < w.size(); first += every) {
          float part = 0;
          for (size_t k = first; k < std::min(first + every, w.size()); ++k) part += x[k] * w[k];
          total = to_bf16(total) + part;
        }
        put(linear.out, t * linear.weight.rows() + n, total);
      }
    }
  });
}

// The smallest error there is to be found: one element of one row.
void seed_one_element_off(const Seams& seams, const FaultRequest& request) {
  seed_linear(seams, request, {"attn.o"}, [size = request.size](const LinearCall& linear) {
    linear.run();
    const int64_t at = (linear.out.rows() - 1) * linear.out.row_size() + linear.out.row_size() / 3;
    const float right = get(linear.out, at);
    const double ulp = right == 0 ? 0 : std::ldexp(1.0, std::ilogb(right) - 7);  // of bf16
    put(linear.out, at, static_cast<float>(right + size * ulp));
  });
}

// A grid that is rounded down leaves the last tile as it was.
void seed_output_tile_never_written(const Seams& seams, const FaultRequest& request) {
  seed_linear(seams, request, {"mlp.up"}, [](const LinearCall& linear) {
    linear.run();
    const int64_t width = linear.out.row_size(), tile = std::min<int64_t>(64, width / 2);
    for (int64_t t = 0; t < linear.out.rows(); ++t)
      for (int64_t i = width - tile; i < width; ++i) put(linear.out, t * width + i, 0);
  });
}

void seed_last_row_uses_row_before(const Seams& seams, const FaultRequest& request) {
  seed_linear(seams, request, {"mlp.gate"}, [pass = pass_of(seams)](LinearCall linear) {
    const Tensor x = copy_of(linear.x);
    const size_t bytes = linear.x.row_size() * size_of(linear.x.dtype);
    const auto& rows = pass->rows;
    for (size_t t = 1; t < rows.size(); ++t) {
      const int32_t own = rows[t].row.request;
      const bool last = t + 1 == rows.size() || rows[t + 1].row.request != own;
      if (last && rows[t - 1].row.request == own)
        std::memcpy(x.as<char>() + t * bytes, linear.x.as<char>() + (t - 1) * bytes, bytes);
    }
    linear.x = x;
    linear.run();
  });
}

void seed_logits_of_another_request(const Seams& seams, const FaultRequest& request) {
  seed_linear(seams, request, {"logits"}, [](LinearCall linear) {
    const Tensor x = one_row_on(linear.x);
    linear.x = x;
    linear.run();
  });
}

// Tokens that were added to the vocabulary got their embeddings, and the tied head a copy of an
// older table.
void seed_head_is_stale(const Seams& seams, const FaultRequest& request) {
  seed_linear(seams, request, {"logits"}, [](const LinearCall& linear) {
    linear.run();
    // Each logit is a row of weights: the last ones are what the rows before them make.
    const int64_t vocab = linear.out.row_size(), added = std::min<int64_t>(64, vocab / 2);
    for (int64_t t = 0; t < linear.out.rows(); ++t)
      for (int64_t i = vocab - added; i < vocab; ++i)
        put(linear.out, t * vocab + i, get(linear.out, t * vocab + i - added));
  });
}

bool has_bias(const ModelConfig& c) { return c.qkv_bias; }
bool is_tied(const ModelConfig& c) { return c.tied; }

constexpr Fault kLinearRows[] = {
    {"bias-dropped",
     "attn.q",
     "q, k and v are projected without their bias",
     "biases of q, k and v (Qwen2)",
     {},
     has_bias,
     seed_bias_dropped},
    {"bias-twice",
     "attn.q",
     "the bias of q, k and v is added twice",
     "biases of q, k and v (Qwen2)",
     {},
     has_bias,
     seed_bias_twice},
    {"weight-rows-shifted",
     "attn.q",
     "q is projected by weights that begin one row late",
     "any run",
     {},
     always,
     seed_weight_rows_shifted},
    {"projection-dead",
     "attn.o",
     "the output projection makes zeros",
     "any run",
     {},
     always,
     seed_projection_dead},
    {"weight-layout-transposed",
     "attn.o",
     "the weight of the output projection is read column by column",
     "any run",
     {},
     always,
     seed_weight_layout_transposed},
    {"one-element-off",
     "attn.o",
     "an element of the last row is off by so many bf16 ulp (size)",
     "any run",
     {30, 3, 1},
     always,
     seed_one_element_off},
    {"last-row-uses-row-before",
     "mlp.gate",
     "the last row of a request takes the row before it as the gate's input",
     "a layer with one MLP; a pass with two tokens of one request",
     {},
     has_dense,
     seed_last_row_uses_row_before},
    {"output-tile-never-written",
     "mlp.up",
     "the last 64 columns, or half of fewer than 128, are not written and hold zeros",
     "a layer with one MLP for all tokens",
     {},
     has_dense,
     seed_output_tile_never_written},
    {"accumulator-16-bit",
     "mlp.down",
     "sums are rounded to bf16 after every so many products (size)",
     "a layer with one MLP whose rows are as long",
     {16, 64, 256},
     has_dense,
     seed_accumulator_16_bit},
    {"logits-of-another-request",
     "logits",
     "logits are made of the row of the next request in the pass",
     "two requests that get logits in one pass",
     {},
     always,
     seed_logits_of_another_request,
     false},
    {"head-is-stale",
     "logits",
     "lm_head has for the last 64 ids the weights of the 64 before them",
     "lm_head tied to the embedding",
     {},
     is_tied,
     seed_head_is_stale,
     false},
};

}  // namespace

constinit const std::span<const Fault> kLinearFaults = kLinearRows;

}  // namespace lockstep
