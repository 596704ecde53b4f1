// The seam between a rank's model and the other ranks, as the table of ops is the one between a
// model and its kernels: a seeded fault is another table in which one entry is wrapped.
#pragma once

#include <functional>
#include <vector>

#include "kernels/base/check.h"
#include "kernels/ops.h"
#include "src/ranks/collectives.h"

namespace lockstep {

struct Exchange {
  // Adds `sum` over the ranks in place; point and layer of the context are those of the result.
  std::function<void(const OpContext&, TensorView sum)> all_reduce;
  // parts: [ranks, ...], row r is rank r's `part`.
  std::function<void(const OpContext&, TensorView parts, TensorView part)> all_gather;
  // The sum of the ranks' row r of parts is rank r's `part`.
  std::function<void(const OpContext&, TensorView parts, TensorView part)> reduce_scatter;
};

// One call of a collective, as each rank tells it to the others before it makes it.
struct CollectiveCall {
  enum class Kind : int64_t { all_reduce, all_gather, reduce_scatter };
  Kind kind = Kind::all_reduce;
  int64_t point = 0;   // its order
  int64_t layer = -1;  // -1: not of a layer
  int64_t bytes = 0;
  int64_t dtype = 0;
  bool operator==(const CollectiveCall&) const = default;
};
std::string text_of(const CollectiveCall& call);  // "all-reduce of layer 3 attn.o, 1536 bytes bf16"

// Ranks called different collectives, or in another order, and cannot go on.
class RanksParted : public Error {
 public:
  RanksParted(int rank, const CollectiveCall& theirs, const CollectiveCall& first);
  int rank;             // the first one that parts from rank 0
  CollectiveCall call;  // what rank 0 called
};

// Tells a rank's next call to the others, and returns those of all, by rank.
using TellCall = std::function<std::vector<CollectiveCall>(const CollectiveCall&)>;
// By an all-gather, where ranks have no memory in common.
TellCall told_by(Collectives& collectives);

// Calls the collectives, after the ranks have told each other which one it is. Counts them.
class AgreedCalls {
 public:
  // collectives: borrowed. waits is called before and after each, and may be empty.
  AgreedCalls(Collectives& collectives, TellCall tell,
              std::function<void(const CollectiveCall*)> waits)
      : collectives_(collectives), tell_(std::move(tell)), waits_(std::move(waits)) {}

  // All of a table; this must outlive it. Its calls throw RanksParted.
  Exchange table();

  int64_t calls() const { return calls_; }
  int64_t bytes() const { return bytes_; }

 private:
  void call(CollectiveCall::Kind kind, const OpContext& context, const TensorView& tensor,
            const std::function<void()>& run);

  Collectives& collectives_;
  TellCall tell_;
  std::function<void(const CollectiveCall*)> waits_;
  int64_t calls_ = 0, bytes_ = 0;
};

}  // namespace lockstep
