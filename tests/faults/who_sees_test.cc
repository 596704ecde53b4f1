// Which of the three ways to check an engine - the judge against the reference, the audit of the
// K/V cache, the same requests served in several ways - sees which bug of serving, and as what.
// Where one of them cannot see a bug, it must say that all is well, and so must all three of the
// same requests without a bug.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>
#include <tuple>

#include "src/audit/audit.h"
#include "src/judge/verdict.h"
#include "src/session/modes.h"
#include "tests/judged.h"
#include "tests/whole.h"

namespace lockstep {
namespace {

const Checkpoint& checkpoint_of(const std::string& name) {
  static std::map<std::string, Checkpoint> open;
  return open.try_emplace(name, Checkpoint::open(data_path(name))).first->second;
}

// Requests, and an engine in which some bugs can happen to them.
struct Scene {
  EngineOptions engine;
  std::vector<Request> requests;
};

// Chunks of prompts beside decodes in one pass, over scattered pages with ragged tails.
Scene mixed(int64_t vocab) {
  return {{.page_size = 8, .page_order_seed = 3, .chunk = 16},
          {{.prompt = some_tokens(21, vocab, 1), .max_new = 3},
           {.prompt = some_tokens(38, vocab, 2), .max_new = 3}}};
}

// The third request begins as the first one did, and the second one otherwise.
Scene prefix(int64_t vocab) {
  const Request first{.prompt = some_tokens(20, vocab, 1), .max_new = 3};
  const Request other{.prompt = some_tokens(13, vocab, 2), .max_new = 3};
  Request again = first;
  again.prompt.back() = other.prompt.back();
  again.arrival = 4;
  return {{.page_size = 8, .prefix_cache = true}, {first, other, again}};
}

// Two texts of one prompt, which part in the middle of a page.
Scene samples(int64_t vocab) {
  return {{.page_size = 8, .prefix_cache = true},
          {{.prompt = some_tokens(21, vocab, 1),
            .max_new = 3,
            .sampling = {.temperature = 5, .seed = 3},
            .samples = 2}}};
}

// The second request is swapped out when the first one needs a page more.
Scene crowded(int64_t vocab) {
  return {{.page_size = 4, .pages = 8, .preempt = Preempt::swap},
          {{.prompt = some_tokens(9, vocab, 1), .max_new = 8},
           {.prompt = some_tokens(17, vocab, 2), .max_new = 6}}};
}

// The second request comes late, and both need pages as they go on.
Scene growing(int64_t vocab) {
  return {{.page_size = 8},
          {{.prompt = some_tokens(9, vocab, 1), .max_new = 8},
           {.prompt = some_tokens(14, vocab, 2), .max_new = 4, .arrival = 2}}};
}

// Who sees a bug, and as what. Empty: it is not seen.
struct Case {
  const char* fault;
  Scene (*scene)(int64_t vocab);
  const char* judge;       // the first point, and its layer
  const char* audit;       // a part of its first sentence
  const char* modes;       // whose comparison it is
  const char* mode_point;  // and the first point of it
  int layer = 0;           // of both points
  std::vector<const char*> models = {"bard-qwen3", "bard-qwen2.5"};
};

const Case kCases[] = {
    {"stale-prefix-page", prefix, "attn.kv",
     "request 2, position 0 reads page 3 slot 0, written by request 1 position 0 in pass 0",
     "prefix", "attn.kv"},
    {"page-freed-too-early", growing, "attn.kv",
     "requests 0 and 1 both hold page 0 (their 1 and 1), for different tokens", "swap", "attn.kv"},
    {"written-while-shared", samples, "attn.kv",
     "request 1 position 21 is written to page 2 slot 5, where the same pass writes request 0 "
     "position 21",
     "all", ""},
    {"wrong-page", mixed, "attn.kv", "written by request 0 position 0", "pages", "attn.kv"},
    {"page-table-stride", mixed, "attn.kv", "request 1, position 0 reads page", "pages", "attn.kv"},
    {"last-page-tail-unmasked", mixed, "attn.out", "", "poison", "attn.out"},
    {"swap-restores-another-page", crowded, "attn.kv",
     "request 1, position 0 reads page 7 slot 0, written by request 1 position 16 in pass 0",
     "swap", "attn.kv"},
    {"chunk-lengths-of-another-row", mixed, "attn.out", "", "tokens", "attn.out"},
    {"sliding-window-off-by-one", mixed, "attn.out", "", "all", "", 1, {"tiny/qwen2-sliding"}},
    {"sliding-window-off-by-one@size=-1",
     mixed,
     "attn.out",
     "",
     "all",
     "",
     1,
     {"tiny/qwen2-sliding"}},
    {"slot-offset-32-bit@size=12", mixed, "attn.kv", "reads page", "pages", "attn.kv"},
    {"token-cached-twice", mixed, "attn.kv",
     "request 0, position 21 reads page 2 slot 4, written by request 0 position 20", "threads",
     "attn.kv"},
    {"new-token-never-cached", mixed, "attn.kv", "which holds what nobody wrote", "threads",
     "attn.kv"},
    {"yarn-factor-twice", mixed, "attn.q_rope", "", "all", "", 0, {"tiny/qwen3-yarn"}},
    {"rope-theta-ignored", mixed, "attn.q_rope", "", "all", ""},
    {"moe-expert-order", mixed, "mlp.combine", "", "all", "", 0, {"tiny/qwen3-moe"}},
    {"moe-router-not-normalised", mixed, "mlp.weights", "", "all", "", 0, {"tiny/qwen3-moe"}},
};

std::vector<FaultRequest> faults_of(const std::string& text) {
  return text.empty() ? std::vector<FaultRequest>() : std::vector{parse_fault(text)};
}

// A scene with as many pages as it needs, unless it says how many.
Scene set(Scene scene, DType dtype) {
  scene.engine.device = TestDevice::device();
  scene.engine.dtype = dtype;
  if (scene.engine.pages == 0)
    scene.engine.pages = pages_for(scene.requests, scene.engine.page_size);
  return scene;
}

// By the judge alone.
Result judged_by_reference(const Checkpoint& checkpoint, const Scene& scene,
                           const std::string& fault) {
  return judge_run({.checkpoint = checkpoint,
                    .reference = open_reference(),
                    .engine = scene.engine,
                    .requests = scene.requests,
                    .faults = faults_of(fault),
                    .audit = false,
                    .causes = false});
}

Seeded seeded_with(const std::string& fault, const Checkpoint& checkpoint, const Scene& scene) {
  const Device device = scene.engine.device;
  return {ops_of(device), faults_of(fault), checkpoint.config(), device};
}

// What an audit alone says first; empty when it is silent.
std::string audited(const Checkpoint& checkpoint, const Scene& scene, const std::string& fault) {
  const Seeded seeded = seeded_with(fault, checkpoint, scene);
  Engine engine(checkpoint, seeded.ops, scene.engine, seeded.hooks);
  for (const Request& request : scene.requests) engine.submit(request);
  Auditor auditor(scene.engine.page_size);
  Probe probe(&auditor);
  while (engine.step(probe)) {
  }
  EXPECT_EQ(probe.failure(), "");
  EXPECT_GT(auditor.rows_read(), 0);
  EXPECT_EQ(engine.pool().available(), engine.pool().pages()) << "a page was lost";
  return auditor.findings().empty() ? "" : auditor.findings()[0].rule;
}

// By the ops of several ways to serve, without what an audit says of each.
Result compared(const Checkpoint& checkpoint, const Scene& scene, const std::string& modes,
                const std::string& fault) {
  return run_modes({.checkpoint = checkpoint,
                    .engine = scene.engine,
                    .requests = scene.requests,
                    .faults = faults_of(fault),
                    .modes = modes_from(modes),
                    .ops = ops_of(scene.engine.device)});
}

// Seen at `point` of the layer, or, without a point, not at all.
void expect_seen(const Result& result, const std::string& point, int layer,
                 const std::string& who) {
  if (point.empty()) {
    EXPECT_EQ(result.verdict, RunVerdict::clean) << who << ": " << result.story;
    EXPECT_EQ(result.judged, result.expected) << who;
    EXPECT_GT(result.judged, 0) << who;
    return;
  }
  EXPECT_EQ(exit_status(result), 1) << who << ": " << result.story;
  ASSERT_TRUE(result.first) << who << ": " << result.story;
  EXPECT_EQ(result.first->node.place.point->name, point) << who << ": " << result.story;
  EXPECT_EQ(result.first->node.place.layer, layer) << who << ": " << result.story;
}

// Of several models the first in bf16 and the others in fp32, or each in both.
std::vector<DType> dtypes_for(const Case& c, const char* model) {
  if (whole() || c.models.size() == 1) return {DType::bf16, DType::f32};
  return {model == c.models.front() ? DType::bf16 : DType::f32};
}

class WhoSees : public testing::TestWithParam<Case> {
 protected:
  const Case& c() const { return GetParam(); }
};

TEST_P(WhoSees, TheJudge) {
  for (const char* model : c().models)
    for (DType dtype : dtypes_for(c(), model)) {
      const Checkpoint& checkpoint = checkpoint_of(model);
      const Scene scene = set(c().scene(checkpoint.config().vocab), dtype);
      expect_seen(judged_by_reference(checkpoint, scene, c().fault), c().judge, c().layer,
                  std::string(model) + " " + std::string(name_of(dtype)));
    }
}

TEST_P(WhoSees, TheAuditor) {
  for (const char* model : c().models) {
    const Checkpoint& checkpoint = checkpoint_of(model);
    const Scene scene = set(c().scene(checkpoint.config().vocab), DType::bf16);
    const std::string rule = audited(checkpoint, scene, c().fault);
    EXPECT_NE(rule.find(c().audit), std::string::npos) << model << ": " << rule;
    EXPECT_EQ(rule.empty(), std::string(c().audit).empty()) << model << ": " << rule;
  }
}

TEST_P(WhoSees, TheModes) {
  for (const char* model : c().models) {
    // All modes are many runs, of one model.
    if (!whole() && std::string(c().modes) == "all" && model != c().models.front()) continue;
    const Checkpoint& checkpoint = checkpoint_of(model);
    const Scene scene = set(c().scene(checkpoint.config().vocab), DType::bf16);
    const Result result = compared(checkpoint, scene, c().modes, c().fault);
    expect_seen(result, c().mode_point, c().layer, model);
  }
}

INSTANTIATE_TEST_SUITE_P(EveryFault, WhoSees, testing::ValuesIn(kCases), [](const auto& info) {
  std::string name = info.param.fault;
  for (char& c : name)
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  return name;
});

TEST(WhoSeesNothing, OfTheSameRequestsWithoutABug) {
  std::set<std::tuple<Scene (*)(int64_t), std::string, std::string>> seen;
  for (const Case& c : kCases)
    for (const char* model : c.models) {
      // All modes on a clean engine are tools.modes' own test.
      const std::string modes = std::string(c.modes) == "all" ? "threads" : c.modes;
      if (!seen.insert({c.scene, model, modes}).second) continue;
      const Checkpoint& checkpoint = checkpoint_of(model);
      const int64_t vocab = checkpoint.config().vocab;
      const std::string who = std::string(c.fault) + " left out of " + model;
      if (whole() || model == c.models.front())
        expect_seen(compared(checkpoint, set(c.scene(vocab), DType::bf16), modes, ""), "", -1, who);
      if (!seen.insert({c.scene, model, ""}).second) continue;
      for (DType dtype : dtypes_for(c, model)) {
        const Scene scene = set(c.scene(vocab), dtype);
        expect_seen(judged_by_reference(checkpoint, scene, ""), "", -1, who);
        EXPECT_EQ(audited(checkpoint, scene, ""), "") << who;
      }
    }
}

// Where a bug has no occasion, all is well, by the judge and by the auditor.
TEST(WhoSeesNothing, OfABugThatHasNoOccasion) {
  const auto prompts = [](std::vector<int64_t> lengths, int64_t max_new) {
    Scene scene{{.page_size = 8, .page_order_seed = 3}, {}};
    for (int64_t length : lengths)
      scene.requests.push_back(
          {.prompt = some_tokens(length, 320, scene.requests.size() + 1), .max_new = max_new});
    return scene;
  };
  const auto expect_clean = [](const std::string& model, const Scene& scene,
                               const std::string& fault) {
    const Checkpoint& checkpoint = checkpoint_of(model);
    const Scene ready = set(scene, DType::bf16);
    expect_seen(judged_by_reference(checkpoint, ready, fault), "", -1, fault);
    EXPECT_EQ(audited(checkpoint, ready, fault), "") << fault;
  };
  const Scene alone = prompts({21}, 4), two = prompts({21, 13}, 4), token = prompts({1}, 1);
  for (const char* fault : {"page-freed-too-early", "wrong-page", "page-table-stride",
                            "chunk-lengths-of-another-row", "slot-offset-32-bit"})
    expect_clean("bard-qwen3", alone, fault);
  for (const char* fault :
       {"stale-prefix-page", "written-while-shared", "swap-restores-another-page"})
    expect_clean("bard-qwen3", two, fault);
  expect_clean("bard-qwen3", prompts({21, 21}, 4), "chunk-lengths-of-another-row");
  for (const char* fault : {"token-cached-twice", "new-token-never-cached"})
    expect_clean("bard-qwen3", prompts({21, 13}, 1), fault);
  expect_clean("bard-qwen3", token, "rope-theta-ignored");
  expect_clean("tiny/qwen3-yarn", token, "yarn-factor-twice");
  expect_clean("tiny/qwen2-sliding", prompts({8}, 1), "sliding-window-off-by-one");
  expect_clean("tiny/qwen2-sliding", prompts({7}, 1), "sliding-window-off-by-one@size=-1");
}

// Both samples take the likeliest token: what one writes over the other's is the same.
TEST(WhoSeesOnlyTheAuditor, SamplesThatWriteTheSameIntoASharedPage) {
  const Checkpoint& checkpoint = checkpoint_of("bard-qwen3");
  Scene scene = set(samples(checkpoint.config().vocab), DType::bf16);
  scene.requests[0].sampling = {};
  const std::string fault = "written-while-shared";
  expect_seen(judged_by_reference(checkpoint, scene, fault), "", -1, fault);
  EXPECT_NE(audited(checkpoint, scene, fault).find("where the same pass writes request 0"),
            std::string::npos);
}

// Pages that are all full and all attended may change places: no token tells.
TEST(WhoSeesOnlyTheCache, PagesThatChangedPlacesMakeTheSameTokens) {
  const Checkpoint& checkpoint = checkpoint_of("bard-qwen3");
  const Scene scene = set(crowded(checkpoint.config().vocab), DType::f32);
  const auto tokens = [&](const std::string& fault) {
    const Seeded seeded = seeded_with(fault, checkpoint, scene);
    Engine engine(checkpoint, seeded.ops, scene.engine, seeded.hooks);
    for (const Request& request : scene.requests) engine.submit(request);
    Probe off;
    while (engine.step(off)) {
    }
    return engine.sequence(1).tokens;
  };
  const std::string fault = "swap-restores-another-page";
  EXPECT_EQ(tokens(fault), tokens(""));
  for (const Finding& f : judged_by_reference(checkpoint, scene, fault).findings)
    EXPECT_EQ(f.node.place.point->name, "attn.kv");
}

// What an unused slot holds is read as a number that is none, or as one that is too large.
TEST(TailOfAPage, IsNamedWithEitherPoison) {
  for (const std::string model : {"bard-qwen3", "bard-qwen2.5"})
    for (DType dtype : {DType::bf16, DType::f32})
      for (float poison : {std::numeric_limits<float>::quiet_NaN(), 60000.0f}) {
        const bool is_first = model == "bard-qwen3";
        if (!whole() && (is_first != (dtype == DType::bf16) || is_first != std::isnan(poison)))
          continue;
        const Checkpoint& checkpoint = checkpoint_of(model);
        Scene scene = set(mixed(checkpoint.config().vocab), dtype);
        scene.engine.poison = poison;
        const Result result = judged_by_reference(checkpoint, scene, "last-page-tail-unmasked");
        expect_seen(result, "attn.out", 0, model);
        EXPECT_EQ(result.first->verdict,
                  std::isnan(poison) ? Verdict::nonfinite : Verdict::introduced);
        expect_seen(judged_by_reference(checkpoint, scene, ""), "", -1, model);
      }
}

// A pool of more than 2^31 elements a layer, of which only the pages in use are ever touched.
TEST(SlotOffset, ThatReallyPasses32BitsIsNamed) {
  const Checkpoint& checkpoint = checkpoint_of("tiny/qwen3-yarn");
  const ModelConfig& config = checkpoint.config();
  Scene scene{{.dtype = DType::bf16, .page_size = 256},
              {{.prompt = some_tokens(9, config.vocab), .max_new = 2}}};
  const int64_t page = scene.engine.page_size * config.kv_heads * config.head_dim;
  const int64_t within = (int64_t{1} << 31) / page;
  scene.engine.pages = within + within / 4;
  while (PagePool(scene.engine.pages, scene.engine.page_order_seed).take() < within)
    ++scene.engine.page_order_seed;
  try {
    expect_seen(judged_by_reference(checkpoint, scene, ""), "", -1, "clean");
  } catch (const Error& error) {
    // A machine that lends no memory it has not; any other Error is the test's to find.
    if (std::string(error.what()).find("has not that much memory") == std::string::npos) throw;
    GTEST_SKIP() << error.what();
  }
  expect_seen(judged_by_reference(checkpoint, scene, "slot-offset-32-bit"), "attn.kv", 0, "wraps");
  EXPECT_NE(audited(checkpoint, scene, "slot-offset-32-bit").find("nobody wrote"),
            std::string::npos);
}

}  // namespace
}  // namespace lockstep
