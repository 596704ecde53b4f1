// An attention whose parts hypotheses can have otherwise, in fp64 and one request at a time.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "reference/hypotheses/asked.h"

namespace lockstep {

// The parts that are otherwise than they should be; empty: as they should be. Functions that are
// set are called once a request.
struct Attention {
  // The queries of one request and what they read.
  class Part {
   public:
    size_t number = 0;   // of the request among those of the pass
    int64_t length = 0;  // of the context: keys in the cache, those of this pass included
    int64_t first = 0;   // position of the first query of the pass
    int64_t window = 0;  // keys that a query sees; 0: all

    const at::Tensor& k() const;  // [kv heads, keys, dim]
    const at::Tensor& v() const;
    void set_cache(const at::Tensor& k, const at::Tensor& v);
    // The position of the first key of the cache, where it is not 0.
    void set_first_key(int64_t position);
    // Broadcast against each other: [queries, 1] and [1, keys].
    const at::Tensor& positions() const;
    const at::Tensor& keys() const;
    at::Tensor in_window() const;  // [queries, keys]

   private:
    friend class Attending;
    struct Tensors;
    std::shared_ptr<Tensors> tensors_;
  };

  std::function<at::Tensor(const at::Tensor& q)> query;        // [heads, queries, dim]
  double scale = -1;                                           // of scores; < 0: head_dim^-0.5
  std::vector<int64_t> kv_head;                                // by query head
  std::function<at::Tensor(const Part&)> mask;                 // true: seen
  std::function<int64_t(const Part&)> extra;                   // keys past the context, NaN
  std::function<Part(const Part&)> other;                      // with another cache
  std::function<at::Tensor(const at::Tensor& scores)> scores;  // after they are scaled
  // Added to them then, [heads, queries, keys] or what broadcasts to it.
  std::function<at::Tensor(const Part&)> bias;
  // Weights [heads, queries, keys] of masked scores, and then the result of weights and V [heads,
  // keys, dim].
  std::function<at::Tensor(const at::Tensor& scores)> softmax;
  std::function<at::Tensor(const Part&, const at::Tensor& scores, const at::Tensor& v)> mix;
  // A query that sees no key may also give NaN, as 0 / 0 is: where that was stored, it does.
  bool unseen_may_be_nan = false;
  // How many requests further on in the pass the cache, or the length, is another's; 0: its own.
  int cache_of = 0, length_of = 0;
  bool cache_of_first = false;  // the cache is that of the pass's first request
};

// [rows, heads, dim]; undefined where the pass has no such requests. fp64, from the exact scores to
// the last sum; rounded nowhere but where `how` does.
at::Tensor attend(const Asked& asked, const Attention& how);

// Usual numbers of keys to a split, but for those that hold the longest context whole.
std::vector<double> key_splits(const Asked& asked);

}  // namespace lockstep
