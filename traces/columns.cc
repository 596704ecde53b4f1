// A pass becomes entries of flat columns and comes back from them. A part of variable length is a
// range of a flat column between two edges, so that a column has one type and no pointers.
// check_sound() comes before anything is read by an index: each column's length, each list of
// edges, each name, shape and count, and what the digests say of each other.
#include "traces/columns.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <span>
#include <utility>

#include "kernels/base/check.h"
#include "traces/trace.h"

namespace lockstep {
namespace {

// Column by column in the order of columns.h; digest_at reads the same back.
void append_digest(const Digest& digest, Columns::Index& index) {
  index.xxh3.push_back(digest.hash);
  index.n.push_back(digest.count);
  index.nan.push_back(digest.nan);
  index.posinf.push_back(digest.pos_inf);
  index.neginf.push_back(digest.neg_inf);
  index.zeros.push_back(digest.zeros);
  index.subnormal.push_back(digest.subnormals);
  index.min.push_back(digest.min);
  index.max.push_back(digest.max);
  index.absmax.push_back(digest.absmax);
  index.absmax_at.push_back(digest.absmax_index);
  index.mean.push_back(digest.mean);
  index.m2.push_back(digest.m2);
  index.rms.push_back(digest.rms());
  index.sum_abs.push_back(digest.sum_abs);
  index.sum_squares.push_back(digest.sum_squares);
  // Most of the bins are empty, so that only the others are stored, with their numbers.
  for (size_t bin = 0; bin < digest.exponents.size(); ++bin) {
    if (digest.exponents[bin] == 0) continue;
    index.exponent.push_back(static_cast<uint8_t>(bin));
    index.exponent_count.push_back(digest.exponents[bin]);
  }
  index.exponent_edges.push_back(std::ssize(index.exponent));
}

// Lists of different lengths (shapes, exponents, runs) lie end to end in one column; edges[i] and
// edges[i + 1] bound that of tensor i.
Digest digest_at(const Columns::Index& index, size_t i) {
  Digest digest{.hash = index.xxh3[i],
                .count = index.n[i],
                .nan = index.nan[i],
                .pos_inf = index.posinf[i],
                .neg_inf = index.neginf[i],
                .zeros = index.zeros[i],
                .subnormals = index.subnormal[i],
                .min = index.min[i],
                .max = index.max[i],
                .absmax = index.absmax[i],
                .absmax_index = index.absmax_at[i],
                .mean = index.mean[i],
                .m2 = index.m2[i],
                .sum_abs = index.sum_abs[i],
                .sum_squares = index.sum_squares[i]};
  for (int64_t j = index.exponent_edges[i]; j < index.exponent_edges[i + 1]; ++j)
    digest.exponents[index.exponent[j]] = index.exponent_count[j];
  return digest;
}

void append_tensor(int32_t pass, const RecordedTensor& tensor, int64_t seq, Columns::Index& index) {
  index.seq.push_back(seq);
  index.pass.push_back(pass);
  index.layer.push_back(tensor.layer);
  index.point.emplace_back(tensor.point->name);
  index.dtype.emplace_back(name_of(tensor.dtype));
  index.axes.emplace_back(tensor.point->shape);
  index.path.push_back(tensor.data.view().empty() ? "" : path_of(pass, tensor));
  index.shape.insert(index.shape.end(), tensor.shape.extents().begin(),
                     tensor.shape.extents().end());
  index.shape_edges.push_back(std::ssize(index.shape));
  append_digest(tensor.digest, index);
  for (const RowRun& run : runs_of(tensor.rows)) {
    index.run_request.push_back(run.request);
    index.run_first.push_back(run.first);
    index.run_count.push_back(run.count);
  }
  index.run_edges.push_back(std::ssize(index.run_request));
  index.row_xxh3.insert(index.row_xxh3.end(), tensor.row_hashes.begin(), tensor.row_hashes.end());
  index.row_xxh3_edges.push_back(std::ssize(index.row_xxh3));
}

// Entries [edges[i], edges[i + 1]) of a flat column.
template <typename T>
std::vector<T> part_of(const std::vector<T>& flat, const std::vector<int64_t>& edges, size_t i) {
  return {flat.begin() + edges[i], flat.begin() + edges[i + 1]};
}

RecordedTensor tensor_at(const Columns::Index& index, size_t i) {
  RecordedTensor tensor{.point = find_point(index.point[i]),
                        .layer = index.layer[i],
                        .dtype = dtype_from(index.dtype[i]),
                        .shape = Shape(part_of(index.shape, index.shape_edges, i)),
                        .digest = digest_at(index, i),
                        .row_hashes = part_of(index.row_xxh3, index.row_xxh3_edges, i)};
  for (int64_t j = index.run_edges[i]; j < index.run_edges[i + 1]; ++j)
    RowRun{index.run_request[j], index.run_first[j], index.run_count[j]}.append_to(tensor.rows);
  return tensor;
}

// Everything that pass_at indexes by is checked first: a file is not trusted to be ours.
void check_edges(const std::string& file, const char* name, const std::vector<int64_t>& edges,
                 size_t parts, size_t flat) {
  check(
      edges.size() == parts + 1 && edges.front() == 0 && std::ranges::is_sorted(edges) &&
          std::cmp_equal(edges.back(), flat),
      "{}: the column {} does not divide its {} entries into {} parts: the file is damaged, write "
      "the trace anew",
      file, name, flat, parts);
}

// Checks come before anything is built of the columns: a damaged file may say anything, and each
// number here is an index or a size somewhere.
void check_rows(const std::string& file, const Columns& columns) {
  std::set<int32_t> numbers;
  for (const int32_t number : columns.number)
    check(numbers.insert(number).second,
          "{}: pass {} is there twice, and which of them the run computed is not known: write the "
          "trace anew",
          file, number);
  for (size_t i = 0; i < columns.position.size(); ++i)
    check((RowRun{columns.request[i], columns.position[i], 1}.is_sound()),
          "{}: pass {} has a row at position {}, wanted 0 to {}: the file is damaged, write the "
          "trace anew",
          file, columns.pass[i], columns.position[i], kMostPositions - 1);
  for (size_t i = 0; i < columns.phase.size(); ++i)
    check(columns.phase[i] <= static_cast<uint8_t>(Phase::decode),
          "{}: pass {} has a row of the phase {}, wanted 0 (prefill) or 1 (decode): the file is "
          "damaged, write the trace anew",
          file, columns.pass[i], columns.phase[i]);
  for (size_t i = 0; i < columns.passes(); ++i) {
    const int64_t rows = columns.row_edges[i + 1] - columns.row_edges[i];
    for (int64_t j = columns.logit_row_edges[i]; j < columns.logit_row_edges[i + 1]; ++j) {
      const int32_t row = columns.logit_rows[j];
      check(row >= 0 && row < rows,
            "{}: the logit_rows of pass {} are to be among its {} rows, found {}: the file is "
            "damaged, write the trace anew",
            file, columns.number[i], rows, row);
    }
  }
}

// Statistics of one tensor bound each other (min <= mean <= max, counts add up): a flipped bit is
// seen without the numbers.
void check_statistics(const std::string& file, const Columns::Index& index, size_t i) {
  const std::vector<uint64_t> hashes = part_of(index.row_xxh3, index.row_xxh3_edges, i);
  const int64_t rows = index.shape[index.shape_edges[i]];
  const bool fit = hashes.empty() || std::ssize(hashes) == rows;
  const int64_t count = Shape(part_of(index.shape, index.shape_edges, i)).count();
  const std::string_view other =
      fit ? contradiction(digest_at(index, i), count, index.rms[i], hashes) : "row_xxh3";
  check(other.empty(),
        "{}: in pass {}, the index contradicts itself of the tensor {} of layer {} (its {}): the "
        "file is damaged, write the trace anew",
        file, index.pass[i], index.point[i], index.layer[i], other);
}

// A run of rows is three numbers in the file and as many rows in memory as it says, hence the
// budget.
void check_tensors(const std::string& file, const Columns::Index& index, RowBudget budget) {
  for (size_t i = 0; i < index.seq.size(); ++i) {
    check(find_point(index.point[i]) != nullptr,
          "{}: pass {} has a tensor of the point '{}', which this version does not know: it was "
          "renamed or the trace is of another version (see lockstep points)",
          file, index.pass[i], index.point[i]);
    const bool per_layer = find_point(index.point[i])->per_layer;
    check(per_layer ? index.layer[i] >= 0 : index.layer[i] == -1,
          "{}: the tensor {} of pass {} is of layer {}, and {} was wanted: the file is damaged, "
          "write the trace anew",
          file, index.point[i], index.pass[i], index.layer[i], per_layer ? "0 or more" : "-1");
    const int64_t rank = index.shape_edges[i + 1] - index.shape_edges[i];
    check(rank >= 1 && rank <= 5, "{}: the tensor {} of pass {} has {} axes, wanted 1 to 5", file,
          index.point[i], index.pass[i], rank);
    int64_t rows = 0;
    for (int64_t j = index.run_edges[i]; j < index.run_edges[i + 1]; ++j) {
      const size_t at = j;
      const RowRun run{index.run_request[at], index.run_first[at], index.run_count[at]};
      check(
          run.is_sound(),
          "{}: the tensor {} of pass {} has {} rows from position {} on, wanted positions of 0 to "
          "{}: the file is damaged, write the trace anew",
          file, index.point[i], index.pass[i], run.count, run.first, kMostPositions - 1);
      check(budget.take(run.count), "{}: its tensors {}", file, kTooManyRows);
      rows += run.count;
    }
    const int64_t extent = index.shape[index.shape_edges[i]];
    check(rows == extent, "{}: the tensor {} of pass {} has {} rows but names of {}", file,
          index.point[i], index.pass[i], extent, rows);
    check(is_dtype(index.dtype[i]),
          "{}: the tensor {} of pass {} is of the dtype '{}', which no tensor has: the file is "
          "damaged, write the trace anew",
          file, index.point[i], index.pass[i], index.dtype[i]);
    check(
        is_shape(part_of(index.shape, index.shape_edges, i)),
        "{}: the tensor {} of pass {} has axes of fewer than 0 elements, or of more together than "
        "can be: the file is damaged, write the trace anew",
        file, index.point[i], index.pass[i]);
    check_statistics(file, index, i);
  }
}

// The margin can be had from the first two values, and is compared with that.
void check_logits(const std::string& file, const Columns& columns) {
  const Columns::Best& logits = columns.logits;
  const size_t rows = logits.request.size(), k = rows == 0 ? 0 : logits.values.size() / rows;
  for (size_t i = 0; i < rows; ++i) {
    TopLogits top;
    for (size_t j = 0; j < std::min<size_t>(k, 2); ++j)
      top.values.push_back(logits.values[i * k + j]);
    const double margin = top.margin();
    check(logits.margin[i] == margin || (std::isnan(logits.margin[i]) && std::isnan(margin)),
          "{}: the row of /logits of pass {}, request {}, position {} has the margin {}, but its "
          "values have {}: the file is damaged, write the trace anew",
          file, logits.pass[i], logits.request[i], logits.position[i], logits.margin[i], margin);
  }
}

}  // namespace

// "/tensors/pass000003/layer001/attn.q"; a cache has a tensor for each request.
std::string path_of(int32_t pass, const RecordedTensor& tensor) {
  std::string path = fmt::format("/tensors/pass{:06}/", pass);
  path += tensor.layer < 0 ? "model/" : fmt::format("layer{:03}/", tensor.layer);
  path += tensor.point->name;
  if (tensor.point->is_cache() && !tensor.rows.empty())
    path += fmt::format(".request{:06}", tensor.rows[0].request);
  return path;
}

// Rows of a request at neighbouring positions, as (request, first, count).
std::vector<RowRun> runs_of(std::span<const Row> rows) {
  std::vector<RowRun> runs;
  for (const Row& row : rows) {
    const bool continues = !runs.empty() && runs.back().request == row.request &&
                           runs.back().first + runs.back().count == row.position;
    if (continues)
      ++runs.back().count;
    else
      runs.push_back({row.request, row.position, 1});
  }
  return runs;
}

bool RowRun::is_sound() const {
  return first >= 0 && count >= 0 && first <= kMostPositions - count;
}

// Whether the elements can be counted without an overflow.
bool is_shape(std::span<const int64_t> extents) {
  constexpr int64_t kMost = int64_t{1} << 56;  // elements, whose bytes can be counted too
  int64_t count = 1;
  for (const int64_t extent : extents) {
    if (extent < 0 || (extent > 0 && count > kMost / extent)) return false;
    count *= extent;
  }
  return true;
}

void check_has_digests(const Pass& pass) {
  for (const RecordedTensor& tensor : pass.tensors)
    check(tensor.digest.count == tensor.shape.count(),
          "pass {} has a tensor {} without its digest: a trace is written from a recorder that "
          "makes digests",
          pass.info.pass, tensor.point->name);
}

bool RowBudget::take(int64_t rows) {
  left_ -= rows;
  return left_ >= 0;
}

void RowRun::append_to(std::vector<Row>& rows) const {
  for (int32_t i = 0; i < count; ++i) rows.push_back({request, first + i});
}

// Each list of the pass goes to the end of its column, and the new end to its edges.
void Columns::append(const Pass& from, int64_t seq) {
  const PassInfo& info = from.info;
  number.push_back(info.pass);
  for (const PassRow& row : info.rows) {
    pass.push_back(info.pass);
    request.push_back(row.row.request);
    position.push_back(row.row.position);
    token.push_back(row.token);
    slot.push_back(row.slot);
    phase.push_back(static_cast<uint8_t>(row.phase));
  }
  row_edges.push_back(std::ssize(request));
  logit_rows.insert(logit_rows.end(), info.logit_rows.begin(), info.logit_rows.end());
  logit_row_edges.push_back(std::ssize(logit_rows));
  for (const RequestPages& table : info.pages) {
    table_pass.push_back(info.pass);
    table_request.push_back(table.request);
    pages.insert(pages.end(), table.pages.begin(), table.pages.end());
    page_edges.push_back(std::ssize(pages));
  }
  table_edges.push_back(std::ssize(table_request));
  inherited_known = inherited_known && info.inherited_known;
  for (const Inherited& one : info.inherited) {
    inherited_request.push_back(one.request);
    inherited_tokens.insert(inherited_tokens.end(), one.tokens.begin(), one.tokens.end());
    inherited_token_edges.push_back(std::ssize(inherited_tokens));
  }
  inherited_edges.push_back(std::ssize(inherited_request));
  for (const RecordedTensor& tensor : from.tensors) append_tensor(info.pass, tensor, seq++, index);
  tensor_edges.push_back(std::ssize(index.seq));
  for (const TopLogits& top : from.logits) {
    logits.pass.push_back(info.pass);
    logits.request.push_back(top.row.request);
    logits.position.push_back(top.row.position);
    logits.chosen.push_back(top.chosen);
    logits.margin.push_back(top.margin());
    logits.ids.insert(logits.ids.end(), top.ids.begin(), top.ids.end());
    logits.values.insert(logits.values.end(), top.values.begin(), top.values.end());
  }
  logits.edges.push_back(std::ssize(logits.request));
}

Pass Columns::pass_at(size_t i) const {
  Pass out;
  out.info.pass = number[i];
  for (int64_t j = row_edges[i]; j < row_edges[i + 1]; ++j)
    out.info.rows.push_back(
        {{request[j], position[j]}, token[j], slot[j], static_cast<Phase>(phase[j])});
  out.info.logit_rows = part_of(logit_rows, logit_row_edges, i);
  for (int64_t j = table_edges[i]; j < table_edges[i + 1]; ++j)
    out.info.pages.push_back({table_request[j], part_of(pages, page_edges, j)});
  out.info.inherited_known = inherited_known;
  const size_t end = inherited_known ? inherited_edges[i + 1] : 0;
  for (size_t j = inherited_known ? inherited_edges[i] : 0; j < end; ++j)
    out.info.inherited.push_back(
        {inherited_request[j], part_of(inherited_tokens, inherited_token_edges, j)});
  for (int64_t j = tensor_edges[i]; j < tensor_edges[i + 1]; ++j)
    out.tensors.push_back(tensor_at(index, j));
  const int64_t rows = std::ssize(logits.request);
  // ids and values are rectangles: every row of logits has the same vocabulary.
  const int64_t k = rows == 0 ? 0 : std::ssize(logits.ids) / rows;
  for (int64_t j = logits.edges[i]; j < logits.edges[i + 1]; ++j) {
    const size_t at = j;
    out.logits.push_back({{logits.request[at], logits.position[at]},
                          {logits.ids.begin() + j * k, logits.ids.begin() + (j + 1) * k},
                          {logits.values.begin() + j * k, logits.values.begin() + (j + 1) * k},
                          logits.chosen[at]});
  }
  return out;
}

// Lengths first, then edges, then what they lead to: each check may rely on those before it.
void Columns::check_sound(const std::string& file, int64_t bytes) const {
  const size_t tensors = index.seq.size(), best = logits.request.size();
  visit_columns(*this, [&](const char* name, const auto& column, Columns::Per per) {
    size_t want = column.size();
    if (per == Per::row) want = request.size();
    if (per == Per::tensor) want = tensors;
    if (per == Per::table) want = table_request.size();
    if (per == Per::logit) want = best;
    if (per == Per::best && best > 0) want = logits.ids.size() / best * best;
    check(
        column.size() == want && logits.values.size() == logits.ids.size(),
        "{}: the column {} has {} entries where the others have {}: the file is damaged, write the "
        "trace anew",
        file, name, column.size(), want);
  });
  check_edges(file, "passes/row_edges", row_edges, passes(), request.size());
  check_edges(file, "passes/logit_row_edges", logit_row_edges, passes(), logit_rows.size());
  check_edges(file, "passes/table_edges", table_edges, passes(), table_request.size());
  check_edges(file, "passes/tensor_edges", tensor_edges, passes(), tensors);
  check_edges(file, "passes/page_edges", page_edges, table_request.size(), pages.size());
  if (inherited_known) {
    check_edges(file, kInheritedEdges, inherited_edges, passes(), inherited_request.size());
    check_edges(file, "passes/inherited_token_edges", inherited_token_edges,
                inherited_request.size(), inherited_tokens.size());
  }
  check_edges(file, "index/parts/shape_edges", index.shape_edges, tensors, index.shape.size());
  check_edges(file, "index/parts/exponent_edges", index.exponent_edges, tensors,
              index.exponent.size());
  check_edges(file, "index/parts/exponent_edges", index.exponent_edges, tensors,
              index.exponent_count.size());
  check_edges(file, "index/parts/run_edges", index.run_edges, tensors, index.run_request.size());
  check_edges(file, "index/parts/run_edges", index.run_edges, tensors, index.run_first.size());
  check_edges(file, "index/parts/run_edges", index.run_edges, tensors, index.run_count.size());
  check_edges(file, "index/parts/row_xxh3_edges", index.row_xxh3_edges, tensors,
              index.row_xxh3.size());
  check_edges(file, "logits/edges", logits.edges, passes(), best);
  check_rows(file, *this);
  check_tensors(file, index, RowBudget(bytes));
  check_logits(file, *this);
}

}  // namespace lockstep
