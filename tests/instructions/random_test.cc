// Schedules by chance, run by the interpreter: where the checker finds nothing the numbers are
// right in an order by chance, and where it finds something its own order shows it in the numbers.
#include <gtest/gtest.h>

#include <cstdlib>
#include <deque>

#include "src/schedule/schedule_json.h"
#include "tests/instructions/tiny_steps.h"
#include "tests/schedule/against_checker.h"
#include "tests/schedule/legal_schedules.h"

namespace lockstep {
namespace {

constexpr int64_t kMostShares = 4;

// As many as a CTest run has time for, or as the environment says.
int64_t count_in(const char* variable, int64_t usual) {
  const char* wanted = std::getenv(variable);
  return wanted != nullptr ? std::atoll(wanted) : usual;
}

// Of groups of one, of two and of all query heads to a KV head, with and without QK-norm, a sliding
// window and biases.
std::deque<TinySteps>& models() {
  static std::deque<TinySteps> all;
  if (all.empty())
    for (const char* name :
         {"qwen3-default", "qwen2-mha", "qwen3-bias-mqa", "qwen2-sliding", "qwen3-moe"})
      all.emplace_back(name);
  return all;
}

TEST(RandomSchedule, ThatIsLegalComputesWhatTheModelDoes) {
  const int64_t schedules = count_in("LOCKSTEP_LEGAL_SCHEDULES", 1000);
  LegalSchedules legal(11);
  int64_t failures = 0, instructions = 0;
  for (int64_t i = 0; i < schedules && failures < 5; ++i) {
    TinySteps& model = models()[static_cast<size_t>(i) % models().size()];
    const Schedule schedule = i % 3 == 0 ? legal.edited(model.sizes(), kMostShares)
                                         : legal.made(model.sizes(), kMostShares);
    const ScheduleCheck checked = check_schedule(schedule);
    // One in sixteen with queues that are threads.
    Interleaving order;
    if (i % 16 != 0) order.seed = legal.random()();
    const std::string other =
        other_bits(model.right(schedule.kv_shares), model.computed(schedule, order));
    if (!other.empty() || !checked.findings.empty()) {
      ++failures;
      ADD_FAILURE() << i << ": "
                    << (checked.findings.empty() ? other : checked.findings.front().says) << "\n"
                    << schedule_json(schedule);
    }
    instructions += std::ssize(schedule.instructions);
  }
  fmt::print("{} schedules, {} with a harmless edit, {} instructions\n", schedules, legal.edited(),
             instructions);
  EXPECT_GT(legal.edited(), schedules / 20);
}

bool has(const ScheduleCheck& checked, std::initializer_list<ScheduleCheck::Fault> faults) {
  return std::ranges::any_of(checked.findings, [&](const ScheduleCheck::Finding& finding) {
    return std::ranges::count(faults, finding.fault) > 0;
  });
}

// What the numbers of a broken schedule are bound to show, in which order of its instructions.
struct Bound {
  enum Shown { nothing, standstill, wrong } shown = nothing;
  Interleaving order;
};

// A number that nobody writes is wrong in any order, one that is read early in that of the finding:
// of several one is played, by chance. Without them nothing is bound to be seen: the interpreter
// computes what an opcode is for, whatever the list says that it reads and writes, and each tensor
// of a pass has memory of its own, so that a number which is written twice is right all the same,
// and one that would be overwritten is still there. Those are the machine's to show (broken_test.cc
// of tests/schedule).
Bound bound_of(const Schedule& schedule, const ScheduleCheck& checked, std::mt19937_64& random) {
  using Fault = ScheduleCheck::Fault;
  if (splits_head(schedule) || has(checked, {Fault::other_rows, Fault::outside})) return {};
  if (has(checked, {Fault::unreachable, Fault::deadlock})) return {Bound::standstill, {}};
  if (has(checked, {Fault::missing})) return {Bound::wrong, {.seed = 1}};
  if (has(checked, {Fault::repeated})) return {};
  std::vector<std::vector<int>> orders;
  for (const ScheduleCheck::Finding& finding : checked.findings)
    if (finding.fault == Fault::early_read && finding.first >= 0) orders.push_back(finding.order);
  if (orders.empty()) return {};
  return {Bound::wrong, {.begin = orders[random() % orders.size()]}};
}

// Computes it in that order; "" where it shows what it was bound to.
std::string not_shown_by(TinySteps& model, const Schedule& schedule, const Bound& bound) {
  const std::vector<Pass>& right = model.right(schedule.kv_shares);
  if (bound.shown == Bound::wrong)
    return other_bits(right, model.computed(schedule, bound.order)).empty() ? "no number is wrong"
                                                                            : "";
  try {
    model.computed(schedule, bound.order);
  } catch (const Error& error) {
    if (std::string(error.what()).find("never run") != std::string::npos) return "";
    return error.what();
  }
  return "it does not stand still";
}

// Edits of what the list says of an opcode, or of what the interpreter has memory of its own for.
bool is_unseen(const std::string& edit) {
  return edit.starts_with("span ") || edit == "memory of another tensor" ||
         edit == "instruction doubled";
}

TEST(RandomSchedule, ThatIsBrokenShowsItInTheOrderOfTheFinding) {
  const int64_t schedules = count_in("LOCKSTEP_BROKEN_STEPS", 3000);
  LegalSchedules legal(12);
  ScheduleEdits edits(13);
  std::map<std::string, std::array<int64_t, 3>> counts;  // by edit: of each kind of Bound
  int64_t failures = 0;
  for (int64_t i = 0; i < schedules && failures < 5; ++i) {
    TinySteps& model = models()[static_cast<size_t>(i) % models().size()];
    Schedule schedule = legal.made(model.sizes(), kMostShares);
    const std::string said = edits.edit(schedule);
    const ScheduleCheck checked = check_schedule(schedule);
    if (said.empty() || checked.findings.empty()) continue;
    const Bound bound = bound_of(schedule, checked, legal.random());
    ++counts[said][bound.shown];
    if (bound.shown == Bound::nothing) continue;
    const std::string text = not_shown_by(model, schedule, bound);
    if (text.empty()) continue;
    ++failures;
    ADD_FAILURE() << i << ", " << said << ": " << text << "\n"
                  << checked.findings.front().says << "\n"
                  << schedule_json(schedule);
  }
  for (const auto& [said, count] : counts) {
    fmt::print("{}: {} stand still, {} are wrong, {} need not show it\n", said,
               count[Bound::standstill], count[Bound::wrong], count[Bound::nothing]);
    EXPECT_EQ(count[Bound::standstill] + count[Bound::wrong] == 0, is_unseen(said)) << said;
  }
  EXPECT_EQ(counts.size(), 24);
}

}  // namespace
}  // namespace lockstep
