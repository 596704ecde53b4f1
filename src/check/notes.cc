// The notes of a check: differences from the baseline that are no bugs.
//
// Each of these happens to right engines: another CPU or library moves bits, a near tie flips a
// token, a draw leaves the baseline's text, an op class comes nearer to its limits than it did.
// They are told so that a reviewer can ask why, and never fail a check. A drift is a note from
// `max_drift` times on, for the largest of a few thousand errors moves by that much from run to
// run.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "src/check/compare.h"
#include "src/judge/ledger.h"

namespace lockstep {
namespace {

// Facts that change with every commit; the heading of a report has them.
constexpr auto kEveryCommit = std::to_array<std::string_view>({"git_sha", "git_dirty"});

std::string name_of(const RequestResult& request) {
  return fmt::format("request {}{}", request.id,
                     request.name.empty() ? "" : fmt::format(" ({})", request.name));
}

// ", at 40 of 112 places, the first is layer 0 attn.q"; empty: at none.
std::string changed_places(const Compared& c) {
  int64_t places = 0, changed = 0;
  std::string first;
  std::map<int, size_t> layers;  // seen so far, by order of the point
  for (const PlaceSummary& summary : c.run.places) {
    const Place& place = summary.place;
    if (place.point->is_cache()) continue;
    const size_t layer = layers[place.point->order()]++;
    const auto then = std::ranges::find_if(c.baseline.points, [&](const Baseline::PointRow& row) {
      return *row.point == *place.point;
    });
    if (then == c.baseline.points.end() || layer >= then->bits.size()) continue;
    ++places;
    if (then->bits[layer] == static_cast<uint32_t>(c.bits.of(place))) continue;
    if (changed++ == 0) first = text_of(place);
  }
  if (changed == 0) return "";
  return fmt::format(", at {} of {} places, the first is {}", changed, places, first);
}

// One note on bits for all: how many positions of the texts changed, and the first place that did.
// Places are not compared once a text was left, as their sums are over all rows.
void add_bits(const Compared& c, std::vector<CheckResult::Item>& notes) {
  int64_t rows = 0, changed_rows = 0;
  for (size_t i = 0; i < c.texts.size(); ++i) {
    const Baseline::Text& then = c.baseline.texts[i];
    const int64_t same = then.prompt + c.texts.same(i);
    const int64_t end = c.texts.left(i) ? same : std::ssize(then.bits);
    for (int32_t p = 0; p < end; ++p) {
      const Row row{c.run.requests[i].id, p};
      ++rows;
      changed_rows += static_cast<uint16_t>(c.bits.of(row)) != then.bits[p] ? 1 : 0;
    }
  }
  std::string at;
  if (!c.texts.any_left()) at = changed_places(c);
  if (changed_rows == 0 && at.empty()) return;
  notes.push_back({CheckResult::Kind::bits,
                   {},
                   fmt::format("bits changed in {} of {} positions{}", changed_rows, rows, at)});
}

// By how much the engine prefers its own choice of that row to another token.
std::string margin_of(const Compared& c, const Row& row, int32_t other) {
  const TopLogits* top = c.bits.choice_of(row);
  if (top == nullptr || top->values.empty()) return "margin not known";
  const auto found = std::ranges::find(top->ids, other);
  const bool near = found != top->ids.end();
  const double value = near ? top->values[found - top->ids.begin()] : top->values.back();
  return fmt::format("margin {}{:.2g} ulp", near ? "" : "over ",
                     (top->values.front() - value) / ulp(top->values.front(), c.baseline.dtype));
}

// Notes of one text: that it was left, and each position where another token is the most likely
// now.
void add_tokens(const Compared& c, size_t i, std::vector<CheckResult::Item>& notes) {
  const RequestResult& now = c.run.requests[i];
  const Baseline::Text& then = c.baseline.texts[i];
  if (c.texts.left(i)) {
    notes.push_back({CheckResult::Kind::drawn,
                     {},
                     fmt::format("{} drew another token at position {}: its text is not compared "
                                 "from there",
                                 name_of(now), then.prompt + c.texts.same(i))});
  }
  const std::vector<int32_t>& argmax = then.argmax.empty() ? then.tokens : then.argmax;
  const size_t end = c.texts.left(i) ? c.texts.same(i) : argmax.size();
  for (size_t k = 0; k < std::min(end, now.argmax.size()); ++k) {
    if (now.argmax[k] == argmax[k]) continue;
    const auto position = static_cast<int32_t>(then.prompt + k - 1);
    notes.push_back({CheckResult::Kind::flip, OpKind::argmax,
                     fmt::format("{}, position {}: token {} is the most likely, {} in the "
                                 "baseline ({})",
                                 name_of(now), position, now.argmax[k], argmax[k],
                                 margin_of(c, {now.id, position}, argmax[k]))});
  }
}

// A note for each statistic of a class that came nearer to its limit by more than `max_drift`.
void add_drift(const Compared& c, const CheckResult::ClassDrift& drift, double max_drift,
               std::vector<CheckResult::Item>& notes) {
  if (drift.findings > 0) return;  // which say more
  const OpLimits room = limits_above(drift.baseline, c.baseline.dtype, max_drift), theory;
  const auto look = [&](const char* statistic, double Reached::*value, double OpLimits::*limit) {
    const double now = drift.reached.*value, then = drift.baseline.*value;
    if (within(now, room.*limit)) return;
    std::string says = fmt::format("{} comes to {} {:.3g}, {:.3g} in the baseline",
                                   name_of(drift.op), statistic, now, then);
    if (then > 0) says += fmt::format(": {:.2g} times", now / then);
    if (drift.limits.*limit < theory.*limit)
      says += fmt::format("; its calibrated limit is {:.3g}", drift.limits.*limit);
    notes.push_back({CheckResult::Kind::drift, drift.op, std::move(says)});
  };
  // Accumulation moves most elements of fp32, and the store hides most that happens in 16 bits.
  if (c.baseline.dtype == DType::f32)
    look("T1", &Reached::inner, &OpLimits::inner);
  else
    look("T3", &Reached::share, &OpLimits::share);
  look("T2", &Reached::rms, &OpLimits::rms);
  look("T5", &Reached::gain, &OpLimits::gain);
}

// Facts of the build and the machine that are others now.
void add_provenance(const Compared& c, std::vector<CheckResult::Item>& notes) {
  const std::map<std::string, std::string>& now = c.run.provenance;
  for (const auto& [name, then] : c.baseline.provenance) {
    const auto found = now.find(name);
    const std::string value = found == now.end() ? "" : found->second;
    if (value == then || std::ranges::count(kEveryCommit, name) > 0) continue;
    notes.push_back({CheckResult::Kind::provenance,
                     {},
                     fmt::format("{} is \"{}\", \"{}\" in the baseline", name, value, then)});
  }
}

}  // namespace

std::vector<CheckResult::Item> notes_of(const Compared& compared,
                                        const std::vector<CheckResult::ClassDrift>& classes,
                                        double max_drift) {
  std::vector<CheckResult::Item> notes;
  add_bits(compared, notes);
  for (size_t i = 0; i < compared.texts.size(); ++i) add_tokens(compared, i, notes);
  for (const CheckResult::ClassDrift& drift : classes) add_drift(compared, drift, max_drift, notes);
  add_provenance(compared, notes);
  return notes;
}

}  // namespace lockstep
