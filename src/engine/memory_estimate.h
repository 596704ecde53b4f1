#pragma once

#include "src/engine/engine.h"

namespace lockstep {

// The most pages that an engine with those options can have in a memory of that many bytes of
// options.device, beside its weights and what it needs to compute passes of at most
// options.max_batched_tokens tokens and options.max_batch requests, both at least 1. 0 when not
// even one. options.pages is not looked at. An estimate from sizes alone, which asks no device:
// what the driver and libraries take is allowed for by a constant.
int64_t max_pages(const ModelConfig& config, const EngineOptions& options, int64_t bytes);

}  // namespace lockstep
