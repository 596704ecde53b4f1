// The foundations of lockstep bench: random checkpoints, the meter around the ops, the roofs, its
// table.
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "src/bench/figures.h"
#include "src/bench/meter.h"
#include "src/bench/synthetic.h"
#include "tests/fixtures.h"
#include "tests/report/json_schema.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

constexpr auto kConfig = R"({"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2",
  "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
  "intermediate_size": 96, "vocab_size": 320, "max_position_embeddings": 128,
  "rms_norm_eps": 1e-06, "rope_theta": 10000, "tie_word_embeddings": true, "hidden_act": "silu",
  "eos_token_id": 0, "torch_dtype": "bfloat16"})";

// Mean and standard deviation of a bf16 tensor.
std::pair<double, double> moments_of(const TensorView& tensor) {
  std::vector<double> values(static_cast<size_t>(tensor.count()));
  widen(tensor, 0, values);
  double sum = 0, squares = 0;
  for (double v : values) sum += v, squares += v * v;
  const double n = static_cast<double>(values.size()), mean = sum / n;
  return {mean, std::sqrt(squares / n - mean * mean)};
}

TEST(SyntheticCheckpoint, IsWholeAndHasTheSpreadThatItSays) {
  const Checkpoint checkpoint = synthetic_checkpoint(kConfig);
  const auto [mean, deviation] = moments_of(checkpoint.tensor("model.embed_tokens.weight"));
  EXPECT_NEAR(mean, 0, 0.005);
  EXPECT_NEAR(deviation, 1.0 / 8, 0.005);
  const auto [norm, spread] = moments_of(checkpoint.tensor("model.norm.weight"));
  EXPECT_NEAR(norm, 1, 0.02);
  EXPECT_NEAR(spread, 0.02, 0.01);
  const auto [bias, size] = moments_of(checkpoint.tensor("model.layers.1.self_attn.q_proj.bias"));
  EXPECT_NEAR(bias, 0, 0.02);
  EXPECT_NEAR(size, 0.02, 0.01);
  const Checkpoint again = synthetic_checkpoint(kConfig);
  EXPECT_NE(again.dir(), checkpoint.dir());
  EXPECT_EQ(again.fingerprint(), checkpoint.fingerprint());
}

// Whether the process has a file open that has no name any more.
bool has_nameless_file(pid_t process) {
  std::error_code ignored;  // the process opens and closes files meanwhile
  for (const auto& file : fs::directory_iterator(fmt::format("/proc/{}/fd", process), ignored))
    if (fs::read_symlink(file, ignored).string().ends_with("model.safetensors (deleted)"))
      return true;
  return false;
}

TEST(SyntheticCheckpoint, LeavesNothingWhenItsProcessIsKilledWhileItWrites) {
  auto config = nlohmann::json::parse(kConfig);
  config["vocab_size"] = 1 << 24;  // 2 GiB, which take seconds
  const TempFolder folder;
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::setenv("TMPDIR", folder.path().c_str(), 1);
    try {
      synthetic_checkpoint(config.dump());
    } catch (...) {
    }
    ::_exit(3);
  }
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  // The file loses its name first, and its folder, which is then empty, goes after it.
  const auto left = [&] { return !has_nameless_file(child) || !fs::is_empty(folder.path()); };
  while (left() && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  ASSERT_EQ(::kill(child, SIGKILL), 0);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status)) << "it ended by itself";
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

TEST(SyntheticCheckpoint, RefusesAConfigurationThatCannotBe) {
  EXPECT_NE(error_of([] { synthetic_checkpoint("{}"); }), "");
  EXPECT_NE(error_of([] { synthetic_checkpoint("no JSON"); }), "");
}

// The passes of one request as a meter saw them.
std::vector<PassMeter::Pass> passes_of(const Ops& ops) {
  const Checkpoint checkpoint = synthetic_checkpoint(kConfig);
  PassMeter meter(ops);
  EngineOptions options{.dtype = DType::bf16, .pages = 8, .threads = 1};
  Engine engine(checkpoint, meter.ops(), options,
                {.before_pass = [&](Batch&) { meter.before_pass(); }});
  engine.submit({.prompt = {5, 6, 7}, .max_new = 4});
  std::vector<PassMeter::Pass> passes;
  Probe off;
  while (engine.step(off)) passes.push_back(meter.pass());
  return passes;
}

TEST(PassMeter, SeesTheTimeAndTheSameLogitsTwice) {
  const auto first = passes_of(cpu_ops()), second = passes_of(cpu_ops());
  ASSERT_EQ(first.size(), 4u);
  ASSERT_EQ(second.size(), 4u);
  for (size_t i = 0; i < first.size(); ++i) {
    EXPECT_GT(first[i].matmul, 0);
    EXPECT_GT(first[i].attention, 0);
    EXPECT_GT(first[i].checking, 0);
    EXPECT_TRUE(first[i].finite);
    EXPECT_EQ(first[i].logits, second[i].logits);
    if (i > 0) {
      EXPECT_NE(first[i].logits, first[i - 1].logits);
    }
  }
}

TEST(PassMeter, TellsOtherLogits) {
  Ops ops = cpu_ops();
  ops.matmul = [inner = ops.matmul](const OpContext& context, TensorView out, TensorView x,
                                    WeightView weight, TensorView bias) {
    inner(context, out, x, weight, bias);
    if (context.point == "logits") out.as<BFloat16>()[319] = from_float<BFloat16>(-40);
  };
  EXPECT_NE(passes_of(ops)[0].logits, passes_of(cpu_ops())[0].logits);
}

// Without the poison the buffer would still hold the pass before, which is as finite as any.
TEST(PassMeter, ShowsAnOpThatLeavesItsOutputUnwritten) {
  Ops ops = cpu_ops();
  int calls = 0;
  ops.silu_mul = [&, inner = ops.silu_mul](const OpContext& context, TensorView out,
                                           TensorView gate, TensorView up) {
    if (++calls <= 2) inner(context, out, gate, up);
  };
  const auto passes = passes_of(ops);
  EXPECT_TRUE(passes[0].finite);
  EXPECT_FALSE(passes[1].finite);
}

TEST(Figures, AreATableInTheUnitsThatTheyName) {
  const auto rows = nlohmann::json::parse(text_of(
      table_of(
          {{"machine", "device memory, read", "GB/s", 1e-9, {4e12, 4.4e12, 4.2e12}},
           {"machine", "an empty kernel in a graph", "us", 1e6, {5e-7, 4e-7}, Figure::Whole::least},
           {"qwen3-0.6b",
            "decode",
            "ms",
            1e3,
            {0.002, 0.003, 0.001},
            Figure::Whole::read_roof,
            1e-3},
           {"qwen3-0.6b", "decode, digested", "ms", 1e3, {0.004}, Figure::Whole::step, 2e-3}}),
      "json"));
  ASSERT_EQ(rows.size(), 4u);
  const Json rules = schema_of("bench");
  EXPECT_EQ(violation(rows, rules, rules), "");
  const auto expect_row = [&](size_t i, const char* unit, std::vector<double> numbers,
                              const char* of) {
    EXPECT_EQ(rows[i]["unit"], unit);
    for (const char* column : {"share", "max", "median", "min"}) {
      EXPECT_NEAR(rows[i][column], numbers.back(), 1e-9 * numbers.back()) << i << column;
      numbers.pop_back();
    }
    EXPECT_EQ(rows[i]["of"], of);
  };
  EXPECT_EQ(rows[0]["shape"], "machine");
  EXPECT_EQ(rows[0]["what"], "device memory, read");
  expect_row(0, "GB/s", {4000, 4200, 4400, 4200.0 / 4400}, "its best");
  expect_row(1, "us", {0.4, 0.45, 0.5, 0.4 / 0.45}, "its best");
  expect_row(2, "ms", {1, 2, 3, 0.5}, "the read roof");
  expect_row(3, "ms", {4, 4, 4, 2}, "the pass");
}

}  // namespace
}  // namespace lockstep
