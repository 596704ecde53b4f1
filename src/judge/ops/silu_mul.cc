// silu(gate) up:  B = out + 16 u |o| + u |gate up| + f,
// V = ulp^2/12 + (3 u o)^2 + (0.3 u gate up)^2 + f^2,  f = 88 2^-126 |up|:
// where the sigmoid of a gate is below 2^-126, its silu is below 88 2^-126, and 0 in kernels whose
// 1 + exp(-gate) overflows. A kernel has silu(gate), z, to within 16 u |z| + u |gate|, usually
// 3 u |z| and 0.3 u |gate|.
//
// The share of |gate| is for a sigmoid of (1 + tanh(gate / 2)) / 2. A tanh near -1 is rounded by
// u / 2, and libraries have it within 2 u: half of that is left in the sigmoid, however small it
// is itself. Above gates of -3 the other terms are more; below them a result is small beside
// |gate up|, and so is all that this lets pass. Of two models in fp32 it makes B 1.15 times as
// large in half of the elements, 3.2 times in 1 of 100; in bf16 never over 1.02 times. In bf16 it
// is an ulp of the result from gates of -13 on: T3 sees a kernel by tanh where many are that low.
//
// The sigmoid of a gate near 0 is 1/2 + gate / 4, and a result is half the product of two stored
// numbers but for a share of gate / 2. Products of two numbers of p bits lie 2^-p spacings apart at
// the least, and more than one in 2^p of them on the border of two numbers. That share moves it off
// the border; what B has room for, 16 u and u |gate up|, which is 2 u of such a result, may move it
// back. So up to |gate| = 36 u, where the sigmoid differs from 1/2 by 9 u, either neighbour of the
// border is right. A larger gate moves such a product further than any right kernel does, and its
// results lie by the borders no more often than numbers that lie anywhere. Of five sigmoids in fp32
// on gates of one binade 0.9 % of the elements in bf16 are not the exact result rounded from 2^-24
// down to 2^-51, 0.2 % in fp16, and none of 400,000 in bf16 at 2^-21; norms with weights of 1e-6
// make such gates. A sigmoid that loses gate / 4 beside 1/2 rounds those on a border by one rule,
// so that they are not in the gain of all (Budget::misround_in_gain). Nor are those of gates from
// 14.5 on, where fp32 takes a sigmoid of 1 - exp(-gate) for 1: a result is the product itself.
#include <cmath>

#include "src/judge/ops/errors.h"

namespace lockstep {
namespace {

using enum RoundingContract;

std::vector<RoundingContract> tried(const ContractTraits&) { return {fused, hf}; }

// The share of |gate|. PyTorch's tanh on CPUs comes to 0.37 u and 0.17 u.
constexpr double kMostOfSigmoid = u, kUsualOfSigmoid = 0.3 * u;

bool is_full(const Exact& e) { return has_magnitude(e) && e.factor.size() == e.want.size(); }

bool fits(const Exact& e, const Step& step) { return step.other.size() == e.want.size(); }

JudgedOp::InnerError inner(const Exact& e, size_t i, DType) {
  const double size = u * std::fabs(e.want[i]);
  const double underflow = 88 * kLeastNormal * std::fabs(e.factor[i]);
  const double of_sigmoid = e.magnitude[i];
  return {16 * size + kMostOfSigmoid * of_sigmoid + underflow,
          squared(3 * size) + squared(kUsualOfSigmoid * of_sigmoid) + squared(underflow), 0,
          underflow};
}

JudgedOp::Reach reach(const Exact&, const Step& step, size_t i) {
  const double size = u * std::fabs(step.value[i]);
  return {16 * size + kMostOfSigmoid * step.other[i],
          std::hypot(3 * size, kUsualOfSigmoid * step.other[i])};
}

// The most that the sigmoid of a gate differs from 1/2 or 1 where its results may be turned back.
constexpr double kMostApart = 9 * u;

bool is_product(const Exact& e, size_t i) {
  const double product = e.magnitude[i], size = std::fabs(e.want[i]);
  return std::min(std::fabs(size - product / 2), product - size) <= kMostApart * product;
}

// An exponential that is off by a few ulp.
double gain(const Exact&) { return 0x1p-21; }

// A sigmoid by tanh is off by 0.3 u usually, which is 0.3 u (1 + exp(-gate)) of the result. Of
// several elements it is what as many would be off by that show a factor of all no better.
JudgedOp::RightKernel right_kernel(const JudgedOp::Sizes& sizes) {
  constexpr double kUsual = 3;
  double shown = 0;
  for (const double gate : sizes.gates)
    shown += 1 / (squared(kUsual) + squared(0.3 * (1 + std::exp(-gate))));
  const auto count = static_cast<double>(sizes.gates.size());
  return {shown > 0 ? std::sqrt(count / shown) : kUsual, 16};
}

double spread(double) { return 8; }

}  // namespace

const JudgedOp kJudgedSiluMul = {.kind = OpKind::silu_mul,
                                 .tried = tried,
                                 .is_full = is_full,
                                 .fits = fits,
                                 .inner = each<inner>,
                                 .reach = reach,
                                 .gain = gain,
                                 .has_underflow = true,
                                 .is_product = is_product,
                                 .right_kernel = right_kernel,
                                 .spread = spread,
                                 .in_proportion = true,
                                 .is_elementwise = true,
                                 .may_lose_weights = true};

}  // namespace lockstep
