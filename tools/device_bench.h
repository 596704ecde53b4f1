#pragma once

#include <functional>
#include <vector>

#include "src/weights/checkpoint.h"
#include "tools/figures.h"

namespace lockstep {

// How fast an engine serves one shape on the CUDA device that was opened: prompts, and decode
// passes of one request and of many, op by op and as graphs, and the attention of one layer over
// long contexts, beside what the device's memory could give. A pass is timed on the host, from its
// plan to the tokens it chose. Throws Error when graphs choose other tokens than ops do.
std::vector<Figure> measure_device(const std::string& shape, const Checkpoint& checkpoint,
                                   const std::function<void(const char*)>& progress);

// Bytes a second that the device's memory reads and writes in a copy, measured five times.
Figure measure_device_copy();

}  // namespace lockstep
