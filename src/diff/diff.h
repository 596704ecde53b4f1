// Two traces against each other, without a checkpoint: what differs in structure, in bits, and by
// how much.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "probes/graph.h"
#include "probes/selection.h"
#include "src/judge/verdict.h"
#include "traces/trace.h"

namespace lockstep {

struct DiffOptions {
  Selection selection;  // nodes outside are not compared
};

// A node of `a` and how far `b` is from it.
struct DiffNode {
  NodeId id;
  int32_t position = 0;     // of first_bits the first row that differs, of first_kind the worst
  double relative = 0;      // rms of the difference / rms of a; a lower bound from digests
  int requests = 1;         // that the bound is of together: which of them differ is not known
  bool of_element = false;  // relative and limit are of one element of the row at `position`
  double limit = 0;         // what noise explains: kDiffGrowth times the inputs', and own noise
  bool measured = false;    // by the numbers themselves
  // Why no noise at all explains it, however small it is; empty: the numbers alone tell.
  std::string reason;
};

// All rows of one place that both traces have.
struct DiffPlace {
  Place place;
  int64_t rows = 0, equal = 0;         // of equal bits
  int64_t measured = 0;                // elements compared as numbers
  double difference_rms = 0, rms = 0;  // over those; rms of a
  double ulps = 0;                     // difference_rms in ulp of rms, coarser dtype of the two
};

// The judgement of one of the two traces against the oracle.
struct DiffJudgement {
  std::string trace;  // its path
  RunVerdict verdict = RunVerdict::inconclusive;
  std::string story;
};

enum class DiffVerdict : uint8_t { identical, noise, different, inconclusive };
const char* name_of(DiffVerdict verdict);

struct DiffResult {
  DiffVerdict verdict = DiffVerdict::inconclusive;
  std::string story;  // one sentence
  int64_t rows = 0, equal = 0;
  int64_t only_a = 0, only_b = 0;  // rows that the other trace lacks
  // Those of them that the other one neither computed nor found in its cache: they make it another
  // run, and are not only rows that it does not show.
  int64_t more_a = 0, more_b = 0;
  int64_t unmeasured = 0;              // rows of other bits without numbers that say how far apart
  std::optional<DiffNode> first_bits;  // first node in graph order with other bits
  std::optional<DiffNode> first_kind;  // first that differs by more than noise explains
  int64_t unmeasured_before = 0;       // those of `unmeasured` in places before it
  std::vector<DiffPlace> places;
  std::vector<std::string> structure;  // what makes the two no runs of the same thing, in sentences
  std::vector<DiffJudgement> judged;   // both, when a checkpoint was at hand; else empty
};

// Noise is judged without an oracle: an op passes on its inputs' relative difference at most
// kDiffGrowth-fold and adds some roundings of its own. That is asked of all rows of a request
// together and, kDiffOutlier times as much, of each element, by the worst of its inputs' elements.
// Where one of the traces does not show an op, the op's inputs stand for it, and it adds roundings
// of its own; elements are not asked then. That is a screen: it names a suspect, and only a
// judgement against the oracle tells which of the two is wrong.
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
// until the two were fed different tokens or chose different experts. Throws Error when a trace
// cannot be read or the selection names layers that a model has not, and where a trace's best of
// logits are not those of its tensors (top_logits.h).
DiffResult diff(TraceReader& a, TraceReader& b, const DiffOptions& options);

// 0 identical or noise, 1 different, 2 inconclusive.
int exit_status(const DiffResult& result);

}  // namespace lockstep
