// The products of chosen experts, and the sum of what they made: right and wrong. Who is chosen is
// in routing.cc.
#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/other_hand/families.h"
#include "tests/other_hand/numbers.h"
#include "tests/other_hand/sums.h"

namespace lockstep::other_hand {
namespace {

// --- expert_matmul ------------------------------------------------------------------------------

struct Choices {
  const int32_t* index;
  int64_t tokens, count;  // of a token
  int64_t experts;
  int64_t of(int64_t token, int64_t choice) const { return index[token * count + choice]; }
};

// The expert whose weight a choice takes, or -1: the choice gives zeros.
using Expert = int64_t(const Choices& choices, int64_t token, int64_t choice);
// The row of x that it takes; rows are tokens, or choices where x has them.
using Row = int64_t(int64_t token, int64_t choice, int64_t count, bool by_choice);

int64_t own_expert(const Choices& choices, int64_t token, int64_t choice) {
  return choices.of(token, choice);
}
int64_t own_row(int64_t token, int64_t choice, int64_t count, bool by_choice) {
  return by_choice ? token * count + choice : token;
}

using Change = void(std::vector<float>& weight);
void leave(std::vector<float>&) {}

template <Dot* dot, Expert* expert = own_expert, Row* row_of = own_row, Change* change = leave>
const char* expert_matmul(const LockstepCall*, const DLTensor* out, const DLTensor* x,
                          const DLTensor* index, const DLTensor* const* weights, int64_t experts) {
  if (const char* why = refused({out, x, weights[0]})) return why;
  const Tensor to(out);
  const Choices choices = {indices(index), index->shape[0], index->shape[1], experts};
  const int64_t columns = weights[0]->shape[0], depth = weights[0]->shape[1];
  const std::vector<float> all_x = Tensor(x).all();
  const int64_t rows = static_cast<int64_t>(all_x.size()) / depth;
  for (int64_t row = 0; row < choices.tokens * choices.count; ++row) {
    const int64_t token = row / choices.count, choice = row % choices.count;
    const int64_t own = expert(choices, token, choice);
    if (own < 0) {
      for (int64_t n = 0; n < columns; ++n) to.put(row * columns + n, 0);
      continue;
    }
    std::vector<float> weight = Tensor(weights[own]).all();
    change(weight);
    const int64_t from =
        std::clamp<int64_t>(row_of(token, choice, choices.count, x->ndim == 3), 0, rows - 1);
    for (int64_t n = 0; n < columns; ++n)
      to.put(row * columns + n,
             dot(all_x.data() + from * depth, weight.data() + n * depth, depth, to.kind()));
  }
  return nullptr;
}

int64_t next_expert(const Choices& choices, int64_t token, int64_t choice) {
  return (choices.of(token, choice) + 1) % choices.experts;
}
int64_t best_expert(const Choices& choices, int64_t token, int64_t) { return choices.of(token, 0); }
int64_t expert_of_first_token(const Choices& choices, int64_t, int64_t choice) {
  return choices.of(0, choice);
}
int64_t experts_reversed(const Choices& choices, int64_t token, int64_t choice) {
  return choices.of(token, choices.count - 1 - choice);
}
// The last expert is never counted when tokens are sorted by expert (sgl-project/sglang#15250).
int64_t never_the_last_expert(const Choices& choices, int64_t token, int64_t choice) {
  const int64_t own = choices.of(token, choice);
  return own == choices.experts - 1 ? -1 : own;
}
// An expert serves two choices of a pass; more are dropped.
int64_t expert_with_room(const Choices& choices, int64_t token, int64_t choice) {
  const int64_t own = choices.of(token, choice);
  int64_t before = 0;
  for (int64_t i = 0; i < token * choices.count + choice; ++i)
    before += choices.index[i] == own ? 1 : 0;
  return before < 2 ? own : -1;
}

int64_t row_of_first_choice(int64_t token, int64_t, int64_t count, bool by_choice) {
  return by_choice ? token * count : token;
}
int64_t row_of_next_token(int64_t token, int64_t choice, int64_t count, bool by_choice) {
  return own_row(token + 1, choice, count, by_choice);
}

void quantise_to_e4m3(std::vector<float>& weight) {
  double largest = 0;
  for (const float value : weight)
    largest = std::max(largest, static_cast<double>(std::fabs(value)));
  for (float& value : weight) value = static_cast<float>(e4m3(value, largest));
}

// --- weighted_sum -------------------------------------------------------------------------------

// One column of one token: the choices' values and weights.
struct Column {
  std::vector<float> x, weight;
  Kind kind;
  size_t count() const { return x.size(); }
};
using Add = double(const Column& column);

template <Add* add>
const char* weighted_sum(const LockstepCall*, const DLTensor* out, const DLTensor* x,
                         const DLTensor* weights) {
  if (const char* why = refused({out, x, weights})) return why;
  const Tensor to(out), from(x), all(weights);
  const int64_t count = x->shape[1], width = x->shape[2];
  Column column = {std::vector<float>(static_cast<size_t>(count)),
                   std::vector<float>(static_cast<size_t>(count)), to.kind()};
  for (int64_t token = 0; token < x->shape[0]; ++token) {
    all.load(token * count, count, column.weight.data());
    for (int64_t i = 0; i < width; ++i) {
      for (int64_t c = 0; c < count; ++c)
        column.x[static_cast<size_t>(c)] = from.at((token * count + c) * width + i);
      to.put(token * width + i, add(column));
    }
  }
  return nullptr;
}

template <Dot* dot>
double by(const Column& column) {
  return dot(column.x.data(), column.weight.data(), static_cast<int64_t>(column.count()),
             column.kind);
}

template <bool backward>
double as_hf(const Column& column) {
  float sum = 0;
  for (size_t turn = 0; turn < column.count(); ++turn) {
    const size_t c = backward ? column.count() - 1 - turn : turn;
    const float product = rounded(column.x[c] * column.weight[c], column.kind);
    sum = rounded(sum + product, column.kind);
  }
  return sum;
}

double changed(const Column& column, float (*weight)(const Column&, size_t c)) {
  float sum = 0;
  for (size_t c = 0; c < column.count(); ++c) sum += column.x[c] * weight(column, c);
  return sum;
}

double without_last(const Column& column) {
  return changed(column, [](const Column& of, size_t c) {
    return c + 1 == of.count() && c > 0 ? 0 : of.weight[c];
  });
}
double best_alone(const Column& column) { return column.x[0]; }
double unweighted(const Column& column) {  // edwardcapriolo/deliverance#88
  return changed(column, [](const Column&, size_t) { return 1.0F; });
}
double mean(const Column& column) {
  return changed(column,
                 [](const Column& of, size_t) { return 1 / static_cast<float>(of.count()); });
}
double weights_swapped(const Column& column) {
  return changed(column, [](const Column& of, size_t c) { return of.weight[of.count() - 1 - c]; });
}
// On the input and again on the output: apply_router_weight_on_input in two places.
double weighted_twice(const Column& column) {
  return changed(column, [](const Column& of, size_t c) { return of.weight[c] * of.weight[c]; });
}
double weights_in_fp8(const Column& column) {
  return changed(column,
                 [](const Column& of, size_t c) { return static_cast<float>(e4m3(of.weight[c])); });
}
double scaled(const Column& column) { return 2.5 * by<dot_forward>(column); }  // DeepSeek-V3
double in_bf16(const Column& column) {
  Column narrow = column;
  narrow.kind = Kind::bf16;
  return as_hf<false>(narrow);
}
double cut_off(const Column& column) { return truncated(by<dot_forward>(column), column.kind); }
double partials_cut_off(const Column& column) {
  double sum = 0;
  for (size_t c = 0; c < column.count(); ++c)
    sum =
        truncated(sum + truncated(static_cast<double>(column.x[c]) * column.weight[c], column.kind),
                  column.kind);
  return sum;
}

}  // namespace

std::vector<OtherKernel> expert_products() {
  Family<decltype(lockstep_expert_matmul)> list("lockstep_expert_matmul", "mlp.expert_gate");
  const Shows tokens = {.needs = "experts, and a pass with several tokens"};
  const Shows experts = {.needs = "experts"};
  list.right("expert-forward", expert_matmul<dot_forward>, "fused", "k first to last",
             "bf16,fp16,fp32", "experts");
  list.right("expert-backward", expert_matmul<dot_backward>, "fused", "k last to first",
             "bf16,fp16,fp32", "experts");
  list.right("expert-split-8", expert_matmul<dot_split8>, "fused", "split-K in eight",
             "bf16,fp16,fp32", "experts");
  list.right("expert-fp64", expert_matmul<dot_fp64>, "fused", "fp64 inside", "bf16,fp16,fp32",
             "experts");
  list.right("expert-tensor-core", expert_matmul<dot_tensor_core>, "fused",
             "16 products at a time, cut off", "bf16,fp16,fp32", "experts");
  list.wrong("expert-next", expert_matmul<dot_lanes8, next_expert>, 1000,
             "the next expert's weight", experts);
  list.wrong("expert-best-for-all", expert_matmul<dot_lanes8, best_expert>, 760,
             "every choice goes through the first one's expert", experts);
  list.wrong("expert-of-first-token", expert_matmul<dot_lanes8, expert_of_first_token>, 760,
             "every token goes through the first one's experts", tokens);
  list.wrong("expert-order-reversed", expert_matmul<dot_lanes8, experts_reversed>, 760,
             "the choices' experts in the other order", experts);
  list.wrong("expert-last-lost", expert_matmul<dot_lanes8, never_the_last_expert>, 260,
             "the last expert gives zeros", {.needs = "a token that chooses the last expert"});
  list.wrong("expert-capacity", expert_matmul<dot_lanes8, expert_with_room>, 260,
             "an expert serves two choices of a pass; more give zeros",
             {.needs = "experts that three tokens of a pass choose"});
  list.wrong("expert-row-of-first-choice",
             expert_matmul<dot_lanes8, own_expert, row_of_first_choice>, 1400,
             "every choice reads the first one's row",
             {.points = "mlp.expert_down", .first_point = "mlp.expert_down", .needs = "experts"});
  list.wrong("expert-row-of-next-token", expert_matmul<dot_lanes8, own_expert, row_of_next_token>,
             1400, "every token but the last reads the next one's row", tokens);
  list.wrong("expert-weights-e4m3",
             expert_matmul<dot_lanes8, own_expert, own_row, quantise_to_e4m3>, 22,
             "weights rounded to e4m3 with a scale for each expert", experts);
  list.wrong("expert-sum-in-bf16", expert_matmul<dot_in_bf16>, 15, "accumulates in bf16", experts);
  list.wrong("expert-split-4-partials", expert_matmul<dot_split4_partials>, 1.1,
             "split-K whose partials are stored in 16 bits", experts);
  list.wrong("expert-fp22", expert_matmul<dot_fp22>, 0.64, "an accumulator of 14 bits, cut off",
             {.dtypes = "fp16,fp32", .needs = "experts"});
  return list.rows();
}

std::vector<OtherKernel> expert_sums() {
  Family<decltype(lockstep_weighted_sum)> list("lockstep_weighted_sum", "mlp.combine");
  const Shows experts = {.needs = "experts"};
  const char* all = "bf16,fp16,fp32";
  list.right("combine-forward", weighted_sum<by<dot_forward>>, "fused", "best first", all,
             "experts");
  list.right("combine-backward", weighted_sum<by<dot_backward>>, "fused", "best last", all,
             "experts");
  list.right("combine-pairwise", weighted_sum<by<dot_lanes4>>, "fused", "four lanes", all,
             "experts");
  list.right("combine-fp64", weighted_sum<by<dot_fp64>>, "fused", "fp64 inside", all, "experts");
  list.right("combine-hf", weighted_sum<as_hf<false>>, "hf",
             "products and partial sums to the dtype, in the order of the choices", all, "experts");
  list.right("combine-hf-backward", weighted_sum<as_hf<true>>, "hf", "the same, best last", all,
             "experts");
  list.wrong("combine-last-lost", weighted_sum<without_last>, 140, "the last choice is not added",
             experts);
  list.wrong("combine-best-alone", weighted_sum<best_alone>, 760, "the first choice, unweighted",
             experts);
  list.wrong("combine-unweighted", weighted_sum<unweighted>, 2000, "the sum without weights",
             experts);
  list.wrong("combine-mean", weighted_sum<mean>, 760, "the mean of the choices", experts);
  list.wrong("combine-weights-swapped", weighted_sum<weights_swapped>, 720,
             "the weights in the other order", experts);
  list.wrong("combine-weighted-twice", weighted_sum<weighted_twice>, 230, "weights applied twice",
             experts);
  list.wrong("combine-scaled", weighted_sum<scaled>, 380, "scaled by 2.5, as DeepSeek-V3", experts);
  list.wrong("combine-weights-in-fp8", weighted_sum<weights_in_fp8>, 14, "weights rounded to e4m3",
             experts);
  list.wrong("combine-in-bf16", weighted_sum<in_bf16>, 10,
             "products and sums in bf16 in a run of another dtype",
             {.dtypes = "fp16,fp32", .needs = "experts", .rounding = "hf"});
  list.wrong("combine-truncated-store", weighted_sum<cut_off>, 0.49,
             "the store cuts off instead of rounding",
             {.dtypes = "bf16,fp16", .needs = "held to fused; experts"});
  list.wrong("combine-partials-truncated", weighted_sum<partials_cut_off>, 0.16,
             "products and partial sums are cut off to the dtype",
             {.dtypes = "bf16,fp16", .needs = "experts", .rounding = "hf"});
  return list.rows();
}

}  // namespace lockstep::other_hand
