// The table of the CUDA twins, and the two symbols by which it leaves this shared library.
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/device_runtime.cuh"
#include "kernels/cuda/on_device.cuh"
#include "kernels/decode_step.h"

namespace lockstep {

extern "C" int lockstep_cuda_devices() {
  int devices = 0;
  return cudaGetDeviceCount(&devices) == cudaSuccess ? devices : 0;
}

extern "C" const Ops* lockstep_cuda_ops(int index, DeviceRuntime* runtime) {
  const int devices = lockstep_cuda_devices();
  check(devices > 0, "this machine has no CUDA device that works: use --device cpu");
  check(index >= 0 && index < devices,
        "there is no CUDA device {}; this machine has the devices 0..{}: use --device cuda", index,
        devices - 1);
  use_device(index);
  static const Ops ops = {
      .gather_rows = OnDevice<gather_rows_cuda>::call,
      .rms_norm = OnDevice<rms_norm_cuda>::call,
      .matmul = OnDevice<matmul_cuda>::call,
      .rope = OnDevice<rope_cuda>::call,
      .kv_write = OnDevice<kv_write_cuda>::call,
      .kv_gather = OnDevice<kv_gather_cuda>::call,
      .paged_attention = OnDevice<paged_attention_cuda>::call,
      .silu_mul = OnDevice<silu_mul_cuda>::call,
      .add = OnDevice<add_cuda>::call,
      .argmax = OnDevice<argmax_cuda>::call,
      .top_k = OnDevice<top_k_cuda>::call,
      .routing_weights = OnDevice<routing_weights_cuda>::call,
      .expert_matmul = OnDevice<expert_matmul_cuda>::call,
      .weighted_sum = OnDevice<weighted_sum_cuda>::call,
      .fused = {.add_rms_norm = OnDevice<add_rms_norm_cuda>::call,
                .qkv_matmul = OnDevice<qkv_matmul_cuda>::call,
                .qk_norm_rope_kv_write = OnDevice<qk_norm_rope_kv_write_cuda>::call,
                .gate_up_silu = OnDevice<gate_up_silu_cuda>::call,
                .decode_step =
                    compute_capability() < 90 ? nullptr : OnDevice<decode_step_cuda>::call,
                .decode_step_packed = decode_step_packed_cuda,
                .pieces = &ops},
  };
  *runtime = cuda_runtime(index);
  register_runtime(*runtime);  // the library's own copy, for what its ops work in
  return &ops;
}

}  // namespace lockstep
