// Each op of the oracle against Hugging Face's float64 activations, and its magnitudes against
// plain loops.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>

#include "src/judge/contracts.h"
#include "tests/reference/passes.h"

namespace lockstep {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

std::vector<Row> rows_at(const std::vector<int32_t>& positions) {
  std::vector<Row> rows;
  for (int32_t position : positions) rows.push_back({0, position});
  return rows;
}

// ---- Goldens in, goldens out.

class AgainstGolden : public testing::TestWithParam<std::string> {
 protected:
  // The stored tensor in the shape that points have.
  std::optional<TensorView> find(int step, const Place& place) const {
    auto stored = golden_.find(step, *place.point, place.layer);
    const ModelConfig& c = checkpoint_.config();
    const std::string_view name = place.point->name;
    if (!stored) return stored;
    if (name == "attn.q" || name == "attn.out")
      return stored->reshaped({stored->rows(), c.heads, c.head_dim});
    if (name == "attn.k" || name == "attn.v")
      return stored->reshaped({stored->rows(), c.kv_heads, c.head_dim});
    return stored;
  }

  // K or V of the positions up to those of `step`.
  std::optional<Tensor> cached(int step, const Place& place) const {
    std::vector<double> values;
    for (int s = 0; s <= step; ++s) {
      const auto part = find(s, place);
      if (!part) return {};
      const std::vector<double> more = values_of(*part);
      values.insert(values.end(), more.begin(), more.end());
    }
    const ModelConfig& c = checkpoint_.config();
    const int64_t length = std::ssize(values) / (c.kv_heads * c.head_dim);
    return tensor_of<double>(values, {length, c.kv_heads, c.head_dim}, DType::f64);
  }

  // Whether everything that the op at `place` reads is stored, and its result then.
  std::optional<Exact> evaluate(int step, const Place& place) {
    const TensorView want = *find(step, place);
    std::vector<int32_t> positions;
    const auto prompt = static_cast<int32_t>(golden_.ids("prompt_ids").size());
    for (int32_t i = 0; i < want.rows(); ++i)
      positions.push_back(step == 0 ? i : prompt + step - 1);
    if (place.point->name == "logits") positions = {positions.back()};
    const std::vector<Row> rows = rows_at(positions);
    const std::vector<int32_t> tokens =
        step == 0 ? golden_.ids("prompt_ids") : std::vector{golden_.ids("greedy_ids")[0]};
    const std::vector<int64_t> lengths(rows.size(), prompt + step);
    OracleCall call{.place = place, .rows = rows, .lengths = lengths};
    if (place.point->op == OpKind::gather) call.tokens = tokens;
    std::optional<Tensor> k, v;
    for (const Place& input : graph_.inputs_of(place)) {
      if (input.point->is_cache()) {
        k = cached(step, {&point("attn.k_rope"), place.layer});
        v = cached(step, {&point("attn.v"), place.layer});
        if (!k || !v) return {};
        call.keys_values = {*k, *v};
        continue;
      }
      const auto tensor = find(step, input);
      if (!tensor) return {};
      const bool last = place.point->name == "logits";
      call.inputs.push_back(last ? tensor->slice(tensor->rows() - 1, 1) : *tensor);
    }
    return oracle_->evaluate(call);
  }

  Golden golden_{GetParam(), "float64/romeo"};
  Checkpoint checkpoint_ = Checkpoint::open(data_path(GetParam()));
  std::unique_ptr<Oracle> oracle_ = open_reference().oracle(checkpoint_, {.dtype = DType::bf16});
  // What is stored has no rotary tables: they are the reference's own.
  const Graph graph_ = [this] {
    return oracle_->graph().restricted([](const Place& place) { return !place.point->optional; });
  }();
};

TEST_P(AgainstGolden, EveryOpWhoseInputsAreStored) {
  std::map<std::string_view, int> compared;
  for (int step : {0, 1})
    for (const Place& place : graph_.places()) {
      if (!find(step, place)) continue;
      const auto exact = evaluate(step, place);
      if (!exact) continue;
      EXPECT_EQ(exact->shape.count(), find(step, place)->count());
      EXPECT_LE(worst_difference(exact->want, values_of(*find(step, place))), 1e-11)
          << "step " << step << " layer " << place.layer << " " << place.point->name;
      ++compared[place.point->name];
    }
  for (const Place& place : graph_.places()) {
    if (!place.point->is_cache() && place.point->op != OpKind::argmax) {
      EXPECT_GE(compared[place.point->name], 2) << place.point->name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, AgainstGolden, testing::Values("bard-qwen3", "bard-qwen2.5"),
                         [](const auto& info) {
                           return std::string(info.param == "bard-qwen3" ? "qwen3" : "qwen2");
                         });

// ---- Magnitudes against plain loops.

class Magnitudes : public testing::Test {
 protected:
  void open(const std::string& model, DType dtype = DType::bf16) {
    checkpoint_ = Checkpoint::open(data_path(model));
    oracle_ = open_reference().oracle(*checkpoint_, {.dtype = dtype});
    dtype_ = dtype;
  }
  const ModelConfig& config() const { return checkpoint_->config(); }

  Tensor random(const Shape& shape, DType dtype = DType::f32) {
    std::normal_distribution<double> normal;
    Tensor tensor(shape, dtype);
    for (int64_t i = 0; i < shape.count(); ++i) put(tensor, i, normal(generator_));
    return tensor;
  }
  static void put(const Tensor& tensor, int64_t i, double value) {
    if (tensor.view().dtype == DType::f32)
      tensor.as<float>()[i] = static_cast<float>(value);
    else
      tensor.as<BFloat16>()[i] = from_float<BFloat16>(static_cast<float>(value));
  }
  Exact evaluate(const Point& p, std::vector<TensorView> inputs,
                 const std::vector<int32_t>& positions, KeysValues keys_values = {}) {
    const std::vector<int64_t> lengths(positions.size(), 1 + std::ranges::max(positions));
    return evaluate(p, std::move(inputs), positions, lengths, keys_values);
  }
  Exact evaluate(const Point& p, std::vector<TensorView> inputs,
                 const std::vector<int32_t>& positions, const std::vector<int64_t>& lengths,
                 KeysValues keys_values = {}) {
    const std::vector<Row> rows = rows_at(positions);
    return oracle_->evaluate({.place = {&p, p.per_layer ? 1 : -1},
                              .dtype = dtype_,
                              .contract = contract_,
                              .inputs = std::move(inputs),
                              .rows = rows,
                              .lengths = lengths,
                              .keys_values = keys_values,
                              .for_budget = for_budget_});
  }

  RoundingContract contract_ = RoundingContract::fused;
  bool for_budget_ = true;
  DType dtype_ = DType::bf16;

  std::optional<Checkpoint> checkpoint_;
  std::unique_ptr<Oracle> oracle_;
  std::mt19937 generator_{7};
};

void expect_close(std::span<const double> got, std::span<const double> want) {
  EXPECT_LE(worst_difference(got, want), 1e-13);
}

TEST_F(Magnitudes, LinearWithBias) {
  open("tiny/qwen2-default");
  const Tensor x = random({5, 64}, DType::bf16);
  const Exact exact = evaluate(point("attn.k"), {x}, {0, 1, 2, 3, 4});
  const TensorView w = checkpoint_->tensor("model.layers.1.self_attn.k_proj.weight");
  const TensorView b = checkpoint_->tensor("model.layers.1.self_attn.k_proj.bias");
  std::vector<double> want, magnitude;
  double largest_bias = 0;
  for (int64_t t = 0; t < 5; ++t)
    for (int64_t o = 0; o < w.rows(); ++o) {
      double sum = value_at(b, o), s = std::fabs(sum);
      largest_bias = std::max(largest_bias, s);
      for (int64_t i = 0; i < 64; ++i) {
        const double product = value_at(x, t * 64 + i) * value_at(w, o * 64 + i);
        sum += product;
        s += std::fabs(product);
      }
      want.push_back(sum);
      magnitude.push_back(s);
    }
  EXPECT_GT(largest_bias, 0) << "this checkpoint cannot show a lost bias";
  expect_close(exact.want, want);
  expect_close(exact.magnitude, magnitude);
  EXPECT_EQ(exact.terms, 64);
  EXPECT_EQ(exact.shape, (Shape{5, config().kv_heads, config().head_dim}));
}

// A weight of many blocks, of which the last is shorter.
TEST_F(Magnitudes, LinearOverManyBlocks) {
  open("bard-qwen3");
  const Tensor x = random({2, 192});
  const Exact exact = evaluate(point("logits"), {x}, {3, 4});
  const TensorView w = checkpoint_->tensor("model.embed_tokens.weight");
  std::vector<double> want;
  for (int64_t t = 0; t < 2; ++t)
    for (int64_t o = 0; o < w.rows(); ++o) {
      double sum = 0;
      for (int64_t i = 0; i < 192; ++i) sum += value_at(x, t * 192 + i) * value_at(w, o * 192 + i);
      want.push_back(sum);
    }
  expect_close(exact.want, want);
}

// Those of many rows are made in fp32, rounded up; where that cannot say it, in fp64.
TEST_F(Magnitudes, OfManyRowsAreNoLessAndHardlyMore) {
  open("bard-qwen3");
  constexpr int64_t kRows = 24;
  const int64_t terms = config().intermediate;
  std::vector<int32_t> positions;
  for (int32_t i = 0; i < kRows; ++i) positions.push_back(i);
  const TensorView w = checkpoint_->tensor("model.layers.1.mlp.down_proj.weight");
  for (const double scale : {1.0, 0x1p-110, 0x1p110}) {
    const Tensor x = random({kRows, terms});
    for (int64_t i = 0; i < kRows * terms; ++i) put(x, i, value_at(x, i) * scale);
    const Exact exact = evaluate(point("mlp.down"), {x}, positions);
    std::vector<double> want;
    for (int64_t t = 0; t < kRows; ++t)
      for (int64_t o = 0; o < w.rows(); ++o) {
        double sum = 0, size = 0;
        for (int64_t i = 0; i < terms; ++i) {
          const double product = value_at(x, t * terms + i) * value_at(w, o * terms + i);
          sum += product;
          size += std::fabs(product);
        }
        want.push_back(sum);
        const double got = exact.magnitude[want.size() - 1];
        ASSERT_GE(got, size * (1 - 1e-14)) << t << " " << o;
        ASSERT_LE(got, size * (1 + 2e-5)) << t << " " << o;
      }
    EXPECT_LE(worst_difference(exact.want, want), 1e-12);
  }
}

// However many rows are asked for at once, each is what it is alone.
TEST_F(Magnitudes, ARowIsWhatItIsAlone) {
  open("bard-qwen3");
  constexpr int32_t kRows = 40;
  std::vector<int32_t> positions;
  for (int32_t i = 0; i < kRows; ++i) positions.push_back(i);
  const int64_t hidden = config().hidden, dim = config().head_dim;
  const Tensor x = random({kRows, hidden}), q = random({kRows, config().heads, dim}),
               k = random({kRows, config().kv_heads, dim}),
               v = random({kRows, config().kv_heads, dim});
  const Exact product = evaluate(point("mlp.up"), {x}, positions);
  const Exact attended = evaluate(point("attn.out"), {q}, positions, {k, v});
  const auto row_of = [](const Numbers& all, int64_t row) {
    const size_t size = all.size() / kRows;
    return std::span(all).subspan(static_cast<size_t>(row) * size, size);
  };
  for (int32_t i = 0; i < kRows; ++i) {
    const Exact one = evaluate(point("mlp.up"), {x.view().slice(i, 1)}, {i});
    EXPECT_LE(worst_difference(row_of(product.want, i), one.want), 1e-13);
    const Exact query = evaluate(point("attn.out"), {q.view().slice(i, 1)}, {i}, {k, v});
    for (const auto field : {&Exact::want, &Exact::magnitude, &Exact::spread,
                             &Exact::spread_squares, &Exact::weighted_squares, &Exact::score})
      EXPECT_LE(worst_difference(row_of(attended.*field, i), query.*field), 1e-12) << i;
  }
}

// Work that is large enough to be shared gives the same bits on any number of threads.
TEST_F(Magnitudes, ThreadsChangeNothing) {
  open("bard-qwen3");
  std::vector<int32_t> positions;
  for (int32_t i = 0; i < 160; ++i) positions.push_back(i);
  const Tensor x = random({160, 192}), q = random({160, config().heads, config().head_dim}),
               k = random({160, config().kv_heads, config().head_dim});
  std::vector<Numbers> logits, attention;
  for (int threads : {1, 2, 3, 4}) {
    oracle_ = open_reference().oracle(*checkpoint_, {.threads = threads});
    logits.push_back(evaluate(point("logits"), {x}, positions).want);
    attention.push_back(evaluate(point("attn.out"), {q}, positions, {k, k}).want);
  }
  EXPECT_EQ(logits[0].size(), 160u * 4096);
  for (size_t i : {1u, 2u, 3u}) {
    EXPECT_TRUE(std::ranges::equal(logits[i], logits[0]));
    EXPECT_TRUE(std::ranges::equal(attention[i], attention[0]));
  }
}

// Weights are cast to the run's dtype before anything else.
TEST_F(Magnitudes, WeightsAreThoseOfTheRun) {
  open("tiny/qwen3-default", DType::f16);
  const Tensor x = random({1, 64});
  const std::vector<Row> rows = rows_at({0});
  const Exact exact = oracle_->evaluate(
      {.place = {&point("mlp.up"), 0}, .dtype = DType::f16, .inputs = {x}, .rows = rows});
  const TensorView w = checkpoint_->tensor("model.layers.0.mlp.up_proj.weight");
  std::vector<double> want(static_cast<size_t>(w.rows()));
  for (int64_t o = 0; o < w.rows(); ++o)
    for (int64_t i = 0; i < 64; ++i)
      want[static_cast<size_t>(o)] +=
          value_at(x, i) * round_to(value_at(w, o * 64 + i), DType::f16);
  expect_close(exact.want, want);
}

TEST_F(Magnitudes, Norm) {
  open("tiny/qwen3-default");
  const Tensor x = random({2, config().heads, config().head_dim});
  const Exact exact = evaluate(point("attn.q_norm"), {x}, {0, 1});
  const TensorView w = checkpoint_->tensor("model.layers.1.self_attn.q_norm.weight");
  std::vector<double> want;
  const int64_t d = config().head_dim;
  for (int64_t head = 0; head < 2 * config().heads; ++head) {
    double sum = 0;
    for (int64_t i = 0; i < d; ++i) sum += std::pow(value_at(x, head * d + i), 2);
    for (int64_t i = 0; i < d; ++i)
      want.push_back(value_at(x, head * d + i) * value_at(w, i) /
                     std::sqrt(sum / static_cast<double>(d) + config().norm_eps));
  }
  expect_close(exact.want, want);
  EXPECT_EQ(exact.terms, d);
  EXPECT_TRUE(exact.magnitude.empty());
  EXPECT_EQ(exact.shape, x.view().shape);
}

TEST_F(Magnitudes, Rope) {
  open("tiny/qwen3-default");
  const int64_t kv = config().kv_heads, d = config().head_dim, half = d / 2;
  const Tensor x = random({3, kv, d});
  const std::vector<int32_t> positions = {0, 17, 90};
  const Exact exact = evaluate(point("attn.k_rope"), {x}, positions);
  std::vector<double> want, magnitude, angle, products, turned;
  for (int64_t t = 0; t < 3; ++t)
    for (int64_t h = 0; h < kv; ++h)
      for (int64_t j = 0; j < d; ++j) {
        const int64_t pair = j % half, at = (t * kv + h) * d;
        const double inv_freq =
            std::pow(10000.0, -2 * static_cast<double>(pair) / static_cast<double>(d));
        const double a = positions[static_cast<size_t>(t)] * inv_freq;
        const double x1 = value_at(x, at + pair), x2 = value_at(x, at + pair + half);
        const double mine = j < half ? x1 : x2, other = j < half ? -x2 : x1;
        want.push_back(mine * std::cos(a) + other * std::sin(a));
        magnitude.push_back(std::fabs(x1) + std::fabs(x2));
        angle.push_back(a);
        products.push_back(std::hypot(mine * std::cos(a), other * std::sin(a)));
        turned.push_back(std::fabs(other * std::cos(a) - mine * std::sin(a)));
      }
  expect_close(exact.want, want);
  expect_close(exact.x1c_x2s, products);
  expect_close(exact.turned, turned);
  expect_close(exact.magnitude, magnitude);
  expect_close(exact.angle, angle);
}

// The tables that an engine showed, in the place of the reference's own.
TEST_F(Magnitudes, RopeByTheTablesThatAreGiven) {
  open("tiny/qwen3-default");
  const int64_t half = config().head_dim / 2;
  const Tensor x = random({2, config().kv_heads, config().head_dim});
  const Tensor cos = random({2, half}), sin = random({2, half});
  const Exact exact = evaluate(point("attn.k_rope"), {x, cos, sin}, {0, 17});
  const Exact own = evaluate(point("attn.k_rope"), {x}, {0, 17});
  EXPECT_TRUE(std::ranges::equal(exact.angle, own.angle)) << "a kernel may make its own";
  EXPECT_NEAR(exact.want[0],
              value_at(x, 0) * value_at(cos, 0) - value_at(x, half) * value_at(sin, 0), 1e-13);
  EXPECT_THROW(evaluate(point("attn.k_rope"), {x, cos}, {0, 17}), Error);
  EXPECT_THROW(evaluate(point("attn.k_rope"), {x, random({2, half + 1}), sin}, {0, 17}), Error);
}

TEST_F(Magnitudes, AnglesAreThoseOfTheConfiguration) {
  open("bard-qwen3");  // theta 1e6
  const Exact cos = evaluate(point("rope.cos"), {}, {0, 900});
  const Exact sin = evaluate(point("rope.sin"), {}, {0, 900});
  const int64_t half = config().head_dim / 2;
  for (int64_t j = 0; j < half; ++j) {
    const double angle = 900 * std::pow(config().rope.theta, -2 * static_cast<double>(j) /
                                                                 (2.0 * static_cast<double>(half)));
    const auto at = static_cast<size_t>(half + j);
    EXPECT_NEAR(cos.want[at], std::cos(angle), 1e-12);
    EXPECT_NEAR(sin.want[at], std::sin(angle), 1e-12);
    EXPECT_NEAR(cos.angle[at], angle, 1e-9 * angle);
    EXPECT_NEAR(cos.turned[at], std::fabs(sin.want[at]), 1e-15);
    EXPECT_EQ(cos.want[static_cast<size_t>(j)], 1);
  }
}

// Each row by the tables of its request's length.
TEST_F(Magnitudes, RopeOfRequestsOfSeveralLengths) {
  open("tiny/qwen3-dynamic");
  const Tensor x = random({4, config().kv_heads, config().head_dim});
  const int64_t most = config().max_positions;
  const std::vector<int32_t> positions = {3, 9, 3, 2};
  const std::vector<int64_t> lengths = {4, 3 * most, 3 * most, 5 * most};
  const Exact all = evaluate(point("attn.k_rope"), {x}, positions, lengths);
  const auto size = static_cast<size_t>(x.view().row_size());
  std::vector<std::vector<double>> rows;
  for (size_t i = 0; i < 4; ++i) {
    const TensorView row = x.view().slice(static_cast<int64_t>(i), 1);
    const Exact one = evaluate(point("attn.k_rope"), {row}, {positions[i]}, {lengths[i]});
    EXPECT_TRUE(std::ranges::equal(one.want, std::span(all.want).subspan(i * size, size))) << i;
    rows.emplace_back(one.angle.begin(), one.angle.end());
  }
  EXPECT_NE(rows[0], rows[2]);  // the same position, another length
}

struct Loops {
  std::vector<double> want, magnitude, spread, spread_squares, score, terms, overlap;
};

// As Exact::overlap, of the values of the keys: [key][element].
double overlap_of(const std::vector<double>& p, const std::vector<std::vector<double>>& v) {
  const size_t dim = v.front().size();
  const auto product = [&](size_t j, size_t d, size_t e) {
    return p[j] * p[j] * v[j][d] * v[j][e];
  };
  const auto sum = [&](size_t d, size_t e) {
    double total = 0;
    for (size_t j = 0; j < p.size(); ++j) total += product(j, d, e);
    return total;
  };
  double overlap = 0;
  for (size_t d = 0; d < dim; ++d)
    for (size_t e = 0; e < dim; ++e) {
      const double squares = sum(d, d) * sum(e, e);
      if (d == e || squares == 0) continue;
      overlap += std::pow(sum(d, e), 2) / squares;
      for (size_t j = 0; j < p.size(); ++j)
        overlap -= 0.6 * std::pow(product(j, d, e), 2) / squares;
    }
  return overlap / static_cast<double>(dim * (dim - 1));
}

// Attention with grouped heads over the keys [position - window + 1, position], one value at a
// time.
Loops attention_loops(const TensorView& q, const KeysValues& kv, const std::vector<int>& positions,
                      int64_t window) {
  const int64_t heads = q.shape[1], dim = q.shape[2], kv_heads = kv.k.shape[1];
  Loops loops;
  for (int64_t t = 0; t < q.rows(); ++t) {
    const int64_t last = positions[static_cast<size_t>(t)];
    const int64_t first = window == 0 ? 0 : std::max<int64_t>(0, last - window + 1);
    loops.terms.push_back(static_cast<double>(last - first + 1));
    for (int64_t h = 0; h < heads; ++h) {
      const auto key = [&](const TensorView& from, int64_t j, int64_t i) {
        return value_at(from, (j * kv_heads + h / (heads / kv_heads)) * dim + i);
      };
      std::vector<double> p;
      double sum = 0, score = 0;
      for (int64_t j = first; j <= last; ++j) {
        double dot = 0, absolute = 0;
        for (int64_t i = 0; i < dim; ++i) {
          const double product = value_at(q, (t * heads + h) * dim + i) * key(kv.k, j, i);
          dot += product;
          absolute += std::fabs(product);
        }
        const double root = std::sqrt(static_cast<double>(dim));
        p.push_back(std::exp(dot / root));
        sum += p.back();
        score = std::max(score, absolute / root);
      }
      loops.score.push_back(score);
      std::vector<std::vector<double>> values(p.size());
      for (int64_t j = first; j <= last; ++j)
        for (int64_t i = 0; i < dim; ++i)
          values[static_cast<size_t>(j - first)].push_back(key(kv.v, j, i));
      loops.overlap.push_back(overlap_of(p, values));
      for (int64_t i = 0; i < dim; ++i) {
        double o = 0, magnitude = 0, spread = 0, spread_squares = 0;
        for (int64_t j = first; j <= last; ++j) {
          const double weight = p[static_cast<size_t>(j - first)] / sum;
          o += weight * key(kv.v, j, i);
          magnitude += weight * std::fabs(key(kv.v, j, i));
        }
        for (int64_t j = first; j <= last; ++j) {
          const double apart =
              p[static_cast<size_t>(j - first)] / sum * std::fabs(key(kv.v, j, i) - o);
          spread += apart;
          spread_squares += apart * apart;
        }
        loops.want.push_back(o);
        loops.magnitude.push_back(magnitude);
        loops.spread.push_back(spread);
        loops.spread_squares.push_back(spread_squares);
      }
    }
  }
  return loops;
}

class Attention : public Magnitudes, public testing::WithParamInterface<std::string> {};

TEST_P(Attention, GroupedAndWindowed) {
  open("tiny/" + GetParam());
  const int64_t dim = config().head_dim, kv = config().kv_heads;
  const std::vector<int32_t> positions = {0, 7, 8, 21};
  const Tensor q = random({4, config().heads, dim}), k = random({22, kv, dim}),
               v = random({22, kv, dim}, DType::bf16);
  const KeysValues keys_values{k, v};
  contract_ = RoundingContract::hf;  // which asks for the overlap too
  const Exact exact = evaluate(point("attn.out"), {q}, positions, keys_values);
  const Loops loops = attention_loops(q, keys_values, positions, config().window[1]);
  expect_close(exact.want, loops.want);
  expect_close(exact.magnitude, loops.magnitude);
  EXPECT_LE(worst_difference(exact.spread, loops.spread), 1e-12);
  EXPECT_LE(worst_difference(exact.spread_squares, loops.spread_squares), 1e-12);
  expect_close(exact.score, loops.score);
  EXPECT_LE(worst_difference(exact.overlap, loops.overlap), 1e-12);
  EXPECT_TRUE(std::ranges::equal(exact.row_terms, loops.terms));
  EXPECT_EQ(exact.shape, q.view().shape);
}

// What roundings on the way make of it too, and nothing that a budget alone needs.
TEST_P(Attention, IsTheSameWithoutItsBudget) {
  open("tiny/" + GetParam());
  const int64_t dim = config().head_dim, kv = config().kv_heads;
  const std::vector<int32_t> positions = {0, 7, 8, 21};
  const Tensor q = random({4, config().heads, dim}), k = random({22, kv, dim}),
               v = random({22, kv, dim}, DType::bf16);
  for (const RoundingContract contract : contracts_of(OpKind::attention, {})) {
    contract_ = contract, for_budget_ = true;
    const Exact with = evaluate(point("attn.out"), {q}, positions, {k, v});
    for_budget_ = false;
    const Exact without = evaluate(point("attn.out"), {q}, positions, {k, v});
    EXPECT_LE(worst_difference(without.want, with.want), 1e-13) << name_of(contract);
    EXPECT_EQ(without.shape, with.shape);
    EXPECT_FALSE(with.spread.empty());
    EXPECT_TRUE(without.spread.empty()) << name_of(contract);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Attention,
                         testing::Values("qwen2-mha", "qwen2-sliding", "qwen3-bias-mqa",
                                         "qwen3-default"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

TEST_F(Magnitudes, WhatAQueryDoesNotSeeCannotReachIt) {
  open("tiny/qwen3-default");
  const int64_t dim = config().head_dim, kv = config().kv_heads;
  const Tensor q = random({2, config().heads, dim}), k = random({9, kv, dim}),
               v = random({9, kv, dim});
  put(k, 5 * kv * dim, kNaN);
  put(v, 5 * kv * dim, INFINITY);
  const Exact exact = evaluate(point("attn.out"), {q}, {4, 5}, {k, v});
  for (size_t i = 0; i < exact.want.size() / 2; ++i) EXPECT_TRUE(std::isfinite(exact.want[i]));
  EXPECT_TRUE(std::isnan(exact.want[exact.want.size() / 2]));
}

TEST_F(Magnitudes, ExtremeGatesAndExactSums) {
  open("tiny/qwen3-default");
  const std::vector<float> gates = {0, 1, -1, 88, -88, -1000, 1000, INFINITY, NAN};
  const std::vector<float> ups = {3, 2, 2, 1, 1, 2, 2, 1, 1};
  const Tensor gate = tensor_of<float>(gates, {1, 9}, DType::f32);
  const Tensor up = tensor_of<float>(ups, {1, 9}, DType::f32);
  const Exact act = evaluate(point("mlp.act"), {gate, up}, {0});
  for (size_t i = 0; i < 7; ++i) {
    const double g = gates[i], want = g / (1 + std::exp(-g)) * static_cast<double>(ups[i]);
    EXPECT_NEAR(act.want[i], want, 1e-15 * std::fabs(want)) << g;
  }
  EXPECT_EQ(act.want[7], INFINITY);
  EXPECT_TRUE(std::isnan(act.want[8]));
  const Exact sum = evaluate(point("attn.residual"), {gate, up}, {0});
  EXPECT_EQ(sum.want[5], -998);
  EXPECT_EQ(sum.want[2], 1);
}

// ---- Bad input.

class BadCall : public Magnitudes {
 protected:
  void SetUp() override { open("tiny/qwen3-default"); }
  std::string error(const OracleCall& call) {
    return error_of([&] { oracle_->evaluate(call); });
  }
  void expect(const OracleCall& call, const std::string& part) {
    EXPECT_NE(error(call).find(part), std::string::npos) << error(call);
  }
};

TEST_F(BadCall, IsOneSentence) {
  const std::vector<Row> rows = rows_at({0, 1});
  const Tensor x = random({2, 64}), narrow = random({2, 63}), short_x = random({1, 64});
  const std::vector<int32_t> tokens = {5, 320};
  const std::vector<int64_t> lengths = {2, 2};
  const Place norm = {&point("attn.norm"), 0};
  expect({.place = {}, .rows = rows}, "a place of this model");
  expect({.place = {&point("attn.norm"), 3}, .inputs = {x}, .rows = rows}, "layer 3 of 3");
  expect({.place = {&point("final.norm"), 0}, .inputs = {x}, .rows = rows}, "layer 0");
  expect({.place = norm, .dtype = DType::f16, .inputs = {x}, .rows = rows}, "fp16");
  expect({.place = norm, .rows = rows}, "reads 1 tensors, found 0");
  expect({.place = norm, .inputs = {short_x}, .rows = rows}, "[1, 64]");
  expect({.place = norm, .inputs = {TensorView{}}, .rows = rows}, "2 rows");
  expect({.place = norm, .inputs = {narrow}, .rows = rows}, "[2, 63]");
  expect({.place = {&point("attn.q"), 0}, .inputs = {narrow}, .rows = rows}, "[2, 63]");
  const Place rope = {&point("attn.q_rope"), 0};
  expect({.place = rope, .inputs = {x}, .rows = rows}, "the length of the request");
  expect({.place = rope, .inputs = {x}, .rows = rows, .lengths = lengths}, "[2, 64]");
  expect({.place = {&point("mlp.act"), 0}, .inputs = {x, narrow}, .rows = rows}, "[2, 63]");
  expect({.place = {&point("embed")}, .rows = rows, .tokens = tokens}, "found 320");
  expect({.place = {&point("embed")}, .rows = rows}, "2 rows, found 0");
  expect({.place = {&point("token")}, .inputs = {x}, .rows = rows}, "token");
  expect({.place = {&point("attn.kv"), 0}, .inputs = {x, x}, .rows = rows}, "attn.kv");
}

TEST_F(BadCall, OfAttentionIsOneSentence) {
  const ModelConfig& c = config();
  const std::vector<Row> rows = rows_at({3, 4});
  const Tensor q = random({2, c.heads, c.head_dim}), k = random({4, c.kv_heads, c.head_dim}),
               longer = random({5, c.kv_heads, c.head_dim}), flat = random({2, 128});
  const Place out = {&point("attn.out"), 0};
  expect({.place = out, .inputs = {q}, .rows = rows}, "reads K and V");
  expect({.place = out, .inputs = {q}, .rows = rows, .keys_values = {k, longer}}, "reads K and V");
  expect({.place = out, .inputs = {q}, .rows = rows, .keys_values = {k, k}}, "found 4 keys");
  expect({.place = out, .inputs = {flat}, .rows = rows, .keys_values = {k, k}}, "[2, 4, 32]");
  expect({.place = out, .rows = rows, .keys_values = {k, k}}, "[2, 4, 32]");
}

}  // namespace
}  // namespace lockstep
