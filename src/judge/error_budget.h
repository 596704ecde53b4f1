#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "probes/graph.h"
#include "probes/recorder.h"

namespace lockstep {

class ErrorSharer;

// An op's share of the error of the logits. Shares may be under 0: errors that cancel others'.
struct ErrorShare {
  Place place;
  double share = 0;
  // The share that it has when it is the only op with an error: of the largest. The two differ by
  // what ops' errors do to each other.
  std::optional<double> alone = {};
  std::vector<Place> with = {};  // what was not recorded, and counts here
};

// Where the error of the logits comes from: how much of it each op's introduced error causes,
// whether or not any is over its budget.
struct ErrorBudget {
  // `rms` is the root mean square over all elements of the logits of `requests` requests; the
  // shares are of the squares, and come to 1 with `rest`.
  std::string none;  // why there is nothing to share out; empty: there is
  double rms = 0;    // of what the logits are off, from those of the fp64 model
  int64_t rows = 0, requests = 0;
  std::vector<ErrorShare> shares;  // in the order of the computation
  double rest = 0;                 // of the whole: what the shares lack of 1
  int steps = 0;                   // values between the exact model and the engine (error_sharer.h)
  int64_t recorded = 0, expected = 0;  // rows of ops
  std::string left_out;  // requests that are not in it, and why the first is not; empty: none
};

// A point's share over all layers, and the layers next to each other that have most of it.
struct PointShare {
  const Point* point = nullptr;
  double share = 0;
  int first = -1, last = -1;  // -1: it is of no layer, or spread over most of them
  double within = 0;          // the share of those layers
};
std::vector<PointShare> by_point(const ErrorBudget& budget);  // the largest first

// Gathers what passes show, request by request, and shares it out at the end. Keeps every tensor
// that it is shown in memory.
class ErrorBudgetMaker {
 public:
  // The graph is copied. Views of a pass share its tensors, so that add() copies no numbers.
  explicit ErrorBudgetMaker(const Graph& graph);
  ErrorBudgetMaker(ErrorBudgetMaker&&) noexcept;
  ~ErrorBudgetMaker();

  void add(const Pass& pass);
  // alone: of how many ops, the largest, the share is computed that they have alone.
  ErrorBudget make(ErrorSharer& sharer, size_t alone = 10);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lockstep
