// The catalogue of faults: the tables of all kinds, one after another.
#include <vector>

#include "src/faults/seeds.h"

namespace lockstep {

std::span<const Fault> faults() {
  static const std::vector<Fault> all = [] {
    std::vector<Fault> joined;
    for (const auto& of_kind :
         {rope_faults(), norm_faults(), attention_faults(), split_faults(), cache_faults(),
          serving_faults(), linear_faults(), stream_faults(), moe_faults(), token_faults(),
          graph_faults(), device_faults(), rank_faults()})
      joined.insert(joined.end(), of_kind.begin(), of_kind.end());
    return joined;
  }();
  return all;
}

}  // namespace lockstep
