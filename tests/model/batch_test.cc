#include "src/model/batch.h"

#include <gtest/gtest.h>

#include "kernels/base/check.h"

namespace lockstep {
namespace {

ModelConfig config_with(RopeType type) {
  ModelConfig config;
  config.head_dim = 8;
  config.max_positions = 4;
  config.rope.type = type;
  config.rope.factor = 2;
  return config;
}

// Request 4 has positions 2 and 3 in this pass, request 1 has position 6.
PassInfo two_requests() {
  return {.pass = 3,
          .rows = {{{4, 2}, 70, 9}, {{4, 3}, 71, 10}, {{1, 6}, 72, 30, Phase::decode}},
          .pages = {{4, {2}}, {1, {7, 5, 6}}},
          .logit_rows = {1, 2}};
}

template <typename T>
std::vector<T> values(const TensorView& tensor) {
  return {tensor.as<T>(), tensor.as<T>() + tensor.count()};
}

TEST(Batch, SaysWhatThePassSays) {
  const ModelConfig config = config_with(RopeType::standard);
  RopeCache tables(config);
  const Batch batch = make_batch(two_requests(), tables);
  EXPECT_EQ(values<int32_t>(batch.tokens), (std::vector<int32_t>{70, 71, 72}));
  EXPECT_EQ(values<int64_t>(batch.slots), (std::vector<int64_t>{9, 10, 30}));
  EXPECT_EQ(values<int32_t>(batch.logit_rows), (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(values<int32_t>(batch.query_start), (std::vector<int32_t>{0, 2, 3}));
  EXPECT_EQ(values<int32_t>(batch.context_length), (std::vector<int32_t>{4, 7}));
  EXPECT_EQ(batch.page_table.view().shape, (Shape{2, 3}));
  EXPECT_EQ(values<int32_t>(batch.page_table), (std::vector<int32_t>{2, -1, -1, 7, 5, 6}));
}

TEST(Batch, RefusesAPassWithoutTokensOrWithoutPages) {
  const ModelConfig config = config_with(RopeType::standard);
  RopeCache tables(config);
  EXPECT_THROW(make_batch({}, tables), Error);
  PassInfo info = two_requests();
  info.pages.pop_back();
  EXPECT_THROW(make_batch(info, tables), Error);
}

// The table row that a token of the batch reads must be the row of its own position.
void expect_rows(const Batch& batch, const ModelConfig& config,
                 const std::vector<int64_t>& lengths) {
  const auto half = static_cast<size_t>(config.head_dim / 2);
  for (size_t t = 0; t < batch.info.rows.size(); ++t) {
    std::vector<float> cos(half), sin(half);
    rope_frequencies(config, lengths[t]).put_row(batch.info.rows[t].row.position, cos, sin);
    const int64_t row = batch.positions.as<int32_t>()[t];
    ASSERT_LT(row, batch.cos.rows());
    EXPECT_EQ(values<float>(batch.cos.slice(row, 1)), cos) << "token " << t;
    EXPECT_EQ(values<float>(batch.sin.slice(row, 1)), sin) << "token " << t;
  }
}

TEST(RopeCache, TablesGrowAndStayRight) {
  const ModelConfig config = config_with(RopeType::linear);
  RopeCache tables(config);
  PassInfo info = two_requests();
  expect_rows(make_batch(info, tables), config, {7, 7, 7});
  info.rows[2].row.position = 40;
  info.pages[1].pages.resize(20);
  expect_rows(make_batch(info, tables), config, {41, 41, 41});
  info.rows[2].row.position = 6;
  expect_rows(make_batch(info, tables), config, {7, 7, 7});
}

TEST(RopeCache, DynamicAnglesFollowTheLengthOfEachRequest) {
  const ModelConfig config = config_with(RopeType::dynamic);
  RopeCache tables(config);
  expect_rows(make_batch(two_requests(), tables), config, {4, 4, 7});
}

}  // namespace
}  // namespace lockstep
