// Attention in shares: what each share of the keys holds, and how its results are measured.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "probes/graph.h"
#include "src/judge/budget.h"
#include "src/judge/ledger.h"

namespace lockstep {

// The graph of a model with the shares that another graph shows of its attentions.
Graph with_shares_of(const Graph& shown, const Graph& model);
// The graph in which each attention reads what its op reads alone: the shares that it was merged of
// say where an error of it was made, and are read by none.
Graph without_merges(const Graph& graph);

// The shares that a tensor of that point and shape has beside queries [rows, heads, head_dim]; 0:
// it is not as these have it.
int64_t shares_in(const Point& point, const Shape& shape, const Shape& queries);

// The dtype that an op rounds to on the way to a result in `stored`: shares are fp32 in a run of 16
// bits too, and their weights and scores are what the run's attention has.
DType dtype_inside(const Place& place, DType stored, DType run);

// The attn.partial of the same layer.
Place partial_of(const Place& place);
// The shares that a tensor of the place is to have: as many as the partial results that were
// recorded beside it, null: none were; else as many as it has itself, and one where its shape fits
// no queries.
int64_t shares_wanted(const Place& place, const RecordedTensor& tensor,
                      const RecordedTensor* partial, const Shape& queries);
// A shape that was wanted of a place, for people. Where the one that was found is wrong in more
// than its shares, there may be any number of these.
std::string wanted_text(const Place& place, const Shape& wanted, const Shape& found);

// The first position of each share of a request of that length, and the position past the last one
// (points.h, attn.partial): a share is whole pages, and is empty where there are fewer pages than
// shares. page_size, shares: above 0.
std::vector<int64_t> share_begins(int64_t length, int64_t page_size, int64_t shares);

// A share in which a query sees no key has a logarithm of -Inf, on both sides: no number can be
// measured, and it is right. Puts 0 in both places, in copies that `kept` owns, and holds the
// element to its limit alone. -Inf on one side stays.
void pass_empty(std::span<const double>& want, std::span<const double>& got, Budget& budget,
                std::vector<double>& kept);

// Whether the shares of a pass can be what is wrong with what was merged of them.
class ShareDoubts {
 public:
  // Enters the outcomes of a share under each of its contracts. strictest: the first of these.
  void add(const Place& share, int32_t request, std::span<const NodeOutcome> outcomes,
           RoundingContract strictest);

  // Those of the places that have no verdict.
  std::vector<Place> unjudged(const std::vector<Place>& shares, int32_t request) const {
    return of(Kind::unjudged, shares, request);
  }
  // Those that are right, but not under the contract that allows least.
  std::vector<Place> loose(const std::vector<Place>& shares, int32_t request) const {
    return of(Kind::loose, shares, request);
  }
  // Those that are wrong whatever their contract.
  std::vector<Place> wrong(const std::vector<Place>& shares, int32_t request) const {
    return of(Kind::wrong, shares, request);
  }

 private:
  enum class Kind : uint8_t { unjudged, loose, wrong };
  std::vector<Place> of(Kind kind, const std::vector<Place>& shares, int32_t request) const;

  std::map<std::tuple<int, int, int32_t>, Kind> kinds_;  // by order of the point, layer, request
};

}  // namespace lockstep
