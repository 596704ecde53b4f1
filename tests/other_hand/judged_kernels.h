// What the judge makes of the other hand's kernels, each in an engine that is right but for it.
#pragma once

#include <string>
#include <vector>

#include "src/judge/verdict.h"
#include "src/weights/checkpoint.h"
#include "tests/other_hand/kernels.h"

namespace lockstep {

// One judged run with one kernel.
struct KernelRun {
  const other_hand::OtherKernel* kernel = nullptr;
  std::string model;  // folder of tests/data
  DType dtype = DType::bf16;
  int layer = -1;        // -1: in all of them
  bool declared = true;  // the judge is told the contract of the kernel's op; else of no op at all
};

// How the run came out, seen from outside.
enum class Seen {
  right,         // a wrong kernel at its first place, or a clean run of a right one
  wrong_op,      // another place is named first
  missed,        // a wrong kernel, and no finding
  alarm,         // a right kernel, and a finding
  inconclusive,  // a right kernel, and no verdict
  no_effect,     // a wrong kernel that made the same bits as the engine's own
};
const char* name_of(Seen seen);

struct KernelOutcome {
  Seen seen = Seen::right;
  std::string named;  // the first place that was named
  std::string story;
  // What the kernel made of its inputs in the run beside the engine's own: elements, those of other
  // bits, and the largest difference in ulp of the larger of the element and the root mean square
  // of its row.
  int64_t elements = 0, different = 0;
  double largest_ulp = 0;
};

// The model whose runs show what the kernel needs.
std::string model_for(const other_hand::OtherKernel& kernel);
std::vector<DType> dtypes_of(const other_hand::OtherKernel& kernel);
// All ways in which it can be tried: in each dtype, in all layers and in one, declared and not.
std::vector<KernelRun> runs_of(const other_hand::OtherKernel& kernel);
std::string text_of(const KernelRun& run);

KernelOutcome judge_kernel(const KernelRun& run);

}  // namespace lockstep
