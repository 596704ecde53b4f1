// Bugs of rotary embedding: pairs, angles, positions. Tables of another configuration (theta, yarn)
// are made by the engine's own RopeCache from a changed config, so that only what the bug is about
// differs.
#include <algorithm>
#include <bit>
#include <cmath>

#include "kernels/base/check.h"
#include "src/faults/seeds.h"
#include "src/weights/rope_tables.h"

namespace lockstep {
namespace {

// GPT-J pairs neighbours, GPT-NeoX and Qwen dims half a head apart; weights that were permuted for
// one are wrong in the other.
void rotate_interleaved(TensorView out, const TensorView& x, const TensorView& cos,
                        const TensorView& sin, const TensorView& positions) {
  const int64_t heads = x.shape[1], dim = x.shape[2];
  for (int64_t t = 0; t < x.rows(); ++t)
    for (int64_t h = 0; h < heads; ++h)
      for (int64_t j = 0; j < dim / 2; ++j) {
        const int64_t angle = positions.as<int32_t>()[t] * (dim / 2) + j;
        const float c = cos.as<float>()[angle], s = sin.as<float>()[angle];
        const int64_t i = (t * heads + h) * dim + 2 * j;
        const float x1 = get(x, i), x2 = get(x, i + 1);
        put(out, i, x1 * c - x2 * s);
        put(out, i + 1, x2 * c + x1 * s);
      }
}

// Rotates the pairs (j, j + head_dim/2) with j < pairs, by what `as` makes of cos and sin.
template <typename As>
void rotate_halves(const TensorView& out, const TensorView& x, const TensorView& cos,
                   const TensorView& sin, const TensorView& positions, int64_t pairs, As as) {
  const int64_t heads = x.shape[1], half = x.shape[2] / 2;
  for (int64_t t = 0; t < x.rows(); ++t)
    for (int64_t h = 0; h < heads; ++h)
      for (int64_t j = 0; j < half; ++j) {
        const int64_t angle = positions.as<int32_t>()[t] * half + j;
        const float c = j < pairs ? as(cos.as<float>()[angle]) : 1;
        const float s = j < pairs ? as(sin.as<float>()[angle]) : 0;
        const int64_t i = (t * heads + h) * 2 * half + j;
        const float x1 = get(x, i), x2 = get(x, i + half);
        put(out, i, x1 * c - x2 * s);
        put(out, i + half, x2 * c + x1 * s);
      }
}

// Tables that are made of another configuration, as the positions are needed.
struct OtherTables {
  explicit OtherTables(ModelConfig wrong) : config(std::move(wrong)), cache(config) {}
  ModelConfig config;
  RopeCache cache;
  Batch batch;
};

void seed_config(const Seams& seams, const FaultRequest& request, ModelConfig wrong) {
  const auto other = std::make_shared<OtherTables>(std::move(wrong));
  add_to(seams.hooks.before_pass, [other](Batch& batch) {
    other->batch.info = batch.info;
    other->cache.prepare(other->batch);
  });
  inject(seams, &Ops::rope, request,
         [other](const auto& inner, const OpContext& context, TensorView out, TensorView x,
                 TensorView, TensorView, TensorView positions) {
           inner(context, out, x, other->batch.cos, other->batch.sin, positions);
         });
}

void seed_rope_interleaved(const Seams& seams, const FaultRequest& request) {
  inject(seams, &Ops::rope, request,
         [](const auto&, const OpContext&, TensorView out, TensorView x, TensorView cos,
            TensorView sin,
            TensorView positions) { rotate_interleaved(out, x, cos, sin, positions); });
}

// The length of the context counts the new token in some interfaces and not in others.
void seed_rope_position_off_by_one_in_decode(const Seams& seams, const FaultRequest& request) {
  inject(
      seams, &Ops::rope, request,
      [pass = pass_of(seams)](const auto& inner, const OpContext& context, TensorView out,
                              TensorView x, TensorView cos, TensorView sin, TensorView positions) {
        const Tensor wrong = copy_of(positions);
        for (size_t t = 0; t < pass->rows.size(); ++t)
          if (pass->rows[t].phase == Phase::decode) --wrong.as<int32_t>()[t];
        inner(context, out, x, cos, sin, wrong);
      });
}

void seed_rope_theta_ignored(const Seams& seams, const FaultRequest& request) {
  ModelConfig wrong = seams.config;
  wrong.rope.theta = RopeConfig().theta;
  seed_config(seams, request, std::move(wrong));
}

void seed_yarn_factor_twice(const Seams& seams, const FaultRequest& request) {
  ModelConfig wrong = seams.config;
  wrong.rope.factor *= wrong.rope.factor;
  // The factor on cos and sin stays the right one: positions are stretched twice, nothing else.
  wrong.rope.attention_factor = rope_frequencies(seams.config, 1).attention_factor;
  seed_config(seams, request, std::move(wrong));
}

void seed_rope_tables_16_bit(const Seams& seams, const FaultRequest& request) {
  inject(seams, &Ops::rope, request,
         [](const auto&, const OpContext&, TensorView out, TensorView x, TensorView cos,
            TensorView sin, TensorView positions) {
           rotate_halves(out, x, cos, sin, positions, x.shape[2] / 2, to_bf16);
         });
}

void seed_rope_over_half_of_the_dims(const Seams& seams, const FaultRequest& request) {
  inject(seams, &Ops::rope, request,
         [](const auto&, const OpContext&, TensorView out, TensorView x, TensorView cos,
            TensorView sin, TensorView positions) {
           rotate_halves(out, x, cos, sin, positions, x.shape[2] / 4,
                         [](float angle) { return angle; });
         });
}

// Positions that are made in the dtype of the run are exact to 256 in bf16 and to 2048 in fp16.
void seed_rope_positions_16_bit(const Seams& seams, const FaultRequest& request) {
  check(request.size >= 1 && request.size <= 31 && request.size == std::floor(request.size),
        "fault {} has as its size a number of bits from 1 to 31, found {}", request.name,
        request.size);
  inject(seams, &Ops::rope, request,
         [request](const auto& inner, const OpContext& context, TensorView out, TensorView x,
                   TensorView cos, TensorView sin, TensorView positions) {
           const Tensor wrong = copy_of(positions);
           for (int64_t t = 0; t < positions.count(); ++t) {
             int32_t& position = wrong.as<int32_t>()[t];
             const auto bits = static_cast<int>(std::bit_width(static_cast<uint32_t>(position)));
             const int extra = bits - static_cast<int>(request.size);
             // Past the end of the tables is memory that is no angle.
             const auto last = static_cast<double>(cos.rows() - 1);
             if (extra > 0)
               position = static_cast<int32_t>(
                   std::min(std::ldexp(std::nearbyint(std::ldexp(position, -extra)), extra), last));
           }
           inner(context, out, x, cos, sin, wrong);
         });
}

bool fixed_tables(const ModelConfig& c) { return !c.rope.depends_on_length(); }
bool has_own_theta(const ModelConfig& c) {
  return fixed_tables(c) && c.rope.theta != RopeConfig().theta;
}
bool has_two_pairs(const ModelConfig& c) { return c.head_dim >= 4; }
bool has_yarn(const ModelConfig& c) { return c.rope.type == RopeType::yarn && c.rope.factor > 1; }

constexpr Fault kRopeRows[] = {
    {"rope-interleaved",
     "attn.q_rope",
     "RoPE rotates the pairs (2j, 2j+1) instead of (j, j + head_dim/2)",
     "a position after the first",
     {},
     always,
     seed_rope_interleaved},
    {"rope-position-off-by-one-in-decode",
     "attn.q_rope",
     "RoPE gets the position before the token's own, in decode passes only",
     "a decode pass",
     {},
     fixed_tables,
     seed_rope_position_off_by_one_in_decode},
    {"rope-theta-ignored",
     "attn.q_rope",
     "RoPE turns by the base 10000 instead of the model's own",
     "a rope_theta other than 10000; a position after the first",
     {},
     has_own_theta,
     seed_rope_theta_ignored},
    {"yarn-factor-twice",
     "attn.q_rope",
     "positions are stretched by the factor of YaRN twice",
     "a model with YaRN; a position after the first",
     {},
     has_yarn,
     seed_yarn_factor_twice},
    {"rope-tables-16-bit",
     "attn.q_rope",
     "cos and sin are rounded to bf16",
     "a position after the first",
     {},
     always,
     seed_rope_tables_16_bit},
    {"rope-positions-16-bit",
     "attn.q_rope",
     "positions are rounded to so many significant bits (size; 8: bf16, 11: fp16)",
     "a position of 2^size or more",
     {8, 4},
     fixed_tables,
     seed_rope_positions_16_bit},
    {"rope-over-half-of-the-dims",
     "attn.q_rope",
     "RoPE turns the first half of the pairs and leaves the others as they are",
     "heads of four elements or more; a position after the first",
     {},
     has_two_pairs,
     seed_rope_over_half_of_the_dims},
};

}  // namespace

constinit const std::span<const Fault> kRopeFaults = kRopeRows;

}  // namespace lockstep
