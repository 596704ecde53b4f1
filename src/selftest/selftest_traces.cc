#include "src/selftest/selftest_traces.h"

#include <algorithm>
#include <filesystem>

#include "kernels/base/check.h"
#include "src/session/judged_trace.h"
#include "traces/trace.h"

namespace lockstep {

std::vector<DType> dtypes_of_traces(const std::vector<std::string>& paths,
                                    const std::vector<DType>& dtypes) {
  std::vector<DType> found;
  for (const std::string& path : paths) {
    found.push_back(open_trace(path)->manifest().dtype);
    check(std::ranges::count(dtypes, found.back()) > 0,
          "{} is of a run in {}, which is not tested: give --dtype {}", path, name_of(found.back()),
          name_of(found.back()));
  }
  return found;
}

std::vector<TraceCheck> check_trace(const std::string& path, const Checkpoint& checkpoint,
                                    const Limits& limits) {
  const std::string name = std::filesystem::path(path).filename().string();
  const auto judged = [&](const char* how, const JudgeOptions& options) -> TraceCheck {
    const Result result = judge_trace(path, checkpoint, options);
    return {.name = name + how,
            .verdict = result.verdict,
            .story = result.story,
            .judged = result.judged,
            .expected = result.expected};
  };
  return {judged(" as it declares", {.limits = limits}),
          judged(" under the schemas that are found",
                 {.limits = limits, .contracts = std::map<std::string, RoundingContract>()})};
}

}  // namespace lockstep
