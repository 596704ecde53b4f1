#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "probes/selection.h"
#include "src/diff/diff.h"
#include "src/diff/diff_side.h"

namespace lockstep {

// Follows the requests of two traces until they take different ways, and says why they do.
class DiffTokens {
 public:
  // All are borrowed; what is found goes into `result`.
  DiffTokens(DiffSide& a, DiffSide& b, const Selection& selection, DiffResult& result)
      : a_(a), b_(b), selection_(selection), result_(result) {}

  // Whether the row comes after a place where its request took different ways.
  bool stopped(const Row& row) const {
    const auto stop = stopped_.find(row.request);
    return stop != stopped_.end() && row.position >= stop->second;
  }
  bool wanted(const Row& row) const { return !stopped(row) && selection_.has(row); }

  // The row was fed one token in a and another one in b.
  void fed(const Row& row, int32_t token_a, int32_t token_b);
  // Other experts were chosen for the row. tie: each of the best of its own scores; nothing: these
  // were not kept.
  void chose_experts(const Row& row, int layer, std::optional<bool> tie);
  // After all rows: what the traces list of each request. The last token is fed to no pass, so that
  // no row shows it. Where rows do show what is listed, they were compared, and lists that differ
  // all the same contradict one of the traces.
  void compare_requests();

  // Whether the indices that each shows there are of the largest of its own op's inputs, which it
  // shows at place `input`; nothing: these were not kept.
  std::optional<bool> are_of_largest(const ShownRow& x, const ShownRow& y, const Point& point,
                                     size_t input);

  // Whether each of two tokens is the best of the logits that its own trace kept of that row;
  // nothing: what was kept does not tell.
  std::optional<bool> is_tie(const Row& row, int32_t token_a, int32_t token_b) const;

 private:
  void name_alone(int32_t request, const char* trace);
  void compare_said(const RequestInfo& x, const RequestInfo& y);
  void compare_chosen(const Row& row, int32_t token_a, int32_t token_b, const char* how);
  void compare_more(const Row& row, bool in_a);
  void compare_likely(const RequestInfo& x, const RequestInfo& y);
  void compare_ends(const RequestInfo& x, const RequestInfo& y);
  // Why the token after the row, `position` - 1 of its request, is another one.
  DiffResult::Flip flip_of(const Row& row, int32_t token_a, int32_t token_b) const;
  DiffResult::Flip::Cause cause_of(const Row& chosen_at, const DiffResult::Flip& flip) const;
  std::optional<double> margin_ulp(const Row& row, int32_t token_a, int32_t token_b) const;
  void stop(const DiffResult::Flip& flip, const std::string& sentence);
  // One of the traces says something of a request that is not so.
  void contradict(const std::string& sentence);

  DiffSide &a_, &b_;
  const Selection& selection_;
  DiffResult& result_;
  std::map<int32_t, int32_t> stopped_;  // request -> first position not compared
};

}  // namespace lockstep
