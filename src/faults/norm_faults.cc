// Bugs of RMSNorm. Most replace the formula of one row (NormRow) and leave the loop over rows as it
// is; those of QK-norm are told by the point that the op's output is shown at.
//
// RMSNorm is y = x / sqrt(mean(x^2) + eps) w; a NormRow is one row of it, got wrong in one place.
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "src/faults/seeds.h"

namespace lockstep {
namespace {

using Norm = decltype(Ops::rms_norm);

bool is_qk_norm(const OpContext& context) {
  return context.point == "attn.q_norm" || context.point == "attn.k_norm";
}

// Norms every `width` elements by their own mean square.
void norm_in_blocks(TensorView out, const TensorView& x, const TensorView& weight, float eps,
                    int64_t width) {
  for (int64_t first = 0; first < x.count(); first += width) {
    float sum = 0;
    for (int64_t i = first; i < first + width; ++i) sum += get(x, i) * get(x, i);
    const float scale = 1 / std::sqrt(sum / static_cast<float>(width) + eps);
    for (int64_t i = first; i < first + width; ++i)
      put(out, i, get(x, i) * scale * get(weight, i % weight.count()));
  }
}

// One row of a norm, in fp32: y of x, the gain w and eps.
using NormRow = std::function<void(std::span<const float> x, std::span<const float> w, float eps,
                                   std::span<float> y)>;

std::vector<float> floats_of(const TensorView& t, int64_t first, int64_t count) {
  std::vector<float> values;
  for (int64_t i = first; i < first + count; ++i) values.push_back(get(t, i));
  return values;
}

void norm_rows(const TensorView& out, const TensorView& x, const TensorView& weight, float eps,
               const NormRow& norm) {
  const int64_t width = weight.count();
  const std::vector<float> w = floats_of(weight, 0, width);
  std::vector<float> y(w.size());
  for (int64_t first = 0; first < x.count(); first += width) {
    norm(floats_of(x, first, width), w, eps, y);
    for (int64_t i = 0; i < width; ++i) put(out, first + i, y[i]);
  }
}

// Has attn.norm made row by row of another formula.
void seed_formula(const Seams& seams, const FaultRequest& request, NormRow norm) {
  inject(seams, &Ops::rms_norm, request,
         [norm = std::move(norm)](const auto& inner, const OpContext& context, TensorView out,
                                  TensorView x, TensorView weight, float eps) {
           if (context.point != "attn.norm") return inner(context, out, x, weight, eps);
           norm_rows(out, x, weight, eps, norm);
         });
}

float mean_square(std::span<const float> x) {
  float sum = 0;
  for (float value : x) sum += value * value;
  return sum / static_cast<float>(x.size());
}

// The formula that is right, with a gain that `gain_of` makes of the model's.
template <typename Gain>
NormRow with_gain(Gain gain_of) {
  return
      [gain_of](std::span<const float> x, std::span<const float> w, float eps, std::span<float> y) {
        const float scale = 1 / std::sqrt(mean_square(x) + eps);
        for (size_t i = 0; i < x.size(); ++i) y[i] = x[i] * scale * gain_of(w[i]);
      };
}

// A checkpoint of Qwen3 in the code of Qwen2, which has no such weights and does not miss them.
void seed_qk_norm_missing(const Seams& seams, const FaultRequest& request) {
  inject(seams, &Ops::rms_norm, request,
         [](const auto& inner, const OpContext& context, TensorView out, TensorView x,
            TensorView weight, float eps) {
           if (!is_qk_norm(context)) return inner(context, out, x, weight, eps);
           std::memcpy(out.data, x.data, x.bytes());
         });
}

// A reduction that ends in a warp's shuffles of 16 lanes, and is not put together across warps.
void seed_qk_norm_over_16_wide_blocks(const Seams& seams, const FaultRequest& request) {
  inject(seams, &Ops::rms_norm, request,
         [](const auto& inner, const OpContext& context, TensorView out, TensorView x,
            TensorView weight, float eps) {
           if (!is_qk_norm(context)) return inner(context, out, x, weight, eps);
           norm_in_blocks(out, x, weight, eps, 16);
         });
}

void seed_rms_norm_eps(const Seams& seams, const FaultRequest& request) {
  inject(seams, &Ops::rms_norm, request,
         [request](const auto& inner, const OpContext& context, TensorView out, TensorView x,
                   TensorView weight, float eps) {
           const bool hit = context.point == "attn.norm";
           inner(context, out, x, weight, hit ? static_cast<float>(request.size) : eps);
         });
}

// A rotation changes no norm of a pair, so that only the gain, which differs by dim, tells the two
// orders apart.
void seed_qk_norm_after_rope(const Seams& seams, const FaultRequest& request) {
  struct Skipped {
    Tensor weight;
    float eps = 0;
  };
  // The work that RoPE must do afterwards, by the point at which it was left out.
  const auto skipped = std::make_shared<std::map<std::string_view, Skipped>>();
  inject(seams, &Ops::rms_norm, request,
         [skipped](const auto& inner, const OpContext& context, TensorView out, TensorView x,
                   TensorView weight, float eps) {
           if (!is_qk_norm(context)) return inner(context, out, x, weight, eps);
           std::memcpy(out.data, x.data, x.bytes());
           (*skipped)[context.point == "attn.q_norm" ? "attn.q_rope" : "attn.k_rope"] = {
               copy_of(weight), eps};
         });
  inject(seams, &Ops::rope, request,
         [skipped](const auto& inner, const OpContext& context, TensorView out, TensorView x,
                   TensorView cos, TensorView sin, TensorView positions) {
           inner(context, out, x, cos, sin, positions);
           const Skipped& norm = skipped->at(context.point);
           norm_rows(out, out, norm.weight, norm.eps, with_gain([](float w) { return w; }));
         });
}

void seed_qk_norm_gain_of_another_shard(const Seams& seams, const FaultRequest& request) {
  inject(seams, &Ops::rms_norm, request,
         [](const auto& inner, const OpContext& context, TensorView out, TensorView x,
            TensorView weight, float eps) {
           if (!is_qk_norm(context)) return inner(context, out, x, weight, eps);
           const Tensor wrong(weight.shape, weight.dtype);
           for (int64_t i = 0, n = weight.count(); i < n; ++i)
             put(wrong, i, get(weight, (i + n / 2) % n));
           inner(context, out, x, wrong, eps);
         });
}

// Gemma's norms multiply by 1 + w.
void seed_norm_gain_plus_one(const Seams& seams, const FaultRequest& request) {
  seed_formula(seams, request, with_gain([](float w) { return 1 + w; }));
}

void seed_norm_mean_subtracted(const Seams& seams, const FaultRequest& request) {
  seed_formula(
      seams, request,
      [](std::span<const float> x, std::span<const float> w, float eps, std::span<float> y) {
        float mean = 0;
        for (float value : x) mean += value / static_cast<float>(x.size());
        for (size_t i = 0; i < x.size(); ++i) y[i] = x[i] - mean;
        const float scale = 1 / std::sqrt(mean_square(y) + eps);
        for (size_t i = 0; i < x.size(); ++i) y[i] *= scale * w[i];
      });
}

void seed_norm_eps_outside_root(const Seams& seams, const FaultRequest& request) {
  seed_formula(
      seams, request,
      [](std::span<const float> x, std::span<const float> w, float eps, std::span<float> y) {
        const float scale = 1 / (std::sqrt(mean_square(x)) + eps);
        for (size_t i = 0; i < x.size(); ++i) y[i] = x[i] * scale * w[i];
      });
}

void seed_norm_16_bit_sum(const Seams& seams, const FaultRequest& request) {
  seed_formula(
      seams, request,
      [](std::span<const float> x, std::span<const float> w, float eps, std::span<float> y) {
        float sum = 0;
        for (float value : x) sum = to_bf16(sum + to_bf16(value * value));
        const float scale = 1 / std::sqrt(sum / static_cast<float>(x.size()) + eps);
        for (size_t i = 0; i < x.size(); ++i) y[i] = x[i] * scale * w[i];
      });
}

// Hugging Face's norms do so, which a contract can say (hf): it is a bug only of an engine that
// declares otherwise.
void seed_norm_gain_after_16_bit_cast(const Seams& seams, const FaultRequest& request) {
  seed_formula(
      seams, request,
      [](std::span<const float> x, std::span<const float> w, float eps, std::span<float> y) {
        const float scale = 1 / std::sqrt(mean_square(x) + eps);
        for (size_t i = 0; i < x.size(); ++i) y[i] = to_bf16(x[i] * scale) * w[i];
      });
}

bool has_qk_norm(const ModelConfig& c) { return c.qk_norm; }
bool has_wide_qk_norm(const ModelConfig& c) {
  return c.qk_norm && c.head_dim > 16 && c.head_dim % 16 == 0;
}

constexpr Fault kNormRows[] = {
    {"qk-norm-missing",
     "attn.q_norm",
     "q and k are not normed",
     "QK-norm (Qwen3)",
     {},
     has_qk_norm,
     seed_qk_norm_missing},
    {"qk-norm-over-16-wide-blocks",
     "attn.q_norm",
     "QK-norm takes the mean square of 16 elements instead of the whole head",
     "QK-norm over heads wider than 16",
     {},
     has_wide_qk_norm,
     seed_qk_norm_over_16_wide_blocks},
    {"rms-norm-eps",
     "attn.norm",
     "RMSNorm adds another eps (its size) to the mean square",
     "rows of small norm, as at the first layer, or fp32",
     {1e-5, 1e-3, 1e-1},
     always,
     seed_rms_norm_eps},
    {"qk-norm-after-rope",
     "attn.q_norm",
     "q and k are normed after RoPE instead of before",
     "QK-norm (Qwen3)",
     {},
     has_qk_norm,
     seed_qk_norm_after_rope},
    {"qk-norm-gain-of-another-shard",
     "attn.q_norm",
     "QK-norm takes its gain from half a head further on",
     "QK-norm (Qwen3) with a gain that is not constant",
     {},
     has_qk_norm,
     seed_qk_norm_gain_of_another_shard},
    {"norm-gain-plus-one",
     "attn.norm",
     "RMSNorm multiplies by 1 + w instead of w",
     "any run",
     {},
     always,
     seed_norm_gain_plus_one},
    {"norm-mean-subtracted",
     "attn.norm",
     "RMSNorm subtracts the mean first, as LayerNorm does",
     "rows whose mean is not 0",
     {},
     always,
     seed_norm_mean_subtracted},
    {"norm-eps-outside-root",
     "attn.norm",
     "RMSNorm adds eps to the root of the mean square, not to the mean square",
     "fp32 and rows of small norm",
     {},
     always,
     seed_norm_eps_outside_root},
    {"norm-16-bit-sum",
     "attn.norm",
     "RMSNorm adds up the squares in bf16",
     "any run",
     {},
     always,
     seed_norm_16_bit_sum},
    {"norm-gain-after-16-bit-cast",
     "attn.norm",
     "RMSNorm rounds to bf16 before it multiplies by the gain",
     "any run",
     {},
     always,
     seed_norm_gain_after_16_bit_cast},
};

}  // namespace

constinit const std::span<const Fault> kNormFaults = kNormRows;

}  // namespace lockstep
