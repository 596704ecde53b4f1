// A greedy search by description length. Each axis (rows; head, dim, channel) has features, whole
// numbers that its units have: the index itself, the index modulo a tile, the page, prefill or
// decode. A predicate says of a feature that it is among some values, or at least, or at most one.
// The search adds the predicate that saves the most bits, up to four, and keeps the rule when it
// saves ten bits more than no rule does: by chance that happens once in a thousand masks. Rules of
// what only a kernel knows (tiles, token ids, experts) cost more bits, so that of two rules that
// say the same the plainer one is said.
#include "src/stats/shape_rule.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <set>
#include <span>

namespace lockstep {
namespace {

// A description that is this many bits shorter is chance once in a thousand masks.
constexpr double kSurelyBits = 10;
// An element outside the rule is another bug's, or the rule is none. A bug that is there leaves
// many elements within their budgets, but of a rule under which four of five are right nobody
// learns where it is.
constexpr double kLeastRecall = 0.98, kLeastPrecision = 0.2;
// A predicate of rows or heads of which all have a wrong element is a description of them, however
// few they are, unless a list of them is shorter by more than the bit that a list costs itself. One
// of which some have none must be better than chance.
constexpr double kOfList = -1.001;
constexpr size_t kMostListed = 4, kMostPredicates = 4;

// log2 of the ways to choose k of n. By lgamma, since n may be millions: a bit or so is exact
// enough.
double choices(double n, double k) {
  if (k <= 0 || k >= n) return 0;
  return (std::lgamma(n + 1) - std::lgamma(k + 1) - std::lgamma(n - k + 1)) / std::log(2.0);
}

enum class Relation { among, at_least, at_most };
using Keys = std::vector<int64_t>;

// A whole number that each unit of an axis has (its index, its index % 16 ...). `bits`: how much
// longer a rule is for being about it, so that of equal rules the plainer one is said.
struct Feature {
  Keys keys;  // by unit
  double bits = 0;
  size_t listed = 1;    // how many of its values a rule may list
  bool ordered = true;  // whether "at least" means something
  std::function<std::string(Relation, const Keys&)> say;
};

struct Predicate {
  size_t axis = 0;
  std::vector<bool> holds;  // by unit
  double bits = 0;
  std::string text;
};

Feature plain(Keys keys, const std::string& noun, double bits = 0) {
  const auto say = [noun](Relation relation, const Keys& values) {
    if (relation == Relation::at_least) return fmt::format("{}s >= {}", noun, values.front());
    if (relation == Relation::at_most) return fmt::format("{}s <= {}", noun, values.back());
    return fmt::format("{}{} {}", noun, values.size() > 1 ? "s" : "", fmt::join(values, ", "));
  };
  return {std::move(keys), bits, kMostListed, true, say};
}

Feature modular(Keys keys, const std::string& noun, int64_t modulus, double bits) {
  for (int64_t& key : keys) key %= modulus;
  const auto say = [noun, modulus](Relation relation, const Keys& values) {
    const char* sign = relation == Relation::among      ? "=="
                       : relation == Relation::at_least ? ">="
                                                        : "<=";
    return fmt::format("{0}s {1} with {1} % {2} {3} {4}", noun, noun[0], modulus, sign,
                       relation == Relation::at_most ? values.back() : values.front());
  };
  return {std::move(keys), bits, 1, modulus > 2, say};
}

Feature blocks(Keys keys, const std::string& noun, int64_t width, double bits) {
  for (int64_t& key : keys) key /= width;
  const auto say = [noun, width](Relation, const Keys& values) {
    const int64_t first = values.front() * width;
    return fmt::format("{}s {}..{}", noun, first, first + width - 1);
  };
  return {std::move(keys), bits, 1, false, say};
}

Feature flag(Keys keys, std::string no, std::string yes, double bits) {
  const auto say = [no, yes](Relation, const Keys& values) { return values.front() ? yes : no; };
  return {std::move(keys), bits, 1, false, say};
}

template <typename Of>
Keys keys_of_rows(const WrongElements& e, Of of) {
  Keys all;
  for (const WrongElements::PlacedRow& row : e.rows) all.push_back(of(row));
  return all;
}

// Rows of the tiles that a kernel splits the rows of a pass into, of whatever request. What is said
// of one size could have been said of another.
void add_tiles(const WrongElements& e, std::vector<Feature>& features) {
  constexpr int64_t kTiles[] = {8, 16, 32, 64, 128};
  const double which = std::log2(std::size(kTiles));
  const auto known = [](const WrongElements::PlacedRow& r) { return r.of_pass >= 0; };
  if (!std::ranges::all_of(e.rows, known)) return;
  const Keys rows = keys_of_rows(e, [](const WrongElements::PlacedRow& r) { return r.of_pass; });
  features.push_back(plain(rows, "row of the pass", 4));
  features.back().say = [](Relation relation, const Keys& values) {
    if (relation == Relation::at_least) return fmt::format("rows of the pass >= {}", values[0]);
    if (relation == Relation::at_most) return fmt::format("rows of the pass <= {}", values.back());
    return fmt::format("row{} {} of the pass", values.size() > 1 ? "s" : "",
                       fmt::join(values, ", "));
  };
  const int64_t last = *std::ranges::max_element(rows);
  for (const int64_t tile : kTiles) {
    if (tile > last) break;
    features.push_back(modular(rows, "row", tile, 4 + which));
    features.back().say = [tile](Relation relation, const Keys& values) {
      if (relation == Relation::at_least)
        return fmt::format("rows of the pass % {} >= {}", tile, values.front());
      if (relation == Relation::at_most)
        return fmt::format("rows of the pass % {} <= {}", tile, values.back());
      return fmt::format("rows of the pass % {} == {}", tile, values.front());
    };
    const auto partial = [tile](const WrongElements::PlacedRow& r) {
      return r.of_pass >= r.pass_rows - r.pass_rows % tile;
    };
    features.push_back(
        flag(keys_of_rows(e, partial), fmt::format("in the full tiles of {} rows of a pass", tile),
             fmt::format("in the last partial tile of {} rows of a pass", tile), 4 + which));
  }
}

Feature fed_token(const WrongElements& e) {
  Feature feature =
      plain(keys_of_rows(e, [](const WrongElements::PlacedRow& r) { return r.token; }), "", 2);
  feature.listed = 1;
  feature.say = [](Relation relation, const Keys& values) {
    if (relation == Relation::at_least)
      return fmt::format("where token ids >= {} are fed", values.front());
    if (relation == Relation::at_most)
      return fmt::format("where token ids <= {} are fed", values.back());
    return fmt::format("where token id {} is fed", values.front());
  };
  return feature;
}

Feature length_in_page(const WrongElements& e) {
  Feature feature =
      modular(keys_of_rows(e, [](const WrongElements::PlacedRow& r) { return r.length; }), "length",
              e.page_size, 4);
  feature.say = [page = e.page_size](Relation relation, const Keys& values) {
    const char* sign = relation == Relation::among      ? "=="
                       : relation == Relation::at_least ? ">="
                                                        : "<=";
    return fmt::format("where length % {} {} {}", page, sign,
                       relation == Relation::at_most ? values.back() : values.front());
  };
  return feature;
}

// Which expert made the row; or, where a row is made of several, the one that nearly all wrong rows
// have chosen, of all that could have been named.
void add_experts(const WrongElements& e, std::vector<Feature>& features) {
  if (std::ranges::all_of(e.rows,
                          [](const WrongElements::PlacedRow& r) { return r.expert >= 0; })) {
    features.push_back(plain(
        keys_of_rows(e, [](const WrongElements::PlacedRow& r) { return r.expert; }), "expert", 1));
    features.push_back(plain(
        keys_of_rows(e, [](const WrongElements::PlacedRow& r) { return r.choice; }), "choice", 1));
    return;
  }
  std::set<int32_t> known;
  for (const WrongElements::PlacedRow& row : e.rows)
    known.insert(row.experts.begin(), row.experts.end());
  std::map<int32_t, size_t> wrong;  // rows by expert
  for (const WrongRow& row : e.wrong)
    for (const int32_t expert : e.rows[row.row].experts) ++wrong[expert];
  for (const auto& [expert, rows] : wrong) {
    if (static_cast<double>(rows) < kLeastRecall * static_cast<double>(e.wrong.size())) continue;
    const auto chose = [expert = expert](const WrongElements::PlacedRow& r) {
      return std::ranges::count(r.experts, expert) > 0;
    };
    features.push_back(
        flag(keys_of_rows(e, chose), fmt::format("rows that did not choose expert {}", expert),
             fmt::format("rows that chose expert {}", expert), std::log2(known.size())));
  }
}

// of_kernels: also what only a kernel knows of a row, its tile, its token or its expert.
std::vector<Feature> features_of_rows(const WrongElements& e, bool of_kernels) {
  const auto keys = [&](auto of) { return keys_of_rows(e, of); };
  const Keys positions = keys([](const WrongElements::PlacedRow& r) { return r.row.position; });
  std::vector<Feature> features = {
      plain(positions, "position"),
      plain(keys([](const WrongElements::PlacedRow& r) { return r.row.request; }), "request"),
      flag(keys([](const WrongElements::PlacedRow& r) { return r.decode; }), "in prefill",
           "in decode", 1),
      flag(keys([](const WrongElements::PlacedRow& r) { return r.continues; }),
           "in passes that start at position 0", "in passes that continue a request", 1),
      flag(keys([](const WrongElements::PlacedRow& r) { return r.last; }),
           "all but the last row of a request", "the last row of each request in a pass", 2),
      flag(keys([](const WrongElements::PlacedRow& r) { return r.first; }),
           "all but the first row of a request", "the first row of each request in a pass", 2),
      flag(keys([](const WrongElements::PlacedRow& r) { return r.opens; }),
           "every request of a pass but its first", "the first request of each pass", 2),
      plain(keys([](const WrongElements::PlacedRow& r) { return r.pass; }), "pass", 1),
      modular(positions, "position", 2, 3)};
  features[7].say = [](Relation relation, const Keys& values) {
    if (relation == Relation::at_least) return fmt::format("passes >= {}", values.front());
    if (relation == Relation::at_most) return fmt::format("passes <= {}", values.back());
    return fmt::format("pass{} {}", values.size() > 1 ? "es" : "", fmt::join(values, ", "));
  };
  if (e.page_size > 1) {
    features.push_back(modular(positions, "position", e.page_size, 3));
    features.push_back(blocks(positions, "position", e.page_size, 6));
  }
  if (!of_kernels) return features;
  if (e.page_size > 1 && std::ranges::all_of(e.rows, [](auto& r) { return r.length > 0; }))
    features.push_back(length_in_page(e));
  if (std::ranges::all_of(e.rows, [](const WrongElements::PlacedRow& r) { return r.token >= 0; }))
    features.push_back(fed_token(e));
  add_tiles(e, features);
  add_experts(e, features);
  return features;
}

std::vector<Feature> features_of(const WrongElements::Axis& axis) {
  Keys index;
  for (int64_t i = 0; i < axis.size; ++i) index.push_back(i);
  if (axis.name == "k|v") return {flag(index, "K", "V", 0)};
  std::vector<Feature> features = {plain(index, axis.name)};
  if (axis.kv_heads > 0 && axis.size % axis.kv_heads == 0) {
    // The two maps from a head to its K/V head that are mistaken for each other.
    const int64_t group = axis.size / axis.kv_heads;
    Keys maps;
    for (int64_t h : index) maps.push_back(h % axis.kv_heads == h / group);
    const std::string text = fmt::format("heads h with h % {} {{}} h / {}", axis.kv_heads, group);
    features.push_back(flag(maps, fmt::format(fmt::runtime(text), "!="),
                            fmt::format(fmt::runtime(text), "=="), 1));
    features.push_back(modular(index, axis.name, group, 3));
    features.push_back(blocks(index, axis.name, group, 3));
  }
  if (axis.name == "dim" && axis.size % 2 == 0)  // the pairs that RoPE turns
    features.push_back(modular(index, axis.name, axis.size / 2, 2));
  for (int64_t modulus : {2, 4, 8, 16})
    if (modulus < axis.size) {
      features.push_back(modular(index, axis.name, modulus, 3));
      if (modulus >= 8) features.push_back(blocks(index, axis.name, modulus, 6));
    }
  return features;
}

// known: the keys that a rule could be about.
Predicate predicate_of(size_t axis, const Feature& feature, Relation relation, const Keys& values,
                       const std::set<int64_t>& known) {
  Predicate predicate{axis, {}, feature.bits, feature.say(relation, values)};
  const auto holds = [&](int64_t key) {
    if (relation == Relation::at_least) return key >= values.front();
    if (relation == Relation::at_most) return key <= values.back();
    return std::ranges::binary_search(values, key);
  };
  for (const int64_t key : feature.keys) predicate.holds.push_back(holds(key));
  const auto keys = static_cast<double>(known.size());
  const auto left_out = static_cast<double>(std::ranges::count_if(known, std::not_fn(holds)));
  // A threshold is one of the keys, and which side; a list is a choice of so many of them; a single
  // key is one of them.
  if (relation != Relation::among)  // all but the first few, or any
    predicate.bits += std::min(2 + std::log2(keys), 1 + 2 * left_out);
  else if (feature.listed > 1)
    predicate.bits += 1 + choices(keys, static_cast<double>(values.size()));
  else
    predicate.bits += std::log2(keys);
  return predicate;
}

// Looks for the rule, one predicate after another, each the one that shortens the description most.
class Search {
 public:
  Search(const WrongElements& elements, bool of_kernels);
  // A rule, with the bits that it and the elements under it take to describe.
  struct Found {
    std::optional<ShapeRule> rule;
    double bits = std::numeric_limits<double>::infinity();
  };
  Found run();

 private:
  struct Units {  // of one axis
    std::vector<Feature> features;
    std::vector<bool> in = {};        // whether the rule so far holds
    std::vector<int64_t> wrong = {};  // elements, where it holds on all axes
    int64_t count = 0;                // of those in
  };
  // A predicate's effect on the region where the rule holds.
  struct Effect {
    double length = std::numeric_limits<double>::infinity();  // of the description, in bits
    Predicate predicate;
  };

  void choose_columns();
  void count();
  double length(double size, double wrong) const;
  void narrow_by(size_t axis, const Feature& feature, Effect& best) const;
  void weigh(Predicate predicate, Effect& best) const;
  std::string text() const;

  const WrongElements& elements_;
  std::vector<Units> units_;     // of the rows, then of each axis
  std::vector<bool> column_in_;  // by element of a row
  double all_ = 1, all_wrong_ = 0;
  double size_ = 1, wrong_ = 0;  // of the region
  std::vector<Predicate> rule_;
};

Search::Search(const WrongElements& elements, bool of_kernels) : elements_(elements) {
  units_.push_back({.features = features_of_rows(elements, of_kernels)});
  for (const WrongElements::Axis& axis : elements.axes)
    units_.push_back({.features = features_of(axis)});
  for (size_t a = 0; a < units_.size(); ++a) {
    const size_t size = a == 0 ? elements.rows.size() : elements.axes[a - 1].size;
    units_[a].in.assign(size, true);
    all_ *= static_cast<double>(size);
  }
  column_in_.assign(static_cast<size_t>(all_) / units_[0].in.size(), true);
  count();
  all_wrong_ = wrong_;
}

// Which elements of a row the predicates on its axes hold of.
void Search::choose_columns() {
  for (size_t e = 0; e < column_in_.size(); ++e) {
    bool in = true;
    for (size_t a = units_.size() - 1, rest = e; a > 0; --a) {
      in = in && units_[a].in[rest % units_[a].in.size()];
      rest /= units_[a].in.size();
    }
    column_in_[e] = in;
  }
}

void Search::count() {
  size_ = 1, wrong_ = 0;
  for (Units& units : units_) {
    units.wrong.assign(units.in.size(), 0);
    units.count = std::ranges::count(units.in, true);
    size_ *= static_cast<double>(units.count);
  }
  const size_t columns = column_in_.size();
  std::vector<int64_t> by_column(columns);
  // Only rows with a wrong element are walked: they are few where rows are many.
  for (const WrongRow& row : elements_.wrong) {
    const size_t r = row.row;
    if (!units_[0].in[r]) continue;
    for (size_t e = 0; e < columns; ++e) {
      if (!row.elements[e] || !column_in_[e]) continue;
      ++by_column[e];
      ++units_[0].wrong[r];
    }
  }
  for (size_t e = 0; e < columns; ++e) {
    wrong_ += static_cast<double>(by_column[e]);
    for (size_t a = units_.size() - 1, rest = e; a > 0; --a) {
      units_[a].wrong[rest % units_[a].in.size()] += by_column[e];
      rest /= units_[a].in.size();
    }
  }
}

// Bits that say which elements are wrong within the region, and which outside of it.
double Search::length(double size, double wrong) const {
  return choices(size, wrong) + choices(all_ - size, all_wrong_ - wrong);
}

void Search::weigh(Predicate predicate, Effect& best) const {
  const Units& units = units_[predicate.axis];
  double inside = 0, wrong = 0, touched = 0, touched_inside = 0;
  for (size_t i = 0; i < units.in.size(); ++i) {
    if (!units.in[i]) continue;
    const bool any = units.wrong[i] > 0;
    if (any) ++touched;
    if (!predicate.holds[i]) continue;
    ++inside;
    wrong += static_cast<double>(units.wrong[i]);
    if (any) ++touched_inside;
  }
  const auto count = static_cast<double>(units.count);
  if (inside == 0 || inside == count || wrong < kLeastRecall * all_wrong_) return;
  // Elements that stand together are wrong together: what the rule explains must hold of rows and
  // heads too, and not only of the many elements that each of them has.
  const double explained = choices(count, touched) - choices(inside, touched_inside) -
                           choices(count - inside, touched - touched_inside) - predicate.bits;
  if (explained < (touched_inside == inside ? kOfList : kSurelyBits)) return;
  // A region is a product of axes, so that its size shrinks by the share of the axis that is left.
  const double described = length(size_ / count * inside, wrong) + predicate.bits;
  if (length(size_, wrong_) - described < kSurelyBits || described >= best.length) return;
  best = {described, std::move(predicate)};
}

void Search::narrow_by(size_t axis, const Feature& feature, Effect& best) const {
  const Units& units = units_[axis];
  std::set<int64_t> known;
  std::map<int64_t, int64_t> wrong;  // elements by key
  for (size_t i = 0; i < units.in.size(); ++i) {
    if (!units.in[i]) continue;
    known.insert(feature.keys[i]);
    if (units.wrong[i] > 0) wrong[feature.keys[i]] += units.wrong[i];
  }
  const auto propose = [&](Relation relation, const Keys& values) {
    weigh(predicate_of(axis, feature, relation, values, known), best);
  };
  const auto keys = [&] {
    Keys values;
    for (const auto& [key, elements] : wrong) values.push_back(key);
    return values;
  };
  if (const Keys all = keys(); !all.empty()) {
    if (all.size() <= feature.listed) propose(Relation::among, all);
    if (feature.ordered) propose(Relation::at_least, all);
    if (feature.ordered) propose(Relation::at_most, all);
  }
  // And without the keys that have the fewest, as far as a rule may leave elements out. Not of
  // thresholds: where an error grows, the first few wrong elements are what tells where it begins.
  double may_miss = (1 - kLeastRecall) * all_wrong_;
  const size_t before = wrong.size();
  while (!wrong.empty()) {
    const auto least = std::ranges::min_element(wrong, {}, [](const auto& w) { return w.second; });
    may_miss -= static_cast<double>(least->second);
    if (may_miss < 0) break;
    wrong.erase(least);
  }
  if (wrong.size() < before && !wrong.empty() && wrong.size() <= feature.listed)
    propose(Relation::among, keys());
}

std::string Search::text() const {
  std::vector<std::string> parts;
  for (size_t a = 1; a <= units_.size(); ++a)  // rows last
    for (const Predicate& predicate : rule_)
      if (predicate.axis == a % units_.size()) parts.push_back(predicate.text);
  return fmt::format("{}", fmt::join(parts, ", "));
}

Search::Found Search::run() {
  // One element needs no rule, and has many that fit.
  if (all_wrong_ == 1 && all_ > 1) return {ShapeRule{"one element alone", 1, 1}, 0};
  while (rule_.size() < kMostPredicates) {
    Effect best;
    for (size_t axis = 0; axis < units_.size(); ++axis)
      for (const Feature& feature : units_[axis].features) narrow_by(axis, feature, best);
    if (!std::isfinite(best.length)) break;
    Units& units = units_[best.predicate.axis];
    for (size_t i = 0; i < units.in.size(); ++i)
      units.in[i] = units.in[i] && best.predicate.holds[i];
    rule_.push_back(std::move(best.predicate));
    choose_columns();
    count();
  }
  if (rule_.empty() || wrong_ < kLeastPrecision * size_) return {};
  double bits = length(size_, wrong_);
  for (const Predicate& predicate : rule_) bits += predicate.bits;
  return {ShapeRule{text(), wrong_ / size_, wrong_ / all_wrong_}, bits};
}

}  // namespace

std::optional<ShapeRule> shape_rule(const WrongElements& elements) {
  if (elements.rows.empty() || elements.wrong.empty()) return {};
  // One predicate at a time finds no pair of plain ones where a single one of a kernel's is nearly
  // as good at first: so the plain ones have a search of their own, and the shorter description
  // wins.
  const Search::Found plain = Search(elements, /*of_kernels=*/false).run();
  const Search::Found all = Search(elements, /*of_kernels=*/true).run();
  return (all.bits < plain.bits ? all : plain).rule;
}

}  // namespace lockstep
