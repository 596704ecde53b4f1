// Questions to the oracle, each about a block of rows of a place. While a place is judged, it is
// asked about those that come next.
#include <algorithm>
#include <memory>
#include <utility>

#include "src/judge/model_pass.h"
#include "src/judge/op_judge_parts.h"
#include "src/judge/ops/judged_op.h"
#include "src/judge/shares.h"
#include "src/stats/mutant.h"

namespace lockstep {
namespace {

// An answer about fewer elements of a processor comes sooner than another thread wakes.
constexpr size_t kManyElements = 1 << 16;

}  // namespace

OpJudge::Question OpJudge::question_of(RoundingContract contract, const Place& place,
                                       const std::vector<Place>& inputs, const JudgedPass& pass,
                                       const Group& group, size_t first, size_t count) const {
  const std::span<const Row> rows = std::span(group.rows).subspan(first, count);
  Question question{.got = SelectedRows(group.tensor, rows)};
  OracleCall& call = question.call;
  call = {.place = place, .dtype = options_.dtype, .contract = contract};
  call.rows = rows;
  call.tokens = std::span(group.tokens).subspan(first, count);
  call.lengths = std::span(group.lengths).subspan(first, count);
  if (row_of(place.point->op).attends && !group.merged)
    call.keys_values =
        hidden_.covers(inputs.at(1)) ? group.derived.values() : group.cache.keys_values();
  const auto tensor = [&](const Place& input) {
    return tensor_of(input, pass, call.rows.front().request);
  };
  std::vector<Place> read = read_by(contract, inputs, group);
  std::erase_if(read, [&](const Place& input) {
    return !reads(input) || (group.exact_angles && input.point->op == OpKind::angles);
  });
  question.pick(read, tensor);
  // All rows are of one request.
  if (place.point->is_of_shares() && !call.inputs.empty())
    call.shares = share_begins(
        call.lengths.front(), options_.page_size,
        shares_wanted(place, *group.tensor, pass.seen.tensor(partial_of(place), rows[0].request),
                      call.inputs.front().shape));
  if (!measures_there(place, group)) return question;
  RowsToMeasure& measure = call.measure;
  measure = {.got = question.got.view(),
             .dtype = dtype_at(place),
             .is_exact = place.point->node_class == NodeClass::exact,
             .misrounds = misrounds_of(place.point->op, contract, dtype_at(place)),
             .meets_borders = judged_op(place.point->op).meets_borders};
  if (!pass.exact || group.compared) {
    measure.brings = false;
    return question;
  }
  measure.exact = pass.exact->held_rows(place, rows);
  measure.rounded = pass.rounded->held_rows(place, rows);
  measure.brings = !measure.exact.tensor || !measure.rounded.tensor;
  return question;
}

// Budgets are changed, and single elements asked about, on this side alone.
bool OpJudge::measures_there(const Place& place, const Group& group) const {
  const auto elements = std::ssize(group.rows) * group.tensor->data.view().row_size();
  return oracle_.on_device() && elements >= oracle_.least_measured() && !group.blurred &&
         !options_.show && options_.limits.of(place.point->op, dtype_at(place)) == OpLimits{} &&
         !is_mutant(Mutant::wide_budgets) && !is_mutant(Mutant::exact_one_ulp_off) &&
         std::ranges::none_of(
             group.members, [](const Group::Member& member) { return member.meter->keeps_all(); });
}

size_t OpJudge::most_expected() const { return oracle_.asked_by_several() ? 3 : 1; }

void OpJudge::expect(const Place& place, const std::vector<Place>& inputs, const JudgedPass& pass) {
  expected_.push_back(std::shared_ptr<Expected>(new Expected{place, inputs, &pass, {}, nullptr}));
}

void OpJudge::expect_none() {
  expected_.clear();
  asked_before_ = nullptr;
}

void OpJudge::reach(const Place& place) {
  // The oracle may be asked about what is hidden before the place as well.
  if (!oracle_.asked_by_several()) for_places_.current().wait();
  hidden_.reach(place);
  asked_before_ = nullptr;
  if (!expected_.empty() && expected_.front()->place == place) {
    asked_before_ = std::move(expected_.front());
    expected_.pop_front();
  }
  if (oracle_.asked_by_several()) ask_before();
}

void OpJudge::ask_before() {
  if (!options_.rows.all()) return;
  for (const auto& expected : expected_)
    if (!std::exchange(expected->was_asked, true)) ask_before(*expected);
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
  if (is_of_sum(contract) || !group.tensor || group.tensor->data.view().empty()) return;
  for (const Place& input : inputs)
    if (hidden_.covers(input) || (reads(input) && !pass.seen.tensor(input, -1))) return;
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
    group.rows.insert(group.rows.end(), node.rows.begin(), node.rows.end());
    group.tokens.insert(group.tokens.end(), node.tokens.begin(), node.tokens.end());
    group.lengths.insert(group.lengths.end(), node.rows.size(), pass.seen.length_of(node.request));
  }
  if (group.rows.empty()) return;
  const size_t count = std::min(block_of(group), group.rows.size());
  const auto row_size = static_cast<size_t>(group.tensor->data.view().row_size());
  if (!oracle_.on_device() && count * row_size < kManyElements) return;
  expected.asked = std::make_unique<Asked>(
      oracle_, question_of(contract, place, inputs, pass, group, 0, count), 0);
  expected.asked->begin(for_places_.current());
  for_places_.pass_turn();
}

// The same question, where it was asked before.
std::unique_ptr<OpJudge::Asked> OpJudge::or_asked_before(std::unique_ptr<Asked> asked) {
  if (!asked || !asked_before_ || !asked_before_->asked) return asked;
  const Question &now = asked->question, &before = asked_before_->asked->question;
  const OracleCall &a = now.call, &b = before.call;
  const bool same = a.place == b.place && a.contract == b.contract && now.read == before.read &&
                    std::ranges::equal(a.rows, b.rows) && std::ranges::equal(a.tokens, b.tokens) &&
                    std::ranges::equal(a.lengths, b.lengths) &&
                    a.measure.got.empty() == b.measure.got.empty() &&
                    a.measure.brings == b.measure.brings;
  return same ? std::move(asked_before_->asked) : std::move(asked);
}

std::string OpJudge::find_cache(const Place& kv, const JudgedPass& pass, const NodeRows& node,
                                Group& group) const {
  if (hidden_.covers(kv)) {
    group.derived = hidden_.keys_values(kv, node.request, pass.seen.length_of(node.request));
    group.blurred_inputs = group.blurred_inputs || !group.derived.exact();
    return group.derived.trouble;
  }
  // It was copied already where it was asked about before.
  const Expected* before = asked_before_.get();
  const bool known = before && before->asked && std::ranges::count(before->inputs, kv) > 0 &&
                     before->group.rows.front().request == node.request;
  group.cache =
      known ? before->group.cache : CacheRead(pass.seen.tensor(kv, node.request), pass.history);
  if (misshapen_.contains(key_of(kv)) || !pass.seen.trouble(kv, options_.dtype, node).text.empty())
    return "attn.kv, which the op reads, was not captured, or not as the model has it";
  return group.cache.trouble();
}

// One thread asks all questions beforehand where the oracle is asked by one at a time.
Background& OpJudge::for_next_block() {
  return oracle_.asked_by_several() ? for_blocks_.current() : for_places_.current();
}

}  // namespace lockstep
