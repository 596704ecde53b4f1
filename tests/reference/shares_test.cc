// Attention in shares of the keys against plain loops, and merged again against the whole.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "src/judge/budget.h"
#include "src/judge/contracts.h"
#include "tests/reference/passes.h"

namespace lockstep {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// One query of a share, as loops have it: a value an element, but for the three last.
struct OfShare {
  std::vector<double> out, magnitude, spread, spread_squares, weighted_squares;
  double lse = -kInfinity, score = 0, terms = 0;
};

class Shares : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    checkpoint_ = Checkpoint::open(data_path("tiny/" + GetParam()));
    oracle_ = open_reference().oracle(*checkpoint_, {.dtype = DType::bf16});
    const ModelConfig& c = checkpoint_->config();
    q_ = random({4, c.heads, c.head_dim});
    k_ = random({22, c.kv_heads, c.head_dim}), v_ = random({22, c.kv_heads, c.head_dim});
    for (const int32_t position : positions_) rows_.push_back({0, position});
  }
  Tensor random(const Shape& shape) {
    std::normal_distribution<float> normal;
    Tensor tensor(shape, DType::f32);
    for (int64_t i = 0; i < shape.count(); ++i) tensor.as<float>()[i] = normal(generator_);
    return tensor;
  }
  Exact evaluate(const Point& p, RoundingContract contract = RoundingContract::fused) const {
    return oracle_->evaluate({.place = {&p, 1},
                              .dtype = DType::bf16,
                              .contract = contract,
                              .inputs = {q_},
                              .rows = rows_,
                              .keys_values = {k_, v_},
                              .shares = begins_});
  }
  // The keys of a share that the query of row t sees.
  std::pair<int64_t, int64_t> keys_of(size_t t, size_t share) const {
    const int64_t position = positions_[t], window = checkpoint_->config().window[1];
    const int64_t first = window > 0 ? std::max<int64_t>(0, position - window + 1) : 0;
    const int64_t begin = std::max(begins_[share], first);
    return {begin, std::max(begin, std::min<int64_t>(begins_[share + 1], position + 1))};
  }
  // The attention of row t over some keys, as if there were no others.
  Exact over(size_t t, std::pair<int64_t, int64_t> keys, RoundingContract contract) const {
    const auto [begin, end] = keys;
    const std::vector<Row> rows = {{0, static_cast<int32_t>(end - begin - 1)}};
    const auto part = [&](const Tensor& x) { return x.view().slice(begin, end - begin); };
    return oracle_->evaluate({.place = {&point("attn.out"), 1},
                              .dtype = DType::bf16,
                              .contract = contract,
                              .inputs = {q_.view().slice(static_cast<int64_t>(t), 1)},
                              .rows = rows,
                              .keys_values = {part(k_), part(v_)}});
  }
  Exact merged(const Tensor& partial, const Tensor& lse) const {
    return oracle_->evaluate({.place = {&point("attn.out"), 1},
                              .dtype = DType::bf16,
                              .inputs = {partial, lse},
                              .rows = rows_});
  }

  // The keys [first, end) of what head h of row t sees.
  OfShare loops(int64_t t, int64_t h, int64_t first, int64_t end) const {
    const ModelConfig& c = checkpoint_->config();
    const int64_t dim = c.head_dim, position = positions_[static_cast<size_t>(t)];
    const int64_t window = c.window[1], kv = h / (c.heads / c.kv_heads);
    OfShare made;
    std::vector<std::pair<int64_t, double>> scores;
    for (int64_t j = first; j < end; ++j) {
      if (j > position || (window > 0 && j <= position - window)) continue;
      double dot = 0, size = 0;
      for (int64_t d = 0; d < dim; ++d) {
        const double product = value_at(q_, (t * c.heads + h) * dim + d) *
                               value_at(k_, (j * c.kv_heads + kv) * dim + d);
        dot += product, size += std::fabs(product);
      }
      scores.emplace_back(j, dot / std::sqrt(static_cast<double>(dim)));
      made.score = std::max(made.score, size / std::sqrt(static_cast<double>(dim)));
    }
    made.terms = static_cast<double>(scores.size());
    double sum = 0;
    for (const auto& [j, score] : scores) sum += std::exp(score);
    if (!scores.empty()) made.lse = std::log(sum);
    for (int64_t d = 0; d < dim; ++d) {
      const auto total = [&](auto of) {
        double all = 0;
        for (const auto& [j, score] : scores)
          all += of(std::exp(score) / sum, value_at(v_, (j * c.kv_heads + kv) * dim + d));
        return all;
      };
      const double o = total([](double p, double v) { return p * v; });
      made.out.push_back(o);
      made.magnitude.push_back(total([](double p, double v) { return p * std::fabs(v); }));
      made.spread.push_back(total([&](double p, double v) { return p * std::fabs(v - o); }));
      made.spread_squares.push_back(
          total([&](double p, double v) { return p * p * (v - o) * (v - o); }));
      made.weighted_squares.push_back(total([](double p, double v) { return p * p * v * v; }));
    }
    return made;
  }

  const std::vector<int32_t> positions_ = {0, 7, 8, 21};
  // One of them holds no position, and each of the others is unseen by some query.
  const std::vector<int64_t> begins_ = {0, 8, 8, 16, 22};
  std::optional<Checkpoint> checkpoint_;
  std::unique_ptr<Oracle> oracle_;
  Tensor q_, k_, v_;
  std::vector<Row> rows_;
  std::mt19937 generator_{5};
};

Tensor f64_of(const Exact& exact) {
  Tensor tensor(exact.shape, DType::f64);
  std::ranges::copy(exact.want, tensor.as<double>());
  return tensor;
}

TEST_P(Shares, AreEachWhatLoopsMakeOfTheirKeys) {
  const Exact partial = evaluate(point("attn.partial")), lse = evaluate(point("attn.lse"));
  const ModelConfig& c = checkpoint_->config();
  ASSERT_EQ(partial.shape, (Shape{4, 4, c.heads, c.head_dim}));
  ASSERT_EQ(lse.shape, (Shape{4, 4, c.heads}));
  size_t at = 0, empty = 0;
  for (int64_t t = 0; t < 4; ++t)
    for (size_t s = 0; s < 4; ++s)
      for (int64_t h = 0; h < c.heads; ++h, ++at) {
        SCOPED_TRACE(testing::Message() << "row " << t << ", share " << s << ", head " << h);
        const OfShare want = loops(t, h, begins_[s], begins_[s + 1]);
        EXPECT_EQ(partial.row_terms[static_cast<size_t>(t) * 4 + s], want.terms);
        EXPECT_EQ(lse.row_terms[static_cast<size_t>(t) * 4 + s], want.terms);
        EXPECT_NEAR(partial.score[at], want.score, 1e-12);
        EXPECT_NEAR(lse.score[at], want.score, 1e-12);
        empty += want.terms == 0;
        if (want.terms == 0)
          EXPECT_EQ(lse.want[at], -kInfinity);
        else
          EXPECT_NEAR(lse.want[at], want.lse, 1e-12);
        const std::pair<const Numbers*, const std::vector<double>*> fields[] = {
            {&partial.want, &want.out},
            {&partial.magnitude, &want.magnitude},
            {&partial.spread, &want.spread},
            {&partial.spread_squares, &want.spread_squares},
            {&partial.weighted_squares, &want.weighted_squares}};
        for (const auto& [got, of] : fields)
          for (size_t d = 0; d < of->size(); ++d)
            EXPECT_NEAR((*got)[at * of->size() + d], (*of)[d], 1e-12);
      }
  EXPECT_GT(empty, 4U * static_cast<size_t>(c.heads));  // more than those of the empty share
}

// What a contract rounds on the way it rounds within each share.
TEST_P(Shares, RoundAsAnAttentionOverTheirKeysAlone) {
  constexpr const Numbers Exact::*kFields[] = {&Exact::want,
                                               &Exact::magnitude,
                                               &Exact::spread,
                                               &Exact::spread_squares,
                                               &Exact::weighted_squares,
                                               &Exact::score,
                                               &Exact::overlap,
                                               &Exact::ties,
                                               &Exact::tie_squares};
  for (const RoundingContract contract : contracts_of(OpKind::attention, {DType::bf16})) {
    const Exact partial = evaluate(point("attn.partial"), contract);
    EXPECT_EQ(partial.contract, contract);
    for (size_t t = 0; t < 4; ++t)
      for (size_t s = 0; s < 4; ++s) {
        const auto keys = keys_of(t, s);
        if (keys.first == keys.second) continue;
        SCOPED_TRACE(testing::Message() << name_of(contract) << ", row " << t << ", share " << s);
        const Exact alone = over(t, keys, contract);
        for (const auto field : kFields) {
          const Numbers &all = partial.*field, &want = alone.*field;
          ASSERT_EQ(all.size(), want.size() * 16);
          for (size_t i = 0; i < want.size(); ++i)
            EXPECT_NEAR(all[(t * 4 + s) * want.size() + i], want[i], 1e-12);
        }
      }
  }
}

TEST_P(Shares, HaveLogarithmsOfTheScoresOfTheirContract) {
  const ModelConfig& c = checkpoint_->config();
  const int64_t dim = c.head_dim, heads = c.heads;
  const double scale = 1 / std::sqrt(static_cast<double>(dim));
  const auto rounded = [](double x) { return round_to(x, DType::bf16); };
  for (const RoundingContract contract : contracts_of(OpKind::log_sum_exp, {DType::bf16})) {
    const Exact lse = evaluate(point("attn.lse"), contract);
    EXPECT_EQ(lse.contract, contract);
    const bool of_query = contract == RoundingContract::query_rounded ||
                          contract == RoundingContract::eager_query_rounded;
    const bool of_scores = contract != RoundingContract::fused && !rounds_weights(contract);
    EXPECT_EQ(lse.ties.empty(), !of_scores);
    EXPECT_EQ(lse.weighted_squares.empty(), !rounds_weights(contract));
    for (size_t i = 0; i < lse.want.size(); ++i) {
      const size_t t = i / static_cast<size_t>(heads) / 4, s = i / static_cast<size_t>(heads) % 4;
      const int64_t h = static_cast<int64_t>(i) % heads, kv = h / (heads / c.kv_heads);
      const auto [begin, end] = keys_of(t, s);
      double sum = 0, squares = 0;
      for (int64_t j = begin; j < end; ++j) {
        double dot = 0;
        for (int64_t d = 0; d < dim; ++d) {
          const double x = value_at(q_, (static_cast<int64_t>(t) * heads + h) * dim + d);
          dot +=
              (of_query ? rounded(x * scale) : x) * value_at(k_, (j * c.kv_heads + kv) * dim + d);
        }
        const double by_scale = of_query ? 1 : scale;
        const double score = of_scores ? rounded(rounded(dot) * by_scale) : dot * by_scale;
        sum += std::exp(score), squares += std::exp(2 * score);
      }
      SCOPED_TRACE(testing::Message() << name_of(contract) << ", row " << t << ", share " << s);
      if (begin == end) {
        EXPECT_EQ(lse.want[i], -kInfinity);
        continue;
      }
      EXPECT_NEAR(lse.want[i], std::log(sum), 1e-12);
      if (rounds_weights(contract)) {
        EXPECT_NEAR(lse.weighted_squares[i], squares / sum / sum, 1e-12);
      }
    }
  }
}

// A product of 1 + 2^-8 lies between two numbers of bf16, and right kernels have either.
TEST_P(Shares, HaveLogarithmsOfEitherScoreOnABorder) {
  const auto lse_of = [&](float product) {
    std::fill_n(q_.as<float>(), q_.view().count(), 0.0F);
    std::fill_n(k_.as<float>(), k_.view().count(), 0.0F);
    for (int64_t i = 0; i < q_.view().count(); i += checkpoint_->config().head_dim)
      q_.as<float>()[i] = 1;
    k_.as<float>()[0] = product;
    return evaluate(point("attn.lse"), RoundingContract::eager);
  };
  const Exact below = lse_of(1 + 0x1p-8F), above = lse_of(1 + 0x1p-8F + 0x1p-20F);
  EXPECT_GT(above.want[0] - below.want[0], 1e-4);
  EXPECT_GE(below.ties[0], above.want[0] - below.want[0]);
  EXPECT_GT(below.tie_squares[0], 0);
  const Exact far = lse_of(1 + 0x1p-9F);
  EXPECT_EQ(far.want[0], below.want[0]);
  EXPECT_EQ(far.ties[0], 0);
}

TEST_P(Shares, ComeToTheWholeWhereTheyAreMerged) {
  const Tensor partial = f64_of(evaluate(point("attn.partial")));
  const Tensor lse = f64_of(evaluate(point("attn.lse")));
  const Exact whole = oracle_->evaluate({.place = {&point("attn.out"), 1},
                                         .dtype = DType::bf16,
                                         .inputs = {q_},
                                         .rows = rows_,
                                         .keys_values = {k_, v_}});
  const Exact of_shares = merged(partial, lse);
  EXPECT_EQ(of_shares.shape, whole.shape);
  EXPECT_LE(worst_difference(of_shares.want, whole.want), 1e-12);
  for (size_t i = 0; i < whole.want.size(); ++i) {
    // The mean of sizes over shares is that over keys at most, as each share is a mean itself.
    EXPECT_LE(of_shares.magnitude[i], whole.magnitude[i] + 1e-12);
    EXPECT_GE(of_shares.magnitude[i], std::fabs(of_shares.want[i]) - 1e-12);
  }
}

// A share without a key weighs nothing whatever it holds; where no share has one the result is 0.
TEST_P(Shares, WithoutAKeyWeighNothing) {
  const Tensor partial = f64_of(evaluate(point("attn.partial")));
  const Tensor lse = f64_of(evaluate(point("attn.lse")));
  const Exact right = merged(partial, lse);
  const int64_t heads = lse.view().shape[2], dim = partial.view().shape[3];
  for (int64_t i = 0; i < heads; ++i) {
    ASSERT_EQ(lse.as<double>()[heads + i], -kInfinity);
    for (int64_t d = 0; d < dim; ++d) partial.as<double>()[(heads + i) * dim + d] = kNaN;
  }
  EXPECT_TRUE(std::ranges::equal(merged(partial, lse).want, right.want));
  std::fill_n(lse.as<double>(), lse.view().row_size(), -kInfinity);
  const Exact nothing = merged(partial, lse);
  for (int64_t i = 0; i < heads * dim; ++i) EXPECT_EQ(nothing.want[static_cast<size_t>(i)], 0);
}

// Weights of fp16 under its least normal number, 2^-14, are rounded to multiples of 2^-24: beside
// one key that has nearly all the weight, and adds nothing, such errors are all that there is.
TEST_P(Shares, OfSmallWeightsOfFp16HaveTheirRoundings) {
  const ModelConfig& c = checkpoint_->config();
  const int64_t dim = c.head_dim, of_key = c.kv_heads * dim;
  const auto root = std::sqrt(static_cast<float>(dim));
  for (int64_t i = 0; i < q_.view().count(); ++i) q_.as<float>()[i] = 1;
  // Scores of 12 and, of the others, about 0.
  for (int64_t i = 0; i < k_.view().count(); ++i) k_.as<float>()[i] *= 0.1F;
  for (int64_t i = 0; i < of_key; ++i) k_.as<float>()[i] = 12 / root, v_.as<float>()[i] = 0;
  const auto oracle = open_reference().oracle(*checkpoint_, {.dtype = DType::f16});
  const Exact exact = oracle->evaluate({.place = {&point("attn.partial"), 0},
                                        .dtype = DType::f16,
                                        .contract = RoundingContract::hf,
                                        .inputs = {q_},
                                        .rows = rows_,
                                        .keys_values = {k_, v_},
                                        .shares = std::vector<int64_t>{0, 22}});
  const Budget budget = budget_of(OpKind::partial_attention, exact, DType::f32, {}, DType::f16);
  double most_off = 0;  // as a share of a limit
  for (size_t i = 0; i < exact.want.size(); ++i) {
    const auto place = static_cast<int64_t>(i) / dim, d = static_cast<int64_t>(i) % dim;
    const int64_t kv = place % c.heads / (c.heads / c.kv_heads);
    double sum = 0, out = 0;
    for (int64_t key = 0; key <= positions_[static_cast<size_t>(place / c.heads)]; ++key) {
      double score = 0;
      for (int64_t j = 0; j < dim; ++j) score += value_at(k_, key * of_key + kv * dim + j);
      const double power = std::exp(score / root - 12);
      sum += power;
      out += round_to(power, DType::f16) * value_at(v_, key * of_key + kv * dim + d);
    }
    const double off = std::fabs(out / sum - exact.want[i]) / budget.limit[i];
    EXPECT_LE(off, 1) << i;
    most_off = std::max(most_off, off);
  }
  EXPECT_GT(most_off, 0.05) << "else nothing of it shows";
}

// The most that all weights of a merge may be off together, as a share of its result.
constexpr double kMostInCommon = 0x1p-12;

// Logarithms so large that fp32 tells nothing of the weights: any of the shares may be the result,
// and nothing beyond them, but for what the weights may be off together.
// Weights that are all 1/n are rounded by one share of themselves, and the mean is off by it.
TEST_P(Shares, OfEqualWeightsHaveOneRoundingOfAll) {
  const ModelConfig& c = checkpoint_->config();
  constexpr int32_t kPositions = 200;
  std::fill_n(q_.as<float>(), q_.view().count(), 0.0F);
  k_ = random({kPositions, c.kv_heads, c.head_dim});
  v_ = random({kPositions, c.kv_heads, c.head_dim});
  for (int64_t i = 0; i < v_.view().count(); ++i) v_.as<float>()[i] = 1 + v_.as<float>()[i] / 8;
  double furthest = 0;
  for (int32_t position = 30; position < kPositions; ++position) {
    const std::vector<Row> rows = {{0, position}};
    const auto seen = [&](const Tensor& x) { return x.view().slice(0, position + 1); };
    const Exact exact = oracle_->evaluate({.place = {&point("attn.out"), 1},
                                           .dtype = DType::bf16,
                                           .contract = RoundingContract::hf,
                                           .inputs = {q_.view().slice(0, 1)},
                                           .rows = rows,
                                           .keys_values = {seen(k_), seen(v_)}});
    const Budget budget = budget_of(OpKind::attention, exact, DType::bf16);
    const double weight = 1 / exact.row_terms[0];
    double squares = 0;
    for (size_t i = 0; i < exact.want.size(); ++i) {
      const double mean = exact.want[i] * round_to(weight, DType::bf16) / weight;
      const double error = std::fabs(round_to(mean, DType::bf16) - exact.want[i]);
      EXPECT_LE(error, budget.limit[i]) << position;
      squares += error * error / budget.variance[i];
      furthest = std::max(furthest, error / std::fabs(exact.want[i]));
      EXPECT_LT(budget.limit[i], 0x1p-4 * std::fabs(exact.want[i])) << "or anything is right";
    }
    EXPECT_LT(squares, static_cast<double>(exact.want.size())) << position;
  }
  EXPECT_GT(furthest, 0x1p-9) << "or nothing was tried";
}

TEST_P(Shares, MergedByUnknownWeightsComeToWhatLiesAmongThem) {
  const Tensor partial = f64_of(evaluate(point("attn.partial")));
  const Tensor lse = f64_of(evaluate(point("attn.lse")));
  for (int64_t i = 0; i < lse.view().count(); ++i) lse.as<double>()[i] += 1e7;
  const Exact exact = merged(partial, lse);
  const Budget budget = budget_of(OpKind::attention, exact, DType::f32);
  const int64_t shares = lse.view().shape[1], heads = lse.view().shape[2];
  const int64_t dim = partial.view().shape[3];
  for (size_t i = 0; i < exact.want.size(); ++i) {
    const int64_t place = static_cast<int64_t>(i) / dim, row = place / heads;
    double furthest = 0;
    for (int64_t s = 0; s < shares; ++s) {
      const int64_t of_share = (row * shares + s) * heads + place % heads;
      if (std::isinf(lse.as<double>()[of_share])) continue;
      const double value = partial.as<double>()[of_share * dim + static_cast<int64_t>(i) % dim];
      furthest = std::max(furthest, std::fabs(value - exact.want[i]));
    }
    EXPECT_LE(budget.limit[i], furthest * 1.001 + 1e-5 + kMostInCommon * std::fabs(exact.want[i]));
    EXPECT_LE(budget.variance[i], furthest * furthest * 1.001 + exact.want[i] * exact.want[i]);
  }
}

// Merged by weights e^(L_s - L), L the logarithm of their sum in fp32, as FlashAttention merges.
TEST_P(Shares, MayBeMergedByTheRoundedLogarithmOfTheSumOfTheirWeights) {
  const Tensor partial = f64_of(evaluate(point("attn.partial")));
  const Tensor lse = f64_of(evaluate(point("attn.lse")));
  for (int64_t i = 0; i < lse.view().count(); ++i)
    lse.as<double>()[i] = static_cast<float>(lse.as<double>()[i] + 2000);
  const Exact exact = merged(partial, lse);
  const Budget budget = budget_of(OpKind::attention, exact, DType::f32);
  const int64_t shares = lse.view().shape[1], heads = lse.view().shape[2];
  const int64_t dim = partial.view().shape[3];
  double most_off = 0;  // by the size of the result
  for (size_t i = 0; i < exact.want.size(); ++i) {
    const int64_t place = static_cast<int64_t>(i) / dim, first = place / heads * shares * heads;
    const auto at = [&](int64_t s) { return first + s * heads + place % heads; };
    double sum = 0, out = 0;
    for (int64_t s = 0; s < shares; ++s) sum += std::exp(lse.as<double>()[at(s)] - 2000);
    const auto of_sum = static_cast<float>(2000 + std::log(sum));
    for (int64_t s = 0; s < shares; ++s)
      out += std::exp(static_cast<float>(lse.as<double>()[at(s)]) - of_sum) *
             partial.as<double>()[at(s) * dim + static_cast<int64_t>(i) % dim];
    EXPECT_LE(std::fabs(out - exact.want[i]), budget.limit[i]);
    most_off = std::max(most_off, std::fabs(out / exact.want[i] - 1));
  }
  EXPECT_GT(most_off, 1e-5) << "which is 84 roundings of fp32";
}

TEST_P(Shares, KeepWhatIsNoNumberToThemselves) {
  k_.as<float>()[0] = std::numeric_limits<float>::quiet_NaN();  // of the first key
  const Exact partial = evaluate(point("attn.partial")), lse = evaluate(point("attn.lse"));
  const size_t heads = static_cast<size_t>(checkpoint_->config().heads);
  for (size_t i = 0; i < lse.want.size(); ++i)
    if (const size_t share = i / heads % 4; share > 0) {
      EXPECT_FALSE(std::isnan(lse.want[i]));
      EXPECT_FALSE(std::isnan(partial.want[i * partial.want.size() / lse.want.size()]));
    }
  EXPECT_TRUE(std::isnan(lse.want[0]));
  EXPECT_TRUE(std::isnan(partial.want[0]));
}

TEST_P(Shares, WantToBeToldWhereTheyBegin) {
  const std::vector<Row> rows = {{0, 7}};
  const OracleCall call{.place = {&point("attn.lse"), 1},
                        .dtype = DType::bf16,
                        .inputs = {q_.view().slice(1, 1)},
                        .rows = rows,
                        .keys_values = {k_, v_}};
  EXPECT_NE(error_of([&] { oracle_->evaluate(call); }).find("where each of them begins"),
            std::string::npos);
  const Tensor narrow = random({4, 4, 1}), partial = random({4, 4, 2, 8});
  EXPECT_NE(error_of([&] { merged(partial, narrow); }).find("[4, 4, 1]"), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(Models, Shares,
                         testing::Values("qwen2-mha", "qwen2-sliding", "qwen3-bias-mqa",
                                         "qwen3-default"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace lockstep
