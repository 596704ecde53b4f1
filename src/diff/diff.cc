#include "src/diff/diff.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <span>
#include <tuple>
#include <utility>

#include "src/diff/diff_noise.h"
#include "src/diff/diff_scores.h"
#include "src/diff/diff_side.h"
#include "src/diff/diff_story.h"
#include "src/diff/diff_sums.h"
#include "src/judge/ledger.h"
#include "src/stats/statistics.h"

namespace lockstep {
namespace {

DType coarser(DType a, DType b) { return unit_roundoff(a) > unit_roundoff(b) ? a : b; }

// By place, the numbers of those that its op reads.
std::vector<std::vector<size_t>> inputs_by_number(const Graph& graph,
                                                  const std::vector<Place>& places) {
  std::vector<std::vector<size_t>> inputs(places.size());
  for (size_t i = 0; i < places.size(); ++i)
    for (const Place& input : graph.inputs_of(places[i]))
      inputs[i].push_back(static_cast<size_t>(std::ranges::find(places, input) - places.begin()));
  return inputs;
}

class Comparison {
 public:
  Comparison(TraceReader& a, TraceReader& b, const DiffOptions& options)
      : options_(options),
        graph_(a.manifest().graph),
        noise_dtype_(coarser(a.manifest().dtype, b.manifest().dtype)),
        places_(graph_.places()),
        inputs_(inputs_by_number(graph_, places_)),
        a_(a, places_),
        b_(b, places_),
        noise_(places_, inputs_, shown_by_both(), noise_dtype_),
        scores_(a.manifest(), b.manifest()) {
    for (TraceReader* trace : {&a, &b}) noise_.widen(trace->manifest());
    for (const Place& place : places_) {
      result_.places.push_back({.place = place});
      selected_.push_back(options.selection.has(*place.point, place.layer));
    }
    needed_ = selected_;
    for (size_t i = places_.size(); i-- > 0;) {
      if (!selected_[i] && !(needed_[i] && is_cache(i))) continue;
      for (size_t input : inputs_[i]) needed_[input] = true;
      for (size_t source : noise_.sources(i)) needed_[source] = true;
    }
  }

  DiffResult run();

 private:
  using Computed = DiffSide::Computed;
  // The traces whose rows are looked for in the other one: the contents of a cache belong to the
  // last row of a pass.
  struct Owners {
    bool a = false, b = false;
  };
  // Which times of b a time of a is compared with.
  struct Pairing {
    size_t mine = 0, first = 0, last = 0;
  };

  void compare_manifests();
  void compare_pass(int pass);
  Pairing pairing(const Row& row, int pass) const;
  void follow_tokens(int pass);
  void compare_place(int pass, size_t index);
  // All that the two show of a row, this time of a and its times of b.
  void compare_times(const Row& row, int pass, size_t index, DiffSums& sums);
  // The row as `side` shows it at any time, and the number of that time among `times`.
  static std::optional<std::pair<ShownRow, size_t>> any(DiffSide& side,
                                                        const std::vector<Computed>& times,
                                                        size_t index, const Row& row);
  void compare_shown(const ShownRow& x, const ShownRow& y, Owners own, size_t index,
                     DiffSums& sums);
  void compare_row(const ShownRow& x, const ShownRow& y, size_t index, DiffSums& sums);
  // False when the bits differ and nothing says how far apart or why.
  bool compare_numbers(const ShownRow& x, const ShownRow& y, DiffSums& sums) const;
  // How far apart two digests say that the rows of the node are, at least: one is of all rows of a
  // pass, also of those of others.
  void bound(const RecordedTensor& a, const RecordedTensor& b, DiffNode& node) const;
  bool compare_indices(const ShownRow& x, const ShownRow& y, size_t index, DiffSums& sums);
  bool inputs_equal(const ShownRow& x, const ShownRow& y, size_t index);
  // Whether the numbers of what was written to that row of a cache were compared.
  bool written_measured(const Row& row, size_t index) const;
  int64_t rows_of(const ShownRow& shown, size_t index) const;
  void enter_node(DiffSums& sums, int pass, int32_t request, size_t index);
  void look_for_kind(const DiffSums& sums, const RelativeDifference& limit, size_t index);
  std::vector<bool> shown_by_both() const;
  void compare_drawn();
  void count_rows_of_b_alone();
  void sum_up_places();
  std::string broken() const;  // why what was compared is not all; "": it is
  bool is_cache(size_t index) const { return places_[index].point->is_cache(); }
  bool rounds_scores(size_t index) const {
    return scores_.any() && places_[index].point->op == OpKind::attention;
  }
  bool stopped(const Row& row) const {
    const auto stop = stopped_.find(row.request);
    return stop != stopped_.end() && row.position >= stop->second;
  }
  bool wanted(const Row& row) const { return !stopped(row) && options_.selection.has(row); }
  void stop(const Row& row, std::string sentence) {
    stopped_[row.request] = row.position;
    result_.structure.push_back(std::move(sentence) + ": it is not compared from there on");
  }

  const DiffOptions& options_;
  Graph graph_;
  DType noise_dtype_;
  std::vector<Place> places_;
  std::vector<std::vector<size_t>> inputs_;  // of each place
  DiffSide a_, b_;
  DiffNoise noise_;
  ScoreRounding scores_;
  DiffResult result_;
  std::map<int32_t, int32_t> stopped_;  // request -> first position not compared
  // By place: whether the result is of it; and of what noise there explains, its inputs too.
  std::vector<bool> selected_, needed_;
  std::string hidden_choice_;  // the first place that only a choice of experts before may explain
  int64_t unmeasured_before_ = 0;  // rows, in the places before the one that is compared
  // By place and prefix: whether rows that a cache is written from were compared as numbers.
  std::map<std::pair<size_t, uint64_t>, bool> measured_;
};

void Comparison::compare_manifests() {
  const Manifest &a = a_.trace().manifest(), &b = b_.trace().manifest();
  const auto say = [&](std::string text) { result_.structure.push_back(std::move(text)); };
  for (const Manifest* manifest : {&a, &b})
    options_.selection.check_layers(manifest->graph.layers());
  if (a.graph != b.graph)
    say(fmt::format("the models differ: {} and {}", text_of(a.graph), text_of(b.graph)));
  for (DiffSide* side : {&a_, &b_})
    for (const std::string& problem : side->trace().problems()) say(problem);
}

Comparison::Pairing Comparison::pairing(const Row& row, int pass) const {
  const std::vector<Computed>&mine = a_.computed(row), &theirs = b_.computed(row);
  const auto now = std::ranges::find(mine, pass, &Computed::pass);
  const auto at = static_cast<size_t>(now - mine.begin());
  const size_t first = std::min(at, theirs.size() - 1);
  return {at, first, at + 1 == mine.size() ? theirs.size() - 1 : first};
}

void Comparison::follow_tokens(int pass) {
  for (const PassRow& r : a_.pass(pass).info.rows) {
    if (!wanted(r.row)) continue;
    const std::vector<Computed>& theirs = b_.computed(r.row);
    if (theirs.empty()) {
      ++result_.only_a;
      result_.more_a += !b_.begins_after(r.row);
      continue;
    }
    const Pairing pair = pairing(r.row, pass);
    for (size_t i = pair.first; i <= pair.last && !stopped(r.row); ++i)
      if (theirs[i].token != r.token)
        stop(r.row, fmt::format("request {} was fed token {} and {} at position {}", r.row.request,
                                r.token, theirs[i].token, r.row.position));
  }
}

std::vector<bool> Comparison::shown_by_both() const {
  std::vector<bool> shown;
  for (size_t i = 0; i < places_.size(); ++i) shown.push_back(a_.shows(i) && b_.shows(i));
  return shown;
}

bool Comparison::inputs_equal(const ShownRow& x, const ShownRow& y, size_t index) {
  if (is_cache(index)) {
    const auto written = a_.written(places_[index].layer, x.row());
    return written && written == b_.written(places_[index].layer, x.row());
  }
  return std::ranges::all_of(inputs_[index], [&](size_t input) {
    const auto of_x = a_.find(x.pass, input, x.row(), x.index);
    const auto of_y = b_.find(y.pass, input, x.row(), y.index);
    return of_x && of_y && of_x->same_bits(*of_y);
  });
}

bool Comparison::written_measured(const Row& row, size_t index) const {
  return std::ranges::all_of(inputs_[index], [&](size_t input) {
    const auto found = measured_.find({input, a_.prefix(row)});
    return found != measured_.end() && found->second;
  });
}

void Comparison::bound(const RecordedTensor& a, const RecordedTensor& b, DiffNode& node) const {
  std::set<int32_t> requests;
  for (size_t i = 0; i < a.rows.size() && a.rows == b.rows; ++i) {
    if (ShownRow{0, &a, i}.same_bits({0, &b, i})) continue;
    if (!wanted(a.rows[i])) return;  // which may be what differs
    requests.insert(a.rows[i].request);
  }
  node.relative = std::max(node.relative, digest_bound(a, b));
  node.requests = static_cast<int>(std::max<size_t>(1, requests.size()));
}

bool Comparison::compare_numbers(const ShownRow& x, const ShownRow& y, DiffSums& sums) const {
  const RecordedTensor &of_x = *x.tensor, &of_y = *y.tensor;
  if (!of_x.data.view().empty() && !of_y.data.view().empty()) {
    if (is_float(of_x.dtype) != is_float(of_y.dtype)) sums.distance.nonfinite = true;
    sums.node.measured = true;
    sums.add(numbers_of(x), numbers_of(y), x.row());
    return true;
  }
  if (x.same_bits(y)) return true;
  sums.each_known = false;
  if (!of_x.digest.has_numbers() || !of_y.digest.has_numbers()) {
    sums.without_digest = true;
  } else if (std::exchange(sums.bounded, {&of_x, &of_y}) != std::pair(&of_x, &of_y)) {
    bound(of_x, of_y, sums.node);
  }
  return false;
}

bool Comparison::compare_indices(const ShownRow& x, const ShownRow& y, size_t index,
                                 DiffSums& sums) {
  const Row& row = x.row();
  const size_t input = inputs_[index].at(0);
  const auto of_x = a_.find(x.pass, input, row, x.index),
             of_y = b_.find(y.pass, input, row, y.index);
  const std::vector<double> mine = numbers_of(x), theirs = numbers_of(y);
  bool known = of_x && of_y && !mine.empty() && !theirs.empty();
  if (known) {
    const std::vector<double> scores_x = numbers_of(*of_x), scores_y = numbers_of(*of_y);
    known = !scores_x.empty() && !scores_y.empty();
    if (known && !(of_largest(scores_x, mine, theirs) && of_largest(scores_y, theirs, mine))) {
      sums.forbid(row, "its indices are not those of the largest of its inputs", 0);
      return true;
    }
  }
  if (places_[index].point->op != OpKind::top_k) return known;
  stop(row, fmt::format("request {} chose other experts at position {} in layer {}", row.request,
                        row.position, places_[index].layer));
  return true;
}

void Comparison::compare_row(const ShownRow& x, const ShownRow& y, size_t index, DiffSums& sums) {
  const Row& row = x.row();
  const Point& point = *places_[index].point;
  DiffPlace& place = result_.places[index];
  ++place.rows;
  const bool equal = x.same_bits(y);
  if (equal) ++place.equal;
  if (!equal && !sums.differs) sums.node.position = row.position;
  sums.differs = sums.differs || !equal;
  bool measured = true;
  if (!x.same_form(y)) {
    sums.distance.nonfinite = true;  // no number says how far apart two shapes are
  } else {
    const bool forbidden = !equal && point.node_class == NodeClass::exact && x.hash() && y.hash() &&
                           x.tensor->dtype == y.tensor->dtype && inputs_equal(x, y, index);
    if (forbidden)
      sums.forbid(row, "its inputs have the same bits, and by them it is exact",
                  relative_of(numbers_of(x), numbers_of(y)));
    if (!row_of(point.op).makes_indices)
      measured = compare_numbers(x, y, sums);
    else if (!equal && !forbidden)
      measured = compare_indices(x, y, index, sums);
    if (!measured && !forbidden && !(is_cache(index) && written_measured(row, index)))
      ++result_.unmeasured;
  }
  if (is_written(point)) {
    const auto [known, fresh] = measured_.try_emplace({index, a_.prefix(row)}, measured);
    known->second = known->second && measured;
  }
}

int64_t Comparison::rows_of(const ShownRow& shown, size_t index) const {
  if (!is_cache(index)) return 1;
  return std::ranges::count_if(shown.tensor->rows, [&](const Row& row) { return wanted(row); });
}

void Comparison::compare_shown(const ShownRow& x, const ShownRow& y, Owners own, size_t index,
                               DiffSums& sums) {
  if (!is_cache(index)) return compare_row(x, y, index, sums);
  for (size_t i = 0; i < x.tensor->rows.size() && own.a; ++i) {
    const Row& row = x.tensor->rows[i];
    if (!wanted(row)) continue;
    if (const auto same = index_of(*y.tensor, row, i))
      compare_row({x.pass, x.tensor, i}, {y.pass, y.tensor, *same}, index, sums);
    else
      ++result_.only_a;
  }
  for (size_t i = 0; i < y.tensor->rows.size() && own.b; ++i) {
    const Row& row = y.tensor->rows[i];
    if (!wanted(row)) continue;
    const auto same = index_of(*x.tensor, row, i);
    if (!same)
      ++result_.only_b;
    else if (!own.a)
      compare_row({x.pass, x.tensor, *same}, {y.pass, y.tensor, i}, index, sums);
  }
}

std::optional<std::pair<ShownRow, size_t>> Comparison::any(DiffSide& side,
                                                           const std::vector<Computed>& times,
                                                           size_t index, const Row& row) {
  for (size_t i = times.size(); i-- > 0;)
    if (const auto shown = side.find(times[i].pass, index, row, times[i].index))
      return std::pair(*shown, i);
  return {};
}

void Comparison::compare_times(const Row& row, int pass, size_t index, DiffSums& sums) {
  const std::vector<Computed>&mine = a_.computed(row), &theirs = b_.computed(row);
  const Pairing pair = pairing(row, pass);
  const auto own = [&](const Computed& a, const Computed& b) {
    return is_cache(index) ? Owners{a.last, b.last} : Owners{true, true};
  };
  const auto x = a_.find(pass, index, row, mine[pair.mine].index);
  bool compared = false;
  for (size_t i = pair.first; i <= pair.last; ++i) {
    const Owners both = own(mine[pair.mine], theirs[i]);
    if (!both.a && !both.b) continue;
    const auto y = b_.find(theirs[i].pass, index, row, theirs[i].index);
    const size_t first_of_a = std::min(i, mine.size() - 1);
    if (x && y) {
      compared = true;
      compare_shown(*x, *y, both, index, sums);
    } else if (y && both.b && pair.mine == first_of_a) {
      const auto other = any(a_, mine, index, row);
      const bool later = other && other->second > first_of_a && i + 1 == theirs.size();
      if (!other) result_.only_b += rows_of(*y, index);
      if (other && !later) compare_shown(other->first, *y, {false, true}, index, sums);
    }
  }
  if (!x || compared || !own(mine[pair.mine], {}).a) return;
  if (const auto other = any(b_, theirs, index, row))
    compare_shown(*x, other->first, {true, false}, index, sums);
  else
    result_.only_a += rows_of(*x, index);
}

void Comparison::enter_node(DiffSums& sums, int pass, int32_t request, size_t index) {
  DiffNode& node = sums.node;
  node.id = {.place = places_[index], .pass = a_.pass(pass).info.pass, .request = request};
  node.relative = std::max(node.relative, sums.distance.relative());
  // A cache may hold what another request with the same tokens has written.
  const RelativeDifference inherited =
      noise_.inherited(index, request, node.requests > 1 || is_cache(index));
  RelativeDifference found{0,
                           sums.each_known ? sums.worst : std::numeric_limits<double>::infinity()};
  // Rows that attention reads are as far apart as they were when they were written, where hashes
  // alone do not say.
  if (sums.without_digest) found = inherited;
  node.relative = found.all = std::max(node.relative, found.all);
  RelativeDifference limit = noise_.limit(index, inherited);
  if (rounds_scores(index)) {
    const RelativeDifference more = scores_.take(request);
    limit = {limit.all + more.all, limit.worst + more.worst};
  }
  node.limit = limit.all;
  DiffPlace& place = result_.places[index];
  place.measured += sums.distance.elements;
  place.difference_rms += sums.distance.difference;  // sums, until sum_up_places()
  place.rms += sums.distance.size;
  noise_.enter(index, request, found);
  if (!sums.differs || !selected_[index]) return;
  if (!result_.first_bits) result_.first_bits = node;
  if (!result_.first_kind) look_for_kind(sums, limit, index);
}

void Comparison::look_for_kind(const DiffSums& sums, const RelativeDifference& limit,
                               size_t index) {
  DiffNode node = sums.node;
  // Where numbers tell, the row that is furthest off; else the first with other bits.
  if (sums.furthest > 0) node.position = sums.furthest_position;
  if (!sums.reason.empty()) {
    node.reason = sums.reason;
    node.position = sums.reason_position;
    node.limit = 0;
  } else if (within(node.relative, limit.all)) {
    if (within(sums.worst, limit.worst)) return;
    node.of_element = true;
    node.relative = sums.worst;
    node.limit = limit.worst;
    node.position = sums.worst_position;
  }
  if (sums.reason.empty() && std::isfinite(node.relative) && noise_.hides_a_choice(index)) {
    if (hidden_choice_.empty()) hidden_choice_ = text_of(node.id.place);
    return;
  }
  result_.first_kind = node;
  result_.unmeasured_before = unmeasured_before_;
}

void Comparison::compare_place(int pass, size_t index) {
  if (!needed_[index]) return;
  const std::tuple before{result_.only_a, result_.only_b, result_.unmeasured};
  unmeasured_before_ = result_.unmeasured;
  std::map<int32_t, DiffSums> nodes;
  for (const PassRow& r : a_.pass(pass).info.rows) {
    // Each row that is shown of a cache is asked for, not the one that reads them.
    const bool asked = is_cache(index) ? !stopped(r.row) : wanted(r.row);
    if (asked && !b_.computed(r.row).empty())
      compare_times(r.row, pass, index, nodes[r.row.request]);
  }
  if (rounds_scores(index)) scores_.add(a_, pass, places_, index);
  for (auto& [request, sums] : nodes) enter_node(sums, pass, request, index);
  // Looked at for the limits of others, and counted nowhere.
  if (!selected_[index]) std::tie(result_.only_a, result_.only_b, result_.unmeasured) = before;
}

void Comparison::compare_pass(int pass) {
  a_.keep({pass});
  std::set<int> needed;
  for (const PassRow& r : a_.pass(pass).info.rows)
    for (const Computed& of_b : b_.computed(r.row)) needed.insert(of_b.pass);
  b_.keep(needed);
  follow_tokens(pass);
  for (size_t i = 0; i < places_.size(); ++i) compare_place(pass, i);
}

// The last token of a request is fed to no pass, and of the point `token` the most likely is shown,
// not what was drawn.
void Comparison::compare_drawn() {
  if (!options_.selection.has(point("token"), -1)) return;
  for (const RequestInfo& x : a_.trace().manifest().requests)
    for (const RequestInfo& y : b_.trace().manifest().requests) {
      if (x.id != y.id || !(x.sampled || y.sampled) || x.prompt != y.prompt) continue;
      const auto [of_x, of_y] = std::ranges::mismatch(x.tokens, y.tokens);
      const auto made = std::ssize(x.prompt) + (of_x - x.tokens.begin());
      const Row row{x.id, static_cast<int32_t>(made - 1)};
      if (of_x != x.tokens.end() && of_y != y.tokens.end() && wanted(row))
        stop(row, fmt::format("request {} drew token {} and {} after position {}", x.id, *of_x,
                              *of_y, row.position));
    }
}

void Comparison::count_rows_of_b_alone() {
  for (const auto& [key, times] : b_.rows()) {
    const Row row{key.first, key.second};
    if (!wanted(row) || !a_.computed(row).empty()) continue;
    ++result_.only_b;
    result_.more_b += !a_.begins_after(row);
  }
}

void Comparison::sum_up_places() {
  std::erase_if(result_.places, [&](const DiffPlace& place) {
    return place.rows == 0 || !options_.selection.has(*place.place.point, place.place.layer);
  });
  for (DiffPlace& place : result_.places) {
    result_.rows += place.rows;
    result_.equal += place.equal;
    if (place.measured == 0) continue;
    const auto n = static_cast<double>(place.measured);
    place.difference_rms = std::sqrt(place.difference_rms / n);
    place.rms = std::sqrt(place.rms / n);
    place.ulps = place.difference_rms / ulp(place.rms, noise_dtype_);
  }
}

std::string Comparison::broken() const {
  for (const DiffSide* side : {&a_, &b_})
    if (!side->trouble().empty()) return side->trouble();
  if (!a_.trace().complete() || !b_.trace().complete()) return "a trace is incomplete";
  if (hidden_choice_.empty()) return "";
  return fmt::format("noise at {} depends on which experts were chosen: keep mlp.experts too",
                     hidden_choice_);
}

DiffResult Comparison::run() {
  compare_manifests();
  for (int i = 0; i < a_.trace().passes(); ++i) compare_pass(i);
  compare_drawn();
  count_rows_of_b_alone();
  sum_up_places();
  summarise(result_, broken());
  return std::move(result_);
}

}  // namespace

DiffResult diff(TraceReader& a, TraceReader& b, const DiffOptions& options) {
  return Comparison(a, b, options).run();
}

}  // namespace lockstep
