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

#include "src/diff/diff_digests.h"
#include "src/diff/diff_logits.h"
#include "src/diff/diff_noise.h"
#include "src/diff/diff_scores.h"
#include "src/diff/diff_side.h"
#include "src/diff/diff_storage.h"
#include "src/diff/diff_story.h"
#include "src/diff/diff_sums.h"
#include "src/diff/diff_tokens.h"
#include "src/diff/input_bits.h"
#include "src/diff/match_requests.h"
#include "src/diff/same_inputs.h"
#include "src/diff/share_cuts.h"
#include "src/diff/suspects.h"
#include "src/judge/ledger.h"
#include "src/stats/statistics.h"
#include "traces/rope_pairs.h"

namespace lockstep {
namespace {

DType coarser(DType a, DType b) { return unit_roundoff(a) > unit_roundoff(b) ? a : b; }

class Comparison {
 public:
  Comparison(TraceReader& a, TraceReader& b, const Selection& selection)
      : selection_(selection),
        graph_(compared_graph(a.manifest(), b.manifest())),
        noise_dtype_(coarser(a.manifest().dtype, b.manifest().dtype)),
        places_(graph_.places()),
        inputs_(inputs_by_number(graph_, places_)),
        a_(a, places_),
        b_(b, places_),
        input_bits_(a_, b_, places_, inputs_),
        tokens_(a_, b_, selection, result_),
        digests_(a_.passes(), b_.passes(), a_.digests(), b_.digests()),
        noise_(places_, inputs_, shown_by_both(), noise_dtype_),
        same_inputs_(places_, a.manifest(), b.manifest()),
        scores_(a.manifest(), b.manifest()) {
    for (TraceReader* trace : {&a, &b}) noise_.widen(trace->manifest());
    for (const Place& place : places_) {
      result_.places.push_back({.place = place});
      selected_.push_back(selection.has(*place.point, place.layer));
    }
    needed_ = selected_;
    for (size_t i = places_.size(); i-- > 0;) {
      if (!needed_[i]) continue;
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

  // By what the distance of two rows of other bits is known.
  enum class Told : uint8_t { numbers, digests, nothing };

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
  Told compare_numbers(const ShownRow& x, const ShownRow& y, size_t index, DiffSums& sums);
  // Compares what is kept when the numbers are not: the best logits, and digests.
  Told compare_digests(const ShownRow& x, const ShownRow& y, size_t index, DiffSums& sums);
  Told compare_indices(const ShownRow& x, const ShownRow& y, size_t index, DiffSums& sums);
  void count_same_inputs(const ShownRow& x, const ShownRow& y, size_t index, DiffSums& sums);
  // Whether the numbers of what was written to that row of a cache were compared.
  bool written_measured(const Row& row, size_t index) const;
  int64_t rows_of(const ShownRow& shown, size_t index) const;
  void enter_node(DiffSums& sums, int pass, int32_t request, size_t index);
  void add_to_place(const DiffSums& sums, size_t index);
  std::vector<bool> shown_by_both() const;
  void count_rows_of_b_alone();
  void sum_up_places();
  std::string broken() const;  // why what was compared is not all; "": it is
  bool is_cache(size_t index) const { return places_[index].point->is_cache(); }
  bool rounds_scores(size_t index) const {
    return scores_.any() && places_[index].point->op == OpKind::attention;
  }
  bool wanted(const Row& row) const { return tokens_.wanted(row); }

  const Selection& selection_;
  Graph graph_;
  DType noise_dtype_;
  std::vector<Place> places_;
  std::vector<std::vector<size_t>> inputs_;  // of each place
  DiffSide a_, b_;
  InputBits input_bits_;
  DiffResult result_;
  DiffTokens tokens_;
  DigestComparison digests_;
  DiffNoise noise_;
  SameInputs same_inputs_;
  ScoreRounding scores_;
  LogitsDistance logits_;
  ShareCuts cuts_;
  // By place: whether the result is of it; and of what noise there explains, all before it too.
  std::vector<bool> selected_, needed_;
  Suspects selected_suspects_, suspects_before_;
  int64_t unmeasured_before_ = 0;  // rows, in the places before the one that is compared
  // By place and prefix: whether rows that a cache is written from were compared as numbers.
  std::map<std::pair<size_t, uint64_t>, bool> measured_;
};

void Comparison::compare_manifests() {
  const Manifest &a = a_.trace().manifest(), &b = b_.trace().manifest();
  result_.provenance_a = a.provenance, result_.provenance_b = b.provenance;
  for (const Manifest* m : {&a, &b})
    selection_.check_layers((m->graph_known ? m->graph : graph_).layers());
  if (!of_one_model(a, b))
    result_.structure.push_back(
        fmt::format("the models differ: {} and {}", text_of(a.graph), text_of(b.graph)));
  for (DiffSide* side : {&a_, &b_})
    for (const std::string& sentence : side->trace().problems())
      (side->trace().complete() ? result_.remarks : result_.structure).push_back(sentence);
}

Comparison::Pairing Comparison::pairing(const Row& row, int pass) const {
  const std::vector<Computed>&mine = a_.computed(row), &theirs = b_.computed(row);
  const auto now = std::ranges::find(mine, pass, &Computed::pass);
  const size_t at = now - mine.begin(), first = std::min(at, theirs.size() - 1);
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
    for (size_t i = pair.first; i <= pair.last && !tokens_.stopped(r.row); ++i)
      if (theirs[i].token != r.token) tokens_.fed(r.row, r.token, theirs[i].token);
  }
}

std::vector<bool> Comparison::shown_by_both() const {
  std::vector<bool> shown;
  for (size_t i = 0; i < places_.size(); ++i) shown.push_back(a_.shows(i) && b_.shows(i));
  return shown;
}

bool Comparison::written_measured(const Row& row, size_t index) const {
  return std::ranges::all_of(inputs_[index], [&](size_t input) {
    const auto found = measured_.find({input, a_.prefix(row)});
    return found != measured_.end() && found->second;
  });
}

void Comparison::count_same_inputs(const ShownRow& x, const ShownRow& y, size_t index,
                                   DiffSums& sums) {
  if (!same_inputs_.comparable(index) || !x.hash() || !y.hash() || !input_bits_.equal(x, y, index))
    return;
  const auto input = a_.find(x.pass, inputs_[index].at(0), x.row(), x.index);
  same_inputs_.count(index, x, y, *input->tensor, sums.same_inputs);
}

Comparison::Told Comparison::compare_numbers(const ShownRow& x, const ShownRow& y, size_t index,
                                             DiffSums& sums) {
  const RecordedTensor &of_x = *x.tensor, &of_y = *y.tensor;
  if (!of_x.data.view().empty() && !of_y.data.view().empty()) {
    if (is_float(of_x.dtype) != is_float(of_y.dtype)) sums.distance.nonfinite = true;
    sums.node.measured = true;
    const std::vector<double> a = x.numbers(), b = y.numbers();
    sums.add(a, b, x.row());
    if (*places_[index].point == point("logits")) logits_.add(a, b);
    return Told::numbers;
  }
  return x.same_bits(y) ? Told::numbers : compare_digests(x, y, index, sums);
}

Comparison::Told Comparison::compare_digests(const ShownRow& x, const ShownRow& y, size_t index,
                                             DiffSums& sums) {
  sums.each_known = false;
  const bool best = *places_[index].point == point("logits") &&
                    add_best(a_.top_logits(x.row()), b_.top_logits(x.row()), sums.best);
  if (!x.tensor->digest.has_numbers() || !y.tensor->digest.has_numbers()) {
    sums.without_digest = true;
  } else if (!std::exchange(sums.asked_digests, true)) {
    const auto found = digests_.at(x.pass, index, [&](const Row& row) { return wanted(row); });
    sums.digests_tell = found.has_value();
    if (found) {
      sums.node.relative = std::max(sums.node.relative, found->distance.least);
      sums.likely = found->distance.likely;
      sums.node.requests = found->requests;
    }
  }
  return best || sums.digests_tell ? Told::digests : Told::nothing;
}

Comparison::Told Comparison::compare_indices(const ShownRow& x, const ShownRow& y, size_t index,
                                             DiffSums& sums) {
  const std::optional<bool> largest =
      tokens_.are_of_largest(x, y, *places_[index].point, inputs_[index].at(0));
  if (largest && !*largest) {
    sums.forbid(x.row(), "its indices are not those of the largest of its inputs", 0);
    return Told::numbers;
  }
  if (places_[index].point->op != OpKind::top_k) return largest ? Told::numbers : Told::nothing;
  tokens_.chose_experts(x.row(), places_[index].layer, largest);
  return Told::numbers;
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
  sums.last_position = std::max(sums.last_position, row.position);
  Told told = Told::numbers;
  if (!x.same_form(y)) {
    sums.distance.nonfinite = true;  // no number says how far apart two shapes are
  } else {
    const bool forbidden = !equal && point.node_class == NodeClass::exact && x.hash() && y.hash() &&
                           x.tensor->dtype == y.tensor->dtype && input_bits_.equal(x, y, index);
    if (forbidden)
      sums.forbid(row, "its inputs have the same bits, so it must have too",
                  relative_of(x.numbers(), y.numbers()));
    count_same_inputs(x, y, index, sums);
    if (!row_of(point.op).makes_indices)
      told = compare_numbers(x, y, index, sums);
    else if (!equal && !forbidden)
      told = compare_indices(x, y, index, sums);
    if (told == Told::digests) ++place.by_digest;
    if (told == Told::nothing && !forbidden && !(is_cache(index) && written_measured(row, index)))
      ++result_.unmeasured;
  }
  if (!is_written(point)) return;
  const bool measured = told != Told::nothing;
  const auto [known, fresh] = measured_.try_emplace({index, a_.prefix(row)}, measured);
  known->second = known->second && measured;
}

int64_t Comparison::rows_of(const ShownRow& shown, size_t index) const {
  if (!is_cache(index)) return 1;
  return std::ranges::count_if(shown.tensor->rows, [&](const Row& row) { return wanted(row); });
}

void Comparison::compare_shown(const ShownRow& x, const ShownRow& y, Owners own, size_t index,
                               DiffSums& sums) {
  if (cuts_.unlike(a_, x, b_, y)) {
    ++result_.only_a, ++result_.only_b;
    return;
  }
  if (!is_cache(index)) return compare_row(x, y, index, sums);
  for (size_t i = 0; i < x.tensor->rows.size() && own.a; ++i) {
    const Row& row = x.tensor->rows[i];
    if (!wanted(row)) continue;
    if (const auto same = index_of(*y.tensor, row, i))
      compare_row({x.pass, x.tensor, i}, {y.pass, y.tensor, *same}, index, sums);
    else
      sums.lack(row, own.b, result_.only_a);
  }
  for (size_t i = 0; i < y.tensor->rows.size() && own.b; ++i) {
    const Row& row = y.tensor->rows[i];
    if (!wanted(row)) continue;
    const auto same = index_of(*x.tensor, row, i);
    if (!same)
      sums.lack(row, own.a, result_.only_b);
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
  DiffResult::Node& node = sums.node;
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
  if (sums.best.elements > 0 || sums.best.nonfinite)
    node.relative = std::max(node.relative, sums.best.relative());
  node.relative = found.all = std::max(node.relative, found.all);
  RelativeDifference limit = noise_.limit(index, inherited, sums.last_position);
  if (rounds_scores(index)) {
    const RelativeDifference more = scores_.take(request);
    limit = {limit.all + more.all, limit.worst + more.worst};
  }
  node.limit = limit.all;
  // A bound from below is no distance to hold what comes after to; what is in doubt excuses
  // nothing.
  const double likely = within(sums.likely, limit.all) ? sums.likely : 0;
  if (!sums.each_known) found.all = std::max({found.all, inherited.all, likely});
  add_to_place(sums, index);
  noise_.enter(index, request, found);
  const auto share = same_inputs_.enter(index, sums.same_inputs);
  if (sums.differs)
    (selected_[index] ? selected_suspects_ : suspects_before_)
        .add(sums, limit, share, noise_.hides_a_choice(index), unmeasured_before_);
}

void Comparison::add_to_place(const DiffSums& sums, size_t index) {
  DiffPlace& place = result_.places[index];
  place.measured += sums.distance.elements;
  place.unlike = place.unlike || sums.distance.nonfinite;
  place.difference_rms += sums.distance.difference;  // sums, until sum_up_places()
  place.rms += sums.distance.size;
}

void Comparison::compare_place(int pass, size_t index) {
  if (!needed_[index]) return;
  const std::tuple before{result_.only_a, result_.only_b, result_.unmeasured};
  unmeasured_before_ = result_.unmeasured;
  for (const DiffPlace& place : result_.places) unmeasured_before_ += place.by_digest;
  std::map<int32_t, DiffSums> nodes;
  for (const PassRow& r : a_.pass(pass).info.rows) {
    // Each row that is shown of a cache is asked for, not the one that reads them.
    const bool asked = is_cache(index) ? !tokens_.stopped(r.row) : wanted(r.row);
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
  input_bits_.begin_pass();
  std::set<int> needed;
  for (const PassRow& r : a_.pass(pass).info.rows)
    for (const Computed& of_b : b_.computed(r.row)) needed.insert(of_b.pass);
  b_.keep(needed);
  follow_tokens(pass);
  for (size_t i = 0; i < places_.size(); ++i) compare_place(pass, i);
}

void Comparison::count_rows_of_b_alone() {
  for (const auto& [key, times] : b_.rows()) {
    const Row row{key.first, key.second};
    if (!wanted(row) || !a_.computed(row).empty()) continue;
    ++result_.only_b;
    result_.more_b += !a_.begins_after(row);
  }
  const auto counts = [this](const Row& row) { return wanted(row); };
  result_.only_a += a_.rows_elsewhere(b_, selection_, counts);
  result_.only_b += b_.rows_elsewhere(a_, selection_, counts);
}

void Comparison::sum_up_places() {
  std::erase_if(result_.places, [&](const DiffPlace& place) {
    return place.rows == 0 || !selection_.has(*place.place.point, place.place.layer);
  });
  for (DiffPlace& place : result_.places) {
    result_.rows += place.rows;
    result_.equal += place.equal;
    result_.by_digest += place.by_digest;
    if (place.measured == 0) continue;
    place.difference_rms = root_mean(place.difference_rms, place.measured);
    place.rms = root_mean(place.rms, place.measured);
    place.ulps = place.difference_rms / ulp(place.rms, noise_dtype_);
  }
}

std::string Comparison::broken() const {
  for (const DiffSide* side : {&a_, &b_})
    if (!side->trouble().empty()) return side->trouble();
  if (!a_.trace().complete() || !b_.trace().complete()) return "a trace is incomplete";
  const std::string& choice = selected_suspects_.hidden_choice;
  if (choice.empty()) return "";
  return fmt::format("noise at {} depends on which experts were chosen: keep mlp.experts too",
                     choice);
}

DiffResult Comparison::run() {
  compare_manifests();
  for (int i = 0; i < a_.trace().passes(); ++i) compare_pass(i);
  tokens_.compare_requests();
  count_rows_of_b_alone();
  sum_up_places();
  if (std::string cut = cuts_.sentence(); !cut.empty()) result_.remarks.push_back(std::move(cut));
  result_.logits = logits_.of_all();
  put_suspects(result_, selected_suspects_, suspects_before_);
  summarise(result_, broken());
  return std::move(result_);
}

}  // namespace

DiffResult diff(TraceReader& a, TraceReader& b, const Selection& selection) {
  const AlikePairs alike(a, b);
  const MatchedRequests matched(alike.a(), alike.b());
  DiffResult result = Comparison(alike.a(), matched.trace(), selection).run();
  compare_storage(alike.a(), matched.trace(), selection, result);
  result.renamed = matched.sentences();
  if (const std::string pairs = alike.sentence(); !pairs.empty()) result.remarks.push_back(pairs);
  for (const std::string& sentence : matched.alone()) result.remarks.push_back(sentence);
  return result;
}

}  // namespace lockstep
