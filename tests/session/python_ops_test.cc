// A user's Python file of ops is judged in place: by the command, as its user calls it.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/lockstep_binary.h"
#include "tests/places.h"

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
  outcome = run_with(right, "qwen2-sliding", "--dtype fp32");
  EXPECT_EQ(outcome.status, 0) << outcome.out << outcome.err;
  EXPECT_NE(outcome.out.find("ops: gather_rows, rms_norm"), std::string::npos) << outcome.out;
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
