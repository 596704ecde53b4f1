#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "kernels/base/digest.h"
#include "probes/record.h"

namespace lockstep {

// The additive part of the digests of some tensors, and which rows they are of.
struct DigestSums {
  bool has_numbers = true;
  int64_t elements = 0, nan = 0, pos_inf = 0, neg_inf = 0, rows = 0;
  uint64_t which = 0;                // stands for the rows and their tokens, in any order
  std::map<int32_t, uint64_t> bits;  // by request: stands for the bits of its rows
  double sum = 0, sum_abs = 0, sum_squares = 0;

  void add(const Digest& digest);
  void add(const Row& row, int32_t token, uint64_t hash);
  void add(const DigestSums& other);
  bool same_rows(const DigestSums& other) const;

  // How far apart digests say that two traces are at a place: relative rms, as of their numbers.
  struct Distance {
    double least = 0;  // it is not less than that
    // It is likely not to be much more: differences that are independent of each other add up to
    // sums that differ by their rms times the root of their number, give or take.
    double likely = 0;
  };
  // Both are of the same rows. The likely distance scatters as a normal number does.
  Distance distance_to(const DigestSums& other) const;
};

// The digests of two traces, which are of all rows of a pass each, over the passes that together
// computed the same rows: another chunking or batching puts a row beside others.
class DigestComparison {
 public:
  // The passes that each row (request, position) is computed in.
  using Rows = std::map<std::pair<int32_t, int32_t>, std::vector<int>>;
  using Sums = std::map<std::pair<int, size_t>, DigestSums>;  // by pass and place
  DigestComparison(const Rows& rows_a, const Rows& rows_b, const Sums& a, const Sums& b);

  // Returns what they say of the rows of a pass of the first trace at a place, together with the
  // rows that cannot be told from them, and of how many requests: those whose bits differ. Nothing
  // where the two are not of the same rows and tokens, have no numbers, or where a row that is not
  // wanted may be what differs.
  struct Found {
    DigestSums::Distance distance;
    int requests = 1;
  };
  std::optional<Found> at(int pass, size_t place,
                          const std::function<bool(const Row&)>& wanted) const;

 private:
  using Key = std::pair<int, size_t>;                                 // group of passes, place
  std::map<int, int> group_of_a_;                                     // by pass
  std::map<int, std::map<int32_t, std::vector<int32_t>>> positions_;  // by group, request
  std::map<Key, std::pair<DigestSums, DigestSums>> sums_;
};

}  // namespace lockstep
