// other_hand_table [FILTER]: judges every kernel of the other hand whose run's name has FILTER in
// it, in all the ways there are, and prints what came out. Half an hour on two cores; the test
// takes a part of it.
#include <fmt/format.h>

#include <map>
#include <string>

#include "kernels/base/check.h"
#include "tests/other_hand/judged_kernels.h"

namespace lockstep {
namespace {

std::vector<KernelRun> all_runs(const std::string& filter) {
  std::vector<KernelRun> runs;
  for (const other_hand::OtherKernel& kernel : other_hand::other_kernels())
    for (const KernelRun& run : runs_of(kernel))
      if (text_of(run).find(filter) != std::string::npos) runs.push_back(run);
  return runs;
}

void print(const KernelRun& run, const KernelOutcome& outcome) {
  fmt::print("{:12} {} first {} ulp {:.3g} different {}/{} named {}: {}\n", name_of(outcome.seen),
             text_of(run), run.kernel->first_point, outcome.largest_ulp, outcome.different,
             outcome.elements, outcome.named, outcome.story);
  std::fflush(stdout);
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  using namespace lockstep;
  const std::vector<KernelRun> runs = all_runs(argc > 1 ? argv[1] : "");
  std::map<std::string, int> counts;
  for (const KernelRun& run : runs) {
    try {
      const KernelOutcome outcome = judge_kernel(run);
      print(run, outcome);
      ++counts[fmt::format("{} {} {}: {}", run.kernel->right ? "right" : "wrong",
                           run.layer < 0 ? "all layers" : "one layer",
                           run.declared ? "declared" : "undeclared", name_of(outcome.seen))];
    } catch (const Error& error) {
      fmt::print("TROUBLE      {}: {}\n", text_of(run), error.what());
      ++counts["trouble"];
    }
  }
  for (const auto& [name, count] : counts) fmt::print("{:5} {}\n", count, name);
}
