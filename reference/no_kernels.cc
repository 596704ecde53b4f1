// For builds without CUDA, where the ops of LibTorch do instead.
#include "kernels/base/check.h"
#include "reference/attention_kernels.h"
#include "reference/measure_kernels.h"

namespace lockstep {
namespace {

constexpr const char* kNone = "this build has no CUDA kernels: build with -DLOCKSTEP_CUDA=ON";

}  // namespace

bool has_attention_kernels() { return false; }
bool has_measure_kernels() { return false; }
void softmax_rows(int, const SoftmaxRows&) { fail(kNone); }
void spread_rows(int, const SpreadRows&) { fail(kNone); }
int64_t free_memory(int) { fail(kNone); }
void weigh_rows(int, const RowsToWeigh&) { fail(kNone); }

}  // namespace lockstep
