// Digests made on a device are those that the host makes of the same tensors, and the passes are
// the same with them and without. Nothing of this runs on the CPU.
#include "src/engine/device_digests.h"

#include <chrono>
#include <thread>

#include "kernels/cuda/cuda_ops.h"
#include "probes/digest_recorder.h"
#include "src/bench/synthetic.h"
#include "src/model/persistent_executor.h"
#include "tests/fixtures.h"

namespace lockstep {
namespace {

Device cuda_device() { return {DeviceKind::cuda, lockstep_cuda_devices() - 1}; }

class DeviceDigestsTest : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    const int devices = lockstep_cuda_devices();
    if (devices == 0) GTEST_SKIP() << "this machine has no CUDA device that works";
    DeviceRuntime runtime;
    ops_ = lockstep_cuda_ops(cuda_device().index, &runtime);
    register_runtime(runtime);
  }
  static bool graph() { return GetParam(); }

  struct Seen {
    std::vector<Pass> passes;
    std::vector<std::vector<int32_t>> tokens;
    std::string failure;
    DigestRing::Waits waits;
  };
  Seen serve(const std::string& model, const std::vector<Request>& requests, DType dtype,
             const std::function<std::unique_ptr<Sink>(std::vector<Pass>&)>& sink) {
    return serve(Checkpoint::open(data_path(model)), requests,
                 {.dtype = dtype, .page_size = 4, .page_order_seed = 3, .chunk = 16}, sink);
  }
  Seen serve(const Checkpoint& checkpoint, const std::vector<Request>& requests,
             EngineOptions options,
             const std::function<std::unique_ptr<Sink>(std::vector<Pass>&)>& sink) {
    options.device = cuda_device();
    options.graph = graph();
    options.pages = pages_for(requests, options.page_size);
    Engine engine(checkpoint, *ops_, options);
    for (const Request& request : requests) engine.submit(request);
    Seen seen;
    const std::unique_ptr<Sink> of = sink(seen.passes);
    Probe probe(of.get());
    while (engine.step(probe)) {
    }
    seen.failure = probe.failure();
    if (const DigestRing* ring = probe.digests()) seen.waits = ring->waits();
    for (int32_t id = 0; id < engine.requests(); ++id)
      seen.tokens.push_back(engine.sequence(id).tokens);
    return seen;
  }
  static auto on_host(const Selection& selection = {}) {
    return [=](std::vector<Pass>& passes) {
      return std::make_unique<Recorder>(selection, true,
                                        [&](Pass pass) { passes.push_back(std::move(pass)); });
    };
  }
  static auto on_device(bool tensors, const Selection& selection = {}) {
    return [=](std::vector<Pass>& passes) {
      return std::make_unique<DigestRecorder>(
          selection, tensors, [&](Pass pass) { passes.push_back(std::move(pass)); });
    };
  }
  static auto no_sink() {
    return [](std::vector<Pass>&) { return std::unique_ptr<Sink>(); };
  }
  static std::vector<Request> some_requests(int64_t vocab) {
    std::vector<Request> requests;
    for (int64_t i = 0; i < 5; ++i)
      requests.push_back({.prompt = some_tokens(3 + 7 * i, vocab, static_cast<uint64_t>(i)),
                          .max_new = 20 - 3 * i,
                          .arrival = 2 * i});
    return requests;
  }

  void expect_made_meanwhile(int64_t vocab);

  const Ops* ops_ = nullptr;
};

void expect_alike(const Pass& got, const Pass& want) {
  ASSERT_EQ(got.tensors.size(), want.tensors.size());
  for (size_t i = 0; i < got.tensors.size(); ++i) {
    const RecordedTensor &g = got.tensors[i], &w = want.tensors[i];
    SCOPED_TRACE(fmt::format("pass {} layer {} {}", want.info.pass, w.layer, w.point->name));
    EXPECT_EQ(*g.point, *w.point);
    EXPECT_EQ(g.layer, w.layer);
    EXPECT_EQ(g.rows, w.rows);
    EXPECT_EQ(g.dtype, w.dtype);
    EXPECT_EQ(g.shape, w.shape);
    EXPECT_EQ(g.digest.hash, w.digest.hash);
    EXPECT_EQ(g.digest.count, w.digest.count);
    EXPECT_EQ(g.digest.nan, w.digest.nan);
    EXPECT_EQ(g.digest.absmax_index, w.digest.absmax_index);
    EXPECT_EQ(g.digest.exponents, w.digest.exponents);
    EXPECT_EQ(g.row_hashes, w.row_hashes);
    EXPECT_EQ(w.digest.has_numbers(), !w.point->is_cache());
    if (!w.digest.has_numbers()) continue;
    EXPECT_EQ(g.digest.absmax, w.digest.absmax);
    EXPECT_EQ(g.digest.zeros, w.digest.zeros);
    EXPECT_NEAR(g.digest.m2, w.digest.m2, 1e-12 * w.digest.m2);
  }
  ASSERT_EQ(got.logits.size(), want.logits.size());
  for (size_t i = 0; i < got.logits.size(); ++i) {
    EXPECT_EQ(got.logits[i].ids, want.logits[i].ids);
    EXPECT_EQ(got.logits[i].values, want.logits[i].values);
    EXPECT_EQ(got.logits[i].chosen, want.logits[i].chosen);
  }
}

TEST_P(DeviceDigestsTest, AreThoseOfTheHostAndChangeNothing) {
  for (const char* model : {"bard-qwen3", "bard-qwen2.5", "tiny/qwen3-moe"})
    for (DType dtype : {DType::bf16, DType::f32, DType::f16}) {
      SCOPED_TRACE(fmt::format("{} {}", model, name_of(dtype)));
      const auto requests = some_requests(200);
      const Seen want = serve(model, requests, dtype, on_host());
      const Seen got = serve(model, requests, dtype, on_device(false));
      EXPECT_EQ(got.failure, "");
      EXPECT_EQ(got.tokens, want.tokens);
      EXPECT_EQ(got.tokens, serve(model, requests, dtype, no_sink()).tokens);
      ASSERT_EQ(got.passes.size(), want.passes.size());
      EXPECT_EQ(got.waits.passes, std::ssize(want.passes));
      for (size_t i = 0; i < got.passes.size(); ++i) {
        expect_alike(got.passes[i], want.passes[i]);
        for (const RecordedTensor& tensor : got.passes[i].tensors)
          EXPECT_TRUE(tensor.data.view().empty());
      }
    }
}

TEST_P(DeviceDigestsTest, BringTheTensorsThatAreKeptAndNoOthers) {
  const Selection some("attn.q,attn.kv,mlp.*,logits", "1,3", "", "");
  const auto requests = some_requests(200);
  const Seen want = serve("bard-qwen3", requests, DType::bf16, on_host(some));
  const Seen got = serve("bard-qwen3", requests, DType::bf16, on_device(true, some));
  EXPECT_EQ(got.failure, "");
  ASSERT_EQ(got.passes.size(), want.passes.size());
  for (size_t i = 0; i < got.passes.size(); ++i) {
    expect_alike(got.passes[i], want.passes[i]);
    for (const RecordedTensor& tensor : got.passes[i].tensors)
      if (tensor.point->is_cache())
        EXPECT_TRUE(tensor.data.view().empty());
      else
        EXPECT_EQ(digest_of(tensor.data).hash, tensor.digest.hash);
  }
}

// Some of the launches have nothing to do then.
TEST_P(DeviceDigestsTest, OfFewPointsAreTheSameToo) {
  const auto requests = some_requests(200);
  for (const char* points : {"attn.kv", "attn.q,logits", "token", "embed"}) {
    const Selection some(points, "", "", "");
    const Seen want = serve("bard-qwen3", requests, DType::bf16, on_host(some));
    const Seen got = serve("bard-qwen3", requests, DType::bf16, on_device(true, some));
    EXPECT_EQ(got.failure, "");
    ASSERT_EQ(got.passes.size(), want.passes.size()) << points;
    for (size_t i = 0; i < got.passes.size(); ++i) expect_alike(got.passes[i], want.passes[i]);
  }
}

// With positions that it leaves out, a digest is of other rows than the tensor has.
TEST_P(DeviceDigestsTest, OfSomeRowsAreMadeOnTheHost) {
  const Selection some("attn.q", "", "4-9", "");
  const auto requests = some_requests(200);
  const Seen want = serve("bard-qwen3", requests, DType::bf16, on_host(some));
  const Seen got = serve("bard-qwen3", requests, DType::bf16, on_device(false, some));
  EXPECT_EQ(got.waits.passes, 0);
  ASSERT_EQ(got.passes.size(), want.passes.size());
  for (size_t i = 0; i < got.passes.size(); ++i) expect_alike(got.passes[i], want.passes[i]);
}

// One that takes its time, so that the engine has to wait: nothing is lost, and it is said.
TEST_P(DeviceDigestsTest, OfASlowTakerAreWaitedForAndCounted) {
  const auto requests = some_requests(200);
  const Seen seen = serve("bard-qwen3", requests, DType::bf16, [](std::vector<Pass>& passes) {
    return std::make_unique<DigestRecorder>(Selection(), false, [&](Pass pass) {
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
      passes.push_back(std::move(pass));
    });
  });
  EXPECT_EQ(seen.waits.passes, std::ssize(seen.passes));
  EXPECT_GT(seen.waits.waited, 0);
  EXPECT_GT(seen.waits.seconds, 0.03);
  for (size_t i = 0; i < seen.passes.size(); ++i)
    EXPECT_EQ(seen.passes[i].info.pass, static_cast<int32_t>(i));
}

TEST_P(DeviceDigestsTest, OfATakerThatThrowsAreLeftAndTheEngineGoesOn) {
  const auto requests = some_requests(200);
  const Seen seen = serve("bard-qwen3", requests, DType::bf16, [](std::vector<Pass>& passes) {
    return std::make_unique<DigestRecorder>(Selection(), false, [&](Pass pass) {
      passes.push_back(std::move(pass));
      check(passes.size() < 3, "no room for a third pass");
    });
  });
  EXPECT_EQ(seen.passes.size(), 3u);
  EXPECT_EQ(seen.failure, "no room for a third pass");
  EXPECT_EQ(seen.tokens, serve("bard-qwen3", requests, DType::bf16, no_sink()).tokens);
}

// Steps of one launch that others digest while it goes on: of 4, 2 and 1 requests, of contexts up
// to more than a page table's first room.
void DeviceDigestsTest::expect_made_meanwhile(int64_t vocab) {
  const Checkpoint checkpoint = synthetic_checkpoint(R"({"vocab_size": )" + std::to_string(vocab) +
                                                     R"(, "architectures": ["Qwen3ForCausalLM"],
      "model_type": "qwen3", "hidden_size": 1024, "num_hidden_layers": 3,
      "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
      "intermediate_size": 3072, "max_position_embeddings": 4096,
      "rms_norm_eps": 1e-06, "rope_theta": 1000000, "tie_word_embeddings": true,
      "hidden_act": "silu", "attention_bias": false, "torch_dtype": "bfloat16"})");
  std::vector<Request> requests;
  for (int64_t i = 0; i < 4; ++i)
    requests.push_back(
        {.prompt = some_tokens(i == 3 ? 150 : 3 + 9 * i, vocab, i + 1ull), .max_new = 5 + 5 * i});
  const auto served = [&](const auto& sink) {
    return serve(checkpoint, requests,
                 {.dtype = DType::bf16,
                  .page_order_seed = 3,
                  .make_executor = persistent_executors(checkpoint.config(), DType::bf16, *ops_)},
                 sink);
  };
  const Seen want = served(on_host()), got = served(on_device(false)),
             kept = served(on_device(true));
  for (const Seen* seen : {&got, &kept}) {
    EXPECT_EQ(seen->failure, "");
    EXPECT_EQ(seen->tokens, want.tokens);
    ASSERT_EQ(seen->passes.size(), want.passes.size());
    for (size_t i = 0; i < want.passes.size(); ++i) expect_alike(seen->passes[i], want.passes[i]);
  }
}

TEST_P(DeviceDigestsTest, OfALaunchAreMadeWhileItGoesOn) {
  if (ops_->fused.decode_step == nullptr) GTEST_SKIP() << "this device has no decode step";
  // Logits that are dealt to the blocks of a step evenly, such that some have none of the last, and
  // so many that one row of them is digested in parts.
  for (const int64_t vocab : {20016, 18000, 151936}) {
    SCOPED_TRACE(vocab);
    expect_made_meanwhile(vocab);
  }
}

INSTANTIATE_TEST_SUITE_P(Paths, DeviceDigestsTest, testing::Bool(), [](const auto& info) {
  return std::string(info.param ? "Graph" : "OpByOp");
});

}  // namespace
}  // namespace lockstep
