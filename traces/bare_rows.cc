// The rows of passes as another program wrote them: columns of tokens and positions, and, where
// there is more than one request or pass, columns of these. Which rows a tensor holds follows from
// its number of rows: all of the pass, or the last one of each request.
#include "traces/bare_rows.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <set>

#include "kernels/base/check.h"
#include "traces/trace.h"

namespace lockstep {
namespace {

constexpr int64_t kMostIds = std::numeric_limits<int32_t>::max();

// A column of /passes. Nothing where it may be left out and is. Values are held to `most` here, so
// that what follows may cast them.
std::vector<int64_t> column_of(const Hdf5File& file, const std::string& name, int64_t most) {
  const std::string path = "/passes/" + name;
  const std::vector<int64_t> values = file.integers(path);
  for (const int64_t value : values)
    check(value >= 0 && value <= most, "{}: {} has {}, wanted 0 to {}", file.path(), path, value,
          most);
  return values;
}

std::vector<int64_t> optional_column(const Hdf5File& file, const std::string& name, size_t rows) {
  if (!file.has("/passes/" + name)) return std::vector<int64_t>(rows);
  return column_of(file, name, kMostIds);
}

// The last row of each request in the pass, which gets logits.
std::vector<int32_t> last_rows(const PassInfo& info) {
  std::vector<int32_t> last;
  for (size_t i = 0; i < info.rows.size(); ++i)
    if (i + 1 == info.rows.size() || info.rows[i + 1].row.request != info.rows[i].row.request)
      last.push_back(static_cast<int32_t>(i));
  return last;
}

}  // namespace

void check_rows(const PassInfo& info, const std::string& where) {
  for (const PassRow& row : info.rows)
    check(row.row.request >= 0 && row.row.position >= 0 && row.row.position < kMostPositions,
          "{}: pass {} has request {} position {}, wanted requests from 0 and positions of 0 to {}",
          where, info.pass, row.row.request, row.row.position, kMostPositions - 1);
  std::set<int32_t> ended;
  for (size_t i = 1; i < info.rows.size(); ++i) {
    const Row &before = info.rows[i - 1].row, &row = info.rows[i].row;
    if (row.request != before.request) ended.insert(before.request);
    check(!ended.contains(row.request) &&
              (row.request != before.request || row.position == before.position + 1),
          "{}: in pass {}, the rows of a request were wanted one after another by position, found "
          "request {} position {} after request {} position {}",
          where, info.pass, row.request, row.position, before.request, before.position);
  }
}

// A decode row is alone in its pass, and not the first of its request.
void put_phases(PassInfo& info) {
  std::map<int32_t, int> count;
  for (const PassRow& row : info.rows) ++count[row.row.request];
  for (PassRow& row : info.rows)
    if (count[row.row.request] == 1 && row.row.position > 0) row.phase = Phase::decode;
}

// Tensors say by their number of rows which they have: all, or the last of each request. Where both
// would fit they are all.
std::optional<std::vector<int32_t>> rows_by_count(int64_t count, const PassInfo& info) {
  std::vector<int32_t> rows = last_rows(info);
  if (count == std::ssize(rows) && count != std::ssize(info.rows)) return rows;
  if (count != std::ssize(info.rows)) return {};
  rows.resize(info.rows.size());
  std::iota(rows.begin(), rows.end(), 0);
  return rows;
}

// Request and pass may be left out: then there is one request, and one pass.
std::vector<PassInfo> bare_rows(const Hdf5File& file) {
  for (const char* name : {"token", "position"})
    check(file.has("/passes") && file.has(std::string("/passes/") + name),
          "{}: has no /passes/{}: a trace has the {} of each row there (traces/README.md, The "
          "least trace)",
          file.path(), name, name);
  const std::vector<int64_t> token = column_of(file, "token", kMostIds),
                             position = column_of(file, "position", kMostPositions - 1),
                             request = optional_column(file, "request", token.size()),
                             pass = optional_column(file, "pass", token.size());
  check(token.size() == position.size() && token.size() == request.size() &&
            token.size() == pass.size(),
        "{}: the columns of /passes were wanted as long as each other, a row a token; found {} of "
        "token, {} of position, {} of request, {} of pass",
        file.path(), token.size(), position.size(), request.size(), pass.size());
  check(!token.empty(), "{}: /passes has no row: nothing was computed", file.path());
  std::vector<PassInfo> passes;
  for (size_t i = 0; i < token.size(); ++i) {
    const auto number = static_cast<int32_t>(pass[i]);
    check(passes.empty() || number >= passes.back().pass,
          "{}: /passes/pass was wanted in the order in which the passes ran, found {} after {}",
          file.path(), number, passes.empty() ? 0 : passes.back().pass);
    if (passes.empty() || number != passes.back().pass)
      passes.push_back({.pass = number, .inherited_known = false});
    passes.back().rows.push_back(
        {.row = {static_cast<int32_t>(request[i]), static_cast<int32_t>(position[i])},
         .token = static_cast<int32_t>(token[i])});
  }
  for (PassInfo& info : passes) {
    check_rows(info, file.path());
    put_phases(info);
  }
  return passes;
}

// Logits, tokens and what is made of them are of the same rows.
void put_logit_rows(int64_t count, const std::string& where, PassInfo& info) {
  const auto rows = rows_by_count(count, info);
  check(rows.has_value(),
        "{} has {} rows, and pass {} has {} tokens: write a row for each, or for the last of each "
        "request",
        where, count, info.pass, info.rows.size());
  check(info.logit_rows.empty() || info.logit_rows == *rows,
        "{} has {} rows, and another tensor of logits has {}: both are of the same rows", where,
        count, info.logit_rows.size());
  info.logit_rows = *rows;
}

}  // namespace lockstep
