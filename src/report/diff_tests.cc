// Two traces against each other as continuous integration counts it.
//
// One test an op class, so that CI shows which kind of op began to differ; a difference further
// down the graph is not counted a second time. Structure, tokens and coverage are tests of their
// own.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "src/judge/ledger.h"
#include "src/report/report.h"

namespace lockstep {
namespace {

constexpr size_t kLines = 20;  // flips and places that a test lists

// A path that ends with a slash has no file name: that of its folder stands for it.
std::string file_of(const std::string& path) {
  const std::filesystem::path at = path;
  return at.has_filename() ? at.filename().string() : at.parent_path().filename().string();
}

// How far apart the op class is; a failure of the whole is that of the class where it begins.
TestCase test_of(const OpKindRow& kind, const DiffResult& result) {
  TestCase test{.name = kind.name};
  int64_t rows = 0, equal = 0;
  size_t listed = 0;
  for (const DiffPlace& place : result.places) {
    if (place.place.point->op != kind.kind) continue;
    rows += place.rows;
    equal += place.equal;
    if (place.equal == place.rows || listed++ >= kLines) continue;
    test.details += fmt::format("{}: {} of {} rows have other bits{}\n", text_of(place.place),
                                place.rows - place.equal, place.rows,
                                place.measured > 0 ? fmt::format(", {:.3g} ulp apart", place.ulps)
                                                   : ", and no numbers that say how far");
  }
  if (listed > kLines) test.details += fmt::format("... and {} more\n", listed - kLines);
  test.details += fmt::format("{} of {} rows have equal bits\n", equal, rows);
  // Ops further down inherit the difference, so that only one class can be said to fail.
  const bool begins = result.first_kind && result.first_kind->id.place.point->op == kind.kind;
  if (result.verdict != DiffResult::Verdict::different || !begins) return test;
  test.outcome = TestCase::Outcome::failed;
  test.kind = name_of(result.verdict);
  test.message = result.story;
  return test;
}

// fails: by what no op class shows.
TestCase structure_of(const DiffResult& result, bool fails) {
  TestCase test{.name = "structure"};
  for (const std::string& sentence : result.structure) test.details += sentence + "\n";
  if (!fails) return test;
  test.outcome = TestCase::Outcome::failed;
  test.kind = name_of(result.verdict);
  test.message = result.story;
  return test;
}

// Never fails by itself: texts that part are not wrong where the numbers are not.
TestCase tokens_of(const DiffResult& result) {
  TestCase test{.name = "tokens"};
  for (size_t i = 0; i < std::min(kLines, result.flips.size()); ++i)
    test.details += fmt::format("request {} takes another way from position {} on\n",
                                result.flips[i].request, result.flips[i].position);
  if (result.flips.size() > kLines)
    test.details += fmt::format("... and {} more\n", result.flips.size() - kLines);
  return test;
}

// Nothing compared is trouble, not a pass.
TestCase coverage_of(const DiffResult& result) {
  TestCase test{.name = "coverage", .details = fmt::format("{} rows compared\n", result.rows)};
  if (result.verdict != DiffResult::Verdict::inconclusive) return test;
  test.outcome = TestCase::Outcome::trouble;
  test.kind = name_of(result.verdict);
  test.message = result.story;
  return test;
}

}  // namespace

// A case for each kind of op that was compared. A verdict that no case tells makes the structure's
// fail, so that a file of tests is never green beside a red word.
TestSuite tests_of(const DiffResult& result) {
  TestSuite suite{
      .name = fmt::format("{} beside {}", file_of(result.trace_b), file_of(result.trace_a))};
  for (const OpKindRow& kind : kOpKinds)
    if (std::ranges::any_of(result.places, [&](const DiffPlace& place) {
          return place.place.point->op == kind.kind;
        }))
      suite.cases.push_back(test_of(kind, result));
  const bool told =
      std::ranges::count(suite.cases, TestCase::Outcome::failed, &TestCase::outcome) > 0;
  suite.cases.push_back(structure_of(result, result.verdict == DiffResult::Verdict::different &&
                                                 (!told || !result.structure.empty())));
  suite.cases.push_back(tokens_of(result));
  suite.cases.push_back(coverage_of(result));
  return suite;
}

}  // namespace lockstep
