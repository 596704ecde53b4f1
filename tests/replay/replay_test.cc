// One op again, on what a trace kept of it.
#include "src/replay/replay.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <utility>
#include <vector>

#include "src/judge/ledger.h"
#include "src/model/model.h"
#include "src/replay/paged.h"
#include "tests/judged.h"
#include "tests/lockstep_binary.h"
#include "tests/report/json_schema.h"
#include "tests/whole.h"
#include "traces/trace.h"

namespace lockstep {
namespace {

// Two requests, one in chunks, and a page that is not full.
std::string traced(const std::string& model, DType dtype, const std::string& fault = "",
                   TraceLevel level = TraceLevel::full) {
  const std::string path =
      temp_path(fmt::format("{}-{}-{}-{}.h5", std::filesystem::path(model).filename().string(),
                            name_of(dtype), fault.empty() ? "right" : fault, name_of(level)));
  if (std::filesystem::exists(path)) return path;
  const Checkpoint checkpoint = Checkpoint::open(data_path(model));
  const int64_t vocab = checkpoint.config().vocab;
  JudgedRun run{.checkpoint = checkpoint, .reference = open_reference(), .trace = path};
  run.engine.dtype = dtype;
  run.engine.page_size = 8;
  run.engine.page_order_seed = 3;
  run.engine.chunk = 13;
  run.requests = {{.prompt = some_tokens(21, vocab), .max_new = 3},
                  {.prompt = some_tokens(5, vocab, 2), .max_new = 2}};
  run.level = level;
  run.provenance = {{"page_size", "8"}, {"pages", std::to_string(pages_for(run.requests, 8))}};
  if (!fault.empty()) run.faults = {parse_fault(fault)};
  EXPECT_EQ(judged(run).verdict, fault.empty() ? RunVerdict::clean : RunVerdict::diverged);
  return path;
}

ReplayOptions asked(const std::string& trace, const std::string& model, const Place& place) {
  return {.trace = trace,
          .model = data_path(model),
          .point = std::string(place.point->name),
          .layer = place.layer,
          .device = TestDevice::device().text()};
}

bool is_exact(const Place& place) {
  return place.point->is_cache() || row_of(place.point->op).makes_indices;
}

void expect_replayed(const std::string& model, DType dtype) {
  const std::string trace = traced(model, dtype);
  const Checkpoint checkpoint = Checkpoint::open(data_path(model));
  for (const Place& place : graph_of(checkpoint.config()).places()) {
    // Of the layers the last one, and what reads the embedding.
    const bool reads_embedding =
        *place.point == point("attn.norm") || *place.point == point("attn.residual");
    const bool last = place.layer < 0 || place.layer + 1 == checkpoint.config().layers;
    if (!last && !(place.layer == 0 && reads_embedding)) continue;
    if (place.point->op == OpKind::angles) continue;
    const ReplayResult result = replay(asked(trace, model, place));
    const std::string what =
        fmt::format("{} {} {}: {}", model, name_of(dtype), text_of(place), story_of(result));
    EXPECT_EQ(exit_status(result), 0) << what;
    EXPECT_EQ(result.passes, result.of_passes) << what;
    ASSERT_EQ(result.trials.size(), 2u) << what;
    const TrialResult &kept = result.trials[0], &own = result.trials[1];
    EXPECT_GT(own.rows, 0) << what;
    EXPECT_EQ(own.equal_rows, own.rows) << what << ": not the engine's bits";
    EXPECT_EQ(own.judged, kept.judged) << what;
    EXPECT_EQ(own.bitwise, kept.bitwise) << what;
    EXPECT_GT(own.seconds.value_or(0), 0) << what;
    if (!is_exact(place)) {
      ASSERT_TRUE(own.worst && own.ulps) << what;
      EXPECT_LE(own.worst->budgets, 1) << what;
      EXPECT_EQ(own.worst->budgets, kept.worst->budgets) << what;
    }
  }
}

TEST(Replay, HasTheBitsOfTheEngineAtEveryOp) {
  expect_replayed("bard-qwen3", DType::bf16);
  if (whole()) expect_replayed("bard-qwen2.5", DType::f32);
  expect_replayed("tiny/qwen3-moe", DType::f16);
  expect_replayed("tiny/qwen2-sliding", DType::f32);
}

TEST(Replay, TellsTheOpFromWhatItsTraceHas) {
  const std::string fault = "rope-position-off-by-one-in-decode@layer=3";
  const std::string trace = traced("bard-qwen3", DType::bf16, fault);
  const ReplayResult wrong = replay(asked(trace, "bard-qwen3", {&point("attn.q_rope"), 3}));
  EXPECT_EQ(exit_status(wrong), 1);
  const TrialResult &kept = wrong.trials[0], &own = wrong.trials[1];
  EXPECT_GT(kept.wrong, 0);
  EXPECT_EQ(own.wrong, 0) << "the op itself is right";
  EXPECT_LT(own.equal_rows, own.rows);
  ASSERT_EQ(kept.looks_like.size(), 1u);
  EXPECT_EQ(kept.looks_like[0].says, "RoPE by positions off by -1");
  // The op after it is right on the inputs that it had.
  const ReplayResult after = replay(asked(trace, "bard-qwen3", {&point("attn.out"), 3}));
  EXPECT_EQ(exit_status(after), 0) << story_of(after);
  EXPECT_EQ(after.trials[1].equal_rows, after.trials[1].rows);
}

TEST(Replay, HoldsAUsersOpToTheSameInputs) {
  ReplayOptions options =
      asked(traced("bard-qwen3", DType::bf16), "bard-qwen3", {&point("mlp.norm"), 1});
  options.device = "cpu";
  options.ops = built_path("plugin_right_rms_norm.so");
  const ReplayResult right = replay(options);
  EXPECT_EQ(exit_status(right), 0) << story_of(right);
  ASSERT_EQ(right.trials.size(), 3u);
  EXPECT_GT(right.trials[2].seconds.value_or(0), 0);
  options.ops = built_path("plugin_wrong_rms_norm.so");
  options.requests = "1";
  const ReplayResult wrong = replay(options);
  EXPECT_EQ(exit_status(wrong), 1);
  EXPECT_EQ(wrong.trials[0].wrong + wrong.trials[1].wrong, 0);
  EXPECT_EQ(wrong.trials[2].wrong, wrong.trials[2].expected);
  ASSERT_TRUE(wrong.trials[2].worst);
  EXPECT_EQ(wrong.trials[2].worst->request, 1);
  EXPECT_GT(wrong.trials[2].worst->budgets, 1);
  EXPECT_NE(story_of(wrong).find("plugin_wrong_rms_norm.so computed it wrong"), std::string::npos)
      << story_of(wrong);
}

TEST(Replay, GivesAnOpItsOwnPositions) {
  ReplayOptions options =
      asked(traced("bard-qwen3", DType::bf16), "bard-qwen3", {&point("attn.q_rope"), 1});
  options.device = "cpu";
  options.ops = built_path("tests/replay/wrong/by_index.so");
  const ReplayResult result = replay(options);
  EXPECT_EQ(result.trials[1].wrong, 0);
  EXPECT_EQ(result.trials[1].equal_rows, result.trials[1].rows);
  EXPECT_GT(result.trials[2].wrong, 0) << "positions from 16 on are wrong by it";
  ASSERT_TRUE(result.trials[2].worst);
  EXPECT_GE(result.trials[2].worst->index.at(0), 16);
}

// The write of position 7 goes to the slot of 6, which stays wrong for good, as 7 stays unwritten.
// The writes after it are right, and an op that is given such a cache is not to blame for it.
TEST(Replay, JudgesAWriteByTheRowsThatItWrites) {
  const std::string misses = built_path("tests/replay/wrong/early_slot.so");
  const auto written_by = [](const std::string& name, const std::string& more) {
    const std::string path = temp_path(name);
    const Outcome made =
        call_lockstep("generate --model " + data_path("bard-qwen3") +
                      " --tokens 5,6,7,8,9,10 --max-new 5 --page-size 8 --device cpu --keep full" +
                      " --format json --trace " + path + more);
    EXPECT_EQ(made.status, 0) << made.err;
    ReplayOptions options = asked(path, "bard-qwen3", {&point("attn.kv"), 1});
    options.device = "cpu";
    return options;
  };
  const ReplayResult missed = replay(written_by("missed.h5", " --ops " + misses));
  ASSERT_EQ(missed.trials.size(), 2u);
  EXPECT_EQ(missed.trials[0].judged, 5);
  EXPECT_EQ(missed.trials[0].wrong, 1) << "of the trace the pass that missed is wrong alone";
  EXPECT_EQ(missed.trials[1].judged, 5);
  EXPECT_EQ(missed.trials[1].wrong, 0) << story_of(missed);
  ReplayOptions options = written_by("hit.h5", "");
  options.ops = misses;
  const ReplayResult hit = replay(options);
  ASSERT_EQ(hit.trials.size(), 3u);
  EXPECT_EQ(hit.trials[0].wrong + hit.trials[1].wrong, 0) << story_of(hit);
  EXPECT_EQ(hit.trials[2].wrong, 1) << "the pass that it misses in";
}

// Lockstep's own op writes first, and what it wrote must not stand for what the user's left out.
TEST(Replay, GivesEachOpACacheOfItsOwn) {
  ReplayOptions options =
      asked(traced("bard-qwen3", DType::bf16), "bard-qwen3", {&point("attn.kv"), 1});
  options.device = "cpu";
  options.ops = built_path("tests/replay/wrong/no_third_token.so");
  const ReplayResult result = replay(options);
  ASSERT_EQ(result.trials.size(), 3u);
  EXPECT_EQ(result.trials[0].wrong + result.trials[1].wrong, 0) << story_of(result);
  EXPECT_GT(result.trials[2].wrong, 0) << "prefills leave a token unwritten";
}

void expect_said(const std::string& said, const std::string& wanted) {
  EXPECT_NE(said.find(wanted), std::string::npos) << said;
}

// The slots of a pass, and the pages of its requests.
std::pair<std::vector<int64_t>, std::map<int32_t, std::vector<int32_t>>> numbers_of(
    const PassInfo& info) {
  std::pair<std::vector<int64_t>, std::map<int32_t, std::vector<int32_t>>> all;
  for (const PassRow& row : info.rows) all.first.push_back(row.slot);
  for (const RequestPages& table : info.pages) all.second[table.request] = table.pages;
  return all;
}

// Pages and slots of the trace: seeded order, a pool with pages that nobody has.
TEST(Replay, GivesAnOpItsOwnPagesAndSaysWhereItCannot) {
  const std::string trace = traced("bard-qwen3", DType::bf16);
  const auto reader = open_trace(trace);
  const Pass pass = reader->read(1, /*data=*/false);
  const PoolFacts run = pool_of(reader->manifest());
  ASSERT_GT(run.pages, 0);
  const PagedPass same = paged(pass.info, run, 100);
  EXPECT_EQ(numbers_of(same.info), numbers_of(pass.info));
  EXPECT_EQ(same.pages, run.pages);
  EXPECT_EQ(same.page_size, 8);
  EXPECT_EQ(same.unlike_run, "");
  const PagedPass unknown = paged(pass.info, {.page_size = 8}, 100);
  EXPECT_EQ(numbers_of(unknown.info), numbers_of(pass.info));
  expect_said(unknown.unlike_run, "as it is not known how many it had");
  const PagedPass spare = paged(pass.info, {.page_size = 8, .pages = 1 << 22}, 100);
  EXPECT_EQ(numbers_of(spare.info), numbers_of(pass.info));
  EXPECT_EQ(spare.pages, unknown.pages);
  expect_said(spare.unlike_run, "and not 4194304");
  PassInfo far = pass.info;
  for (RequestPages& table : far.pages)
    for (int32_t& page : table.pages) page += 1 << 24;
  for (PassRow& row : far.rows) row.slot += int64_t{8} << 24;
  expect_said(paged(far, {.page_size = 8, .pages = 1 << 25}, 100).unlike_run, "without gaps");
  PassInfo none = pass.info;
  none.pages.clear();
  expect_said(paged(none, run, 100).unlike_run, "pages and slots are numbered anew");

  for (const char* name : {"attn.kv", "attn.out", "attn.q_rope", "mlp.down"}) {
    const ReplayResult right = replay(asked(trace, "bard-qwen3", {find_point(name), 1}));
    EXPECT_EQ(right.unlike_run, "") << name;
  }
  const std::string bare = temp_path("no-pages.h5");
  const auto writer = create_trace(bare, reader->manifest());
  for (int i = 0; i < reader->passes(); ++i) {
    Pass without = reader->read(i, /*data=*/true);
    without.info.pages.clear();
    writer->write(without);
  }
  writer->finish(reader->manifest().requests);
  EXPECT_EQ(replay(asked(bare, "bard-qwen3", {&point("mlp.down"), 1})).unlike_run, "");
  const Outcome said = call_lockstep("replay " + bare + " --model " + data_path("bard-qwen3") +
                                     " --point attn.kv --layer 1 --device cpu");
  EXPECT_EQ(said.status, 0) << said.err;
  expect_said(said.out, "not as in the run: pages and slots are numbered anew");
}

TEST(Replay, OfWhatWasFlaggedTakesThePassesThatHaveIt) {
  const std::string fault = "rope-position-off-by-one-in-decode@layer=3";
  const std::string trace = traced("bard-qwen3", DType::bf16, fault, TraceLevel::flagged);
  const ReplayResult result = replay(asked(trace, "bard-qwen3", {&point("attn.q_rope"), 3}));
  EXPECT_EQ(exit_status(result), 1);
  EXPECT_GT(result.passes, 0);
  EXPECT_LT(result.passes, result.of_passes);
  EXPECT_NE(result.lacking.find("attn.q_norm"), std::string::npos) << result.lacking;
  expect_trouble("run again with --keep full", [&] {
    replay(asked(trace, "bard-qwen3", {&point("mlp.act"), 3}));
  });
}

TEST(Replay, SaysWhatIsAskedForInVain) {
  const std::string trace = traced("bard-qwen3", DType::bf16), model = "bard-qwen3";
  const auto call = [&](const std::string& more) {
    return trouble_of("replay " + trace + " --model " + data_path(model) + " " + more);
  };
  expect_said(call("--point attn.ot --layer 1"), "attn.out");
  expect_said(call("--point attn.out"), "--layer");
  expect_said(call("--point attn.out --layer 6"), "layers 0 to 5");
  expect_said(call("--point logits --layer 1"), "leave out --layer");
  expect_said(call("--point mlp.router --layer 1"), "the model has no layer 1 mlp.router");
  expect_said(call("--point rope.cos"), "attn.q_rope");
  expect_said(call("--point attn.out --layer 1 --requests 7"), "no row");
  expect_said(call("--point attn.out --layer 1 --ops " + built_path("plugin_right_rms_norm.so")),
              "paged_attention");
  expect_said(trouble_of("replay " + trace + " --point embed --model " + data_path("bard-qwen2.5")),
              "give the --model that the trace was made with");
  expect_said(trouble_of("replay " + data_path("bard-qwen3/config.json") +
                         " --point embed --model " + data_path(model)),
              "config.json");
  // What lockstep repro writes is run by itself.
  const TempFolder repro;
  repro.write("repro.py", "");
  for (const std::string& more :
       {std::string(), " --point attn.out --layer 1 --model " + data_path(model)})
    expect_said(trouble_of("replay " + repro.path() + more),
                "is a folder that lockstep repro or ops wrote");
}

TEST(Replay, PrintsWhatItsSchemaSays) {
  const std::string trace = traced("bard-qwen3", DType::bf16);
  const Outcome outcome = call_lockstep("replay " + trace + " --model " + data_path("bard-qwen3") +
                                        " --point attn.out --layer 2 --format json");
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  const Json rules = schema_of("replay");
  EXPECT_EQ(violation(Json::parse(outcome.out), rules, rules), "");
}

}  // namespace
}  // namespace lockstep
