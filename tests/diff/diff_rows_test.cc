// Which rows of two traces decide, and which row a finding names; and what they list of requests.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "src/diff/diff_side.h"
#include "src/judge/ledger.h"
#include "tests/diff/diff_runs.h"
#include "tests/helpers.h"

namespace lockstep {
namespace {

TEST(Diff, APlaceOrARowThatOnlyOneHasIsCounted) {
  FakeRun less = run_of();
  std::erase_if(less.passes[0].tensors,
                [](const RecordedTensor& t) { return t.point->name == "mlp.up" && t.layer == 0; });
  // The rows that both have decide, and the others are said.
  DiffResult r = diff_of(run_of(), less);
  EXPECT_EQ(r.verdict, DiffResult::Verdict::identical);
  EXPECT_EQ(r.story,
            fmt::format("all {} rows that both have have the same bits; 22 rows are in one "
                        "trace only, and were not compared",
                        r.rows));
  EXPECT_EQ(r.only_a, 22);
  r = diff_of(less, run_of());
  EXPECT_EQ(r.verdict, DiffResult::Verdict::identical);
  EXPECT_EQ(r.only_b, 22);
  r = diff_of(less, run_of(DType::bf16,
                           spoil_at("mlp.down", 1, [](std::vector<double>& v) { v[0] += 100; })));
  ASSERT_TRUE(r.first_kind) << r.story;
  EXPECT_NE(r.story.find("; 22 rows are in one trace only"), std::string::npos) << r.story;
  less = run_of();
  less.passes.pop_back();
  r = diff_of(run_of(), less);
  EXPECT_GT(r.only_a, 0);
  EXPECT_EQ(r.more_a, 2);
  EXPECT_EQ(r.verdict, DiffResult::Verdict::different) << "a run of fewer tokens is another run";
  EXPECT_EQ(r.story, "2 tokens were fed in one trace only");
  EXPECT_EQ(diff_of(run_of(), less, Selection("", "", "", "0")).story,
            "1 token was fed in one trace only");
  EXPECT_EQ(diff_of(less, run_of()).only_b, 2);
  EXPECT_EQ(diff_of(less, run_of()).more_b, 2);
}

// A bare trace of which the last layer was not recorded is of the same model.
TEST(DiffRows, TakesLayersThatABareTraceDoesNotShowForNotRecorded) {
  FakeRun whole = run_of(), part = run_of();
  const int last = part.manifest.graph.layers() - 1;
  part.manifest.graph =
      part.manifest.graph.restricted([&](const Place& place) { return place.layer != last; });
  for (Pass& pass : part.passes)
    std::erase_if(pass.tensors, [&](const RecordedTensor& t) { return t.layer == last; });
  whole.manifest.graph_known = part.manifest.graph_known = false;
  for (const bool first : {true, false}) {
    const DiffResult r = first ? diff_of(part, whole) : diff_of(whole, part);
    EXPECT_EQ(r.verdict, DiffResult::Verdict::identical) << r.story;
    EXPECT_GT(first ? r.only_b : r.only_a, 0) << "and what one of them lacks is counted";
  }
  part.manifest.graph_known = true;  // by its own word it has fewer
  EXPECT_FALSE(of_one_model(whole.manifest, part.manifest));
}

// Optional tables and norms are in the graph of a bare trace that shows them alone.
TEST(DiffRows, CountsPlacesThatOneOfTwoBareTracesAloneHas) {
  FakeRun whole = run_of(), part = run_of();
  const auto lost = [](const Point& p) {
    return p.name == "attn.q_norm" || p.name == "attn.k_norm";
  };
  Graph graph;  // as a model has it that rotates Q and K as they are
  std::vector<int> numbers;
  for (size_t i = 0; i < whole.manifest.graph.places().size(); ++i) {
    std::vector<int> inputs;
    for (const int input : whole.manifest.graph.inputs(static_cast<int64_t>(i)))
      inputs.push_back(numbers.at(input));
    const Place& place = whole.manifest.graph.places()[i];
    numbers.push_back(lost(*place.point) ? inputs.at(0) : graph.add(place, inputs));
  }
  part.manifest.graph = graph;
  int64_t rows = 0;
  for (const Pass& pass : part.passes)
    for (const RecordedTensor& t : pass.tensors) rows += lost(*t.point) ? std::ssize(t.rows) : 0;
  ASSERT_GT(rows, 0);
  for (Pass& pass : part.passes)
    std::erase_if(pass.tensors, [&](const RecordedTensor& t) { return lost(*t.point); });
  whole.manifest.graph_known = part.manifest.graph_known = false;
  for (const bool first : {true, false}) {
    const DiffResult r = first ? diff_of(part, whole) : diff_of(whole, part);
    EXPECT_EQ(r.verdict, DiffResult::Verdict::identical) << r.story;
    EXPECT_EQ(first ? r.only_b : r.only_a, rows) << r.story;
    EXPECT_EQ(first ? r.only_a : r.only_b, 0) << r.story;
    EXPECT_NE(r.story.find("rows are in one trace only"), std::string::npos) << r.story;
  }
  EXPECT_EQ(diff_of(part, whole, Selection("attn.q", "", "", "")).only_b, 0) << "not asked for";
}

// What attention read is a fact of the pass, as no other row's being shown is.
TEST(Diff, ARowOfTheCacheThatOnlyOneReadsIsDifferentInKind) {
  for (const bool last : {false, true}) {
    FakeRun less = run_of();
    auto& cache = const_cast<RecordedTensor&>(*less.passes[0].find(point("attn.kv"), 1));
    const Row row = last ? cache.rows.back() : cache.rows.front();
    const auto without_it = [last](auto& all) { all.erase(last ? all.end() - 1 : all.begin()); };
    without_it(cache.rows), without_it(cache.row_hashes);
    std::vector<int64_t> extents(cache.shape.extents().begin(), cache.shape.extents().end());
    extents[0] = std::ssize(cache.rows);
    cache.shape = Shape(extents);
    cache.data = {};
    for (const bool swapped : {false, true}) {
      const DiffResult r = swapped ? diff_of(less, run_of()) : diff_of(run_of(), less);
      EXPECT_EQ(r.verdict, DiffResult::Verdict::different) << r.story;
      ASSERT_TRUE(r.first_kind) << r.story;
      EXPECT_EQ(text_of(r.first_kind->id.place), "layer 1 attn.kv");
      EXPECT_EQ(r.first_kind->position, row.position);
      EXPECT_NE(r.story.find("only one of the two reads that row"), std::string::npos) << r.story;
    }
  }
}

TEST(Diff, RowsThatOneFoundInItsCacheMakeNoDifference) {
  FakeRun less = run_of();
  less.passes.erase(less.passes.begin());
  for (const bool swapped : {false, true}) {
    const DiffResult r = swapped ? diff_of(less, run_of()) : diff_of(run_of(), less);
    EXPECT_EQ(r.verdict, DiffResult::Verdict::identical) << r.story;
    EXPECT_EQ(swapped ? r.only_b : r.only_a, 22);
    EXPECT_EQ(r.more_a + r.more_b, 0);
    EXPECT_NE(r.story.find("; 22 rows are in one trace only"), std::string::npos) << r.story;
  }
}

// Rows 3 and 7 are off, and 7 by more.
TEST(Diff, AFindingIsAtTheRowThatIsFurthestOff) {
  const auto spoilt = [](const char* name) {
    return run_of(DType::bf16, spoil_at(name, 1, [](std::vector<double>& v) {
                    if (v.size() % 22 != 0) return;
                    const size_t width = v.size() / 22;
                    v[3 * width] += 8 * std::fabs(v[3 * width]) + 1;
                    v[7 * width] += 64 * std::fabs(v[7 * width]) + 50;
                  }));
  };
  for (const char* name : {"attn.k_norm", "attn.residual"}) {
    const DiffResult r = diff_of(run_of(), spoilt(name));
    ASSERT_TRUE(r.first_kind) << r.story;
    EXPECT_EQ(r.first_kind->id.place.point->name, name) << r.story;
    EXPECT_EQ(r.first_bits->position, 3);
    EXPECT_EQ(r.first_kind->position, 7) << r.story;
  }
}

TEST(Diff, ATraceWhoseBestOfLogitsAreNotItsTensorsIsRefused) {
  FakeRun wrong = run_of();
  wrong.passes[1].logits.at(0).values[0] += 1;
  for (const bool swapped : {false, true})
    EXPECT_NE(error_of([&] {
                swapped ? diff_of(wrong, run_of()) : diff_of(run_of(), wrong);
              }).find("pass 1 of a trace, request 0, position 13: /logits says that number 1"),
              std::string::npos);
}

// The last one is fed to no pass.
TEST(Diff, ATokenThatWasDrawnIsCompared) {
  FakeRun a = run_of(), b = run_of();
  for (FakeRun* run : {&a, &b})
    for (RequestInfo& request : run->manifest.requests) request.sampled = true;
  EXPECT_EQ(diff_of(a, b).verdict, DiffResult::Verdict::identical);
  b.manifest.requests[1].tokens.back() += 1;
  const DiffResult r = diff_of(a, b);
  EXPECT_EQ(r.verdict, DiffResult::Verdict::different);
  EXPECT_EQ(r.story.find("request 1 drew token"), 0u) << r.story;
  EXPECT_EQ(diff_of(a, b, Selection("mlp.*", "", "", "")).verdict, DiffResult::Verdict::identical);
}

// Two right runs may put K and V elsewhere, which makes no other numbers, and is said; what a trace
// declares that its tensors do not bear out is a difference.
TEST(Diff, WhatTheTracesSayBesideNumbersIsCompared) {
  const FakeRun a = run_of();
  const auto compared = [&a](const std::function<void(FakeRun&)>& change) {
    FakeRun b = a;
    change(b);
    const DiffResult one = diff_of(a, b), other = diff_of(b, a);
    EXPECT_EQ(one.verdict, other.verdict);
    EXPECT_EQ(one.remarks.size(), other.remarks.size());
    return one;
  };
  DiffResult r = compared([](FakeRun& b) {
    for (PassRow& row : b.passes[0].info.rows) row.slot += row.row.request == 1 ? 4 : 0;
  });
  EXPECT_EQ(r.verdict, DiffResult::Verdict::identical);
  EXPECT_TRUE(r.story.ends_with(
      " have the same bits; the slots of 9 of 26 rows differ, which no number depends on"))
      << r.story;
  EXPECT_EQ(r.remarks.size(), 1u);
  FakeRun paged = a, other = a;
  paged.passes[0].info.pages = {{0, {1, 2, 3, 4}}, {1, {5}}};
  other.passes[0].info.pages = {{0, {1, 2, 3}}, {1, {6}}};
  EXPECT_NE(diff_of(paged, other).story.find("the page tables of 1 of 2 requests differ"),
            std::string::npos);
  r = compared([](FakeRun& b) { b.manifest.contracts["attn.norm"] = RoundingContract::hf; });
  EXPECT_NE(r.story.find("; the declared rounding differs at attn.norm ("), std::string::npos);
  r = compared([](FakeRun& b) { b.manifest.dtype = DType::f16; });
  EXPECT_EQ(r.verdict, DiffResult::Verdict::different);
  EXPECT_EQ(r.story.find("bf16 and fp16 are declared, but all rows"), 0u) << r.story;
  paged.passes[0].info.inherited = {{7, {1, 2}}}, other.passes[0].info.inherited = {{7, {1, 3}}};
  r = diff_of(paged, other);
  EXPECT_EQ(r.verdict, DiffResult::Verdict::different);
  EXPECT_EQ(r.story.find("request 7 has token 2 and 3 at position 1, which the first"), 0u)
      << r.story;
  r = compared([](FakeRun& b) { b.passes[0].info.inherited = {{7, {1}}}; });
  EXPECT_EQ(r.verdict, DiffResult::Verdict::identical);
  EXPECT_EQ(r.remarks.size(), 1u) << "found in one cache alone";
}

// The samples of a prompt share its last row, which the first of them computed.
TEST(DiffSide, FindsTheLogitsOfASharedPrompt) {
  FakeRun run = run_of();
  const std::vector<int32_t> prompt = run.manifest.requests[0].prompt;
  std::vector<int32_t> other = prompt;
  other.back() += 1;
  run.manifest.requests.push_back({.id = 2, .prompt = prompt});
  run.manifest.requests.push_back({.id = 3, .prompt = other});
  const auto end = static_cast<int32_t>(prompt.size());
  for (const int32_t sample : {2, 3})
    run.passes[1].info.rows.push_back({{sample, end}, 1, -1, Phase::decode});
  MemoryTrace trace(run);
  const DiffSide side(trace, run.manifest.graph.places());
  const TopLogits* shared = side.top_logits({2, end - 1});
  ASSERT_NE(shared, nullptr);
  EXPECT_EQ(shared->values, side.top_logits({0, end - 1})->values);
  EXPECT_EQ(side.top_logits({3, end - 1}), nullptr) << "another prompt's";
  EXPECT_EQ(side.top_logits({2, end}), nullptr) << "its own row, which shows none";
}

// What a request was made to take last is neither its most likely token nor a contradiction to it.
TEST(Diff, ATokenThatWasForcedContradictsNothing) {
  const FakeRun a = run_of();
  FakeRun b = a;
  RequestInfo& request = b.manifest.requests[1];
  request.tokens.back() += 1;
  request.forced = request.tokens;
  for (const bool swapped : {false, true}) {
    const DiffResult r = swapped ? diff_of(b, a) : diff_of(a, b);
    EXPECT_EQ(r.verdict, DiffResult::Verdict::different);
    EXPECT_EQ(r.story.find("request 1 has token"), 0u) << r.story;
    for (const std::string& sentence : r.structure)
      EXPECT_EQ(sentence.find("contradicts"), std::string::npos) << sentence;
  }
}

// Prompts are of 13 and 9 tokens, and three are chosen after each.
TEST(Diff, WhatOnlyTheListsOfRequestsHaveOtherwiseIsDifferent) {
  using Change = void (*)(std::vector<RequestInfo>&);
  const std::vector<std::pair<Change, std::string>> changes = {
      {[](auto& all) { all[1].tokens.front() += 1; }, "request 1 is said to have got token"},
      {[](auto& all) { all[1].tokens.back() += 1; }, "request 1 is said to have chosen token"},
      {[](auto& all) { all[0].prompt[5] += 1; }, "request 0 is said to have got token"},
      {[](auto& all) { all[0].prompt.push_back(all[0].tokens[0] + 1); }, "request 0 is said to"},
      {[](auto& all) { all[0].prompt.pop_back(); }, "request 0 is said to have got token"},
      {[](auto& all) { all[1].tokens.pop_back(); }, "request 1 is said to have a token at positi"},
      {[](auto& all) { all[1].tokens.push_back(1); }, "request 1 is said to have a token at posi"},
      {[](auto& all) { all[1].tokens.clear(); }, "request 1 is said to have a token at position 9"},
      {[](auto& all) { all[1].argmax[1] += 1; }, "request 1 is said to have one most likely tok"},
      {[](auto& all) { all[1].argmax.pop_back(); }, "request 1 is said to have one most likely t"},
      {[](auto& all) { all[1].forced = {all[1].tokens[0] + 1}; }, "request 1 is said to have got"},
      {[](auto& all) { all[1].stopped = true; }, "request 1 was ended by an end token or a stop"},
      {[](auto& all) { all.push_back({.id = 77, .prompt = {1}}); }, "request 77 is in the"},
  };
  FakeRun a = run_of();
  for (RequestInfo& request : a.manifest.requests) request.max_new = 3;
  for (const auto& [change, said] : changes) {
    FakeRun b = a;
    change(b.manifest.requests);
    for (const bool swapped : {false, true}) {
      const DiffResult r = swapped ? diff_of(b, a) : diff_of(a, b);
      EXPECT_EQ(r.verdict, DiffResult::Verdict::different) << said;
      ASSERT_EQ(r.structure.size(), 1u) << said;
      EXPECT_EQ(r.structure[0].find(said), 0u) << r.structure[0];
    }
  }
}

TEST(Diff, ListsThatSayTheSameInAnotherWayAreIdentical) {
  const FakeRun a = run_of();
  const auto verdict = [&a](const FakeRun& b, const Selection& selection = {}) {
    EXPECT_EQ(diff_of(b, a, selection).verdict, diff_of(a, b, selection).verdict);
    return diff_of(a, b, selection).verdict;
  };
  FakeRun b = a;
  for (RequestInfo& request : b.manifest.requests)
    request.forced = {request.tokens[0], request.tokens[1]};
  EXPECT_EQ(verdict(b), DiffResult::Verdict::identical) << "what it chose was forced";
  b = a;
  b.manifest.requests.clear();
  EXPECT_EQ(verdict(b), DiffResult::Verdict::identical) << "it does not say";
  b = a;
  for (RequestInfo& request : b.manifest.requests) request.tokens.clear(), request.argmax.clear();
  EXPECT_EQ(verdict(b), DiffResult::Verdict::identical) << "nor what became of them";
  b = a;
  for (RequestInfo& request : b.manifest.requests) request.max_new = 9, request.stopped = true;
  EXPECT_EQ(verdict(b), DiffResult::Verdict::identical) << "it was asked for other numbers";
  b = a;
  for (RequestInfo& request : b.manifest.requests) {
    request.prompt.insert(request.prompt.end(), request.tokens.begin(), request.tokens.end() - 1);
    request.tokens = {request.tokens.back()};
    request.argmax = request.tokens;
  }
  EXPECT_EQ(verdict(b), DiffResult::Verdict::identical) << "what one chose is the other's prompt";
  b = a;
  b.manifest.requests[1].tokens.back() += 1;
  EXPECT_EQ(verdict(b, Selection("", "", "", "0")), DiffResult::Verdict::identical);
  // Traces that begin at the first decode pass, by what they saw.
  for (const bool as_prompt : {false, true}) {
    b = a;
    b.passes.erase(b.passes.begin());
    for (RequestInfo& request : b.manifest.requests) {
      request.prompt.assign(as_prompt ? 1 : 0, request.tokens[0]);
      if (as_prompt) request.tokens.erase(request.tokens.begin());
    }
    EXPECT_EQ(verdict(b), DiffResult::Verdict::identical) << as_prompt;
  }
}

}  // namespace
}  // namespace lockstep
