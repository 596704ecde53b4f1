#pragma once

#include <array>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "src/judge/verdict.h"

namespace lockstep {

// Sums of squares over the elements of a node or a place.
struct ErrorSums {
  int64_t elements = 0;   // finite on both sides
  double introduced = 0;  // of got - O(x)
  int64_t compared = 0;   // and known of the reference models
  double propagated = 0;  // of O(x) - exact model
  double total = 0;       // of got - exact model
  double floor = 0;       // of rounded model - exact model
  // That torch.testing.assert_close, as it is by default for the dtype, takes for another number
  // than the rounded model's.
  int64_t not_close = 0;
  void add(const ErrorSums& other);
};

// What came out for one node.
struct NodeOutcome {
  int place = 0;  // index into places_of(graph)
  int32_t pass = 0;
  int32_t request = 0;
  Verdict verdict = Verdict::bitwise;
  Finding finding;        // when is_finding(verdict); place, pass and request are filled in here
  double t1 = 0, t2 = 0;  // in units of their limits
  double strain = 0;      // the largest statistic, in units of its limit
  int32_t position = 0;   // of the worst element's row
  ErrorSums sums;
  int ancestor = -1;            // of a propagated node: its finding's number; -1: an overflow
  bool overflows = false;       // nonfinite as the exact result is too, which is no finding
  bool passes_on = false;       // nonfinite only because an input of the op is
  std::string reason;           // of an inconclusive node
  bool unrecorded = false;      // inconclusive since no pass so far had a tensor of the point
  std::vector<WrongRow> wrong;  // over their budgets, or of other bits where all must be the same
};
// Whether it is a difference to report.
bool is_finding(const NodeOutcome& outcome);

// Keeps what came out of every node and makes the Result of it.
class Ledger {
 public:
  explicit Ledger(const Graph& graph);

  const std::vector<Place>& places() const { return places_; }
  // Enters one expected node. Returns its finding's number, -1 when it is none.
  int enter(NodeOutcome outcome);
  // A finding that is no expected node's, e.g. of a tensor that the model does not have.
  void stray(const Finding& finding);
  // Turns a node that was entered into a finding that only showed later.
  void regrade(int place, int32_t pass, int32_t request, const Finding& finding);
  // Turns the first node of a place into a finding of all of them together; false when one of them
  // is a finding of its own or none was judged.
  bool regrade_all(int place, Finding finding);
  bool any_finding() const { return !findings_.empty(); }
  const Place& place_of_finding(int number) const;
  // A statistic in units of its limit, of no single node.
  void strain(double value) { strain_ = std::max(strain_, value); }
  void note(const std::string& sentence) { notes_.push_back(sentence); }

  // Counts, findings in order, places, notes. Verdict and story are not filled in.
  Result result() const;
  // The most frequent reason why nodes are inconclusive; "" when none is.
  std::string main_reason() const;

 private:
  struct Entry {
    int32_t pass, request;
    int place;
    Verdict verdict;
    bool finding;
    int32_t position;
    int64_t* reason;  // how many nodes have that of this one; null: it has none
  };
  void regrade(Entry& entry, const Finding& finding);
  void ask_other_rules(const NodeOutcome& outcome);
  struct Sums {
    PlaceSummary summary;
    ErrorSums errors;
  };

  std::vector<Place> places_;
  std::vector<Entry> entries_;
  std::vector<Sums> sums_;  // by place
  std::vector<Finding> findings_;
  std::map<std::string, int64_t> reasons_;
  std::vector<std::string> notes_;
  double strain_ = 0;
  bool compared_ = false;  // any node, with the reference models
  std::optional<Place> first_not_close_, first_over_floor_;
};

// "layer 2 attn.q_rope", "logits".
std::string text_of(const Place& place);
// How grave: bitwise, rounding, propagated, inconclusive, structural, nonfinite, introduced.
int gravity_of(Verdict verdict);

}  // namespace lockstep
