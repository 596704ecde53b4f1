// Hugging Face's own activations in bf16, read as a trace: its chains of ops are clean under their
// own schema and under none declared, and one rounding too many under `fused`.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "src/judge/judge.h"
#include "src/judge/ledger.h"
#include "tests/reference/hf_passes.h"

namespace lockstep {
namespace {

class HuggingFace : public testing::TestWithParam<std::string> {
 protected:
  Result judged(const std::map<std::string, RoundingContract>& declared,
                JudgeOptions options = {}) {
    Judge judge(passes_.manifest(declared), *oracle_, nullptr, nullptr, std::move(options));
    for (const Pass& pass : passes_.passes(/*digests=*/false)) judge.judge(pass);
    return judge.finish({}, true);
  }
  static std::map<std::string, RoundingContract> every(RoundingContract schema) {
    return HuggingFacePasses::every(schema);
  }

  HuggingFacePasses passes_{GetParam()};
  std::unique_ptr<Oracle> oracle_ =
      open_reference().oracle(passes_.checkpoint(), {.dtype = DType::bf16});
};

void expect_no_finding(const Result& result) {
  for (const Finding& f : result.findings)
    ADD_FAILURE() << text_of(f.node.place) << " pass " << f.node.pass << ": " << name_of(f.verdict)
                  << ' ' << (f.statistic ? name_of(*f.statistic) : "") << ' ' << f.value << " over "
                  << f.limit << "; " << f.rule;
  EXPECT_GE(result.judged, 48);
}

TEST_P(HuggingFace, IsCleanUnderItsOwnContract) {
  expect_no_finding(judged(every(RoundingContract::hf)));
}

TEST_P(HuggingFace, IsCleanWithoutADeclaredContractAndTheScopeSaysWhichWasFound) {
  const Result result = judged({});
  expect_no_finding(result);
  for (const char* name : {"attn.norm", "mlp.norm", "attn.q_rope", "mlp.act"}) {
    EXPECT_EQ(std::ranges::count(result.scope.found, name), 1) << name;
    EXPECT_EQ(result.scope.contracts.at(name), "hf");
  }
}

TEST_P(HuggingFace, IsCleanUnderTheContractThatIsAskedForWhateverTheTraceDeclares) {
  using Declared = std::map<std::string, RoundingContract>;
  const Declared fused = every(RoundingContract::fused), hf = every(RoundingContract::hf);
  expect_no_finding(judged(fused, {.contracts = hf}));
  const Result found = judged(fused, {.contracts = Declared()});
  expect_no_finding(found);
  EXPECT_EQ(std::ranges::count(found.scope.found, "attn.norm"), 1);
  EXPECT_EQ(found.scope.contracts.at("attn.norm"), "hf");
  EXPECT_EQ(judged(hf, {.contracts = fused}).verdict, RunVerdict::diverged);
  for (const Result& asked : {found, judged({}, {.contracts = hf})})
    EXPECT_EQ(std::ranges::count_if(asked.notes,
                                    [](const std::string& note) {
                                      return note.find("asked for") != std::string::npos;
                                    }),
              1);
}

// Its fused attention rounds no score.
TEST_P(HuggingFace, IsAnotherContractThanEagerAtItsAttentionAlone) {
  const Result result = judged(every(RoundingContract::eager));
  EXPECT_FALSE(result.findings.empty());
  for (const Finding& f : result.findings) {
    EXPECT_EQ(f.node.place.point->name, "attn.out") << text_of(f.node.place);
    EXPECT_NE(f.rule.find("would pass if it rounded as hf"), std::string::npos) << f.rule;
  }
}

TEST_P(HuggingFace, IsABugUnderTheSchemaOfOneRounding) {
  const Result result = judged(every(RoundingContract::fused));
  EXPECT_EQ(result.verdict, RunVerdict::diverged);
  std::set<std::string> places;
  for (const Finding& f : result.findings) places.insert(text_of(f.node.place));
  for (const char* name : {"layer 0 attn.norm", "layer 3 mlp.norm", "layer 5 mlp.act",
                           "layer 0 attn.q_rope", "layer 3 attn.k_rope", "final.norm"})
    EXPECT_TRUE(places.contains(name)) << name;
  for (const Finding& f : result.findings)
    EXPECT_TRUE(f.node.place.point->op == OpKind::norm || f.node.place.point->op == OpKind::rope ||
                f.node.place.point->op == OpKind::silu_mul ||
                f.node.place.point->op == OpKind::attention)
        << text_of(f.node.place) << ' ' << f.rule;
}

INSTANTIATE_TEST_SUITE_P(Goldens, HuggingFace, testing::Values("bard-qwen3", "bard-qwen2.5"),
                         [](const auto& info) {
                           return std::string(info.param == "bard-qwen3" ? "qwen3" : "qwen2");
                         });

}  // namespace
}  // namespace lockstep
