// How fast the engine is on the CPU.
//
// The room of `lockstep bench`: figures of the engine and of the judge beside what the machine
// could give (roofs), so that a figure says how much is left and a slow machine is not taken for a
// slow engine. Each figure keeps all its samples.
//
//   shapes x (cpu_bench | device_bench | judging_bench) -> Figure -> table
//                roofs before and after               share of a roof, or of another figure
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "src/bench/cpu_roofs.h"
#include "src/bench/figures.h"
#include "src/weights/checkpoint.h"

namespace lockstep {

// Serves prompts and single tokens of that model in bf16, each several times. `name` opens every
// figure; `show` is told what is measured next. Throws Error when logits are not finite, or are
// others the second time.
std::vector<Figure> measure_cpu(const std::string& name, const Checkpoint& checkpoint, int threads,
                                CpuRoofs& roofs, const std::function<void(const char* what)>& show);

}  // namespace lockstep
