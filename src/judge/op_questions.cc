// Questions to the oracle, each about a block of rows of a place.
#include <algorithm>
#include <memory>
#include <utility>

#include "src/judge/model_pass.h"
#include "src/judge/op_judge_parts.h"
#include "src/judge/ops/judged_op.h"
#include "src/judge/shares.h"
#include "src/stats/mutant.h"

namespace lockstep {

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
             .owner = question.got.owner(),
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
  return oracle_.asked_by_several() ? for_blocks_.idle() : for_places_.idle();
}

}  // namespace lockstep
