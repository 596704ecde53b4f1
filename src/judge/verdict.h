// The result of a judgement as data. Reports are functions of it.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/names.h"
#include "probes/graph.h"
#include "src/judge/error_budget.h"
#include "src/judge/judged_rows.h"
#include "src/judge/reached.h"
#include "src/stats/error_profile.h"
#include "src/stats/shape_rule.h"
#include "src/stats/statistic_kind.h"

namespace lockstep {

enum class Verdict : uint8_t {
  bitwise,       // the bits of the exact result, rounded
  rounding,      // introduced error within the budget
  propagated,    // wrong, but not here: an ancestor introduced it, or overflows as it should
  confounded,    // over the budget, by what a finding before it brought in or by this op too
  introduced,    // over the budget: this op did it
  nonfinite,     // NaN or Inf (Finding::rule says how it came)
  structural,    // missing, of another shape, dtype or rows, or not what its consumer read
  inconclusive,  // something needed was not captured
};
template <>
inline constexpr auto kNamesOf<Verdict> =
    std::to_array<const char*>({"bitwise", "rounding", "propagated", "confounded", "introduced",
                                "nonfinite", "structural", "inconclusive"});

// Whether a verdict is a difference to report: introduced, nonfinite or structural. A node that
// overflows as its exact result does is nonfinite and none.
bool is_finding(Verdict verdict);

// The verdict on a whole run.
enum class RunVerdict : uint8_t {
  clean,         // every node that was expected was judged, and none is wrong
  diverged,      // there is a finding
  inconclusive,  // there is none, but something was not judged
};
template <>
inline constexpr auto kNamesOf<RunVerdict> = std::to_array<const char*>({"clean", "diverged",
                                                                         "inconclusive"});

// Names a node: the rows of one request in one pass at one place.
struct NodeId {
  Place place;
  int32_t pass = 0;
  int32_t request = 0;
  friend bool operator==(const NodeId&, const NodeId&) = default;
};

struct Finding {
  // A way in which an op may be computed wrongly that gives what the engine stored there.
  struct LooksLike {
    std::string says;  // "RMSNorm over blocks of 16"
    // Elements that were over their budgets, or where none was of other bits than the exact result
    // rounded, and how many of them come within it; and the same of nodes. Of those compared.
    int64_t elements = 0, of_elements = 0;
    int64_t nodes = 0, of_nodes = 0;
  };

  NodeId node;           // the first one, when the finding is that of all nodes of the place
  int32_t position = 0;  // of the worst element's row
  Verdict verdict = Verdict::introduced;
  std::optional<StatisticKind> statistic;  // none for structural and nonfinite
  double value = 0, limit = 0;
  // Worst element, of T3 and T4 in the slice that they name and of T3 among those that it counts:
  // [position, axes of the point ...]. Empty when no element is known: of hashes, and when the
  // finding is that of all nodes of the place together.
  std::vector<int64_t> index;
  double want = 0, got = 0;
  // How many budgets B the worst element is away; for T2 to T5 value / limit. Infinity where there
  // is no B: hashes, tokens.
  double budgets = 0;
  double of_row = 0;  // |got - want| over the root mean square of its row's exact results; 0: none
  std::string rule;   // which part of the tensor, and for structural what is wrong, for people
  // The hidden places that the op at `node` is judged together with, in graph order: one of them or
  // that op is wrong. Empty: the inputs of the op were recorded.
  std::vector<Place> region;
  // The rule that the wrong elements of the place follow, over all passes and requests.
  std::optional<ShapeRule> shape;
};

// All nodes of one place, over all passes and requests.
struct PlaceSummary {
  Place place;
  int64_t expected = 0, judged = 0;
  Verdict verdict = Verdict::bitwise;  // the gravest
  double worst_t1 = 0, worst_t2 = 0;   // in units of their limits
  double worst_of_row = 0;             // of the element that worst_t1 is of, as in Finding
  int32_t worst_request = 0, worst_position = 0, worst_pass = 0;
  double introduced_rms = 0, propagated_rms = 0, total_rms = 0;  // over all elements
  int64_t excluded = 0;  // elements in no statistic, because they are not finite
  std::string ancestor;  // of a propagated or confounded one: "layer 2 attn.q_rope"
  // False where the numbers above are of no element (hashes, nothing finite, nothing judged): of
  // worst_... and introduced_rms, and of what is compared with the fp64 model.
  bool measured = true, compared = true;
  bool has_t2 = true;   // false: of few elements and of bits there is no worst_t2
  ErrorProfile errors;  // of its findings; empty where no element of them is known
  // Explanations of its findings, each as good as the others; empty: nothing that was tried.
  std::vector<Finding::LooksLike> looks_like = {};
};

struct Flip {
  int32_t position = 0;
  int32_t engine = 0, reference = 0;  // token ids
  // How much the fp64 model prefers its token to the engine's, in ulp of the run's dtype.
  double margin_ulp = 0;
  bool explained = false;
  std::string ancestor;  // the finding that it stems from: "layer 2 attn.q_rope"; "": none is known
  std::string engine_text, reference_text;  // filled by whoever has a tokenizer
};

// How sure the fp64 model was of a choice: its best logit over its second best, in ulp of the run's
// dtype.
struct Margin {
  int32_t position = 0;
  double ulp = 0;
};

struct RequestResult {
  int32_t id = 0;
  std::string name;
  std::vector<int32_t> prompt, tokens, argmax;
  std::string text;  // filled by whoever has a tokenizer
  std::vector<Flip> flips;
  std::vector<Margin> margins;           // of the rows of logits that were compared
  std::vector<std::string> token_texts;  // of prompt and tokens, by whoever has a tokenizer
};

struct LogitsSummary {
  // Percentiles of a divergence over rows, by nearest rank, each where there are enough rows that
  // some are above it: 10 for the 90th, 1000 for the 99.9th.
  struct KlPercentiles {
    std::optional<double> median, p90, p95, p99, p999, max;
  };

  double max_abs = 0;         // engine against the fp64 model
  double kl_mean = 0;         // nats, of the engine's choices from those of the fp64 model
  double kl_reference = 0;    // the same of the model in the run's dtype
  KlPercentiles kl;           // of the rows that kl_mean is of
  double expected_flips = 0;  // by rounding alone, at most
  int64_t compared = 0, argmax_equal = 0, explained_flips = 0, unexplained_flips = 0;
  double least_margin_ulp = 0;  // smallest top-2 margin seen
};

// The outcome at one place that was found wrong when the run was made again with ops put right, and
// its worst elements were computed a second time by another hand than the oracle's.
struct Confirmation {
  Place place;
  bool confirmed = false;  // found again alone, gone when put right, and borne out
  std::string says;        // what was seen; where it is not confirmed, why not
};

// The subject of a verdict, and what it takes for granted.
struct Scope {
  int layers = 0;         // of the model
  std::string selection;  // Selection::text(): what of it was judged; "" for all
  JudgedRows rows;        // of the nodes of that
  int32_t positions = 0;  // of the longest request
  int64_t requests = 0;
  std::map<std::string, std::string> contracts;  // rounding contract by point name
  std::vector<std::string> found;  // the points whose contract was found, not declared
  std::string asked;   // the contracts that a person asked for over what is declared; "": none
  double largest = 0;  // of all numbers that were judged, by size
  std::vector<std::string> given;  // what both sides share, or nothing in the run can show
  int64_t references_checked = 0;  // results of the fp64 model that its own oracle bore out
};

struct Result {
  // The place that a rule in use elsewhere, which knows no op's inputs, would have blamed on the
  // same run: for measuring this judge against it. The first node in the order of findings; none:
  // nothing.
  struct OtherRule {
    const char* name;
    std::optional<Place> first;
  };

  // Everything is in units of its limits or in those of the tensors; nothing here refers to the
  // pass or the trace that it came from, so that a Result can be kept.
  RunVerdict verdict = RunVerdict::inconclusive;
  std::string story;  // one sentence a person can act on
  int64_t expected = 0, judged = 0;
  int64_t hidden = 0;  // nodes besides, which the trace does not hold: judged in others' regions
  EnumArray<Verdict, int64_t> counts;
  std::optional<Finding> first;  // in the order (pass, layer, point, request)
  std::vector<Finding> findings;
  int64_t excluded = 0;  // elements that no statistic counts, as they are not finite
  // The least multiplier on all limits under which there would be no finding; infinity where there
  // is one that no limit decides (bits, structure, NaN).
  double limit_ratio = 0;
  std::vector<OtherRule> others;            // empty without reference models
  std::map<OpKind, Reached> reached;        // by the nodes of points that round once
  std::vector<Confirmation> confirmations;  // empty: none was asked for
  std::vector<PlaceSummary> places;
  std::vector<RequestResult> requests;
  std::optional<LogitsSummary> logits;
  std::optional<ErrorBudget> error_budget;  // none: it was not asked for
  Scope scope;
  std::map<std::string, std::string> provenance;
  std::map<std::string, double> limits;
  std::string cache;               // what was checked of the K/V cache beside nodes; "": nothing
  std::vector<std::string> blind;  // what this run could not have seen: NAME (WHY): WHAT WOULD SHOW
  std::vector<std::string> notes;  // e.g. what was not captured
};

// 0 clean, 1 diverged, 2 inconclusive.
int exit_status(const Result& result);

}  // namespace lockstep
