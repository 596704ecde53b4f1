#include "probes/recorder.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>

#include "kernels/base/check.h"

namespace lockstep {
namespace {

Tensor counting(const Shape& shape) {
  Tensor tensor(shape, DType::f32);
  std::iota(tensor.as<float>(), tensor.as<float>() + shape.count(), 0.f);
  return tensor;
}

const std::vector<Row> kRows = {{0, 5}, {1, 0}, {1, 1}};
const PassInfo kPass{
    .pass = 2, .rows = {{{0, 5}, 11}, {{1, 0}, 12}, {{1, 1}, 13}}, .logit_rows = {0, 2}};

Pass recorded(const Selection& selection, bool digests) {
  Pass pass;
  Recorder recorder(selection, digests, [&](Pass finished) { pass = std::move(finished); });
  Tensor q = counting({3, 2, 2});
  const std::vector<Row> first = {{0, 0}, {0, 1}}, second = {{1, 0}, {1, 1}};
  const std::vector<Row> last = {{0, 5}, {1, 1}};
  const std::vector<float> logits = {1, 3, 2, NAN, 5, 5};
  const std::vector<int32_t> token = {1, 1};
  const std::vector<float> fresh(12, -1.f);
  recorder.begin(kPass);
  recorder.record({&point("attn.q"), 0, kRows, q});
  std::memcpy(q.as<float>(), fresh.data(), 48);  // the model's buffer lives on with other contents
  recorder.record({&point("attn.v"), 0, kRows, counting({3, 2})});
  recorder.record({&point("attn.kv"), 0, first, counting({2, 2, 1})});
  recorder.record({&point("attn.kv"), 0, second, counting({2, 2, 1})});
  recorder.record({&point("logits"), -1, last, tensor_of<float>(logits, {2, 3}, DType::f32)});
  recorder.record({&point("token"), -1, last, tensor_of<int32_t>(token, {2}, DType::i32)});
  recorder.end();
  return pass;
}

TEST(Recorder, KeepsCopiesInOrder) {
  const Pass pass = recorded({}, true);
  ASSERT_EQ(pass.tensors.size(), 6u);
  EXPECT_EQ(pass.info.pass, 2);
  const RecordedTensor& q = pass.tensors[0];
  EXPECT_EQ(q.shape, Shape({3, 2, 2}));
  EXPECT_EQ(q.rows, kRows);
  EXPECT_EQ(q.data.as<float>()[7], 7.f);
  EXPECT_EQ(q.digest.max, 11);
  EXPECT_EQ(q.row_hashes.size(), 3u);
}

TEST(Recorder, FindsAPlaceAndTheCacheOfOneRequest) {
  const Pass pass = recorded({}, false);
  EXPECT_EQ(pass.find(point("attn.q"), 0), &pass.tensors[0]);
  EXPECT_EQ(pass.find(point("attn.q"), 0, 1), &pass.tensors[0]);
  EXPECT_EQ(pass.find(point("attn.kv"), 0), &pass.tensors[2]);
  EXPECT_EQ(pass.find(point("attn.kv"), 0, 1), &pass.tensors[3]);
  EXPECT_EQ(pass.find(point("attn.kv"), 0, 2), nullptr);
  EXPECT_EQ(pass.find(point("attn.q"), 1), nullptr);
}

TEST(Recorder, WithoutDigestsHashesTheRowsOfTheCacheAlone) {
  const Pass pass = recorded({}, false);
  EXPECT_EQ(pass.tensors[0].digest.count, 0);
  EXPECT_TRUE(pass.tensors[0].row_hashes.empty());
  EXPECT_EQ(pass.tensors[1].row_hashes.size(), 3u);
  EXPECT_EQ(pass.tensors[2].row_hashes, row_hashes_of(counting({2, 2, 1})));
}

TEST(Recorder, KeepsWantedRowsAndTheWholeCacheOfWantedRequests) {
  const Pass pass = recorded(Selection("", "", "1", "1"), true);
  const RecordedTensor* q = pass.find(point("attn.q"), 0);
  ASSERT_NE(q, nullptr);
  EXPECT_EQ(q->rows, (std::vector<Row>{{1, 1}}));
  EXPECT_EQ(q->shape, Shape({1, 2, 2}));
  EXPECT_EQ(q->data.as<float>()[0], 8.f);
  EXPECT_EQ(q->digest.min, 8);
  EXPECT_EQ(pass.find(point("attn.kv"), 0, 0), nullptr);
  EXPECT_EQ(pass.find(point("attn.kv"), 0, 1)->rows.size(), 2u);
  ASSERT_EQ(pass.logits.size(), 1u);
  EXPECT_EQ(pass.logits[0].row, (Row{1, 1}));
}

TEST(Recorder, ATensorWithoutAWantedRowIsNotKept) {
  const Pass pass = recorded(Selection("", "", "", "9"), true);
  EXPECT_TRUE(pass.tensors.empty());
  EXPECT_TRUE(pass.logits.empty());
}

// Who keeps what a device has must be told of whole tensors alone, with the copy's own numbers.
TEST(Recorder, TellsWhatADeviceHasOfWholeTensors) {
  const auto told = [](const Selection& selection) {
    Pass pass;
    std::vector<std::pair<const void*, const void*>> all;
    Recorder recorder(
        selection, false, [&](Pass finished) { pass = std::move(finished); },
        [&](const Tensor& data, const TensorView& on_device) {
          all.emplace_back(data.view().data, on_device.data);
        });
    const Tensor q = counting({3, 2, 2}), k = counting({3, 1, 2});
    recorder.begin(kPass);
    recorder.record({&point("attn.q"), 0, kRows, q, {}, /*on_device=*/q});
    recorder.record({&point("attn.k"), 0, kRows, k});
    recorder.end();
    EXPECT_EQ(pass.tensors.size(), 2u);
    for (const auto& [data, on_device] : all) {
      EXPECT_EQ(data, pass.tensors[0].data.view().data);
      EXPECT_EQ(on_device, q.view().data);
    }
    return all.size();
  };
  EXPECT_EQ(told({}), 1u);
  EXPECT_EQ(told(Selection("", "", "", "0")), 0u);  // some rows of them
}

TEST(Recorder, RefusesRowsThatDoNotFit) {
  Recorder recorder({}, true, [](Pass) {});
  recorder.begin(kPass);
  EXPECT_THROW(recorder.record({&point("attn.q"), 0, kRows, counting({2, 2})}), Error);
  EXPECT_THROW(recorder.record({&point("attn.q"), 0, kRows, counting({})}), Error);
}

TEST(TopLogits, AreLargestFirstTiesByIdAndNanLast) {
  const Pass pass = recorded({}, false);
  ASSERT_EQ(pass.logits.size(), 2u);
  EXPECT_EQ(pass.logits[0].ids, (std::vector<int32_t>{1, 2, 0}));
  EXPECT_EQ(pass.logits[0].values, (std::vector<double>{3, 2, 1}));
  EXPECT_EQ(pass.logits[0].chosen, 1);
  EXPECT_EQ(pass.logits[0].margin(), 1);
  EXPECT_EQ(pass.logits[1].ids, (std::vector<int32_t>{1, 2, 0}));
  EXPECT_EQ(pass.logits[1].margin(), 0);
  EXPECT_TRUE(std::isnan(pass.logits[1].values[2]));
}

TEST(TopLogits, OfOneWordHaveNoRival) {
  const std::vector<Row> row = {{0, 0}};
  const auto top = top_logits_of(counting({1, 1}), row);
  EXPECT_EQ(top[0].margin(), std::numeric_limits<double>::infinity());
  EXPECT_EQ(top_logits_of(counting({1, 20}), row)[0].ids.size(), 8u);
  EXPECT_THROW(top_logits_of(counting({2, 4}), row), Error);
}

void put(const Tensor& to, int64_t i, double value) {
  const auto as_float = static_cast<float>(value);
  switch (to.view().dtype) {
    case DType::bf16:
      to.as<BFloat16>()[i] = from_float<BFloat16>(as_float);
      return;
    case DType::f16:
      to.as<Float16>()[i] = from_float<Float16>(as_float);
      return;
    case DType::f32:
      to.as<float>()[i] = as_float;
      return;
    default:
      to.as<double>()[i] = value;
  }
}

// Of a row whose parts are looked at many at a time, by sorting all of it; with ties, numbers of
// either sign, zeros of both signs, infinities and NaN.
TEST(TopLogits, OfLargeVocabulariesAreThoseOfASort) {
  constexpr int64_t kVocab = 5000;
  for (const DType dtype : {DType::bf16, DType::f16, DType::f32, DType::f64})
    for (int seed = 0; seed < 6; ++seed) {
      SCOPED_TRACE(fmt::format("{} {}", name_of(dtype), seed));
      std::mt19937_64 random(seed);
      std::normal_distribution<double> normal;
      std::vector<double> row(kVocab);
      for (double& x : row) x = seed % 2 == 0 ? normal(random) : std::round(2 * normal(random));
      if (seed >= 2)
        for (double& x : row) x = -std::abs(x);  // zeros of that sign among them
      if (seed >= 4) {
        row[3000] = row[40] = std::numeric_limits<double>::quiet_NaN();
        row[4000] = std::numeric_limits<double>::infinity();
        row[4999] = -std::numeric_limits<double>::quiet_NaN();
        row[17] = 0.0;
      }
      Tensor logits({1, kVocab}, dtype);
      for (int64_t i = 0; i < kVocab; ++i) put(logits, i, row[i]);
      for (int64_t i = 0; i < kVocab; ++i) row[i] = value_at(logits, i);
      std::vector<int32_t> ids(kVocab);
      std::iota(ids.begin(), ids.end(), 0);
      std::ranges::stable_sort(ids, [&](int32_t a, int32_t b) {
        if (std::isnan(row[a]) || std::isnan(row[b]))
          return !std::isnan(row[a]) && std::isnan(row[b]);
        return row[a] > row[b];
      });
      ids.resize(8);
      EXPECT_EQ(top_logits_of(logits, std::vector<Row>{{0, 0}})[0].ids, ids);
    }
}

// Recorded as whole, a shard would be judged against the whole.
TEST(Recorder, RefusesAShard) {
  Recorder recorder({}, true, [](const Pass&) {});
  recorder.begin(kPass);
  const Tensor q = counting({3, 2, 2});
  Record record{&point("attn.q"), 0, kRows, q};
  recorder.record(record);
  record.shard = Shard{.axis = 1, .offset = 2, .extent = 4};
  try {
    recorder.record(record);
    ADD_FAILURE() << "nothing was refused";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("point attn.q shows a shard"), std::string::npos);
  }
}

}  // namespace
}  // namespace lockstep
