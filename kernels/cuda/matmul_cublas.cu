// cuBLASLt makes the products of many tokens. The algorithm is asked once a shape (the library's
// first choice under a workspace of 32 MiB) and kept in a map with the device, because asking takes
// longer than a small product; alignments are a part of the key, as the library picks faster code
// for better aligned pointers.
//
//   rows of ours = columns of the library's:   out^T [n, tokens] = W [n, k] x^T [k, tokens]
//
// Sums are in fp32 and never in TF32, and a sum that is split is joined in fp32, so that the
// rounding contract of a linear op holds whatever algorithm is chosen. A bias is added by a kernel
// of ours: the library may round before it adds.
#include <cublasLt.h>

#include <map>
#include <memory>
#include <tuple>

#include "kernels/base/memory.h"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/matmul_cublas.cuh"

namespace lockstep {
namespace {

constexpr int64_t kWorkspace = int64_t{32} << 20;  // bytes, what NVIDIA advises for Hopper

void blas_check(cublasStatus_t status, const char* what) {
  check(status == CUBLAS_STATUS_SUCCESS, "cuBLASLt error in {}: {}", what,
        cublasLtGetStatusString(status));
}

// A handle of cuBLASLt that is destroyed with its owner.
template <typename Handle, cublasStatus_t (*kDestroy)(Handle)>
using Owned = std::unique_ptr<std::remove_pointer_t<Handle>,
                              std::integral_constant<cublasStatus_t (*)(Handle), kDestroy>>;
using Layout = Owned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using Operation = Owned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using Preference = Owned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

cudaDataType_t type_of(DType dtype) {
  if (dtype == DType::f32) return CUDA_R_32F;
  return dtype == DType::f16 ? CUDA_R_16F : CUDA_R_16BF;
}

// The largest power of two, up to 256, that divides an address.
uint32_t alignment_of(const void* address) {
  const auto bits = reinterpret_cast<uintptr_t>(address) | 256;
  return bits & ~(bits - 1);
}

// The key of a plan: all that the choice of an algorithm depends on.
struct Shape3 {
  int64_t tokens, n, k;
  DType dtype, out_dtype;
  uint32_t out_alignment, x_alignment, weight_alignment;
  auto operator<=>(const Shape3&) const = default;
};

// The library's matrices have their columns together, so that our rows are its columns: it makes
// out^T [n, tokens] = (weight^T)^T x^T.
struct Plan {
  Operation operation;
  Layout out, x, weight;
  cublasLtMatmulAlgo_t algorithm;
  bool exists = false;  // whether the library has an algorithm for it
};

// A matrix whose columns lie one behind another.
Layout layout(DType dtype, int64_t rows, int64_t columns) {
  cublasLtMatrixLayout_t made = nullptr;
  blas_check(cublasLtMatrixLayoutCreate(&made, type_of(dtype), static_cast<uint64_t>(rows),
                                        static_cast<uint64_t>(columns), rows),
             "cublasLtMatrixLayoutCreate");
  return Layout(made);
}

template <typename Value>
void set(const Operation& to, cublasLtMatmulDescAttributes_t attribute, const Value& value) {
  blas_check(cublasLtMatmulDescSetAttribute(to.get(), attribute, &value, sizeof(value)),
             "cublasLtMatmulDescSetAttribute");
}

template <typename Value>
void set(const Preference& to, cublasLtMatmulPreferenceAttributes_t attribute, const Value& value) {
  blas_check(cublasLtMatmulPreferenceSetAttribute(to.get(), attribute, &value, sizeof(value)),
             "cublasLtMatmulPreferenceSetAttribute");
}

Preference preference(const Shape3& shape) {
  cublasLtMatmulPreference_t made = nullptr;
  blas_check(cublasLtMatmulPreferenceCreate(&made), "cublasLtMatmulPreferenceCreate");
  Preference wish(made);
  set(wish, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(kWorkspace));
  // Where a sum is shared out, its parts are joined in fp32, not in the dtype.
  set(wish, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  set(wish, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, shape.weight_alignment);
  set(wish, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, shape.x_alignment);
  set(wish, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, shape.out_alignment);
  set(wish, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, shape.out_alignment);
  return wish;
}

// The library's handle, workspace and plans of one device. One stream of a device at a time, for
// the workspace is shared by its products.
class Blas {
 public:
  Blas() : workspace_({kWorkspace}, DType::u8, {DeviceKind::cuda, current_device()}) {
    blas_check(cublasLtCreate(&handle_), "cublasLtCreate");
  }
  const Plan& plan_for(const Shape3& shape);
  void run(const Plan& plan, const OpContext& context, const TensorView& out, const TensorView& x,
           const TensorView& weight) const;

 private:
  Plan make_plan(const Shape3& shape) const;

  cublasLtHandle_t handle_ = nullptr;
  Tensor workspace_;
  std::map<Shape3, Plan> plans_;
};

Plan Blas::make_plan(const Shape3& shape) const {
  cublasLtMatmulDesc_t made = nullptr;
  // Sums in fp32; products of fp32 too, never in the shorter TF32.
  blas_check(cublasLtMatmulDescCreate(&made, CUBLAS_COMPUTE_32F, CUDA_R_32F),
             "cublasLtMatmulDescCreate");
  Plan plan = {Operation(made), layout(shape.out_dtype, shape.n, shape.tokens),
               layout(shape.dtype, shape.k, shape.tokens), layout(shape.dtype, shape.k, shape.n)};
  set(plan.operation, CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
  cublasLtMatmulHeuristicResult_t best = {};
  int found = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      handle_, plan.operation.get(), plan.weight.get(), plan.x.get(), plan.out.get(),
      plan.out.get(), preference(shape).get(), 1, &best, &found);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED) return plan;
  blas_check(status, "cublasLtMatmulAlgoGetHeuristic");
  plan.exists = found == 1 && best.state == CUBLAS_STATUS_SUCCESS;
  plan.algorithm = best.algo;
  return plan;
}

const Plan& Blas::plan_for(const Shape3& shape) {
  const auto known = plans_.find(shape);
  if (known != plans_.end()) return known->second;
  return plans_.emplace(shape, make_plan(shape)).first->second;
}

void Blas::run(const Plan& plan, const OpContext& context, const TensorView& out,
               const TensorView& x, const TensorView& weight) const {
  const float one = 1, nothing = 0;
  blas_check(
      cublasLtMatmul(handle_, plan.operation.get(), &one, weight.data, plan.weight.get(), x.data,
                     plan.x.get(), &nothing, out.data, plan.out.get(), out.data, plan.out.get(),
                     &plan.algorithm, workspace_.view().data, kWorkspace, context.stream),
      "cublasLtMatmul");
}

// False when the library has no code for it.
bool multiply(const OpContext& context, const TensorView& out, const TensorView& x,
              const TensorView& weight) {
  Blas& blas = of_current_device<Blas>();
  const Plan& plan =
      blas.plan_for({x.rows(), weight.rows(), x.shape[1], x.dtype, out.dtype,
                     alignment_of(out.data), alignment_of(x.data), alignment_of(weight.data)});
  if (plan.exists) blas.run(plan, context, out, x, weight);
  return plan.exists;
}

// out = product + bias, rounded once.
template <typename T>
__global__ void add_bias(T* out, const float* product, const T* bias, int64_t elements, int64_t n) {
  const int64_t stride = item_stride();
  for (int64_t i = first_item(); i < elements; i += stride)
    out[i] = narrow<T>(product[i] + widen(bias[i % n]));
}

}  // namespace

bool matmul_cublas(const OpContext& context, const TensorView& out, const TensorView& x,
                   const TensorView& weight, const TensorView& bias) {
  constexpr int kThreads = 256;
  if (bias.empty()) return multiply(context, out, x, weight);
  // Not by the library: for some shapes it rounds the product before it adds the bias.
  const Tensor product(out.shape, DType::f32, out.device);
  if (!multiply(context, product, x, weight)) return false;
  dispatch_cuda(out.dtype, [&]<typename T>(T*) {
    add_bias<T><<<blocks_for(out.count(), kThreads), kThreads, 0, context.stream>>>(
        out.as<T>(), product.as<const float>(), bias.as<const T>(), out.count(), out.shape[1]);
  });
  cuda_check(cudaGetLastError(), "the launch of matmul's bias");
  return true;
}

}  // namespace lockstep
