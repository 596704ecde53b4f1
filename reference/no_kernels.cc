// For builds without CUDA, where the ops of LibTorch do instead.
#include "kernels/base/check.h"
#include "reference/attention_kernels.h"
#include "reference/measure_kernels.h"
#include "reference/serial_sum_kernels.h"

namespace lockstep {
namespace {

constexpr const char* kNone = "this build has no CUDA kernels: build with -DLOCKSTEP_CUDA=ON";

}  // namespace

bool has_attention_kernels() { return false; }
bool has_measure_kernels() { return false; }
bool has_serial_sum_kernels() { return false; }
void softmax_rows(int, const SoftmaxRows&) { fail(kNone); }
void spread_rows(int, const SpreadRows&) { fail(kNone); }
int64_t free_memory(int) { fail(kNone); }
void weigh_rows(int, const RowsToWeigh&) { fail(kNone); }
void sum_columns(int, const ColumnsToSum&) { fail(kNone); }
void serial_squares(int, const double*, int64_t, int64_t, double*) { fail(kNone); }

}  // namespace lockstep
