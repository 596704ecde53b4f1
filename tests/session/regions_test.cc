// A trace that lacks tensors is judged by regions: nothing that is right is called wrong, and a bug
// is found at the first recorded place after it.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "src/judge/judge.h"
#include "tests/judged.h"
#include "tests/whole.h"
#include "traces/trace.h"

namespace lockstep {
namespace {

using Points = std::set<std::string>;

// Forward hooks of modules see these.
const Points kModuleOutputs = {"embed",       "attn.norm",   "attn.q",     "attn.k",   "attn.v",
                               "attn.q_norm", "attn.k_norm", "attn.o",     "mlp.norm", "mlp.gate",
                               "mlp.up",      "mlp.down",    "final.norm", "logits",   "token"};
const Points kSixALayer = {"embed",         "attn.norm",    "attn.q",     "attn.out", "attn.o",
                           "attn.residual", "mlp.residual", "final.norm", "logits",   "token"};
const Points kStreamAlone = {"embed", "mlp.residual", "logits", "token"};
const Points kWithoutCache = {
    "embed",       "attn.norm",   "attn.q",      "attn.k",   "attn.v",   "attn.q_norm",
    "attn.k_norm", "attn.q_rope", "attn.k_rope", "attn.out", "attn.o",   "attn.residual",
    "mlp.norm",    "mlp.gate",    "mlp.up",      "mlp.act",  "mlp.down", "mlp.residual",
    "final.norm",  "logits",      "token"};

class Regions : public testing::Test {
 protected:
  // Serves three requests of ragged lengths; the trace keeps everything.
  void serve(const std::string& model, DType dtype, const std::vector<FaultRequest>& faults = {}) {
    checkpoint_.emplace(Checkpoint::open(data_path(model)));
    const int64_t vocab = checkpoint_->config().vocab;
    std::filesystem::remove_all(scratch_ / "x.h5");
    judged({.checkpoint = *checkpoint_,
            .reference = open_reference(),
            .engine = {.dtype = dtype, .page_size = 4, .page_order_seed = 3, .chunk = 8},
            .requests = {{.prompt = some_tokens(11, vocab), .max_new = 2},
                         {.prompt = some_tokens(5, vocab), .max_new = 2, .arrival = 1}},
            .faults = faults,
            .audit = false,
            .causes = false,
            .trace = scratch_ / "x.h5",
            .level = TraceLevel::full});
  }

  // Judges what is left of that trace when it holds these points alone; `change` may spoil it.
  Result judge(
      const Points& points, bool declared = true, void (*change)(Pass&) = [](Pass&) {}) {
    const auto trace = open_trace(scratch_ / "x.h5");
    Manifest manifest = trace->manifest();
    if (!declared) manifest.contracts.clear();
    const ReferenceOptions reference{.dtype = manifest.dtype};
    const auto oracle = open_reference().oracle(*checkpoint_, reference);
    const auto has = [&](const Place& place) {
      return points.contains(std::string(place.point->name));
    };
    Judge judge(manifest, *oracle, nullptr, nullptr, {.recorded = has});
    for (int i = 0; i < trace->passes(); ++i) {
      Pass pass = trace->read(i, /*data=*/true);
      std::erase_if(pass.tensors, [&](const RecordedTensor& t) {
        return !has({t.point, t.layer});
      });
      change(pass);
      judge.judge(pass);
    }
    return judge.finish(manifest.requests, trace->complete());
  }

  TempFolder scratch_;
  std::optional<Checkpoint> checkpoint_;
};

TEST_F(Regions, OfARightEngineAreClean) {
  const std::pair<const char*, DType> kRuns[] = {
      {"bard-qwen3", DType::bf16}, {"bard-qwen2.5", DType::f16}, {"bard-qwen3", DType::f32}};
  for (const auto& [model, dtype] : kRuns) {
    serve(model, dtype);
    int64_t nodes = 0;
    for (const Points& points : {kWithoutCache, kModuleOutputs, kSixALayer, kStreamAlone}) {
      if (dtype != DType::bf16 && points == kStreamAlone) continue;  // the slowest
      if (!whole() && dtype == DType::f32 && points == kModuleOutputs) continue;
      const Result result = judge(points, /*declared=*/points != kSixALayer);
      EXPECT_EQ(result.verdict, RunVerdict::clean)
          << model << " " << name_of(dtype) << " " << points.size() << ": " << result.story;
      EXPECT_EQ(result.judged, result.expected);
      // One pass gets no logits. Where its last norm is not shown, it may not have been computed.
      const int64_t ended = points.contains("final.norm") ? 0 : 1;
      const int64_t known = result.expected + result.hidden + ended;
      if (nodes == 0) nodes = known;
      EXPECT_EQ(known, nodes) << "each node is judged or hidden";
    }
  }
}

struct Bug {
  const char* fault;
  const char* at;  // the first wrong point
};

TEST_F(Regions, NameTheFirstRecordedPlaceAfterABug) {
  constexpr Bug kBugs[] = {{"rope-interleaved", "attn.q_rope"},
                           {"softmax-scale-missing", "attn.out"},
                           {"gate-and-up-swapped", "mlp.act"},
                           {"residual-missing", "attn.residual"}};
  size_t turn = 0;
  for (const Bug& bug : kBugs) {
    FaultRequest fault = parse_fault(std::string(bug.fault) + "@layer=2");
    serve("bard-qwen3", DType::bf16, {fault});
    for (const Points& points : {kModuleOutputs, kSixALayer, kWithoutCache}) {
      // Of the three two by turns.
      if (turn++ % 4 == 0 && !whole()) continue;
      const Result result = judge(points);
      ASSERT_EQ(result.verdict, RunVerdict::diverged) << bug.fault << ": " << result.story;
      const Finding& first = *result.first;
      const Place wrong{find_point(bug.at), 2};
      EXPECT_TRUE(first.node.place == wrong || std::ranges::count(first.region, wrong) > 0)
          << bug.fault << " with " << points.size() << " points: " << result.story;
    }
  }
}

const Points kExpertsAlone = {"embed",       "attn.out",    "attn.residual",
                              "mlp.experts", "mlp.weights", "mlp.residual",
                              "final.norm",  "logits",      "token"};

// The router's logits, which the experts were chosen by, are known but for what they may be off.
TEST_F(Regions, OfExpertsThatWereChosenByHiddenLogitsAreJudged) {
  serve("tiny/qwen3-moe", DType::bf16);
  const Result right = judge(kExpertsAlone);
  EXPECT_EQ(right.verdict, RunVerdict::clean) << right.story;
  EXPECT_EQ(right.judged, right.expected);
  EXPECT_TRUE(std::ranges::any_of(right.notes, [](const std::string& note) {
    return note.starts_with("mlp.experts is judged together with mlp.norm mlp.router") &&
           note.find("a wrong choice shows where the values differ by 0.") != std::string::npos;
  }));
  const Result wrong = judge(kExpertsAlone, true, [](Pass& pass) {
    for (RecordedTensor& tensor : pass.tensors)
      for (int64_t i = 0; *tensor.point == point("mlp.experts") && i < tensor.data.view().count();
           ++i)
        tensor.data.as<int32_t>()[i] = (tensor.data.as<int32_t>()[i] + 1) % 8;
  });
  ASSERT_TRUE(wrong.first) << wrong.story;
  EXPECT_EQ(wrong.first->node.place.point->name, "mlp.experts");
}

TEST_F(Regions, OfExpertsThatNobodyKnowsAreNotJudged) {
  serve("tiny/qwen3-moe", DType::bf16);
  Points points = kExpertsAlone;
  points.erase("mlp.experts");
  const Result result = judge(points);
  EXPECT_EQ(result.verdict, RunVerdict::inconclusive) << result.story;
  EXPECT_NE(result.story.find("mlp.experts was not recorded"), std::string::npos) << result.story;
}

// Where nothing that is recorded reads a hidden tensor, nobody can say that it is right.
TEST_F(Regions, ThatNothingReadsAreNotJudged) {
  serve("bard-qwen3", DType::bf16);
  Points points = kWithoutCache;
  points.erase("token");
  points.erase("logits");
  const Result result = judge(points);
  EXPECT_EQ(result.verdict, RunVerdict::inconclusive) << result.story;
  EXPECT_LT(result.judged, result.expected);
}

}  // namespace
}  // namespace lockstep
