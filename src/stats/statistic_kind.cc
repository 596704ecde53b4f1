#include "src/stats/statistic_kind.h"

#include <cstddef>

namespace lockstep {
namespace {

constexpr const char* kNames[kStatisticKinds] = {"T0", "T1",    "T2", "T3",      "T4",
                                                 "T5", "flips", "KL", "contract"};

}  // namespace

const char* name_of(StatisticKind kind) { return kNames[static_cast<size_t>(kind)]; }

std::optional<StatisticKind> statistic_kind_from(std::string_view name) {
  for (int i = 0; i < kStatisticKinds; ++i)
    if (name == kNames[i]) return static_cast<StatisticKind>(i);
  return std::nullopt;
}

}  // namespace lockstep
