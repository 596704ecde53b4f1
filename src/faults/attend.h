// An attention of its own for faults to get wrong: plain fp32 on the CPU, several passes over the
// keys, slow on purpose.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "src/faults/seeds.h"

namespace lockstep {

// Where a query stands in its request.
struct Query {
  int64_t position = 0;
  int64_t length = 0;  // of the context: keys in the cache, those of this pass included
  int64_t first = 0;   // position of the request's first query in this pass
};

// Which keys a query attends; slots up to the end of the last page can be asked for.
using Visible = std::function<bool(int64_t key, const Query& query)>;

// A key with its score q k, scaled.
struct ScoredKey {
  int64_t key = 0;
  float score = 0;
};

// The output of a query's head: y[d] of the scores of its visible keys, ascending, and of value(i),
// the V of keys[i], as long as y.
using Mix =
    std::function<void(const Query& query, std::span<const ScoredKey> keys,
                       const std::function<std::vector<float>(size_t)>& value, std::span<float> y)>;

// Replaces paged_attention in the layers of the request. Scores, weights and sums are fp32; the
// result is rounded once, to the dtype of the run.
void seed_attention(const Seams& seams, const FaultRequest& request, Visible visible, Mix mix);

}  // namespace lockstep
