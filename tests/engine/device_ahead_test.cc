// A pass that is queued before the tokens of the one before are known is the pass that would have
// been computed after it: engines with graphs, which queue it, and engines that compute op by op,
// which do not, serve the same requests in the same way and must choose the same tokens, show the
// same numbers and give back the same pages. Nothing of this runs on the CPU.
#include "kernels/cuda/cuda_ops.h"
#include "probes/digest_recorder.h"
#include "src/engine/engine.h"
#include "tests/fixtures.h"

namespace lockstep {
namespace {

Device cuda_device() { return {DeviceKind::cuda, lockstep_cuda_devices() - 1}; }

class DeviceAhead : public testing::Test {
 protected:
  void SetUp() override {
    if (lockstep_cuda_devices() == 0) GTEST_SKIP() << "this machine has no CUDA device that works";
    DeviceRuntime runtime;
    ops_ = lockstep_cuda_ops(cuda_device().index, &runtime);
    register_runtime(runtime);
  }

  // What is done before a step; steps are counted from 0.
  using Meanwhile = std::function<void(Engine&, int step)>;
  // Who looks on in a step: nobody, or digests.
  using Watched = std::function<bool(int step)>;

  struct Served {
    std::vector<Pass> passes;  // that were watched
    std::vector<std::vector<int32_t>> tokens;
    std::vector<Ending> endings;
    int64_t free_pages = 0;
    int64_t ahead = 0;  // passes that were computed as they had been queued
  };
  Served serve(const std::vector<Request>& requests, EngineOptions options, bool graph,
               const Meanwhile& meanwhile, const Watched& watched) {
    options.device = cuda_device();
    options.graph = graph;
    options.dtype = DType::bf16;
    if (options.pages == 0) options.pages = 400;
    const Checkpoint checkpoint = Checkpoint::open(data_path(model_));
    Engine engine(checkpoint, *ops_, options);
    for (const Request& request : requests) engine.submit(request);
    Served served;
    DigestRecorder recorder({}, false,
                            [&](Pass pass) { served.passes.push_back(std::move(pass)); });
    Probe none, digests(&recorder);
    for (int step = 0;; ++step) {
      if (meanwhile) meanwhile(engine, step);
      if (!engine.step(watched(step) ? digests : none)) break;
    }
    served.ahead = engine.passes_ahead();
    digests.flush();
    EXPECT_EQ(digests.failure(), "");
    for (int32_t id = 0; id < engine.requests(); ++id) {
      served.tokens.push_back(engine.sequence(id).tokens);
      served.endings.push_back(engine.sequence(id).ending);
    }
    served.free_pages = engine.pool().available();
    return served;
  }

  // Returns what the engine with graphs did.
  Served expect_alike(
      const std::vector<Request>& requests, const EngineOptions& options,
      const Meanwhile& meanwhile = {}, const Watched& watched = [](int) { return true; }) {
    const Served want = serve(requests, options, false, meanwhile, watched);
    Served got = serve(requests, options, true, meanwhile, watched);
    EXPECT_EQ(want.ahead, 0);
    EXPECT_EQ(got.tokens, want.tokens);
    EXPECT_EQ(got.endings, want.endings);
    EXPECT_EQ(got.free_pages, want.free_pages);
    EXPECT_EQ(got.passes.size(), want.passes.size());
    for (size_t i = 0; i < std::min(got.passes.size(), want.passes.size()); ++i)
      expect_same(got.passes[i], want.passes[i]);
    return got;
  }

  static void expect_same(const Pass& got, const Pass& want) {
    SCOPED_TRACE(fmt::format("pass {}", want.info.pass));
    EXPECT_EQ(got.info.pass, want.info.pass);
    ASSERT_EQ(got.info.rows.size(), want.info.rows.size());
    for (size_t i = 0; i < want.info.rows.size(); ++i) {
      EXPECT_EQ(got.info.rows[i].row, want.info.rows[i].row);
      EXPECT_EQ(got.info.rows[i].token, want.info.rows[i].token);
      EXPECT_EQ(got.info.rows[i].phase, want.info.rows[i].phase);
      EXPECT_EQ(got.info.rows[i].slot, want.info.rows[i].slot);
    }
    EXPECT_EQ(got.info.inherited.size(), want.info.inherited.size());
    EXPECT_EQ(got.info.idle.size(), want.info.idle.size());
    EXPECT_EQ(got.info.page_counts.size(), want.info.page_counts.size());
    ASSERT_EQ(got.tensors.size(), want.tensors.size());
    for (size_t i = 0; i < want.tensors.size(); ++i) {
      SCOPED_TRACE(fmt::format("layer {} {}", want.tensors[i].layer, want.tensors[i].point->name));
      EXPECT_EQ(got.tensors[i].rows, want.tensors[i].rows);
      EXPECT_EQ(got.tensors[i].row_hashes, want.tensors[i].row_hashes);
    }
    ASSERT_EQ(got.logits.size(), want.logits.size());
    for (size_t i = 0; i < want.logits.size(); ++i)
      EXPECT_EQ(got.logits[i].chosen, want.logits[i].chosen);
  }

  static std::vector<Request> some_requests(int64_t max_new = 40) {
    std::vector<Request> requests;
    for (int64_t i = 0; i < 3; ++i)
      requests.push_back({.prompt = some_tokens(5 + 9 * i, 200, static_cast<uint64_t>(i)),
                          .max_new = max_new + 7 * i});
    return requests;
  }
  static bool nobody(int /*step*/) { return false; }
  static EngineOptions small_pages() { return {.page_size = 1, .page_order_seed = 3}; }

  const Ops* ops_ = nullptr;
  std::string model_ = "bard-qwen3";
};

TEST_F(DeviceAhead, OfRequestsThatGoOnUntilTheirLength) {
  // Of the 53 steps after the prompts' all but those that are captured, of each number of requests
  // and width of the tables (of digested passes two), and those in which one ends.
  EXPECT_GT(expect_alike(some_requests(), small_pages()).ahead, 40);
  EXPECT_GT(expect_alike(some_requests(), small_pages(), {}, nobody).ahead, 40);
  for (const int64_t page_size : {4, 16, 64})
    expect_alike(some_requests(), {.page_size = page_size, .page_order_seed = 3});
}

// Whose next pass is queued by then, and who hold a page for it.
TEST_F(DeviceAhead, OfTextsThatEndUnforeseen) {
  std::vector<Request> requests = some_requests();
  const Served free = expect_alike(requests, small_pages());
  for (size_t i = 0; i < requests.size(); ++i) {
    // The token of its choice number 5, 13 and 21.
    const size_t last = requests[i].prompt.size() + 5 + 8 * i;
    requests[i].eos = {free.tokens[i][last]};
  }
  for (const bool watched : {true, false})
    for (const bool prefix_cache : {false, true}) {
      EngineOptions options = small_pages();
      options.prefix_cache = prefix_cache;
      const Served ended = expect_alike(requests, options, {}, [&](int) { return watched; });
      EXPECT_EQ(ended.endings, std::vector<Ending>(3, Ending::eos));
      EXPECT_GT(ended.ahead, 5);
      EXPECT_EQ(ended.free_pages, 400);
    }
  // And all in the same step.
  for (size_t i = 0; i < requests.size(); ++i)
    requests[i].prompt = requests[0].prompt, requests[i].eos = requests[0].eos;
  EXPECT_EQ(expect_alike(requests, small_pages()).endings, std::vector<Ending>(3, Ending::eos));
}

TEST_F(DeviceAhead, OfTextsThatAStopTextEnds) {
  std::vector<Request> requests = some_requests();
  const Served free = expect_alike(requests, small_pages());
  EngineOptions options = small_pages();
  options.text_of = [](std::span<const int32_t> tokens) {
    std::string text;
    for (const int32_t token : tokens) text += fmt::format("<{}>", token);
    return text;
  };
  const size_t at = requests[1].prompt.size() + 9;
  requests[1].stop = {fmt::format("<{}><{}>", free.tokens[1][at], free.tokens[1][at + 1])};
  EXPECT_EQ(expect_alike(requests, options).endings[1], Ending::stop);
}

TEST_F(DeviceAhead, OfRequestsToWhichOthersCome) {
  const auto come = [](Engine& engine, int step) {
    if (step == 9 || step == 10 || step == 25)
      engine.submit({.prompt = some_tokens(11 + step, 200, step), .max_new = 12});
    if (step == 15 || step == 31) engine.fork(0, 10);
    if (step == 32) engine.fork(2, 5), engine.fork(2, 6);
  };
  // Fewer where passes are digested, of whose graphs there are two each.
  EXPECT_GT(expect_alike(some_requests(), small_pages(), come, nobody).ahead, 30);
  EXPECT_GT(expect_alike(some_requests(), small_pages(), come).ahead, 26);
  for (const int64_t page_size : {4, 16})
    expect_alike(some_requests(), {.page_size = page_size, .prefix_cache = page_size == 4}, come);
}

TEST_F(DeviceAhead, OfPassesThatAreWatchedNowAndThen) {
  for (const int every : {2, 3, 7})
    expect_alike(some_requests(), small_pages(), {}, [&](int step) { return step % every == 0; });
  expect_alike(some_requests(), small_pages(), {}, [](int step) { return step / 6 % 2 == 0; });
}

// Whose tables are written anew for each pass, while the last one may still read its own.
TEST_F(DeviceAhead, OfAModelWhoseAnglesDependOnTheLength) {
  model_ = "tiny/qwen3-dynamic";
  for (int round = 0; round < 4; ++round) {
    EXPECT_GT(expect_alike(some_requests(), small_pages()).ahead, 10);
    expect_alike(some_requests(), small_pages(), {}, nobody);
  }
}

// While others wait for pages nothing is queued ahead; and the first pass of one that got its pages
// back has its rows in another order than the one after it.
TEST_F(DeviceAhead, OfRequestsThatLoseTheirPages) {
  for (const Preempt preempt : {Preempt::recompute, Preempt::swap}) {
    EngineOptions options = small_pages();
    options.pages = 100;  // of the 182 that they need
    options.preempt = preempt;
    EXPECT_GT(expect_alike(some_requests(), options).ahead, 20);
    std::vector<Request> requests = some_requests();
    for (Request& request : requests) request.samples = 2;
    for (const int64_t pages : {80, 90, 120, 150}) {
      options.pages = pages;
      expect_alike(requests, options);
    }
    // One that is forked where a page ends shares the page that it got ahead with nobody.
    options.pages = 48;
    for (const int at : {3, 4, 5, 6, 7})
      expect_alike(some_requests(10), options, [at](Engine& engine, int step) {
        if (step == at) engine.fork(0, 6), engine.fork(1, 3);
      });
  }
}

TEST_F(DeviceAhead, OfRequestsThatNobodyCanForesee) {
  std::vector<Request> requests = some_requests(20);
  requests[0].sampling = {.temperature = 1.0, .seed = 5};
  EXPECT_GT(expect_alike(requests, small_pages()).ahead, 0);  // when it has ended
  requests = some_requests(20);
  requests[1].forced = some_tokens(30, 200, 9);
  requests[2].samples = 3;
  expect_alike(requests, small_pages());
  requests = some_requests(20);
  for (Request& request : requests) request.sampling.logprobs = 2;
  EXPECT_EQ(expect_alike(requests, small_pages()).ahead, 0);
  requests = some_requests(20);
  EngineOptions options = small_pages();
  options.random_schedule_seed = 7;
  EXPECT_EQ(expect_alike(requests, options).ahead, 0);
}

// Another engine takes the memory of one that is left with a pass queued.
TEST_F(DeviceAhead, OfAnEngineThatIsLeft) {
  const Served want = serve(some_requests(), small_pages(), true, {}, nobody);
  const Checkpoint checkpoint = Checkpoint::open(data_path("bard-qwen3"));
  for (int i = 0; i < 20; ++i) {
    EngineOptions options = small_pages();
    options.device = cuda_device(), options.graph = true, options.pages = 400;
    Engine left(checkpoint, *ops_, options);
    for (const Request& request : some_requests()) left.submit(request);
    Probe probe;
    for (int step = 0; step < 10; ++step) left.step(probe);
  }
  EXPECT_EQ(serve(some_requests(), small_pages(), true, {}, nobody).tokens, want.tokens);
}

}  // namespace
}  // namespace lockstep
