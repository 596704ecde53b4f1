// Op by op, and shape by shape from the smallest on: the first wrong case is then the smallest,
// which is the one to debug. Large shapes take the dtypes in turn, one each. Time is measured of
// right cases alone, as a wrong kernel's speed says nothing.
#include "src/opcheck/opcheck.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/nearest.h"
#include "kernels/plugin/crash_watch.h"
#include "kernels/plugin/user_ops.h"
#include "src/judge/story.h"
#include "src/opcheck/common_traits.h"
#include "src/opcheck/one_op.h"
#include "src/replay/passes_reader.h"
#include "src/replay/repro.h"
#include "src/replay/repro_folder.h"
#include "src/report/output.h"
#include "src/session/device.h"

namespace lockstep {
namespace {

// Wrong cases that are looked into for what they look like: the first may be too small to tell.
constexpr int kMostLooked = 3;

std::optional<double> median(std::vector<double> all) {
  if (all.empty()) return {};
  const auto middle = all.begin() + std::ssize(all) / 2;
  std::ranges::nth_element(all, middle);
  return *middle;
}

std::vector<DType> dtypes_from(const std::vector<std::string>& names) {
  constexpr DType kAll[] = {DType::f32, DType::bf16, DType::f16};
  if (names.empty()) return {std::begin(kAll), std::end(kAll)};
  std::vector<DType> some;
  for (const std::string& name : names) {
    const auto found =
        std::ranges::find(kAll, name, [](DType dtype) { return std::string(name_of(dtype)); });
    check(found != std::end(kAll), "--dtype wants fp32, bf16 or fp16, found \"{}\"", name);
    if (std::ranges::count(some, *found) == 0) some.push_back(*found);
  }
  return some;
}

class Checker {
 public:
  Checker(const OpsOptions& options, Detail detail)
      : options_(options),
        dtypes_(dtypes_from(options.dtypes)),
        device_(open_device(options.device)),
        user_(replace_ops(ops_of(device_), options.library, device_)),
        progress_(detail) {}

  OpsResult result();

 private:
  std::vector<std::string> names() const;
  std::string folder_of(const std::string& op) const { return options_.folder + "/" + op; }
  OpsResult::Account account(const std::string& op);
  void try_case(const GridCase& shape, DType dtype, const OneOp& one);
  void look_into(OpTrial& trial, const GridCase& shape, DType dtype, OpTrial::Verdict verdict);
  void try_rounding(const OneOp& one);
  void time(OpTrial& trial);
  void write_repro_of_first();

  const OpsOptions& options_;
  std::vector<DType> dtypes_;
  Device device_;
  ReplacedOps user_;
  Progress progress_;
  // The account of the op that is being tried:
  OpsResult::Account account_;
  std::vector<TriedCase> tried_;
  std::vector<std::pair<const GridCase*, DType>> computed_;  // the cases of tried_
  std::vector<double> seconds_, own_seconds_, ratios_;
  int looked_ = 0;
  const GridCase* first_ = nullptr;
  DType first_dtype_ = DType::bf16;
};

std::vector<std::string> Checker::names() const {
  if (options_.only.empty()) return user_.names;
  const std::vector<std::string_view> known(user_.names.begin(), user_.names.end());
  for (const std::string& name : options_.only)
    check(std::ranges::count(known, name) > 0,
          "--ops-only wants ops of {}, found \"{}\"{}: it has {}", options_.library, name,
          did_you_mean(name, known), fmt::join(known, ", "));
  std::vector<std::string> some = user_.names;
  std::erase_if(some,
                [&](const auto& name) { return std::ranges::count(options_.only, name) == 0; });
  return some;
}

OpsResult Checker::result() {
  const auto begin = std::chrono::steady_clock::now();
  OpsResult result{.library = options_.library, .device = device_.text()};
  for (const DType dtype : dtypes_) result.dtypes.emplace_back(name_of(dtype));
  const std::vector<std::string> ops = names();
  if (!options_.folder.empty())
    for (const std::string& op : ops) check_repro_folder(folder_of(op));
  for (const std::string& op : ops) result.ops.push_back(account(op));
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return result;
}

OpsResult::Account Checker::account(const std::string& op) {
  account_ = {.op = op};
  if (op == kDecoderLayer.name) {
    account_.refusal = "a whole layer is judged where it stands alone: lockstep run --ops";
    return account_;
  }
  tried_.clear(), computed_.clear(), seconds_.clear(), own_seconds_.clear(), ratios_.clear();
  looked_ = 0;
  first_ = nullptr;
  const OneOp one = one_op(op, ops_of(device_), user_.ops, options_.library);
  const std::vector<GridCase> grid = grid_of(op);
  size_t thinned = 0;
  for (size_t i = 0; i < grid.size(); ++i) {
    progress_.show(fmt::format("{}: shape {} of {}", op, i + 1, grid.size()));
    if (grid[i].thin) {
      try_case(grid[i], dtypes_[thinned++ % dtypes_.size()], one);
      continue;
    }
    for (const DType dtype : dtypes_) try_case(grid[i], dtype, one);
  }
  account_.cases = std::ssize(tried_);
  account_.wrong = std::ranges::count(tried_, true, &TriedCase::wrong);
  account_.common = common_to(tried_);
  try_rounding(one);
  account_.seconds = median(seconds_);
  account_.own_seconds = median(own_seconds_);
  account_.ratio = median(ratios_);
  check(account_.cases + account_.refused > 0, "no shape of {} was tried", op);
  if (account_.first && !options_.folder.empty()) write_repro_of_first();
  return std::move(account_);
}

void Checker::try_case(const GridCase& shape, DType dtype, const OneOp& one) {
  const CrashScene scene(fmt::format("in the case {}", text_of(traits_of(shape, dtype))));
  OpTrial trial(account_.op, shape, dtype, one.implementations,
                {device_, options_.threads, options_.rounding});
  *one.calls = 0;
  OpTrial::Verdict verdict = trial.judge(/*with_causes=*/false);
  check(*one.calls > 0, "the grid's case of {} ({}) does not call it", account_.op,
        text_of(traits_of(shape, dtype)));
  if (!verdict.refusal.empty()) {
    if (account_.refused++ == 0) account_.refusal = std::move(verdict.refusal);
    return;
  }
  const bool wrong = verdict.failure.has_value();
  tried_.push_back({traits_of(shape, dtype), wrong});
  computed_.emplace_back(&shape, dtype);
  if (account_.worst_case.empty() || verdict.budgets > account_.budgets) {
    account_.budgets = verdict.budgets;
    account_.worst_case = text_of(traits_of(shape, dtype));
  }
  if (wrong) look_into(trial, shape, dtype, std::move(verdict));
  if (!wrong && shape.timed) time(trial);
}

// Causes are looked for in a later case only while no earlier one showed any, and in a few cases at
// most: each search computes the op in many wrong ways.
void Checker::look_into(OpTrial& trial, const GridCase& shape, DType dtype,
                        OpTrial::Verdict verdict) {
  const bool is_first = !account_.first.has_value();
  const bool said = !is_first && !account_.first->looks_like.empty();
  const bool has_numbers = !verdict.failure->point.empty();
  if (!said && has_numbers && looked_++ < kMostLooked) verdict = trial.judge(/*with_causes=*/true);
  if (!verdict.failure) return;
  if (is_first) {
    account_.first = std::move(verdict.failure);
    first_ = &shape;
    first_dtype_ = dtype;
  } else if (!said && !verdict.failure->looks_like.empty()) {
    account_.first->looks_like = std::move(verdict.failure->looks_like);
  }
}

// A kernel rounds in one way. So another contract is proposed only where all cases are right under
// it, and one that leaves some wrong is said to do so. A case that cannot round so, as of another
// dtype, stays as it was.
void Checker::try_rounding(const OneOp& one) {
  if (!account_.first || !account_.first->right_as) return;
  const OpKind op = find_point(account_.first->point)->op;
  const std::string name = name_of(*account_.first->right_as);
  std::vector<std::string> asked, dtypes;
  int64_t wrong = 0;
  for (size_t i = 0; i < computed_.size(); ++i) {
    const auto& [shape, dtype] = computed_[i];
    progress_.show(fmt::format("{} as {}: case {} of {}", account_.op, name, i + 1, tried_.size()));
    RoundingOptions rounding = options_.rounding;
    std::vector<std::string> own;
    for (const Place& place : places_of(account_.op, *shape).outputs)
      if (place.point->op == op) own.push_back(fmt::format("{}={}", place.point->name, name));
    rounding.rounding.insert(rounding.rounding.end(), own.begin(), own.end());
    try {
      OpTrial trial(account_.op, *shape, dtype, one.implementations,
                    {device_, options_.threads, rounding});
      wrong += trial.judge(/*with_causes=*/false).failure ? 1 : 0;
    } catch (const Error&) {
      wrong += tried_[i].wrong ? 1 : 0;
      continue;
    }
    for (const std::string& option : own)
      if (std::ranges::count(asked, option) == 0) asked.push_back(option);
    if (std::ranges::count(dtypes, name_of(dtype)) == 0) dtypes.emplace_back(name_of(dtype));
  }
  std::string says = fmt::format("as {}, which fits this case, it is wrong in {} of {} cases", name,
                                 wrong, tried_.size());
  if (wrong == 0)
    says = fmt::format(
        "{} {} (all {} cases tried): --rounding {}{}{}", kWouldPassAs, name, tried_.size(),
        fmt::join(asked, " --rounding "), dtypes.size() < dtypes_.size() ? " --dtype " : "",
        dtypes.size() < dtypes_.size() ? fmt::format("{}", fmt::join(dtypes, ",")) : "");
  OpTrial::Failure& first = *account_.first;
  const bool says_rule = first.says == first.rule;
  first.rule += (first.rule.empty() ? "" : "; ") + says;
  if (says_rule) first.says = first.rule;
}

void Checker::time(OpTrial& trial) {
  const double own = trial.seconds(0), user = trial.seconds(1);
  seconds_.push_back(user);
  own_seconds_.push_back(own);
  if (own > 0) ratios_.push_back(user / own);
}

// The smallest wrong case as a trace in memory, from which a repro is made as from any other. An
// Error is kept as the reason why there is no folder: a verdict on the ops does not depend on it.
void Checker::write_repro_of_first() {
  const auto write = [&] {
    const OpPlaces places = places_of(account_.op, *first_);
    check(!account_.first->point.empty(), "no number is wrong: the op ends with a sentence");
    CaseData data = data_of(*first_, places, first_dtype_);
    Manifest manifest = data.manifest;
    manifest.graph = graph_of(first_->model, places.turns);
    ReproOptions options{.of = {.trace = account_.first->shape,
                                .point = std::string(first_->point),
                                .layer = places.outputs.front().layer,
                                .ops = options_.library,
                                .device = options_.device,
                                .threads = options_.threads,
                                .rounding = options_.rounding},
                         .folder = folder_of(account_.op),
                         .op = account_.op};
    make_repro(options, data.checkpoint,
               {reader_of(data.manifest, std::move(data.passes)), std::move(manifest)},
               Detail::verdict);
    account_.folder = options.folder;
  };
  try {
    write();
  } catch (const Error& error) {
    account_.no_folder = error.what();
  }
}

}  // namespace

OpsResult check_ops(const OpsOptions& options, Detail detail) {
  return Checker(options, detail).result();
}

int exit_status(const OpsResult& result) {
  if (std::ranges::any_of(result.ops, [](const OpsResult::Account& op) { return op.wrong > 0; }))
    return 1;
  return std::ranges::count(result.ops, 0, &OpsResult::Account::cases) > 0 ? 2 : 0;
}

}  // namespace lockstep
