// lockstep model: what was understood of a checkpoint.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>

#include "kernels/matmul.h"
#include "src/weights/checkpoint.h"
#include "tools/options.h"
#include "tools/output.h"

namespace lockstep {
namespace {

// Numbers that the weights hold, as the configuration says; a tied lm_head counts once.
int64_t parameters_of(const ModelConfig& c) {
  const int64_t q = c.heads * c.head_dim, kv = c.kv_heads * c.head_dim;
  int64_t layer = c.hidden * (2 * q + 2 * kv) + 2 * c.hidden;
  if (c.qkv_bias) layer += q + 2 * kv;
  if (c.o_bias) layer += c.hidden;
  if (c.qk_norm) layer += 2 * c.head_dim;
  const int64_t mlp = 3 * c.hidden * c.intermediate;
  const int64_t experts = c.experts.count * c.hidden * (1 + 3 * c.experts.intermediate);
  const auto with_experts = std::ssize(c.experts.layers);
  return (c.tied ? 1 : 2) * c.vocab * c.hidden + c.layers * layer +
         (c.layers - with_experts) * mlp + with_experts * experts + c.hidden;
}

std::string rope_text(const RopeConfig& rope) {
  std::string text = fmt::format("{}, base {}", name_of(rope.type), rope.theta);
  if (rope.type == RopeType::standard) return text;
  text += fmt::format(", factor {}", rope.factor);
  if (rope.original_max_positions > 0)
    text += fmt::format(" over {} positions", rope.original_max_positions);
  return text;
}

std::string window_text(const std::vector<int64_t>& window) {
  const auto limited = std::ranges::count_if(window, [](int64_t keys) { return keys > 0; });
  if (limited == 0) return "every query sees all keys before it";
  return fmt::format("{} of {} layers see the last {} keys only", limited, window.size(),
                     *std::ranges::max_element(window));
}

std::string experts_text(const ExpertsConfig& experts) {
  if (experts.layers.empty()) return "none";
  return fmt::format("{} of {} wide in {} layers, {} a token, weights {}", experts.count,
                     experts.intermediate, experts.layers.size(), experts.chosen,
                     experts.normalised ? "normalised" : "not normalised");
}

std::string norm_and_bias_text(const ModelConfig& c) {
  return fmt::format("RMSNorm, epsilon {}; {} QK-norm; {} q, k, v; {} o", c.norm_eps,
                     c.qk_norm ? "with" : "no", c.qkv_bias ? "biases on" : "no bias on",
                     c.o_bias ? "bias on" : "no bias on");
}

std::string weights_text(const std::string& dir) {
  const auto is_weights = [](const auto& file) {
    return file.path().extension() == ".safetensors";
  };
  if (std::ranges::none_of(std::filesystem::directory_iterator(dir), is_weights))
    return "none here: only the configuration was read";
  const Checkpoint checkpoint = Checkpoint::open(dir);
  return fmt::format("{} tensors, {} bytes, fingerprint {}", checkpoint.names().size(),
                     checkpoint.bytes(), checkpoint.fingerprint());
}

// What the model takes in that dtype, and how much of it this machine could serve.
std::string memory_text(const ModelConfig& c, DType dtype) {
  constexpr double kGigabyte = 1e9;
  const int64_t machine = sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
  const int64_t weights = parameters_of(c) * size_of(dtype), token = c.kv_bytes_per_token(dtype);
  std::string text = fmt::format("{:.3g} GB of weights, {} bytes of K/V a token; ",
                                 static_cast<double>(weights) / kGigabyte, token);
  const double has = static_cast<double>(machine) / kGigabyte;
  const int64_t tokens = (machine - weights) / token;
  text += tokens < 1
              ? fmt::format("does not fit into this machine's {:.3g} GB", has)
              : fmt::format("runs in this machine's {:.3g} GB with up to {} tokens", has, tokens);
  return text + fmt::format("; matrix products: {}", matmul_path(dtype));
}

Table describe(const std::string& dir) {
  const ModelConfig c = read_config(dir);
  Table table{{"what", "is"}, {}};
  const auto row = [&](const char* what, const auto& text) {
    table.rows.push_back({std::string(what), std::string(text)});
  };
  row("architecture", fmt::format("{} ({})", c.architecture, c.model_type));
  row("layers", std::to_string(c.layers));
  row("hidden", std::to_string(c.hidden));
  row("intermediate", std::to_string(c.intermediate));
  row("experts", experts_text(c.experts));
  row("heads", fmt::format("{} of queries, {} of keys and values, of {} numbers each", c.heads,
                           c.kv_heads, c.head_dim));
  row("vocabulary", fmt::format("{}{}", c.vocab, c.tied ? ", lm_head is the embedding" : ""));
  row("positions", std::to_string(c.max_positions));
  row("norms, biases", norm_and_bias_text(c));
  row("RoPE", rope_text(c.rope));
  row("attention", window_text(c.window));
  row("end of text", fmt::format("{}", fmt::join(c.eos, ", ")));
  row("parameters", std::to_string(parameters_of(c)));
  row("stored as", name_of(c.dtype));
  row("weights", weights_text(dir));
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
    table.rows.push_back({fmt::format("in {}", name_of(dtype)), memory_text(c, dtype)});
  return table;
}

}  // namespace

int model_command(Args args) {
  CLI::App app{
      "Show what was understood of a checkpoint: its shape, its options, its weights, and what of\n"
      "this machine will compute it. A folder with only config.json is described as far as it "
      "goes.",
      "lockstep model"};
  std::string dir, format = "table";
  app.add_option("DIR", dir, "checkpoint: config.json, *.safetensors")->type_name("")->required();
  add_format_option(app, format);
  if (!parse(app, args,
             "  lockstep model Qwen3-0.6B\n"
             "  lockstep model Qwen3-0.6B --format json\n"))
    return 0;
  print(text_of(describe(dir), format));
  return 0;
}

}  // namespace lockstep
