// For builds without CUDA, where the ops of LibTorch do instead.
#include "kernels/base/check.h"
#include "reference/attention_kernels.h"
#include "reference/few_rows_kernels.h"
#include "reference/measure_kernels.h"
#include "reference/pointwise_kernels.h"
#include "reference/serial_sum_kernels.h"

namespace lockstep {
namespace {

constexpr const char* kNone = "this build has no CUDA kernels: build with -DLOCKSTEP_CUDA=ON";

}  // namespace

bool has_attention_kernels() { return false; }
bool has_few_rows_kernels() { return false; }
bool has_measure_kernels() { return false; }
bool has_pointwise_kernels() { return false; }
bool has_serial_sum_kernels() { return false; }
void softmax_rows(const KernelQueue&, const SoftmaxRows&) { fail(kNone); }
void spread_rows(const KernelQueue&, const SpreadRows&) { fail(kNone); }
void* new_stream(int) { fail(kNone); }
int64_t free_memory(int) { fail(kNone); }
int64_t total_memory(int) { fail(kNone); }
void multiply_few_rows(const KernelQueue&, const FewRows&) { fail(kNone); }
void weigh_rows(const KernelQueue&, const RowsToWeigh&) { fail(kNone); }
void sum_columns(const KernelQueue&, const ColumnsToSum&) { fail(kNone); }
void make_rope(const KernelQueue&, const RopeRows&) { fail(kNone); }
void make_silu_mul(const KernelQueue&, const SiluMulRows&) { fail(kNone); }
void make_norm(const KernelQueue&, const NormRows&) { fail(kNone); }
void make_errors(const KernelQueue&, const SumErrors&) { fail(kNone); }
void make_errors(const KernelQueue&, const NormErrors&) { fail(kNone); }
void make_errors(const KernelQueue&, const AttentionErrors&) { fail(kNone); }
void make_errors(const KernelQueue&, const RopeErrors&) { fail(kNone); }
void make_errors(const KernelQueue&, const SiluMulErrors&) { fail(kNone); }
void serial_squares(const KernelQueue&, const double*, int64_t, int64_t, double*) { fail(kNone); }

}  // namespace lockstep
