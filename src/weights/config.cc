#include "src/weights/config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "kernels/base/check.h"
#include "src/weights/files.h"

namespace lockstep {
namespace {

using nlohmann::json;

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

constexpr std::array<std::pair<std::string_view, RopeType>, 6> kRopeTypes = {{
    {"default", RopeType::standard},
    {"linear", RopeType::linear},
    {"dynamic", RopeType::dynamic},
    {"yarn", RopeType::yarn},
    {"llama3", RopeType::llama3},
    {"longrope", RopeType::longrope},
}};

// A JSON object whose fields are read with a check of their kind. A null field counts as absent.
class Fields {
 public:
  Fields(const json& object, std::string where) : object_(object), where_(std::move(where)) {
    check(object.is_object(), "{} should be a JSON object and is not; fetch the file again",
          where_);
  }

  const std::string& where() const { return where_; }
  const json* find(const char* key) const {
    const auto found = object_.find(key);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }
  int64_t integer(const char* key) const {
    check(find(key) != nullptr, "{} has no \"{}\"; fetch the file again", where_, key);
    return integer(key, 0);
  }
  int64_t integer(const char* key, int64_t otherwise) const {
    const json* value = find(key);
    if (value == nullptr) return otherwise;
    // Sizes of any model fit; their products then fit 64 bits.
    check(
        value->is_number_integer() && value->get<double>() >= 1 && value->get<double>() <= 1 << 30,
        "\"{}\" of {} should be a whole number from 1 to 2^30 and is {}; correct it", key, where_,
        value->dump());
    return value->get<int64_t>();
  }
  double number(const char* key) const {
    check(find(key) != nullptr, "{} has no \"{}\"; add it", where_, key);
    return number(key, 0);
  }
  double number(const char* key, double otherwise) const {
    const json* value = find(key);
    if (value == nullptr) return otherwise;
    check(value->is_number() && value->get<double>() > 0 &&
              value->get<double>() <= std::numeric_limits<double>::max(),
          "\"{}\" of {} should be a number above 0 and is {}; correct it", key, where_,
          value->dump());
    return value->get<double>();
  }
  bool flag(const char* key, bool otherwise) const {
    const json* value = find(key);
    if (value == nullptr) return otherwise;
    check(value->is_boolean(), "\"{}\" of {} should be true or false and is {}; correct it", key,
          where_, value->dump());
    return value->get<bool>();
  }
  std::string text(const char* key, std::string_view otherwise) const {
    const json* value = find(key);
    if (value == nullptr) return std::string(otherwise);
    check(value->is_string(), "\"{}\" of {} should be a text and is {}; correct it", key, where_,
          value->dump());
    return value->get<std::string>();
  }
  std::vector<double> numbers(const char* key) const {
    const json* value = find(key);
    check(value != nullptr && value->is_array(), "{} has no list \"{}\"; add it", where_, key);
    std::vector<double> list;
    for (const json& entry : *value) {
      check(entry.is_number() && entry.get<double>() > 0,
            "\"{}\" of {} should have numbers above 0 and has {}; correct it", key, where_,
            entry.dump());
      list.push_back(entry.get<double>());
    }
    return list;
  }

 private:
  const json& object_;
  std::string where_;
};

// Without exceptions, so that trouble stays one sentence that names the file.
json parse(const std::string& path) {
  json parsed = json::parse(read_text(path), nullptr, /*allow_exceptions=*/false);
  check(!parsed.is_discarded(), "\"{}\" is not JSON; fetch the file again", path);
  return parsed;
}

const Family& family_of(const Fields& fields) {
  const json* list = fields.find("architectures");
  check(list != nullptr && list->is_array() && list->size() == 1 && list->front().is_string(),
        "{} should name one model in \"architectures\"; fetch the file again", fields.where());
  const auto name = list->front().get<std::string>();
  const auto* family = std::find_if(kFamilies.begin(), kFamilies.end(),
                                    [&](const Family& row) { return row.architecture == name; });
  check(family != kFamilies.end(),
        "{} is of the architecture \"{}\", and Qwen2ForCausalLM, Qwen3ForCausalLM and "
        "Qwen3MoeForCausalLM are read; use such a checkpoint",
        fields.where(), name);
  const std::string type = fields.text("model_type", family->model_type);
  check(type == family->model_type, "{} has the model_type \"{}\" and {} is \"{}\"; correct it",
        fields.where(), type, name, family->model_type);
  return *family;
}

DType dtype_of(const Fields& fields) {
  const std::string name = fields.text("dtype", fields.text("torch_dtype", ""));
  if (name == "bfloat16") return DType::bf16;
  if (name == "float16") return DType::f16;
  if (name == "float32") return DType::f32;
  fail(
      "{} should have a \"dtype\" or \"torch_dtype\" of bfloat16, float16 or float32 and has "
      "\"{}\"; "
      "correct it",
      fields.where(), name);
}

RopeType rope_type_of(const Fields& fields) {
  const std::string name = fields.text("rope_type", fields.text("type", "default"));
  for (const auto& [known, type] : kRopeTypes)
    if (known == name) return type;
  fail(
      "{} has the rope type \"{}\", and default, linear, dynamic, yarn, llama3 and longrope are "
      "known; use such a checkpoint",
      fields.where(), name);
}

// Reads what a rope type other than "default" adds, with Hugging Face's defaults.
void read_scaling(const Fields& fields, const ModelConfig& config, RopeConfig& rope) {
  rope.original_max_positions =
      fields.integer("original_max_position_embeddings", config.max_positions);
  const double stretch =
      static_cast<double>(config.max_positions) / static_cast<double>(rope.original_max_positions);
  const bool deducible = rope.type == RopeType::yarn || rope.type == RopeType::longrope;
  rope.factor = deducible ? fields.number("factor", stretch) : fields.number("factor");
  check(rope.factor >= 1, "{} has the factor {}, which should be at least 1; correct it",
        fields.where(), rope.factor);
  rope.attention_factor = fields.number("attention_factor", 0);
  if (rope.type == RopeType::yarn) {
    rope.beta_fast = fields.number("beta_fast", rope.beta_fast);
    rope.beta_slow = fields.number("beta_slow", rope.beta_slow);
    rope.mscale = fields.number("mscale", 0);
    rope.mscale_all_dim = fields.number("mscale_all_dim", 0);
    rope.truncate = fields.flag("truncate", true);
  }
  if (rope.type == RopeType::llama3) {
    rope.low_freq_factor = fields.number("low_freq_factor");
    rope.high_freq_factor = fields.number("high_freq_factor");
    check(rope.low_freq_factor < rope.high_freq_factor,
          "{} has a low_freq_factor of {} and a high_freq_factor of {}, which should be above it; "
          "correct them",
          fields.where(), rope.low_freq_factor, rope.high_freq_factor);
  }
  if (rope.type != RopeType::longrope) return;
  rope.short_factor = fields.numbers("short_factor");
  rope.long_factor = fields.numbers("long_factor");
  const auto wanted = static_cast<size_t>(config.head_dim / 2);
  check(rope.short_factor.size() == wanted && rope.long_factor.size() == wanted,
        "{} has {} short and {} long factors and {} pairs of a head need one each; correct them",
        fields.where(), rope.short_factor.size(), rope.long_factor.size(), wanted);
  check(rope.original_max_positions > 1,
        "{} has one original position, and longrope divides by its logarithm; correct it",
        fields.where());
}

// New spelling: rope_parameters, which has the base too; old: rope_theta beside rope_scaling.
RopeConfig rope_of(const Fields& top, const ModelConfig& config) {
  RopeConfig rope;
  const char* spelling =
      top.find("rope_parameters") != nullptr ? "rope_parameters" : "rope_scaling";
  const json* object = top.find(spelling);
  const json none = json::object();
  const Fields fields(object != nullptr ? *object : none,
                      fmt::format("{} of {}", spelling, top.where()));
  // One set of parameters per kind of layer would otherwise be read as none at all.
  if (object != nullptr)
    for (const auto& [key, value] : object->items())
      check(!value.is_object(), "{} has parameters of its own for \"{}\", which is not supported",
            fields.where(), key);
  rope.theta = fields.number("rope_theta", top.number("rope_theta", rope.theta));
  check(rope.theta > 1, "{} has a rope_theta of {}, which should be above 1; correct it",
        top.where(), rope.theta);
  rope.type = rope_type_of(fields);
  if (rope.type == RopeType::standard)
    rope.original_max_positions = config.max_positions;
  else
    read_scaling(fields, config, rope);
  return rope;
}

// A layer slides as layer_types says, and where there is none from layer max_window_layers on.
std::vector<int64_t> windows_of(const Fields& fields, int64_t layers) {
  const bool sliding = fields.flag("use_sliding_window", false);
  const int64_t width = sliding ? fields.integer("sliding_window") : 0;
  std::vector<int64_t> windows(static_cast<size_t>(layers), 0);
  const json* types = fields.find("layer_types");
  if (types == nullptr) {
    // Without this number no layer can be told from another.
    const json* first = sliding ? fields.find("max_window_layers") : nullptr;
    check(!sliding || (first != nullptr && first->is_number_unsigned()),
          "{} slides a window and should say in \"max_window_layers\" from which layer on; add it",
          fields.where());
    for (int64_t i = 0; sliding && i < layers; ++i)
      if (static_cast<uint64_t>(i) >= first->get<uint64_t>())
        windows[static_cast<size_t>(i)] = width;
    return windows;
  }
  check(types->is_array() && types->size() == windows.size(),
        "\"layer_types\" of {} should have one entry for each of {} layers; correct it",
        fields.where(), layers);
  for (size_t i = 0; i < windows.size(); ++i) {
    const json& type = (*types)[i];
    check(
        type == "full_attention" || type == "sliding_attention",
        "layer {} of {} is of the type {}, and full_attention and sliding_attention are known; use "
        "another checkpoint",
        i, fields.where(), type.dump());
    if (type == "full_attention") continue;
    check(sliding,
          "layer {} of {} slides a window and \"use_sliding_window\" is not true; correct it", i,
          fields.where());
    windows[i] = width;
  }
  return windows;
}

// A number, a list or nothing: a text may end in several ways, or only by its length.
std::vector<int32_t> eos_of(const Fields& fields, int64_t vocab) {
  std::vector<int32_t> ids;
  const json* value = fields.find("eos_token_id");
  if (value == nullptr) return ids;
  const json list = value->is_array() ? *value : json::array({*value});
  for (const json& id : list) {
    check(id.is_number_unsigned() && id.get<uint64_t>() < static_cast<uint64_t>(vocab),
          "\"eos_token_id\" of {} has {}, which is no id of a vocabulary of {}; correct it",
          fields.where(), id.dump(), vocab);
    ids.push_back(id.get<int32_t>());
  }
  return ids;
}

// The layers of experts: every decoder_sparse_step-th one that mlp_only_layers does not name.
std::vector<int> expert_layers_of(const Fields& fields, int64_t layers) {
  const int64_t step = fields.integer("decoder_sparse_step", 1);
  const json* dense = fields.find("mlp_only_layers");
  const json none = json::array();
  const json& list = dense == nullptr ? none : *dense;
  check(list.is_array() &&
            std::ranges::all_of(list, [](const json& entry) { return entry.is_number_unsigned(); }),
        "\"mlp_only_layers\" of {} should be a list of layers and is {}; correct it",
        fields.where(), list.dump());
  std::vector<int> found;
  for (int64_t layer = 0; layer < layers; ++layer)
    if ((layer + 1) % step == 0 && std::ranges::count(list, json(layer)) == 0)
      found.push_back(static_cast<int>(layer));
  return found;
}

ExpertsConfig experts_of(const Fields& fields, const ModelConfig& config) {
  ExpertsConfig experts;
  experts.count = fields.find("num_experts") != nullptr ? fields.integer("num_experts")
                                                        : fields.integer("num_local_experts");
  experts.chosen = fields.integer("num_experts_per_tok");
  check(experts.chosen <= experts.count,
        "{} chooses {} of {} experts a token, and there are not so many; correct it",
        fields.where(), experts.chosen, experts.count);
  experts.intermediate = fields.integer("moe_intermediate_size");
  experts.normalised = fields.flag("norm_topk_prob", false);
  experts.layers = expert_layers_of(fields, config.layers);
  // Hugging Face lets all layers of this family slide, whatever max_window_layers says.
  check(!fields.flag("use_sliding_window", false),
        "{} slides a window beside experts, which is not supported; use another checkpoint",
        fields.where());
  return experts;
}

void read_sizes(const Fields& fields, const Family& family, ModelConfig& config) {
  config.hidden = fields.integer("hidden_size");
  config.layers = fields.integer("num_hidden_layers");
  config.heads = fields.integer("num_attention_heads");
  config.kv_heads = fields.integer("num_key_value_heads", config.heads);
  config.intermediate = fields.integer("intermediate_size");
  config.vocab = fields.integer("vocab_size");
  config.max_positions = fields.integer("max_position_embeddings");
  check(config.layers <= 1 << 16, "{} has {} layers, and {} are allowed; correct it",
        fields.where(), config.layers, 1 << 16);
  check(config.heads % config.kv_heads == 0,
        "{} has {} attention heads, which {} key-value heads do not divide; correct it",
        fields.where(), config.heads, config.kv_heads);
  const int64_t otherwise = family.default_head_dim;
  check(fields.find("head_dim") != nullptr || otherwise != 0 || config.hidden % config.heads == 0,
        "{} has a hidden size of {}, which {} heads do not divide, and no \"head_dim\"; add it",
        fields.where(), config.hidden, config.heads);
  config.head_dim =
      fields.integer("head_dim", otherwise != 0 ? otherwise : config.hidden / config.heads);
  check(config.head_dim % 2 == 0,
        "{} has heads of {} values, and rotary positions need an even number; correct it",
        fields.where(), config.head_dim);
}

}  // namespace

bool ExpertsConfig::in(int64_t layer) const { return std::ranges::binary_search(layers, layer); }

std::string_view name_of(RopeType type) {
  for (const auto& [name, known] : kRopeTypes)
    if (known == type) return name;
  fail("rope type {} has no name", static_cast<int>(type));
}

ModelConfig read_config(const std::string& dir) {
  const std::string path = dir + "/config.json";
  const json parsed = parse(path);
  const Fields fields(parsed, "\"" + path + "\"");
  const Family& family = family_of(fields);
  ModelConfig config;
  config.architecture = family.architecture;
  config.model_type = family.model_type;
  read_sizes(fields, family, config);
  const std::string activation = fields.text("hidden_act", "silu");
  check(activation == "silu",
        "{} has the activation \"{}\", and silu is known; use such a checkpoint", fields.where(),
        activation);
  config.norm_eps = fields.number("rms_norm_eps", config.norm_eps);
  config.tied = fields.flag("tie_word_embeddings", false);
  config.o_bias = !family.qkv_bias && fields.flag("attention_bias", false);
  config.qkv_bias = family.qkv_bias || config.o_bias;
  config.qk_norm = family.qk_norm;
  config.dtype = dtype_of(fields);
  config.rope = rope_of(fields, config);
  if (family.experts) config.experts = experts_of(fields, config);
  config.window = windows_of(fields, config.layers);
  config.eos = eos_of(fields, config.vocab);
  const std::string generation = dir + "/generation_config.json";
  if (!std::filesystem::exists(generation)) return config;
  const json more = parse(generation);
  const Fields said(more, "\"" + generation + "\"");
  if (said.find("eos_token_id") != nullptr) config.eos = eos_of(said, config.vocab);
  return config;
}

}  // namespace lockstep
