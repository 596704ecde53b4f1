// The catalogue of faults: the tables of all kinds, one after another.
#include <vector>

#include "src/faults/seeds.h"

namespace lockstep {

std::span<const Fault> faults() {
  static const std::vector<Fault> all = [] {
    std::vector<Fault> joined;
    for (const auto& of_kind :
         {kRopeFaults, kNormFaults, kAttentionFaults, kSplitFaults, kCacheFaults, kServingFaults,
          kLinearFaults, kStreamFaults, kMoeFaults, kTokenFaults, kGraphFaults, kDeviceFaults,
          kRankFaults, kInstructionFaults})
      joined.insert(joined.end(), of_kind.begin(), of_kind.end());
    return joined;
  }();
  return all;
}

}  // namespace lockstep
