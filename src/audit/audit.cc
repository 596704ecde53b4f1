// The auditor remembers by hash what was written for which tokens (KvHistory), and for each slot
// who was told last to write there. Before a pass is computed its page tables, slots and counts of
// holders are held against each other; what attention reads is looked up when it is shown.
#include "src/audit/audit.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>

#include "kernels/base/check.h"
#include "probes/digest.h"
#include "src/judge/ledger.h"
#include "src/judge/story.h"

namespace lockstep {

namespace {

// The first element of the row that is not finite; 0: all are.
double no_number_in(const TensorView& tensor, int64_t row) {
  const int64_t first = row * tensor.row_size();
  for (int64_t i = first; i < first + tensor.row_size(); ++i)
    if (const double x = value_at(tensor, i); !std::isfinite(x)) return x;
  return 0;
}

}  // namespace

Auditor::Auditor(int64_t page_size) : page_size_(page_size) {
  check(page_size >= 1, "pages of at least 1 position were wanted, found {}", page_size);
}

// K is hashed as it is written, once RoPE has turned it.
bool Auditor::wants(const Point& p, int) const {
  return p.is_cache() || p == point("attn.k_rope") || p == point("attn.v");
}

void Auditor::begin(const PassInfo& pass) {
  pass_ = pass;
  layer_ = -1;
  history_.begin(pass);
  check_slots();
  check_tables();
  check_counts();
  // Only after the checks, which are about what was there before the pass.
  for (const PassRow& r : pass.rows) slots_[r.slot] = {r.row, pass.pass};
}

void Auditor::record(const Record& record) {
  if (*record.point == point("attn.v")) {
    // V is shown before K has been turned, so that it waits for the keys of its rows.
    v_ = Tensor(record.tensor.shape, record.tensor.dtype);
    std::memcpy(v_.as<char>(), record.tensor.data, record.tensor.bytes());
  } else if (*record.point == point("attn.k_rope")) {
    check(record.tensor.shape == v_.view().shape,
          "attn.v and attn.k_rope of one shape were wanted, found {} and {}",
          v_.view().shape.text(), record.tensor.shape.text());
    history_.write(record.layer, record.rows, record.tensor, v_);
    rows_written_ += std::ssize(record.rows);
  } else {
    check_read(record);
  }
}

void Auditor::find(const Row& row, int layer, Verdict verdict, std::string rule) {
  Finding finding{
      .node = {.place = {&point("attn.kv"), layer}, .pass = pass_.pass, .request = row.request},
      .position = row.position,
      .verdict = verdict,
      .budgets = std::numeric_limits<double>::infinity(),
      .rule = std::move(rule)};
  findings_.push_back(std::move(finding));
}

int64_t Auditor::slot_of(const Row& row) const {
  const auto table = std::ranges::find(pass_.pages, row.request, &RequestPages::request);
  const int64_t index = row.position / page_size_;
  if (table == pass_.pages.end() || index >= std::ssize(table->pages)) return -1;
  return table->pages[index] * page_size_ + row.position % page_size_;
}

int64_t Auditor::length_of(int32_t request) const {
  int64_t length = 0;
  for (const PassRow& r : pass_.rows)
    if (r.row.request == request) length = std::max<int64_t>(length, r.row.position + 1);
  return length;
}

int64_t Auditor::hidden(int32_t request) const {
  const auto known = hidden_.find(request);
  return known == hidden_.end() ? 0 : known->second;
}

std::string Auditor::place_of(int64_t slot) const {
  return slot < 0 ? "no page"
                  : fmt::format("page {} slot {}", slot / page_size_, slot % page_size_);
}

void Auditor::check_slots() {
  std::unordered_map<int64_t, Row> taken;
  for (const PassRow& r : pass_.rows) {
    const auto [other, first] = taken.try_emplace(r.slot, r.row);
    if (!first)
      find(r.row, -1, Verdict::structural,
           fmt::format("request {} position {} is written to {}, where the same pass writes "
                       "request {} position {}",
                       r.row.request, r.row.position, place_of(r.slot), other->second.request,
                       other->second.position));
    if (const int64_t wanted = slot_of(r.row); wanted != r.slot)
      find(r.row, -1, Verdict::structural,
           fmt::format("request {} position {} is written to {}, but its page table says {}",
                       r.row.request, r.row.position, place_of(r.slot), place_of(wanted)));
  }
}

// Requests that rest keep their pages too: nobody may write there.
void Auditor::check_tables() {
  for (size_t a = 0; a < pass_.pages.size(); ++a)
    for (size_t b = 0; b < pass_.pages.size(); ++b)
      if (a != b) check_pair(pass_.pages[a], pass_.pages[b]);
  for (const RequestPages& a : pass_.pages)
    for (const RequestPages& b : pass_.idle) check_pair(a, b);
}

// A count that is too low gives a page away while somebody reads it, one that is too high loses it.
void Auditor::check_counts() {
  if (pass_.page_counts.empty()) return;
  std::map<int32_t, std::vector<int32_t>> holders;  // by page: the requests that have it
  for (const auto* tables : {&pass_.pages, &pass_.idle})
    for (const RequestPages& table : *tables)
      for (int32_t page : table.pages) holders[page].push_back(table.request);
  std::map<int32_t, int32_t> counts;
  for (const PassInfo::PageCount& count : pass_.page_counts) counts[count.page] = count.holders;
  for (const auto& [page, requests] : holders) counts.try_emplace(page, 0);
  for (const auto& [page, count] : counts) {
    const std::vector<int32_t>& held_by = holders[page];
    if (count == std::ssize(held_by)) continue;
    find(
        {held_by.empty() ? -1 : held_by[0], 0}, -1, Verdict::structural,
        held_by.empty()
            ? fmt::format("page {} is in no request's table, but the engine counts {}", page, count)
            : fmt::format("page {} is held by {} (requests {}), but the engine counts {}", page,
                          held_by.size(), fmt::join(held_by, ", "), count));
    return;  // the others follow from the same mistake
  }
}

// Looks for pages of `b` that rows of `a` are written to, and for pages that both hold. It is
// called for each pair in each order.
void Auditor::check_pair(const RequestPages& a, const RequestPages& b) {
  std::unordered_map<int32_t, int64_t> places;  // of the pages of b
  for (int64_t i = hidden(b.request); i < std::ssize(b.pages); ++i) places[b.pages[i]] = i;
  for (const PassRow& r : pass_.rows) {
    if (r.row.request != a.request || r.slot < 0) continue;
    const auto page = static_cast<int32_t>(r.slot / page_size_);
    if (!places.contains(page)) continue;
    find(r.row, -1, Verdict::structural,
         fmt::format("request {} position {} is written to {} while request {} holds that page "
                     "as its {} of {}",
                     r.row.request, r.row.position, place_of(r.slot), b.request,
                     places.at(page) + 1, b.pages.size()));
    break;
  }
  if (a.request > b.request) return;  // holding is the same in both orders
  const int64_t both = std::min(length_of(a.request), length_of(b.request));
  for (int64_t index = hidden(a.request); index < std::ssize(a.pages); ++index) {
    const auto other = places.find(a.pages[index]);
    if (other == places.end()) continue;
    const int64_t last = std::min(both, (index + 1) * page_size_) - 1;
    const auto position = static_cast<int32_t>(last);
    // The last position that both have in the page stands for all tokens up to it.
    const bool alike = other->second == index &&
                       (last < index * page_size_ || history_.prefix({a.request, position}) ==
                                                         history_.prefix({b.request, position}));
    if (alike) continue;
    find({a.request, static_cast<int32_t>(index * page_size_)}, -1, Verdict::structural,
         fmt::format("requests {} and {} both hold page {} (their {} and {}), for different tokens",
                     a.request, b.request, a.pages[index], index + 1, other->second + 1));
    return;
  }
}

// Says whose row was read instead.
std::string Auditor::what_is_read(int layer, const Row& row, uint64_t hash) const {
  const std::string reads =
      fmt::format("layer {}, request {}, position {} reads ", layer, row.request, row.position);
  const int64_t slot = slot_of(row);
  const auto told = slots_.find(slot);
  const KvHistory::Writer* writer = history_.writer_of(hash);
  if (!writer && told == slots_.end())
    return fmt::format("{}{}, a slot that nobody wrote", reads, place_of(slot));
  if (!writer)
    return fmt::format(
        "{}{}, which holds what nobody wrote; request {} position {} was to write "
        "it in pass {}",
        reads, place_of(slot), told->second.row.request, told->second.row.position,
        told->second.pass);
  // Whether the row that was written there last is the one whose bits are read.
  const bool here = told != slots_.end() && told->second.row == writer->row;
  std::string text = fmt::format("{}{}, written by request {} position {} in pass {}", reads,
                                 place_of(here ? slot : writer->slot), writer->row.request,
                                 writer->row.position, writer->pass);
  if (writer->layer != layer) text += fmt::format(" in layer {}", writer->layer);
  if (!here && writer->slot != slot)
    text += fmt::format("; its page table says {}", place_of(slot));
  return text;
}

void Auditor::check_read(const Record& record) {
  const std::vector<uint64_t> hashes = row_hashes_of(record.tensor);
  rows_read_ += std::ssize(hashes);
  // A row of which nobody wrote K and V is unknown: there is nothing to hold it to.
  const WrongRows found = history_.compare(record.layer, record.rows, hashes);
  if (found.wrong.empty() && found.unknown == 0) return;
  const size_t i = found.wrong.empty() ? found.first_unknown : found.wrong[0];
  const Row& row = record.rows[i];
  std::string rule =
      !found.wrong.empty()
          ? what_is_read(record.layer, row, hashes[i])
          : fmt::format(
                "layer {}, request {}, position {} reads {}, but nobody wrote K and V for "
                "its tokens",
                record.layer, row.request, row.position, place_of(slot_of(row)));
  const int64_t wrong = std::ssize(found.wrong) + found.unknown;
  rule += fmt::format(" ({} of {} positions are wrong)", wrong, record.rows.size());
  find(row, record.layer, Verdict::introduced, std::move(rule));
  findings_.back().statistic = StatisticKind::bits;
  findings_.back().value = static_cast<double>(wrong);
  findings_.back().index = {row.position};
  findings_.back().got = no_number_in(record.tensor, static_cast<int64_t>(i));
  leave_open(record, hashes, found.wrong);
}

// One row for another is a wrong read as long as the other is right in its own place. Where that
// holds the first one instead, either both were written to the wrong slots or both are read from
// them.
void Auditor::leave_open(const Record& record, const std::vector<uint64_t>& hashes,
                         const std::vector<int64_t>& wrong) {
  if (layer_ != record.layer) misplaced_.clear(), holds_.clear();
  layer_ = record.layer;
  for (const int64_t i : wrong) {
    const Row& row = record.rows[i];
    const KvHistory::Writer* writer = history_.writer_of(hashes[i]);
    const int64_t slot = slot_of(row);
    if (writer == nullptr || writer->layer != layer_ || slot < 0 || slot == writer->slot) continue;
    holds_[slot] = writer->slot;
    if (i == wrong[0])
      misplaced_.push_back({findings_.size() - 1, writer->row, slot, writer->slot});
  }
  for (const Misplaced& m : misplaced_) {
    const auto back = holds_.find(m.other);
    if (back == holds_.end() || back->second != m.slot) continue;
    Finding& finding = findings_[m.finding];
    finding.rule = fmt::format(
        "layer {}, request {}, position {} and request {}, position {} hold each other's K and V: "
        "written to each other's slots, or read from them ({} and {})",
        layer_, finding.node.request, finding.position, m.row.request, m.row.position,
        place_of(m.slot), place_of(m.other));
  }
}

namespace {

// Whether a node of the same pass is computed after that one, which is of a layer's cache.
bool comes_of(const NodeId& node, const NodeId& cache) {
  const Place &own = node.place, &of_cache = cache.place;
  if (of_cache.layer < 0 || node.pass != cache.pass) return false;
  if (own.layer >= 0 && own.layer != of_cache.layer) return own.layer > of_cache.layer;
  return own.point->order() > of_cache.point->order();
}

// No longer is what came of `place` led back to it, but to the cache that it had it from.
void lead_back(Result& result, const Place& place, const std::string& cache) {
  const std::string before = text_of(place);
  for (PlaceSummary& summary : result.places)
    if (summary.place == place)
      summary.verdict = Verdict::propagated, summary.ancestor = cache;
    else if (summary.ancestor == before)
      summary.ancestor = cache;
  for (RequestResult& request : result.requests)
    for (Flip& flip : request.flips)
      if (flip.ancestor == before) flip.ancestor = cache;
}

// Drops the findings after `cache` that hand on what they have from it, as the judge cannot know
// that looks into no cache that is not selected. Returns whether there were any.
bool drop_passed_on(Result& result, const Finding& cache) {
  if (std::isfinite(cache.got)) return false;
  std::vector<Place> places;
  std::erase_if(result.findings, [&](const Finding& f) {
    const bool dropped = passes_on(f) && f.node.request == cache.node.request &&
                         (f.node.pass > cache.node.pass || comes_of(f.node, cache.node));
    if (dropped) places.push_back(f.node.place);
    return dropped;
  });
  result.counts[Verdict::nonfinite] -= std::ssize(places);
  result.counts[Verdict::propagated] += std::ssize(places);
  for (const Place& place : places)
    if (std::ranges::none_of(result.findings,
                             [&](const Finding& f) { return f.node.place == place; }))
      lead_back(result, place, text_of(cache.node.place));
  return !places.empty();
}

}  // namespace

void add_audit(Result& result, const std::vector<Finding>& findings) {
  if (findings.empty()) return;
  bool dropped = false;
  for (const Finding& finding : findings) {
    dropped = drop_passed_on(result, finding) || dropped;
    const auto same = [&finding](const Finding& f) { return f.node == finding.node; };
    if (const auto known = std::ranges::find_if(result.findings, same);
        known != result.findings.end()) {
      // The judge says what was read and whose it is, the auditor where it lies.
      known->rule += (known->rule.empty() ? "" : "; ") + finding.rule;
      if (result.first && same(*result.first)) result.first->rule = known->rule;
      continue;
    }
    const auto after = [&finding](const Finding& f) { return comes_of(f.node, finding.node); };
    result.findings.insert(std::ranges::find_if(result.findings, after), finding);
  }
  // The judge's first finding stays first, as it comes with numbers, but where it is what came of a
  // cache that was not judged.
  const bool is_first = result.first && !(result.first->node == result.findings.front().node);
  if (is_first) result.first = result.findings.front();
  if (!result.first) result.first = findings.front();
  if (result.verdict != RunVerdict::diverged)
    result.story = "The K/V cache is wrong: " + findings.front().rule;
  else if (is_first || dropped)
    result.story = fmt::format("{}: {}", where_it_begins(*result.first), text_of(*result.first));
  result.verdict = RunVerdict::diverged;
}

void add_audit(Result& result, const Auditor& auditor) {
  result.cache =
      fmt::format("{} rows of K and V written, {} read back, {} findings", auditor.rows_written(),
                  auditor.rows_read(), auditor.findings().size());
  add_audit(result, auditor.findings());
}

}  // namespace lockstep
