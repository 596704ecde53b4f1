// The seam between a rank's model and the other ranks, as the table of ops is the one between a
// model and its kernels: a seeded fault is another table in which one entry is wrapped.
#pragma once

#include <functional>
#include <map>
#include <vector>

#include "kernels/base/check.h"
#include "kernels/ops.h"
#include "src/model/device_batch.h"
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

// One call of a collective, as each rank tells it to the others before it makes it; or all calls
// that were captured in a CUDA graph, before that is replayed.
struct CollectiveCall {
  enum class Kind : int64_t { all_reduce, all_gather, reduce_scatter, graph };
  Kind kind = Kind::all_reduce;
  int64_t point = 0;   // its order; of a graph, how many calls are in it
  int64_t layer = -1;  // -1: not of a layer
  int64_t bytes = 0;
  int64_t dtype = 0;  // of a graph, a hash of its calls in their order
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

// Calls the collectives, after the ranks have told each other which one it is. Counts them. Within
// a graph nobody on the host is asked: its calls were agreed on when it was captured, and that all
// ranks replay the same ones is agreed on before each replay.
class AgreedCalls {
 public:
  // collectives: borrowed. waits is called before and after each, and may be empty.
  AgreedCalls(Collectives& collectives, TellCall tell,
              std::function<void(const CollectiveCall*)> waits)
      : collectives_(collectives), tell_(std::move(tell)), waits_(std::move(waits)) {}

  // All of a table; this must outlive it. Its calls throw RanksParted.
  Exchange table();

  // The calls from here on are of that pass, with arguments that have that much room. Of a pass
  // that was computed just now they are captured, and not made again.
  void begin(int32_t pass, const DeviceBatch::Room& room);
  // Tells that a graph is replayed, which has the calls of the pass that began with that room.
  void replay(const DeviceBatch::Room& room);

  int64_t calls() const { return calls_; }
  int64_t bytes() const { return bytes_; }
  int64_t replays() const { return replays_; }

 private:
  struct OfPass {
    int64_t calls = 0, bytes = 0, order = 0;
  };
  void agree(const CollectiveCall& mine);
  void call(CollectiveCall::Kind kind, const OpContext& context, const TensorView& tensor,
            const std::function<void()>& run);

  Collectives& collectives_;
  TellCall tell_;
  std::function<void(const CollectiveCall*)> waits_;
  int64_t calls_ = 0, bytes_ = 0, replays_ = 0;
  int32_t pass_ = -1;
  OfPass outside_;                              // calls of no pass
  std::map<DeviceBatch::Room, OfPass> passes_;  // those of the last pass with that room
  OfPass* now_ = &outside_;
};

}  // namespace lockstep
