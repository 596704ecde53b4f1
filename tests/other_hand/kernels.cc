#include "tests/other_hand/kernels.h"

#include <vector>

#include "tests/other_hand/families.h"

namespace lockstep::other_hand {

std::span<const OtherKernel> other_kernels() {
  static const std::vector<OtherKernel> all = [] {
    std::vector<OtherKernel> rows;
    for (const auto& family :
         {embeddings(), right_norms(), wrong_norms(), right_products(), wrong_products(),
          right_ropes(), wrong_ropes(), cache_writes(), cache_reads(), right_attentions(),
          wrong_attentions(), wrong_attention_reads(), additions(), activations(), routings(),
          routing_weights(), expert_products(), expert_sums(), greedy_choices()})
      rows.insert(rows.end(), family.begin(), family.end());
    return rows;
  }();
  return all;
}

}  // namespace lockstep::other_hand
