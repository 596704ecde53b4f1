// The "device" of these tests is other memory of the CPU.
#include "src/model/device_batch.h"

#include <gtest/gtest.h>

#include "src/model/model.h"
#include "tests/helpers.h"

namespace lockstep {
namespace {

template <typename T>
std::vector<T> values(const TensorView& tensor) {
  return {tensor.as<T>(), tensor.as<T>() + tensor.count()};
}

ModelConfig small_config() {
  ModelConfig config;
  config.head_dim = 8;
  return config;
}

PassInfo two_requests() {
  return {.rows = {{{4, 2}, 70, 9}, {{4, 3}, 71, 10}, {{1, 6}, 72, 30, Phase::decode}},
          .pages = {{4, {2}}, {1, {7, 5, 6}}},
          .logit_rows = {1, 2}};
}

TEST(DeviceBatch, HoldsThePassAndPaddingThatDoesNothing) {
  const ModelConfig config = small_config();
  RopeCache tables(config);
  DeviceBatch there({.tokens = 5, .requests = 4, .logit_rows = 4, .pages = 4}, Device::cpu);
  there.fill(make_batch(two_requests(), tables), tables);
  const Batch& batch = there.batch();
  EXPECT_EQ(batch.info.rows.size(), 3u);
  EXPECT_EQ(values<int32_t>(batch.tokens), (std::vector<int32_t>{70, 71, 72, 0, 0}));
  EXPECT_EQ(values<int32_t>(batch.positions), (std::vector<int32_t>{2, 3, 6, 0, 0}));
  EXPECT_EQ(values<int64_t>(batch.slots), (std::vector<int64_t>{9, 10, 30, -1, -1}));
  EXPECT_EQ(values<int32_t>(batch.logit_rows), (std::vector<int32_t>{1, 2, 3, 4}));
  EXPECT_EQ(values<int32_t>(batch.query_start), (std::vector<int32_t>{0, 2, 3, 4, 5}));
  EXPECT_EQ(values<int32_t>(batch.context_length), (std::vector<int32_t>{4, 7, 0, 0}));
  EXPECT_EQ(values<int32_t>(batch.page_table),
            (std::vector<int32_t>{2, -1, -1, -1, 7, 5, 6, -1, -1, -1, -1, -1, -1, -1, -1, -1}));
}

TEST(DeviceBatch, OfAnotherPassForgetsTheLastOneAndStaysWhereItIs) {
  const ModelConfig config = small_config();
  RopeCache tables(config);
  DeviceBatch there({.tokens = 3, .requests = 2, .logit_rows = 2, .pages = 3}, Device::cpu);
  there.fill(make_batch(two_requests(), tables), tables);
  const void* tokens = there.batch().tokens.view().data;
  there.fill(make_batch({.rows = {{{0, 0}, 5, 1}}, .pages = {{0, {1}}}}, tables), tables);
  EXPECT_EQ(there.batch().tokens.view().data, tokens);
  EXPECT_EQ(values<int32_t>(there.batch().tokens), (std::vector<int32_t>{5, 0, 0}));
  EXPECT_EQ(values<int64_t>(there.batch().slots), (std::vector<int64_t>{1, -1, -1}));
  EXPECT_EQ(values<int32_t>(there.batch().page_table),
            (std::vector<int32_t>{1, -1, -1, -1, -1, -1}));
}

TEST(DeviceBatch, TakesTokensThatAreThereInThePlaceOfTheBatchs) {
  const ModelConfig config = small_config();
  RopeCache tables(config);
  DeviceBatch there({.tokens = 5, .requests = 4, .logit_rows = 4, .pages = 4}, Device::cpu);
  const std::vector<int32_t> chosen = {91, 92, 93};
  there.fill(make_batch(two_requests(), tables), tables,
             tensor_of<int32_t>(chosen, {3}, DType::i32));
  EXPECT_EQ(values<int32_t>(there.batch().tokens), (std::vector<int32_t>{91, 92, 93, 0, 0}));
  EXPECT_EQ(values<int32_t>(there.batch().positions), (std::vector<int32_t>{2, 3, 6, 0, 0}));
  PassInfo known = two_requests();
  known.rows[2].token = 93;
  there.set_info(known);
  EXPECT_EQ(there.batch().info.rows[2].token, 93);
}

TEST(DeviceBatch, RefusesAPassThatIsLargerThanItsRoom) {
  const ModelConfig config = small_config();
  RopeCache tables(config);
  const DeviceBatch::Room enough = DeviceBatch::room_of(make_batch(two_requests(), tables));
  EXPECT_EQ(enough, (DeviceBatch::Room{3, 2, 2, 3}));
  for (auto side : {&DeviceBatch::Room::tokens, &DeviceBatch::Room::requests,
                    &DeviceBatch::Room::logit_rows, &DeviceBatch::Room::pages}) {
    DeviceBatch::Room small = enough;
    small.*side -= 1;
    DeviceBatch there(small, Device::cpu);
    EXPECT_NE(error_of([&] {
                there.fill(make_batch(two_requests(), tables), tables);
              }).find("3 tokens of 2 requests"),
              std::string::npos);
  }
}

TEST(DeviceBatch, HasTheTablesOfTheBatchWhoeverMadeThem) {
  const ModelConfig config = small_config();
  RopeCache tables(config);
  DeviceBatch there({3, 2, 2, 30}, Device::cpu);
  PassInfo info = two_requests();
  const auto expect_tables = [&](const Batch& batch) {
    const auto cos = values<float>(batch.cos), sin = values<float>(batch.sin);
    there.fill(batch, tables);
    EXPECT_NE(there.batch().cos.data, batch.cos.data);
    EXPECT_EQ(values<float>(there.batch().cos), cos);
    EXPECT_EQ(values<float>(there.batch().sin), sin);
  };
  expect_tables(make_batch(info, tables));
  const void* place = there.batch().cos.data;
  expect_tables(make_batch(info, tables));
  EXPECT_EQ(there.batch().cos.data, place) << "a graph reads them where they were";
  info.rows[2].row.position = 100;
  expect_tables(make_batch(info, tables));
  Batch replaced = make_batch(info, tables);
  Tensor cos = copy_on(Device::cpu, replaced.cos);
  cos.as<float>()[3] = 7;
  replaced.cos = cos;
  expect_tables(replaced);
  expect_tables(make_batch(info, tables));
}

// The same decode pass with room to spare leaves the same cache and says the same.
TEST(DeviceBatch, PaddedRowsWriteNowhereAndChangeNothing) {
  const Checkpoint checkpoint = Checkpoint::open(data_path("bard-qwen3"));
  PassInfo info{.rows = {{{0, 2}, 70, 14, Phase::decode}, {{1, 5}, 72, 9, Phase::decode}},
                .pages = {{0, {3}}, {1, {1, 2}}},
                .logit_rows = {0, 1}};
  struct Left {
    std::vector<int32_t> tokens;
    std::vector<std::vector<float>> cache;
  };
  const auto pass_with = [&](const DeviceBatch::Room& room) {
    Model model(checkpoint, DType::f32, cpu_ops(), {});
    std::vector<Tensor> storage;
    std::vector<KvCache> caches;
    for (int64_t layer = 0; layer < model.config().layers; ++layer)
      caches.push_back(model.make_cache(4, 4, storage));
    for (const Tensor& side : storage)
      for (int64_t i = 0; i < side.view().count(); ++i)
        side.as<float>()[i] = static_cast<float>(i % 97) / 97;
    RopeCache tables(model.config());
    DeviceBatch there(room, Device::cpu);
    there.fill(make_batch(info, tables), tables);
    Probe off;
    const Forward forward = model.forward(there.batch(), caches, off);
    Left left{values<int32_t>(forward.tokens.slice(0, 2)), {}};
    for (const Tensor& side : storage) left.cache.push_back(values<float>(side));
    return left;
  };
  const Left exact = pass_with({2, 2, 2, 2}), padded = pass_with({8, 8, 8, 5});
  EXPECT_EQ(padded.tokens, exact.tokens);
  // A product of more rows may add in another order, but nobody writes where nobody should.
  ASSERT_EQ(padded.cache.size(), exact.cache.size());
  for (size_t side = 0; side < exact.cache.size(); ++side)
    for (size_t i = 0; i < exact.cache[side].size(); ++i)
      ASSERT_NEAR(padded.cache[side][i], exact.cache[side][i], 1e-3) << side << " " << i;
}

}  // namespace
}  // namespace lockstep
