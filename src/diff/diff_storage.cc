// Numbers are compared in diff.cc; this reads both traces once more without them, row by row as
// each was computed first, and table by table as each request had it last.
//
//     declared dtype      a contradiction where all rows have the same bits; else other roundings,
//                         which diff_noise.h has room
//     tokens found        different where the two have another token at one position
//     how many found      a remark: one of the runs had a prefix cache, or other requests before
//     slots, page tables  a remark: another pool, or another order of its pages
//     declared rounding   a remark: each is right or wrong under its own, which a judgement tells
#include "src/diff/diff_storage.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <vector>

namespace lockstep {
namespace {

// Where one trace says that K and V lie, and what tokens it says that its requests were given.
struct Storage {
  std::map<std::pair<int32_t, int32_t>, PassRow> rows;  // by request, position: the first time
  std::map<int32_t, std::vector<int32_t>> pages;        // by request: the last table
  std::map<int32_t, std::vector<int32_t>> inherited;    // by request: tokens
  bool inherited_known = true;

  explicit Storage(TraceReader& trace) {
    for (int i = 0; i < trace.passes(); ++i) {
      const PassInfo pass = trace.read(i, /*data=*/false).info;
      for (const PassRow& r : pass.rows) rows.try_emplace({r.row.request, r.row.position}, r);
      for (const RequestPages& table : pass.pages) pages[table.request] = table.pages;
      for (const Inherited& one : pass.inherited) inherited.try_emplace(one.request, one.tokens);
      inherited_known = inherited_known && pass.inherited_known;
    }
  }

  // The token of a position, computed or found; nothing: it is in neither.
  std::optional<int32_t> token(int32_t request, int32_t position) const {
    if (const auto row = rows.find({request, position}); row != rows.end())
      return row->second.token;
    const auto found = inherited.find(request);
    if (found == inherited.end() || position >= std::ssize(found->second)) return {};
    return found->second[position];
  }
};

// Where K and V of rows and requests that both have lie otherwise; "": nowhere, as far as both say.
std::string elsewhere(const Storage& a, const Storage& b, const Selection& selection) {
  int64_t slots = 0, other_slots = 0, tables = 0, other_tables = 0;
  for (const auto& [at, x] : a.rows) {
    const auto y = b.rows.find(at);
    if (y == b.rows.end() || !selection.has(x.row) || x.slot < 0 || y->second.slot < 0) continue;
    ++slots;
    other_slots += x.slot != y->second.slot ? 1 : 0;
  }
  for (const auto& [request, x] : a.pages) {
    const auto y = b.pages.find(request);
    if (y == b.pages.end() || !selection.has_request(request)) continue;
    ++tables;
    const size_t both = std::min(x.size(), y->second.size());
    other_tables += std::equal(x.begin(), x.begin() + both, y->second.begin()) ? 0 : 1;
  }
  std::vector<std::string> parts;
  if (other_slots > 0)
    parts.push_back(fmt::format("the slots of {} of {} rows", other_slots, slots));
  if (other_tables > 0)
    parts.push_back(fmt::format("the page tables of {} of {} requests", other_tables, tables));
  return fmt::format("{}", fmt::join(parts, " and "));
}

// Points that both declare a contract for, and not the same.
std::string other_contracts(const Manifest& a, const Manifest& b) {
  std::vector<std::string> others;
  for (const auto& [point, contract] : a.contracts) {
    const auto found = b.contracts.find(point);
    if (found != b.contracts.end() && found->second != contract)
      others.push_back(
          fmt::format("{} ({} / {})", point, name_of(contract), name_of(found->second)));
  }
  return fmt::format("{}", fmt::join(others, ", "));
}

// The first token that one of the two found in its cache and the other one has otherwise; else of
// how many positions one found what the other one did not.
void compare_found(const Storage& a, const Storage& b, const Selection& selection,
                   DiffResult& result) {
  int64_t others = 0;
  for (const auto& [one, two] : {std::pair(&a, &b), std::pair(&b, &a)})
    for (const auto& [request, tokens] : one->inherited) {
      if (!selection.has_request(request)) continue;
      const auto found = two->inherited.find(request);
      const auto theirs = found == two->inherited.end() ? 0 : std::ssize(found->second);
      others += std::max<int64_t>(0, std::ssize(tokens) - theirs);
      for (int32_t p = 0; p < std::ssize(tokens); ++p) {
        const std::optional<int32_t> token = two->token(request, p);
        if (!token || *token == tokens[p]) continue;
        const bool first = one == &a;
        result.structure.push_back(fmt::format(
            "request {} has token {} and {} at position {}, which {} found in its cache", request,
            first ? tokens[p] : *token, first ? *token : tokens[p], p,
            first ? "the first trace" : "the second trace"));
        return;
      }
    }
  if (others > 0 && a.inherited_known && b.inherited_known)
    result.remarks.push_back(fmt::format(
        "{} positions were found in the cache in one trace, and not in the other", others));
}

}  // namespace

void compare_storage(TraceReader& a, TraceReader& b, const Selection& selection,
                     DiffResult& result) {
  const Storage of_a(a), of_b(b);
  const Manifest &x = a.manifest(), &y = b.manifest();
  const size_t known = result.structure.size();
  compare_found(of_a, of_b, selection, result);
  std::vector<std::string> besides;
  if (const std::string where = elsewhere(of_a, of_b, selection); !where.empty())
    besides.push_back(where + " differ, which no number depends on");
  if (const std::string declared = other_contracts(x, y); !declared.empty())
    besides.push_back("the declared rounding differs at " + declared);
  const bool same_bits = result.rows > 0 && result.rows == result.equal;
  // Two dtypes make the same bits of next to nothing: one of the two is not what was computed in.
  if (x.dtype != y.dtype && same_bits)
    result.structure.push_back(fmt::format(
        "{} and {} are declared, but all rows have the same bits: one of the traces contradicts "
        "itself",
        name_of(x.dtype), name_of(y.dtype)));
  std::ranges::copy(besides, std::back_inserter(result.remarks));
  if (result.verdict != DiffResult::Verdict::identical) return;
  if (result.structure.size() > known) {
    result.verdict = DiffResult::Verdict::different;
    result.story = result.structure[known];
  } else if (!besides.empty()) {
    result.story += fmt::format("; {}", fmt::join(besides, "; "));
  }
}

}  // namespace lockstep
