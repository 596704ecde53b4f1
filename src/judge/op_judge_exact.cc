// The ops that no number decides about: what was read from a cache, and which indices were chosen.
#include <fmt/format.h>

#include <algorithm>

#include "src/judge/cache_read.h"
#include "src/judge/index_choice.h"
#include "src/judge/op_judge_parts.h"

namespace lockstep {

NodeOutcome OpJudge::judge_cache(const Place& place, const std::vector<Place>& inputs,
                                 const JudgedPass& pass, const NodeRows& node) {
  const RecordedTensor& kv = *pass.seen.tensor(place, node.request);
  const RecordedTensor* k = pass.seen.tensor(inputs.at(0), node.request);
  // Attention must not be asked what it makes of such a tensor.
  if (!has_cache_shape(kv, k)) {
    misshapen_.insert(key_of(place));
    return structural(
        fmt::format("shape {} was wanted, found {}", cache_shape(kv, k).text(), kv.shape.text()),
        node.rows.front().position);
  }
  return compare_cache(kv, place.layer, pass.history);
}

NodeOutcome OpJudge::judge_indices(const Place& place, const std::vector<Place>& inputs,
                                   const JudgedPass& pass, const NodeRows& node) {
  const HiddenTensor* hidden = hidden_.find(inputs.at(0));
  const SelectedRows values(tensor_of(inputs.at(0), pass, node.request), node.rows);
  const SelectedRows chosen(pass.seen.tensor(place, node.request), node.rows);
  const SelectedRows deviation(hidden ? &hidden->deviation : nullptr, node.rows);
  // The largest of fewer than the model takes are chosen well, and are not what it computes with.
  const int64_t wanted = oracle_.chosen_experts();
  if (place.point->op == OpKind::top_k && chosen.view().shape[1] != wanted) {
    misshapen_.insert(key_of(place));
    return structural(
        fmt::format("{} experts a token were wanted, found {}", wanted, chosen.view().shape[1]),
        node.rows.front().position);
  }
  ChoiceOutcome outcome = judge_choice(node, place.point->op == OpKind::argmax, options_.ties,
                                       values.view(), chosen.view(), deviation.view());
  if (outcome.width > 0) {
    double& widest = widened_by_[place.point->order()].of_row;
    widest = std::max(widest, outcome.width);
  }
  // An op that reads indices of nothing cannot be computed, and is not judged.
  if (outcome.unknown) misshapen_.insert(key_of(place));
  return std::move(outcome.node);
}

}  // namespace lockstep
