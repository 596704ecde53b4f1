// The facts of one wrong place, gathered once for all hypotheses: the inputs of the rows in
// question, their K and V, exact results and budgets, and what else the pass has. Nothing here
// computes a hypothesis.
#include "src/causes/evidence.h"

#include <fmt/format.h>

#include <algorithm>

#include "src/judge/contracts.h"
#include "traces/run_facts.h"

namespace lockstep {

// Rows by which most guesses are ruled out.
constexpr size_t kFew = 8;
// Fewer wrong elements than these do not tell a part from chance.
constexpr int64_t kLeastOver = 12;

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
    if (input.point->is_cache()) continue;
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
bool Causes::Evidence::judge_rows(const std::vector<size_t>& rows, Oracle& oracle,
                                  std::vector<double>& want) {
  std::vector<Row> own;
  std::vector<int32_t> tokens;
  std::vector<int64_t> lengths;
  for (const size_t r : rows) {
    own.push_back(rows_[r]);
    tokens.push_back(tokens_[r]);
    lengths.push_back(lengths_[r]);
  }
  OracleCall call = op.call;
  call.rows = own, call.tokens = tokens, call.lengths = lengths;
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
  if (op.call.place.point->op == OpKind::attention)
    call.keys_values = op.caches.at(own.front().request);
  const Exact exact = oracle.evaluate(call);
  if (exact.want.size() != rows.size() * row_size_) return false;
  const Budget budget = budget_of(op.call.place.point->op, exact, op.got.dtype);
  for (size_t i = 0; i < rows.size(); ++i)
    for (size_t e = 0; e < row_size_; ++e) {
      want[rows[i] * row_size_ + e] = exact.want[i * row_size_ + e];
      limit_[rows[i] * row_size_ + e] = budget.limit[i * row_size_ + e];
    }
  return true;
}

bool Causes::Evidence::judge(Oracle& oracle) {
  std::map<int32_t, std::vector<size_t>> parts;  // attention is asked for a request at a time
  const bool apart = op.call.place.point->op == OpKind::attention;
  for (size_t r = 0; r < rows_.size(); ++r) parts[apart ? rows_[r].request : 0].push_back(r);
  std::vector<double> want(rows_.size() * row_size_);
  limit_.resize(want.size());
  for (const auto& [request, rows] : parts)
    if (!judge_rows(rows, oracle, want)) return false;
  op.right = std::move(want);
  return true;
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

// Rows with an element over its budget are taken, as far apart as they can be.
void Causes::Evidence::put_few() {
  std::vector<size_t> wrong;
  for (Node& node : nodes_) {
    if (!node.is_wrong) continue;
    const WrongNode held{op.got.dtype, node.got, node.want, node.limit};
    for (size_t r = 0; r < node.rows.size(); ++r) {
      int64_t over = 0;
      for (size_t i = r * row_size_; i < (r + 1) * row_size_; ++i) over += is_over(held, i) ? 1 : 0;
      node.over += over;
      if (over > 0) wrong.push_back(node.rows[r]);
    }
    if (node.over == 0) return;  // only all of its elements together are wrong
  }
  const size_t count = std::min(wrong.size(), kFew);
  for (size_t i = 0; i < count; ++i) op.few.push_back(wrong[i * wrong.size() / count]);
  std::ranges::sort(op.few);
}

std::unique_ptr<Causes::Evidence> Causes::Evidence::of(const Pass& pass, const Place& place,
                                                       const std::set<int32_t>& requests,
                                                       const Manifest& manifest, const Judge& judge,
                                                       Oracle& oracle) {
  const RecordedTensor* got = pass.find(*place.point, place.layer);
  if (got == nullptr || got->data.view().empty() || place.point->is_cache() ||
      row_of(place.point->op).makes_indices)
    return nullptr;
  auto evidence = std::make_unique<Evidence>();
  OpInPass& op = evidence->op;
  evidence->rows_ = got->rows;
  op.call = {.place = place, .dtype = manifest.dtype, .contract = judge.contract_at(place)};
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
  if (place.point->op == OpKind::attention &&
      !evidence->pick_caches(pass, manifest.graph.inputs_of(place).at(1), judge))
    return nullptr;
  op.other = [&pass, owner = evidence.get()](const Place& other) {
    return owner->pick(pass.find(*other.point, other.layer));
  };
  if (!evidence->judge(oracle)) return nullptr;
  evidence->put_nodes(requests);
  evidence->put_few();
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

std::vector<bool> Causes::Evidence::wrong_rows() const {
  std::vector<bool> wrong(rows_.size());
  for (const Node& node : nodes_) {
    if (!node.is_wrong) continue;
    const WrongNode held{op.got.dtype, node.got, node.want, node.limit};
    for (size_t i = 0; i < node.got.size(); ++i)
      if (is_over(held, i)) wrong[node.rows[i / row_size_]] = true;
  }
  return wrong;
}

// A bug of the last tile, of one head, of some tokens leaves the rest right. Columns from the first
// to the last wrong one are taken, and the rows that have a wrong element.
std::optional<Causes::WrongPart> Causes::Evidence::wrong_part() const {
  size_t first = row_size_, last = 0;
  int64_t over = 0;
  for (const Node& node : nodes_) {
    if (!node.is_wrong) continue;
    const WrongNode held{op.got.dtype, node.got, node.want, node.limit};
    for (size_t i = 0; i < node.got.size(); ++i) {
      if (!is_over(held, i)) continue;
      first = std::min(first, i % row_size_), last = std::max(last, i % row_size_);
      ++over;
    }
  }
  const std::vector<bool> rows = wrong_rows();
  WrongPart part{.of_rows = std::ranges::count(rows, false) > 0};
  if (over < kLeastOver) return {};
  if (last - first + 1 < row_size_) {
    part.first_column = first, part.columns = last - first + 1;
    const auto extents = op.got.shape.extents();
    const size_t dim = extents.size() == 3 ? static_cast<size_t>(extents[2]) : 0;
    part.says = dim > 0 && first % dim == 0 && (last + 1) % dim == 0
                    ? fmt::format(", in heads {} to {} alone", first / dim, last / dim)
                    : fmt::format(", in columns {} to {} alone", first, last);
  }
  if (part.of_rows) part.says += ", in some of its rows alone";
  return part.says.empty() ? std::nullopt : std::optional(part);
}

Numbers Causes::Evidence::within(const WrongPart& part, const Numbers& hypothesis) const {
  std::vector<double> mixed(op.right.begin(), op.right.end());
  const std::vector<bool> rows = wrong_rows();
  const size_t columns = part.columns == 0 ? row_size_ : part.columns;
  for (size_t r = 0; r < rows.size(); ++r) {
    if (part.of_rows && !rows[r]) continue;
    for (size_t c = part.first_column; c < part.first_column + columns; ++c)
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
