// A saved trace is judged as its run was, whoever shared K and V with whom.
#include <gtest/gtest.h>

#include <cstring>

#include "src/diff/diff.h"
#include "src/report/report.h"
#include "src/session/judged_trace.h"
#include "src/session/kept_result.h"
#include "src/session/ranks_apart.h"
#include "tests/judged.h"
#include "tests/traces/passes.h"
#include "traces/kept_result.h"
#include "traces/trace.h"

namespace lockstep {
namespace {

class SavedRun : public testing::Test {
 protected:
  Result run(const std::string& name, bool samples, TraceLevel level) {
    const int64_t vocab = checkpoint_.config().vocab;
    Request first{.prompt = some_tokens(19, vocab), .max_new = 3};
    Request second{.prompt = first.prompt, .max_new = 2, .arrival = 2};
    if (samples) first.samples = 3, second.max_new = 1;
    second.samples = first.samples;
    second.prompt.back() = 1;
    return judged({.checkpoint = checkpoint_,
                   .reference = open_reference(),
                   .engine = {.dtype = DType::bf16, .page_size = 8, .prefix_cache = !samples},
                   .requests = {first, second},
                   .trace = scratch_ / name,
                   .level = level});
  }
  int inheriting(const std::string& name) {
    const auto trace = open_trace(scratch_ / name);
    int requests = 0;
    for (int i = 0; i < trace->passes(); ++i)
      for (const Inherited& inherited : trace->read(i, false).info.inherited)
        requests += inherited.tokens.empty() ? 0 : 1;
    return requests;
  }

  Checkpoint checkpoint_ = Checkpoint::open(data_path("tiny/qwen3-default"));
  TempFolder scratch_;
};

TEST_F(SavedRun, IsJudgedAsItWasLive) {
  for (const bool samples : {true, false})
    for (const std::string name : {"x.h5", "x.trace"}) {
      const std::string file = (samples ? "samples-" : "prefix-") + name;
      const Result live = run(file, samples, TraceLevel::full);
      EXPECT_EQ(live.verdict, RunVerdict::clean) << live.story;
      EXPECT_EQ(inheriting(file), samples ? 2 : 1) << "nothing was shared";
      ASSERT_TRUE(keep_result(scratch_ / file, live));
      EXPECT_EQ(result_from_json(read_kept_result(scratch_ / file), file).story, live.story);
      const Result saved = judge_trace(scratch_ / file, checkpoint_, {});
      EXPECT_EQ(saved.story, live.story);
      EXPECT_EQ(saved.judged, live.judged);
      EXPECT_EQ(saved.counts, live.counts);
      EXPECT_EQ(saved.blind, live.blind);
      const auto a = open_trace(scratch_ / file), b = open_trace(scratch_ / file);
      EXPECT_EQ(diff(*a, *b, {}).verdict, DiffResult::Verdict::identical);
    }
}

// Of digests nothing can be judged, and nothing is amiss.
TEST_F(SavedRun, OfDigestsIsInconclusive) {
  EXPECT_EQ(run("x.journal", true, TraceLevel::digest).verdict, RunVerdict::clean);
  EXPECT_EQ(inheriting("x.journal"), 2);
  const Result saved = judge_trace(scratch_ / "x.journal", checkpoint_, {});
  EXPECT_EQ(saved.verdict, RunVerdict::inconclusive) << saved.story;
  EXPECT_TRUE(saved.findings.empty());
}

// The trace as an engine writes it that knows nothing of fingerprints; spoil: what it has
// otherwise.
template <typename Spoil>
void write_unnamed(const std::string& from, const std::string& to, Spoil spoil) {
  const auto trace = open_trace(from);
  Manifest manifest = trace->manifest();
  for (const char* name : {"model_xxh3", "weights_xxh3"}) manifest.provenance.erase(name);
  const auto writer = create_trace(to, manifest);
  for (int i = 0; i < trace->passes(); ++i) {
    Pass pass = trace->read(i, true);
    for (RecordedTensor& tensor : pass.tensors) spoil(tensor);
    writer->write(pass);
  }
  writer->finish(manifest.requests);
}

TEST_F(SavedRun, OfAnotherModelIsSaidByItsShapesWhereItHasNoFingerprint) {
  run("x.h5", false, TraceLevel::full);
  write_unnamed(scratch_ / "x.h5", scratch_ / "unnamed.h5", [](RecordedTensor&) {});
  EXPECT_EQ(judge_trace(scratch_ / "unnamed.h5", checkpoint_, {}).verdict, RunVerdict::clean);
  const Checkpoint other = Checkpoint::open(data_path("bard-qwen3"));
  const std::string said = error_of([&] { judge_trace(scratch_ / "unnamed.h5", other, {}); });
  EXPECT_NE(said.find("unnamed.h5 has embed of the shape ["), said.npos) << said;
  EXPECT_NE(said.find(", 64] (token, hidden), and the model of " + other.dir() + " makes it ["),
            said.npos)
      << said;
  EXPECT_NE(said.find(", 192]: give the --model that the trace was made with"), said.npos) << said;
}

// One op that stores another shape is wrong, and tells nothing of the model.
TEST_F(SavedRun, WithOneOpOfAnotherShapeIsJudged) {
  run("x.h5", false, TraceLevel::full);
  write_unnamed(scratch_ / "x.h5", scratch_ / "odd.h5", [](RecordedTensor& tensor) {
    if (*tensor.point != point("mlp.gate")) return;
    std::vector<int64_t> extents(tensor.shape.extents().begin(), tensor.shape.extents().end());
    extents.back() /= 2;
    tensor.data = Tensor(Shape(extents), tensor.dtype);
    std::memset(tensor.data.as<char>(), 0, tensor.data.view().bytes());
    tensor.shape = Shape(extents);
    tensor.digest = digest_of(tensor.data);
    tensor.row_hashes = row_hashes_of(tensor.data);
  });
  const Result judged = judge_trace(scratch_ / "odd.h5", checkpoint_, {});
  ASSERT_TRUE(judged.first) << judged.story;
  EXPECT_EQ(judged.first->node.place.point->name, "mlp.gate");
  EXPECT_EQ(judged.first->verdict, Verdict::structural);
}

TEST(RanksApart, AreReadBackAndRefusedWhereTheyAreOther) {
  Manifest manifest = test_manifest();
  EXPECT_TRUE(apart_in(manifest).empty());
  const Place place{&point("attn.q"), 1};
  const Finding finding{.node = {.place = place, .pass = 3, .request = 1},
                        .position = 7,
                        .verdict = Verdict::structural,
                        .rule = "other"};
  const std::string whole =
      text_of(std::vector<Apart>{{.finding = finding, .rank = 2, .own = UINT64_MAX, .first = 5}});
  std::string& text = manifest.provenance[std::string(kRanksApart)];
  text = whole;
  const std::vector<Apart> found = apart_in(manifest);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_TRUE(found[0].finding.node == finding.node);
  EXPECT_EQ(found[0].rank, 2);
  EXPECT_EQ(found[0].own, UINT64_MAX);
  EXPECT_EQ(found[0].first, 5u);
  const auto changed = [&](const std::string& from, const std::string& to) {
    std::string other = whole;
    return other.replace(other.find(from), from.size(), to);
  };
  for (const std::string& bad :
       {std::string(100'000, '['), whole.substr(0, whole.size() / 2), changed("attn.q", "attn.x"),
        changed("\"layer\":1", "\"layer\":99"), changed("ffff", "gggg"), changed("ffff", "fffff"),
        changed("\"rank\":2", "\"rank\":-1"), changed("\"pass\":3", "\"pass\":1e99")}) {
    text = bad;
    const std::string said = error_of([&] { apart_in(manifest); });
    EXPECT_TRUE(said.starts_with("what the trace says of ranks that are not alike: ")) << said;
    EXPECT_EQ(said.find("json.exception"), said.npos) << said;
  }
}

}  // namespace
}  // namespace lockstep
