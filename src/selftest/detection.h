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

// The points whose op rounds, of models of that graph: one a kind of op where `one_an_op`.
std::vector<const Point*> detectable_points(const Graph& graph, bool one_an_op);

struct Detection {
  struct Plan {
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

  // An error that is put into the result of an op, `size` ulp of the dtype large, before the result
  // is rounded to the dtype as an engine stores it. With p the dtype's precision, u = 2^-p and r
  // the root mean square of the row:
  enum class Effect : uint8_t {
    gain,     // everything times 1 + size u, which is half an ulp of a result to a whole one
    offset,   // everything + size ulp(r)
    noise,    // everything + or - size ulp(r), by chance
    row,      // one row times 1 + size u
    column,   // the last column times 1 + size u
    element,  // one element + size ulp(r): of the last 8 of its row the largest that is not over r
  };

  // The least size of an effect that the judge finds, and names the right place for.
  struct Limit {
    const Point* point = nullptr;
    Effect effect = Effect::gain;
    int layers = 1;                     // in how many it is put; 1: in the last alone
    double size = 0;                    // ulp; infinity: no size that was tried
    std::string statistic;              // by which it is found then (statistic_of)
    std::optional<StatisticKind> kind;  // of that; none where no number decides
    double stated = 0;                  // what a judge must find (stated_limit in detection.cc)
    bool passed() const { return size <= stated; }
  };

  // One effect of a size near to what must be found, in one layer or in several.
  struct Run {
    std::string name;
    double size = 0, stated = 0;  // ulp; what must be found of that effect
    RunVerdict verdict = RunVerdict::inconclusive;
    std::string story;
    double limit_ratio = 0;  // Result::limit_ratio
    bool exact = false;      // the place of the effect is what is found first
  };

  std::vector<Limit> limits;
  std::vector<Run> runs;
};
template <>
inline constexpr auto kNamesOf<Detection::Effect> =
    std::to_array<const char*>({"gain", "offset", "noise", "row", "column", "element"});

// Serves the requests once with a clean engine. Then puts each effect into what it showed of each
// point, in the last layer alone and in all that are named, and judges that point alone, in sizes
// that are powers of two. No size, effect or place is found by the judge's budgets, its oracle or
// its reference. Of a point whose right results are not clean no size is found.
Detection detection(const Detection::Plan& plan);

}  // namespace lockstep
