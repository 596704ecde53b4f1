// Whether an op gives the same bits for the same inputs, whatever happens around it: requests are
// served again and again, the rows that their ops stored are lined up, and each op is said to
// depend on what was otherwise where its bits differ.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/names.h"
#include "src/judge/mode_comparer.h"
#include "src/judge/verdict.h"

namespace lockstep {

// The one thing that is otherwise between two servings of which the bits are compared.
enum class Circumstance : uint8_t {
  nothing,  // the very same again
  graph,    // replayed from CUDA graphs, or launched op by op
  threads,  // another number of them
  place,    // other requests before and behind it in a batch of the same size
  batch,    // another number of requests in the batch
  lengths,  // as many requests in the batch, of other lengths, and as many rows in each pass
};
template <>
inline constexpr auto kNamesOf<Circumstance> =
    std::to_array<const char*>({"nothing", "graph", "threads", "place", "batch", "lengths"});

// One serving of one request that was asked for.
struct ServingFacts {
  int32_t request = 0;
  int64_t batch = 1;  // requests in it
  int64_t place = 0;  // of this one among them
  int threads = 0;
  bool graph = false;
  int repeat = 0;       // how often the very same was served before
  bool uneven = false;  // the others are shorter and longer than it, and not as long

  std::string text() const;  // "second of 4 requests, 1 thread"
};

// The bits that one serving stored, every op having been given the inputs of the base.
struct RowBits {
  uint64_t hash = 0;
  int64_t rows = 0;     // of its pass
  bool decode = false;  // its phase
  double ulps = 0;      // of the element that is furthest from the base's
};
// By place of the graph, by position of the request.
using ServedBits = std::vector<std::map<int32_t, RowBits>>;

// Sees a serving of one request among others: compares each row with the base's and overwrites it
// by that, as a ModeComparer does. What the cache holds is taken down as it is: of each position,
// as the last pass that reads it finds it.
class BitWatch final : public Sink {
 public:
  // request: its id in this engine; base_request: in `base`, which is borrowed as `bits` is. A base
  // without rows: they are kept as they are.
  BitWatch(const BaselineRows& base, int32_t base_request, int32_t request, ServedBits& bits);

  bool wants(const Point&, int) const override { return true; }
  bool writes() const override { return true; }
  // A row of the pass counts as it was when the op stored it; the base's is written over it
  // afterwards.
  void begin(const PassInfo& pass) override { pass_ = pass; }
  void record(const Record& record) override;
  void end() override {}

 private:
  // How far K and V of a row of attn.kv are from those that the base gave to be written.
  double ulps_of_cache(const Place& place, const Row& row, const TensorView& got) const;

  const BaselineRows& base_;
  int32_t base_request_, request_;
  ServedBits& bits_;
  PassInfo pass_;
};

// The bits of one op, as far as they are known.
struct OpBits {
  enum class SameFor : uint8_t {
    always,    // the same, whatever was tried
    of_batch,  // the same for a batch size
    vary,      // they depend on more
  };

  Place place;
  SameFor bits = SameFor::always;
  std::vector<Circumstance> depends_on = {};  // empty: on nothing that was tried
  // Whether the op's header (kernels/ops.h) lets them: only products with weights may depend on the
  // batch, and none on nothing at all.
  bool allowed = true;
  int64_t compared = 0, differ = 0;  // rows, in pairs of servings
  double ulps = 0;                   // that the furthest element is from the base's
  std::string first = {};            // the first pair that differs, for people
  int64_t terms = 0;                 // that it sums for an element; 0: keys, or nothing
  int32_t from = 0, least = 0;       // the least position that differs, and that was compared
  // Numbers of rows of a pass by which bits are alike, of decode passes and of others: one group,
  // where they are not of the batch.
  std::vector<std::vector<int64_t>> decode = {}, prefill = {};
};
template <>
inline constexpr auto kNamesOf<OpBits::SameFor> = std::to_array<const char*>({"always", "of_batch",
                                                                              "vary"});

struct Determinism {
  RunVerdict verdict = RunVerdict::inconclusive;
  std::string story;
  std::vector<OpBits> ops;            // that were compared, in the order of the computation
  std::vector<std::string> servings;  // for people
  int64_t requests = 0;
  std::map<std::string, std::string> provenance;
  std::vector<std::string> notes;
};

// 0 clean, 1 diverged, 2 inconclusive.
int exit_status(const Determinism& determinism);

// The verdict on what was seen: servings[i] is what bits[i] are of. Two servings are compared when
// they differ in one circumstance alone.
Determinism determinism_of(const BaselineRows& base, const std::vector<ServingFacts>& servings,
                           const std::vector<ServedBits>& bits);

// Names what an op's bits depend on, and the sum whose order that may be: "on the batch: 1 | 2, 4
// rows of a decode pass; its sum of 128 products".
std::string text_of(const OpBits& op);

}  // namespace lockstep
