// Bugs of an attention that takes the keys in splits and merges what each of them made.
//
// Kernels for long contexts give each split of the keys to another block and merge (top, sum, mean)
// of all splits: y = (w_1 mean_1 + w_2 mean_2 + ..) / (w_1 + w_2 + ..), w_i = sum_i * exp(top_i -
// top). Each fault gets one of these parts wrong; the size is how many keys a split has.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/base/check.h"
#include "src/faults/attend.h"

namespace lockstep {
namespace {

constexpr float kNone = -std::numeric_limits<float>::infinity();

// The result of one split of the keys: its mean of V, and the sum of exp(score - top).
struct Partial {
  float top = kNone, sum = 0;
  std::vector<float> mean;
};

Partial partial_of(std::span<const ScoredKey> keys, size_t first,
                   const std::function<std::vector<float>(size_t)>& value) {
  Partial partial;
  for (const ScoredKey& key : keys) partial.top = std::max(partial.top, key.score);
  for (size_t i = 0; i < keys.size(); ++i) {
    const std::vector<float> v = value(first + i);
    const float p = std::exp(keys[i].score - partial.top);
    partial.mean.resize(v.size());
    partial.sum += p;
    for (size_t d = 0; d < v.size(); ++d) partial.mean[d] += p * v[d];
  }
  for (float& element : partial.mean) element /= partial.sum;
  return partial;
}

// The weight of a partial; top is the largest score of all of them.
using Weight = float (*)(const Partial& partial, float top);

float right_weight(const Partial& partial, float top) {
  return partial.sum * std::exp(partial.top - top);
}

// The keys that a right attention sees.
bool causal(int64_t key, const Query& query) { return key <= query.position; }

// How splits are merged, each part of it replaceable: which keys a query is offered, the weight of
// a partial, what is left of its elements, and which scores are taken away afterwards.
struct Merge {
  Visible visible;
  Weight weight;
  float (*stored)(float x);  // an element of a partial, as the merge finds it
  void (*hide)(const Query& query, std::vector<ScoredKey>& keys);
};

void seed_merge(const Seams& seams, const FaultRequest& request, const Merge& how) {
  check(request.size >= 1 && request.size == std::floor(request.size),
        "fault {} has as its size how many keys a split has, found {}", request.name, request.size);
  const auto length = static_cast<int64_t>(request.size);
  seed_attention(
      seams, request, how.visible,
      [how, length](const Query& query, std::span<const ScoredKey> given,
                    const std::function<std::vector<float>(size_t)>& value, std::span<float> y) {
        std::vector<ScoredKey> keys(given.begin(), given.end());
        how.hide(query, keys);
        float top = kNone, sum = 0;
        for (const ScoredKey& key : keys) top = std::max(top, key.score);
        std::ranges::fill(y, 0.0f);
        for (size_t first = 0, end = 0; first < keys.size(); first = end) {
          // A split is so many slots of the cache, whether or not a window leaves keys out.
          while (end < keys.size() && keys[end].key / length == keys[first].key / length) ++end;
          const Partial partial =
              partial_of(std::span(keys).subspan(first, end - first), first, value);
          // A split that has all the keys is merged with nothing.
          const bool alone = first == 0 && end == keys.size();
          const float weight = alone ? 1 : how.weight(partial, top);
          sum += weight;
          for (size_t d = 0; d < y.size(); ++d) y[d] += weight * how.stored(partial.mean[d]);
        }
        for (float& element : y) element /= sum;
      });
}

float as_is(float x) { return x; }
void hide_nothing(const Query&, std::vector<ScoredKey>&) {}

// The attention that the bugs of splits are in.
void seed_split_right(const Seams& seams, const FaultRequest& request) {
  seed_merge(seams, request, {causal, right_weight, as_is, hide_nothing});
}

// Kernels take exponentials to the base 2, which are cheaper, and a merge written for e gets their
// sums.
void seed_split_merge_log2_with_ln(const Seams& seams, const FaultRequest& request) {
  const Weight weight = [](const Partial& partial, float top) {
    const float log2_of_sum = partial.top * 1.44269504f + std::log2(partial.sum);
    return std::exp(log2_of_sum - top * 1.44269504f);
  };
  seed_merge(seams, request, {causal, weight, as_is, hide_nothing});
}

void seed_split_merge_max_missing(const Seams& seams, const FaultRequest& request) {
  const Weight weight = [](const Partial& partial, float) { return partial.sum; };
  seed_merge(seams, request, {causal, weight, as_is, hide_nothing});
}

void seed_split_partials_16_bit(const Seams& seams, const FaultRequest& request) {
  seed_merge(seams, request, {causal, right_weight, to_bf16, hide_nothing});
}

void seed_split_without_keys(const Seams& seams, const FaultRequest& request) {
  // A split of which the query may see no key has the largest score -inf, and -inf - -inf is NaN.
  const Visible all = [](int64_t key, const Query& query) { return key < query.length; };
  seed_merge(seams, request,
             {all, right_weight, as_is, [](const Query& query, std::vector<ScoredKey>& keys) {
                for (ScoredKey& key : keys)
                  if (key.key > query.position) key.score = kNone;
              }});
}

constexpr Fault kSplitRows[] = {
    held_to(seed_split_right,
            {"split-merge-log2-with-ln",
             "attn.out",
             "splits of the keys (size: how long) are merged by e^x of log-sums to the base 2",
             "a context longer than a split",
             {16, 4},
             always,
             seed_split_merge_log2_with_ln}),
    held_to(seed_split_right,
            {"split-merge-max-missing",
             "attn.out",
             "splits of the keys (size: how long) are merged without their largest scores",
             "a context longer than a split",
             {16, 4},
             always,
             seed_split_merge_max_missing}),
    held_to(seed_split_right,
            {"split-partials-16-bit",
             "attn.out",
             "what splits of the keys make (size: how long) is rounded to bf16 before it is merged",
             "any run",
             {16, 4},
             always,
             seed_split_partials_16_bit}),
    held_to(seed_split_right,
            {"split-without-keys",
             "attn.out",
             "a split (size: how long) in which a query sees no key makes -inf minus -inf",
             "a pass in which a query comes before a split that another one sees",
             {8, 4},
             always,
             seed_split_without_keys}),
};

}  // namespace

constinit const std::span<const Fault> kSplitFaults = kSplitRows;

}  // namespace lockstep
