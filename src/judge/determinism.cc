// Bits are compared by hash, serving against serving; the distance in ulp is that from the base. An
// op that gives other bits when the very same is served again tells nothing of the other
// circumstances: it is said to depend on nothing but chance.
#include "src/judge/determinism.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <optional>
#include <set>

#include "probes/digest.h"
#include "src/judge/budget.h"
#include "src/judge/ledger.h"
#include "src/stats/moments.h"

namespace lockstep {
namespace {

double ulps_between(const TensorView& want, const TensorView& got) {
  double most = 0;
  for (int64_t i = 0; i < want.count(); ++i) {
    const double w = value_at(want, i), g = value_at(got, i);
    if (w == g || (std::isnan(w) && std::isnan(g))) continue;
    const double apart = want.dtype == DType::i32 ? std::numeric_limits<double>::infinity()
                                                  : std::fabs(w - g) / ulp(w, want.dtype);
    most = std::isnan(apart) ? std::numeric_limits<double>::infinity() : std::max(most, apart);
  }
  return most;
}

// The one circumstance in which two servings of a request differ; none: several.
std::optional<Circumstance> apart_by(const ServingFacts& a, const ServingFacts& b) {
  std::vector<Circumstance> by;
  if (a.graph != b.graph) by.push_back(Circumstance::graph);
  if (a.threads != b.threads) by.push_back(Circumstance::threads);
  if (a.place != b.place) by.push_back(Circumstance::place);
  if (a.batch != b.batch) by.push_back(Circumstance::batch);
  if (a.uneven != b.uneven) by.push_back(Circumstance::lengths);
  if (by.empty()) return Circumstance::nothing;
  // A serving that repeats another answers one question alone, whether the very same gives the same
  // bits; in all others it would count a pair twice.
  if (by.size() > 1 || a.repeat > 0 || b.repeat > 0) return {};
  return by.front();
}

bool is_allowed(const Place& place, Circumstance by) {
  return row_of(place.point->op).has_matrix && by != Circumstance::nothing &&
         by != Circumstance::graph;
}

// Numbers of rows that were seen to give the same bits, or others. Being alike is not transitive
// over what was seen: a group holds numbers of rows no two of which were seen apart.
class Alike {
 public:
  void add(const std::map<int64_t, uint64_t>& by_rows) {
    for (const auto& [rows, hash] : by_rows)
      for (const auto& [others, other] : by_rows) {
        seen_.insert(rows);
        if (hash != other) apart_.insert({rows, others});
      }
  }
  std::vector<std::vector<int64_t>> groups() const {
    std::vector<std::vector<int64_t>> groups;
    for (const int64_t rows : seen_) {
      const auto fits = [&](const std::vector<int64_t>& group) {
        return std::ranges::none_of(group, [&](int64_t other) {
          return apart_.contains({rows, other});
        });
      };
      const auto group = std::ranges::find_if(groups, fits);
      if (group == groups.end())
        groups.push_back({rows});
      else
        group->push_back(rows);
    }
    return groups;
  }

 private:
  std::set<int64_t> seen_;
  std::set<std::pair<int64_t, int64_t>> apart_;
};

// The servings of one request, as one op saw them.
class OpComparison {
 public:
  OpComparison(size_t place, const std::vector<ServingFacts>& servings,
               const std::vector<ServedBits>& bits)
      : place_(place), servings_(servings), bits_(bits) {}

  void put_into(OpBits& op) {
    op.least = std::numeric_limits<int32_t>::max();
    op.from = op.least;
    for (size_t a = 0; a < servings_.size(); ++a)
      for (size_t b = a + 1; b < servings_.size(); ++b)
        if (servings_[a].request == servings_[b].request)
          if (const auto by = apart_by(servings_[a], servings_[b])) compare(a, b, *by, op);
    if (by_.contains(Circumstance::nothing)) by_ = {Circumstance::nothing};
    op.depends_on.assign(by_.begin(), by_.end());
    if (!by_.empty())
      op.bits =
          by_ == std::set{Circumstance::batch} ? OpBits::SameFor::of_batch : OpBits::SameFor::vary;
    op.allowed =
        std::ranges::all_of(by_, [&](Circumstance by) { return is_allowed(op.place, by); });
    if (by_.contains(Circumstance::batch)) find_alike(op);
  }

 private:
  void compare(size_t a, size_t b, Circumstance by, OpBits& op) {
    const auto& others = bits_[b][place_];
    for (const auto& [position, row] : bits_[a][place_]) {
      const auto other = others.find(position);
      if (other == others.end()) continue;
      ++op.compared;
      op.least = std::min(op.least, position);
      if (row.hash == other->second.hash) continue;
      ++op.differ;
      op.from = std::min(op.from, position);
      op.ulps = std::max({op.ulps, row.ulps, other->second.ulps});
      if (by_.insert(by).second && op.first.empty())
        op.first = fmt::format("request {}, position {}: {} against {}", servings_[a].request,
                               position, servings_[a].text(), servings_[b].text());
    }
  }

  // Servings of the same threads, graphs and place, which differ in the batch alone.
  void find_alike(OpBits& op) const {
    Alike decode, prefill;
    std::map<std::pair<int32_t, int32_t>, std::pair<bool, std::map<int64_t, uint64_t>>> rows;
    for (size_t i = 0; i < servings_.size(); ++i) {
      const ServingFacts& first = servings_.front();
      const ServingFacts& facts = servings_[i];
      if (facts.threads != first.threads || facts.graph != first.graph || facts.place != 0 ||
          facts.repeat > 0 || facts.uneven)
        continue;
      for (const auto& [position, row] : bits_[i][place_]) {
        auto& [is_decode, by_rows] = rows[{facts.request, position}];
        is_decode = row.decode;
        by_rows.try_emplace(row.rows, row.hash);
      }
    }
    for (const auto& [key, of] : rows) (of.first ? decode : prefill).add(of.second);
    op.decode = decode.groups();
    op.prefill = prefill.groups();
  }

  size_t place_;
  const std::vector<ServingFacts>& servings_;
  const std::vector<ServedBits>& bits_;
  std::set<Circumstance> by_;
};

// A linear op sums over its whole input row, all heads of attn.out together; an expert over the
// last axis alone, as its input may have a row a choice.
int64_t terms_of(const BaselineRows& base, const Place& place, const Row& row) {
  const bool of_row = place.point->op == OpKind::norm;
  if (!of_row && !row_of(place.point->op).has_matrix) return 0;
  const std::vector<Place> inputs = base.graph().inputs_of(place);
  if (inputs.empty()) return 0;
  const TensorView input = base.find(base.graph().index_of(inputs.front()), row);
  if (input.empty()) return 0;
  return of_row || place.point->op == OpKind::expert_linear ? input.shape.last() : input.count();
}

std::string rows_text(const std::vector<std::vector<int64_t>>& groups, const char* passes) {
  if (groups.size() < 2) return "";
  std::vector<std::string> texts;
  for (const std::vector<int64_t>& group : groups)
    texts.push_back(fmt::format("{}", fmt::join(group, ", ")));
  return fmt::format("{} rows of a {} pass", fmt::join(texts, " | "), passes);
}

std::string sum_text(const OpBits& op) {
  if (op.place.point->op == OpKind::norm) return fmt::format("its sum of {} squares", op.terms);
  if (op.terms > 0) return fmt::format("its sum of {} products", op.terms);
  if (op.place.point->op != OpKind::attention) return "";
  // Where a kernel splits its keys is not seen, only from how many on its bits differ.
  if (op.from > op.least)
    return fmt::format("its sum over keys, of {} or more (of fewer the bits were the same)",
                       op.from + 1);
  return "its sum over keys";
}

std::string_view words_of(Circumstance by) {
  switch (by) {
    case Circumstance::nothing:
      return "chance";
    case Circumstance::graph:
      return "graphs";
    case Circumstance::threads:
      return "the number of threads";
    case Circumstance::place:
      return "the place in the batch";
    case Circumstance::lengths:
      return "the lengths of other requests in the batch";
    case Circumstance::batch:
      break;
  }
  return "the batch";
}

// Ops that keep what their headers promise, by how much that is.
std::string kept_text(const std::vector<OpBits>& ops) {
  std::array<int64_t, 3> counts{};
  std::set<Circumstance> by;
  for (const OpBits& op : ops) {
    ++counts[static_cast<size_t>(op.bits)];
    if (op.bits == OpBits::SameFor::vary) by.insert(op.depends_on.begin(), op.depends_on.end());
  }
  std::vector<std::string> parts = {fmt::format("{} always give the same bits", counts[0])};
  if (counts[1] > 0) parts.push_back(fmt::format("{} the same for a batch size", counts[1]));
  if (counts[2] > 0) {
    std::vector<std::string_view> names;
    for (const Circumstance circumstance : by) names.push_back(words_of(circumstance));
    parts.push_back(
        fmt::format("{} give others by {}, which headers leave to products with weights", counts[2],
                    fmt::join(names, " and ")));
  }
  return fmt::format("{} ops keep what their headers promise: {}", ops.size(),
                     fmt::join(parts, ", "));
}

void conclude(Determinism& result) {
  int64_t compared = 0;
  const OpBits* first = nullptr;
  for (const OpBits& op : result.ops) {
    compared += op.compared;
    if (!op.allowed && !first) first = &op;
  }
  if (compared == 0) {
    result.story = "nothing was compared: no op showed a row in two servings";
    return;
  }
  result.verdict = first ? RunVerdict::diverged : RunVerdict::clean;
  result.story = first ? fmt::format("{} depends on {}, which its header rules out",
                                     lockstep::text_of(first->place), text_of(*first))
                       : kept_text(result.ops);
}

}  // namespace

std::string ServingFacts::text() const {
  std::string text =
      batch == 1 ? "alone" : fmt::format("number {} of {} requests", place + 1, batch);
  if (uneven) text += " of other lengths";
  if (threads > 0) text += fmt::format(", {} thread{}", threads, threads == 1 ? "" : "s");
  if (graph) text += ", from graphs";
  if (repeat > 0) text += fmt::format(", once more ({})", repeat);
  return text;
}

BitWatch::BitWatch(const BaselineRows& base, int32_t base_request, int32_t request,
                   ServedBits& bits)
    : base_(base), base_request_(base_request), request_(request), bits_(bits) {
  bits_.resize(base.graph().places().size());
}

double BitWatch::ulps_of_cache(const Place& place, const Row& row, const TensorView& got) const {
  double most = 0;
  const char* half = got.as<const char>();
  for (const Place& input : base_.graph().inputs_of(place)) {
    const int index = base_.graph().index_of(input);
    const TensorView want =
        index < 0 ? TensorView{} : base_.find(index, {base_request_, row.position});
    if (want.empty() || want.dtype != got.dtype || 2 * want.bytes() != got.bytes()) return 0;
    TensorView part = want;
    part.data = const_cast<char*>(half);
    if (std::memcmp(want.data, half, want.bytes()) != 0)
      most = std::max(most, ulps_between(want, part));
    half += want.bytes();
  }
  return most;
}

void BitWatch::record(const Record& record) {
  const Place here{record.point, record.layer};
  const int place = base_.graph().index_of(here);
  if (place < 0) return;
  for (size_t i = 0; i < record.rows.size(); ++i) {
    const Row& row = record.rows[i];
    if (row.request != request_) continue;
    const TensorView got = record.tensor.slice(static_cast<int64_t>(i), 1);
    RowBits bits{.hash = hash_of(got.data, got.bytes()), .rows = std::ssize(pass_.rows)};
    // A position of the cache is of the pass that wrote it, however often it is read.
    if (const auto known = bits_[place].find(row.position);
        here.point->is_cache() && known != bits_[place].end()) {
      known->second.hash = bits.hash;
      known->second.ulps = ulps_of_cache(here, row, got);
      continue;
    }
    const auto fed = std::ranges::find(pass_.rows, row, &PassRow::row);
    bits.decode = fed != pass_.rows.end() && fed->phase == Phase::decode;
    if (here.point->is_cache()) bits.ulps = ulps_of_cache(here, row, got);
    const TensorView want = base_.find(place, {base_request_, row.position});
    if (!want.empty() && want.shape == got.shape && want.dtype == got.dtype) {
      if (std::memcmp(want.data, got.data, want.bytes()) != 0) bits.ulps = ulps_between(want, got);
      // The base's bytes take the place of this serving's, so that the next op has the base's
      // inputs.
      std::memcpy(got.data, want.data, want.bytes());
    }
    bits_[place][row.position] = bits;
  }
}

int exit_status(const Determinism& determinism) {
  return determinism.verdict == RunVerdict::clean      ? 0
         : determinism.verdict == RunVerdict::diverged ? 1
                                                       : 2;
}

namespace {

// Whether K or V of that cache were shown nowhere before they were written, so that what a product
// made of them, which may depend on the batch, shows there first.
bool has_hidden_input(const BaselineRows& base, const Place& cache,
                      const std::vector<ServedBits>& bits) {
  return std::ranges::any_of(base.graph().inputs_of(cache), [&](const Place& input) {
    const int index = base.graph().index_of(input);
    return index < 0 || std::ranges::all_of(bits, [&](const ServedBits& served) {
             return served[static_cast<size_t>(index)].empty();
           });
  });
}

bool is_of_chance_or_graph(Circumstance by) {
  return by == Circumstance::nothing || by == Circumstance::graph;
}

}  // namespace

Determinism determinism_of(const BaselineRows& base, const std::vector<ServingFacts>& servings,
                           const std::vector<ServedBits>& bits) {
  Determinism result;
  const std::vector<Place>& places = base.graph().places();
  for (size_t i = 0; i < places.size(); ++i) {
    OpBits op{.place = places[i]};
    OpComparison(i, servings, bits).put_into(op);
    if (places[i].point->is_cache() && has_hidden_input(base, places[i], bits))
      op.allowed = std::ranges::none_of(op.depends_on, is_of_chance_or_graph);
    if (op.compared == 0) {
      if (!places[i].point->optional)
        result.notes.push_back(fmt::format("{} was not shown: nothing is known of its bits",
                                           lockstep::text_of(places[i])));
      continue;
    }
    op.terms = terms_of(base, places[i], {servings.front().request, op.least});
    result.ops.push_back(std::move(op));
  }
  std::vector<std::string>& texts = result.servings;
  for (const ServingFacts& facts : servings)
    if (const std::string text = facts.text(); std::ranges::count(texts, text) == 0)
      texts.push_back(text);
  conclude(result);
  return result;
}

std::string text_of(const OpBits& op) {
  std::vector<std::string> parts;
  std::string on;
  for (const Circumstance by : op.depends_on) {
    on += fmt::format("{}{}", on.empty() ? "" : ", ", words_of(by));
  }
  if (on.empty()) return "";
  for (const std::string& rows : {rows_text(op.decode, "decode"), rows_text(op.prefill, "prefill")})
    if (!rows.empty()) parts.push_back(rows);
  if (!parts.empty()) on += fmt::format(" ({})", fmt::join(parts, "; "));
  if (const std::string sum = sum_text(op); !sum.empty()) on += fmt::format(": {}", sum);
  return on;
}

}  // namespace lockstep
