// Bugs of what is elementwise: the residual stream and the gated activation.
//
// Each of these replaces the op at one point alone, told by OpContext::point, so that the other
// sums and activations of the layer stay right.
#include <cmath>
#include <cstring>

#include "kernels/base/check.h"
#include "src/faults/seeds.h"

namespace lockstep {
namespace {

// Has attn.residual made element by element: what `sum` makes of the stream and the branch.
void seed_residual(const Seams& seams, const FaultRequest& request,
                   float (*sum)(float stream, float branch)) {
  inject(seams, &Ops::add, request,
         [sum](const auto& inner, const OpContext& context, TensorView out, TensorView a,
               TensorView b) {
           if (context.point != "attn.residual") return inner(context, out, a, b);
           for (int64_t i = 0; i < out.count(); ++i) put(out, i, sum(get(a, i), get(b, i)));
         });
}

// The same of mlp.act.
template <typename Act>
void seed_act(const Seams& seams, const FaultRequest& request, Act act) {
  inject(seams, &Ops::silu_mul, request,
         [act](const auto& inner, const OpContext& context, TensorView out, TensorView gate,
               TensorView up) {
           if (context.point != "mlp.act") return inner(context, out, gate, up);
           for (int64_t i = 0; i < out.count(); ++i) put(out, i, act(get(gate, i), get(up, i)));
         });
}

float silu(float x) { return x / (1 + std::exp(-x)); }

void seed_residual_missing(const Seams& seams, const FaultRequest& request) {
  seed_residual(seams, request, [](float, float branch) { return branch; });
}

void seed_residual_twice(const Seams& seams, const FaultRequest& request) {
  seed_residual(seams, request, [](float stream, float branch) { return 2 * stream + branch; });
}

// The two weights are stacked in one product by most engines, and which half is the gate is a
// convention.
void seed_gate_and_up_swapped(const Seams& seams, const FaultRequest& request) {
  seed_act(seams, request, [](float gate, float up) { return silu(up) * gate; });
}

// The exact GELU, by erf; the next best known gate.
void seed_gelu_for_silu(const Seams& seams, const FaultRequest& request) {
  seed_act(seams, request, [](float gate, float up) {
    return 0.5f * gate * (1 + std::erf(gate * 0.70710678f)) * up;
  });
}

void seed_activation_overflows_fp16(const Seams& seams, const FaultRequest& request) {
  check(request.size > 0, "fault {} has as its size a factor over 0, found {}", request.name,
        request.size);
  seed_act(seams, request, [factor = static_cast<float>(request.size)](float gate, float up) {
    return to_float(from_float<Float16>(silu(gate) * up * factor)) / factor;
  });
}

constexpr Fault kStreamRows[] = {
    {"residual-missing",
     "attn.residual",
     "the stream is dropped, and what attention adds is all that is left",
     "any run",
     {},
     always,
     seed_residual_missing},
    {"residual-twice",
     "attn.residual",
     "the stream is added twice",
     "any run",
     {},
     always,
     seed_residual_twice},
    {"gate-and-up-swapped",
     "mlp.act",
     "silu is taken of up and multiplied by gate",
     "a layer with one MLP for all tokens",
     {},
     has_dense,
     seed_gate_and_up_swapped},
    {"gelu-for-silu",
     "mlp.act",
     "the gate goes through GELU instead of SiLU",
     "a layer with one MLP for all tokens",
     {},
     has_dense,
     seed_gelu_for_silu},
    {"activation-overflows-fp16",
     "mlp.act",
     "the activation passes through fp16 at so many times its size (the fault's size)",
     "a layer with one MLP; activations of more than 65504 / size, or fp32",
     {1e6, 1024},
     has_dense,
     seed_activation_overflows_fp16},
};

}  // namespace

constinit const std::span<const Fault> kStreamFaults = kStreamRows;

}  // namespace lockstep
