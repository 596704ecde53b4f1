#include "src/judge/diff.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <set>

#include "src/judge/ledger.h"
#include "src/judge/seen.h"
#include "src/judge/statistics.h"

namespace lockstep {
namespace {

// Relative rms that one op may add: a few roundings of its output, and of its fp32 accumulation.
double own_noise(DType dtype) { return 4 * unit_roundoff(dtype) + 64 * 0x1p-24; }

DType coarser(DType a, DType b) { return unit_roundoff(a) > unit_roundoff(b) ? a : b; }

// The difference of two tensors' rows so far.
struct Distance {
  int64_t elements = 0;
  double difference = 0, size = 0;  // sums of squares
  bool nonfinite = false;           // finite on one side only, or unlike

  void add(double a, double b) {
    if (!std::isfinite(a) || !std::isfinite(b)) {
      nonfinite = nonfinite || !(a == b || (std::isnan(a) && std::isnan(b)));
      return;
    }
    ++elements;
    difference += (a - b) * (a - b);
    size += a * a;
  }
  // Never divides by zero: a difference from nothing is infinitely large.
  double relative() const {
    if (nonfinite) return std::numeric_limits<double>::infinity();
    if (difference == 0) return 0;
    return size > 0 ? std::sqrt(difference / size) : std::numeric_limits<double>::infinity();
  }
};

struct RowBits {
  const KeptTensor* tensor = nullptr;
  size_t index = 0;

  std::optional<uint64_t> hash() const {
    if (index < tensor->row_hashes.size()) return tensor->row_hashes[index];
    if (tensor->data.view().empty()) return {};
    const TensorView row = tensor->data.view().slice(static_cast<int64_t>(index), 1);
    return hash_of(row.data, static_cast<size_t>(row.bytes()));
  }
  bool same_form(const RowBits& other) const {
    const auto axes = [](const Shape& s) { return s.extents().subspan(s.rank() > 0 ? 1 : 0); };
    return std::ranges::equal(axes(tensor->shape), axes(other.tensor->shape));
  }
};

std::optional<RowBits> find_row(const Pass& pass, const Place& place, const Row& row) {
  const KeptTensor* tensor = pass.find(*place.point, place.layer, row.request);
  if (!tensor) return {};
  const auto found = std::ranges::find(tensor->rows, row);
  if (found == tensor->rows.end()) return {};
  return RowBits{tensor, static_cast<size_t>(found - tensor->rows.begin())};
}

class Comparison {
 public:
  Comparison(TraceReader& a, TraceReader& b, const DiffOptions& options)
      : a_(a), b_(b), options_(options), places_(places_of(a.manifest().graph)) {
    for (const Place& place : places_) result_.places.push_back({.place = place});
  }

  DiffResult run();

 private:
  using Node = std::pair<int32_t, size_t>;  // request, place
  struct NodeSums {
    DiffNode node;
    Distance distance;
    bool differs = false;
  };

  void compare_manifests();
  void index_b();
  void compare_pass(const Pass& pass);
  void follow_tokens(const Pass& pass);
  void compare_place(const Pass& pass, size_t index);
  // One row of a against the same of the pass of b that computes `at`; adds to `sums`.
  void compare_row(const RowBits& mine, const Row& at, size_t index, NodeSums& sums);
  void compare_tensor(const Pass& pass, const KeptTensor& tensor, size_t index,
                      std::map<int32_t, NodeSums>& nodes);
  // Rows of a place that a did not show and b did.
  int64_t shown_by_b_alone(const Pass& pass, const Place& place);
  void enter_node(NodeSums& sums, const Pass& pass, int32_t request, size_t index);
  double inherited(int32_t request, size_t index) const;
  const Pass& pass_of_b(int pass);
  void summarise();
  void tell();
  bool stopped(const Row& row) const {
    const auto stop = stopped_.find(row.request);
    return stop != stopped_.end() && row.position >= stop->second;
  }

  TraceReader& a_;
  TraceReader& b_;
  const DiffOptions& options_;
  std::vector<Place> places_;
  DiffResult result_;
  struct InB {
    int pass;
    int32_t token;
  };
  std::map<std::pair<int32_t, int32_t>, InB> rows_of_b_;  // by (request, position)
  std::set<std::pair<int32_t, int32_t>> seen_;            // of those, the ones that a has
  std::map<int32_t, int32_t> stopped_;                    // request -> first position not compared
  std::map<int, Pass> loaded_;                            // passes of b that this pass of a needs
  std::map<Node, double> relative_;                       // largest so far
};

void Comparison::compare_manifests() {
  const Manifest &a = a_.manifest(), &b = b_.manifest();
  const auto say = [&](std::string text) { result_.structure.push_back(std::move(text)); };
  if (a.graph != b.graph)
    say(fmt::format("the models differ: {} and {}", text_of(a.graph), text_of(b.graph)));
  for (TraceReader* trace : {&a_, &b_})
    for (const std::string& problem : trace->problems()) say(problem);
}

void Comparison::index_b() {
  for (int i = 0; i < b_.passes(); ++i)
    for (const PassRow& r : b_.read(i, false).info.rows)
      rows_of_b_.insert_or_assign({r.row.request, r.row.position}, InB{i, r.token});
}

void Comparison::follow_tokens(const Pass& pass) {
  for (const PassRow& r : pass.info.rows) {
    const std::pair key{r.row.request, r.row.position};
    const auto found = rows_of_b_.find(key);
    if (found == rows_of_b_.end() || stopped_.contains(r.row.request)) continue;
    seen_.insert(key);
    if (found->second.token == r.token) continue;
    stopped_[r.row.request] = r.row.position;
    result_.structure.push_back(fmt::format(
        "request {} was fed token {} and {} at position {}: it is not compared from there on",
        r.row.request, r.token, found->second.token, r.row.position));
  }
}

const Pass& Comparison::pass_of_b(int pass) {
  const auto found = loaded_.find(pass);
  return found != loaded_.end() ? found->second
                                : loaded_.emplace(pass, b_.read(pass, true)).first->second;
}

double Comparison::inherited(int32_t request, size_t index) const {
  double largest = 0;
  for (const Place& input : inputs_of(a_.manifest().graph, places_[index])) {
    const auto i = std::ranges::find(places_, input) - places_.begin();
    const auto found = relative_.find({request, static_cast<size_t>(i)});
    if (found != relative_.end()) largest = std::max(largest, found->second);
  }
  return largest;
}

void Comparison::compare_row(const RowBits& mine, const Row& at, size_t index, NodeSums& sums) {
  const Row& row = mine.tensor->rows[mine.index];
  const auto in_b = rows_of_b_.find({at.request, at.position});
  std::optional<RowBits> other;
  if (in_b != rows_of_b_.end()) other = find_row(pass_of_b(in_b->second.pass), places_[index], row);
  if (!other) {
    ++result_.only_a;
    return;
  }
  DiffPlace& place = result_.places[index];
  ++place.rows;
  const bool one_form = mine.same_form(*other);
  const auto hash = mine.hash();
  const bool equal =
      one_form && mine.tensor->dtype == other->tensor->dtype && hash && hash == other->hash();
  if (equal) ++place.equal;
  if (!equal && !sums.differs) sums.node.position = row.position;
  sums.differs = sums.differs || !equal;
  const TensorView &x = mine.tensor->data, &y = other->tensor->data;
  if (!one_form) {
    sums.distance.nonfinite = true;  // no number says how far apart two shapes are
  } else if (x.empty() || y.empty()) {
    if (!equal) ++result_.unmeasured;
  } else if (is_float(x.dtype) && is_float(y.dtype)) {
    sums.node.measured = true;
    const int64_t size = x.row_size();
    for (int64_t j = 0; j < size; ++j)
      sums.distance.add(value_at(x, static_cast<int64_t>(mine.index) * size + j),
                        value_at(y, static_cast<int64_t>(other->index) * size + j));
  }
}

bool has_numbers(const KeptTensor& a, const KeptTensor* b) {
  return a.digest.has_numbers() && b && b->digest.has_numbers();
}

// |rms(a) - rms(b)| is never above the rms of (a - b): a bound from below where two digests are of
// the same rows.
double digest_bound(const KeptTensor& a, const KeptTensor* b) {
  if (!b || a.rows != b->rows || a.shape != b->shape || a.digest.count == 0) return 0;
  if (a.digest.finite() != b->digest.finite()) return std::numeric_limits<double>::infinity();
  const double difference = std::fabs(a.digest.rms() - b->digest.rms());
  if (difference == 0) return 0;
  return a.digest.rms() > 0 ? difference / a.digest.rms() : std::numeric_limits<double>::infinity();
}

void Comparison::compare_tensor(const Pass& pass, const KeptTensor& tensor, size_t index,
                                std::map<int32_t, NodeSums>& nodes) {
  const Place& place = places_[index];
  std::map<int32_t, Row> last;  // of each request in this pass
  for (const PassRow& r : pass.info.rows) last[r.row.request] = r.row;
  for (size_t i = 0; i < tensor.rows.size(); ++i) {
    const Row& row = tensor.rows[i];
    // attn.kv shows in every pass all that was ever written: it is compared with what b reads when
    // it computes the same last token.
    const Row& at = place.point->op == OpKind::cache ? last[row.request] : row;
    if (stopped(row) || stopped(at) || !options_.selection.has(row)) continue;
    compare_row({&tensor, i}, at, index, nodes[row.request]);
  }
  for (auto& [request, sums] : nodes) {
    if (sums.node.measured || !sums.differs) continue;
    const auto in_b = rows_of_b_.find({request, last[request].position});
    if (in_b == rows_of_b_.end()) continue;
    const KeptTensor* other = pass_of_b(in_b->second.pass).find(*place.point, place.layer, request);
    // What attention reads is as far apart as what was written, where hashes alone do not say.
    sums.node.relative =
        has_numbers(tensor, other) ? digest_bound(tensor, other) : inherited(request, index);
  }
}

int64_t Comparison::shown_by_b_alone(const Pass& pass, const Place& place) {
  int64_t rows = 0;
  for (const PassRow& r : pass.info.rows) {
    const auto in_b = rows_of_b_.find({r.row.request, r.row.position});
    if (in_b == rows_of_b_.end() || stopped(r.row) || !options_.selection.has(r.row)) continue;
    if (find_row(pass_of_b(in_b->second.pass), place, r.row)) ++rows;
  }
  return rows;
}

void Comparison::enter_node(NodeSums& sums, const Pass& pass, int32_t request, size_t index) {
  DiffNode& node = sums.node;
  node.place = places_[index];
  node.pass = pass.info.pass;
  node.request = request;
  node.relative = std::max(node.relative, sums.distance.relative());
  node.limit = own_noise(coarser(a_.manifest().dtype, b_.manifest().dtype)) +
               kDiffGrowth * inherited(request, index);
  DiffPlace& place = result_.places[index];
  place.measured += sums.distance.elements;
  place.difference_rms += sums.distance.difference;  // sums, until summarise()
  place.rms += sums.distance.size;
  double& largest = relative_[{request, index}];
  largest = std::max(largest, node.relative);
  if (!sums.differs) return;
  if (!result_.first_bits) result_.first_bits = node;
  if (!result_.first_kind && !within(node.relative, node.limit)) result_.first_kind = node;
}

void Comparison::compare_place(const Pass& pass, size_t index) {
  const Place& place = places_[index];
  if (!options_.selection.has(*place.point, place.layer)) return;
  std::map<int32_t, NodeSums> nodes;
  bool shown = false;
  for (const KeptTensor& tensor : pass.tensors) {
    if (!(*tensor.point == *place.point) || tensor.layer != place.layer) continue;
    shown = true;
    compare_tensor(pass, tensor, index, nodes);
  }
  if (!shown) result_.only_b += shown_by_b_alone(pass, place);
  for (auto& [request, sums] : nodes) enter_node(sums, pass, request, index);
}

void Comparison::compare_pass(const Pass& pass) {
  std::set<int> needed;
  for (const PassRow& r : pass.info.rows)
    if (const auto found = rows_of_b_.find({r.row.request, r.row.position});
        found != rows_of_b_.end())
      needed.insert(found->second.pass);
  std::erase_if(loaded_, [&](const auto& entry) { return !needed.contains(entry.first); });
  follow_tokens(pass);
  for (size_t i = 0; i < places_.size(); ++i) compare_place(pass, i);
}

void Comparison::summarise() {
  for (DiffPlace& place : result_.places) {
    result_.rows += place.rows;
    result_.equal += place.equal;
    if (place.measured == 0) continue;
    const auto n = static_cast<double>(place.measured);
    place.difference_rms = std::sqrt(place.difference_rms / n);
    place.rms = std::sqrt(place.rms / n);
    place.ulps =
        place.difference_rms / ulp(place.rms, coarser(a_.manifest().dtype, b_.manifest().dtype));
  }
  std::erase_if(result_.places, [](const DiffPlace& place) { return place.rows == 0; });
}

void Comparison::tell() {
  const auto& bits = result_.first_bits;
  const auto& kind = result_.first_kind;
  const auto where = [](const DiffNode& n) {
    return fmt::format("{}, request {}, position {}", text_of(n.place), n.request, n.position);
  };
  const bool whole = a_.complete() && b_.complete();
  const bool same_form = result_.structure.empty() && result_.only_a == 0 && result_.only_b == 0;
  if (result_.rows == 0) {
    result_.verdict = "inconclusive";
    result_.story = "Nothing was compared: the two traces have no row of the selection in common";
  } else if (kind) {
    result_.verdict = "different";
    result_.story = fmt::format(
        "First different in kind: {}: relative difference {:.3g}{}, where noise explains {:.3g}; "
        "bits differ first at {}",
        where(*kind), kind->relative, kind->measured ? "" : " or more", kind->limit, where(*bits));
  } else if (!whole) {
    result_.verdict = "inconclusive";
    result_.story = fmt::format(
        "Nothing differs by more than noise in {} rows, but a trace is "
        "incomplete",
        result_.rows);
  } else if (!same_form || result_.unmeasured > 0) {
    result_.verdict = "different";
    result_.story =
        !result_.structure.empty()
            ? result_.structure.front()
            : fmt::format(
                  "{} rows are in one trace only, {} rows of other bits were kept without "
                  "their numbers",
                  result_.only_a + result_.only_b, result_.unmeasured);
    if (bits) result_.story += fmt::format("; bits differ first at {}", where(*bits));
  } else if (bits) {
    result_.verdict = "noise";
    result_.story = fmt::format(
        "{} of {} rows have other bits, first at {}; no difference is larger than rounding noise "
        "explains, which a judgement with --model can confirm",
        result_.rows - result_.equal, result_.rows, where(*bits));
  } else {
    result_.verdict = "identical";
    result_.story = fmt::format("All {} rows have the same bits", result_.rows);
  }
}

DiffResult Comparison::run() {
  compare_manifests();
  index_b();
  for (int i = 0; i < a_.passes(); ++i) compare_pass(a_.read(i, true));
  for (const auto& [key, in_b] : rows_of_b_) {
    const auto stop = stopped_.find(key.first);
    const bool compared = stop == stopped_.end() || key.second < stop->second;
    if (compared && options_.selection.has(Row{key.first, key.second}) && !seen_.contains(key))
      ++result_.only_b;
  }
  summarise();
  tell();
  return std::move(result_);
}

}  // namespace

DiffResult diff(TraceReader& a, TraceReader& b, const DiffOptions& options) {
  return Comparison(a, b, options).run();
}

int exit_status(const DiffResult& result) {
  if (result.verdict == "inconclusive") return 2;
  return result.verdict == "different" ? 1 : 0;
}

}  // namespace lockstep
