// A checkpoint, as lockstep model shows it: read from config.json alone, so that weights need not
// be there, with what it would take to run it here.
#include "src/session/model_table.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "kernels/base/memory.h"
#include "kernels/matmul.h"
#include "src/engine/memory_estimate.h"
#include "src/weights/checkpoint.h"

namespace lockstep {
namespace {

// Numbers that the weights hold; a tied lm_head counts once.
int64_t parameters_of(const ModelConfig& config) {
  int64_t numbers = 0;
  for (const auto& [name, shape] : needed_tensors(config)) numbers += shape.count();
  return numbers;
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

std::string experts_text(const ModelConfig::Experts& experts) {
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

// A folder with the configuration alone is answered too: what a model would need can be asked
// before it is downloaded.
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

// Where it would run.
struct Room {
  const char* of;
  int64_t bytes;
};

// The device must have been opened.
Room room_of(Device device) {
  if (device != Device::cpu) return {"this device's free", device_memory_left(device)};
  return {"this machine's", sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE)};
}

// The memory that the model takes in that dtype, and how much of it could be served there: all that
// weights and passes leave is for K/V.
std::string memory_text(const ModelConfig& c, DType dtype, Device device, const Room& room) {
  constexpr double kGigabyte = 1e9;
  const int64_t weights = parameters_of(c) * size_of(dtype);
  std::string text =
      fmt::format("{:.3g} GB of weights, {} bytes of K/V a token; ",
                  static_cast<double>(weights) / kGigabyte, c.kv_bytes_per_token(dtype));
  const double has = static_cast<double>(room.bytes) / kGigabyte;
  const EngineOptions engine{
      .device = device, .dtype = dtype, .max_batched_tokens = 2048, .max_batch = 64};
  const int64_t pages = max_pages(c, engine, room.bytes), tokens = pages * engine.page_size;
  if (pages < 1) return text + fmt::format("does not fit into {} {:.3g} GB", room.of, has);
  text += fmt::format(
      "runs in {} {:.3g} GB with up to {} tokens (--pages {} --budget {} --max-batch {})", room.of,
      has, tokens, pages, engine.max_batched_tokens, engine.max_batch);
  const int64_t requests = c.max_positions > 0 ? tokens / c.max_positions : 0;
  return text + (requests > 0 ? fmt::format(", {} requests of {} positions at once", requests,
                                            c.max_positions)
                              : fmt::format(", fewer than its {} positions", c.max_positions));
}

}  // namespace

Table describe_model(const std::string& dir, Device device) {
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
  const Room room = room_of(device);
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    std::string text = memory_text(c, dtype, device, room);
    if (device == Device::cpu) text += fmt::format("; matrix products: {}", matmul_path(dtype));
    table.rows.push_back({fmt::format("in {}", name_of(dtype)), text});
  }
  return table;
}

}  // namespace lockstep
