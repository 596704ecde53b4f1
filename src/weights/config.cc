// Old and new spellings of Hugging Face's config.json end up in one ModelConfig, with Hugging
// Face's defaults for what is missing. What this engine would compute otherwise than the model was
// trained (an activation, a kind of rope, a pattern of windows that it does not know) is refused
// here in a sentence, not approximated.
//
// Order of reading: the architecture with its built-in constants, sizes, which are held to each
// other at once, rope with its scaling, experts, windows, and the tokens that end a text, which
// generation_config.json may name anew.
#include "src/weights/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <set>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/printable.h"
#include "kernels/files/json.h"

namespace lockstep {
namespace {

// The constants that Hugging Face's code has built in for an architecture. To read a further one,
// add its row.
struct Family {
  std::string_view architecture;
  std::string_view model_type;
  bool qkv_bias;  // always; else as attention_bias says, and then o has one too
  bool qk_norm;
  int64_t default_head_dim;  // 0: hidden / heads
  bool experts;
};
constexpr std::array<Family, 3> kFamilies = {{
    {"Qwen2ForCausalLM", "qwen2", true, false, 0, false},
    {"Qwen3ForCausalLM", "qwen3", false, true, 128, false},
    {"Qwen3MoeForCausalLM", "qwen3_moe", false, true, 0, true},
}};

constexpr char kRemedy[] = "correct it, or fetch the file again";
constexpr int64_t kMostSize = 1 << 30;  // of any model; the products of two then fit 64 bits
constexpr int64_t kMostLayers = 1 << 12;
constexpr int64_t kMostExperts = 1 << 18;  // of all layers together, each with three matrices

// Fields of config.json; null counts as missing.
int64_t integer(const JsonValue& object, std::string_view key) {
  return object[key].whole<int64_t>(1, kMostSize);
}
int64_t integer(const JsonValue& object, std::string_view key, int64_t otherwise) {
  return object[key] ? integer(object, key) : otherwise;
}

double positive(const JsonValue& value) {
  const double number = value.number();
  if (!(number > 0)) value.refuse("a number above 0");
  return number;
}
double positive(const JsonValue& object, std::string_view key, double otherwise) {
  return object[key] ? positive(object[key]) : otherwise;
}

bool flag_of(const JsonValue& object, std::string_view key, bool otherwise) {
  return object[key] ? object[key].flag() : otherwise;
}
std::string text_of(const JsonValue& object, std::string_view key, std::string_view otherwise) {
  return object[key] ? object[key].text() : std::string(otherwise);
}

std::vector<double> positives(const JsonValue& list) {
  std::vector<double> numbers;
  for (const JsonValue& entry : list.items()) numbers.push_back(positive(entry));
  return numbers;
}

const Family& family_of(const JsonValue& fields) {
  const JsonValue list = fields["architectures"];
  if (!list.is_list() || list.size() != 1 || !list[0].is_text())
    list.refuse("the name of one model");
  const std::string& name = list[0].text();
  const auto* family = std::find_if(kFamilies.begin(), kFamilies.end(),
                                    [&](const Family& row) { return row.architecture == name; });
  // Named from the table, so that a new row is in the sentence too.
  std::array<std::string_view, kFamilies.size()> known;
  std::ranges::transform(kFamilies, known.begin(), &Family::architecture);
  check(family != kFamilies.end(),
        "{} is of the architecture \"{}\", and {} are read; use such a checkpoint", fields.where(),
        shown(name), fmt::join(known, ", "));
  const std::string type = text_of(fields, "model_type", family->model_type);
  check(type == family->model_type, "{} has the model_type \"{}\" and {} is \"{}\"; correct it",
        fields.where(), shown(type), name, family->model_type);
  return *family;
}

DType dtype_of(const JsonValue& fields) {
  const std::string name = text_of(fields, "dtype", text_of(fields, "torch_dtype", ""));
  if (name == "bfloat16") return DType::bf16;
  if (name == "float16") return DType::f16;
  if (name == "float32") return DType::f32;
  fail(
      "{} should have a \"dtype\" or \"torch_dtype\" of bfloat16, float16 or float32 and has "
      "\"{}\"; "
      "correct it",
      fields.where(), shown(name));
}

RopeType rope_type_of(const JsonValue& fields) {
  const std::string name = text_of(fields, "rope_type", text_of(fields, "type", "default"));
  if (const auto type = find_named<RopeType>(name)) return *type;
  fail(
      "{} has the rope type \"{}\", and default, linear, dynamic, yarn, llama3 and longrope are "
      "known; use such a checkpoint",
      fields.where(), shown(name));
}

// Reads what a rope type other than "default" adds, with Hugging Face's defaults.
void read_scaling(const JsonValue& fields, const ModelConfig& config, RopeConfig& rope) {
  rope.original_max_positions =
      integer(fields, "original_max_position_embeddings", config.max_positions);
  const double stretch =
      static_cast<double>(config.max_positions) / static_cast<double>(rope.original_max_positions);
  const bool deducible = rope.type == RopeType::yarn || rope.type == RopeType::longrope;
  rope.factor = deducible ? positive(fields, "factor", stretch) : positive(fields["factor"]);
  check(rope.factor >= 1, "{} has the factor {}, which should be at least 1; correct it",
        fields.where(), rope.factor);
  rope.attention_factor = positive(fields, "attention_factor", 0);
  if (rope.type == RopeType::yarn) {
    rope.beta_fast = positive(fields, "beta_fast", rope.beta_fast);
    rope.beta_slow = positive(fields, "beta_slow", rope.beta_slow);
    rope.mscale = positive(fields, "mscale", 0);
    rope.mscale_all_dim = positive(fields, "mscale_all_dim", 0);
    rope.truncate = flag_of(fields, "truncate", true);
  }
  if (rope.type == RopeType::llama3) {
    rope.low_freq_factor = positive(fields["low_freq_factor"]);
    rope.high_freq_factor = positive(fields["high_freq_factor"]);
    check(rope.low_freq_factor < rope.high_freq_factor,
          "{} has a low_freq_factor of {} and a high_freq_factor of {}, which should be above it; "
          "correct them",
          fields.where(), rope.low_freq_factor, rope.high_freq_factor);
  }
  if (rope.type != RopeType::longrope) return;
  rope.short_factor = positives(fields["short_factor"]);
  rope.long_factor = positives(fields["long_factor"]);
  const size_t wanted = config.head_dim / 2;
  check(rope.short_factor.size() == wanted && rope.long_factor.size() == wanted,
        "{} has {} short and {} long factors and {} pairs of a head need one each; correct them",
        fields.where(), rope.short_factor.size(), rope.long_factor.size(), wanted);
  check(rope.original_max_positions > 1,
        "{} has one original position, and longrope divides by its logarithm; correct it",
        fields.where());
}

// New spelling: rope_parameters, which has the base too; old: rope_theta beside rope_scaling.
RopeConfig rope_of(const JsonValue& top, const ModelConfig& config) {
  RopeConfig rope;
  rope.theta = positive(top, "rope_theta", rope.theta);
  rope.original_max_positions = config.max_positions;
  const JsonValue fields = top["rope_parameters"] ? top["rope_parameters"] : top["rope_scaling"];
  if (fields) {
    // One set of parameters per kind of layer would otherwise be read as none at all.
    for (const auto& [key, value] : fields.fields())
      check(!value.is_object(), "{} has parameters of its own for \"{}\", which is not supported",
            fields.where(), shown(key));
    rope.theta = positive(fields, "rope_theta", rope.theta);
    rope.type = rope_type_of(fields);
    if (rope.type != RopeType::standard) read_scaling(fields, config, rope);
  }
  check(rope.theta > 1, "{} has a rope_theta of {}, which should be above 1; correct it",
        top.where(), rope.theta);
  return rope;
}

// A layer slides as layer_types says, and where there is none from layer max_window_layers on.
std::vector<int64_t> windows_of(const JsonValue& fields, int64_t layers) {
  const bool sliding = flag_of(fields, "use_sliding_window", false);
  const int64_t width = sliding ? integer(fields, "sliding_window") : 0;
  std::vector<int64_t> windows(layers, 0);
  const JsonValue types = fields["layer_types"];
  if (!types) {
    // Without this number no layer can be told from another.
    const int64_t first =
        sliding ? fields["max_window_layers"].whole<int64_t>(0, kMostSize) : layers;
    for (int64_t i = first; i < layers; ++i) windows[i] = width;
    return windows;
  }
  check(types.is_list() && types.size() == windows.size(),
        "\"layer_types\" of {} should have one entry for each of {} layers; correct it",
        fields.where(), layers);
  for (size_t i = 0; i < windows.size(); ++i) {
    const JsonValue type = types[i];
    const bool slides = type.is("sliding_attention");
    if (!slides && !type.is("full_attention")) type.refuse("full_attention or sliding_attention");
    check(!slides || sliding,
          "layer {} of {} slides a window and \"use_sliding_window\" is not true; correct it", i,
          fields.where());
    windows[i] = slides ? width : 0;
  }
  return windows;
}

// A number, a list or nothing: a text may end in several ways, or only by its length.
std::vector<int32_t> eos_of(const JsonValue& value, int64_t vocab) {
  std::vector<int32_t> ids;
  if (!value) return ids;
  for (const JsonValue& id : value.is_list() ? value.items() : std::vector{value})
    ids.push_back(static_cast<int32_t>(id.whole<int64_t>(0, vocab - 1)));
  return ids;
}

// The layers of experts: every decoder_sparse_step-th one that mlp_only_layers does not name.
std::vector<int> expert_layers_of(const JsonValue& fields, int64_t layers) {
  const int64_t step = integer(fields, "decoder_sparse_step", 1);
  std::set<int64_t> dense;
  if (const JsonValue list = fields["mlp_only_layers"])
    for (const JsonValue& layer : list.items()) dense.insert(layer.whole<int64_t>(0));
  std::vector<int> found;
  for (int64_t layer = 0; layer < layers; ++layer)
    if ((layer + 1) % step == 0 && !dense.contains(layer)) found.push_back(static_cast<int>(layer));
  return found;
}

ModelConfig::Experts experts_of(const JsonValue& fields, const ModelConfig& config) {
  ModelConfig::Experts experts;
  experts.count = integer(fields, fields["num_experts"] ? "num_experts" : "num_local_experts");
  experts.chosen = integer(fields, "num_experts_per_tok");
  check(experts.chosen <= experts.count,
        "{} chooses {} of {} experts a token, and there are not so many; correct it",
        fields.where(), experts.chosen, experts.count);
  experts.intermediate = integer(fields, "moe_intermediate_size");
  experts.normalised = flag_of(fields, "norm_topk_prob", false);
  experts.layers = expert_layers_of(fields, config.layers);
  check(experts.count * std::ssize(experts.layers) <= kMostExperts,
        "{} has {} experts in each of {} layers, and {} are allowed together; correct it",
        fields.where(), experts.count, experts.layers.size(), kMostExperts);
  // Hugging Face lets all layers of this family slide, whatever max_window_layers says.
  check(!flag_of(fields, "use_sliding_window", false),
        "{} slides a window beside experts, which is not supported; use another checkpoint",
        fields.where());
  return experts;
}

void read_sizes(const JsonValue& fields, const Family& family, ModelConfig& config) {
  config.hidden = integer(fields, "hidden_size");
  config.layers = integer(fields, "num_hidden_layers");
  config.heads = integer(fields, "num_attention_heads");
  config.kv_heads = integer(fields, "num_key_value_heads", config.heads);
  config.intermediate = integer(fields, "intermediate_size");
  config.vocab = integer(fields, "vocab_size");
  config.max_positions = integer(fields, "max_position_embeddings");
  check(config.layers <= kMostLayers, "{} has {} layers, and {} are allowed; correct it",
        fields.where(), config.layers, kMostLayers);
  check(config.heads % config.kv_heads == 0,
        "{} has {} attention heads, which {} key-value heads do not divide; correct it",
        fields.where(), config.heads, config.kv_heads);
  const int64_t otherwise = family.default_head_dim;
  check(fields["head_dim"] || otherwise != 0 || config.hidden % config.heads == 0,
        "{} has a hidden size of {}, which {} heads do not divide, and no \"head_dim\"; add it",
        fields.where(), config.hidden, config.heads);
  config.head_dim =
      integer(fields, "head_dim", otherwise != 0 ? otherwise : config.hidden / config.heads);
  check(config.head_dim % 2 == 0,
        "{} has heads of {} values, and rotary positions need an even number; correct it",
        fields.where(), config.head_dim);
}

}  // namespace

bool ModelConfig::Experts::in(int64_t layer) const {
  return std::ranges::binary_search(layers, layer);
}

ModelConfig read_config(const std::string& dir) {
  const std::string path = dir + "/config.json";
  const JsonDocument document = JsonDocument::read(path, kRemedy);
  const JsonValue fields = document.root();
  const Family& family = family_of(fields);
  ModelConfig config;
  config.architecture = family.architecture;
  config.model_type = family.model_type;
  read_sizes(fields, family, config);
  const std::string activation = text_of(fields, "hidden_act", "silu");
  check(activation == "silu",
        "{} has the activation \"{}\", and silu is known; use such a checkpoint", fields.where(),
        shown(activation));
  config.norm_eps = positive(fields, "rms_norm_eps", config.norm_eps);
  config.tied = flag_of(fields, "tie_word_embeddings", false);
  config.o_bias = !family.qkv_bias && flag_of(fields, "attention_bias", false);
  config.qkv_bias = family.qkv_bias || config.o_bias;
  config.qk_norm = family.qk_norm;
  config.dtype = dtype_of(fields);
  config.rope = rope_of(fields, config);
  if (family.experts) config.experts = experts_of(fields, config);
  config.window = windows_of(fields, config.layers);
  config.eos = eos_of(fields["eos_token_id"], config.vocab);
  const std::string generation = dir + "/generation_config.json";
  if (!std::filesystem::exists(generation)) return config;
  const JsonDocument more = JsonDocument::read(generation, kRemedy);
  if (const JsonValue eos = more.root()["eos_token_id"]) config.eos = eos_of(eos, config.vocab);
  return config;
}

}  // namespace lockstep
