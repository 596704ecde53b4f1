#include "src/engine/memory_estimate.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <limits>

#include "tests/helpers.h"

namespace lockstep {
namespace {

constexpr int64_t kGigabyte = 1'000'000'000;

ModelConfig published(const std::string& name) {
  const std::string dir = temp_path("room");
  std::filesystem::create_directory(dir);
  std::filesystem::copy_file(data_path("configs/" + name + ".json"), dir + "/config.json",
                             std::filesystem::copy_options::overwrite_existing);
  ModelConfig config = read_config(dir);
  std::filesystem::remove_all(dir);
  return config;
}

EngineOptions options(Device device) {
  return {.device = device, .page_size = 16, .max_batched_tokens = 2048, .max_batch = 64};
}

class Room : public testing::TestWithParam<Device> {};

// The publisher's files of Qwen2.5-7B in bf16 have 15.23 GB; K and V of a token take 57344 bytes.
TEST_P(Room, GivesToPagesWhatWeightsAndPassesLeave) {
  const ModelConfig config = published("qwen2.5-7b");
  constexpr int64_t kPage = 57344 * 16;
  const int64_t most = max_pages(config, options(GetParam()), 80 * kGigabyte);
  EXPECT_LT(most * kPage, 80 * kGigabyte - 15'231'233'024);
  // Not too little either: the rest of a pass of 2048 is not more than 4 GB.
  EXPECT_GT(most * kPage, (80 - 16 - 4) * kGigabyte);
  // Memory on top of that is for pages alone.
  const int64_t more = max_pages(config, options(GetParam()), 100 * kGigabyte);
  EXPECT_LE(std::abs(more - most - 20 * kGigabyte / kPage), 200);
}

TEST_P(Room, HasFewerPagesForLargerPagesPassesAndNumbers) {
  const ModelConfig config = published("qwen3-0.6b");
  const auto most = [&](auto change) {
    EngineOptions wanted = options(GetParam());
    change(wanted);
    return max_pages(config, wanted, 24 * kGigabyte);
  };
  const int64_t pages = most([](EngineOptions&) {});
  ASSERT_GT(pages, 0);
  const int64_t twice_as_large = most([](EngineOptions& o) { o.page_size = 32; });
  EXPECT_LE(std::abs(2 * twice_as_large - pages), 100);
  EXPECT_LT(most([](EngineOptions& o) { o.max_batched_tokens = 8192; }), pages);
  EXPECT_LT(most([](EngineOptions& o) { o.max_batch = 1000; }), pages);
  EXPECT_LT(most([](EngineOptions& o) { o.dtype = DType::f32; }), pages / 2);
}

TEST_P(Room, MayBeTooSmallForAnyPage) {
  const ModelConfig config = published("qwen2.5-72b");
  EXPECT_EQ(max_pages(config, options(GetParam()), 145 * kGigabyte), 0);
  EXPECT_EQ(max_pages(config, options(GetParam()), 0), 0);
  EXPECT_GT(max_pages(config, options(GetParam()), 160 * kGigabyte), 0);
}

// A page is a number of 32 bits.
TEST_P(Room, HasNoMorePagesThanCanBeNumbered) {
  EngineOptions wanted = options(GetParam());
  wanted.page_size = 1;
  EXPECT_EQ(max_pages(published("qwen2.5-0.5b-instruct"), wanted, int64_t{1} << 50),
            std::numeric_limits<int32_t>::max());
}

INSTANTIATE_TEST_SUITE_P(Of, Room, testing::Values(Device::cpu, Device::cuda),
                         [](const auto& info) {
                           return std::string(info.param == Device::cpu ? "cpu" : "cuda");
                         });

}  // namespace
}  // namespace lockstep
