// Bugs that only a CUDA device's kernels can have: each puts a kernel of its own in an op's place.
#include "src/faults/seeds.h"

namespace lockstep {
namespace {

// Has `wrong` do what `right` does for the point of the fault.
template <typename... Args>
void replace_at(std::function<void(const OpContext&, Args...)>& right,
                const std::function<void(const OpContext&, Args...)>& wrong, const char* point,
                const FaultRequest& request) {
  right = [inner = right, wrong, point, request](const OpContext& context, Args... args) {
    const bool here = hits(request, context) && context.point == point;
    (here ? wrong : inner)(context, args...);
  };
}

}  // namespace

void seed_norm_without_barrier(const Seams& seams, const FaultRequest& request) {
  replace_at(seams.ops.rms_norm, seams.broken->rms_norm, "attn.norm", request);
}

void seed_output_tile_uninitialised(const Seams& seams, const FaultRequest& request) {
  replace_at(seams.ops.matmul, seams.broken->matmul, "mlp.up", request);
}

void seed_pool_offset_32_bit(const Seams& seams, const FaultRequest& request) {
  replace_at(seams.ops.kv_write, seams.broken->kv_write, "attn.kv", request);
}

}  // namespace lockstep
