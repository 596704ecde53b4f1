// The engine under test: small enough to be read, and with the parts of a real server that go
// wrong: paged K/V, continuous batching, chunked prefill, prefix caches, preemption, forks, CUDA
// graphs.
//
//     submit() -> Scheduler::next -> Plan: pages out, copies, fresh, in; what to compute
//              -> prepare_cache         moves pages, fills fresh ones with a value that is seen
//              -> make_batch            tokens, positions, slots, page tables, rotary rows
//              -> Model::forward        or its CUDA graph; every point goes to the Probe
//              -> draw, take            tokens, and what ends a request
//
// A step is one pass over chunks of several requests. Everything of it is decided on the host, and
// the device is waited for once, when its tokens are wanted. Where CUDA graphs are replayed and all
// that is running adds its most likely token, the pass of the next step is queued before that, so
// that the device need not wait for the host; it is computed anew if a text ended meanwhile, or
// another request or probe came.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/thread_pool.h"
#include "src/engine/decode_graphs.h"
#include "src/engine/options.h"
#include "src/engine/scheduler.h"
#include "src/model/model.h"

namespace lockstep {

// An engine: it serves many requests at once over one pool of K/V pages by continuous batching. It
// owns weights, pool and threads; one thread calls it.
class Engine {
 public:
  // Callbacks within a step, which may change it; meters and seeded faults use them. Each may be
  // empty, and then costs a branch a step; with any of them no pass is queued ahead.
  struct Hooks {
    // Called with the plan of a step, before the cache is prepared for it. A hook that moves a page
    // in a sequence's table must move its holder in the pool too.
    std::function<void(Plan&, PagePool&)> after_plan;
    // The arguments of the pass.
    std::function<void(Batch&)> before_pass;
    // The arguments of a graph, in device memory, before it is replayed.
    std::function<void(const Batch&)> before_replay;
  };

  // `ops` are those of options.device. The checkpoint must outlive the engine. Throws Error when
  // memory for weights or pool is missing.
  Engine(const Checkpoint& checkpoint, Ops ops, const EngineOptions& options, Hooks hooks = {});
  ~Engine();  // waits for what it queued
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Queues a request and returns its id: 0, 1, ... Once its prompt is computed, its further samples
  // are forked off under new ids. Throws Error when the prompt is empty, a token is outside the
  // vocabulary, a number of its sampling is out of range, or the request can never fit.
  int32_t submit(Request request);

  // A second request that goes on from where `parent` stands, sharing its pages, and has `max_new`
  // more tokens to choose. Throws Error when the parent is not running.
  int32_t fork(int32_t parent, int64_t max_new);

  // Computes one pass and chooses the tokens that it makes possible. Returns false when no request
  // is pending; by then every record has been delivered to the sink. Throws Error when an op fails;
  // requests are then in the middle of a pass, and the engine is of no further use.
  bool step(Probe& probe);

  // The requests that ended since the last call whose K and V nobody can find again: they were
  // shared with no fork, and no prefix cache keeps them.
  std::vector<int32_t> take_ended() { return std::exchange(ended_, {}); }

  // How many passes were computed that had been queued before the tokens of the last one were here.
  int64_t passes_ahead() const { return passes_ahead_; }

  const Model& model() const { return model_; }
  const PagePool& pool() const { return pool_; }
  // References hold as long as the engine: sequences are never moved or deleted.
  const Sequence& sequence(int32_t id) const { return sequences_[id]; }
  int32_t requests() const { return static_cast<int32_t>(sequences_.size()); }

 private:
  using Chunks = std::vector<Plan::Chunk>;
  Chunks plan_pass();
  void prepare_cache(const Plan& plan);
  PassInfo describe(const Chunks& chunks);
  void describe_holders(PassInfo& info) const;
  Forward compute(PassInfo info, Probe& probe, DigestedPass& digested);
  Forward compute_on_device(Batch batch, Probe& probe, DigestedPass& digested);
  bool goes_on(const Chunks& chunks, Probe& probe) const;
  TensorView go_ahead(const Chunks& chunks, const TensorView& chosen, Probe& probe);
  TensorView fetch_tokens(const Chunks& chunks, const Forward& forward, Probe& probe,
                          DigestedPass digested);
  void drop_ahead();
  void advance(const Chunks& chunks, const Forward& forward);
  // A sequence that chooses its next token by a row of the logits.
  struct Choice {
    Sequence* sequence;
    int64_t row;
    int32_t token;
  };
  void draw(std::vector<Choice>& choices, const Forward& forward) const;
  void take(const Choice& choice, const Forward& forward);
  Ending ending_of(const Sequence& sequence) const;

  ThreadPool threads_;
  EngineOptions options_;
  Hooks hooks_;
  Model model_;
  RopeCache tables_;
  std::vector<Tensor> cache_storage_;
  std::vector<KvCache> caches_;  // one a layer
  DecodeGraphs graphs_;
  Tensor poisoned_;  // what some pages of one of them hold when they are handed out
  Tensor tokens_;    // chosen by the last pass on a device, in host memory
  Chunks ahead_;     // of the pass that is queued already; empty: none is
  PagePool pool_;
  Scheduler scheduler_;
  std::deque<Sequence> sequences_;                  // a deque: the scheduler points into it
  std::map<int32_t, std::vector<Tensor>> swapped_;  // by request: its pages, layer by layer
  std::set<int32_t> forked_;                        // and who was forked
  std::vector<int32_t> ended_;
  int64_t steps_ = 0;
  int32_t passes_ = 0;
  int64_t passes_ahead_ = 0;
};

// Pages for all of `requests` at once, and some to spare: a table that points at a wrong page then
// mostly points at an unused one. Throws Error when that is more than a pool can have.
int64_t pages_for(const std::vector<Request>& requests, int64_t page_size);

}  // namespace lockstep
