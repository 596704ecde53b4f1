// A check against a baseline as a document, and as tests for JUnit: those of the judgement itself,
// which fail here also for what only the baseline shows.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "src/check/check_report.h"
#include "src/report/report.h"

namespace lockstep {
namespace {

// A screen holds so many; the JSON report has all of them.
constexpr size_t kItems = 10;

std::string fact_of(const CheckResult& result, const std::string& name) {
  const auto found = result.run.provenance.find(name);
  return found == result.run.provenance.end() ? "" : found->second;
}

std::string short_sha(const std::string& sha) {
  return sha.empty() ? "an unknown commit" : sha.substr(0, 9);
}

std::string title_of(const CheckResult& result) {
  return fmt::format("check of {} on {}: {} requests, {} tokens forced", tests_of(result.run).name,
                     fact_of(result, "device"), result.run.requests.size(), result.forced);
}

std::string baseline_text(const CheckResult& result) {
  if (result.updated) return fmt::format("baseline {}, made by this run", result.baseline);
  return fmt::format("baseline {}, made by lockstep at {}; this is {}", result.baseline,
                     short_sha(result.baseline_sha), short_sha(fact_of(result, "git_sha")));
}

// "0.93 / 0.91"; what was not measured, as of an op class that must be exact, is "#".
std::string pair_text(const CheckResult::ClassDrift& drift, double Reached::*value) {
  const auto shown = [value](const Reached& reached) {
    return is_measured(reached) ? fmt::format("{:.3g}", reached.*value) : "#";
  };
  if (!is_measured(drift.reached) && !is_measured(drift.baseline)) return "#";
  return fmt::format("{} / {}", shown(drift.reached), shown(drift.baseline));
}

Table classes_table(const CheckResult& result) {
  const bool fp32 = fact_of(result, "compute_dtype") == "fp32";
  Table table{{{"op class (now / baseline)", Table::Align::left, 0},
               {"nodes", Table::Align::right, 0},
               {"wrong", Table::Align::right, 0},
               {fp32 ? "T1" : "T3", Table::Align::right, 0},
               {"T2", Table::Align::right, 0},
               {"T5", Table::Align::right, 0}},
              {}};
  for (const CheckResult::ClassDrift& c : result.classes) {
    const std::string nodes = c.nodes == c.baseline_nodes
                                  ? std::to_string(c.nodes)
                                  : fmt::format("{} / {}", c.nodes, c.baseline_nodes);
    table.rows.push_back({std::string(name_of(c.op)), nodes, c.findings,
                          pair_text(c, fp32 ? &Reached::inner : &Reached::share),
                          pair_text(c, &Reached::rms), pair_text(c, &Reached::gain)});
  }
  return table;
}

Table data_of(const CheckResult& result) {
  Table table{{"op_class", "nodes", "baseline_nodes", "findings", "t1_inner", "baseline_t1_inner",
               "t2_t4", "baseline_t2_t4", "t3", "baseline_t3", "t5_gain", "baseline_t5_gain"},
              {}};
  for (const CheckResult::ClassDrift& c : result.classes)
    table.rows.push_back({std::string(name_of(c.op)), c.nodes, c.baseline_nodes, c.findings,
                          c.reached.inner, c.baseline.inner, c.reached.rms, c.baseline.rms,
                          c.reached.share, c.baseline.share, c.reached.gain, c.baseline.gain});
  return table;
}

void add_items(const char* title, const std::vector<CheckResult::Item>& items,
               std::vector<Block>& blocks) {
  if (items.empty()) return;
  List list;
  for (size_t i = 0; i < std::min(kItems, items.size()); ++i)
    list.items.push_back(fmt::format("{}: {}", name_of(items[i].kind), items[i].says));
  if (items.size() > kItems)
    list.items.push_back(fmt::format("... and {} more", items.size() - kItems));
  blocks.push_back(Heading{title});
  blocks.push_back(std::move(list));
}

TestCase* find_test(TestSuite& suite, const std::string& name) {
  const auto found = std::ranges::find(suite.cases, name, &TestCase::name);
  return found == suite.cases.end() ? nullptr : &*found;
}

// The tests of the judgement, and what only the baseline shows: less coverage, numbers that are
// newly not finite, op classes that are gone.
TestSuite suite_of(const CheckResult& result) {
  TestSuite suite = tests_of(result.run);
  for (const CheckResult::Item& item : result.failures) {
    const bool of_coverage = item.kind == CheckResult::Kind::coverage || !item.op_class;
    TestCase* test = find_test(suite, of_coverage ? "coverage" : name_of(*item.op_class));
    if (test == nullptr || test->outcome == TestCase::Outcome::trouble) continue;
    if (test->outcome == TestCase::Outcome::passed) {
      test->outcome = TestCase::Outcome::failed;
      test->kind = name_of(item.kind);
      test->message = item.says;
    }
    if (of_coverage) test->details += item.says + "\n";
  }
  for (const CheckResult::Item& note : result.notes)
    if (TestCase* test = find_test(suite, note.op_class ? name_of(*note.op_class) : "coverage"))
      test->details += fmt::format("note, {}: {}\n", name_of(note.kind), note.says);
  suite.properties.emplace_back("baseline", result.baseline);
  suite.properties.emplace_back("baseline_git_sha", result.baseline_sha);
  return suite;
}

// The baseline, and how the run is beside it.
std::vector<Block> held_to(const CheckResult& result) {
  std::vector<Block> blocks = {Paragraph{title_of(result), 0, 2},
                               Paragraph{baseline_text(result), 0, 2}, Heading{},
                               classes_table(result)};
  add_items("failures", result.failures, blocks);
  add_items("notes, which fail nothing", result.notes, blocks);
  return blocks;
}

// The page of the run, with what it was held to above.
std::string check_page(const CheckResult& result) {
  std::vector<Block> blocks = held_to(result);
  blocks.insert(blocks.begin(), Heading{"Beside the baseline"});
  const CheckResult::Verdict verdict = result.verdict;
  const bool passed = verdict == CheckResult::Verdict::pass,
             failed = verdict == CheckResult::Verdict::fail;
  return page_of(result.run, {.tone = passed   ? RunVerdict::clean
                                      : failed ? RunVerdict::diverged
                                               : RunVerdict::inconclusive,
                              .title = passed   ? "Check passed"
                                       : failed ? "Check failed"
                                                : "Check inconclusive",
                              .story = result.story,
                              .blocks = std::move(blocks),
                              .json = report_json(result)});
}

}  // namespace

Document document_of(const CheckResult& result) {
  Document document{.blocks = held_to(result),
                    .data = data_of(result),
                    .json = report_json(result),
                    .tests = suite_of(result),
                    .page = [result] { return check_page(result); }};
  std::vector<Block>& blocks = document.blocks;
  blocks.push_back(Heading{});
  if (!result.run.blind.empty()) {
    std::string untested;
    for (const std::string& blind : result.run.blind)
      untested += (untested.empty() ? "" : "; ") + blind.substr(0, blind.find(" ("));
    blocks.push_back(
        Paragraph{fmt::format("untested {}: {}", result.run.blind.size(), untested), 0, 2});
  }
  blocks.push_back(Conclusion{name_of(result.verdict), result.story});
  return document;
}

}  // namespace lockstep
