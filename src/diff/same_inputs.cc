// Two right ops of the same inputs differ in an element only when the arithmetic of one of them
// carries it over the border between two numbers of the dtype. How many may do so follows from the
// op's arithmetic in units of an ulp (JudgedOp::spread), and a right pair exceeds the limit once in
// 1e9 nodes. It is asked of each node, and of all nodes of a place so far.
#include "src/diff/same_inputs.h"

#include <algorithm>
#include <cmath>

#include "src/judge/ops/judged_op.h"
#include "src/stats/moments.h"
#include "src/stats/roundoff.h"

namespace lockstep {
namespace {

// A share of right kernels is exceeded by chance once in so many nodes and places.
constexpr double kTail = 1e-9;
// No right product or attention was seen to differ from exact arithmetic in more than half of that.
constexpr double kMostShare = 0.04;
// How much a kernel may be worse than the textbook's arithmetic of an elementwise op: an exp() of
// some ulp, a sum in another order.
constexpr double kSlack = 4;

// The share of elements that two right kernels store as different numbers.
double share_of(const JudgedOp& op, double terms, DType dtype) {
  const double in_ulp = op.spread(terms) * kAccumulatorRoundoff / unit_roundoff(dtype);
  return std::min(kMostShare, (op.is_elementwise ? kSlack : 1) * in_ulp);
}

int64_t row_size_of(const RecordedTensor& tensor) {
  return tensor.shape.count() / std::max<int64_t>(1, std::ssize(tensor.rows));
}

const RoundingContract* declared(const Manifest& manifest, const Point& point) {
  const auto found = manifest.contracts.find(std::string(point.name));
  return found == manifest.contracts.end() ? nullptr : &found->second;
}

bool leaves_arithmetic_alone(RoundingContract contract, OpKind op) {
  if (contract == RoundingContract::fused) return true;
  // Attention under it rounds each weight by itself, wherever its blocks end.
  return contract == RoundingContract::hf && op != OpKind::attention;
}

}  // namespace

void SameInputs::Counts::add(const Counts& other) {
  rows += other.rows, rows_different += other.rows_different;
  elements += other.elements, different += other.different;
  row_size = std::max(row_size, other.row_size);
}

SameInputs::SameInputs(const std::vector<Place>& places, const Manifest& a, const Manifest& b)
    : places_(places), dtype_(a.dtype), counts_(places.size()) {
  const bool short_dtype = a.dtype == b.dtype && (a.dtype == DType::bf16 || a.dtype == DType::f16);
  for (const Place& place : places) {
    const Point& point = *place.point;
    const RoundingContract *of_a = declared(a, point), *of_b = declared(b, point);
    // A sum over ranks, of partial sums that were rounded, is another op than the whole product.
    const bool one_op = adds_ranks(a.graph, place) == adds_ranks(b.graph, place);
    comparable_.push_back(one_op && short_dtype && point.node_class != NodeClass::exact &&
                          point.dtype == PointDType::of_the_run && of_a && of_b && *of_a == *of_b &&
                          leaves_arithmetic_alone(*of_a, point.op));
  }
}

void SameInputs::count(size_t place, const ShownRow& x, const ShownRow& y,
                       const RecordedTensor& input, Rows& rows) const {
  Counts& counts = rows.counts;
  const bool by_rows = places_[place].point->op == OpKind::norm;  // of a head, or a whole row
  rows.terms = by_rows ? x.tensor->shape.last() : row_size_of(input);
  counts.row_size = row_size_of(*x.tensor);
  ++counts.rows;
  if (x.same_bits(y)) {
    counts.elements += counts.row_size;
    return;
  }
  if (counts.rows_different++ == 0) rows.first_position = x.row().position;
  const std::vector<double> a = x.numbers(), b = y.numbers();
  if (!a.empty() && !b.empty()) measure(place, a, b, x.row().position, rows);
}

void SameInputs::measure(size_t place, std::span<const double> a, std::span<const double> b,
                         int32_t position, Rows& rows) const {
  const JudgedOp& op = judged_op(places_[place].point->op);
  double largest = 0, squares = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    if (!std::isfinite(a[i]) || !std::isfinite(b[i])) return;  // no number says how far apart
    largest = std::max({largest, std::fabs(a[i]), std::fabs(b[i])});
    squares += a[i] * a[i];
  }
  const double rms = root_mean(squares, std::ssize(a));
  const double of_arithmetic =
      2 * kLambda * op.spread(static_cast<double>(rows.terms)) * kAccumulatorRoundoff;
  rows.counts.elements += std::ssize(a);
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i] == b[i]) continue;
    ++rows.counts.different;
    const double size = std::max(std::fabs(a[i]), std::fabs(b[i]));
    const double limit = ulp(size, dtype_) + of_arithmetic * (op.in_proportion ? size : largest);
    const double excess = std::fabs(a[i] - b[i]) / limit, unit = std::max(size, rms);
    if (excess <= rows.furthest.excess) continue;
    rows.furthest = {excess, std::fabs(a[i] - b[i]) / unit, limit / unit, position};
  }
}

// Elements are asked first, then whole rows, which hashes alone tell of: a row has other bits
// unless all its elements agree, a chance of 1 - (1 - share)^size.
std::optional<DiffResult::Node::Share> SameInputs::too_large(size_t place, const Counts& counts,
                                                             int64_t terms) const {
  const auto asked = [&](bool of_rows, int64_t different, int64_t of,
                         double share) -> std::optional<DiffResult::Node::Share> {
    if (of == 0) return {};
    const double limit = share_limit(of, share, kTail);
    if (within(fraction(different, of), limit)) return {};
    return DiffResult::Node::Share{of_rows, different, of, limit};
  };
  const double share =
      share_of(judged_op(places_[place].point->op), static_cast<double>(terms), dtype_);
  if (const auto found = asked(false, counts.different, counts.elements, share)) return found;
  const double of_a_row = -std::expm1(static_cast<double>(counts.row_size) * std::log1p(-share));
  return asked(true, counts.rows_different, counts.rows, of_a_row);
}

std::optional<DiffResult::Node::Share> SameInputs::enter(size_t place, const Rows& of_node) {
  const Counts& counts = of_node.counts;
  if (counts.rows == 0) return {};
  counts_[place].add(counts);
  if (counts.rows_different == 0) return {};
  const auto found = too_large(place, counts, of_node.terms);
  return found ? found : too_large(place, counts_[place], of_node.terms);
}

}  // namespace lockstep
