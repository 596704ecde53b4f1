#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/device_memory.cuh"
#include "kernels/cuda/digest.cuh"

namespace lockstep {

extern "C" int lockstep_cuda_devices() {
  int devices = 0;
  return cudaGetDeviceCount(&devices) == cudaSuccess ? devices : 0;
}

extern "C" const Ops* lockstep_cuda_ops(int device, DeviceMemory* memory) {
  const int devices = lockstep_cuda_devices();
  check(devices > 0, "this machine has no CUDA device that works: use --device cpu");
  check(device >= 0 && device < devices,
        "there is no CUDA device {}; this machine has the devices 0..{}: use --device cuda", device,
        devices - 1);
  static const int ours = device;
  check(device == ours, "the CUDA device {} was wanted, but this process works on {}: use one",
        device, ours);
  cuda_check(cudaSetDevice(device), "cudaSetDevice");
  static const Ops ops = {
      .gather_rows = gather_rows_cuda,
      .rms_norm = rms_norm_cuda,
      .matmul = matmul_cuda,
      .rope = rope_cuda,
      .kv_write = kv_write_cuda,
      .kv_gather = kv_gather_cuda,
      .paged_attention = paged_attention_cuda,
      .silu_mul = silu_mul_cuda,
      .add = add_cuda,
      .argmax = argmax_cuda,
      .top_k = top_k_cuda,
      .routing_weights = routing_weights_cuda,
      .expert_matmul = expert_matmul_cuda,
      .weighted_sum = weighted_sum_cuda,
      .fused = {.add_rms_norm = add_rms_norm_cuda,
                .qkv_matmul = qkv_matmul_cuda,
                .qk_norm_rope_kv_write = qk_norm_rope_kv_write_cuda,
                .gate_up_silu = gate_up_silu_cuda,
                .pieces = &ops},
  };
  *memory = device_memory();
  set_cuda_memory(*memory);  // the library's own copy, for what its ops work in
  bad_index_report();        // so that no step is the first to allocate it
  return &ops;
}

extern "C" const DigestMaker* lockstep_cuda_digests() {
  cuda_memory();  // or it says that no device was opened
  static const DigestMaker maker = device_digests();
  return &maker;
}

}  // namespace lockstep
