// An op that takes its process with it leaves what it read behind.
#include "src/session/record_before.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "probes/qwen_graph.h"
#include "tests/host_device.h"
#include "tests/lockstep_binary.h"
#include "tests/places.h"
#include "traces/trace.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

class RecordBeforeTest : public testing::Test {
 protected:
  void SetUp() override { fs::create_directory(folder_); }
  void TearDown() override { fs::remove_all(folder_); }

  std::string generate(const std::string& arguments) const {
    return "generate --model " + data_path("bard-qwen3") +
           " --tokens 1,2,3 --tokens 7 --max-new 3 --dtype fp32 --trace " + folder_ +
           "/x.trace --record-before " + arguments;
  }
  const std::string folder_ = temp_path("before");
  const std::string file_ = folder_ + "/x.before.h5";
  const std::string abort_ = " --ops " + built_path("plugin_aborting_silu_mul.so 2>/dev/null");
};

TEST_F(RecordBeforeTest, TheInputsOfAnOpThatEndsTheProcessCanBeRead) {
  EXPECT_EQ(call_lockstep(generate("mlp.act" + abort_)).status, 2);
  const auto trace = open_trace(file_);
  EXPECT_TRUE(trace->complete());
  EXPECT_EQ(trace->manifest().provenance.at("before"), "layer 2 mlp.act, pass 0");
  ASSERT_EQ(trace->passes(), 1);
  const Pass pass = trace->read(0, true);
  EXPECT_EQ(pass.info.rows.size(), 4u);
  ASSERT_EQ(pass.tensors.size(), 2u);
  const auto outcome = call_lockstep("inspect " + file_ + " --format json");
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  for (const char* name : {"mlp.gate", "mlp.up"}) {
    const RecordedTensor* tensor = pass.find(*find_point(name), 2);
    ASSERT_NE(tensor, nullptr) << name;
    EXPECT_GT(digest_of(tensor->data).absmax, 0) << name;
    EXPECT_NE(outcome.out.find(name), std::string::npos) << outcome.out;
  }
}

// They are those that the op reads: what a run without the library shows there.
TEST_F(RecordBeforeTest, TheInputsAreWhatTheOpWouldHaveRead) {
  EXPECT_EQ(call_lockstep(generate("mlp.act" + abort_)).status, 2);
  const auto trace = open_trace(file_);
  const Pass left = trace->read(0, true);
  const Served served = serve(Checkpoint::open(data_path("bard-qwen3")), {.dtype = DType::f32},
                              {{.prompt = {1, 2, 3}, .max_new = 3}, {.prompt = {7}, .max_new = 3}});
  const RecordedTensor* gate = left.find(point("mlp.gate"), 2);
  ASSERT_NE(gate, nullptr);
  const RecordedTensor* want = served.passes[0].find(point("mlp.gate"), 2);
  EXPECT_EQ(gate->rows, want->rows);
  for (int64_t i = 0; i < want->shape.count(); ++i)
    EXPECT_NEAR(value_at(gate->data, i), value_at(want->data, i), 1e-5);
}

TEST_F(RecordBeforeTest, OfAnAttentionItIsTheCacheToo) {
  EXPECT_EQ(call_lockstep(generate("attn.out" + abort_)).status, 2);
  const Pass pass = open_trace(file_)->read(0, true);
  EXPECT_EQ(pass.tensors.size(), 3u);  // the queries, and what each request has in the cache
  EXPECT_NE(pass.find(point("attn.q_rope"), 2), nullptr);
  const RecordedTensor* kv = pass.find(point("attn.kv"), 2, 1);
  ASSERT_NE(kv, nullptr);
  EXPECT_EQ(kv->rows.size(), 1u);
}

TEST_F(RecordBeforeTest, NothingIsLeftWhenAllOpsComeBack) {
  const auto outcome = call_lockstep(generate("'attn.*,token,embed'"));
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_FALSE(fs::exists(file_));
  EXPECT_FALSE(fs::exists(file_ + ".part"));
  const auto trace = open_trace(folder_ + "/x.trace");
  EXPECT_TRUE(trace->complete());
  EXPECT_EQ(trace->passes(), 3);
}

class RecordBeforeOfADevice : public HostDevice {};

// A device finds trouble long after the launch: by then the inputs of the next op must not have
// taken the place of those of the one at fault.
TEST_F(RecordBeforeOfADevice, LeavesTheInputsOfTheOpWhoseKernelFailed) {
  static bool failed;
  DeviceRuntime device = runtime_of(Device::cuda);
  device.wait = [](CUstream_st*) {
    if (failed) throw Error("a kernel failed");
  };
  register_runtime(device);
  const TempFolder folder;
  RecordBefore before("attn.q,attn.k", folder / "x.trace", Device::cuda);
  Ops ops = cpu_ops();
  ops.matmul = [](const OpContext&, const auto&...) { failed = true; };
  before.wrap(ops);
  before.expect({.graph = qwen_graph({.layers = 1})});
  before.begin({});
  failed = false;
  ops.matmul({.layer = 0, .point = "attn.q"}, {}, {}, {}, {});
  EXPECT_EQ(error_of([&] { ops.matmul({.layer = 0, .point = "attn.k"}, {}, {}, {}, {}); }),
            "a kernel failed");
  EXPECT_EQ(open_trace(before.path())->manifest().provenance.at("before"),
            "layer 0 attn.q, pass 0");
}

TEST_F(RecordBeforeTest, RefusesWhatItCannotDo) {
  const std::string bare = "generate --model " + data_path("bard-qwen3") + " --tokens 1 ";
  EXPECT_NE(trouble_of(bare + "--record-before attn.out").find("--trace"), std::string::npos);
  EXPECT_NE(trouble_of(generate("attn.outt")).find("attn.out"), std::string::npos);
  std::ofstream(file_) << "mine";
  EXPECT_NE(trouble_of(generate("attn.out")).find(file_), std::string::npos);
}

TEST_F(RecordBeforeTest, ATraceIsKeptOfWhatIsGenerated) {
  for (const char* keep : {"digest", "full"}) {
    const std::string path = folder_ + "/" + keep + ".trace";
    const auto outcome =
        call_lockstep("generate --model " + data_path("bard-qwen3") +
                      " --tokens 1,2,3 --max-new 3 --trace " + path + " --keep " + keep);
    EXPECT_EQ(outcome.status, 0);
    EXPECT_EQ(outcome.err, "") << "on the CPU nothing waits";
    const auto trace = open_trace(path);
    EXPECT_TRUE(trace->complete());
    ASSERT_EQ(trace->passes(), 3);
    const Pass pass = trace->read(1, true);
    EXPECT_EQ(pass.logits.size(), 1u);
    for (const RecordedTensor& tensor : pass.tensors)
      EXPECT_EQ(tensor.data.view().empty(),
                std::string(keep) == "digest" || tensor.point->is_cache());
  }
  EXPECT_NE(trouble_of("generate --model " + data_path("bard-qwen3") +
                       " --tokens 1 --keep flagged" + " --trace " + folder_ + "/x.trace")
                .find("--keep"),
            std::string::npos);
}

}  // namespace
}  // namespace lockstep
