#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "src/diff/diff_noise.h"
#include "src/diff/diff_side.h"
#include "traces/trace.h"

namespace lockstep {

// How far apart two attentions of the same Q, K and V may be because one of them, or each, declares
// that it stores its scores rounded, or its probabilities. What noise explains elsewhere is a few
// roundings of an op's result; a rounded score is off by up to u |score|, of which no rounding of
// the result says anything.
//
// With scores s_j off by at most d_j, probabilities p_j and result o = sum p_j v_j:
//   do/ds_j = p_j (v_j - o), so |off| <= exp(2 max d) sum_j p_j d_j |v_j - o|,
// as no probability that lies between is over exp(2 max d) p_j. Probabilities off by at most
// e p_j add e sum_j p_j |v_j|. Hugging Face's eager attention stores the product of Q and K and
// then its multiple, so that d_j is 2 u |s_j|, and its probabilities, so that e is u. In fp64. It
// keeps K and V of all positions that were written, as doubles.
class ScoreRounding {
 public:
  // Takes what the two traces declare for attn.out, each in units of its own dtype, together.
  ScoreRounding(const Manifest& a, const Manifest& b);
  bool any() const { return scores_ > 0 || probabilities_ > 0; }

  // K and V of a position of a layer, [kv heads, dim], by what stands for its tokens.
  void write(int layer, uint64_t tokens, std::vector<double> k, std::vector<double> v);
  // Enters what a pass shows of the attention that is numbered `attention` among the places, all
  // its rows.
  void add(DiffSide& side, int pass, const std::vector<Place>& places, size_t attention);
  // One row of attention: q and out [heads, dim], and what stands for the tokens of each position
  // that it reads. Nothing is too far off where K or V of one of them was not written here.
  void add(int layer, int32_t request, std::span<const double> q, std::span<const double> out,
           int64_t dim, std::span<const uint64_t> tokens);
  // Returns the bound of all rows of the request since the last call; 0 where there were none.
  RelativeDifference take(int32_t request);

 private:
  struct Sums {
    double off = 0, size = 0;  // of squares
    double worst = 0;          // as worst_of
    bool unknown = false;
  };
  struct KeyValue {
    std::vector<double> k, v;
  };
  // The bound of each element of one head.
  std::vector<double> head_bound(std::span<const double> q, std::span<const double> out,
                                 const std::vector<const KeyValue*>& rows, size_t kv_head) const;

  double scores_ = 0, probabilities_ = 0;
  std::map<std::pair<int, uint64_t>, KeyValue> written_;  // by layer and tokens
  std::map<int32_t, Sums> sums_;                          // by request
};

}  // namespace lockstep
