// Errors of a known size, put into an op's result right before it is stored, and the least size
// that the judge finds. A selftest holds that to stated_limit(), which follows from the budget
// alone.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "reference/reference.h"
#include "src/engine/engine.h"
#include "src/judge/limits.h"
#include "src/judge/verdict.h"

namespace lockstep {

// An error that is put into the result of an op, `size` ulp of the dtype large, before the result
// is rounded to the dtype as an engine stores it. With p the dtype's precision, u = 2^-p and r the
// root mean square of the row:
enum class Effect : uint8_t {
  gain,     // everything times 1 + size u, which is half an ulp of a result to a whole one
  offset,   // everything + size ulp(r)
  noise,    // everything + or - size ulp(r), by chance
  row,      // one row times 1 + size u
  column,   // the last column times 1 + size u
  element,  // one element + size ulp(r): of the last 8 of its row the largest that is not over r
};
template <>
inline constexpr auto kNamesOf<Effect> = std::to_array<const char*>({"gain", "offset", "noise",
                                                                     "row", "column", "element"});

// The least size of an effect that the judge finds, and names the right place for.
struct DetectionLimit {
  const Point* point = nullptr;
  Effect effect = Effect::gain;
  int layers = 1;                     // in how many it is put; 1: in the last alone
  double size = 0;                    // ulp; infinity: no size that was tried
  std::string statistic;              // by which it is found then (statistic_of)
  std::optional<StatisticKind> kind;  // of that; none where no number decides
  double stated = 0;                  // what a judge must find (stated_limit)
  bool passed() const { return size <= stated; }
};

struct DetectionPlan {
  const Checkpoint& checkpoint;
  ReferenceLibrary& reference;
  EngineOptions engine;
  std::vector<Request> requests;
  std::vector<int> layers;           // that effects are put in, ascending
  std::vector<const Point*> points;  // of detectable_points()
  Limits limits = {};
  int threads = 0;  // that measure; 0: one a core
  // Runs with an effect by chance, of 0.5 to 2 and of 2 to 16 times the size that must be found.
  int near = 0, far = 0;
};

// The facts of a place that decide how small an effect can be seen there.
struct Seeable {
  OpKind op = OpKind::linear;
  DType dtype = DType::bf16;
  double terms = 0;           // products summed per element, width of a norm, keys of an attention
  double head_dim = 0;        // of an attention
  double scores = 0;          // of an attention: the largest sum |q k| / sqrt(head_dim)
  double pair = 1.5;          // of a rope: (|x1| + |x2|) / r of what one element is turned from
  double elements = 0;        // that the effect is put in
  double errors = 0;          // of a right kernel in them that are independent of each other
  bool by_chance = true;      // how they round; else they lie close to numbers of the dtype
  bool beside_small = false;  // an offset or noise, which is large beside small results
};
// The size in ulp at which every judge that is worth the name finds an effect: a power of two.
//
// In units of u = 2^-p of the result, a right kernel that computes in fp32 is off by v on average
// and b at most before it rounds (Higham and Mary 2019), times 2^(p-24), which fp32 is finer by:
//   - products of either sign, S = sqrt(K) times their sum: v = .34 K, b = 8 K;
//   - norm of width D: v = .17 sqrt(D) + 3, b = 4 sqrt(D) + 8;
//   - silu_mul: v = 3, b = 16;
//   - rope: v = 1.2, b = 4 (|x1| + |x2|) / r, 6 of all elements together;
//   - softmax of n: v = 5 + .3 sqrt(n), b = 32 + 8 sqrt(n);
//   - attention of n keys with scores of S, and head_dim d: v = S (.34 sqrt(d) + 2) + 6 + ln n,
//     b = 16 (S sqrt(d) + 4) + 8 sqrt(n).
// The least of these:
//   - one element is off by a rounding, half an ulp of doubt and b: 1.5 + b;
//   - of n elements each crosses the border to the next number with a chance of size/2 or more:
//     20/n + b leaves a chance of e^-10 that none does;
//   - the share of them that do, size/2, is more than the v that a right kernel has and what n of
//     them may have by a chance of 1e-12: 2 (v + sqrt(42 v/n) + 30/n), not in fp32;
//   - where a right kernel is off in proportion to each result, a norm's or a silu_mul's, an offset
//     is large beside the least of n results, which are r/n or so: 20 b/n;
//   - the root mean square of m independent errors, in 16 elements or more (fewer are worth
//     no statistic): 1.05 (1 + 5/sqrt(m)) sqrt(v^2 + 1/3).
// No less than 1/256: smaller sizes are not tried.
double stated_limit(const Seeable& seeable);

// The points whose op rounds, of models of that graph: one a kind of op where `one_an_op`.
std::vector<const Point*> detectable_points(const Graph& graph, bool one_an_op);

struct Detection {
  // One effect of a size near to what must be found, in one layer or in several.
  struct Run {
    std::string name;
    double size = 0, stated = 0;  // ulp; stated_limit() of that effect there
    RunVerdict verdict = RunVerdict::inconclusive;
    std::string story;
    double limit_ratio = 0;  // Result::limit_ratio
    bool exact = false;      // the place of the effect is what is found first
  };

  std::vector<DetectionLimit> limits;
  std::vector<Run> runs;
};
// Serves the requests once with a clean engine. Then puts each effect into what it showed of each
// point, in the last layer alone and in all that are named, and judges that point alone, in sizes
// that are powers of two. No size, effect or place is found by the judge's budgets, its oracle or
// its reference. Of a point whose right results are not clean no size is found.
Detection detection(const DetectionPlan& plan);

}  // namespace lockstep
