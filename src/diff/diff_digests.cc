// Digests have sums over whole tensors, and a tensor has all rows of a pass. Passes of a and b that
// share rows are joined into groups until both sides of a group are of the same rows; the sums of a
// group can then be compared, whatever the chunking. Two sums that differ bound the distance from
// below (the triangle inequality), and say what it likely is when the differences of elements are
// independent.
#include "src/diff/diff_digests.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace lockstep {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Sets of passes that have rows in common. Union-find, with paths that are shortened as they are
// walked.
class Groups {
 public:
  explicit Groups(size_t passes) : parent_(passes) { std::iota(parent_.begin(), parent_.end(), 0); }
  int of(int pass) {
    int& parent = parent_[pass];
    if (parent != pass) parent = of(parent);
    return parent;
  }
  void join(int a, int b) { parent_[of(a)] = of(b); }

 private:
  std::vector<int> parent_;
};

int passes_of(const DigestComparison::Rows& rows) {
  int passes = 0;
  for (const auto& [row, in] : rows)
    for (const int pass : in) passes = std::max(passes, pass + 1);
  return passes;
}

// Sums of such numbers do not depend on the order of rows, and differ where a row, its token or its
// bits do.
uint64_t mixed(uint64_t x, uint64_t more) {
  x = (x + more + 0x9e3779b97f4a7c15u) * 0xbf58476d1ce4e5b9u;
  return x ^ (x >> 31);
}

// |difference| beside a size, never divided by zero.
double ratio(double difference, double size) {
  if (difference == 0) return 0;
  return size > 0 ? std::fabs(difference) / size : kInfinity;
}

}  // namespace

void DigestSums::add(const Digest& digest) {
  has_numbers = has_numbers && digest.has_numbers();
  if (!has_numbers) return;
  elements += digest.count;
  nan += digest.nan, pos_inf += digest.pos_inf, neg_inf += digest.neg_inf;
  sum += digest.mean * static_cast<double>(digest.finite());
  sum_abs += digest.sum_abs;
  sum_squares += digest.sum_squares;
}

void DigestSums::add(const Row& row, int32_t token, uint64_t hash) {
  ++rows;
  const auto request = static_cast<uint32_t>(row.request);
  const uint64_t at = mixed(request, static_cast<uint32_t>(row.position));
  which += mixed(at, static_cast<uint32_t>(token));
  bits[row.request] += mixed(at, hash);
}

void DigestSums::add(const DigestSums& other) {
  has_numbers = has_numbers && other.has_numbers;
  elements += other.elements, rows += other.rows, which += other.which;
  nan += other.nan, pos_inf += other.pos_inf, neg_inf += other.neg_inf;
  for (const auto& [request, sum_of_bits] : other.bits) bits[request] += sum_of_bits;
  sum += other.sum, sum_abs += other.sum_abs, sum_squares += other.sum_squares;
}

bool DigestSums::same_rows(const DigestSums& other) const {
  return rows == other.rows && which == other.which && elements == other.elements;
}

DigestSums::Distance DigestSums::distance_to(const DigestSums& other) const {
  if (nan != other.nan || pos_inf != other.pos_inf || neg_inf != other.neg_inf)
    return {kInfinity, kInfinity};
  const double size = std::sqrt(sum_squares);
  const double least = ratio(size - std::sqrt(other.sum_squares), size);
  const double of_sums =
      std::hypot(ratio(sum - other.sum, size), ratio(sum_abs - other.sum_abs, size));
  return {least, std::max(least, of_sums / std::sqrt(2.0))};
}

DigestComparison::DigestComparison(const Rows& rows_a, const Rows& rows_b, const Sums& a,
                                   const Sums& b) {
  const int passes_a = passes_of(rows_a);
  Groups groups(passes_a + passes_of(rows_b));
  for (const auto& [row, in_a] : rows_a) {
    const auto other = rows_b.find(row);
    for (const int pass : in_a) groups.join(pass, in_a.front());
    if (other == rows_b.end()) continue;
    for (const int pass : other->second) groups.join(passes_a + pass, in_a.front());
  }
  for (const auto& [row, in_a] : rows_a)
    for (const int pass : in_a) {
      group_of_a_[pass] = groups.of(pass);
      positions_[groups.of(pass)][row.first].push_back(row.second);
    }
  for (const auto& [key, sums] : a) sums_[{groups.of(key.first), key.second}].first.add(sums);
  for (const auto& [key, sums] : b)
    sums_[{groups.of(passes_a + key.first), key.second}].second.add(sums);
}

// A group in which a row differs that is not wanted tells nothing of those that are.
std::optional<DigestComparison::Found> DigestComparison::at(
    int pass, size_t place, const std::function<bool(const Row&)>& wanted) const {
  const auto group = group_of_a_.find(pass);
  if (group == group_of_a_.end()) return {};
  const auto found = sums_.find({group->second, place});
  if (found == sums_.end()) return {};
  const auto& [a, b] = found->second;
  if (!a.has_numbers || !b.has_numbers || !a.same_rows(b)) return {};
  int requests = 0;
  for (const auto& [request, bits] : a.bits) {
    const auto other = b.bits.find(request);
    if (other != b.bits.end() && other->second == bits) continue;
    ++requests;
    for (const int32_t position : positions_.at(group->second).at(request))
      if (!wanted({request, position})) return {};
  }
  return Found{a.distance_to(b), std::max(requests, 1)};
}

}  // namespace lockstep
