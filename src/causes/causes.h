// Why an op is wrong, not only that it is: findings are held against the ways in which such ops go
// wrong. It never changes a verdict, and computes nothing where there is no finding.
//
// The path of a finding:
//
//     flags of a pass -> Evidence       the op's inputs, what it stored, exact results and budgets
//                     -> hypotheses     the op computed wrongly in each known way (reference)
//                     -> Fit            how many wrong elements lie where the hypothesis has them
//                     -> candidates     of a place, tried again on all its later wrong nodes
//                     -> Finding::LooksLike      at the end: what explains them all, best first
//
// An op that reads what was not recorded is explained together with that (region.h): a cause is
// named with the hidden op that it is of.
// Ops that must be exact (caches, choices) are explained without arithmetic (exact.h).
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "src/causes/exact.h"
#include "src/causes/fit.h"
#include "src/causes/region.h"
#include "src/judge/halving_oracle.h"
#include "src/judge/hypotheses.h"
#include "src/judge/judge.h"

namespace lockstep {

// Looks into the findings of a run as its passes come, while what they were made of is there. The
// first nodes found wrong at a place are searched for what explains them, with parameters; what
// does is held against all of its later ones, and against nodes that are right. One thread at a
// time may use it. It asks the oracle and the hypotheses, and stops asking after so many passes of
// a place (causes.cc).
class Causes {
 public:
  // It is told before each hypothesis, as a search may take a minute (JudgeOptions::progress).
  using Progress = std::function<void(std::string_view doing, int layer)>;
  // Everything is borrowed. The judge is the one that judges the run.
  Causes(const Manifest& manifest, const Judge& judge, Oracle& oracle, Hypotheses& hypotheses,
         Progress progress = {});

  // After the judge has judged that pass; flags: what it returned.
  void add(const Pass& pass, std::span<const NodeId> flags);
  // The same after some places of it were judged: those that `judged` says.
  void add(const Pass& pass, std::span<const NodeId> flags,
           const std::function<bool(const Place&)>& judged);
  // Fills in PlaceSummary::looks_like of places that have findings.
  void put_into(Result& result) const;

 private:
  using Key = std::pair<int, int>;  // order of the point, layer
  // The part of what an op stored that is wrong: some columns, and the rows that a pass has wrong.
  struct WrongPart {
    bool of_rows = false;
    std::vector<bool> columns;  // empty: all
    std::string says;
  };
  struct Candidate {
    Guess guess;
    RoundingContract contract;  // that it is computed under
    std::string says;
    Fit fit;
    std::optional<WrongPart> part;  // where it holds alone
    bool is_general = false;        // says less than any other that fits
  };
  struct RegionCandidate {
    RegionInPass::Tried tried;
    std::string says;
  };
  struct OfPlace {
    std::vector<Candidate> candidates;         // that explain what was seen so far
    std::optional<RoundingContract> taken_as;  // by them, instead of what it is judged under
    int searches = 0, right_as_hf = 0;  // passes that were searched; in which hf explains it all
    int64_t passes = 0, right_passes = 0;
    std::set<bool> kinds;                    // of its wrong nodes: whether they decode
    Fit unexplained;                         // nodes of searches that found nothing
    std::vector<RegionCandidate> in_region;  // instead of candidates, where its op reads the hidden
    std::map<std::string, Fit> exact;        // of a place held to its bits, by what is said
    Fit all;                                 // and its nodes
  };
  struct Evidence;

  void add(const Pass& pass, const Place& place, const std::set<int32_t>& requests);
  void add_in_region(const Pass& pass, const Place& place, const std::vector<Place>& hidden,
                     const std::set<int32_t>& requests);
  static void add_exact(const std::vector<ExactNode>& nodes, OfPlace& of);
  static std::vector<Finding::LooksLike> exact_causes(const OfPlace& of);
  static std::vector<Candidate> best_causes(const OfPlace& of);
  static std::vector<Finding::LooksLike> in_words(std::vector<Candidate> good);
  void put_best_into(Result& result) const;
  static std::vector<Finding::LooksLike> region_causes(const OfPlace& of);
  // The same evidence as of an op of that contract; null where it cannot be of that.
  using EvidenceAsHf = std::function<std::unique_ptr<Evidence>()>;
  void search(const Evidence& evidence, const EvidenceAsHf& evidence_as_hf, OfPlace& of);
  // right_once: as Evidence::right_once().
  Fit search(const Evidence& evidence, const OpInPass& op, const Numbers& right_once,
             bool may_search_all, OfPlace& of);
  // Adds those that explain what was seen as candidates. Returns what there was to explain.
  Fit try_guesses(std::span<const Guess> guesses, OpHypotheses& asked, const Evidence& evidence,
                  RoundingContract contract, const Numbers& right_once, OfPlace& of) const;
  static bool is_same(const Candidate& a, const Candidate& b);  // of two in part
  bool may_search(const Place& place) const;
  // Says that hypotheses about the place are tried.
  void tell_of(const Place& place) const;
  // Whether its arithmetic is right, and its rounding alone not as declared.
  bool is_right_as_fused(const Place& place) const;
  void note_left_out(Result& result) const;

  const Manifest& manifest_;
  const Judge& judge_;
  HalvingOracle oracle_;
  Hypotheses& hypotheses_;
  Progress progress_;
  std::map<Key, OfPlace> places_;
  int regions_ = 0;               // searched in
  std::set<Key> left_out_;        // of whose op not all was tried, as others had it
  std::map<int, int> searched_;   // searches, by order of the point
  std::set<int> searched_as_hf_;  // points at which kernels of that contract were, in vain
  std::map<int, std::vector<Guess>> known_;  // that explained places of a point
};

}  // namespace lockstep
