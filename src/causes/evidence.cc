// The facts of one wrong place, gathered once for all hypotheses: the inputs of the rows in
// question, their K and V, exact results and budgets, and what else the pass has. Nothing here
// computes a hypothesis.
#include "src/causes/evidence.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "src/judge/contracts.h"
#include "src/judge/shares.h"
#include "traces/run_facts.h"

namespace lockstep {

// Rows by which most guesses are ruled out.
constexpr size_t kFew = 8;
// Fewer wrong elements than these do not tell a part from chance.
constexpr int64_t kLeastOver = 12;

// More runs than these are no part that a bug has: "heads 2 to 3 and 5".
constexpr size_t kMostRuns = 3;

namespace {

// Which of some things, "head 5" or "dims 0 to 3 and 32 to 35"; nothing where they are strewn.
std::string runs_of(const std::vector<bool>& some, const char* name) {
  std::vector<std::string> runs;
  for (size_t first = 0, end = 0; first < some.size(); first = end + 1) {
    for (end = first; end < some.size() && some[end];) ++end;
    if (end == first + 1) runs.push_back(fmt::format("{}", first));
    if (end > first + 1) runs.push_back(fmt::format("{} to {}", first, end - 1));
  }
  if (runs.empty() || runs.size() > kMostRuns) return {};
  const bool is_one = std::ranges::count(some, true) == 1;
  return fmt::format("{}{} {}", name, is_one ? "" : "s", fmt::join(runs, " and "));
}

}  // namespace

TensorView Causes::Evidence::pick(const RecordedTensor* tensor) {
  return picked_.emplace_back(tensor, rows_).view();
}

bool Causes::Evidence::pick_inputs(const Pass& pass, const Graph& graph) {
  const RoundingContract contract = op.call.contract;
  const bool of_sum =
      contract == RoundingContract::unrounded_sum || contract == RoundingContract::hf_unrounded_sum;
  std::vector<Place> inputs = graph.inputs_of(op.call.place);
  if (of_sum && !inputs.empty() && inputs[0].point->op == OpKind::add)
    inputs = graph.inputs_of(inputs[0]);
  for (const Place& input : inputs) {
    if (input.point->is_cache() || input.point->is_of_shares()) continue;
    const TensorView view = pick(pass.find(*input.point, input.layer));
    // A kernel may make its own angles.
    if (view.empty() && input.point->op == OpKind::angles) continue;
    if (view.empty()) return false;
    op.call.inputs.push_back(view);
  }
  return true;
}

bool Causes::Evidence::pick_caches(const Pass& pass, const Place& cache, const Judge& judge) {
  for (const RequestPages& pages : pass.info.pages) op.pages[pages.request] = pages;
  for (const Row& row : rows_) {
    if (op.caches.contains(row.request)) continue;
    const RecordedTensor* kv = pass.find(*cache.point, cache.layer, row.request);
    if (kv == nullptr) return false;
    const CacheRead& read = caches_.emplace_back(kv, judge.history());
    if (!read.trouble().empty()) return false;
    op.caches[row.request] = read.keys_values();
  }
  return true;
}

// Adds the exact results and the budgets of some rows, which the oracle is asked for together. Rows
// that are not neighbours are copied together first.
bool Causes::Evidence::judge_rows(RoundingContract contract, const std::vector<size_t>& rows,
                                  Oracle& oracle, std::vector<double>& want,
                                  std::vector<double>& limit) const {
  std::vector<Row> own;
  std::vector<int32_t> tokens;
  std::vector<int64_t> lengths;
  for (const size_t r : rows) {
    own.push_back(rows_[r]);
    tokens.push_back(tokens_[r]);
    lengths.push_back(lengths_[r]);
  }
  OracleCall call = op.call;
  call.rows = own, call.tokens = tokens, call.lengths = lengths, call.contract = contract;
  std::deque<Tensor> copies;
  for (TensorView& input : call.inputs) {
    const int64_t bytes = input.row_size() * size_of(input.dtype);
    std::vector<int64_t> shape(input.shape.extents().begin(), input.shape.extents().end());
    shape[0] = std::ssize(rows);
    const Tensor& copy = copies.emplace_back(Shape(shape), input.dtype);
    for (size_t i = 0; i < rows.size(); ++i)
      std::copy_n(input.as<char>() + rows[i] * bytes, bytes, copy.as<char>() + i * bytes);
    input = copy;
  }
  if (row_of(op.call.place.point->op).attends) call.keys_values = op.caches.at(own.front().request);
  if (op.call.place.point->is_of_shares())
    call.shares = share_begins(lengths.front(), op.page_size, op.got.shape[1]);
  const Exact exact = oracle.evaluate(call);
  if (exact.want.size() != rows.size() * row_size_) return false;
  const Place& place = op.call.place;
  const Budget budget = budget_of(place.point->op, exact, op.got.dtype, {},
                                  dtype_inside(place, op.got.dtype, call.dtype));
  for (size_t i = 0; i < rows.size(); ++i)
    for (size_t e = 0; e < row_size_; ++e) {
      want[rows[i] * row_size_ + e] = exact.want[i * row_size_ + e];
      limit[rows[i] * row_size_ + e] = budget.limit[i * row_size_ + e];
    }
  return true;
}

bool Causes::Evidence::judge(RoundingContract contract, Oracle& oracle, std::vector<double>& want,
                             std::vector<double>& limit) const {
  std::map<int32_t, std::vector<size_t>> parts;  // attention is asked for a request at a time
  const bool apart = row_of(op.call.place.point->op).attends;
  for (size_t r = 0; r < rows_.size(); ++r) parts[apart ? rows_[r].request : 0].push_back(r);
  want.resize(rows_.size() * row_size_);
  limit.resize(want.size());
  for (const auto& [request, rows] : parts)
    if (!judge_rows(contract, rows, oracle, want, limit)) return false;
  return true;
}

Numbers Causes::Evidence::right_once(Oracle& oracle) const {
  constexpr RoundingContract kOnce = RoundingContract::fused;
  std::vector<double> want, limit;
  const RoundingContract declared = op.call.contract;  // the sum it may read has other inputs
  if (declared == kOnce || is_of_sum(declared) || !judge(kOnce, oracle, want, limit)) return {};
  return want;
}

void Causes::Evidence::put_nodes(const std::set<int32_t>& requests) {
  std::set<int32_t> all;
  for (const Row& row : rows_) all.insert(row.request);
  for (const int32_t request : all) {
    Node node{.is_wrong = requests.contains(request)};
    for (size_t r = 0; r < rows_.size(); ++r) {
      if (rows_[r].request != request) continue;
      node.rows.push_back(r);
      for (size_t i = r * row_size_; i < (r + 1) * row_size_; ++i) {
        node.got.push_back(value_at(op.got, i));
        node.want.push_back(op.right[i]);
        node.limit.push_back(limit_[i]);
      }
    }
    if (!node.rows.empty()) nodes_.push_back(std::move(node));
  }
}

// Rows with an element over its budget are taken, as far apart as they can be. Of a node that is
// wrong under another contract (`of_other`) that may be none: then it is right under this one.
void Causes::Evidence::put_few(bool of_other) {
  std::vector<size_t> wrong;
  wrong_rows_.assign(rows_.size(), false);
  wrong_columns_.assign(row_size_, false);
  for (Node& node : nodes_) {
    if (!node.is_wrong) continue;
    const WrongNode held{op.got.dtype, node.got, node.want, node.limit};
    for (size_t r = 0; r < node.rows.size(); ++r) {
      int64_t over = 0;
      for (size_t i = 0; i < row_size_; ++i) {
        if (!is_over(held, r * row_size_ + i)) continue;
        wrong_columns_[i] = true;
        ++over;
      }
      node.over += over;
      if (over > 0) wrong.push_back(node.rows[r]), wrong_rows_[node.rows[r]] = true;
    }
    if (of_other) node.is_wrong = node.over > 0;
    if (node.over == 0 && !of_other) return;  // only all of its elements together are wrong
  }
  const size_t count = std::min(wrong.size(), kFew);
  for (size_t i = 0; i < count; ++i) op.few.push_back(wrong[i * wrong.size() / count]);
  std::ranges::sort(op.few);
}

std::unique_ptr<Causes::Evidence> Causes::Evidence::of(const Pass& pass, const Place& place,
                                                       const std::set<int32_t>& requests,
                                                       RoundingContract contract,
                                                       const Manifest& manifest, const Judge& judge,
                                                       Oracle& oracle) {
  const RecordedTensor* got = pass.find(*place.point, place.layer);
  if (got == nullptr || got->data.view().empty() || place.point->is_cache() ||
      row_of(place.point->op).makes_indices || !judge.may_be_of(place, contract))
    return nullptr;
  auto evidence = std::make_unique<Evidence>();
  OpInPass& op = evidence->op;
  evidence->rows_ = got->rows;
  op.call = {.place = place, .dtype = manifest.dtype, .contract = contract};
  op.got = got->data.view();
  evidence->row_size_ = op.got.row_size();
  op.page_size = run_facts_of(manifest).page_size;
  for (const Row& row : got->rows) {
    int64_t length = 0;
    for (const PassRow& fed : pass.info.rows) {
      if (fed.row.request == row.request) length = std::max<int64_t>(length, fed.row.position + 1);
      if (fed.row == row) op.pass_rows.push_back(fed);
    }
    evidence->lengths_.push_back(length);
  }
  if (op.pass_rows.size() != got->rows.size()) return nullptr;
  for (const PassRow& fed : op.pass_rows) evidence->tokens_.push_back(fed.token);
  op.call.rows = evidence->rows_;
  op.call.tokens = evidence->tokens_;
  op.call.lengths = evidence->lengths_;
  if (!evidence->pick_inputs(pass, manifest.graph)) return nullptr;
  if (place.point->is_of_shares() &&
      (op.page_size <= 0 || shares_in(*place.point, got->shape, op.call.inputs.at(0).shape) == 0))
    return nullptr;
  if (row_of(place.point->op).attends &&
      !evidence->pick_caches(pass, manifest.graph.inputs_of(place).at(1), judge))
    return nullptr;
  op.other = [&pass, owner = evidence.get()](const Place& other) {
    return owner->pick(pass.find(*other.point, other.layer));
  };
  std::vector<double> want;
  if (!evidence->judge(op.call.contract, oracle, want, evidence->limit_)) return nullptr;
  op.right = std::move(want);
  evidence->put_nodes(requests);
  evidence->put_few(contract != judge.contract_at(place));
  return evidence;
}

std::set<bool> Causes::Evidence::wrong_kinds() const {
  std::set<bool> kinds;
  for (const Node& node : nodes_)
    if (node.is_wrong) kinds.insert(node.rows.size() == 1);
  return kinds;
}

// A true cause explains nearly all of what is wrong there, so that half leaves room for a part that
// these rows have too much of.
bool Causes::Evidence::may_explain(const Numbers& hypothesis) const {
  if (op.few.empty()) return true;
  const bool of_few = hypothesis.size() == op.few.size() * row_size_;
  std::vector<double> got, want, limit, guessed;
  for (size_t i = 0; i < op.few.size(); ++i) {
    const size_t row = op.few[i] * row_size_, at = of_few ? i * row_size_ : row;
    for (size_t e = 0; e < row_size_; ++e) {
      got.push_back(value_at(op.got, static_cast<int64_t>(row + e)));
      want.push_back(op.right[row + e]);
      limit.push_back(limit_[row + e]);
      guessed.push_back(hypothesis[at + e]);
    }
  }
  const Fit fit = fit_of({op.got.dtype, got, want, limit}, guessed);
  return 2 * fit.elements >= fit.of_elements;
}

// Shares that have a wrong number, heads that have one, and these heads of these shares: each is an
// instruction of its own.
std::vector<Causes::WrongPart> Causes::Evidence::parts_of_shares() const {
  const auto shares = static_cast<size_t>(op.got.shape[1]);
  const auto heads = static_cast<size_t>(op.got.shape[2]);
  const size_t size = row_size_ / shares / heads;
  std::vector<bool> of_share(shares), of_head(heads);
  for (size_t c = 0; c < row_size_; ++c)
    if (wrong_columns_[c]) of_share[c / size / heads] = of_head[c / size % heads] = true;
  std::vector<WrongPart> parts;
  const auto add = [&](bool some_shares, bool some_heads, const std::string& says) {
    std::vector<bool> columns(row_size_);
    for (size_t c = 0; c < row_size_; ++c)
      columns[c] = (!some_shares || of_share[c / size / heads]) &&
                   (!some_heads || of_head[c / size % heads]);
    parts.push_back({.columns = std::move(columns), .says = ", in " + says + " alone"});
  };
  const auto said = [](const std::vector<bool>& some, const char* name) {
    return std::ranges::count(some, false) > 0 ? runs_of(some, name) : std::string();
  };
  const std::string shares_said = said(of_share, "share"), heads_said = said(of_head, "head");
  if (!shares_said.empty()) add(true, false, shares_said);
  if (!heads_said.empty()) add(false, true, heads_said);
  if (!shares_said.empty() && !heads_said.empty())
    add(true, true, shares_said + " of " + heads_said);
  return parts;
}

// Heads that have a wrong column; the wrong columns themselves, of a head where there are heads;
// and what lies between the first and the last one, as results near a right one are not over.
std::vector<Causes::WrongPart> Causes::Evidence::parts_of_columns() const {
  const auto extents = op.got.shape.extents();
  const size_t dim = extents.size() == 3 ? static_cast<size_t>(extents[2]) : row_size_;
  const size_t heads = row_size_ / dim;
  std::vector<bool> of_head(heads), of_dim(dim);
  for (size_t c = 0; c < row_size_; ++c)
    if (wrong_columns_[c]) of_head[c / dim] = of_dim[c % dim] = true;
  const auto in_heads = [&](const std::vector<bool>& dims) {
    std::vector<bool> columns(row_size_);
    for (size_t c = 0; c < row_size_; ++c) columns[c] = of_head[c / dim] && dims[c % dim];
    return columns;
  };
  const bool some_heads = std::ranges::count(of_head, false) > 0;
  // Rows of experts have a choice where those of attention have a head.
  const std::string heads_said =
      runs_of(of_head, op.call.place.point->head_axis < 0 ? "choice" : "head");
  std::vector<WrongPart> parts;
  if (some_heads && heads_said.empty()) return parts;
  if (some_heads)
    parts.push_back({.columns = in_heads(std::vector<bool>(dim, true)),
                     .says = ", in " + heads_said + " alone"});
  if (std::ranges::count(of_dim, false) == 0) return parts;
  const char* const unit = heads > 1 ? "dim" : "column";
  std::vector<bool> between(dim);
  const auto first = std::ranges::find(of_dim, true) - of_dim.begin();
  const auto last = std::ranges::find(of_dim.rbegin(), of_dim.rend(), true) - of_dim.rbegin();
  std::fill(between.begin() + first, between.end() - last, true);
  const std::string of_heads = some_heads ? " of " + heads_said : "";
  // One column is off by one factor, which something or other has by chance.
  const auto add = [&](const std::vector<bool>& dims) {
    if (std::ranges::count(dims, true) < 2) return;
    if (const std::string runs = runs_of(dims, unit); !runs.empty())
      parts.push_back({.columns = in_heads(dims), .says = ", in " + runs + of_heads + " alone"});
  };
  if (between != std::vector<bool>(dim, true)) add(between);
  if (between != of_dim) add(of_dim);
  return parts;
}

// A bug of the last tile, of one head, of some tokens leaves the rest right.
std::vector<Causes::WrongPart> Causes::Evidence::wrong_parts() const {
  if (unexplained().of_elements < kLeastOver) return {};
  const std::string rows_said = ", in some of its rows alone";
  const bool some_rows = std::ranges::count(wrong_rows_, false) > 0;
  std::vector<WrongPart> parts;
  const std::vector<WrongPart> of_columns =
      op.call.place.point->is_of_shares() ? parts_of_shares() : parts_of_columns();
  if (some_rows) parts.push_back({.of_rows = true, .says = rows_said});
  for (const WrongPart& part : of_columns) parts.push_back(part);
  for (const WrongPart& part : of_columns)
    if (some_rows) parts.push_back({true, part.columns, part.says + rows_said});
  return parts;
}

Numbers Causes::Evidence::within(const WrongPart& part, const Numbers& hypothesis) const {
  std::vector<double> mixed(op.right.begin(), op.right.end());
  for (size_t r = 0; r < rows_.size(); ++r) {
    if (part.of_rows && !wrong_rows_[r]) continue;
    for (size_t c = 0; c < row_size_; ++c)
      if (part.columns.empty() || part.columns[c])
        mixed[r * row_size_ + c] = hypothesis[r * row_size_ + c];
  }
  return mixed;
}

Fit Causes::Evidence::unexplained() const {
  Fit fit;
  for (const Node& node : nodes_)
    if (node.is_wrong) fit.of_elements += node.over, ++fit.of_nodes;
  return fit;
}

Fit Causes::Evidence::fit(const Numbers& hypothesis, const std::set<bool>& kinds) const {
  Fit fit;
  for (const Node& node : nodes_) {
    if (!node.is_wrong && !kinds.contains(node.rows.size() == 1)) continue;
    std::vector<double> of_node;
    for (const size_t r : node.rows)
      of_node.insert(of_node.end(), hypothesis.begin() + r * row_size_,
                     hypothesis.begin() + (r + 1) * row_size_);
    const WrongNode held{op.got.dtype, node.got, node.want, node.limit};
    fit.add(node.is_wrong ? fit_of(held, of_node) : fit_of_right(held, of_node));
  }
  return fit;
}

}  // namespace lockstep
