// The bits of each op, served again and again: an engine that is right keeps what its headers
// promise, and an op that does not is named with what its bits depend on.
#include "src/session/determinism.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <memory>
#include <set>
#include <span>

#include "src/judge/ledger.h"
#include "src/report/report.h"
#include "tests/device.h"
#include "tests/fixtures.h"
#include "tests/lockstep_binary.h"
#include "tests/report/json_schema.h"

namespace lockstep {
namespace {

const Checkpoint& checkpoint_of(const std::string& name) {
  static std::map<std::string, Checkpoint> open;
  return open.try_emplace(name, Checkpoint::open(data_path(name))).first->second;
}

DeterminismRun run_of(const std::string& model, Ops ops = cpu_ops()) {
  const Checkpoint& checkpoint = checkpoint_of(model);
  return {.checkpoint = checkpoint,
          .engine = {.dtype = DType::bf16, .page_order_seed = 5},
          .requests = {{.prompt = some_tokens(5, checkpoint.config().vocab, 1), .max_new = 3}},
          .repeats = 2,
          .ops = std::move(ops)};
}

const OpBits& bits_of(const Determinism& result, const Place& place) {
  const auto found = std::ranges::find(result.ops, place, &OpBits::place);
  EXPECT_NE(found, result.ops.end()) << text_of(place);
  return *found;
}

// The places that break a promise.
std::vector<std::string> broken(const Determinism& result) {
  std::vector<std::string> places;
  for (const OpBits& op : result.ops)
    if (!op.allowed) places.push_back(text_of(op.place));
  return places;
}

void expect_promises(const Determinism& result, const std::string& what) {
  EXPECT_EQ(result.verdict, RunVerdict::clean) << what << ": " << result.story;
  EXPECT_EQ(exit_status(result), 0);
  EXPECT_EQ(broken(result), std::vector<std::string>{}) << what;
  for (const OpBits& op : result.ops) {
    EXPECT_GT(op.compared, 0) << text_of(op.place);
    if (row_of(op.place.point->op).has_matrix) continue;
    EXPECT_EQ(op.bits, OpBits::SameFor::always)
        << text_of(op.place) << " depends on " << text_of(op);
  }
}

TEST(Determinism, AnEngineThatIsRightKeepsItsPromises) {
  for (const char* model : {"bard-qwen3", "bard-qwen2.5", "tiny/qwen3-moe"})
    expect_promises(run_determinism(run_of(model)), model);
}

// Few rows take the matrix-vector path (kernels/matmul.h), which in fp32 shows in the bits of
// nearly every product: the comparison can see, and products may.
TEST(Determinism, ProductsOfFewRowsAreSeenToDependOnTheBatch) {
  DeterminismRun run = run_of("bard-qwen3");
  run.engine.dtype = DType::f32;
  const Determinism result = run_determinism(run);
  expect_promises(result, "fp32");
  const OpBits& q = bits_of(result, {&point("attn.q"), 0});
  EXPECT_NE(q.bits, OpBits::SameFor::always);
  EXPECT_EQ(std::ranges::count(q.depends_on, Circumstance::batch), 1) << text_of(q);
  for (const Circumstance by : q.depends_on)
    EXPECT_TRUE(by == Circumstance::batch || by == Circumstance::place) << text_of(q);
  EXPECT_EQ(q.terms, 192);
  // How many kinds of bits, and whether rows of one batch have several, oneDNN's choice of kernels
  // for this processor decides: with AVX2 alone they have.
  EXPECT_GE(q.prefill.size(), 2u) << text_of(q);
  EXPECT_NE(text_of(q).find("its sum of 192 products"), std::string::npos) << text_of(q);
}

// Sums the squares of a row from the other end where the batch has more rows.
TEST(Determinism, ASumInAnotherOrderForLargerBatchesIsNamed) {
  Ops ops = cpu_ops();
  ops.rms_norm = [](const OpContext&, TensorView out, TensorView x, TensorView weight, float eps) {
    const int64_t width = weight.count(), rows = x.count() / width;
    for (int64_t row = 0; row < rows; ++row) {
      float squares = 0;
      for (int64_t i = 0; i < width; ++i) {
        const int64_t at = out.shape.rank() == 2 && out.rows() > 2 ? width - 1 - i : i;
        const auto value = static_cast<float>(value_at(x, row * width + at));
        squares += value * value;
      }
      const float scale = 1 / std::sqrt(squares / static_cast<float>(width) + eps);
      for (int64_t i = 0; i < width; ++i)
        out.as<float>()[row * width + i] = static_cast<float>(value_at(x, row * width + i)) *
                                           scale * static_cast<float>(value_at(weight, i));
    }
  };
  DeterminismRun run = run_of("bard-qwen3", std::move(ops));
  run.engine.dtype = DType::f32;
  const Determinism result = run_determinism(run);
  EXPECT_EQ(result.verdict, RunVerdict::diverged);
  EXPECT_EQ(exit_status(result), 1);
  EXPECT_TRUE(result.story.starts_with("layer 0 attn.norm depends on the batch")) << result.story;
  const OpBits& norm = bits_of(result, {&point("attn.norm"), 0});
  EXPECT_EQ(norm.bits, OpBits::SameFor::of_batch);
  EXPECT_EQ(norm.decode, (std::vector<std::vector<int64_t>>{{1, 2}, {4, 8}}));
  EXPECT_NE(text_of(norm).find("1, 2 | 4, 8 rows of a decode pass"), std::string::npos)
      << text_of(norm);
  EXPECT_NE(text_of(norm).find("squares"), std::string::npos) << text_of(norm);
  EXPECT_GE(norm.ulps, 1);
  EXPECT_LT(norm.ulps, 32);
  for (const std::string& place : broken(result))
    EXPECT_NE(place.find("norm"), std::string::npos) << place << " had equal inputs";
}

TEST(Determinism, AnOpWhoseBitsAreChanceIsNamed) {
  auto calls = std::make_shared<std::atomic<int>>(0);
  Ops ops = cpu_ops();
  ops.silu_mul = [inner = ops.silu_mul, calls](const OpContext& context, TensorView out,
                                               TensorView gate, TensorView up) {
    inner(context, out, gate, up);
    if (context.layer == 2 && calls->fetch_add(1) % 5 == 1) out.as<uint16_t>()[5] ^= 1;
  };
  const Determinism result = run_determinism(run_of("bard-qwen2.5", std::move(ops)));
  EXPECT_EQ(result.verdict, RunVerdict::diverged);
  EXPECT_EQ(broken(result), std::vector<std::string>{"layer 2 mlp.act"});
  const OpBits& act = bits_of(result, {&point("mlp.act"), 2});
  EXPECT_EQ(act.bits, OpBits::SameFor::vary);
  EXPECT_EQ(act.depends_on, std::vector<Circumstance>{Circumstance::nothing});
  EXPECT_LE(act.ulps, 1);
  EXPECT_GT(act.ulps, 0);
}

// Attention reads what it is given and is right: the cache is what varies.
TEST(Determinism, AWriteToTheCacheThatIsChanceIsNamed) {
  auto calls = std::make_shared<std::atomic<int>>(0);
  Ops ops = cpu_ops();
  ops.kv_write = [inner = ops.kv_write, calls](const OpContext& context, KvCache cache,
                                               TensorView k, TensorView v, TensorView slots) {
    inner(context, cache, k, v, slots);
    if (context.layer == 1 && calls->fetch_add(1) % 5 == 1)
      cache.v.as<uint16_t>()[slots.as<const int64_t>()[0] * v.row_size() + 3] ^= 1;
  };
  const Determinism result = run_determinism(run_of("bard-qwen2.5", std::move(ops)));
  EXPECT_EQ(result.verdict, RunVerdict::diverged);
  EXPECT_TRUE(result.story.starts_with("layer 1 attn.kv depends on chance")) << result.story;
  const OpBits& kv = bits_of(result, {&point("attn.kv"), 1});
  EXPECT_EQ(kv.depends_on, std::vector<Circumstance>{Circumstance::nothing});
  EXPECT_EQ(kv.ulps, 1);
}

TEST(Determinism, AChoiceOfTokensThatIsChanceIsNamed) {
  auto calls = std::make_shared<std::atomic<int>>(0);
  Ops ops = cpu_ops();
  ops.argmax = [inner = ops.argmax, calls](const OpContext& context, TensorView out,
                                           TensorView logits) {
    inner(context, out, logits);
    if (calls->fetch_add(1) % 5 == 4) out.as<int32_t>()[0] ^= 1;
  };
  const Determinism result = run_determinism(run_of("bard-qwen3", std::move(ops)));
  EXPECT_EQ(result.verdict, RunVerdict::diverged);
  EXPECT_EQ(broken(result), std::vector<std::string>{"token"});
  EXPECT_TRUE(result.story.starts_with("token depends on chance")) << result.story;
}

TEST(Determinism, AnOpThatDependsOnItsPlaceInTheBatchIsNamed) {
  Ops ops = cpu_ops();
  ops.add = [inner = ops.add](const OpContext& context, TensorView out, TensorView a,
                              TensorView b) {
    inner(context, out, a, b);
    // The third row of four, where each is one request's.
    if (context.layer == 1 && context.point == "attn.residual" && out.rows() == 4)
      out.as<uint16_t>()[2 * out.row_size()] ^= 1;
  };
  const Determinism result = run_determinism(run_of("bard-qwen3", std::move(ops)));
  EXPECT_EQ(broken(result), std::vector<std::string>{"layer 1 attn.residual"});
  const OpBits& add = bits_of(result, {&point("attn.residual"), 1});
  EXPECT_EQ(add.depends_on, std::vector<Circumstance>{Circumstance::place});
}

// Kernels choose into how many parts they split the keys by the longest context of the batch.
TEST(Determinism, AnAttentionThatSplitsByTheLongestOfTheBatchIsNamed) {
  Ops ops = cpu_ops();
  ops.paged_attention = [inner = ops.paged_attention](
                            const OpContext& context, TensorView out, TensorView q, KvCache cache,
                            AttentionBatch batch, float scale, int64_t window) {
    inner(context, out, q, cache, batch, scale, window);
    const std::span lengths(batch.context_length.as<const int32_t>(),
                            static_cast<size_t>(batch.context_length.count()));
    if (std::ranges::max(lengths) <= 15) return;
    for (int64_t row = 0; row < out.rows(); ++row)
      out.as<uint16_t>()[row * out.row_size() + 3] ^= 1;
  };
  const Determinism result = run_determinism(run_of("bard-qwen3", std::move(ops)));
  EXPECT_EQ(result.verdict, RunVerdict::diverged) << result.story;
  EXPECT_EQ(broken(result).size(), 6U);
  for (const std::string& place : broken(result))
    EXPECT_NE(place.find("attn.out"), std::string::npos) << place;
  const OpBits& attention = bits_of(result, {&point("attn.out"), 0});
  EXPECT_EQ(attention.depends_on, std::vector<Circumstance>{Circumstance::lengths});
  EXPECT_NE(result.story.find("the lengths of other requests in the batch"), std::string::npos)
      << result.story;
}

// A wider part of the columns may be summed otherwise (kernels/matmul.h).
TEST(Determinism, AProductMayDependOnTheThreadsAndThatIsSaid) {
  Ops ops = cpu_ops();
  ops.matmul = [inner = ops.matmul](const OpContext& context, TensorView out, TensorView x,
                                    const WeightView& weight, TensorView bias) {
    inner(context, out, x, weight, bias);
    const bool alone = context.threads == nullptr || context.threads->size() == 1;
    if (context.point == "mlp.down" && alone) out.as<BFloat16>()[0] = from_float<BFloat16>(1);
  };
  DeterminismRun run = run_of("bard-qwen3", std::move(ops));
  run.engine.threads = 2;
  const Determinism result = run_determinism(run);
  EXPECT_EQ(exit_status(result), 0) << result.story;
  EXPECT_NE(result.story.find(", 6 give others by the number of threads"), std::string::npos)
      << result.story;
  EXPECT_TRUE(result.story.ends_with(", which headers leave to products with weights"))
      << result.story;
}

TEST(Determinism, OnceIsRefused) {
  DeterminismRun run = run_of("bard-qwen3");
  run.repeats = 1;
  EXPECT_NE(error_of([&] { run_determinism(run); }).find("at least twice"), std::string::npos);
}

TEST(Determinism, TheCommandSaysItInAllForms) {
  const std::string call =
      "run --model " + data_path("bard-qwen3") + " --tokens 5,6,7,8 --max-new 2 --determinism 2";
  const Outcome text = call_lockstep(call);
  EXPECT_EQ(text.status, 0) << text.out << text.err;
  EXPECT_NE(text.out.find("always the same"), std::string::npos) << text.out;
  EXPECT_NE(text.out.find("\nclean: "), std::string::npos) << text.out;
  const Json rules = schema_of("determinism");
  const Json json = Json::parse(call_lockstep(call + " --format json").out);
  EXPECT_EQ(violation(json, rules, rules), "");
  EXPECT_EQ(json["verdict"], "clean");
  EXPECT_NE(trouble_of(call + " --modes all").find("--determinism"), std::string::npos);
  const Json seeded =
      Json::parse(call_lockstep(call + " --fault rope-interleaved@layer=1 --format json").out);
  EXPECT_EQ(violation(seeded, rules, rules), "");
  EXPECT_EQ(seeded["verdict"], "clean") << "every serving has it";
  bool said = false;
  for (const std::string note : seeded["notes"])
    said |= note.starts_with("nothing shows the seeded rope-interleaved@layer=1, and whether");
  EXPECT_TRUE(said) << seeded["notes"];
}

// In fp32, where the sum of a row shows in its bits.
TEST(Determinism, AUsersLibraryThatDependsOnTheBatchIsNamed) {
  const Outcome outcome = call_lockstep(
      "run --model " + data_path("bard-qwen3") + " --dtype fp32 --tokens 5,6,7,8 --max-new 3 " +
      "--determinism 2 --ops " + built_path("plugin_batch_rms_norm.so") + " --format json");
  EXPECT_EQ(outcome.status, 1) << outcome.out << outcome.err;
  const Json rules = schema_of("determinism");
  const Json json = Json::parse(outcome.out);
  EXPECT_EQ(violation(json, rules, rules), "");
  std::set<std::string> wrong;
  for (const Json& op : json["ops"]) {
    if (op["allowed"]) continue;
    wrong.insert(op["point"]);
    EXPECT_EQ(op["depends_on"], Json::array({"batch"}));
    EXPECT_EQ(op["rows_of_decode"], Json::array({{1, 2}, {4, 8}})) << op;
  }
  EXPECT_TRUE(wrong.contains("attn.norm")) << outcome.out;
  for (const std::string& point : wrong) EXPECT_TRUE(point.ends_with("norm")) << point;
}

// Such an engine cannot be given what an op had in another serving: an op would be blamed for what
// it was given in this one.
TEST(Determinism, IsOfNoEngineThatShowsWhatItComputedWhenAllOfItIs) {
  DeterminismRun run = run_of("tiny/qwen3-default");
  run.engine.make_executor = [](const PassParts&) -> std::unique_ptr<LayerExecutor> {
    fail("it was asked for");
  };
  try {
    run_determinism(run);
    FAIL() << "it was served";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("--determinism gives each op what it was given"),
              std::string::npos)
        << error.what();
  }
}

// Two servings show from which context on bits differ, and nothing of how a kernel is made.
TEST(OpBits, SayOfKeysWhatWasSeenAlone) {
  OpBits op{.place = {&point("attn.out"), 1},
            .bits = OpBits::SameFor::vary,
            .depends_on = {Circumstance::threads},
            .from = 256,
            .least = 4};
  EXPECT_EQ(text_of(op),
            "the number of threads: its sum over keys, of 257 or more (of fewer the bits were the "
            "same)");
  op.from = op.least;
  EXPECT_EQ(text_of(op), "the number of threads: its sum over keys");
}

}  // namespace
}  // namespace lockstep
