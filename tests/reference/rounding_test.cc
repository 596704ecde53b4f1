// The reference is judged as hard as an engine: every node of the models in fp32, bf16 and fp16 is
// one rounding away from what the oracle computes from the node's own inputs.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "src/judge/budget.h"
#include "src/weights/rope_tables.h"
#include "tests/reference/passes.h"

namespace lockstep {
namespace {

struct Case {
  std::string model;
  DType dtype;
};

// K and V of a record of attn.kv, each [length, kv heads, head_dim].
std::pair<Tensor, Tensor> split(const RecordedTensor& cached) {
  const TensorView& all = cached.data;
  const Shape half = {all.shape[0], all.shape[2], all.shape[3]};
  std::vector<double> values = values_of(all), k, v;
  const int64_t width = all.row_size() / 2;
  for (int64_t i = 0; i < all.rows(); ++i)
    for (std::vector<double>* side : {&k, &v}) {
      const auto first = values.begin() + (2 * i + (side == &v)) * width;
      side->insert(side->end(), first, first + width);
    }
  return {tensor_of<double>(k, half, DType::f64), tensor_of<double>(v, half, DType::f64)};
}

// What one rounding and an accumulation in fp32 allow element i (lambda = 8, as in src/judge).
double budget(const Point& p, const Exact& exact, size_t i, DType dtype) {
  constexpr double kUnit = 0x1p-24;
  const double rounding = ulp(exact.want[i], dtype) / 2, size = std::fabs(exact.want[i]);
  const auto row = static_cast<int64_t>(i) / (exact.shape.count() / exact.shape[0]);
  const auto n = static_cast<double>(exact.terms);
  switch (p.op) {
    case OpKind::angles:
      return rounding + (2 * exact.angle[i] * exact.turned[i] + 4 * size) * kUnit;
    case OpKind::norm:
      return rounding + (4 * std::sqrt(n) + 8) * kUnit * size;
    case OpKind::linear:
    case OpKind::expert_linear:
    case OpKind::weighted_sum:
      return rounding + 8 * std::sqrt(n) * kUnit * exact.magnitude[i];
    case OpKind::rope:
      return rounding + 4 * kUnit * exact.magnitude[i];
    case OpKind::silu_mul:
      return rounding + 16 * kUnit * size;
    case OpKind::softmax:
      return rounding + (16 + 2 * exact.magnitude[i] + 8 * std::sqrt(n)) * kUnit * size;
    case OpKind::attention: {
      const auto dim = exact.shape[2];
      const double ds =
          std::sqrt(static_cast<double>(dim)) * kUnit * exact.score[i / static_cast<size_t>(dim)] +
          4 * kUnit;
      return rounding + 16 * ds * exact.spread[i] +
             8 * std::sqrt(exact.row_terms[static_cast<size_t>(row)]) * kUnit * exact.magnitude[i];
    }
    default:
      return 0;  // exact: bit for bit once the result is rounded
  }
}

class RoundsOnce : public testing::TestWithParam<Case> {
 protected:
  Exact evaluate(const Pass& pass, const RecordedTensor& tensor) {
    const Place place{tensor.point, tensor.layer};
    OracleCall call{.place = place, .dtype = GetParam().dtype, .rows = tensor.rows};
    std::vector<int32_t> tokens;
    std::pair<Tensor, Tensor> keys_values;
    for (const PassRow& row : pass.info.rows) tokens.push_back(row.token);
    if (place.point->op == OpKind::gather) call.tokens = tokens;
    for (const Place& input : oracle_->graph().inputs_of(place)) {
      const RecordedTensor& producer = *pass.find(*input.point, input.layer);
      if (input.point->is_cache()) {
        keys_values = split(producer);
        call.keys_values = {keys_values.first, keys_values.second};
      } else {
        const int64_t rows = std::ssize(tensor.rows), all = producer.data.view().rows();
        call.inputs.push_back(producer.data.view().slice(all - rows, rows));
      }
    }
    const std::vector<int64_t> lengths(tensor.rows.size(), tensor.rows.back().position + 1);
    call.lengths = lengths;
    return oracle_->evaluate(call);
  }

  void judge(const Pass& pass, const RecordedTensor& tensor) {
    const Point& p = *tensor.point;
    if (p.is_cache() || row_of(p.op).makes_indices) return;
    const bool angles = p.op == OpKind::angles;  // in fp32 whatever the run's dtype
    ASSERT_EQ(tensor.dtype, angles ? DType::f32 : GetParam().dtype);
    const Exact exact = evaluate(pass, tensor);
    ASSERT_EQ(exact.shape, tensor.shape);
    const std::vector<double> got = values_of(tensor.data);
    for (size_t i = 0; i < got.size(); ++i) {
      const double limit = budget(p, exact, i, tensor.dtype);
      const double want = limit > 0 ? exact.want[i] : round_to(exact.want[i], tensor.dtype);
      ASSERT_LE(std::fabs(got[i] - want), limit)
          << p.name << " layer " << tensor.layer << " element " << i << " want " << want;
      misrounded_ += !angles && got[i] != round_to(exact.want[i], tensor.dtype);
    }
    elements_ += std::ssize(got);
  }

  Checkpoint checkpoint_ = Checkpoint::open(data_path(GetParam().model));
  ReferenceOptions options_{.dtype = GetParam().dtype};
  std::unique_ptr<Oracle> oracle_ = open_reference().oracle(checkpoint_, options_);
  int64_t misrounded_ = 0, elements_ = 0;
};

TEST_P(RoundsOnce, EveryNodeOfPrefillAndDecode) {
  const auto model = open_reference().model(checkpoint_, options_, GetParam().dtype);
  const std::vector<int32_t> tokens = some_tokens(40, checkpoint_.config().vocab);
  const std::vector<Pass> passes = run_passes(
      *model,
      prefill_and_decode({tokens.begin(), tokens.end() - 3}, {tokens.end() - 3, tokens.end()}));
  for (const Pass& pass : passes)
    for (const RecordedTensor& tensor : pass.tensors) judge(pass, tensor);
  ASSERT_GT(elements_, 10000);
  // Twice rounded, a tenth and more of the elements would be another neighbour.
  if (GetParam().dtype != DType::f32) {
    EXPECT_LE(static_cast<double>(misrounded_) / static_cast<double>(elements_), 0.004);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models, RoundsOnce,
    testing::Values(Case{"bard-qwen3", DType::bf16}, Case{"bard-qwen3", DType::f16},
                    Case{"bard-qwen3", DType::f32}, Case{"bard-qwen2.5", DType::bf16},
                    Case{"bard-qwen2.5", DType::f16}, Case{"bard-qwen2.5", DType::f32},
                    Case{"tiny/qwen2-sliding", DType::bf16}, Case{"tiny/qwen3-moe", DType::bf16},
                    Case{"tiny/qwen3-moe", DType::f16}, Case{"tiny/qwen3-moe", DType::f32}),
    [](const testing::TestParamInfo<Case>& info) {
      std::string name = info.param.model + "_" + std::string(name_of(info.param.dtype));
      std::ranges::replace_if(
          name, [](char c) { return !std::isalnum(c); }, '_');
      return name;
    });

// A table as the engine makes it in fp32, of published bases and sizes of heads, at positions far
// into a context: what its frequencies are off by, all positions share.
TEST(Angles, OfFp32AreWithinTheirBudgetAtAllPositions) {
  for (const double theta : {1e4, 5e5, 1e6, 5e6, 1e7})
    for (const int64_t dim : {32, 64, 128, 256}) {
      ModelConfig config;
      config.head_dim = dim;
      config.rope.theta = theta;
      const RopeFrequencies frequencies = rope_frequencies(config, 1);
      const auto pairs = static_cast<size_t>(dim / 2);
      std::vector<double> unit(pairs);  // sum of eta^2 / V
      int64_t rows = 0;
      for (int64_t position = 1; position < 32768; position += 41, ++rows) {
        std::vector<float> cosines(pairs), sines(pairs);
        frequencies.put_row(position, cosines, sines);
        std::vector<double> want(pairs), angle(pairs), turned(pairs);
        for (size_t j = 0; j < pairs; ++j) {
          const double frequency =
              std::pow(theta, -2 * static_cast<double>(j) / static_cast<double>(dim));
          angle[j] = static_cast<double>(position) * frequency;
          want[j] = std::cos(angle[j]), turned[j] = std::fabs(std::sin(angle[j]));
        }
        const Exact exact{.shape = {1, dim / 2}, .want = want, .angle = angle, .turned = turned};
        const Budget b = budget_of(OpKind::angles, exact, DType::f32);
        for (size_t j = 0; j < pairs; ++j) {
          const double eta = static_cast<double>(cosines[j]) - want[j];
          EXPECT_LE(std::fabs(eta), b.limit[j]) << theta << " " << dim << " " << position;
          unit[j] += eta * eta / b.variance[j];
        }
      }
      for (const double sum : unit)
        EXPECT_LE(sum, static_cast<double>(rows)) << theta << " of " << dim;
    }
}

}  // namespace
}  // namespace lockstep
