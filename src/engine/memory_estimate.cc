#include "src/engine/memory_estimate.h"

#include <algorithm>
#include <limits>

#include "src/model/activations.h"

namespace lockstep {
namespace {

// Memory that does not grow with a pass: code that the driver loads when it is first called,
// graphs, the workspace of cuBLASLt, page tables, rotary tables, partial results of attention.
constexpr int64_t kRest = int64_t{2} << 30;

}  // namespace

int64_t max_pages(const ModelConfig& config, const EngineOptions& options, int64_t bytes) {
  const Activations activations(config, options.dtype, options.device);
  // Fused ops have some buffers of their own besides.
  const int64_t buffers = 2 * activations.memory(options.max_batched_tokens, options.max_batch);
  const int64_t draws = options.max_batch * config.vocab * sizeof(double);
  const int64_t left =
      bytes - Weights::memory(config, options.dtype, options.device) - buffers - draws - kRest;
  const int64_t sides = 2 * config.layers;  // K and V of a layer, a tensor each
  const int64_t page =
      config.kv_bytes_per_token(options.dtype) / sides * options.page_size;  // of a side
  int64_t pages = std::max<int64_t>(0, left / sides / page);
  // Allocations are rounded up, so that a division alone may be a page too many.
  while (pages > 0 && sides * memory_for(pages * page, options.device) > left) --pages;
  return std::min<int64_t>(pages, std::numeric_limits<int32_t>::max());
}

}  // namespace lockstep
