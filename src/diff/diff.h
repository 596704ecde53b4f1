// Two traces against each other, without a checkpoint: what differs in structure, in bits, and by
// how much.
//
// The path of two traces:
//
//     AlikePairs        Q and K of both in halves, where one alone has them interleaved
//     MatchedRequests   b with the numbers that a gives to requests of the same tokens
//     DiffSide a, b     which pass computed a row (request, position), and what it shows of it
//     DiffTokens        each request until the two go different ways, and why they do
//     by place, in graph order, for each row that both have:
//       same bits       counted as equal
//       numbers         of a request's rows and elements (DiffNoise), of equal inputs (SameInputs)
//       digests alone   a lower bound and a likely distance of whole passes (diff_digests.h)
//     -> DiffResult     the first node of other bits, and the first that noise does not explain
//
// No oracle and no checkpoint take part. A judgement of each trace, where a checkpoint is at hand,
// is made elsewhere and entered by put_judgements().
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "probes/graph.h"
#include "probes/selection.h"
#include "src/judge/verdict.h"
#include "traces/trace.h"

namespace lockstep {

// All rows of one place that both traces have.
struct DiffPlace {
  Place place;
  int64_t rows = 0, equal = 0;         // of equal bits
  int64_t by_digest = 0;               // rows of other bits of which digests alone tell
  int64_t measured = 0;                // elements compared as numbers
  bool unlike = false;                 // finite in one only, another Inf, or another shape
  double difference_rms = 0, rms = 0;  // over those; rms of a
  double ulps = 0;                     // difference_rms in ulp of rms, coarser dtype of the two
};

struct DiffResult {
  enum class Verdict : uint8_t { identical, noise, different, inconclusive };

  // A node of `a` and how far `b` is from it.
  struct Node {
    // How much of what one op made of inputs of the same bits has other bits.
    struct Share {
      bool of_rows = false;  // else of elements: rows are counted where only their hashes are known
      int64_t different = 0, of = 0;
      double limit = 0;  // a share
    };

    NodeId id;
    int32_t position = 0;      // of first_bits the first row that differs, of first_kind the worst
    double relative = 0;       // rms of the difference / rms of a; a lower bound from digests
    int requests = 1;          // that the bound is of together: which of them differ is not known
    bool of_element = false;   // relative and limit are of one element of the row at `position`
    bool same_inputs = false;  // the limit is that of two right ops of the same inputs
    double limit = 0;          // what noise explains: kDiffGrowth times the inputs', and own noise
    bool measured = false;     // by the numbers themselves
    // Why no noise at all explains it, however small it is; empty: the numbers alone tell.
    std::string reason;
    // Instead of a distance: more of it differs than two right ops of the same inputs explain.
    std::optional<Share> share;
  };

  // Where the two take different ways: from there on the request is not compared.
  struct Flip {
    enum class Cause : uint8_t {
      near_tie,  // each chose the best of its own logits, or of its router's scores
      drawn,     // of other logits, in the same way: rounding may have decided
      unknown,   // the numbers that it chose by were not kept
      chosen,    // other inputs: another prompt, forced tokens, another way to draw
    };
    Cause cause = Cause::unknown;
    int32_t request = 0, position = 0;   // the first row that is not compared
    int layer = -1;                      // where other experts were chosen; -1: tokens were
    int32_t token_a = -1, token_b = -1;  // that were fed there; -1: none was
    // How much each prefers its own choice to the other's, the larger of the two, in ulp of the
    // larger logit; nothing: not known.
    std::optional<double> margin_ulp;
  };

  // Logits of rows that both have as numbers, as distributions.
  struct Logits {
    int64_t rows = 0;
    double kl_mean = 0, kl_max = 0;  // nats, of b's from a's
  };

  // The judgement of one of the two traces against the oracle.
  struct Judgement {
    std::string trace;  // its path
    RunVerdict verdict = RunVerdict::inconclusive;
    std::string story;
    std::optional<Place> first;                    // that introduces an error
    std::map<std::string, std::string> contracts;  // by point name, as it was judged under
  };

  Verdict verdict = Verdict::inconclusive;
  std::string story;  // one sentence
  int64_t rows = 0, equal = 0;
  int64_t only_a = 0, only_b = 0;  // rows that the other trace lacks
  // Those of them that the other one neither computed nor found in its cache: they make it another
  // run, and are not only rows that it does not show.
  int64_t more_a = 0, more_b = 0;
  int64_t unmeasured = 0;  // rows of other bits of which nothing says how far apart they are
  int64_t by_digest = 0;   // of which the digests of tensors alone do
  std::optional<Node> first_bits;  // first node in graph order with other bits
  std::optional<Node> first_kind;  // first that differs by more than noise explains
  bool kind_before = false;        // it is before all that was selected
  int64_t unmeasured_before = 0;   // those of both in places before it
  // The node that is furthest apart of those that noise explains; none: no numbers tell of any.
  std::optional<Node> furthest;
  // The first whose digests say more than noise makes likely, though not for certain.
  std::optional<Node> first_doubt;
  std::vector<DiffPlace> places;
  std::vector<Flip> flips;
  std::optional<Logits> logits;
  std::string trace_a, trace_b;  // their paths, filled by whoever knows them
  std::map<std::string, std::string> provenance_a, provenance_b;
  std::vector<std::string> structure;  // what makes the two no runs of the same thing, in sentences
  std::vector<std::string> renamed;    // requests that have another number in b, in sentences
  std::vector<std::string> remarks;    // what is to be known of either file, in sentences
  std::vector<Judgement> judged;       // both, when a checkpoint was at hand; else empty
};
template <>
inline constexpr auto kNamesOf<DiffResult::Verdict> =
    std::to_array<const char*>({"identical", "noise", "different", "inconclusive"});

// Noise is judged without an oracle. Where an op's inputs have the same bits in both traces, and
// both declare one contract for it, two right ops are two roundings apart, and few of their
// elements at all (same_inputs.h). Elsewhere an op passes on its inputs' relative difference at
// most kDiffGrowth-fold and adds some roundings of its own. That is asked of all rows of a request
// together and, kDiffOutlier times as much, of each element, by the worst of its inputs' elements.
// Where one of the traces does not show an op, the op's inputs stand for it, and it adds roundings
// of its own; elements are not asked then. That is a screen: it names a suspect, and only a
// judgement against the oracle tells which of the two is wrong.
//
// Of tensors that were not kept the digests tell, from below and by likelihood (diff_digests.h);
// where they do not, nobody can tell, and the verdict is inconclusive.
//
// Where a trace declares that its attention stores its scores rounded, that explains more (a bound
// of each element, diff_scores.h), and where its linear ops round their operands, the roundings are
// of that dtype. Other contracts round within an op once or twice more, which the above has room
// for.
//
// An op of class exact makes the same bits of the same inputs, so there is no noise then. What
// attn.kv shows are copies of rows of attn.k_rope and attn.v: they are its inputs, and its numbers.
// Indices are no numbers: of other inputs they may differ where each is of the largest of its own.
inline constexpr double kDiffGrowth = 8;
inline constexpr double kDiffOutlier = 2;

// Rows are compared by (request, position, layer, point), so that another chunking or batching
// makes no difference. What was computed several times is compared in that order, the last time of
// the one with all further times of the other, and a point that was not shown then with any time
// that shows it. Rows that one of the two does not show, or found in its cache, are counted and
// said, and make no difference; tokens that only one of them was fed do. A request is followed
// until the two were fed different tokens or chose different experts: where each chose the best of
// its own numbers, and these are within noise, that is noise too. Requests are paired by number, or
// by their tokens where those of a number differ (match_requests.h); one that the other trace does
// not have is a remark. What the traces say beside numbers is compared by diff_storage.h. Throws
// Error when a trace cannot be read or the selection names layers that a model has not, and where a
// trace's best of logits are not those of its tensors (top_logits.h).
DiffResult diff(TraceReader& a, TraceReader& b, const Selection& selection);

// Enters what a judgement of each says, and what follows: with both clean nothing is wrong, however
// far apart they are; with one of them clean the other is.
void put_judgements(DiffResult& result, std::vector<DiffResult::Judgement> judged);

// 0 identical or noise, 1 different, 2 inconclusive.
int exit_status(const DiffResult& result);

}  // namespace lockstep
