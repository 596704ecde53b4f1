// A user's Python file of ops is judged in place: by the command, as its user calls it.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "tests/lockstep_binary.h"
#include "tests/places.h"
#include "tests/whole.h"

namespace lockstep {
namespace {

class PythonOps : public testing::Test {
 protected:
  void SetUp() override {
    const std::string python = built_path("venv/bin/python");
    if (!std::filesystem::exists(python)) GTEST_SKIP() << "it needs torch in " << python;
    setenv("LOCKSTEP_PYTHON", python.c_str(), 1);
  }
  static Outcome run_with(const std::string& file, const std::string& model,
                          const std::string& more) {
    return call_lockstep("run --model " + data_path("tiny/" + model) +
                         " --tokens 5,6,7,8,9,10,11 --tokens 40,41,42 --max-new 3 --ops " + file +
                         " " + more);
  }
  // The right layer with parts of its code exchanged, each for what stands beside it.
  static Outcome run_layer_with(const std::map<std::string, std::string>& exchanged,
                                const std::string& more) {
    std::string code = text_of(source_path("tests/kernels/plugins/right_layer.py"));
    for (const auto& [right, wrong] : exchanged) {
      const size_t at = code.find(right);
      EXPECT_NE(at, std::string::npos) << right;
      if (at != std::string::npos) code.replace(at, right.size(), wrong);
    }
    const TempFolder folder;
    return run_with(folder.write("changed.py", code), "qwen3-default", more);
  }
};

TEST_F(PythonOps, ThatAreRightComeOutClean) {
  const std::string right = source_path("tests/kernels/plugins/right_ops.py");
  Outcome outcome = run_with(right, "qwen3-moe", "--dtype bf16 --format json");
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const auto result = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(result["verdict"], "clean");
  EXPECT_EQ(result["provenance"]["user_ops"],
            "gather_rows, rms_norm, matmul, rope, kv_write, kv_gather, paged_attention, silu_mul, "
            "add, argmax, top_k, softmax_of, expert_matmul, weighted_sum of " +
                right);
  EXPECT_EQ(result["provenance"]["user_ops_xxh3"].get<std::string>().size(), 16u);
  // A model without experts leaves those of experts uncalled, and says so.
  outcome = run_with(right, "qwen2-sliding", "--dtype fp32");
  EXPECT_EQ(outcome.status, 0) << outcome.out << outcome.err;
  EXPECT_NE(outcome.out.find("ops: gather_rows, rms_norm"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("note     top_k, softmax_of, expert_matmul, weighted_sum of"),
            std::string::npos)
      << outcome.out;
}

TEST_F(PythonOps, ThatNoInstructionCallsAreRefused) {
  const std::string right = source_path("tests/kernels/plugins/right_ops.py");
  const Outcome outcome = run_with(right, "qwen3-default", "--executor instructions");
  EXPECT_EQ(outcome.status, 2) << outcome.out;
  EXPECT_NE(outcome.err.find("and never calls kv_write, found "), std::string::npos) << outcome.err;
}

// A fused op is judged from its inputs to its outputs, and found by the point of these.
TEST_F(PythonOps, ThatAreFusedAreJudgedAsRegions) {
  const std::string file = source_path("tests/kernels/plugins/right_fused.py");
  // Each run begins a Python that loads torch: of several alike one, unless all are run.
  for (const auto& [model, dtype] :
       {std::pair("qwen2-default", "fp32"), std::pair("qwen3-default", "bf16")}) {
    if (!whole() && model == std::string("qwen2-default")) continue;
    const Outcome right = run_with(file, model, std::string("--dtype ") + dtype);
    EXPECT_EQ(right.status, 0) << right.out << right.err;
    EXPECT_NE(right.out.find("ops: add_rms_norm, qkv_matmul, qk_norm_rope_kv_write, gate_up_silu"),
              std::string::npos)
        << right.out;
    EXPECT_NE(right.out.find("mlp.act is judged together with mlp.gate mlp.up"), std::string::npos)
        << right.out;
  }
  // A bug in each: an op is judged by what it really read, so that one run shows all of them.
  std::string code = text_of(file);
  for (const auto& [right, bug] :
       {std::pair<std::string, std::string>("silu(gate) * up", "silu(up) * gate"),
        {"_normed(sum.float()", "_normed(b.float()"},
        {"zip((q, k, v), weights", "zip((q, v, k), weights"},
        {"low * cos - high * sin", "low * cos + high * sin"}}) {
    ASSERT_NE(code.find(right), std::string::npos) << right;
    code.replace(code.find(right), right.size(), bug);
  }
  const TempFolder folder;
  const Outcome wrong =
      run_with(folder.write("wrong.py", code), "qwen3-default", "--dtype bf16 --format json");
  ASSERT_EQ(wrong.status, 1) << wrong.err;
  std::map<std::string, nlohmann::json> regions;  // of layer 0, by point
  const auto result = nlohmann::json::parse(wrong.out);
  for (const auto& finding : result["findings"])
    if (finding["layer"] == 0) regions[finding["point"]] = finding["region"];
  for (const char* point : {"attn.k", "attn.v", "attn.q_rope", "mlp.norm", "mlp.act"})
    EXPECT_TRUE(regions.contains(point)) << point;
  for (const char* point : {"attn.norm", "attn.q", "attn.out", "attn.residual", "mlp.down"})
    EXPECT_FALSE(regions.contains(point)) << point;
  ASSERT_EQ(regions["mlp.act"].size(), 2u) << regions["mlp.act"];
  EXPECT_EQ(regions["mlp.act"][1]["point"], "mlp.up");
  ASSERT_EQ(regions["attn.q_rope"].size(), 1u) << regions["attn.q_rope"];
  EXPECT_EQ(regions["attn.q_rope"][0]["point"], "attn.q_norm");
  EXPECT_NE(result["notes"].dump().find("looks like was not searched for, nor "), std::string::npos)
      << "causes are searched for in two regions: " << result["notes"];
}

// Its weights come by name.
TEST_F(PythonOps, OfAWholeLayerAreJudgedFromItsStreamToItsStream) {
  const std::string file = source_path("tests/kernels/plugins/right_layer.py");
  for (const auto& [model, dtype] :
       {std::pair("qwen3-default", "bf16"), std::pair("qwen2-sliding", "fp32")}) {
    if (!whole() && model == std::string("qwen3-default")) continue;
    const Outcome right = run_with(file, model, std::string("--chunk 4 --dtype ") + dtype);
    EXPECT_EQ(right.status, 0) << right.out << right.err;
    EXPECT_NE(right.out.find("ops: decoder_layer of "), std::string::npos) << right.out;
  }
  const Outcome wrong =
      run_layer_with({{"_linear(n, w.up)", "_linear(x, w.up)"}}, "--dtype bf16 --format json");
  ASSERT_EQ(wrong.status, 1) << wrong.err;
  const auto first = nlohmann::json::parse(wrong.out)["first"];
  EXPECT_EQ(first["point"], "mlp.residual");
  EXPECT_EQ(first["layer"], 0);
  // Without K and its norm, which are of the region of attn.k_rope.
  EXPECT_EQ(first["region"].size(), 12u) << first["region"];
  // In fp32 its own sums are no more than noise beside the bug.
  const Outcome other =
      run_layer_with({{"functional.silu(", "functional.gelu("}}, "--dtype fp32 --fail-fast");
  ASSERT_EQ(other.status, 1) << other.err;
  EXPECT_NE(other.out.find("GELU"), std::string::npos) << other.out;
  EXPECT_NE(other.out.find("in mlp.act, hidden in"), std::string::npos) << other.out;
}

// With the first op of a layer wrong, what else is cannot be told.
TEST_F(PythonOps, OfAWholeLayerThatMayHideAFurtherErrorAreSaidTo) {
  const Outcome outcome =
      run_layer_with({{"attn_norm, eps", "attn_norm, 1"}, {"functional.silu(", "functional.gelu("}},
                     "--dtype bf16 --fail-fast --format json");
  ASSERT_EQ(outcome.status, 1) << outcome.err;
  const auto result = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(result["first"]["point"], "attn.v");
  EXPECT_NE(result["notes"].dump().find("too, by what an error found before"), std::string::npos)
      << result["notes"];
  EXPECT_GT(result["nodes"]["confounded"], 0);
  const auto& places = result["points"];
  EXPECT_TRUE(std::ranges::any_of(places, [](const auto& place) {
    return place["point"] == "mlp.residual" && place["verdict"] == "confounded";
  })) << places;
}

// The fact that nothing was written comes before what it makes of the numbers.
TEST_F(PythonOps, OfAWholeLayerThatWriteNoKeysOfARowAreNamedByThat) {
  const Outcome outcome = run_layer_with(
      {{"wanted = slots >= 0", "wanted = slots >= 0\n    wanted[1:2] &= len(x) < 3"}},
      "--dtype bf16 --format json");
  ASSERT_EQ(outcome.status, 1) << outcome.err;
  const auto first = nlohmann::json::parse(outcome.out)["first"];
  EXPECT_EQ(first["point"], "attn.v");
  EXPECT_EQ(first["verdict"], "structural");
  EXPECT_EQ(first["position"], 1);
  const std::string rule = first["rule"];
  EXPECT_TRUE(rule.starts_with("nothing was written to the cache for 1 of 7 rows")) << rule;
}

// The ten lines that the README shows, and the same with a tail that is left out of the mean.
TEST_F(PythonOps, ThatAreWrongAreNamed) {
  const std::string readme = text_of(source_path("README.md"));
  const size_t begin = readme.find("```python\nimport torch\n\ndef rms_norm");
  ASSERT_NE(begin, std::string::npos) << "the README shows a file of ops";
  std::string code = readme.substr(begin + 10);
  code = code.substr(0, code.find("```"));
  const std::string squares = "(x * x)";
  ASSERT_NE(code.find(squares), std::string::npos) << code;
  const TempFolder folder;
  const Outcome right = run_with(folder.write("mine.py", code), "qwen3-default", "--dtype bf16");
  EXPECT_EQ(right.status, 0) << right.out << right.err;
  code.insert(code.find(squares) + squares.size(), "[..., :-1]");
  const Outcome wrong =
      run_with(folder.write("mine.py", code), "qwen3-default", "--dtype bf16 --format json");
  ASSERT_EQ(wrong.status, 1) << wrong.err;
  const auto result = nlohmann::json::parse(wrong.out);
  EXPECT_EQ(result["first"]["point"], "attn.norm");
  EXPECT_EQ(result["first"]["layer"], 0);
}

}  // namespace
}  // namespace lockstep
