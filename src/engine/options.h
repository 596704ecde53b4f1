// How an engine goes about its requests. Each option of serving stands once, in the table at the
// end: the command line, its help, the provenance, the modes' base and the selftest's draws visit
// it.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <tuple>

#include "kernels/base/dtype.h"
#include "kernels/base/memory.h"
#include "kernels/base/names.h"

namespace lockstep {

class LayerExecutor;
struct PassParts;

// The fate of a running request whose pages another one needs.
enum class Preempt : uint8_t {
  recompute,  // its pages are freed, its tokens are computed again later
  swap,       // its pages are copied to host memory and back later
};
template <>
inline constexpr auto kNamesOf<Preempt> = std::to_array<const char*>({"recompute", "swap"});

// Numbers that are 0 mean what their help says, in the table below.
struct EngineOptions {
  Device device = Device::cpu;
  bool graph = false;  // of a CUDA device: decode passes are replayed from graphs
  DType dtype = DType::bf16;
  int64_t page_size = 16;
  int64_t pages = 0;
  uint64_t page_order_seed = 0;
  int64_t chunk = 0;
  int64_t max_batched_tokens = 0;
  int64_t max_batch = 0;
  bool prefix_cache = false;
  Preempt preempt = Preempt::recompute;
  uint64_t random_schedule_seed = 0;
  int threads = 0;
  // Fill value of newly allocated pages, so that a read of an unwritten slot is visible in the
  // output.
  float poison = std::numeric_limits<float>::quiet_NaN();
  // Makes the executors of passes in the place of the model's own (src/model/layer_executor.h).
  std::function<std::unique_ptr<LayerExecutor>(const PassParts&)> make_executor;
  bool over_ranks = false;  // those show what each rank adds to a sum, too
  bool in_shares = false;   // those show the shares that attention is merged of, too
  bool exact_rows = false;  // those share the rows of a pass: a decode pass on a device has no more
  // The text of tokens, in which the requests' stop texts are sought; only those need it.
  std::function<std::string(std::span<const int32_t>)> text_of;
};

// One option of serving.
template <class T, size_t N>
struct EngineOption {
  const char* name;  // of the flag, without its dashes; in the provenance with _ for -
  T EngineOptions::*member;
  int64_t least;           // of a number
  bool shapes_passes;      // it decides which rows are computed together
  std::array<T, N> draws;  // the values among which the selftest draws; none: it does not
  const char* help;        // with the default
};
template <class T, size_t N>
EngineOption(const char*, T EngineOptions::*, int64_t, bool, std::array<T, N>, const char*)
    -> EngineOption<T, N>;

inline constexpr std::tuple kEngineOptions{
    EngineOption{"page-size", &EngineOptions::page_size, 1, false,
                 std::array<int64_t, 4>{1, 4, 16, 64}, "positions in a page of the K/V cache (16)"},
    EngineOption{"pages", &EngineOptions::pages, 0, false, std::array<int64_t, 0>{},
                 "pages of the K/V cache (0: as many as it takes)"},
    EngineOption{"page-order", &EngineOptions::page_order_seed, 0, false,
                 std::array<uint64_t, 4>{0, 3, 211, 977},
                 "seed of the order in which pages are handed out (0: ascending)"},
    EngineOption{"chunk", &EngineOptions::chunk, 0, true, std::array<int64_t, 5>{0, 0, 1, 7, 16},
                 "most prompt tokens of a request a pass (0: all)"},
    EngineOption{"budget", &EngineOptions::max_batched_tokens, 0, true,
                 std::array<int64_t, 3>{0, 0, 24}, "most tokens in one pass (0: all)"},
    EngineOption{"max-batch", &EngineOptions::max_batch, 0, true, std::array<int64_t, 0>{},
                 "most requests in one pass (0: all)"},
    EngineOption{"prefix-cache", &EngineOptions::prefix_cache, 0, true,
                 std::array<bool, 2>{false, true},
                 "requests share what they begin with (not where RoPE depends on the length)"},
    EngineOption{"preempt", &EngineOptions::preempt, 0, false,
                 std::array{Preempt::recompute, Preempt::swap},
                 "what becomes of a request whose pages an earlier one needs (recompute)"},
    EngineOption{"schedule", &EngineOptions::random_schedule_seed, 0, true,
                 std::array<uint64_t, 0>{}, "seed of a random legal schedule (0: none)"},
    EngineOption{"threads", &EngineOptions::threads, 0, false, std::array<int, 3>{1, 2, 3},
                 "threads that compute (0: one a core)"},
};

// Calls `visit(option)` for each row of the table, in its order.
template <class Visit>
void for_each_engine_option(Visit&& visit) {
  std::apply([&](const auto&... option) { (visit(option), ...); }, kEngineOptions);
}

}  // namespace lockstep
