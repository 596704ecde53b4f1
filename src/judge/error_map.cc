// Where the wrong elements of an op lie, over all passes of a run, until shape_rule.h is asked for
// the rule that they follow. Elements are bits, one a wrong element of a wrong row; a bound on
// their number (per place, and for all) keeps a run in which everything is wrong from filling the
// memory. A place that reaches it keeps whole passes only.
#include "src/judge/error_map.h"

#include <algorithm>

#include "src/judge/row_sample.h"

namespace lockstep {

// From the shape's text: "position, head, dim" has the axes head and dim.
std::vector<std::string> axis_names(const Point& point) {
  std::vector<std::string> names;
  for (size_t at = point.shape.find(", "); at != point.shape.npos;) {
    const size_t end = point.shape.find(", ", at + 2);
    const std::string name(point.shape.substr(at + 2, end - at - 2));
    names.push_back(name == "hidden" || name == "intermediate" ? "channel" : name);
    if (name == "vocab") names.back() = "token id";
    at = end;
  }
  return names;
}

size_t ErrorMap::begin(const PassView& seen) {
  full_ = full_ || rows_ > kMostRows;
  if (full_) return SIZE_MAX;
  SeenNodes& nodes = passes_.emplace_back();
  nodes.pass = seen.info().pass;
  nodes.tokens = seen.nodes_of({&point("embed"), -1});
  nodes.logits = seen.nodes_of({&point("logits"), -1});
  for (const PassRow& r : seen.info().rows)
    if (r.phase == Phase::decode) nodes.decodes.insert(r.row.request);
  nodes.rows = seen.info().rows;
  nodes.logit_rows = seen.info().logit_rows;
  rows_ += std::ssize(seen.info().rows);
  see(passes_.size() - 1, seen);
  return passes_.size() - 1;
}

void ErrorMap::see(size_t pass, const PassView& seen) {
  if (pass == SIZE_MAX) return;
  SeenNodes& nodes = passes_[pass];
  nodes.is_of_logits = seen.is_of_logits();
  for (const int layer : seen.layers_of(point("mlp.experts"))) {
    const RecordedTensor& chosen = *seen.tensor({&point("mlp.experts"), layer}, -1);
    const TensorView ids = chosen.data;
    if (ids.empty() || ids.dtype != DType::i32 || ids.shape.rank() != 2 ||
        ids.rows() != std::ssize(nodes.rows))
      continue;
    nodes.experts[layer] = {ids.shape[1],
                            {ids.as<const int32_t>(), ids.as<const int32_t>() + ids.count()}};
  }
}

// Which elements were wrong is kept as bits, up to a bound; a pass that would be kept in part is
// left out.
void ErrorMap::add(size_t pass, const Place& place, const Shape& row_shape,
                   const NodeOutcome& outcome) {
  const Point& p = *place.point;
  if (kv_heads_ == 0 && p == point("attn.k_rope") && row_shape.rank() == 2)
    kv_heads_ = row_shape[0];
  const bool judged =
      outcome.verdict != Verdict::inconclusive && outcome.verdict != Verdict::structural;
  if (pass == SIZE_MAX || (judged && outcome.wrong.empty())) return;
  Errors& errors = errors_[{p.order(), place.layer}];
  if (pass >= errors.passes) return;
  int64_t bits = 0;
  for (const WrongRow& row : outcome.wrong) bits += std::ssize(row.elements);
  if (errors.bits + bits > kMostBits || bits_ + bits > kMostOfAll) {
    errors.passes = pass;  // a pass of which only a part is known would make a rule of its own
    return;
  }
  errors.bits += bits;
  bits_ += bits;
  errors.nodes[{passes_[pass].pass, outcome.request}] = {judged, outcome.wrong};
  if (!outcome.wrong.empty()) errors.row_shape = row_shape;
  for (const WrongRow& row : outcome.wrong)
    errors.whole_rows = errors.whole_rows || std::ssize(row.elements) != row_shape.count();
}

bool ErrorMap::has(const Finding& finding) const {
  const auto errors = errors_.find({finding.node.place.point->order(), finding.node.place.layer});
  if (errors == errors_.end()) return false;
  const auto node = errors->second.nodes.find({finding.node.pass, finding.node.request});
  return node != errors->second.nodes.end() && !node->second.wrong.empty();
}

// All that a rule may be about, for each row: where it stands in its pass, its request and its
// chunk, its token, its experts.
std::vector<WrongElements::PlacedRow> ErrorMap::rows_of(const SeenNodes& pass, const NodeRows& node,
                                                        const Place& place) const {
  const bool cached = place.point->is_cache();
  std::vector<Row> rows = node.rows;
  if (cached)  // attention reads all positions up to there
    for (rows.clear(); std::ssize(rows) <= node.rows.back().position;)
      rows.push_back({node.request, static_cast<int32_t>(rows.size())});
  const auto tokens = std::ranges::find(pass.tokens, node.request, &NodeRows::request);
  // A chunk continues a prompt where its first row is not the request's first.
  const bool continues = tokens != pass.tokens.end() && tokens->rows.front().position > 0;
  int64_t length = 0;
  for (const PassRow& r : pass.rows)
    if (r.row.request == node.request) length = std::max<int64_t>(length, r.row.position + 1);
  std::vector<WrongElements::PlacedRow> placed;
  for (const Row& row : rows)
    placed.push_back({.row = row,
                      .pass = pass.pass,
                      .decode = pass.decodes.contains(node.request),
                      .continues = continues,
                      .opens = node.request == pass.tokens.front().request,
                      .first = row == rows.front(),
                      .last = row == rows.back(),
                      .length = length});
  if (cached) return placed;  // what is read is no row of the pass
  const bool logits = pass.is_of_logits(place);
  const auto experts = pass.experts.find(place.layer);
  auto next = placed.begin();
  // Both lists are in the order of the pass, so that one walk over its rows places all of the
  // node's.
  for (size_t i = 0; i < (logits ? pass.logit_rows.size() : pass.rows.size()); ++i) {
    const size_t at = logits ? pass.logit_rows[i] : i;
    if (next == placed.end() || !(pass.rows[at].row == next->row)) continue;
    next->of_pass = i;
    next->pass_rows = std::ssize(pass.rows);
    if (logits) next->pass_rows = std::ssize(pass.logit_rows);
    next->token = pass.rows[at].token;
    if (experts != pass.experts.end()) {
      const auto& [chosen, ids] = experts->second;
      const auto first = ids.begin() + at * chosen;
      next->experts.assign(first, first + chosen);
    }
    ++next;
  }
  return placed;
}

std::vector<WrongElements::PlacedRow> ErrorMap::judged_of(const SeenNodes& pass,
                                                          const NodeRows& node,
                                                          const Place& place) const {
  std::vector<WrongElements::PlacedRow> all = rows_of(pass, node, place);
  if (drawn_.all() || !draws_rows(*place.point)) return all;
  std::vector<WrongElements::PlacedRow> judged;
  for (const size_t i : drawn_rows(drawn_, place, pass.pass, node.request, all.size()))
    judged.push_back(std::move(all[i]));
  return judged;
}

// A row of several experts' results becomes one row an expert, so that "expert 17" is a rule of
// rows.
void ErrorMap::split_choices(const SeenNodes& pass, const Place& place, int64_t choices,
                             std::vector<WrongElements::PlacedRow>& rows,
                             std::vector<WrongRow>& wrong) {
  // Without the recorded choices the number of the choice is all that is known of the row.
  const bool known = pass.experts.contains(place.layer);
  std::vector<WrongElements::PlacedRow> split;
  for (const WrongElements::PlacedRow& row : rows)
    for (int32_t c = 0; c < choices; ++c) {
      WrongElements::PlacedRow& one = split.emplace_back(row);
      one.choice = c;
      if (known) one.expert = row.experts.at(c);
      one.experts.clear();
    }
  std::vector<WrongRow> parts;
  for (const WrongRow& row : wrong) {
    const int64_t size = std::ssize(row.elements) / choices;
    for (int64_t c = 0; c < choices; ++c) {
      const auto first = row.elements.begin() + c * size;
      if (std::vector<bool> part(first, first + size); std::ranges::count(part, true) > 0)
        parts.push_back({row.row * choices + c, std::move(part)});
    }
  }
  rows = std::move(split);
  wrong = std::move(parts);
}

std::vector<WrongElements::Axis> ErrorMap::axes_of(const Point& point,
                                                   const Shape& row_shape) const {
  std::vector<WrongElements::Axis> axes;
  const std::vector<std::string> names = axis_names(point);
  for (int i = 0; i < row_shape.rank(); ++i) {
    const size_t at = i;
    axes.push_back({at < names.size() ? names[at] : "element", row_shape[i]});
    if (point.op == OpKind::attention && axes.back().name == "head")
      axes.back().kv_heads = kv_heads_;
  }
  return axes;
}

// Right nodes are as much of the map as wrong ones: a rule must say what it leaves out.
std::optional<ShapeRule> ErrorMap::rule_of(const Place& place) const {
  const auto found = errors_.find({place.point->order(), place.layer});
  if (found == errors_.end()) return {};
  const Errors& errors = found->second;
  WrongElements all{.axes = axes_of(*place.point, errors.whole_rows ? Shape{} : errors.row_shape),
                    .page_size = page_size_};
  // Such rows are one expert's each.
  const bool by_choice = !all.axes.empty() && all.axes[0].name == "choice";
  if (by_choice) all.axes.erase(all.axes.begin());
  for (size_t p = 0; p < std::min(passes_.size(), errors.passes); ++p) {
    if (std::ssize(all.rows) > kMostRows) break;
    const SeenNodes& seen = passes_[p];
    for (const NodeRows& node : seen.is_of_logits(place) ? seen.logits : seen.tokens) {
      const auto at = errors.nodes.find({passes_[p].pass, node.request});
      if (at != errors.nodes.end() && !at->second.judged) continue;
      std::vector<WrongElements::PlacedRow> rows = judged_of(passes_[p], node, place);
      std::vector<WrongRow> wrong;
      if (at != errors.nodes.end())
        for (const WrongRow& row : at->second.wrong)
          wrong.push_back({row.row, errors.whole_rows ? std::vector<bool>{true} : row.elements});
      if (by_choice) split_choices(passes_[p], place, errors.row_shape[0], rows, wrong);
      for (WrongRow& row : wrong) {
        row.row += std::ssize(all.rows);
        all.wrong.push_back(std::move(row));
      }
      all.rows.insert(all.rows.end(), rows.begin(), rows.end());
    }
  }
  return shape_rule(all);
}

}  // namespace lockstep
