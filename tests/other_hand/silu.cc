// silu(gate) * up: right and wrong.
#include <algorithm>
#include <cmath>

#include "tests/other_hand/families.h"
#include "tests/other_hand/numbers.h"

namespace lockstep::other_hand {
namespace {

using Act = double(float gate, float up, Kind kind);

template <Act* act>
const char* silu_mul(const LockstepCall*, const DLTensor* out, const DLTensor* gate,
                     const DLTensor* up) {
  if (const char* why = refused({out, gate, up})) return why;
  const Tensor to(out), gates(gate), ups(up);
  for (int64_t i = 0; i < to.count(); ++i) to.put(i, act(gates.at(i), ups.at(i), to.kind()));
  return nullptr;
}

constexpr float kLog2E = 1.4426950408889634F;

float sigmoid(float x) { return 1 / (1 + std::exp(-x)); }

// --- Right --------------------------------------------------------------------------------------

double by_division(float gate, float up, Kind) { return gate / (1 + std::exp(-gate)) * up; }
double by_sigmoid(float gate, float up, Kind) { return gate * sigmoid(gate) * up; }
double product_first(float gate, float up, Kind) { return gate * up * sigmoid(gate); }

double in_fp64(float gate, float up, Kind) {
  return gate / (1 + std::exp(-static_cast<double>(gate))) * up;
}

// Without e^x of anything positive (skyzh/tiny-llm#164).
double by_small_exponentials(float gate, float up, Kind) {
  const float z = std::exp(-std::fabs(gate));
  return gate * (gate < 0 ? z / (1 + z) : 1 / (1 + z)) * up;
}

// Powers of two, of an angle in two parts, so that its rounding is no matter.
double by_power_of_two(float gate, float up, Kind) {
  const float high = -gate * kLog2E;
  const float low = std::fma(-gate, kLog2E, -high) - gate * 1.925963033500696e-08F;
  return gate / (1 + std::exp2(high) * (1 + low * 0.69314718F)) * up;
}

// The same with the angle rounded, which __expf of CUDA does: off by 2^-24 of the gate.
double by_plain_power_of_two(float gate, float up, Kind) {
  return gate / (1 + std::exp2(-gate * kLog2E)) * up;
}

// tanh gives the sigmoid of what is not negative; that of the negative is e^x times as much, where
// 1 + tanh would cancel.
double by_tanh(float gate, float up, Kind) {
  const float positive = 0.5F + 0.5F * std::tanh(0.5F * std::fabs(gate));
  return gate * (gate < 0 ? std::exp(gate) * positive : positive) * up;
}

// The textbook's, whose 1 + tanh cancels where the gate is negative: right to within one rounding
// of a number near 1, which is much of a small sigmoid.
double by_one_plus_tanh(float gate, float up, Kind) {
  return 0.5F * gate * (1 + std::tanh(0.5F * gate)) * up;
}

double as_hf(float gate, float up, Kind kind) {
  return rounded(gate / (1 + std::exp(-gate)), kind) * up;
}
double as_hf_by_sigmoid(float gate, float up, Kind kind) {
  return rounded(gate * sigmoid(gate), kind) * up;
}

// --- Wrong --------------------------------------------------------------------------------------

double gelu(float gate, float up, Kind) {
  return gate * 0.5 * (1 + std::erf(gate * 0.7071067811865476)) * up;
}
double gelu_by_tanh(float gate, float up, Kind) {
  const double cubic = 0.7978845608028654 * (gate + 0.044715 * gate * gate * gate);
  return gate * 0.5 * (1 + std::tanh(cubic)) * up;
}
double quick_gelu(float gate, float up, Kind) { return gate * sigmoid(1.702F * gate) * up; }
double hard_swish(float gate, float up, Kind) {
  return gate * std::clamp(gate / 6 + 0.5F, 0.0F, 1.0F) * up;
}
double swapped(float gate, float up, Kind) { return up * sigmoid(up) * gate; }
double without_up(float gate, float, Kind) { return gate * sigmoid(gate); }

// tanh.approx.f32 of NVIDIA has about 11 bits, which 1 + tanh loses where the gate is negative.
double by_tanh_of_11_bits(float gate, float up, Kind) {
  const double tanh = to_bits(std::tanh(0.5 * gate), 11);
  return gate * (0.5 + 0.5 * tanh) * up;
}

double with_bit_trick_exp(float gate, float up, Kind) {
  return gate / (1 + bit_trick_exp(std::min(-gate, 80.0F))) * up;
}
double with_straight_exp(float gate, float up, Kind) {
  return gate / (1 + straight_exp(-gate)) * up;
}
double with_quadratic_exp(float gate, float up, Kind) {
  return gate / (1 + quadratic_exp(-gate)) * up;
}
double with_exp_in_bf16(float gate, float up, Kind) {
  return gate / (1 + rounded(std::exp(-gate), Kind::bf16)) * up;
}
double with_sigmoid_in_bf16(float gate, float up, Kind) {
  return gate * rounded(sigmoid(gate), Kind::bf16) * up;
}

// 1 - sigmoid(-x) for the negative half, in 16 bits: nothing is left of it below -6
// (skyzh/tiny-llm#161).
double with_cancelling_sigmoid(float gate, float up, Kind) {
  if (gate >= 0) return gate * sigmoid(gate) * up;
  return gate * rounded(1 - rounded(sigmoid(-gate), Kind::bf16), Kind::bf16) * up;
}

// gpt-oss clamps at 7.
double clamped(float gate, float up, Kind) {
  gate = std::min(gate, 7.0F);
  return gate * sigmoid(gate) * std::clamp(up, -7.0F, 7.0F);
}

// A cast to fp16 on the way to bf16: what is small is a subnormal there, and more than 65504 is
// Inf.
double through_fp16(float gate, float up, Kind) {
  return nearest(gate * sigmoid(gate) * up, Kind::fp16);
}

// fp16 without its subnormals: -ftz where it was not meant.
double flushed(float gate, float up, Kind) {
  const double value = gate * sigmoid(gate) * up;
  return std::fabs(value) < 0x1p-14 ? 0 : value;
}

double cut_off(float gate, float up, Kind kind) {
  return truncated(gate * sigmoid(gate) * up, kind);
}
double hf_cut_off(float gate, float up, Kind kind) {
  return truncated(gate * sigmoid(gate), kind) * up;
}
double as_e4m3(float gate, float up, Kind) { return e4m3(gate * sigmoid(gate) * up); }

// The last columns of a row are beyond the last whole vector of 128 and are only multiplied.
const char* without_tail(const LockstepCall*, const DLTensor* out, const DLTensor* gate,
                         const DLTensor* up) {
  if (const char* why = refused({out, gate, up})) return why;
  const Tensor to(out), gates(gate), ups(up);
  const int64_t width = to.last_axis(), whole = width / 128 * 128;
  for (int64_t i = 0; i < to.count(); ++i) {
    const float x = gates.at(i);
    to.put(i, (i % width < whole ? x * sigmoid(x) : x) * ups.at(i));
  }
  return nullptr;
}

// `up` begins one token too late: the stride of a fused gate and up.
const char* with_up_of_next_token(const LockstepCall*, const DLTensor* out, const DLTensor* gate,
                                  const DLTensor* up) {
  if (const char* why = refused({out, gate, up})) return why;
  const Tensor to(out), gates(gate), ups(up);
  const int64_t count = to.count(), width = to.last_axis();
  for (int64_t i = 0; i < count; ++i) {
    const float x = gates.at(i);
    to.put(i, x * sigmoid(x) * ups.at((i + width) % count));
  }
  return nullptr;
}

using SiluMul = Family<decltype(lockstep_silu_mul)>;

void add_right(SiluMul& list) {
  list.right("silu-division", silu_mul<by_division>, "fused", "gate / (1 + e^-gate)");
  list.right("silu-sigmoid", silu_mul<by_sigmoid>, "fused", "gate times its sigmoid");
  list.right("silu-product-first", silu_mul<product_first>, "fused", "gate up, then the sigmoid");
  list.right("silu-fp64", silu_mul<in_fp64>, "fused", "fp64 inside");
  list.right("silu-small-exponentials", silu_mul<by_small_exponentials>, "fused",
             "e^x of negative numbers alone");
  list.right("silu-exp2", silu_mul<by_power_of_two>, "fused",
             "powers of two of an angle in two parts");
  list.right("silu-exp2-plain", silu_mul<by_plain_power_of_two>, "fused",
             "powers of two of a rounded angle, as __expf", "bf16,fp16");
  list.right("silu-tanh", silu_mul<by_tanh>, "fused", "an accurate tanh");
  list.right("silu-one-plus-tanh", silu_mul<by_one_plus_tanh>, "fused",
             "gate / 2 (1 + tanh(gate / 2))");
  list.right("silu-hf", silu_mul<as_hf>, "hf", "silu to the dtype, then the product");
  list.right("silu-hf-sigmoid", silu_mul<as_hf_by_sigmoid>, "hf", "the same by the sigmoid");
}

void add_wrong_functions(SiluMul& list) {
  list.wrong("silu-gelu", silu_mul<gelu>, 260, "GELU");
  list.wrong("silu-gelu-tanh", silu_mul<gelu_by_tanh>, 260, "GELU by its approximation with tanh");
  list.wrong("silu-quick-gelu", silu_mul<quick_gelu>, 250, "x sigmoid(1.702 x)");
  list.wrong("silu-hard-swish", silu_mul<hard_swish>, 260, "straight lines for the sigmoid");
  list.wrong("silu-swapped", silu_mul<swapped>, 1e9, "gate and up are swapped");
  list.wrong("silu-without-up", silu_mul<without_up>, 1e9, "silu alone, up is left out");
  list.wrong("silu-tail-not-activated", without_tail, 1e9,
             "columns beyond the last whole 128 are multiplied without silu",
             {.needs = "a width that is no multiple of 128"});
  list.wrong("silu-up-of-next-token", with_up_of_next_token, 1e9, "up is the next token's",
             {.needs = "a pass with several tokens"});
  list.wrong("silu-clamped-at-7", silu_mul<clamped>, 200, "gate and up clamped at 7, as gpt-oss",
             {.needs = "gates or ups over 7"});
}

void add_wrong_numbers(SiluMul& list) {
  list.wrong("silu-tanh-of-11-bits", silu_mul<by_tanh_of_11_bits>, 250,
             "the sigmoid by a tanh of 11 bits", {.needs = "gates below -2"});
  list.wrong("silu-bit-trick-exp", silu_mul<with_bit_trick_exp>, 9,
             "e^x from the bits of a float: up to 4 % off");
  list.wrong("silu-straight-exp", silu_mul<with_straight_exp>, 6.9,
             "e^x with a polynomial of degree 1: 3 % off");
  list.wrong("silu-quadratic-exp", silu_mul<with_quadratic_exp>, 0.36,
             "e^x with a polynomial of degree 2: 0.17 % off", {.needs = "held to fused"});
  list.wrong("silu-exp-in-bf16", silu_mul<with_exp_in_bf16>, 0.61, "e^-gate rounded to bf16",
             {.needs = "held to fused"});
  list.wrong("silu-sigmoid-in-bf16", silu_mul<with_sigmoid_in_bf16>, 0.82,
             "the sigmoid rounded to bf16", {.needs = "held to fused"});
  list.wrong("silu-cancelling-sigmoid", silu_mul<with_cancelling_sigmoid>, 250,
             "1 - sigmoid(-gate) in bf16 for negative gates", {.needs = "gates below -2"});
  list.wrong("silu-through-fp16", silu_mul<through_fp16>, 250, "through fp16 on the way to bf16",
             {.dtypes = "bf16", .needs = "outputs below 1e-5"});
  list.wrong("silu-flushed", silu_mul<flushed>, 960, "subnormal numbers of fp16 become zero",
             {.dtypes = "fp16", .needs = "outputs below 6e-5"});
  list.wrong("silu-truncated-store", silu_mul<cut_off>, 0.5,
             "the store cuts off instead of rounding",
             {.dtypes = "bf16,fp16", .needs = "held to fused"});
  list.wrong("silu-hf-truncated", silu_mul<hf_cut_off>, 0.85,
             "silu is cut off to the dtype before the product",
             {.dtypes = "bf16,fp16", .rounding = "hf"});
  list.wrong("silu-through-fp8", silu_mul<as_e4m3>, 250, "the output rounded to e4m3");
}

}  // namespace

std::vector<OtherKernel> activations() {
  SiluMul list("lockstep_silu_mul", "mlp.act");
  add_right(list);
  add_wrong_functions(list);
  add_wrong_numbers(list);
  return list.rows();
}

}  // namespace lockstep::other_hand
