// The reference on a CUDA device says what it says on the CPU. Where there is none, all is skipped.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <thread>

#include "kernels/base/check.h"
#include "src/judge/contracts.h"
#include "tests/model_label.h"
#include "tests/reference/passes.h"
#include "traces/manifest.h"

namespace lockstep {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

class OnDevice : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (!open_reference().has_gpu(0))
      GTEST_SKIP()
          << "a CUDA device that LibTorch can compute on was wanted, this machine has none";
  }

  // least: 0: a device answers all that it is asked.
  std::unique_ptr<Oracle> oracle(DType dtype, int gpu, int64_t least = 0) {
    return open_reference().oracle(checkpoint_, {.dtype = dtype, .gpu = gpu, .least = least});
  }

  Tensor random(const Shape& shape) {
    std::normal_distribution<float> normal;
    Tensor tensor(shape, DType::bf16);
    for (int64_t i = 0; i < shape.count(); ++i)
      tensor.as<BFloat16>()[i] = from_float<BFloat16>(normal(generator_));
    return tensor;
  }

  Checkpoint checkpoint_ = Checkpoint::open(data_path(GetParam()));
  std::mt19937 generator_{11};
};

// The chance of a tie follows from a distance to a border in units of 3 u, so that the last bits of
// a weight, and of the score in its exponent, are 1 / 3 u times as large in it.
constexpr double kTieNoise = 64 * 0x1p-52 / (3 * 0x1p-24);

void expect_alike(const Exact& got, const Exact& want, const std::string& where) {
  EXPECT_EQ(got.shape, want.shape) << where;
  EXPECT_EQ(got.terms, want.terms) << where;
  EXPECT_TRUE(std::ranges::equal(got.row_terms, want.row_terms)) << where;
  EXPECT_TRUE(std::ranges::equal(got.serial_error, want.serial_error)) << where;
  ASSERT_EQ(got.steps.size(), want.steps.size()) << where;
  for (size_t i = 0; i < want.steps.size(); ++i)
    EXPECT_LE(worst_difference(got.steps[i].value, want.steps[i].value), 1e-11) << where;
  struct Field {
    const char* name;
    Numbers Exact::*numbers;
    double limit = 1e-11;
  };
  for (const auto& [name, numbers, limit] :
       std::initializer_list<Field>{{"want", &Exact::want},
                                    {"spread", &Exact::spread},
                                    {"score", &Exact::score},
                                    {"angle", &Exact::angle},
                                    {"x1c_x2s", &Exact::x1c_x2s},
                                    {"turned", &Exact::turned},
                                    {"factor", &Exact::factor},
                                    {"spread_squares", &Exact::spread_squares},
                                    {"weighted_squares", &Exact::weighted_squares},
                                    {"overlap", &Exact::overlap},
                                    {"ties", &Exact::ties},
                                    {"tie_squares", &Exact::tie_squares, kTieNoise}}) {
    EXPECT_EQ((got.*numbers).empty(), (want.*numbers).empty()) << where << ' ' << name;
    if ((want.*numbers).empty()) continue;
    EXPECT_LE(worst_difference(got.*numbers, want.*numbers), limit) << where << ' ' << name;
  }
  // On the CPU they may be sums in fp32, enlarged so that none is too small: by 1e-5, twice that of
  // a sum that fp32 made too large (reference/magnitudes.h).
  ASSERT_EQ(got.magnitude.size(), want.magnitude.size()) << where;
  int64_t outside = 0;
  for (size_t i = 0; i < want.magnitude.size(); ++i) {
    const double here = want.magnitude[i], there = got.magnitude[i];
    outside += here >= there * (1 - 1e-11) && here <= there * (1 + 2e-5 + 1e-11) ? 0 : 1;
  }
  EXPECT_EQ(outside, 0) << where << " magnitude, of " << want.magnitude.size();
}

// K (0) or V (1) of attn.kv: [rows, 2, kv heads, head_dim].
Tensor part_of(const TensorView& kv, int64_t part) {
  Tensor tensor({kv.rows(), kv.shape[2], kv.shape[3]}, kv.dtype);
  for (int64_t i = 0; i < kv.rows(); ++i)
    copy(tensor.view().slice(i, 1),
         kv.slice(i, 1).reshaped({2, kv.shape[2], kv.shape[3]}).slice(part, 1));
  return tensor;
}

// What the judge would ask of a prompt of 70 tokens, on tensors of a run of the model itself. By
// itself the reference answers here some of the questions about so few elements.
TEST_P(OnDevice, OracleSaysOfEveryOpWhatItSaysOnTheCpu) {
  const std::vector<int32_t> prompt = some_tokens(70, checkpoint_.config().vocab);
  for (const DType dtype : {DType::bf16, DType::f32}) {
    const auto model = open_reference().model(checkpoint_, {.dtype = dtype}, dtype);
    const std::vector<PassInfo> passes = prefill_and_decode(prompt, {5});
    const auto here = oracle(dtype, -1), there = oracle(dtype, 0);
    const auto by_itself = oracle(dtype, 0, ReferenceOptions().least);
    int64_t asked = 0;
    for (const Pass& pass : run_passes(*model, passes)) {
      std::vector<Row> rows;
      std::vector<int32_t> tokens;
      for (const PassRow& row : pass.info.rows) {
        rows.push_back(row.row);
        tokens.push_back(row.token);
      }
      for (const Place& place : here->graph().places()) {
        const OpKind op = place.point->op;
        if (op == OpKind::cache || row_of(op).makes_indices) continue;
        const bool last = place.point->name == "logits";
        const std::vector<int64_t> lengths(rows.size(), 71);
        OracleCall call{.place = place, .dtype = dtype, .rows = rows, .lengths = lengths};
        if (last) call.rows = call.rows.last(1);
        if (op == OpKind::gather) call.tokens = tokens;
        Tensor k, v;
        for (const Place& input : here->graph().inputs_of(place)) {
          const TensorView x = pass.find(*input.point, input.layer)->data;
          if (input.point->is_cache()) {
            k = part_of(x, 0);
            v = part_of(x, 1);
            call.keys_values = {k, v};
          } else {
            call.inputs.push_back(last ? x.slice(x.rows() - 1, 1) : x);
          }
        }
        for (const RoundingContract contract :
             contracts_of(op, {.dtype = dtype, .has_bias = here->has_bias(place)})) {
          call.contract = contract;
          const std::string where = std::string(place.point->name) + " " +
                                    std::to_string(place.layer) + " " + name_of(contract);
          const Exact want = here->evaluate(call);
          expect_alike(there->evaluate(call), want, where);
          expect_alike(by_itself->evaluate(call), want, where + " by itself");
          ++asked;
        }
      }
    }
    EXPECT_GT(asked, 60);
  }
}

// A copy serves whoever reads the same tensor, for as long as its owner lives: what else may lie in
// that memory later is copied anew.
TEST_P(OnDevice, ATensorIsCopiedOnceForAllWhoReadIt) {
  const int64_t hidden = checkpoint_.config().hidden, rows = 30000 / hidden + 1;
  const auto device = oracle(DType::bf16, 0);
  std::vector<Row> of;
  for (int32_t i = 0; i < rows; ++i) of.push_back({0, i});
  const Tensor x = random({rows, hidden}), other = random({rows, hidden});
  const TensorView read = x;
  OracleCall call{.place = {&point("attn.residual"), 0}, .inputs = {x, other}, .rows = of};
  const auto owner_of = [](const TensorView& view) {
    return std::shared_ptr<const void>(std::make_shared<int>(), view.data);
  };
  const auto whose = owner_of(other);
  const auto answer = [&](std::shared_ptr<const void> owner) {
    call.owners = {std::move(owner), whose};
    const Exact exact = device->evaluate(call);
    return std::vector<double>(exact.want.begin(), exact.want.end());
  };
  const auto write = [&](float value) {
    std::fill_n(read.as<BFloat16>(), read.count(), from_float<BFloat16>(value));
  };
  const std::vector<double> random_ones = answer(nullptr);
  auto first = owner_of(x);
  std::vector<std::vector<double>> answers(16);
  {
    std::vector<std::jthread> threads;
    for (std::vector<double>& one : answers)
      threads.emplace_back([&] {
        OracleCall own = call;
        own.owners = {first, whose};
        const Exact exact = device->evaluate(own);
        one.assign(exact.want.begin(), exact.want.end());
      });
  }
  for (const std::vector<double>& one : answers) EXPECT_EQ(one, random_ones);
  write(1);
  EXPECT_EQ(answer(first), random_ones);  // nobody said that it changed
  const std::vector<double> ones = answer(owner_of(x));
  EXPECT_NE(ones, random_ones);
  EXPECT_EQ(ones, answer(nullptr));
  write(2);
  first = owner_of(x);
  EXPECT_EQ(answer(first), answer(nullptr));
  EXPECT_NE(answer(first), ones);
  // What was put in the place of an input is no longer its owner's.
  const Tensor in_its_place = random({rows, hidden});
  call.inputs[0] = in_its_place;
  EXPECT_EQ(answer(first), answer(nullptr));
}

// In decoding: the device has a kernel for so few, and one row's result is its own.
TEST_P(OnDevice, ProductsOfFewRowsAreThoseOfTheCpu) {
  const ModelConfig& c = checkpoint_.config();
  const auto expect_of = [&](const Place& place, DType dtype, int64_t terms) {
    const auto here = oracle(dtype, -1), there = oracle(dtype, 0);
    const Tensor x = random({9, terms});
    std::vector<Row> rows;
    for (int32_t i = 0; i < 9; ++i) rows.push_back({0, i});
    std::vector<double> all;
    for (const int64_t count : {9, 8, 7, 5, 4, 3, 2, 1}) {
      const OracleCall call{.place = place,
                            .dtype = dtype,
                            .inputs = {x.view().slice(0, count)},
                            .rows = std::span(rows).first(count)};
      const Exact got = there->evaluate(call);
      expect_alike(got, here->evaluate(call), std::to_string(count) + " rows");
      if (count == 8) all.assign(got.want.begin(), got.want.end());
      if (count < 8) {
        EXPECT_TRUE(
            std::ranges::equal(got.want, std::span<const double>(all).first(got.want.size())))
            << count;
      }
    }
  };
  for (const DType dtype : {DType::bf16, DType::f16, DType::f32}) {
    expect_of({&point("attn.q"), 0}, dtype, c.hidden);
    if (!c.experts.in(1)) expect_of({&point("mlp.down"), 1}, dtype, c.intermediate);
  }
}

// One key that is not finite, seen by one query of two.
TEST_P(OnDevice, WhatAQueryDoesNotSeeCannotReachIt) {
  const ModelConfig& c = checkpoint_.config();
  const Tensor q = random({2, c.heads, c.head_dim});
  const Tensor k = random({9, c.kv_heads, c.head_dim}), v = random({9, c.kv_heads, c.head_dim});
  v.as<BFloat16>()[5 * c.kv_heads * c.head_dim] = from_float<BFloat16>(static_cast<float>(kNaN));
  const std::vector<Row> rows = {{0, 4}, {0, 5}};
  const OracleCall call{
      .place = {&point("attn.out"), 0}, .inputs = {q}, .rows = rows, .keys_values = {k, v}};
  const Exact got = oracle(DType::bf16, 0)->evaluate(call);
  const Exact want = oracle(DType::bf16, -1)->evaluate(call);
  const size_t half = want.want.size() / 2;
  const auto first = [half](const Numbers& x) { return std::span(x).first(half); };
  EXPECT_LE(worst_difference(first(got.want), first(want.want)), 1e-11);
  EXPECT_TRUE(std::isnan(got.want[half]));
}

// So many keys that the queries are several blocks.
TEST_P(OnDevice, AttentionOverManyKeysIsTheSameInBlocks) {
  const ModelConfig& c = checkpoint_.config();
  const int32_t keys = 16384, queries = 40;
  const Tensor q = random({queries, c.heads, c.head_dim});
  const Tensor k = random({keys, c.kv_heads, c.head_dim});
  const Tensor v = random({keys, c.kv_heads, c.head_dim});
  std::vector<Row> rows;
  for (int32_t i = keys - queries; i < keys; ++i) rows.push_back({0, i});
  const OracleCall call{
      .place = {&point("attn.out"), 1}, .inputs = {q}, .rows = rows, .keys_values = {k, v}};
  expect_alike(oracle(DType::bf16, 0)->evaluate(call), oracle(DType::bf16, -1)->evaluate(call),
               "attn.out");
}

// A prompt's queries, in several blocks of kernels, beside those of the CPU; and the same bits
// every time, as in a question about some of the rows alone but for the order of sums.
TEST_P(OnDevice, AttentionOfAPromptIsTheSameEveryTime) {
  const ModelConfig& c = checkpoint_.config();
  const int32_t keys = 700, hidden = 37;
  const Tensor q = random({keys - hidden, c.heads, c.head_dim});
  const Tensor k = random({keys, c.kv_heads, c.head_dim});
  const Tensor v = random({keys, c.kv_heads, c.head_dim});
  std::vector<Row> rows;
  for (int32_t i = hidden; i < keys; ++i) rows.push_back({0, i});
  OracleCall call{
      .place = {&point("attn.out"), 1}, .inputs = {q}, .rows = rows, .keys_values = {k, v}};
  const auto there = oracle(DType::bf16, 0);
  const Exact got = there->evaluate(call), again = there->evaluate(call);
  const Exact want = oracle(DType::bf16, -1)->evaluate(call);
  const int64_t first = 300, some = 11;
  call.inputs = {q.view().slice(first, some)};
  call.rows = std::span(rows).subspan(first, some);
  const Exact few = there->evaluate(call);
  for (const auto& [name, numbers] :
       std::initializer_list<std::pair<const char*, Numbers Exact::*>>{
           {"want", &Exact::want},
           {"magnitude", &Exact::magnitude},
           {"spread", &Exact::spread},
           {"spread_squares", &Exact::spread_squares},
           {"weighted_squares", &Exact::weighted_squares},
           {"score", &Exact::score}}) {
    EXPECT_TRUE(std::ranges::equal(got.*numbers, again.*numbers)) << name;
    EXPECT_LE(worst_difference(got.*numbers, want.*numbers), 1e-12) << name;
    const size_t of_row = (got.*numbers).size() / rows.size();
    EXPECT_LE(worst_difference(
                  few.*numbers,
                  std::span<const double>(got.*numbers).subspan(first * of_row, some * of_row)),
              1e-12)
        << name;
  }
}

// In fp64 to its last digits; in fp32 as far as its roundings go, which TF32 would be far over.
TEST_P(OnDevice, ModelIsTheOneOfTheCpu) {
  const auto passes = prefill_and_decode(some_tokens(50, checkpoint_.config().vocab), {5, 9});
  for (const auto& [compute, limit] : {std::pair(DType::f64, 1e-11), std::pair(DType::f32, 3e-5)}) {
    const auto run = [&, c = compute](int gpu) {
      return run_passes(*open_reference().model(checkpoint_, {.dtype = DType::f32, .gpu = gpu}, c),
                        passes);
    };
    const std::vector<Pass> want = run(-1), got = run(0);
    ASSERT_EQ(got.size(), want.size());
    for (size_t p = 0; p < want.size(); ++p) {
      ASSERT_EQ(got[p].tensors.size(), want[p].tensors.size());
      for (size_t i = 0; i < want[p].tensors.size(); ++i) {
        const RecordedTensor &a = got[p].tensors[i], &b = want[p].tensors[i];
        EXPECT_LE(worst_difference(values_of(a.data), values_of(b.data)), limit)
            << b.point->name << " " << b.layer;
      }
    }
  }
}

// Sums in other orders: what lies halfway between two numbers must not be decided by that.
TEST(NoDevice, AQueryAloneIsAnsweredAsOneOfMany) {
  const Checkpoint checkpoint = Checkpoint::open(data_path("tiny/qwen3-yarn"));
  const auto model = open_reference().model(checkpoint, {.dtype = DType::bf16}, DType::bf16);
  const auto oracle = open_reference().oracle(checkpoint, {.dtype = DType::bf16});
  const std::vector<int32_t> prompt = some_tokens(70, checkpoint.config().vocab);
  const std::vector<Pass> passes = run_passes(*model, prefill_and_decode(prompt, {}));
  std::vector<Row> rows;
  for (const PassRow& row : passes.at(0).info.rows) rows.push_back(row.row);
  for (int layer = 0; layer < checkpoint.config().layers; ++layer) {
    const TensorView q = passes[0].find(point("attn.q_rope"), layer)->data;
    const TensorView kv = passes[0].find(point("attn.kv"), layer)->data;
    const Tensor k = part_of(kv, 0), v = part_of(kv, 1);
    OracleCall call{.place = {&point("attn.out"), layer}, .keys_values = {k, v}};
    for (const RoundingContract contract :
         contracts_of(OpKind::attention, {.dtype = DType::bf16})) {
      call.contract = contract, call.rows = rows, call.inputs = {q};
      const Exact many = oracle->evaluate(call);
      std::vector<double> want, ties, tie_squares;
      for (size_t i = 0; i < rows.size(); ++i) {
        call.rows = std::span(rows).subspan(i, 1);
        call.inputs = {q.slice(static_cast<int64_t>(i), 1)};
        const Exact one = oracle->evaluate(call);
        want.insert(want.end(), one.want.begin(), one.want.end());
        ties.insert(ties.end(), one.ties.begin(), one.ties.end());
        tie_squares.insert(tie_squares.end(), one.tie_squares.begin(), one.tie_squares.end());
      }
      const std::string where = std::to_string(layer) + ' ' + std::string(name_of(contract));
      EXPECT_LE(worst_difference(want, many.want), 1e-11) << where;
      if (many.ties.empty()) continue;
      EXPECT_LE(worst_difference(ties, many.ties), 1e-11) << where;
      EXPECT_LE(worst_difference(tie_squares, many.tie_squares), kTieNoise) << where;
    }
  }
}

TEST(NoDevice, ANumberThatIsNoDeviceIsRefused) {
  const Checkpoint checkpoint = Checkpoint::open(data_path("tiny/qwen3-default"));
  EXPECT_FALSE(open_reference().has_gpu(1000));
  EXPECT_FALSE(open_reference().has_gpu(-1));
  const std::string trouble = error_of([&] { open_reference().oracle(checkpoint, {.gpu = 1000}); });
  EXPECT_NE(trouble.find("CUDA device 1000"), std::string::npos) << trouble;
}

INSTANTIATE_TEST_SUITE_P(Models, OnDevice,
                         testing::Values("bard-qwen3", "bard-qwen2.5", "tiny/qwen3-moe",
                                         "tiny/qwen2-sliding", "tiny/qwen3-yarn"),
                         model_label);

}  // namespace
}  // namespace lockstep
