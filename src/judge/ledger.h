#pragma once

#include <array>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "src/judge/verdict.h"
#include "src/stats/error_sums.h"

namespace lockstep {

// The outcome of one node.
struct NodeOutcome {
  int place = 0;  // index into graph.places()
  int32_t pass = 0;
  int32_t request = 0;
  Verdict verdict = Verdict::bitwise;
  bool tried = true;  // false: under this contract the node was not judged, what it holds is
                      // that of one which it fits
  Finding finding;    // when is_finding(); place, pass and request are filled in here
  bool reads_unstored = false;  // its contract reads a sum that the trace has only rounded
  double t1 = 0, t2 = 0;        // in units of their limits
  bool has_t2 = false;          // it was made, of enough elements
  double of_row = 0;            // of the element that t1 is of, as in Finding
  double limit_ratio = 0;       // the largest statistic, in units of its limit
  int32_t position = 0;         // of the worst element's row
  ErrorSums sums;
  int ancestor = -1;       // of a propagated or confounded node: its finding; -1: an overflow
  bool overflows = false;  // nonfinite as the exact result is too, which is no finding
  bool passes_on = false;  // nonfinite only because an input of the op is
  Verdict besides = Verdict::bitwise;  // then: what its finite elements come to
  int64_t excluded = 0;                // elements in no statistic, as they are not finite
  bool blank = false;                  // all of them are
  double largest = 0;                  // of its finite elements, by size
  int64_t later_of_equals = 0;  // tokens that are a later one of equal logits, where any may be
  std::string reason;           // of an inconclusive node
  bool unrecorded = false;      // inconclusive since no pass so far had a tensor of the point
  ErrorProfile errors;          // of its wrong rows; empty where nothing is known of them
  std::vector<WrongRow> wrong;  // over their budgets, or of other bits where all must be the same

  // Whether it is a difference to report.
  bool is_finding() const;
};
// The outcome of a node that could not be judged.
NodeOutcome inconclusive(std::string reason);
// The outcome of a node whose tensor is not as the model has it. position: of its first row.
NodeOutcome structural(std::string rule, int32_t position);

// Keeps what came out of every node and makes the Result of it. It keeps an entry a node and sums a
// place, and no tensor, so that its memory grows by some bytes a node.
class Ledger {
 public:
  explicit Ledger(const Graph& graph);

  const std::vector<Place>& places() const { return places_; }
  // Enters one expected node. Returns its finding's number, -1 when it is none.
  int enter(NodeOutcome outcome);
  // Counts nodes that the trace does not hold and that are judged with those that read them.
  void hide(int64_t nodes) { hidden_ += nodes; }
  // A finding that is no expected node's, e.g. of a tensor that the model does not have.
  void stray(const Finding& finding);
  // Turns a node that was entered into a finding that only showed later, unless it is one already.
  // False when no such node was entered. The node is one of embed, logits or token, or
  // inconclusive: of others nothing but counts is kept, for a long run has very many.
  bool regrade(int place, int32_t pass, int32_t request, const Finding& finding);
  // Turns the first node of a place into a finding of all of them together; false when one of them
  // is a finding of its own or none was judged.
  bool regrade_all(int64_t place, Finding finding);
  // Adds to what is said of each finding of a place.
  void explain(int64_t place, const std::string& words);
  bool any_finding() const { return !findings_.empty(); }
  bool any_finding_at(const Point& point) const;
  bool any_finding_at(int64_t place) const { return sums_[place].found; }
  bool any_judged_at(int64_t place) const { return sums_[place].first.has_value(); }
  const Place& place_of_finding(int number) const;
  // Places of which every element that was compared is 0, right or wrong.
  std::vector<Place> places_of_zeros() const;
  // A statistic in units of its limit, of no single node.
  void limit_ratio(double value) { limit_ratio_ = std::max(limit_ratio_, value); }
  void note(const std::string& sentence) { notes_.push_back(sentence); }
  // NodeOutcome::later_of_equals of all nodes.
  int64_t later_of_equals() const { return later_of_equals_; }

  // Counts, findings in order, places, notes. Verdict and story are not filled in. The findings are
  // in the order of the computation (pass, place, request), those about contracts alone after all
  // others.
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
    bool same_node(const Entry& other) const {
      return place == other.place && pass == other.pass && request == other.request;
    }
  };
  // The place that a finding of this one names.
  const Place& named(int64_t place) const;
  void regrade(Entry entry, const Finding& finding);
  void ask_other_rules(const NodeOutcome& outcome);
  struct Sums {
    PlaceSummary summary;
    ErrorSums errors;
    bool has_t2 = false;
    double largest = 0;  // NodeOutcome::largest
    EnumArray<Verdict, int64_t> counts = {};
    std::optional<Entry> first;  // that was judged
    bool found = false;          // any of its nodes is a finding
  };

  std::vector<Place> places_;
  std::vector<Entry> entries_;  // those that may be regraded
  std::vector<Sums> sums_;      // by place
  std::vector<Finding> findings_;
  std::map<std::string, int64_t> reasons_;
  std::vector<std::string> notes_;
  int64_t hidden_ = 0, later_of_equals_ = 0;
  double limit_ratio_ = 0, largest_ = 0;
  bool compared_ = false;  // any node, with the reference models
  std::optional<Place> first_not_close_, first_over_floor_;
};

// "layer 2 attn.q_rope", "logits".
std::string text_of(const Place& place);

}  // namespace lockstep
