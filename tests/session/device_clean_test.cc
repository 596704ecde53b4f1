// Runs on a CUDA device come out clean whatever the pages and however many requests share a pass,
// op by op and from graphs. Nothing of this runs on the CPU, whose runs clean_test.cc holds.
#include <gtest/gtest.h>

#include "src/judge/verdict.h"
#include "tests/judged.h"
#include "tests/model_label.h"

namespace lockstep {
namespace {

struct Serving {
  int64_t requests, page_size;
};

class DeviceClean : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (TestDevice::device() == Device::cpu)
      GTEST_SKIP() << "this is of a CUDA device: LOCKSTEP_DEVICE names none";
  }
  void expect_clean(DType dtype, Serving serving, bool graph) {
    JudgedRun run{.checkpoint = checkpoint_,
                  .reference = open_reference(),
                  .engine = {.graph = graph,
                             .dtype = dtype,
                             .page_size = serving.page_size,
                             .page_order_seed = 5,
                             .chunk = 16}};
    for (int64_t r = 0; r < serving.requests; ++r)
      run.requests.push_back({.prompt = some_tokens(1 + r * 7 % 23, checkpoint_.config().vocab,
                                                    static_cast<uint64_t>(r)),
                              .max_new = 2 + r % 3});
    const Result result = judged(run);
    const std::string what = std::string(name_of(dtype)) + ", " + std::to_string(serving.requests) +
                             " requests, pages of " + std::to_string(serving.page_size) +
                             (graph ? ", graphs" : "");
    EXPECT_EQ(result.verdict, RunVerdict::clean) << what << ": " << result.story;
    EXPECT_GT(result.judged, 0) << what;
    EXPECT_EQ(result.judged, result.expected) << what;
  }

  Checkpoint checkpoint_ = Checkpoint::open(data_path(GetParam()));
};

TEST_P(DeviceClean, OfAnyNumberOfRequestsAndPageSize) {
  for (const bool graph : {false, true}) {
    for (const Serving serving : {Serving{1, 1}, {2, 256}, {7, 3}, {33, 128}, {64, 16}})
      expect_clean(DType::bf16, serving, graph);
    for (const DType dtype : {DType::f32, DType::f16}) expect_clean(dtype, {64, 7}, graph);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, DeviceClean,
                         testing::Values("bard-qwen3", "bard-qwen2.5", "tiny/qwen2-default",
                                         "tiny/qwen2-mha", "tiny/qwen2-sliding",
                                         "tiny/qwen3-bias-mqa", "tiny/qwen3-default",
                                         "tiny/qwen3-dynamic", "tiny/qwen3-linear",
                                         "tiny/qwen3-llama3", "tiny/qwen3-moe",
                                         "tiny/qwen3-untied-sharded", "tiny/qwen3-yarn"),
                         model_label);

}  // namespace
}  // namespace lockstep
