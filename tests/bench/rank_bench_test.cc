// Ranks are timed beside one, in processes of their own.
#include "src/bench/rank_bench.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "src/bench/synthetic.h"

namespace lockstep {
namespace {

constexpr auto kSmall = R"({"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3",
  "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
  "head_dim": 16, "intermediate_size": 96, "vocab_size": 320, "max_position_embeddings": 1024,
  "rms_norm_eps": 1e-06, "rope_theta": 10000, "tie_word_embeddings": true, "hidden_act": "silu",
  "eos_token_id": 0, "torch_dtype": "bfloat16"})";

// A child tells what it saw by its status alone.
int status_of(const std::vector<Figure>& figures) {
  const auto has = [&](const char* text) {
    return std::ranges::any_of(
        figures, [&](const Figure& f) { return f.what.find(text) != std::string::npos; });
  };
  const auto timed = [](const Figure& f) {
    return !f.samples.empty() && std::ranges::min(f.samples) > 0;
  };
  if (figures.size() != 7) return 10 + static_cast<int>(figures.size());
  if (!std::ranges::all_of(figures, timed)) return 3;
  return has("decode, 1 x 128, one rank") && has("prefill, 512 tokens, 2 ranks") &&
                 has("2 ranks, every point digested") && has("all-reduce")
             ? 0
             : 4;
}

TEST(RankBench, TimesRanksBesideOne) {
  const Checkpoint checkpoint = synthetic_checkpoint(kSmall);
  const int status = run_ranks(2, std::chrono::seconds(20), [&](RankSeat& seat) {
    const std::vector<Figure> figures = measure_rank("small", checkpoint, Device::cpu, seat);
    if (seat.rank() == 0) return status_of(figures);
    return figures.empty() ? 0 : 5;
  });
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace lockstep
