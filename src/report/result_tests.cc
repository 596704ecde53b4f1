// A judgement as continuous integration counts it.
//
// One test an op class that the model has, and one each for the audit of pages, the tokens and the
// coverage. A class whose nodes could not all be judged is trouble and no pass; what was never
// looked at is skipped.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "src/judge/ledger.h"
#include "src/judge/story.h"
#include "src/report/report.h"

namespace lockstep {
namespace {

constexpr size_t kDetails = 20;  // findings that a test lists
constexpr std::string_view kAudit = "K/V audit";

std::string fact_of(const Result& result, const std::string& name) {
  const auto found = result.provenance.find(name);
  return found == result.provenance.end() ? "" : found->second;
}

// "bard-qwen3 bf16"; a path may end in a slash.
std::string name_of_suite(const Result& result) {
  const std::filesystem::path model = fact_of(result, "model");
  const std::string name = model.has_filename() ? model.filename() : model.parent_path().filename();
  return fmt::format("{} {}", name, fact_of(result, "compute_dtype"));
}

// ", looks like ..."; empty where nothing explains what was found there.
std::string told_cause(const Result& result, const Place& place) {
  const auto summary = std::ranges::find(result.places, place, &PlaceSummary::place);
  if (summary == result.places.end() || summary->looks_like.empty()) return "";
  return "; looks like " + text_of(summary->looks_like);
}

// A test that findings fail, the first of which is its message.
template <typename Fails>
TestCase test_of(const std::string& name, const Result& result, Fails fails) {
  TestCase test{.name = name};
  size_t found = 0;
  for (const Finding& finding : result.findings) {
    if (!fails(finding)) continue;
    const std::string line =
        fmt::format("{}, pass {}: {}{}", text_of(finding.node.place), finding.node.pass,
                    text_of(finding), told_cause(result, finding.node.place));
    if (found++ == 0) {
      test.outcome = TestCase::Outcome::failed;
      test.kind = name_of(finding.verdict);
      test.message = line;
    }
    if (found <= kDetails) test.details += line + "\n";
  }
  if (found > kDetails) test.details += fmt::format("... and {} more\n", found - kDetails);
  return test;
}

// An op class that was looked at.
TestCase test_of(const OpKindRow& kind, const Result& result) {
  TestCase test = test_of(kind.name, result, [&](const Finding& finding) {
    return finding.node.place.point->op == kind.kind;
  });
  int64_t expected = 0, judged = 0;
  for (const PlaceSummary& place : result.places) {
    if (place.place.point->op != kind.kind) continue;
    expected += place.expected;
    judged += place.judged;
  }
  if (test.outcome == TestCase::Outcome::passed && judged < expected)
    return {
        .name = kind.name,
        .outcome = TestCase::Outcome::trouble,
        .kind = "inconclusive",
        .message = fmt::format("{} of {} nodes could not be judged", expected - judged, expected)};
  if (test.details.empty()) test.details = fmt::format("{} nodes judged\n", judged);
  return test;
}

// The audit of pages and slots; skipped in a run that made none.
TestCase audit_of(const Result& result) {
  TestCase test = test_of(
      "audit", result, [](const Finding& finding) { return finding.node.place.point->is_cache(); });
  // The audit says in a note that it was made.
  for (const std::string& note : result.notes) {
    if (!note.starts_with(kAudit)) continue;
    test.details += note + "\n";
    return test;
  }
  if (test.outcome == TestCase::Outcome::passed) test.outcome = TestCase::Outcome::skipped;
  return test;
}

// The tokens that went in and came out.
TestCase tokens_of(const Result& result) {
  TestCase test = test_of("tokens", result, [](const Finding& finding) {
    const Point& at = *finding.node.place.point;
    return at == point("token") || at == point("embed");
  });
  if (!result.logits) return test;
  const LogitsSummary& l = *result.logits;
  test.details += fmt::format("{} of {} tokens are the fp64 model's, {} others explained\n",
                              l.argmax_equal, l.compared, l.explained_flips);
  return test;
}

// The kinds of bugs that the run could not have shown. An inconclusive run fails here.
TestCase coverage_of(const Result& result) {
  TestCase test{.name = "coverage"};
  for (const std::string& blind : result.blind) test.details += "untested: " + blind + "\n";
  if (result.verdict != RunVerdict::inconclusive) return test;
  test.outcome = TestCase::Outcome::trouble;
  test.kind = name_of(result.verdict);
  test.message = result.story;
  return test;
}

}  // namespace

// A case for each kind of op that was judged, and one for the audit, the tokens, and what was
// covered: continuous integration shows names, and the same names every time.
TestSuite tests_of(const Result& result) {
  TestSuite suite{.name = name_of_suite(result)};
  for (const OpKindRow& kind : kOpKinds)
    if (std::ranges::any_of(result.places, [&](const PlaceSummary& place) {
          return place.place.point->op == kind.kind;
        }))
      suite.cases.push_back(test_of(kind, result));
  suite.cases.push_back(audit_of(result));
  suite.cases.push_back(tokens_of(result));
  suite.cases.push_back(coverage_of(result));
  for (const char* fact : {"device", "engine_version", "git_sha", "model_xxh3"})
    if (const std::string value = fact_of(result, fact); !value.empty())
      suite.properties.emplace_back(fact, value);
  return suite;
}

}  // namespace lockstep
