// While a place is judged, the oracle is asked about those that come next, and their rows are
// measured by whoever has the answer. What is made of several places, and in their order, waits
// until a place is reached: its rows are added to its pool then, and its outcomes are made.
#include <algorithm>
#include <functional>
#include <iterator>
#include <memory>
#include <utility>

#include "src/judge/budget.h"
#include "src/judge/model_pass.h"
#include "src/judge/no_memory.h"
#include "src/judge/op_judge_parts.h"
#include "src/judge/ops/judged_op.h"

namespace lockstep {
namespace {

// An answer about fewer elements of a processor comes sooner than another thread wakes.
constexpr size_t kManyElements = 1 << 16;
// Places that are asked about at once, beside the one that is reached, where several may be: of so
// many elements together, or so few.
constexpr size_t kMostExpected = 11, kLeastExpected = 3;
constexpr int64_t kExpectedElements = 1 << 22;
// Elements of a place from which on its rows are better shared among all processors, when it is
// their turn: of many rows they would keep one too long.
constexpr size_t kManyToMeasure = 1 << 19;
static_assert(kManyToMeasure <= kAtATime, "all rows of a place are kept until it is their turn");

}  // namespace

size_t OpJudge::most_expected() const { return oracle_.asked_by_several() ? kMostExpected : 1; }

void OpJudge::expect(const Place& place, const std::vector<Place>& inputs, const JudgedPass& pass) {
  expected_.push_back(std::make_shared<Expected>(place, inputs, pass));
}

void OpJudge::expect_none() {
  expected_.clear();
  asked_before_ = nullptr;
  pools_.let_end();
}

void OpJudge::reach(const Place& place) {
  // The oracle may be asked about what is hidden before the place as well.
  if (!oracle_.asked_by_several()) for_places_.idle().wait();
  hidden_.reach(place);
  asked_before_ = nullptr;
  if (oracle_.asked_by_several()) ask_before();
  if (!expected_.empty() && expected_.front()->place == place) {
    asked_before_ = std::move(expected_.front());
    expected_.pop_front();
  }
}

// Large blocks take memory while they are computed: of those, fewer are asked about at once.
void OpJudge::ask_before() {
  if (!options_.rows.all()) return;
  size_t asked = 0;
  int64_t elements = 0;
  for (const auto& expected : expected_) {
    const RecordedTensor* tensor = expected->pass->seen.tensor(expected->place, -1);
    elements += tensor ? tensor->shape.count() : 0;
    if (++asked > kLeastExpected && elements > kExpectedElements) return;
    if (!std::exchange(expected->was_asked, true)) ask_before(*expected);
  }
}

// A place is asked about all of its rows, or those of its first request where each request has a
// cache of its own, under the contract that is tried first. No other question is asked beforehand.
void OpJudge::ask_before(Expected& expected) {
  const Place& place = expected.place;
  const std::vector<Place>& inputs = expected.inputs;
  const JudgedPass& pass = *expected.pass;
  Group& group = expected.group;
  if (place.point->is_cache() || place.point->is_of_shares() ||
      row_of(place.point->op).makes_indices)
    return;
  const RoundingContract contract = contracts_.first_tried(place, traits_of(place));
  group.tensor = pass.seen.tensor(place, -1);
  if (!group.tensor || group.tensor->data.view().empty()) return;
  std::vector<Place> read = inputs;
  if (is_of_sum(contract) && reads_sum(place, inputs))
    std::ranges::copy(graph_.inputs_of(inputs[0]), std::back_inserter(read));
  const auto lacks = [&](const Place& input) {
    const RecordedTensor* tensor = pass.seen.tensor(input, -1);
    return reads(input) && (!tensor || tensor->data.view().empty());
  };
  for (const Place& input : read)
    if (hidden_.covers(input) || lacks(input)) return;
  std::span<const NodeRows> nodes = pass.seen.nodes_of(place);
  if (row_of(place.point->op).attends && !nodes.empty()) {
    nodes = nodes.first(1);
    const Place& kv = inputs.at(1);
    const RecordedTensor* k = pass.seen.tensor(graph_.inputs_of(kv).at(0), nodes[0].request);
    if (!find_cache(kv, pass, nodes[0], group).empty() ||
        !has_cache_shape(*pass.seen.tensor(kv, nodes[0].request), k))
      return;
  }
  for (const NodeRows& node : nodes) {
    add_rows(pass, node, group, nullptr);
    group.members.back().meter.emplace(meter_of(place, group, node, nullptr, ProfiledRows::wrong));
  }
  if (group.rows.empty()) return;
  const size_t count = std::min(rows_at_once(group), group.rows.size());
  const auto row_size = static_cast<size_t>(group.tensor->data.view().row_size());
  if (!oracle_.on_device() && count * row_size < kManyElements) return;
  expected.asked = std::make_unique<Asked>(
      oracle_, question_of(contract, place, inputs, pass, group, 0, count), 0);
  std::function<void(const Exact&)> then;
  if (count == group.rows.size() && prepare_to_measure(expected)) {
    expected.rows = pools_.room();
    then = [this, &expected, &question = expected.asked->question](const Exact& exact) {
      measure_beforehand(expected, question, exact);
    };
  }
  expected.asked->begin(for_places_.idle(), std::move(then));
}

// Whether all that the rows are measured by is there by now but for the oracle's answer. Where an
// answer is computed by all processors, so are measures. Models are read here where an answer that
// has no measures is read beside them.
bool OpJudge::prepare_to_measure(Expected& expected) const {
  const JudgedPass& pass = *expected.pass;
  const OracleCall& call = expected.asked->question.call;
  const int64_t elements = expected.asked->question.got.view().count();
  if (!oracle_.asked_by_several() || options_.show) return false;
  if (static_cast<size_t>(elements) >= kManyToMeasure) return false;
  if (!pass.exact) return true;
  if (!call.measure.got.empty()) return !call.measure.brings;
  if (elements >= kSharedElements) return false;
  expected.of_exact = pass.exact->with_rows(expected.place, call.rows);
  expected.of_rounded = pass.rounded->with_rows(expected.place, call.rows);
  return !expected.of_exact.data.view().empty() && !expected.of_rounded.data.view().empty();
}

// Rows of many elements that the oracle did not measure are left to all processors.
void OpJudge::measure_beforehand(Expected& expected, const Question& question,
                                 const Exact& exact) const {
  const TensorView got = question.got.view();
  if (exact.shape != got.shape) return;
  const bool of_models = expected.pass->exact && !question.call.measure.got.empty();
  if (!exact.measured && (got.count() >= kSharedElements || of_models)) return;
  const std::span<const Row> rows = question.call.rows;
  const SelectedRows of_exact(&expected.of_exact, rows), of_rounded(&expected.of_rounded, rows);
  const Block block = block_of(question, 0, exact, of_exact.view(), of_rounded.view());
  try {
    measure_block(block, expected.group, expected.rows);
  } catch (const NoMemory&) {
    return;  // there may be some when it is their turn
  }
  for (Group::Member& member : expected.group.members) member.measure = member.meter->finish();
  expected.is_measured = true;
}

// Takes over what rows that were measured beforehand come to. False: they were not, or not as they
// are to be now.
bool OpJudge::take_measured(const Question& question, const Exact& exact, Group& group) {
  Expected* const before = asked_before_.get();
  // Only where this is its question has its thread surely ended: that is asked before the rest is
  // read.
  const bool theirs = before && question.call.rows.data() == before->group.rows.data() &&
                      before->is_measured && !group.compared && !group.blurred &&
                      before->group.owner == group.owner;
  if (!theirs) return false;
  for (size_t i = 0; i < group.members.size(); ++i) {
    Group::Member &member = group.members[i], &measured = before->group.members[i];
    member.measure = std::move(measured.measure);
    member.sums = measured.sums;
    member.orders = measured.orders;
  }
  const bool pools = group.pool && question.call.place.point->node_class != NodeClass::exact;
  if (pools)
    pools_.add({key_of(question.call.place), question.call.contract}, std::move(before->rows),
               question.call.rows.size(), exact.measured);
  else
    pools_.give_back(std::move(before->rows));
  return true;
}

// The same question, where it was asked before.
std::unique_ptr<OpJudge::Asked> OpJudge::or_asked_before(std::unique_ptr<Asked> asked) {
  if (!asked || !asked_before_ || !asked_before_->asked) return asked;
  const Question &now = asked->question, &before = asked_before_->asked->question;
  const OracleCall &a = now.call, &b = before.call;
  const bool same =
      a.place == b.place && a.contract == b.contract && now.read == before.read &&
      std::ranges::equal(a.rows, b.rows) && std::ranges::equal(a.tokens, b.tokens) &&
      std::ranges::equal(a.lengths, b.lengths) && a.measure.got.empty() == b.measure.got.empty() &&
      a.measure.brings == b.measure.brings && a.measure.exact.tensor == b.measure.exact.tensor &&
      a.measure.rounded.tensor == b.measure.rounded.tensor;
  return same ? std::move(asked_before_->asked) : std::move(asked);
}

}  // namespace lockstep
