// How fast the engine is on the CPU.
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
