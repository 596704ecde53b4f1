// Bugs of how ranks share a model: what they cut out of the weights, what they add up, gather or
// leave alone, and where one of them goes its own way. Most are of one rank, rank 1 where none is
// asked for: an error that every rank makes alike is one of the whole model's.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "src/faults/seeds.h"

namespace lockstep {
namespace {

// Whether the bug is this rank's: of every one, or of rank 1, unless another was asked for.
bool is_here(const Seams& seams, const FaultRequest& request, bool of_every = false) {
  if (request.rank >= 0 || of_every) return true;
  return seams.ranks->parts.plan.rank == 1;
}

// Replaces a collective at a point: wrong(inner, context, tensors...).
template <typename Call, typename Wrong>
void exchange_at(Call& call, const FaultRequest& request, std::string_view point, Wrong wrong) {
  call = [inner = std::move(call), request, point, wrong = std::move(wrong)](
             const OpContext& context, const auto&... tensors) {
    if (context.point != point || !request.hits(context)) return inner(context, tensors...);
    wrong(inner, context, tensors...);
  };
}

// A rank then has what it adds itself, also of a stream that is shared by rows.
void seed_left_out(const Seams& seams, const FaultRequest& request) {
  Exchange& exchange = seams.ranks->parts.exchange;
  exchange_at(exchange.all_reduce, request, "attn.o", [](const auto&...) {});
  const int rank = seams.ranks->parts.plan.rank;
  exchange_at(exchange.reduce_scatter, request, "attn.o",
              [rank](const auto&, const OpContext&, TensorView parts, TensorView part) {
                copy(part, parts.slice(rank * part.rows(), part.rows()));
              });
}

// Every rank then has the whole sum, and takes what lies first in it for its own rows.
void seed_all_reduce_for_scatter(const Seams& seams, const FaultRequest& request) {
  check(seams.ranks->parts.plan.by_rows, "fault {} needs --sequence-parallel: add it",
        request.name);
  Exchange& exchange = seams.ranks->parts.exchange;
  exchange_at(exchange.reduce_scatter, request, "attn.o",
              [all_reduce = exchange.all_reduce](const auto&, const OpContext& context,
                                                 TensorView parts, TensorView part) {
                all_reduce(context, parts);
                copy(part, parts.slice(0, part.rows()));
              });
}

void seed_left_out_in_one(const Seams& seams, const FaultRequest& request) {
  if (is_here(seams, request)) seed_left_out(seams, request);
}

void seed_bias_by_each(const Seams& seams, const FaultRequest&) {
  seams.ranks->cut.local.o_bias = true;
}

void seed_other_rows(const Seams& seams, const FaultRequest& request) {
  if (!is_here(seams, request)) return;
  RankPlan& cut = seams.ranks->cut;
  const int other = (cut.rank + 1) % cut.ranks;
  cut.inner = plan_of(cut.whole, other, cut.ranks).inner;
}

void seed_kv_dealt(const Seams& seams, const FaultRequest& request) {
  RankPlan& cut = seams.ranks->cut;
  check(cut.ranks > cut.whole.kv_heads && cut.ranks % cut.whole.kv_heads == 0,
        "fault {} needs more ranks than the {} K/V heads, a multiple of them: give another --tp",
        request.name, cut.whole.kv_heads);
  cut.kv_heads.first = cut.rank % cut.whole.kv_heads;
}

void seed_mask_off(const Seams& seams, const FaultRequest&) {
  ++seams.ranks->parts.plan.mask_first;
}

void seed_gathered_reversed(const Seams& seams, const FaultRequest& request) {
  exchange_at(seams.ranks->parts.exchange.all_gather, request, "logits",
              [](const auto& inner, const OpContext& context, TensorView parts, TensorView part) {
                inner(context, parts, part);
                const Tensor right = copy_on(Device::cpu, parts);
                for (int64_t r = 0; r < parts.rows(); ++r)
                  copy(parts.slice(r, 1), right.view().slice(parts.rows() - 1 - r, 1));
              });
}

void seed_stale_norm(const Seams& seams, const FaultRequest& request) {
  if (!is_here(seams, request)) return;
  inject(seams, &Ops::rms_norm, request,
         [](const auto& inner, const OpContext& context, TensorView out, TensorView x,
            TensorView weight, float eps) {
           if (context.point != "attn.norm") return inner(context, out, x, weight, eps);
           const Tensor stale = copy_of(weight);
           for (int64_t i = 0; i < weight.count(); i += 7) put(stale, i, 0.75f * get(weight, i));
           inner(context, out, x, stale, eps);
         });
}

void seed_stale_weight(const Seams& seams, const FaultRequest& request) {
  if (!is_here(seams, request)) return;
  inject(seams, &Ops::matmul, request,
         [](const auto& inner, const OpContext& context, TensorView out, TensorView x,
            WeightView weight, TensorView bias) {
           if (context.point != "attn.v") return inner(context, out, x, weight, bias);
           const Tensor stale = copy_of(weight.codes);
           for (int64_t i = 0; i < stale.view().count(); i += 3)
             put(stale, i, 0.875f * get(stale, i));
           inner(context, out, x, WeightView(stale), bias);
         });
}

// The mean of squares of the first 1 / ranks of a row, as of a stream that is itself shared.
void seed_norm_of_shard(const Seams& seams, const FaultRequest& request) {
  const int64_t ranks = seams.ranks->cut.ranks;
  inject(seams, &Ops::rms_norm, request,
         [ranks](const auto& inner, const OpContext& context, TensorView out, TensorView x,
                 TensorView weight, float eps) {
           if (context.point != "mlp.norm") return inner(context, out, x, weight, eps);
           const int64_t size = x.shape.last(), part = size / ranks;
           for (int64_t row = 0; row < x.count() / size; ++row) {
             double squares = 0;
             for (int64_t i = 0; i < part; ++i) {
               const double value = get(x, row * size + i);
               squares += value * value;
             }
             const double scale = 1 / std::sqrt(squares / static_cast<double>(part) + eps);
             for (int64_t i = 0; i < size; ++i)
               put(out, row * size + i,
                   static_cast<float>(get(x, row * size + i) * scale * get(weight, i)));
           }
         });
}

void seed_other_dtype(const Seams& seams, const FaultRequest& request) {
  if (!is_here(seams, request)) return;
  DType& dtype = seams.ranks->engine.dtype;
  dtype = dtype == DType::f32 ? DType::bf16 : DType::f32;
}

void seed_other_slots(const Seams& seams, const FaultRequest& request) {
  if (!is_here(seams, request)) return;
  add_to(seams.hooks.before_pass, [](Batch& batch) {
    auto* slots = batch.slots.as<int64_t>();
    std::reverse(slots, slots + batch.slots.view().count());
  });
}

void seed_other_token(const Seams& seams, const FaultRequest& request) {
  if (!is_here(seams, request)) return;
  const int64_t vocab = seams.config.vocab;
  add_to(seams.hooks.before_pass, [vocab](Batch& batch) {
    for (size_t i = 0; i < batch.info.rows.size(); ++i) {
      PassRow& row = batch.info.rows[i];
      if (row.phase != Phase::decode) continue;
      row.token = static_cast<int32_t>((row.token + vocab - 1) % vocab);
      batch.tokens.as<int32_t>()[i] = row.token;
    }
  });
}

bool has_o_bias(const ModelConfig& c) { return c.o_bias; }
bool shares_kv_heads(const ModelConfig& c) { return c.kv_heads > 1; }

constexpr const char* kTwo = "two ranks";
constexpr auto kRankRows = std::to_array<Fault>({
    {"rank-reduce-left-out",
     "attn.o",
     "no rank adds up what the ranks' o projections give",
     kTwo,
     {},
     always,
     seed_left_out,
     true,
     Fault::Seat::ranks},
    {"rank-reduce-left-out-by-one",
     "attn.o",
     "a rank does not call the all-reduce of attn.o",
     kTwo,
     {},
     always,
     seed_left_out_in_one,
     true,
     Fault::Seat::ranks},
    {"rank-all-reduce-for-scatter",
     "attn.o",
     "an all-reduce is called where a reduce-scatter was due",
     "two ranks that share the stream by rows",
     {},
     always,
     seed_all_reduce_for_scatter,
     true,
     Fault::Seat::ranks},
    {"rank-bias-added-by-each",
     "attn.o_partial",
     "each rank adds the bias of o",
     "a bias of o",
     {},
     has_o_bias,
     seed_bias_by_each,
     false,
     Fault::Seat::ranks},
    {"rank-rows-of-another",
     "mlp.gate",
     "a rank has the MLP's rows of another rank",
     kTwo,
     {},
     has_dense,
     seed_other_rows,
     false,
     Fault::Seat::ranks},
    {"rank-kv-heads-dealt",
     "attn.k",
     "K/V heads are dealt to ranks in turn, not in stretches",
     "more ranks than K/V heads, of which there are several",
     {},
     shares_kv_heads,
     seed_kv_dealt,
     false,
     Fault::Seat::ranks},
    {"rank-vocabulary-off-by-one",
     "embed.partial",
     "the lookup's rows begin one token too late",
     kTwo,
     {},
     always,
     seed_mask_off,
     false,
     Fault::Seat::ranks},
    {"rank-logits-reversed",
     "logits",
     "logits are gathered in the reversed order of ranks",
     kTwo,
     {},
     always,
     seed_gathered_reversed,
     false,
     Fault::Seat::ranks},
    {"rank-stale-norm",
     "attn.norm",
     "a rank has the weights of another version of a norm",
     kTwo,
     {},
     always,
     seed_stale_norm,
     true,
     Fault::Seat::ranks},
    {"rank-stale-weight",
     "attn.v",
     "a rank has the weights of another version of v",
     kTwo,
     {},
     always,
     seed_stale_weight,
     true,
     Fault::Seat::ranks},
    {"rank-norm-of-shard",
     "mlp.norm",
     "the norm's mean is that of a rank's share of the row",
     kTwo,
     {},
     always,
     seed_norm_of_shard,
     true,
     Fault::Seat::ranks},
    {"rank-other-dtype",
     "embed",
     "a rank computes in another dtype",
     kTwo,
     {},
     always,
     seed_other_dtype,
     false,
     Fault::Seat::ranks},
    {"rank-other-slots",
     "attn.kv",
     "a rank writes K and V to other slots",
     "several tokens a pass",
     {},
     always,
     seed_other_slots,
     false,
     Fault::Seat::ranks},
    {"rank-other-token",
     "embed.partial",
     "a rank decodes another token",
     "a decode pass",
     {},
     always,
     seed_other_token,
     false,
     Fault::Seat::ranks},
});

}  // namespace

constinit const std::span<const Fault> kRankFaults = kRankRows;

}  // namespace lockstep
