// Cases of linear layers and of experts.
#include <algorithm>
#include <cmath>

#include "tests/other_hand/cases.h"

namespace lockstep::other_hand {
namespace {

using Held = std::shared_ptr<Array>;

Held floats(Kind kind, const std::vector<int64_t>& shape, const std::vector<double>& values) {
  return std::make_shared<Array>(kind, shape, values);
}

// Adds one element of x w^T + bias to a case: its exact value and what each contract allows.
void add_product(Case& made, Kind kind, const double* x, const double* w, int64_t depth,
                 double bias) {
  double sum = 0, size = 0, weights = 0;
  for (int64_t i = 0; i < depth; ++i) {
    sum += x[i] * w[i];
    size += std::fabs(x[i] * w[i]);
    weights += std::fabs(w[i]);
  }
  const double fused = sum_slack(depth) * (size + std::fabs(bias));
  made.exact.push_back(sum + bias);
  made.slack["fused"].push_back(fused);
  made.slack["bias_after_store"].push_back(fused + 0.5 * ulp(sum, kind) * 1.01);
  if (kind != Kind::fp32) return;
  made.slack["tf32"].push_back(fused + 2.01 * 0x1p-11 * size);
  made.slack["operands_bf16"].push_back(fused + 0x1p-8 * size);
  made.slack["operands_fp16"].push_back(fused + 0x1p-11 * size + 0x1p-25 * weights);
}

struct ProductShape {
  int64_t tokens, depth, columns;
  bool bias;
  bool cancels;  // the second half of a row takes away what the first one gave
  double weight = 0.03;
};

Case product_case(Kind kind, const ProductShape& of, uint64_t seed) {
  Random random(seed);
  std::vector<double> xs = with_outliers(random, of.tokens, of.depth, 1);
  std::vector<double> ws = normals(random, of.columns * of.depth, of.weight);
  for (int64_t row = 0; row < of.columns && of.cancels; ++row)
    for (int64_t i = 0; i < of.depth / 2; ++i)
      ws[static_cast<size_t>(row * of.depth + of.depth / 2 + i)] =
          -ws[static_cast<size_t>(row * of.depth + i)] * (i % 16 == 3 ? 0.99 : 1);
  for (int64_t row = 0; row < of.tokens && of.cancels; ++row)
    for (int64_t i = 0; i < of.depth / 2; ++i)
      xs[static_cast<size_t>(row * of.depth + of.depth / 2 + i)] =
          xs[static_cast<size_t>(row * of.depth + i)];
  const Held x = floats(kind, {of.tokens, of.depth}, xs);
  const Held weight = floats(kind, {of.columns, of.depth}, ws);
  const Held bias = of.bias ? floats(kind, {of.columns}, normals(random, of.columns, 2)) : nullptr;
  const auto out = std::make_shared<Array>(kind, std::vector<int64_t>{of.tokens, of.columns});
  Case made = {std::to_string(of.tokens) + " by " + std::to_string(of.depth), kind};
  made.inputs = {x, weight};
  if (bias) made.inputs.push_back(bias);
  made.outputs = {out};
  made.run = [=](void* function, bool) {
    const LockstepCall call = {"attn.q", 1, nullptr};
    return reinterpret_cast<decltype(&lockstep_matmul)>(function)(
        &call, out->get(), x->get(), weight->get(), bias ? bias->get() : nullptr);
  };
  xs = x->values(), ws = weight->values();
  const std::vector<double> biases =
      bias ? bias->values() : std::vector<double>(static_cast<size_t>(of.columns), 0.0);
  for (int64_t token = 0; token < of.tokens; ++token)
    for (int64_t column = 0; column < of.columns; ++column)
      add_product(made, kind, xs.data() + token * of.depth, ws.data() + column * of.depth, of.depth,
                  biases[static_cast<size_t>(column)]);
  made.typical = sizes_of_rows(made.exact, of.columns);
  made.is_adversarial = of.cancels;
  return made;
}

// --- Experts ------------------------------------------------------------------------------------

Case expert_case(Kind kind, bool by_choice, uint64_t seed) {
  Random random(seed);
  const int64_t tokens = 7, count = 3, experts = 6, depth = 192, columns = 20;
  std::vector<int64_t> chosen;
  for (int64_t token = 0; token < tokens; ++token) {
    const std::vector<int64_t> all = random.permutation(experts);
    chosen.insert(chosen.end(), all.begin(), all.begin() + count);
  }
  chosen[1] = experts - 1, chosen[0] = 0, chosen[2] = 3;
  const auto index = std::make_shared<Array>(Array::of_int32({tokens, count}, chosen));
  std::vector<int64_t> shape = {tokens, depth};
  if (by_choice) shape = {tokens, count, depth};
  const int64_t rows = by_choice ? tokens * count : tokens;
  const Held x = floats(kind, shape, with_outliers(random, rows, depth, 1));
  std::vector<Held> weights;
  for (int64_t expert = 0; expert < experts; ++expert)
    weights.push_back(floats(kind, {columns, depth}, normals(random, columns * depth, 0.05)));
  const auto out = std::make_shared<Array>(kind, std::vector<int64_t>{tokens, count, columns});
  Case made = {by_choice ? "rows of choices" : "rows of tokens", kind};
  made.inputs = weights;
  made.inputs.push_back(x), made.inputs.push_back(index);
  made.outputs = {out};
  made.run = [=](void* function, bool) {
    std::vector<const DLTensor*> all;
    for (const Held& weight : weights) all.push_back(weight->get());
    const LockstepCall call = {by_choice ? "mlp.expert_down" : "mlp.expert_gate", 1, nullptr};
    return reinterpret_cast<decltype(&lockstep_expert_matmul)>(function)(
        &call, out->get(), x->get(), index->get(), all.data(), experts);
  };
  const std::vector<double> xs = x->values();
  for (int64_t row = 0; row < tokens * count; ++row) {
    const auto expert = static_cast<size_t>(chosen[static_cast<size_t>(row)]);
    const std::vector<double> ws = weights[expert]->values();
    for (int64_t column = 0; column < columns; ++column)
      add_product(made, kind, xs.data() + (by_choice ? row : row / count) * depth,
                  ws.data() + column * depth, depth, 0);
  }
  made.typical = sizes_of_rows(made.exact, columns);
  return made;
}

Case combine_case(Kind kind, int64_t count, uint64_t seed) {
  Random random(seed);
  const int64_t tokens = 6, width = 60;
  const Held x = floats(kind, {tokens, count, width}, normals(random, tokens * count * width, 2));
  std::vector<double> weights;
  for (int64_t i = 0; i < tokens * count; ++i)
    weights.push_back((0.1 + random.uniform()) / to_double(1 + i % count));
  const Held w = floats(kind, {tokens, count}, weights);
  const auto out = std::make_shared<Array>(kind, std::vector<int64_t>{tokens, width});
  Case made = {std::to_string(count) + " choices", kind};
  made.inputs = {x, w};
  made.outputs = {out};
  made.run = [=](void* function, bool) {
    const LockstepCall call = {"mlp.combine", 1, nullptr};
    return reinterpret_cast<decltype(&lockstep_weighted_sum)>(function)(&call, out->get(), x->get(),
                                                                        w->get());
  };
  const std::vector<double> xs = x->values(), ws = w->values();
  for (int64_t token = 0; token < tokens; ++token)
    for (int64_t i = 0; i < width; ++i) {
      std::vector<double> terms;
      double sum = 0, size = 0, from_front = 0, from_behind = 0;
      for (int64_t c = 0; c < count; ++c) {
        terms.push_back(xs[static_cast<size_t>((token * count + c) * width + i)] *
                        ws[static_cast<size_t>(token * count + c)]);
        size += std::fabs(terms.back());
        sum += terms.back();
        if (c + 1 < count) from_front += std::fabs(sum);
      }
      // The partial sums in the other order are what is left of the whole.
      for (double rest = sum; const double term : terms) from_behind += std::fabs(rest -= term);
      const double rounded_more = size + std::max(from_front, from_behind);
      made.exact.push_back(sum);
      made.slack["fused"].push_back(sum_slack(count) * size);
      made.slack["hf"].push_back(sum_slack(count) * size + 1.01 * roundoff(kind) * rounded_more +
                                 underflow(kind) * to_double(2 * count));
    }
  made.typical = sizes_of_rows(made.exact, width);
  return made;
}

// --- The router ---------------------------------------------------------------------------------

Case top_k_case(Kind kind, int64_t experts, int64_t count, uint64_t seed) {
  Random random(seed);
  const int64_t tokens = 11;
  std::vector<double> logits = normals(random, tokens * experts, 2);
  logits[3] = logits[5] = 7;  // equal ones among the chosen
  for (int64_t i = 0; i < 4; ++i) logits[static_cast<size_t>(experts + 2 * i)] = -9;
  const Held x = floats(kind, {tokens, experts}, logits);
  const auto out = std::make_shared<Array>(Array::of_int32({tokens, count}));
  Case made = {std::to_string(experts) + " experts", kind, Unit::indices};
  made.inputs = {x};
  made.outputs = {out};
  made.run = [=](void* function, bool) {
    const LockstepCall call = {"mlp.experts", 1, nullptr};
    return reinterpret_cast<decltype(&lockstep_top_k)>(function)(&call, out->get(), x->get());
  };
  const std::vector<double> all = x->values();
  // As good is an index of the same logit that is not there already.
  made.wrong_indices = [=](const std::vector<double>& got) {
    double wrong = 0;
    for (int64_t token = 0; token < tokens; ++token) {
      std::vector<double> best(all.begin() + token * experts, all.begin() + (token + 1) * experts);
      std::sort(best.begin(), best.end(), std::greater<>());
      std::vector<bool> taken(static_cast<size_t>(experts));
      for (int64_t c = 0; c < count; ++c) {
        const double index = got[static_cast<size_t>(token * count + c)];
        const bool inside = index >= 0 && index < to_double(experts);
        const auto i = static_cast<size_t>(inside ? index : 0);
        const double logit = all[static_cast<size_t>(token * experts) + i];
        if (!inside || taken[i] || logit != best[static_cast<size_t>(c)]) ++wrong;
        taken[i] = true;
      }
    }
    return wrong;
  };
  return made;
}

Case router_case(Kind kind, int64_t experts, int64_t count, bool normalised, uint64_t seed) {
  Random random(seed);
  const int64_t tokens = 9;
  const Held logits = floats(kind, {tokens, experts}, normals(random, tokens * experts, 2));
  const std::vector<double> all = logits->values();
  std::vector<int64_t> chosen;
  for (int64_t token = 0; token < tokens; ++token) {
    std::vector<int64_t> order = random.permutation(experts);
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
      return all[static_cast<size_t>(token * experts + a)] >
             all[static_cast<size_t>(token * experts + b)];
    });
    chosen.insert(chosen.end(), order.begin(), order.begin() + count);
  }
  const auto index = std::make_shared<Array>(Array::of_int32({tokens, count}, chosen));
  const auto out = std::make_shared<Array>(kind, std::vector<int64_t>{tokens, count});
  Case made = {std::to_string(experts) + (normalised ? " experts, normalised" : " experts"), kind};
  made.inputs = {logits, index};
  made.outputs = {out};
  made.run = [=](void* function, bool) {
    const LockstepCall call = {"mlp.weights", 1, nullptr};
    return reinterpret_cast<decltype(&lockstep_softmax_of)>(function)(
        &call, out->get(), logits->get(), index->get(), normalised ? 1 : 0);
  };
  for (int64_t token = 0; token < tokens; ++token) {
    const double* row = all.data() + token * experts;
    const int64_t* its = chosen.data() + token * count;
    const double highest = *std::max_element(row, row + experts);
    double sum = 0, of_chosen = 0;
    for (int64_t i = 0; i < experts; ++i) sum += std::exp(row[i] - highest);
    for (int64_t c = 0; c < count; ++c) of_chosen += std::exp(row[its[c]] - highest);
    for (int64_t c = 0; c < count; ++c) {
      const double value = std::exp(row[its[c]] - highest) / (normalised ? of_chosen : sum);
      made.exact.push_back(value);
      made.slack["fused"].push_back(
          (sum_slack(experts) + 2 * kFp32 * std::fabs(row[its[c]] - highest)) * value);
    }
  }
  return made;
}

}  // namespace

std::vector<Case> product_cases(Kind kind) {
  return {product_case(kind, {9, 896, 40, false, false}, 1),
          product_case(kind, {1, 896, 24, true, false}, 2),
          product_case(kind, {5, 4096, 12, false, false, 0.3}, 3),
          product_case(kind, {7, 100, 33, true, false}, 4),
          product_case(kind, {12, 192, 48, true, false, 0.2}, 5),
          product_case(kind, {4, 256, 16, false, true}, 6)};
}

std::vector<Case> expert_cases(Kind kind) {
  return {expert_case(kind, false, 1), expert_case(kind, true, 2)};
}

std::vector<Case> combine_cases(Kind kind) {
  return {combine_case(kind, 4, 1), combine_case(kind, 8, 2), combine_case(kind, 1, 3)};
}

std::vector<Case> top_k_cases(Kind kind) {
  return {top_k_case(kind, 16, 4, 1), top_k_case(kind, 128, 8, 2)};
}

std::vector<Case> router_cases(Kind kind) {
  return {router_case(kind, 16, 4, true, 1), router_case(kind, 128, 8, true, 2),
          router_case(kind, 60, 4, false, 3)};
}

}  // namespace lockstep::other_hand
