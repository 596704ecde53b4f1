// The auditor on hand-made passes, where each thing it can find is done once, and on the engine.
#include "src/audit/audit.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cmath>
#include <random>
#include <utility>

#include "tests/fixtures.h"

namespace lockstep {
namespace {

constexpr int64_t kPage = 4;

// A cache of one layer, one head and two dims that really is written and read.
class HandMade {
 public:
  struct Chunk {
    int32_t request, first;
    std::vector<int32_t> tokens;
    std::vector<int32_t> pages;
    int64_t most = -1;  // positions that are read; -1: all up to the last token
  };

  static PassInfo info_of(const std::vector<Chunk>& chunks, int32_t pass) {
    PassInfo info{.pass = pass};
    for (const Chunk& c : chunks) {
      for (int32_t i = 0; i < std::ssize(c.tokens); ++i) {
        const int32_t p = c.first + i;
        info.rows.push_back({{c.request, p},
                             c.tokens[static_cast<size_t>(i)],
                             c.pages[static_cast<size_t>(p / kPage)] * kPage + p % kPage});
      }
      info.pages.push_back({c.request, c.pages});
    }
    return info;
  }

  void pass(const std::vector<Chunk>& chunks) { pass(info_of(chunks, pass_)); }

  void pass(const PassInfo& info) {
    auditor_.begin(info);
    std::vector<Row> rows;
    std::vector<float> values;
    for (const PassRow& r : info.rows) {
      rows.push_back(r.row);
      // What a model computes depends on the token and its place (and here on nothing else).
      for (float part : {0.f, .5f})
        values.push_back(static_cast<float>(r.token * 1000 + r.row.position) + part + noise_);
      if (writes_) slots_[r.slot] = {values.end()[-2], values.end()[-1]};
    }
    const Shape shape{std::ssize(rows), 1, 2};
    show(point("attn.v"), rows, values, shape);
    show(point("attn.k_rope"), rows, values, shape);
    for (const RequestPages& table : info.pages) read(info, table);
    auditor_.end();
    ++pass_;
  }

  void end(int32_t request) { auditor_.end(request); }
  const std::vector<Finding>& findings() const { return auditor_.findings(); }
  std::string rules() const {
    std::string all;
    for (const Finding& f : findings()) all += f.rule + "\n";
    return all;
  }

  std::map<int64_t, std::array<float, 2>> slots_;
  bool writes_ = true;
  float noise_ = 0;

 private:
  void show(const Point& p, std::span<const Row> rows, std::vector<float>& values,
            const Shape& shape) {
    auditor_.record({&p, 0, rows, {values.data(), DType::f32, Device::cpu, shape}});
  }
  void read(const PassInfo& info, const RequestPages& table) {
    int32_t length = 0;
    for (const PassRow& r : info.rows)
      if (r.row.request == table.request) length = std::max(length, r.row.position + 1);
    std::vector<Row> rows;
    std::vector<float> values;
    for (int32_t p = 0; p < length; ++p) {
      rows.push_back({table.request, p});
      const auto found =
          slots_.find(table.pages[static_cast<size_t>(p / kPage)] * kPage + p % kPage);
      const auto content = found == slots_.end() ? std::array{-7.f, -7.f} : found->second;
      for (int half = 0; half < 2; ++half)
        values.insert(values.end(), content.begin(), content.end());
    }
    show(point("attn.kv"), rows, values, {length, 2, 1, 2});
  }

  Auditor auditor_{kPage};
  int32_t pass_ = 0;
};

const std::vector<int32_t> kTokens = {11, 12, 13, 14, 15, 16};

TEST(Auditor, IsSilentOnPrefillDecodeAndStrangers) {
  HandMade run;
  run.pass({{0, 0, kTokens, {2, 5}}, {1, 0, {7, 8}, {3}}});
  run.pass({{0, 6, {17}, {2, 5}}, {1, 2, {9}, {3}}});
  run.pass({{1, 3, {9, 9, 9}, {3, 0}}});
  EXPECT_EQ(run.rules(), "");
}

TEST(Auditor, IsSilentOnWhatIsLegal) {
  HandMade run;
  run.pass({{0, 0, kTokens, {2, 5}}});
  // Request 1 has the same first page; request 2 is a fork of request 0 with a page of its own.
  PassInfo shared = HandMade::info_of({{1, 4, {99}, {2, 7}}}, 1);
  shared.inherited = {{1, {11, 12, 13, 14}}};
  run.pass(shared);
  run.slots_[6 * kPage] = run.slots_[5 * kPage],
                 run.slots_[6 * kPage + 1] = run.slots_[5 * kPage + 1];
  PassInfo fork = HandMade::info_of({{0, 6, {20}, {2, 5}}, {2, 6, {30}, {2, 6}}}, 2);
  fork.inherited = {{2, kTokens}};
  run.pass(fork);
  // Computed again elsewhere, with other bits as another batch gives them; the old page stays
  // legal.
  run.noise_ = .25f;
  run.pass({{0, 0, {11, 12, 13, 14, 15, 16, 20}, {8, 9}}});
  PassInfo late = HandMade::info_of({{3, 4, {1}, {2, 1}}, {4, 4, {1}, {8, 3}}}, 4);
  late.inherited = {{3, {11, 12, 13, 14}}, {4, {11, 12, 13, 14}}};
  run.pass(late);
  // Swapped out and in: its pages are others now.
  for (int64_t s = 0; s < 8; ++s) run.slots_[20 * kPage + s] = run.slots_[8 * kPage + s];
  run.pass({{0, 7, {40}, {20, 21}}});
  EXPECT_EQ(run.rules(), "");
}

// Memory of a service that goes on and on is that of its cache.
TEST(Auditor, ForgetsWhoWroteWhatManyEndedRequestsHad) {
  constexpr int32_t kMany = (1 << 14) + 8;
  HandMade run;
  run.pass({{0, 0, {1}, {2}}});
  const auto first = run.slots_.at(2 * kPage);
  std::array<float, 2> late{};
  for (int32_t request = 1; request < kMany; ++request) {
    run.end(request - 1);
    run.pass({{request, 0, {request + 1}, {2}}});
    if (request == kMany - 3) late = run.slots_.at(2 * kPage);
  }
  EXPECT_EQ(run.rules(), "");
  run.writes_ = false;
  run.slots_[2 * kPage] = late;
  run.pass({{kMany, 0, {5}, {2}}});
  EXPECT_NE(run.rules().find(fmt::format("written by request {} position 0", kMany - 3)),
            std::string::npos)
      << run.rules();
  run.slots_[2 * kPage] = first;
  run.pass({{kMany + 1, 0, {6}, {2}}});
  EXPECT_NE(run.rules().find("which holds what nobody wrote"), std::string::npos) << run.rules();
}

// Who holds whose K and V is the same whether both were written or both are read wrongly.
TEST(Auditor, BlamesNeitherWriteNorReadOfRowsThatHoldEachOthers) {
  HandMade run;
  run.pass({{0, 0, kTokens, {2, 5}}, {1, 0, {7, 8, 9}, {3}}});
  std::swap(run.slots_[2 * kPage + 1], run.slots_[3 * kPage + 2]);
  run.pass({{0, 6, {1}, {2, 5}}, {1, 3, {2}, {3}}});
  ASSERT_EQ(run.findings().size(), 2u) << run.rules();
  EXPECT_EQ(run.findings()[0].rule,
            "layer 0, request 0, position 1 and request 1, position 2 hold each other's K and V: "
            "written to each other's slots, or read from them (page 2 slot 1 and page 3 slot 2)");
  EXPECT_EQ(run.findings()[1].rule.substr(0, 50),
            "layer 0, request 1, position 2 and request 0, posi");
}

TEST(Auditor, NamesWhoWroteWhatIsReadInstead) {
  HandMade run;
  run.pass({{0, 0, kTokens, {2, 5}}, {1, 0, kTokens, {3, 4}}});
  EXPECT_EQ(run.rules(), "") << "equal tokens may be read by either";
  run.pass({{1, 6, {1}, {3, 4}}});
  run.slots_[4 * kPage + 1] = run.slots_[2 * kPage];
  run.pass({{1, 7, {2}, {3, 4}}});
  ASSERT_EQ(run.findings().size(), 1u) << run.rules();
  const Finding& f = run.findings()[0];
  EXPECT_EQ(f.rule,
            "layer 0, request 1, position 5 reads page 2 slot 0, written by request 0 position 0 "
            "in pass 0; its page table says page 4 slot 1 (1 of 8 positions are wrong)");
  EXPECT_EQ(f.node.pass, 2);
  EXPECT_EQ(f.node.request, 1);
  EXPECT_EQ(f.position, 5);
  EXPECT_EQ(f.node.place, (Place{&point("attn.kv"), 0}));
  EXPECT_EQ(f.verdict, Verdict::introduced);
}

TEST(Auditor, AStalePrefixPageIsFound) {
  HandMade run;
  run.pass({{0, 0, {1, 2, 3, 4, 5}, {2, 5}}});
  PassInfo stale = HandMade::info_of({{1, 4, {9}, {2, 7}}}, 1);
  stale.inherited = {{1, {1, 2, 3, 8}}};  // another fourth token
  run.pass(stale);
  ASSERT_EQ(run.findings().size(), 1u);
  EXPECT_NE(
      run.rules().find("position 3 reads page 2 slot 3, but nobody wrote K and V for its tokens"),
      std::string::npos)
      << run.rules();
}

TEST(Auditor, ASlotThatNobodyWroteIsFound) {
  HandMade run;
  run.writes_ = false;
  run.pass({{0, 0, {1, 2}, {2}}});
  ASSERT_EQ(run.findings().size(), 1u);
  EXPECT_NE(
      run.rules().find("page 2 slot 0, which holds what nobody wrote; request 0 position 0 was "
                       "to write it in pass 0 (2 of 2"),
      std::string::npos)
      << run.rules();
  HandMade moved;
  moved.pass({{0, 0, {1, 2}, {2}}});
  moved.pass({{0, 2, {3}, {9}}});
  EXPECT_NE(moved.rules().find("position 0 reads page 9 slot 0, a slot that nobody wrote"),
            std::string::npos)
      << moved.rules();
}

TEST(Auditor, TwoTokensInOneSlotAreFound) {
  HandMade run;
  PassInfo info = HandMade::info_of({{0, 0, {1, 2}, {2}}, {1, 0, {3}, {4}}}, 0);
  info.rows[1].slot = info.rows[0].slot;
  run.pass(info);
  EXPECT_NE(
      run.rules().find("request 0 position 1 is written to page 2 slot 0, where the same pass "
                       "writes request 0 position 0"),
      std::string::npos)
      << run.rules();
  EXPECT_NE(run.rules().find("but its page table says page 2 slot 1"), std::string::npos);
}

TEST(Auditor, AliasingAndWritingWhileSharedAreFound) {
  HandMade run;
  run.pass({{0, 0, {1, 2}, {2}}, {1, 0, {3, 4}, {2}}});
  EXPECT_NE(
      run.rules().find("requests 0 and 1 both hold page 2 (their 1 and 1), for different tokens"),
      std::string::npos)
      << run.rules();
  EXPECT_NE(
      run.rules().find("request 0 position 0 is written to page 2 slot 0 while request 1 holds "
                       "that page as its 1 of 1"),
      std::string::npos)
      << run.rules();
  HandMade fork;  // without a copy of its own
  fork.pass({{0, 0, {1, 2}, {2}}});
  PassInfo info = HandMade::info_of({{0, 2, {5}, {2}}, {1, 2, {5}, {2}}}, 1);
  info.inherited = {{1, {1, 2}}};
  fork.pass(info);
  EXPECT_NE(fork.rules().find("while request 1 holds that page"), std::string::npos);
  EXPECT_EQ(fork.rules().find("different tokens"), std::string::npos) << fork.rules();
}

// Requests 0 and 1 share page 2, as a prefix that both have; request 1 has no row in the pass.
PassInfo shared_with_an_idle_one() {
  PassInfo info = HandMade::info_of({{0, 0, kTokens, {2, 5}}}, 0);
  info.idle = {{1, {2}}};
  info.page_counts = {{2, 2}, {5, 1}};
  return info;
}

TEST(Auditor, CountsOfPagesAddUp) {
  const auto rules_of = [](auto change) {
    PassInfo info = shared_with_an_idle_one();
    // The rows that are written lie past the page that is shared.
    info.rows.erase(info.rows.begin(), info.rows.begin() + 4);
    info.inherited = {{0, {11, 12, 13, 14}}};
    change(info);
    HandMade run;
    run.pass(HandMade::info_of({{7, 0, {11, 12, 13, 14}, {2}}}, 0));  // who wrote the prefix
    run.pass(info);
    return run.rules();
  };
  EXPECT_EQ(rules_of([](PassInfo&) {}), "");
  EXPECT_EQ(rules_of([](PassInfo& info) { info.page_counts.clear(); }), "") << "not known";
  EXPECT_EQ(rules_of([](PassInfo& info) { info.page_counts[0].holders = 1; }),
            "page 2 is held by 2 (requests 0, 1), but the engine counts 1\n");
  EXPECT_EQ(rules_of([](PassInfo& info) { info.page_counts[0].holders = 3; }),
            "page 2 is held by 2 (requests 0, 1), but the engine counts 3\n");
  EXPECT_EQ(rules_of([](PassInfo& info) { info.page_counts.pop_back(); }),
            "page 5 is held by 1 (requests 0), but the engine counts 0\n");
  EXPECT_EQ(rules_of([](PassInfo& info) {
              info.page_counts.push_back({9, 1});
            }),
            "page 9 is in no request's table, but the engine counts 1\n");
}

TEST(Auditor, WritingAPageThatAnIdleRequestHoldsIsFound) {
  HandMade run;
  run.pass(shared_with_an_idle_one());
  EXPECT_NE(run.rules().find("is written to page 2 slot 0 while request 1 holds that page"),
            std::string::npos)
      << run.rules();
}

TEST(Auditor, RefusesPagesOfNothing) {
  EXPECT_NE(error_of([] { Auditor auditor(0); }).find("found 0"), std::string::npos);
}

TEST(AddAudit, MakesACleanResultDivergedAndKeepsASilentOneClean) {
  HandMade silent, loud;
  Result result{.verdict = RunVerdict::clean, .story = "No bug"};
  Auditor nothing(4);
  add_audit(result, nothing);
  EXPECT_EQ(result.verdict, RunVerdict::clean);
  EXPECT_NE(result.cache, "");
  Auditor found(4);
  PassInfo info = HandMade::info_of({{0, 0, {1, 2}, {2}}, {1, 0, {3, 4}, {2}}}, 0);
  found.begin(info);
  add_audit(result, found);
  EXPECT_EQ(exit_status(result), 1);
  ASSERT_TRUE(result.first);
  EXPECT_EQ(result.first->verdict, Verdict::structural);
  EXPECT_NE(result.story.find("request"), std::string::npos);
}

TEST(AddAudit, LeavesWhatTheJudgeSaysOfTheSameNode) {
  Auditor found(4);
  found.begin(HandMade::info_of({{0, 0, {1, 2}, {2}}, {1, 0, {3, 4}, {2}}}, 0));
  Finding known = found.findings().at(0);
  const std::string where = known.rule;
  known.rule = "reads V that nobody wrote";
  Result result{.verdict = RunVerdict::diverged, .first = known, .findings = {known}};
  add_audit(result, found);
  EXPECT_TRUE(result.findings[0].rule.starts_with("reads V that nobody wrote; " + where))
      << result.findings[0].rule;
  EXPECT_EQ(result.first->rule, result.findings[0].rule);
}

// An op that makes NaN of the NaN that it read is right, whoever was selected.
TEST(AddAudit, CountsNoOpAsWrongThatHandsTheNanOfACacheOn) {
  const double nan = std::nan("");
  const auto found_at = [&](const char* name, int layer, int32_t request, std::string rule) {
    return Finding{.node = {.place = {find_point(name), layer}, .request = request},
                   .verdict = Verdict::nonfinite,
                   .index = {0, 0},
                   .want = nan,
                   .got = nan,
                   .rule = std::move(rule)};
  };
  const Finding handed_on =
      found_at("mlp.norm", 0, 0, "propagated: an input of the op is not finite (4 of 4 elements)");
  const Finding of_another = found_at("mlp.norm", 0, 1, handed_on.rule);
  const Finding made = found_at("mlp.up", 0, 0, "introduced: the exact result is a finite number");
  Finding cache = found_at("attn.kv", 0, 0, "reads a slot that nobody wrote");
  cache.verdict = Verdict::introduced, cache.statistic = StatisticKind::bits, cache.index = {0};
  const auto added = [&](std::vector<Finding> findings) {
    Result result{.verdict = RunVerdict::diverged, .first = findings[0], .findings = findings};
    result.counts[Verdict::nonfinite] = std::ssize(findings);
    for (const Finding& f : findings)
      if (std::ranges::find(result.places, f.node.place, &PlaceSummary::place) ==
          result.places.end())
        result.places.push_back({.place = f.node.place, .verdict = Verdict::nonfinite});
    add_audit(result, std::vector{cache});
    return result;
  };
  const Result one = added({handed_on});
  ASSERT_EQ(one.findings.size(), 1U);
  EXPECT_EQ(one.findings[0].node, cache.node);
  EXPECT_EQ(one.first->node, cache.node);
  EXPECT_EQ(one.places[0].verdict, Verdict::propagated);
  EXPECT_EQ(one.places[0].ancestor, "layer 0 attn.kv");
  EXPECT_EQ(one.counts[Verdict::nonfinite], 0);
  EXPECT_EQ(one.counts[Verdict::propagated], 1);
  EXPECT_EQ(one.story.find("want"), std::string::npos) << "no numbers of a cache were compared";
  const Result more = added({handed_on, of_another, made});
  ASSERT_EQ(more.findings.size(), 3U) << "another request's, and what an op made, stay";
  EXPECT_EQ(more.places[0].verdict, Verdict::nonfinite);
  cache.got = 0;
  EXPECT_EQ(added({handed_on}).findings.size(), 2U) << "numbers make no NaN";
}

// --- on the engine ---------------------------------------------------------------------------

const Checkpoint& bard() {
  static const Checkpoint checkpoint = Checkpoint::open(data_path("bard-qwen3"));
  return checkpoint;
}

std::vector<Finding> audited(const EngineOptions& options, const std::vector<Request>& requests,
                             Engine::Hooks hooks = {}, int forks = 0) {
  Engine engine(bard(), cpu_ops(), options, std::move(hooks));
  for (const Request& request : requests) engine.submit(request);
  Auditor auditor(options.page_size);
  Probe probe(&auditor);
  for (int step = 0; engine.step(probe); ++step)
    for (int32_t parent = 0; forks > 0 && step >= 2 && parent < 2; ++parent)
      if (const Sequence& s = engine.sequence(parent);
          !s.finished && !s.prefilling() && !s.pages.empty() && !s.swapped)
        engine.fork(parent, 3), --forks;
  EXPECT_EQ(probe.failure(), "");
  EXPECT_GT(auditor.rows_read(), auditor.rows_written());
  return auditor.findings();
}

std::vector<Request> family(uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<Request> requests;
  for (int i = 0; i < 6; ++i) {
    Request r{.prompt = some_tokens(static_cast<int64_t>(random() % 3) * 9, 4096, i % 2),
              .max_new = 1 + static_cast<int64_t>(random() % 6),
              .arrival = static_cast<int64_t>(random() % 8)};
    for (int32_t token : some_tokens(1 + static_cast<int64_t>(random() % 12), 4096, 50 + i % 3))
      r.prompt.push_back(token);
    requests.push_back(std::move(r));
  }
  return requests;
}

TEST(AuditedEngine, IsSilentOverRandomSchedules) {
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    const int64_t page = std::array<int64_t, 4>{1, 2, 4, 16}[seed % 4];
    const auto findings = audited({.dtype = seed % 2 == 0 ? DType::bf16 : DType::f32,
                                   .page_size = page,
                                   .pages = 70 / page + 2,
                                   .page_order_seed = seed,
                                   .max_batched_tokens = seed % 3 == 0 ? 7 : 0,
                                   .prefix_cache = seed % 5 != 0,
                                   .preempt = seed % 2 == 0 ? Preempt::swap : Preempt::recompute,
                                   .random_schedule_seed = seed},
                                  family(seed), {}, seed % 3 == 1 ? 2 : 0);
    ASSERT_TRUE(findings.empty()) << "schedule " << seed << ": " << findings[0].rule;
  }
}

const std::vector<Request>& two_requests() {
  static const std::vector<Request> requests = {{.prompt = some_tokens(9, 4096, 1), .max_new = 4},
                                                {.prompt = some_tokens(7, 4096, 2), .max_new = 4}};
  return requests;
}

std::string first_rule(std::function<void(Batch&)> before_pass) {
  const auto findings = audited({.dtype = DType::bf16, .page_size = 4, .pages = 16, .threads = 1},
                                two_requests(), {.before_pass = std::move(before_pass)});
  return findings.empty() ? "" : findings[0].rule;
}

// A page is given away while its request still has it in its table.
TEST(AuditedEngine, APageThatIsFreedWhileItIsHeldIsFoundBeforeItIsReused) {
  const Checkpoint checkpoint = Checkpoint::open(data_path("tiny/qwen3-default"));
  Engine::Hooks hooks;
  int plans = 0;
  hooks.after_plan = [&](Plan& plan, PagePool& pool) {
    if (++plans == 2) pool.give_back(plan.chunks.at(0).sequence->pages.at(0));
    if (plans == 3) pool.take();  // the same page: the engine gives back all it holds at the end
  };
  Engine engine(checkpoint, cpu_ops(), {.page_size = 4, .pages = 8}, hooks);
  engine.submit({.prompt = some_tokens(6, checkpoint.config().vocab), .max_new = 3});
  Auditor auditor(4);
  Probe probe(&auditor);
  engine.step(probe);
  EXPECT_TRUE(auditor.findings().empty());
  engine.step(probe);
  ASSERT_FALSE(auditor.findings().empty());
  EXPECT_EQ(auditor.findings()[0].rule,
            "page 0 is held by 1 (requests 0), but the engine counts 0");
}

TEST(AuditedEngine, AWrongPageTableRowIsNamed) {
  const std::string rule = first_rule([](Batch& batch) {
    if (batch.info.pass != 2) return;
    auto* table = batch.page_table.as<int32_t>();
    const int64_t width = batch.page_table.view().row_size();
    table[width] = table[0];
  });
  EXPECT_NE(rule.find("layer 0, request 1, position 0 reads page 0 slot 0, written by request 0 "
                      "position 0 in pass 0; its page table says page 3 slot 0"),
            std::string::npos)
      << rule;
}

TEST(AuditedEngine, ASlotOffByOneIsNamed) {
  const std::string rule = first_rule([](Batch& batch) {
    if (batch.info.pass == 1) ++batch.slots.as<int64_t>()[0];
  });
  EXPECT_NE(rule.find("layer 0, request 0, position 9 reads page 2 slot 1, which holds what nobody "
                      "wrote; request 0 position 9 was to write it in pass 1"),
            std::string::npos)
      << rule;
}

TEST(AuditedEngine, ATokenWrittenOverAnotherIsNamed) {
  const std::string rule = first_rule([](Batch& batch) {
    if (batch.info.pass == 1) batch.slots.as<int64_t>()[1] = 2;  // request 1 into request 0's page
  });
  EXPECT_NE(rule.find("request 0, position 2 reads page"), std::string::npos) << rule;
  EXPECT_NE(rule.find("written by request 1 position 7 in pass 1"), std::string::npos) << rule;
}

}  // namespace
}  // namespace lockstep
