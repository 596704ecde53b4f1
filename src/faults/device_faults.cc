// Bugs that only a CUDA device's kernels can have: each puts a kernel of its own in an op's place.
//
// The kernels are in kernels/faults/broken_ops.cu: a missing barrier or an offset of 32 bits cannot
// be seeded from outside a kernel. On other devices these faults are refused.
#include "src/faults/seeds.h"

namespace lockstep {
namespace {

// Has `wrong` do what `right` does for the point of the fault.
template <typename... Args>
void replace_at(std::function<void(const OpContext&, Args...)>& right,
                const std::function<void(const OpContext&, Args...)>& wrong, const char* point,
                const FaultRequest& request) {
  right = [inner = right, wrong, point, request](const OpContext& context, Args... args) {
    const bool here = request.hits(context) && context.point == point;
    (here ? wrong : inner)(context, args...);
  };
}

void seed_norm_without_barrier(const Seams& seams, const FaultRequest& request) {
  replace_at(seams.ops.rms_norm, seams.broken->rms_norm, "attn.norm", request);
}

void seed_output_tile_uninitialised(const Seams& seams, const FaultRequest& request) {
  replace_at(seams.ops.matmul, seams.broken->matmul, "mlp.up", request);
}

void seed_pool_offset_32_bit(const Seams& seams, const FaultRequest& request) {
  replace_at(seams.ops.kv_write, seams.broken->kv_write, "attn.kv", request);
}

constexpr Fault kDeviceRows[] = {
    {"norm-without-barrier",
     "attn.norm",
     "the sum of squares is read before all warps wrote theirs",
     "--device cuda",
     {},
     always,
     seed_norm_without_barrier,
     true,
     Fault::Seat::device},
    {"output-tile-uninitialised",
     "mlp.up",
     "the last 64 columns hold what was there before",
     "--device cuda",
     {},
     has_dense,
     seed_output_tile_uninitialised,
     true,
     Fault::Seat::device},
    {"pool-offset-32-bit",
     "attn.kv",
     "K and V are written to offsets of 32 bits, or nowhere",
     "--device cuda, and pages past 2^31 elements of K",
     {},
     always,
     seed_pool_offset_32_bit,
     true,
     Fault::Seat::device},
};

}  // namespace

constinit const std::span<const Fault> kDeviceFaults = kDeviceRows;

}  // namespace lockstep
