// What right and wrong attentions share: one query against the keys that it sees, and the walk over
// a pass that finds them in the pages.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "tests/other_hand/numbers.h"
#include "tests/other_hand/sums.h"

namespace lockstep::other_hand {

// One head's query and the keys that it sees, side by side: out = softmax(scale q K^T) V.
struct Query {
  const float* q;
  const float* k;  // [keys, dim]
  const float* v;
  int64_t keys, dim;
  int64_t first;  // position of the first of these keys
  float scale;
  Kind kind;

  const float* key(int64_t j) const { return k + j * dim; }
  const float* value(int64_t j) const { return v + j * dim; }
};

// Writes what is then put to the nearest: a number of fp32, or of fp64. There is a key.
using Attend = void(const Query& query, double* out);

// --- Online softmax -----------------------------------------------------------------------------

inline float exact_exp(float x) { return std::exp(x); }
inline float power_of_two(float x) { return std::exp2(x); }

// How the keys are walked. What is left out is right, and of fp32.
struct Style {
  int64_t block = 64;                // keys between two looks at the maximum
  float (*exp)(float) = exact_exp;   // of a score less the maximum
  Dot* dot = dot_lanes4;             // q k^T
  float factor = 1;                  // of the scale: log2(e) where `exp` is 2^x
  float (*score)(float) = nullptr;   // of a score after the scaling
  bool backward = false;             // the last block first
  float slack = 0;                   // the maximum may grow by this before all is scaled again
  bool round_probabilities = false;  // to the dtype before P V
  bool sum_rounded = false;          // the denominator sums those
  double (*keep)(double, Kind) = nullptr;         // the accumulators of P V after each key
  double (*keep_blocks)(double, Kind) = nullptr;  // after each block
  // Wrong:
  bool forget_output = false;  // a new maximum does not scale the sum of P V
  bool forget_sum = false;     // nor that of P
  bool stale_value = false;    // a last block that is not full has the values of the one before
};

// The state after some keys: `output` is the sum of e^(s - maximum) v, `sum` that of the weights.
struct Partial {
  float maximum = -std::numeric_limits<float>::infinity();
  float sum = 0;
  std::vector<float> output;
};

// Of the keys [begin, end).
Partial walk(const Query& query, const Style& style, int64_t begin, int64_t end);
// The same of scores s and not of keys.
Partial together(const std::vector<Partial>& parts, float (*exp)(float));
void divide(const Partial& all, double* out);

// `style` is a function that makes a Style: g++ 12 takes no function pointer within the value of a
// template parameter.
template <auto style>
void online(const Query& query, double* out) {
  divide(walk(query, style(), 0, query.keys), out);
}

// Parts of `part` keys each, walked alone and merged by their maxima.
template <int64_t part, auto style>
void split_by_length(const Query& query, double* out) {
  std::vector<Partial> parts;
  for (int64_t from = 0; from < query.keys; from += part)
    parts.push_back(walk(query, style(), from, std::min(from + part, query.keys)));
  divide(together(parts, style().exp), out);
}

// The scores of all keys, in fp32.
std::vector<float> scores(const Query& query, Dot* dot = dot_lanes4);

// --- A pass -------------------------------------------------------------------------------------

// Where one query stands.
struct Seat {
  int64_t request, requests;
  int64_t token;           // the row of q
  int64_t first;           // row of the request's first query
  int64_t queries;         // of the request
  int64_t context;         // keys of the request
  int64_t context_before;  // of the request before it, or its own where there is none
  int64_t position, page_size, window;
};
struct Keys {
  int64_t begin, end;
};
struct Pages {
  const int32_t* table;  // [requests, most]
  const int32_t* contexts;
  int64_t requests, most, page_size;

  int64_t used(int64_t request) const { return (contexts[request] + page_size - 1) / page_size; }
  int64_t own(int64_t request, int64_t index) const { return table[request * most + index]; }
};

using Sees = Keys(const Seat& seat);  // held within the pages of the request
using HeadMap = int64_t(int64_t head, int64_t heads, int64_t kv_heads);
using PageOf = int64_t(const Pages& pages, int64_t request, int64_t index);
using QueryRow = int64_t(const Seat& seat);       // held within the rows of q
using Change = void(std::vector<float>& values);  // of the keys or values of one head, as read
using Scale = float(float scale, int64_t dim);

Sees sees_causally;
HeadMap grouped;
PageOf own_page;
QueryRow own_query;

struct Plan {
  Attend* attend;
  Sees* sees = sees_causally;
  HeadMap* kv_head = grouped;
  PageOf* page = own_page;
  QueryRow* query = own_query;
  Change* change_k = nullptr;
  Change* change_v = nullptr;
  Scale* scale = nullptr;
  bool value_is_key = false;
  bool truncate = false;  // the store cuts off
};

const char* run_attention(const Plan& plan, const DLTensor* out, const DLTensor* q,
                          const LockstepCache* cache, const LockstepBatch* batch, float scale,
                          int64_t window);

// The kernel of a plan, which is a function that makes one, as above; and that of a plan which
// computes otherwise and looks at what it should.
template <auto plan>
const char* attention(const LockstepCall*, const DLTensor* out, const DLTensor* q,
                      const LockstepCache* cache, const LockstepBatch* batch, float scale,
                      int64_t window) {
  return run_attention(plan(), out, q, cache, batch, scale, window);
}

template <Attend* attend>
const char* attention_by(const LockstepCall*, const DLTensor* out, const DLTensor* q,
                         const LockstepCache* cache, const LockstepBatch* batch, float scale,
                         int64_t window) {
  return run_attention(Plan{attend}, out, q, cache, batch, scale, window);
}

}  // namespace lockstep::other_hand
