// A pass as the judge reads it: which nodes there are (rows by request, at each place), the tensor
// of each, and what is missing. Rows are grouped once, as nearly every question is about the rows
// of one request.
#include "src/judge/pass_view.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace lockstep {
namespace {

// Neighbouring rows of one request, those that are selected.
std::vector<NodeRows> grouped(const std::vector<PassRow>& rows, const Selection& selection) {
  std::vector<NodeRows> nodes;
  for (const PassRow& r : rows) {
    if (!selection.has(r.row)) continue;
    if (nodes.empty() || nodes.back().request != r.row.request)
      nodes.push_back({.request = r.row.request});
    nodes.back().rows.push_back(r.row);
    nodes.back().tokens.push_back(r.token);
  }
  return nodes;
}

}  // namespace

bool is_table(const Point& point) { return point.op == OpKind::angles; }

bool repeats_tokens(std::span<const int32_t> tokens) {
  constexpr size_t kTimes = 4;
  const std::set<int32_t> distinct(tokens.begin(), tokens.end());
  return !tokens.empty() && kTimes * distinct.size() <= tokens.size();
}

bool may_be_wider(const Point& p) {
  return p == point("logits") || p == point("embed") || p == point("attn.residual") ||
         p == point("mlp.residual") || p == point("mlp.router") || p == point("mlp.weights");
}

namespace {

bool may_be_narrowed(const RecordedTensor& tensor, RotaryTables tables) {
  const bool rounded = tables == RotaryTables::may_be_rounded && is_table(*tensor.point);
  return tensor.dtype == DType::f32 && !tensor.data.view().empty() &&
         (rounded || may_be_wider(*tensor.point));
}

// Whether all numbers are ones of the dtype. Of a table the angle 0 alone, at position 0, says
// nothing.
bool are_of(std::span<const float> values, DType run, const Point& point) {
  const auto fits = [run](float x) { return std::isnan(x) || round_to(x, run) == x; };
  const auto tells = [](float x) { return x != 0 && x != 1; };
  return std::ranges::all_of(values, fits) &&
         (!is_table(point) || std::ranges::any_of(values, tells));
}

}  // namespace

bool holds_narrower(const Pass& pass, DType run, RotaryTables tables) {
  return (run == DType::bf16 || run == DType::f16) &&
         std::ranges::any_of(pass.tensors, [tables](const RecordedTensor& tensor) {
           return may_be_narrowed(tensor, tables);
         });
}

// Only a tensor all of whose numbers are ones of the dtype is taken for a widened one; a single
// number between makes it fp32, which it is then held to.
Pass narrowed(Pass pass, DType run, RotaryTables tables) {
  if (run != DType::bf16 && run != DType::f16) return pass;
  for (RecordedTensor& tensor : pass.tensors) {
    if (!may_be_narrowed(tensor, tables)) continue;
    const TensorView& wide = tensor.data.view();
    const std::span<const float> values(wide.as<const float>(), wide.count());
    if (!are_of(values, run, *tensor.point)) continue;
    Tensor narrow(wide.shape, run);
    for (size_t i = 0; i < values.size(); ++i)
      if (run == DType::bf16)
        narrow.as<BFloat16>()[i] = from_float<BFloat16>(values[i]);
      else
        narrow.as<Float16>()[i] = from_float<Float16>(values[i]);
    tensor.data = narrow;
    tensor.dtype = run;
  }
  return pass;
}

PassView::PassView(const Pass& pass, const Selection& selection, const Graph* graph)
    : pass_(pass), selection_(selection) {
  const std::vector<PassRow>& rows = pass.info.rows;
  std::vector<PassRow> with_logits;
  for (int32_t i : pass.info.logit_rows) with_logits.push_back(rows.at(i));
  token_nodes_ = grouped(rows, selection);
  logit_nodes_ = grouped(with_logits, selection);
  for (const PassRow& r : rows) {
    int64_t& length = lengths_[r.row.request];
    length = std::max<int64_t>(length, r.row.position + 1);
  }
  for (const RecordedTensor& tensor : pass.tensors)
    tensors_[{tensor.point->order(), tensor.layer}].push_back(&tensor);
  if (graph && with_logits.size() < rows.size()) find_short_places(*graph);
}

// Nothing that is computed after the last cache is read by a later token.
void PassView::find_short_places(const Graph& graph) {
  std::vector<Row> with_logits;
  for (const int32_t i : pass_.info.logit_rows) with_logits.push_back(pass_.info.rows[i].row);
  const std::vector<Place>& places = graph.places();
  bool ended = with_logits.empty();  // nothing from here on was computed, or needed
  for (size_t i = places.size(); i-- > 0 && !places[i].point->is_cache();) {
    const std::vector<const RecordedTensor*>& shown = all(places[i]);
    ended = ended && shown.empty();
    if (ended || (!shown.empty() && shown.front()->rows == with_logits))
      short_.emplace(places[i].point->order(), places[i].layer);
  }
}

std::function<bool(const Place&)> PassView::is_of_logits() const {
  return [short_places = short_](const Place& place) {
    return place.point->is_of_logits() ||
           short_places.contains({place.point->order(), place.layer});
  };
}

const std::vector<NodeRows>& PassView::nodes_of(const Place& place) const {
  const bool few =
      place.point->is_of_logits() || short_.contains({place.point->order(), place.layer});
  return few ? logit_nodes_ : token_nodes_;
}

bool PassView::shows(const Point& point) const {
  const auto found = tensors_.lower_bound({point.order(), std::numeric_limits<int>::min()});
  return found != tensors_.end() && found->first.first == point.order();
}

std::vector<int> PassView::layers_of(const Point& point) const {
  std::vector<int> layers;
  for (auto at = tensors_.lower_bound({point.order(), std::numeric_limits<int>::min()});
       at != tensors_.end() && at->first.first == point.order(); ++at)
    layers.push_back(at->first.second);
  return layers;
}

const std::vector<const RecordedTensor*>& PassView::all(const Place& place) const {
  static const std::vector<const RecordedTensor*> none;
  const auto found = tensors_.find({place.point->order(), place.layer});
  return found == tensors_.end() ? none : found->second;
}

const RecordedTensor* PassView::tensor(const Place& place, int32_t request) const {
  for (const RecordedTensor* tensor : all(place)) {
    if (!place.point->is_cache()) return tensor;
    if (!tensor->rows.empty() && tensor->rows[0].request == request) return tensor;
  }
  return nullptr;
}

Trouble PassView::trouble(const Place& place, DType dtype, const NodeRows& node) const {
  const bool cache = place.point->is_cache();
  const RecordedTensor* found = tensor(place, node.request);
  if (!found) return {kMissingTensor, true};
  const auto twins = std::ranges::count_if(all(place), [&](const RecordedTensor* t) {
    return !cache || (!t->rows.empty() && t->rows[0].request == node.request);
  });
  if (twins > 1) return {fmt::format("the tensor is there {} times", twins)};
  if (found->dtype != dtype)
    return {fmt::format("dtype {} was wanted, found {}", name_of(dtype), name_of(found->dtype))};
  const Shape& shape = found->shape;
  const bool other_data = !found->data.view().empty() && found->data.view().shape != shape;
  if (shape.rank() == 0 || shape[0] != std::ssize(found->rows) || other_data)
    return {fmt::format("shape {} does not fit its {} rows", shape.text(), found->rows.size())};

  std::vector<Row> wanted = node.rows;
  if (cache) {
    wanted.clear();
    for (int32_t p = 0; p < length_of(node.request); ++p) wanted.push_back({node.request, p});
  }
  std::vector<Row> got;
  bool strangers = false;
  for (const Row& row : found->rows) {
    strangers = strangers || !lengths_.contains(row.request);
    if (row.request == node.request && (cache || selection_.has(row))) got.push_back(row);
  }
  if (!strangers && got == wanted) return {};
  return {
      fmt::format("its rows are not those of the pass: {} rows of request {} were wanted, found "
                  "{} of it, or others",
                  wanted.size(), node.request, got.size()),
      !strangers && got.size() < wanted.size()};
}

SelectedRows::SelectedRows(const RecordedTensor* tensor, std::span<const Row> rows) {
  if (!tensor || tensor->data.view().empty() || rows.empty()) return;
  const TensorView& all = tensor->data;
  const auto first = std::ranges::find(tensor->rows, rows[0]);
  const std::ptrdiff_t count = rows.size();
  // Rows of one request mostly lie together, and then nothing is copied.
  if (tensor->rows.end() - first >= count && std::equal(rows.begin(), rows.end(), first)) {
    view_ = all.slice(first - tensor->rows.begin(), count);
    owner_ = {tensor->data.memory(), view_.data};
    return;
  }
  std::vector<int64_t> extents(all.shape.extents().begin(), all.shape.extents().end());
  extents[0] = count;
  copy_ = Tensor(Shape(extents), all.dtype);
  const size_t bytes = all.row_size() * size_of(all.dtype);
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto row = std::ranges::find(tensor->rows, rows[i]);
    if (row == tensor->rows.end()) return;
    const size_t from = row - tensor->rows.begin();
    std::memcpy(copy_.as<char>() + i * bytes, all.as<const char>() + from * bytes, bytes);
  }
  view_ = copy_;
}

}  // namespace lockstep
