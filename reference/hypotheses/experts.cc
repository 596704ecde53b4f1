// Ways in which a mixture of experts goes wrong: weights, their order, and whose expert it is.
//
// They compute from the router's logits, the chosen indices and the experts' recorded results:
// another softmax, another order, another row's choice. A wrong choice is asked by the weights of
// the expert that would have been taken.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/one_hot.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/where.h>

#include <algorithm>

#include "reference/bridge.h"
#include "reference/hypotheses/asked.h"
#include "reference/hypotheses/values.h"

namespace lockstep {
namespace {

using at::Tensor;

// The experts that rows chose, the last input of an op that reads them: [rows, k].
Tensor chosen_of(const Asked& a) { return a.input(a.inputs() - 1).to(at::kLong); }

Tensor of_all(const Asked& a, double) {
  return at::softmax(a.input(0), -1).gather(-1, chosen_of(a));
}
Tensor of_chosen(const Asked& a, double) {
  return at::softmax(a.input(0).gather(-1, chosen_of(a)), -1);
}
// The number of each choice among those that its expert gets in the pass, in the order of the rows:
// [rows, k].
Tensor numbers_in_expert(const Tensor& chosen, int64_t experts) {
  const Tensor is_of = at::one_hot(chosen.flatten(), experts);
  return ((is_of.cumsum(0) * is_of).sum(1) - 1).view(chosen.sizes());
}

// The weights of chosen experts: softmax over all or over the chosen, divided by their sum or not,
// and the sigmoids of other families. Which one is right is the configuration's to say
// (norm_topk_prob).
Tensor sigmoids(const Asked& a, double) { return at::sigmoid(a.input(0)).gather(-1, chosen_of(a)); }
Tensor sigmoids_divided(const Asked& a, double) {
  const Tensor s = sigmoids(a, 0);
  return s / s.sum(-1, true);
}
Tensor logits_alone(const Asked& a, double) { return a.input(0).gather(-1, chosen_of(a)); }
// A gather that never happened: weights of experts 0 to k - 1.
Tensor first_columns(const Asked& a, double) {
  return a.input(0).size(-1) < chosen_of(a).size(-1)
             ? Tensor()
             : at::softmax(a.input(0), -1).narrow(-1, 0, chosen_of(a).size(-1));
}
// Order matters as soon as the experts' results come in another one.
Tensor turned_round(const Asked& a, double) { return a.right().flip(1); }

constexpr Hypothesis kWeights[] = {
    {"weights of all experts' softmax, not divided by the sum of the chosen", of_all},
    {"weights divided by the sum of the chosen", of_chosen},
    {"sigmoids for a softmax", sigmoids},
    {"sigmoids, divided by their sum, for a softmax", sigmoids_divided},
    {"logits for weights, without a softmax", logits_alone},
    {"the weights of the first experts for those chosen", first_columns},
    {"weights in the opposite order", turned_round},
};

Tensor sum_of(const Tensor& x, const Tensor& weights) { return (x * weights.unsqueeze(-1)).sum(1); }
Tensor weights_turned_round(const Asked& a, double) {
  return sum_of(a.input(0), a.input(1).flip(1));
}
std::vector<double> turns(const Asked& a) {
  return a.input(1).size(1) > 2 ? std::vector<double>{1, -1} : std::vector<double>{};
}
Tensor weights_turned(const Asked& a, double by) {
  return sum_of(a.input(0), a.input(1).roll(as_count(by), 1));
}
// Rows of input(0) are [token, choice, hidden], input(1) has a weight for each choice.
Tensor unweighted(const Asked& a, double) { return a.input(0).sum(1); }
Tensor mean_of_experts(const Asked& a, double) { return a.input(0).mean(1); }
Tensor first_alone(const Asked& a, double) {
  return sum_of(a.input(0).narrow(1, 0, 1), a.input(1).narrow(1, 0, 1));
}
Tensor last_left_out(const Asked& a, double) {
  const int64_t k = a.input(1).size(1) - 1;
  return k < 1 ? Tensor() : sum_of(a.input(0).narrow(1, 0, k), a.input(1).narrow(1, 0, k));
}
Tensor weighted_twice(const Asked& a, double) { return sum_of(a.input(0), a.input(1).square()); }
// Weights that add up to 1 already are left as they are, and the guess is then the right result,
// which explains no finding.
Tensor weights_divided(const Asked& a, double) {
  return sum_of(a.input(0), a.input(1) / a.input(1).sum(-1, true));
}
Tensor terms_in_bf16(const Asked& a, double) {
  return a.in_dtype(a.input(0) * a.input(1).unsqueeze(-1), DType::bf16).sum(1);
}

// Experts that take so many rows of a pass and no more: the others lose their share.
Tensor numbers_of_sum(const Asked& a) {
  const Tensor chosen = a.other("mlp.experts");
  const int64_t count = a.model().config.experts.count;
  return chosen.defined() && count > 0 && chosen.sizes() == a.input(1).sizes()
             ? numbers_in_expert(chosen.to(at::kLong), count)
             : Tensor();
}
std::vector<double> capacities(const Asked& a) {
  constexpr int64_t kMostCapacity = 64;
  std::vector<double> all;
  const Tensor numbers = numbers_of_sum(a);
  const int64_t most = numbers.defined() ? numbers.max().item<int64_t>() : 0;
  for (int64_t taken = 1; taken <= std::min(most, kMostCapacity); ++taken)
    all.push_back(as_fp64(taken));
  return all;
}
Tensor past_capacity_left_out(const Asked& a, double capacity) {
  const Tensor numbers = numbers_of_sum(a);
  return numbers.defined()
             ? sum_of(a.input(0), a.input(1).masked_fill(numbers >= as_count(capacity), 0))
             : Tensor();
}

std::vector<double> rows_beside(const Asked& a) { return Asked::neighbours_among(a.rows()); }
Tensor weights_of_row(const Asked& a, double by) {
  const Tensor weights = a.of_neighbours(a.input(1), by);
  return weights.defined() ? sum_of(a.input(0), weights) : weights;
}

constexpr Hypothesis kSum[] = {
    {"the experts' weights in the opposite order", weights_turned_round},
    {"the experts' weights turned by {:+g}", weights_turned, turns},
    {"the experts' results added without weights", unweighted},
    {"the mean of the experts' results", mean_of_experts},
    {"rows past the first {:g} of each expert in the pass left out (its capacity)",
     past_capacity_left_out, capacities},
    {"the first expert alone", first_alone},
    {"the last expert left out", last_left_out},
    {"the experts' weights twice", weighted_twice},
    {"the experts' weights divided by their sum once more", weights_divided},
    {"the experts' weights of the row {:+g} in the pass", weights_of_row, rows_beside, nullptr,
     Scope::op, "the experts' weights of the other row in the pass"},
    {"each expert's part rounded to bf16 before they are added", terms_in_bf16},
};

Tensor of_experts(const Asked& a, const Tensor& x, const Tensor& experts) {
  return a.model().weights.experts(a.place(), x, experts.to(at::kInt), nullptr, nullptr);
}
std::vector<double> expert_ids_beside(const Asked&) { return {1, -1}; }
// Experts by another number than was chosen: tables of experts that are permuted or shared among
// devices go wrong this way.
Tensor next_expert(const Asked& a, double by) {
  const int64_t count = a.model().config.experts.count;
  return of_experts(a, a.input(0), (chosen_of(a) + as_count(by) + count) % count);
}
Tensor other_choice(const Asked& a, double) {
  return of_experts(a, a.input(0), chosen_of(a).flip(1).contiguous());
}
Tensor first_choice(const Asked& a, double) {
  const Tensor chosen = chosen_of(a);
  return of_experts(a, a.input(0), chosen.narrow(1, 0, 1).expand_as(chosen).contiguous());
}
Tensor by_choice_number(const Asked& a, double) {
  const Tensor chosen = chosen_of(a);
  return of_experts(a, a.input(0), (at::ones_like(chosen).cumsum(1) - 1).contiguous());
}
Tensor of_row_before(const Asked& a, double) {
  return a.rows() < 2 ? Tensor() : of_experts(a, a.input(0), chosen_of(a).roll(1, 0).contiguous());
}
// Experts whose weights are another's, which the result tells.
Tensor weights_as_told(const Asked& a, double) {
  const int64_t count = a.model().config.experts.count;
  const Tensor chosen = chosen_of(a);
  if (count > 16) return {};
  std::vector<Tensor> all;
  for (int64_t e = 0; e < count; ++e)
    all.push_back(of_experts(a, a.input(0), at::full_like(chosen, e)).view(a.got().sizes()));
  Tensor y = a.right().view(a.got().sizes()).clone();
  bool any = false;
  for (int64_t own = 0; own < count; ++own) {
    const Tensor mine = (chosen == own).unsqueeze(-1);
    if (!mine.any().item<bool>()) continue;
    const auto off = [&](int64_t e) {
      return ((all[static_cast<size_t>(e)] - a.got()) * mine).square().nansum().item<double>();
    };
    int64_t nearest = own;
    for (int64_t e = 0; e < count; ++e)
      if (off(e) < 0.5 * off(nearest)) nearest = e;
    any = any || nearest != own;
    y = at::where(mine, all[static_cast<size_t>(nearest)], y);
  }
  return any ? y : Tensor();
}
// A row of the down product that is found by its token alone.
Tensor of_first_input(const Asked& a, double) {
  const Tensor x = a.input(0);
  return x.dim() < 3 ? Tensor()
                     : of_experts(a, x.narrow(1, 0, 1).expand_as(x).contiguous(), chosen_of(a));
}
// The down projection alone has a row for each choice: gate and up read the token's.
Tensor of_other_input(const Asked& a, double) {
  return a.input(0).dim() < 3 ? Tensor()
                              : of_experts(a, a.input(0).flip(1).contiguous(), chosen_of(a));
}

// The first choice of an expert that was left at zero tells how many it takes.
std::vector<double> told_capacity(const Asked& a) {
  const Tensor empty = (a.got() == 0).all(-1).logical_and((a.right() != 0).any(-1));
  const Tensor chosen = chosen_of(a);
  if (empty.sizes() != chosen.sizes() || !empty.any().item<bool>()) return {};
  const int64_t taken = numbers_in_expert(chosen, a.model().config.experts.count)
                            .masked_select(empty)
                            .min()
                            .item<int64_t>();
  return taken > 0 ? std::vector<double>{as_fp64(taken)} : std::vector<double>{};
}
Tensor past_capacity_zero(const Asked& a, double capacity) {
  const Tensor numbers = numbers_in_expert(chosen_of(a), a.model().config.experts.count);
  return a.right().masked_fill((numbers >= as_count(capacity)).unsqueeze(-1), 0);
}

// The rest of a sum beyond whole tiles.
std::vector<double> input_tails(const Asked& a) {
  std::vector<double> all;
  for (const int64_t tile : {1, 2, 4, 8, 16, 32, 64, 128})
    if (2 * tile <= a.input(0).size(-1)) all.push_back(as_fp64(tile));
  return all;
}
Tensor inputs_left_out(const Asked& a, double count) {
  const Tensor x = a.input(0).clone();
  x.narrow(-1, x.size(-1) - as_count(count), as_count(count)).fill_(0);
  return of_experts(a, x, chosen_of(a));
}

constexpr Hypothesis kExperts[] = {
    {"the expert {:+g} for the one that was chosen", next_expert, expert_ids_beside},
    {"the experts of a token in the opposite order", other_choice},
    {"the first chosen expert for all choices", first_choice},
    {"the number of the choice for the expert", by_choice_number},
    {"the experts that the row before chose", of_row_before},
    {"the rows of a token's experts in the opposite order", of_other_input},
    {"the row of a token's first expert for all of them", of_first_input},
    {"rows past the first {:g} of each expert in the pass never computed: zeros (its capacity)",
     past_capacity_zero, told_capacity},
    {"its last {:g} inputs left out of the sum", inputs_left_out, input_tails},
    {"experts that have the weights of others", weights_as_told},
};

}  // namespace

std::span<const Hypothesis> expert_weight_hypotheses() { return kWeights; }
std::span<const Hypothesis> weighted_sum_hypotheses() { return kSum; }
std::span<const Hypothesis> expert_linear_hypotheses() { return kExperts; }

}  // namespace lockstep
