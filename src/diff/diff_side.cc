// One trace of the two, read once without its tensors: which rows were computed when, by which
// tokens each stands (a running hash of the prefix), what is shown where. Tensors are read again
// pass by pass when they are compared.
#include "src/diff/diff_side.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/base/check.h"
#include "src/judge/ledger.h"
#include "src/judge/top_logits.h"

namespace lockstep {
namespace {

bool is_partial(const Place& place) { return place.point->models.starts_with("over ranks"); }

bool is_over_ranks(const Graph& graph) { return std::ranges::any_of(graph.places(), is_partial); }

}  // namespace

std::vector<double> ShownRow::numbers() const {
  const TensorView& all = tensor->data;
  std::vector<double> elements(all.empty() ? 0 : all.row_size());
  if (!elements.empty()) widen(all, index * all.row_size(), elements);
  return elements;
}

bool is_written(const Point& p) { return p == point("attn.k_rope") || p == point("attn.v"); }

std::optional<uint64_t> ShownRow::hash() const {
  if (index < tensor->row_hashes.size()) return tensor->row_hashes[index];
  if (tensor->data.view().empty()) return {};
  const TensorView row = tensor->data.view().slice(index, 1);
  return hash_of(row.data, row.bytes());
}

bool ShownRow::same_form(const ShownRow& other) const {
  const auto axes = [](const Shape& s) { return s.extents().subspan(s.rank() > 0 ? 1 : 0); };
  return std::ranges::equal(axes(tensor->shape), axes(other.tensor->shape));
}

bool ShownRow::same_bits(const ShownRow& other) const {
  const auto own = hash();
  return own && own == other.hash() && tensor->dtype == other.tensor->dtype && same_form(other);
}

std::optional<size_t> index_of(const RecordedTensor& tensor, const Row& row, size_t hint) {
  if (hint < tensor.rows.size() && tensor.rows[hint] == row) return hint;
  const auto found = std::ranges::find(tensor.rows, row);
  if (found == tensor.rows.end()) return {};
  return found - tensor.rows.begin();
}

DiffSide::DiffSide(TraceReader& trace, const std::vector<Place>& places) : trace_(trace) {
  for (size_t i = 0; i < places.size(); ++i)
    places_.emplace(Key{places[i].point->order(), places[i].layer}, i);
  for (const Place& place : trace_.manifest().graph.places())
    own_places_.insert({place.point->order(), place.layer});
  for (int i = 0; i < trace_.passes(); ++i) enter(i, trace_.read(i, false));
}

void DiffSide::enter(int i, const Pass& pass) {
  std::map<int32_t, size_t> last;
  const std::vector<PassRow>& rows = pass.info.rows;
  for (size_t at = 0; at < rows.size(); ++at) {
    const Row& row = rows[at].row;
    check(row.position >= 0 && row.position < kMostPositions,
          "positions from 0 to {} were wanted, found {} of request {} in pass {}: the trace is "
          "damaged",
          kMostPositions - 1, row.position, row.request, pass.info.pass);
    last[row.request] = at;
  }
  for (size_t at = 0; at < rows.size(); ++at) {
    const Row& row = rows[at].row;
    rows_[{row.request, row.position}].push_back({i, at, rows[at].token, last[row.request] == at});
  }
  for (const RecordedTensor& t : pass.tensors) {
    const Place there{t.point, t.layer};
    if (const auto place = place_of(t))
      shown_.insert(*place);
    else if (!is_partial(there))
      elsewhere_.push_back({there, t.rows});
  }
  for (const TopLogits& top : pass.logits) top_logits_[{top.row.request, top.row.position}] = top;
  begin_requests(pass.info);
  history_.begin(pass.info);
  for (const TopLogits& top : pass.logits)
    if (const uint64_t of_tokens = prefix(top.row); of_tokens != 0)
      logits_rows_[of_tokens] = {top.row.request, top.row.position};
  enter_written(pass);
  enter_digests(i, pass);
  if (trouble_.empty()) trouble_ = trouble_of(pass);
}

// A trace does not say what tokens a request found in the cache: its prompt does.
void DiffSide::begin_requests(const PassInfo& pass) {
  PassInfo before;
  for (const PassRow& r : pass.rows) {
    if (!begun_.insert(r.row.request).second) continue;
    const RequestInfo* request = this->request(r.row.request);
    const size_t found = std::max(r.row.position, 0);
    if (request == nullptr || request->prompt.size() < found) continue;
    const auto first = request->prompt.begin();
    before.inherited.push_back({r.row.request, {first, first + found}});
  }
  history_.begin(before);
}

// K and V that the same tokens got twice with other hashes are known as neither.
void DiffSide::enter_written(const Pass& pass) {
  const auto hash = [](const RecordedTensor* tensor, const Row& row, size_t hint) -> uint64_t {
    if (!tensor || tensor->row_hashes.size() != tensor->rows.size()) return 0;
    const auto index = index_of(*tensor, row, hint);
    return index ? tensor->row_hashes[*index] : 0;
  };
  std::set<int> layers;
  for (const RecordedTensor& t : pass.tensors)
    if (t.point->is_cache() || is_written(*t.point)) layers.insert(t.layer);
  for (int layer : layers) {
    const RecordedTensor* k = pass.find(point("attn.k_rope"), layer);
    const RecordedTensor* v = pass.find(point("attn.v"), layer);
    for (size_t i = 0; i < pass.info.rows.size(); ++i) {
      const Row& row = pass.info.rows[i].row;
      const std::pair hashes{hash(k, row, i), hash(v, row, i)};
      const auto [known, fresh] = written_.try_emplace({layer, prefix(row)}, hashes);
      if (!fresh && known->second != hashes) known->second = {};
    }
  }
}

void DiffSide::enter_digests(int i, const Pass& pass) {
  std::map<std::pair<int32_t, int32_t>, int32_t> tokens;
  for (const PassRow& r : pass.info.rows) tokens[{r.row.request, r.row.position}] = r.token;
  for (const RecordedTensor& t : pass.tensors) {
    const auto place = place_of(t);
    if (!place || t.point->is_cache()) continue;
    DigestSums& sums = digests_[{i, *place}];
    sums.add(t.digest);
    for (size_t at = 0; at < t.rows.size(); ++at)
      sums.add(t.rows[at], tokens[{t.rows[at].request, t.rows[at].position}],
               at < t.row_hashes.size() ? t.row_hashes[at] : t.digest.hash);
  }
}

std::string DiffSide::trouble_of(const Pass& pass) const {
  std::set<std::pair<int32_t, int32_t>> rows;
  std::set<int32_t> requests;
  for (const PassRow& r : pass.info.rows) {
    if (!rows.insert({r.row.request, r.row.position}).second)
      return fmt::format("pass {} computes position {} of request {} twice", pass.info.pass,
                         r.row.position, r.row.request);
    requests.insert(r.row.request);
  }
  std::set<std::pair<Key, int32_t>> seen;
  for (const RecordedTensor& t : pass.tensors) {
    const bool cache = t.point->is_cache();
    const int32_t reader = cache && !t.rows.empty() ? t.rows[0].request : -1;
    const auto where = [&] {
      return fmt::format("pass {} shows {}", pass.info.pass, text_of(Place{t.point, t.layer}));
    };
    const Key key{t.point->order(), t.layer};
    if (!own_places_.contains(key)) return where() + ", which its model has not";
    if (!seen.insert({key, reader}).second) return where() + " twice";
    for (const Row& row : t.rows)
      if (cache ? row.request != reader || !requests.contains(reader)
                : !rows.contains({row.request, row.position}))
        return where() + " of rows that it does not compute";
  }
  return "";
}

std::optional<size_t> DiffSide::place_of(const RecordedTensor& tensor) const {
  const auto found = places_.find({tensor.point->order(), tensor.layer});
  if (found == places_.end()) return {};
  return found->second;
}

// A trace whose best logits contradict its tensor would be compared by whichever is asked first,
// and is refused.
const DiffSide::Loaded& DiffSide::loaded(int pass) {
  const auto found = loaded_.find(pass);
  if (found != loaded_.end()) return found->second;
  Loaded& fresh = loaded_[pass];
  fresh.pass = trace_.read(pass, true);
  for (const Finding& finding : top_logits_findings(fresh.pass))
    fail(
        "pass {} of a trace, request {}, position {}: {}: the trace contradicts itself, write it "
        "anew",
        finding.node.pass, finding.node.request, finding.position, finding.rule);
  for (const RecordedTensor& t : fresh.pass.tensors)
    if (const auto place = place_of(t)) fresh.tensors[*place].push_back(&t);
  return fresh;
}

const Pass& DiffSide::pass(int i) { return loaded(i).pass; }

void DiffSide::keep(const std::set<int>& passes) {
  std::erase_if(loaded_, [&](const auto& entry) { return !passes.contains(entry.first); });
}

DigestComparison::Rows DiffSide::passes() const {
  DigestComparison::Rows passes;
  for (const auto& [row, times] : rows_)
    for (const Computed& time : times) passes[row].push_back(time.pass);
  return passes;
}

const std::vector<DiffSide::Computed>& DiffSide::computed(const Row& row) const {
  static const std::vector<Computed> none;
  const auto found = rows_.find({row.request, row.position});
  return found == rows_.end() ? none : found->second;
}

const TopLogits* DiffSide::top_logits(const Row& row) const {
  auto found = top_logits_.find({row.request, row.position});
  if (found == top_logits_.end() && rows_.contains({row.request, row.position})) return nullptr;
  // The last row of a prompt that several samples have is computed by the first of them alone.
  if (const auto shared = logits_rows_.find(prefix(row));
      found == top_logits_.end() && shared != logits_rows_.end())
    found = top_logits_.find(shared->second);
  return found == top_logits_.end() ? nullptr : &found->second;
}

const RequestInfo* DiffSide::request(int32_t id) const {
  const auto& requests = trace_.manifest().requests;
  const auto found = std::ranges::find(requests, id, &RequestInfo::id);
  return found == requests.end() ? nullptr : &*found;
}

bool DiffSide::computes(int32_t request) const {
  const auto first = rows_.lower_bound({request, std::numeric_limits<int32_t>::min()});
  return first != rows_.end() && first->first.first == request;
}

bool DiffSide::begins_after(const Row& row) const {
  const auto first = rows_.lower_bound({row.request, std::numeric_limits<int32_t>::min()});
  return computes(row.request) && first->first.second > row.position;
}

int64_t DiffSide::rows_elsewhere(const DiffSide& other, const Selection& selection,
                                 const std::function<bool(const Row&)>& counts) const {
  int64_t rows = 0;
  for (const auto& [place, shown] : elsewhere_)
    if (selection.has(*place.point, place.layer))
      rows += std::ranges::count_if(
          shown, [&](const Row& row) { return !other.computed(row).empty() && counts(row); });
  return rows;
}

std::optional<ShownRow> DiffSide::find(int pass, size_t place, const Row& row, size_t hint) {
  const Loaded& from = loaded(pass);
  const auto tensors = from.tensors.find(place);
  if (tensors == from.tensors.end()) return {};
  for (const RecordedTensor* tensor : tensors->second) {
    const bool cache = tensor->point->is_cache();
    if (cache && !tensor->rows.empty() && tensor->rows[0].request == row.request)
      return ShownRow{pass, tensor, 0};
    if (cache) continue;
    if (const auto index = index_of(*tensor, row, hint)) return ShownRow{pass, tensor, *index};
  }
  return {};
}

std::optional<std::pair<uint64_t, uint64_t>> DiffSide::written(int layer, const Row& row) const {
  const auto found = written_.find({layer, prefix(row)});
  if (found == written_.end() || found->second.first == 0 || found->second.second == 0) return {};
  return found->second;
}

// Optional points, such as the rotary tables, may be shown by one of the two alone.
// A bare trace shows some layers of a model that may have more.
bool of_one_model(const Manifest& a, const Manifest& b) {
  if (!a.graph_known && !b.graph_known) return true;
  if (!a.graph_known) return a.graph.layers() <= b.graph.layers();
  if (!b.graph_known) return b.graph.layers() <= a.graph.layers();
  const bool ranks = is_over_ranks(a.graph), alike = ranks == is_over_ranks(b.graph);
  const auto wanted = [alike](const Place& place) {
    return !place.point->optional && (alike || !is_partial(place));
  };
  const Graph of_a = a.graph.restricted(wanted), of_b = b.graph.restricted(wanted);
  // A sum over ranks reads other places than the whole op does.
  return alike ? of_a == of_b : of_a.places() == of_b.places();
}

const Graph& compared_graph(const Manifest& a, const Manifest& b) {
  if (!a.graph_known && !b.graph_known)
    return a.graph.layers() < b.graph.layers() ? b.graph : a.graph;
  if (!a.graph_known) return b.graph;
  return b.graph_known && is_over_ranks(a.graph) && !is_over_ranks(b.graph) ? b.graph : a.graph;
}

std::vector<std::vector<size_t>> inputs_by_number(const Graph& graph,
                                                  const std::vector<Place>& places) {
  std::vector<std::vector<size_t>> inputs(places.size());
  for (size_t i = 0; i < places.size(); ++i)
    for (const Place& input : graph.inputs_of(places[i]))
      inputs[i].push_back(std::ranges::find(places, input) - places.begin());
  return inputs;
}

bool adds_ranks(const Graph& graph, const Place& place) {
  return std::ranges::any_of(graph.inputs_of(place), is_partial);
}

}  // namespace lockstep
