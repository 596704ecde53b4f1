// Page tables checked without any tensor, pass by pass, each against the one before of the same
// request.
#include "src/audit/table_audit.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "traces/run_facts.h"

namespace lockstep {

TableAudit::TableAudit(const Manifest& manifest, int64_t window) : window_(window) {
  const RunFacts facts = run_facts_of(manifest);
  page_size_ = facts.page_size;
  pages_ = facts.pages;
  if (page_size_ > 0) auditor_.emplace(page_size_);
}

void TableAudit::find(const PassInfo& pass, int32_t request, int64_t position, std::string rule) {
  findings_.push_back(
      {.node = {.place = {&point("attn.kv"), -1}, .pass = pass.pass, .request = request},
       .position = static_cast<int32_t>(position),
       .verdict = Verdict::structural,
       .budgets = std::numeric_limits<double>::infinity(),
       .rule = std::move(rule)});
}

// The first position that the request computes in the pass, or would compute next.
int64_t TableAudit::first_row(const PassInfo& pass, int32_t request) const {
  int64_t first = std::numeric_limits<int64_t>::max();
  for (const PassRow& r : pass.rows)
    if (r.row.request == request) first = std::min<int64_t>(first, r.row.position);
  if (first < std::numeric_limits<int64_t>::max()) return first;
  const auto known = tables_.find(request);
  return known == tables_.end() ? 0 : known->second.length;
}

// Entries of a request's table, from its first on, all of whose positions lie before the window of
// its first query in the pass, and so of every later one.
int64_t TableAudit::entries_out_of_sight(const PassInfo& pass, int32_t request) const {
  if (window_ == 0) return 0;
  return std::max<int64_t>(first_row(pass, request) + 1 - window_, 0) / page_size_;
}

// Positions of `first` on are written in this pass, wherever that is.
void TableAudit::check_moves(const PassInfo& pass, const RequestPages& table, int64_t first) {
  const auto known = tables_.find(table.request);
  // Between passes that it has no part in, a request may lose its pages and get others.
  if (known == tables_.end() || known->second.seen + 1 != passes_) return;
  const auto& [before, hidden, length, seen] = known->second;
  const auto in_sight = before.begin() + std::min(hidden, std::ssize(before));
  const int64_t kept = std::min(first, length);
  for (int64_t i = auditor_->hidden(table.request);
       i * page_size_ < kept && i < std::ssize(table.pages); ++i) {
    const int32_t page = table.pages[i];
    const int64_t held = std::find(in_sight, before.end(), page) - before.begin();
    // A page that held nothing yet may be any.
    if (held == i || held * page_size_ >= length) continue;
    find(
        pass, table.request, i * page_size_,
        fmt::format("request {} reads positions {} on from page {}, which held its positions {} on "
                    "in the pass before",
                    table.request, i * page_size_, page, held * page_size_));
    return;
  }
}

void TableAudit::check_table(const PassInfo& pass, const RequestPages& table) {
  int64_t first = std::numeric_limits<int64_t>::max(), length = 0;
  for (const PassRow& r : pass.rows) {
    if (r.row.request != table.request) continue;
    first = std::min<int64_t>(first, r.row.position);
    length = std::max<int64_t>(length, r.row.position + 1);
  }
  if (length == 0) return;  // of a request that the pass does not compute
  if (std::ranges::count(pass.pages, table.request, &RequestPages::request) > 1)
    find(pass, table.request, first,
         fmt::format("request {} has several page tables", table.request));
  std::map<int32_t, int64_t> places;
  for (int64_t i = auditor_->hidden(table.request);
       i * page_size_ < length && i < std::ssize(table.pages); ++i) {
    const int32_t page = table.pages[i];
    const auto [other, fresh] = places.try_emplace(page, i);
    std::string rule;
    if (page < 0 || (pages_ > 0 && page >= pages_))
      rule = fmt::format("the page table of request {} names page {}", table.request, page) +
             (pages_ > 0 ? fmt::format(" of a pool of {}", pages_) : "");
    else if (!fresh)
      rule = fmt::format("request {} holds page {} twice, as its {} and {}", table.request, page,
                         other->second + 1, i + 1);
    if (rule.empty()) continue;
    find(pass, table.request, i * page_size_, rule);
    break;
  }
  check_moves(pass, table, first);
  tables_[table.request] = {table.pages, auditor_->hidden(table.request), length, passes_};
}

void TableAudit::add(const PassInfo& pass) {
  if (!auditor_) return;
  any_table_ = any_table_ || !pass.pages.empty();
  any_slot_ =
      any_slot_ || std::ranges::any_of(pass.rows, [](const PassRow& r) { return r.slot >= 0; });
  for (const RequestPages& table : pass.pages)
    auditor_->hide(table.request, entries_out_of_sight(pass, table.request));
  auditor_->begin(pass);
  for (const RequestPages& table : pass.pages) check_table(pass, table);
  ++passes_;
}

// A trace that declares pages and shows none cannot be called clean.
void TableAudit::put_into(Result& result) const {
  if (!auditor_ || passes_ == 0) return;
  if (!any_table_ || !any_slot_) {
    const std::string why = fmt::format(
        "where K and V lie was not judged: the trace declares pages of {} positions, but no pass "
        "shows {}",
        page_size_, any_table_ ? "a slot" : "a page table");
    result.notes.push_back(why);
    if (result.verdict != RunVerdict::clean) return;
    result.verdict = RunVerdict::inconclusive;
    result.story += "; but " + why;
    return;
  }
  // A wrong table explains wrong slots, and comes first.
  std::vector<Finding> findings = findings_;
  const std::vector<Finding>& of_slots = auditor_->findings();
  findings.insert(findings.end(), of_slots.begin(), of_slots.end());
  std::ranges::stable_sort(findings, {}, [](const Finding& f) { return f.node.pass; });
  result.cache =
      fmt::format("page tables and slots of {} passes, {} findings", passes_, findings.size());
  add_audit(result, findings);
}

}  // namespace lockstep
