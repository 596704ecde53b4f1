// Page tables and slots of saved traces, where each thing that can be found is done once.
#include "src/audit/table_audit.h"

#include <gtest/gtest.h>

#include <limits>

#include "tests/helpers.h"

namespace lockstep {
namespace {

constexpr int64_t kPage = 4;

Manifest manifest_of(const std::string& page_size, const std::string& pages = "16") {
  return {.provenance = {{"page_size", page_size}, {"pages", pages}}};
}

struct Chunk {
  int32_t request, first, tokens;
  std::vector<int32_t> pages;
};

PassInfo info_of(int32_t pass, const std::vector<Chunk>& chunks) {
  PassInfo info{.pass = pass};
  for (const Chunk& c : chunks) {
    for (int32_t p = c.first; p < c.first + c.tokens; ++p)
      info.rows.push_back({{c.request, p},
                           100 * c.request + p,
                           c.pages[static_cast<size_t>(p / kPage)] * kPage + p % kPage});
    info.pages.push_back({c.request, c.pages});
  }
  return info;
}

// Requests of 6 and 3 tokens, and two decode passes.
std::vector<PassInfo> right_passes() {
  return {info_of(0, {{0, 0, 6, {5, 2}}, {1, 0, 3, {7}}}),
          info_of(1, {{0, 6, 1, {5, 2}}, {1, 3, 1, {7}}}),
          info_of(2, {{0, 7, 1, {5, 2}}, {1, 4, 1, {7, 0}}})};
}

Result audited(const std::vector<PassInfo>& passes, const Manifest& manifest = manifest_of("4"),
               int64_t window = 0) {
  TableAudit audit(manifest, window);
  for (const PassInfo& pass : passes) audit.add(pass);
  Result result{.verdict = RunVerdict::clean, .story = "No bug"};
  audit.put_into(result);
  return result;
}

void expect_found(const std::string& rule, int pass, auto change) {
  std::vector<PassInfo> passes = right_passes();
  change(passes);
  const Result result = audited(passes);
  EXPECT_EQ(result.verdict, RunVerdict::diverged) << rule;
  ASSERT_TRUE(result.first) << rule;
  EXPECT_EQ(result.first->rule, rule);
  EXPECT_EQ(result.first->node.pass, pass);
  EXPECT_EQ(result.first->verdict, Verdict::structural);
}

TEST(TableAudit, FindsNothingInARightRun) {
  const Result result = audited(right_passes());
  EXPECT_EQ(result.verdict, RunVerdict::clean);
  EXPECT_EQ(result.cache, "page tables and slots of 3 passes, 0 findings");
}

TEST(TableAudit, NamesThePageOrSlotThatIsWrong) {
  expect_found(
      "request 0 position 7 is written to page 5 slot 0, but its page table says page 2 "
      "slot 3",
      2, [](auto& passes) { passes[2].rows[0].slot = 20; });
  expect_found("the page table of request 0 names page -1 of a pool of 16", 1,
               [](auto& passes) { passes[1].pages[0].pages[0] = -1; });
  expect_found(
      "the page table of request 0 names page -2147483648 of a pool of 16", 1,
      [](auto& passes) { passes[1].pages[0].pages[0] = std::numeric_limits<int32_t>::min(); });
  expect_found("the page table of request 0 names page 16 of a pool of 16", 1,
               [](auto& passes) { passes[1].pages[0].pages[0] = 16; });
  expect_found("request 0 has several page tables", 1,
               [](auto& passes) { passes[1].pages.push_back(passes[1].pages[0]); });
  expect_found("request 0 holds page 2 twice, as its 1 and 2", 2,
               [](auto& passes) { passes[2].pages[0].pages[0] = 2; });
  expect_found("request 1 position 4 is written to page 0 slot 0, but its page table says no page",
               2, [](auto& passes) { passes[2].pages[1].pages.pop_back(); });
  expect_found("request 0 position 6 is written to page 2 slot 2, but its page table says no page",
               1, [](auto& passes) { passes[1].pages.clear(); });
}

// Its own slot is where the table says, and the positions before are in each other's pages.
TEST(TableAudit, FindsRowsThatChangePlaces) {
  expect_found(
      "request 0 reads positions 0 on from page 2, which held its positions 4 on in the "
      "pass before",
      2, [](auto& passes) {
        passes[1] = info_of(1, {{0, 6, 2, {5, 2}}, {1, 3, 1, {7}}});
        passes[2] = info_of(2, {{0, 8, 1, {2, 5, 9}}, {1, 4, 1, {7, 0}}});
      });
  std::vector<PassInfo> passes = right_passes();
  passes[1] = info_of(1, {{0, 6, 2, {5, 2}}, {1, 3, 1, {7}}});
  passes[2] = info_of(2, {{0, 8, 1, {5, 11, 9}}, {1, 4, 1, {7, 0}}});
  EXPECT_EQ(audited(passes).verdict, RunVerdict::clean)
      << "a page is copied to one that nobody had";
  passes.insert(passes.begin() + 2, info_of(2, {{1, 4, 1, {7, 0}}}));
  passes[3] = info_of(3, {{0, 8, 1, {2, 5, 9}}, {1, 5, 1, {7, 0}}});
  EXPECT_EQ(audited(passes).verdict, RunVerdict::clean) << "it was swapped out in between";
}

// Requests of 18 and 14 tokens in layers that see 6 keys, whose first pages were given back: page 0
// stands in their place.
TEST(TableAudit, LeavesOutWhatNoQuerySeesAnyMore) {
  const std::vector<PassInfo> passes = {
      info_of(0, {{0, 0, 17, {5, 2, 3, 4, 6}}, {1, 0, 13, {7, 8, 9, 10}}}),
      info_of(1, {{0, 17, 1, {0, 0, 0, 4, 6}}, {1, 13, 1, {0, 0, 9, 10}}}),
      info_of(2, {{0, 18, 1, {0, 0, 0, 4, 6}}})};
  EXPECT_EQ(audited(passes, manifest_of("4"), 6).story, "No bug");
  EXPECT_EQ(audited(passes).first->rule, "request 0 holds page 0 twice, as its 1 and 2");
  // Of request 1, positions 8 on are seen by the query at 13, and those before are not.
  std::vector<PassInfo> wrong = passes;
  wrong[1].pages[1].pages[2] = 8;
  const Result result = audited(wrong, manifest_of("4"), 6);
  ASSERT_TRUE(result.first);
  EXPECT_EQ(result.first->node.pass, 1);
  EXPECT_EQ(audited(passes, manifest_of("4"), 7).verdict, RunVerdict::diverged)
      << "position 11 is seen by the query at 17";
  // A table may name pages that were given back, whoever has got them since: here request 0 its own
  // page 2 and the other's page 7, and request 1 the other's page 5.
  std::vector<PassInfo> stale = passes;
  stale[1].pages[0].pages = {5, 2, 3, 4, 6};
  stale[1].pages[1].pages = {7, 8, 9, 10};
  stale[2] = info_of(2, {{0, 18, 1, {5, 2, 3, 2, 7}}, {1, 14, 1, {7, 8, 5, 10}}});
  EXPECT_EQ(audited(stale, manifest_of("4"), 6).story, "No bug");
}

TEST(TableAudit, OfATraceThatDoesNotShowThemIsUndecided) {
  std::vector<PassInfo> without = right_passes();
  for (PassInfo& pass : without) pass.pages.clear();
  const Result tables = audited(without);
  EXPECT_EQ(tables.verdict, RunVerdict::inconclusive);
  EXPECT_EQ(tables.story,
            "No bug; but where K and V lie was not judged: the trace declares pages of 4 "
            "positions, but no pass shows a page table");
  std::vector<PassInfo> nowhere = right_passes();
  for (PassInfo& pass : nowhere)
    for (PassRow& row : pass.rows) row.slot = -1;
  EXPECT_EQ(audited(nowhere).verdict, RunVerdict::inconclusive);
  EXPECT_NE(audited(nowhere).story.find("no pass shows a slot"), std::string::npos);
  for (const auto& passes : {without, nowhere})
    EXPECT_EQ(audited(passes, {}).verdict, RunVerdict::clean) << "of an engine without pages";
}

TEST(TableAudit, RefusesSizesThatAreNone) {
  for (const std::string size :
       {"0", "-5", "9223372036854775807", "18446744073709551616", "four", "", "4 "})
    EXPECT_EQ(error_of([&] { TableAudit audit(manifest_of(size)); }),
              "the trace declares page_size '" + size +
                  "', and 1 to 16777216 was wanted: its page tables cannot be understood, write it "
                  "anew");
  EXPECT_NE(
      error_of([] { TableAudit audit(manifest_of("4", "none")); }).find("declares pages 'none'"),
      std::string::npos);
}

}  // namespace
}  // namespace lockstep
