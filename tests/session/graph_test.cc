// Decode passes replayed from graphs do what the same passes do op by op, to the bit, whatever was
// replayed before. Nothing of this runs on the CPU.
#include <gtest/gtest.h>

#include <random>

#include "tests/device.h"
#include "tests/fixtures.h"
#include "tests/model_label.h"
#include "tests/schedules.h"

namespace lockstep {
namespace {

class Graphs : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (TestDevice::device() == Device::cpu)
      GTEST_SKIP() << "graphs are a CUDA device's: LOCKSTEP_DEVICE names none";
  }

  struct Seen {
    std::vector<std::vector<int32_t>> tokens;
    std::vector<std::vector<uint64_t>> hashes;  // of everything shown, a pass each
    int64_t passes = 0;
  };
  Seen serve(EngineOptions options, const std::vector<Request>& requests, bool graph, bool probed) {
    options.device = TestDevice::device();
    options.graph = graph;
    if (options.pages == 0) options.pages = pages_for(requests, options.page_size);
    Engine engine(checkpoint_, ops_of(options.device), options);
    for (const Request& request : requests) engine.submit(request);
    Seen seen;
    Recorder recorder({}, true, [&](const Pass& pass) {
      std::vector<uint64_t>& hashes = seen.hashes.emplace_back();
      for (const RecordedTensor& tensor : pass.tensors) hashes.push_back(tensor.digest.hash);
    });
    Probe probe = probed ? Probe(&recorder) : Probe();
    while (engine.step(probe)) ++seen.passes;
    EXPECT_EQ(probe.failure(), "");
    for (int32_t id = 0; id < engine.requests(); ++id)
      seen.tokens.push_back(engine.sequence(id).tokens);
    return seen;
  }

  std::vector<Request> some_requests(uint64_t seed) {
    std::mt19937_64 random(seed);
    std::vector<Request> requests(1 + random() % 20);
    for (Request& request : requests)
      request = {.prompt = some_tokens(1 + static_cast<int64_t>(random() % 60),
                                       checkpoint_.config().vocab, random()),
                 .max_new = 1 + static_cast<int64_t>(random() % 150),
                 .arrival = static_cast<int64_t>(random() % 30)};
    return requests;
  }

  Checkpoint checkpoint_ = Checkpoint::open(data_path(GetParam()));
};

TEST_P(Graphs, AThousandReplaysChooseWhatTheOpsChoose) {
  int64_t passes = 0;
  for (uint64_t seed = 1; passes < 1200; ++seed) {
    const DType dtype = std::array{DType::bf16, DType::f32, DType::f16}[seed % 3];
    const EngineOptions options{.dtype = dtype,
                                .page_size = std::array<int64_t, 4>{1, 4, 16, 64}[seed % 4],
                                .page_order_seed = seed,
                                .chunk = seed % 2 == 0 ? 16 : 0};
    const std::vector<Request> requests = some_requests(seed);
    const Seen eager = serve(options, requests, false, false);
    const Seen graph = serve(options, requests, true, false);
    EXPECT_EQ(graph.tokens, eager.tokens) << "seed " << seed;
    passes += graph.passes;
  }
}

TEST_P(Graphs, ShowWhatTheOpsShowAndChooseTheSameUnobserved) {
  for (DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    const EngineOptions options{.dtype = dtype, .page_size = 4, .page_order_seed = 3};
    std::vector<Request> requests = some_requests(7);
    for (Request& request : requests) request.max_new = std::min<int64_t>(request.max_new, 12);
    const Seen eager = serve(options, requests, false, true);
    const Seen graph = serve(options, requests, true, true);
    EXPECT_EQ(graph.tokens, eager.tokens);
    ASSERT_GT(eager.hashes.size(), 12u);
    EXPECT_EQ(graph.hashes, eager.hashes);
    EXPECT_EQ(serve(options, requests, true, false).tokens, eager.tokens);
  }
}

// The rotary tables move when they grow, and the page tables widen.
TEST_P(Graphs, OfLongRequestsStayRight) {
  const std::vector<Request> requests = {
      {.prompt = some_tokens(3, checkpoint_.config().vocab, 5), .max_new = 300},
      {.prompt = some_tokens(70, checkpoint_.config().vocab, 6), .max_new = 200}};
  const EngineOptions options{.dtype = DType::bf16, .page_size = 1};
  EXPECT_EQ(serve(options, requests, true, false).tokens,
            serve(options, requests, false, false).tokens);
}

TEST_P(Graphs, OfPreemptedAndSharedRequestsStayRight) {
  for (uint64_t seed : {3, 11, 42}) {
    const EngineOptions options = random_options(seed, DType::bf16);
    const std::vector<Request> requests = family_of_eight(seed % 20, checkpoint_.config().vocab);
    const Seen eager = serve(options, requests, false, true);
    const Seen graph = serve(options, requests, true, true);
    EXPECT_EQ(graph.tokens, eager.tokens) << "seed " << seed;
    EXPECT_EQ(graph.hashes, eager.hashes) << "seed " << seed;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Graphs,
                         testing::Values("bard-qwen3", "bard-qwen2.5", "tiny/qwen3-moe",
                                         "tiny/qwen3-dynamic", "tiny/qwen2-sliding"),
                         model_label);

}  // namespace
}  // namespace lockstep
