#include "src/weights/config.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "tests/helpers.h"

namespace lockstep {
namespace {

using nlohmann::json;

json published(const std::string& name) {
  return json::parse(text_of(data_path("configs/" + name + ".json")));
}

ModelConfig read(const json& config, const json& generation = nullptr) {
  const TempFolder folder;
  folder.write("config.json", config.dump());
  if (!generation.is_null()) folder.write("generation_config.json", generation.dump());
  return read_config(folder.path());
}

// `config` with some fields replaced; null: removed.
json with(json config, const json& fields) {
  config.merge_patch(fields);
  return config;
}

TEST(Config, reads_qwen2_5_0_5b) {
  const ModelConfig config = read(published("qwen2.5-0.5b-instruct"));
  EXPECT_EQ(config.architecture, "Qwen2ForCausalLM");
  EXPECT_EQ(config.model_type, "qwen2");
  EXPECT_EQ(config.hidden, 896);
  EXPECT_EQ(config.layers, 24);
  EXPECT_EQ(config.heads, 14);
  EXPECT_EQ(config.kv_heads, 2);
  EXPECT_EQ(config.head_dim, 64);
  EXPECT_EQ(config.intermediate, 4864);
  EXPECT_EQ(config.vocab, 151936);
  EXPECT_EQ(config.max_positions, 32768);
  EXPECT_EQ(config.norm_eps, 1e-6);
  EXPECT_TRUE(config.tied);
  EXPECT_TRUE(config.qkv_bias);
  EXPECT_FALSE(config.o_bias);
  EXPECT_FALSE(config.qk_norm);
  EXPECT_EQ(config.dtype, DType::bf16);
  EXPECT_EQ(config.rope.type, RopeType::standard);
  EXPECT_EQ(config.rope.theta, 1e6);
  EXPECT_EQ(config.window, std::vector<int64_t>(24, 0));
  EXPECT_EQ(config.eos, std::vector<int32_t>{151645});
}

TEST(Config, reads_qwen2_5_7b_and_72b) {
  const ModelConfig seven = read(published("qwen2.5-7b"));
  EXPECT_EQ(seven.heads / seven.kv_heads, 7);
  EXPECT_EQ(seven.head_dim, 128);
  EXPECT_EQ(seven.vocab, 152064);
  EXPECT_FALSE(seven.tied);
  const ModelConfig big = read(published("qwen2.5-72b"));
  EXPECT_EQ(big.layers, 80);
  EXPECT_EQ(big.hidden, 8192);
  EXPECT_EQ(big.norm_eps, 1e-5);
  // 2 x 80 layers x 8 heads x 128 values x 2 bytes
  EXPECT_EQ(big.kv_bytes_per_token(DType::bf16), 327680);
}

TEST(Config, reads_qwen3_0_6b) {
  const ModelConfig config = read(published("qwen3-0.6b"));
  EXPECT_EQ(config.architecture, "Qwen3ForCausalLM");
  EXPECT_EQ(config.head_dim, 128);  // and not 1024 / 16
  EXPECT_TRUE(config.qk_norm);
  EXPECT_FALSE(config.qkv_bias);
  EXPECT_FALSE(config.o_bias);
  EXPECT_EQ(config.rope.theta, 1e6);
  EXPECT_EQ(read(with(published("qwen3-0.6b"), {{"head_dim", nullptr}})).head_dim, 128);
}

TEST(Config, attention_bias_of_qwen3_is_on_o_too) {
  const ModelConfig config = read_config(data_path("tiny/qwen3-bias-mqa"));
  EXPECT_TRUE(config.qkv_bias);
  EXPECT_TRUE(config.o_bias);
  EXPECT_EQ(config.kv_heads, 1);
}

TEST(Config, both_spellings_of_rope_say_the_same) {
  json base = published("qwen3-0.6b");
  base.erase("rope_theta");
  base.erase("rope_scaling");
  const json scaling = {{"factor", 4.0}, {"original_max_position_embeddings", 32768}};
  const json fresh = with(scaling, {{"rope_type", "yarn"}, {"rope_theta", 5e5}});
  for (const char* key : {"type", "rope_type"}) {
    const ModelConfig old =
        read(with(base, {{"rope_theta", 5e5}, {"rope_scaling", with(scaling, {{key, "yarn"}})}}));
    const ModelConfig now = read(with(base, {{"rope_parameters", fresh}}));
    for (const ModelConfig& config : {old, now}) {
      EXPECT_EQ(config.rope.type, RopeType::yarn);
      EXPECT_EQ(config.rope.theta, 5e5);
      EXPECT_EQ(config.rope.factor, 4);
      EXPECT_EQ(config.rope.original_max_positions, 32768);
      EXPECT_TRUE(config.rope.truncate);
    }
  }
  EXPECT_EQ(read(base).rope.theta, 10000);
}

TEST(Config, yarn_without_a_factor_stretches_to_the_longest_position) {
  const json rope = {{"rope_type", "yarn"}, {"original_max_position_embeddings", 10240}};
  EXPECT_EQ(read(with(published("qwen3-0.6b"), {{"rope_scaling", rope}})).rope.factor, 4);
}

TEST(Config, both_spellings_of_dtype) {
  json base = published("qwen3-0.6b");
  EXPECT_EQ(read(with(base, {{"torch_dtype", "float16"}})).dtype, DType::f16);
  base.erase("torch_dtype");
  EXPECT_EQ(read(with(base, {{"dtype", "float32"}})).dtype, DType::f32);
  expect_trouble("\"dtype\" or \"torch_dtype\"", [&] { read(base); });
  expect_trouble("has \"float8\"", [&] { read(with(base, {{"dtype", "float8"}})); });
}

TEST(Config, windows_by_layer_types_and_by_first_layer) {
  const std::vector<int64_t> wanted = {0, 8, 8};
  EXPECT_EQ(read_config(data_path("tiny/qwen2-sliding")).window, wanted);
  json config = json::parse(text_of(data_path("tiny/qwen2-sliding/config.json")));
  config.erase("layer_types");
  EXPECT_EQ(read(config).window, wanted);
  EXPECT_EQ(read(with(config, {{"use_sliding_window", false}})).window, std::vector<int64_t>(3, 0));
  EXPECT_EQ(read(with(config, {{"max_window_layers", 0}})).window, std::vector<int64_t>(3, 8));
  expect_trouble("max_window_layers", [&] {
    read(with(config, {{"max_window_layers", nullptr}}));
  });
  expect_trouble("sliding_window", [&] { read(with(config, {{"sliding_window", nullptr}})); });
}

TEST(Config, end_of_text_is_a_number_a_list_or_nothing) {
  const json base = published("qwen3-0.6b");
  EXPECT_EQ(read(with(base, {{"eos_token_id", nullptr}})).eos, std::vector<int32_t>{});
  const json list = with(base, {{"eos_token_id", {7, 9}}});
  EXPECT_EQ(read(list).eos, (std::vector<int32_t>{7, 9}));
  EXPECT_EQ(read(list, {{"eos_token_id", {1, 2}}}).eos, (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(read(list, {{"eos_token_id", 3}}).eos, std::vector<int32_t>{3});
  EXPECT_EQ(read(list, {{"temperature", 0.6}}).eos, (std::vector<int32_t>{7, 9}));
  expect_trouble("eos_token_id is 151936, a whole number from 0 to 151935 was wanted", [&] {
    read(with(base, {{"eos_token_id", 151936}}));
  });
  expect_trouble("generation_config.json: eos_token_id is \"end\"", [&] {
    read(base, {{"eos_token_id", "end"}});
  });
}

TEST(Config, reads_every_tiny_checkpoint) {
  int read_ones = 0;
  for (const auto& entry : std::filesystem::directory_iterator(data_path("tiny"))) {
    const std::string dir = entry.path();
    EXPECT_EQ(read_config(dir).layers, 3) << dir;
    ++read_ones;
  }
  EXPECT_EQ(read_ones, 11);
}

TEST(Config, experts_are_where_the_step_and_the_list_put_them) {
  const json base = json::parse(text_of(data_path("tiny/qwen3-moe/config.json")));
  const auto layers = [&](const json& fields) { return read(with(base, fields)).experts.layers; };
  const ModelConfig::Experts experts = read(base).experts;
  EXPECT_EQ(experts.count, 8);
  EXPECT_EQ(experts.chosen, 2);
  EXPECT_EQ(experts.intermediate, 96);
  EXPECT_TRUE(experts.normalised);
  EXPECT_EQ(experts.layers, (std::vector<int>{0, 1, 2}));
  EXPECT_TRUE(experts.in(2));
  EXPECT_FALSE(experts.in(3));
  EXPECT_EQ(layers({{"mlp_only_layers", {0, 2}}}), std::vector<int>{1});
  EXPECT_EQ(layers({{"decoder_sparse_step", 2}}), std::vector<int>{1});
  EXPECT_EQ(layers({{"decoder_sparse_step", 4}}), std::vector<int>{});
  EXPECT_EQ(layers({{"mlp_only_layers", nullptr}, {"decoder_sparse_step", nullptr}}),
            (std::vector<int>{0, 1, 2}));
  // The older spelling wins where both are there, and Hugging Face does not normalise unasked.
  EXPECT_EQ(read(with(base, {{"num_experts", 16}})).experts.count, 16);
  EXPECT_FALSE(read(with(base, {{"norm_topk_prob", nullptr}})).experts.normalised);
  EXPECT_EQ(read(with(base, {{"head_dim", nullptr}})).head_dim, 64 / 4);
  EXPECT_EQ(read(published("qwen3-0.6b")).experts.layers, std::vector<int>{});
}

TEST(Config, refuses_experts_that_cannot_be) {
  const json base = json::parse(text_of(data_path("tiny/qwen3-moe/config.json")));
  const std::vector<std::pair<json, std::string>> cases = {
      {{{"num_local_experts", nullptr}}, "num_local_experts is"},
      {{{"num_experts_per_tok", 9}}, "chooses 9 of 8 experts"},
      {{{"num_experts_per_tok", nullptr}}, "num_experts_per_tok is"},
      {{{"moe_intermediate_size", nullptr}}, "moe_intermediate_size is"},
      {{{"mlp_only_layers", {"first"}}}, "mlp_only_layers[0] is \"first\", a whole number"},
      {{{"mlp_only_layers", 1}}, "mlp_only_layers is 1, a list was wanted"},
      {{{"num_experts", 1 << 30}},
       "1073741824 experts in each of 3 layers, and 262144 are allowed"},
      {{{"norm_topk_prob", 1}}, "true or false"},
      {{{"use_sliding_window", true}, {"sliding_window", 8}}, "slides a window beside experts"},
  };
  for (const auto& [fields, phrase] : cases) {
    SCOPED_TRACE(fields.dump());
    expect_trouble(phrase, [&] { read(with(base, fields)); });
  }
}

TEST(Config, refuses_what_it_does_not_know) {
  const std::vector<std::pair<json, std::string>> cases = {
      {{{"architectures", {"LlamaForCausalLM"}}}, "architecture \"LlamaForCausalLM\""},
      {{{"architectures", {"Qwen2MoeForCausalLM"}}}, "architecture \"Qwen2MoeForCausalLM\""},
      {{{"architectures", nullptr}}, "the name of one model was wanted"},
      {{{"architectures", json::array()}}, "the name of one model was wanted"},
      {{{"architectures", {1}}}, "the name of one model was wanted"},
      {{{"model_type", "llama"}}, "model_type \"llama\""},
      {{{"hidden_act", "gelu"}}, "activation \"gelu\""},
      {{{"num_key_value_heads", 3}}, "16 attention heads, which 3"},
      {{{"head_dim", 127}}, "even number"},
      {{{"head_dim", -2}}, "whole number"},
      {{{"head_dim", 1.5}}, "whole number"},
      {{{"hidden_size", nullptr}}, "hidden_size is"},
      {{{"hidden_size", "1024"}}, "whole number"},
      {{{"num_hidden_layers", 0}}, "whole number"},
      {{{"num_hidden_layers", 1 << 20}}, "1048576 layers"},
      {{{"vocab_size", 1e30}}, "whole number"},
      {{{"rms_norm_eps", -1e-6}}, "number above 0"},
      {{{"tie_word_embeddings", "yes"}}, "true or false"},
      {{{"rope_theta", 1}}, "above 1"},
      {{{"rope_scaling", {{"type", "mrope"}}}}, "rope type \"mrope\""},
      {{{"rope_scaling", "yarn"}}, "an object was wanted"},
      {{{"rope_scaling", {{"type", "linear"}}}},
       "rope_scaling.factor is missing, a number was wanted"},
      {{{"rope_scaling", {{"type", "linear"}, {"factor", 0.5}}}}, "at least 1"},
      {{{"rope_scaling", {{"type", "linear"}, {"factor", 0}}}}, "above 0"},
      {{{"rope_scaling", {{"type", "llama3"}, {"factor", 8}}}}, "low_freq_factor is missing"},
      {{{"rope_scaling",
         {{"type", "llama3"}, {"factor", 8}, {"low_freq_factor", 4}, {"high_freq_factor", 4}}}},
       "should be above it"},
      {{{"rope_scaling", {{"type", "longrope"}}}}, "short_factor is missing, a list was wanted"},
      {{{"rope_scaling", {{"type", "longrope"}, {"short_factor", {1}}, {"long_factor", {1}}}}},
       "64 pairs"},
      {{{"rope_parameters", {{"full_attention", {{"rope_type", "default"}}}}}},
       "of its own for \"full_attention\""},
      {{{"layer_types", {"full_attention"}}}, "one entry for each of 28"},
      {{{"layer_types", std::vector<std::string>(28, "linear_attention")}}, "linear_attention"},
      {{{"layer_types", std::vector<std::string>(28, "sliding_attention")}}, "is not true"},
  };
  for (const auto& [fields, phrase] : cases) {
    SCOPED_TRACE(fields.dump());
    expect_trouble(phrase, [&] { read(with(published("qwen3-0.6b"), fields)); });
  }
  expect_trouble("which 14 heads do not divide", [] {
    read(with(published("qwen2.5-0.5b-instruct"), {{"hidden_size", 900}}));
  });
}

TEST(Config, refuses_what_is_not_a_configuration) {
  const TempFolder folder;
  expect_trouble("config.json\" cannot be opened", [&] { read_config(folder.path()); });
  folder.write("config.json", "{\"architectures\": [");
  expect_trouble("is no JSON", [&] { read_config(folder.path()); });
  folder.write("config.json", "");
  expect_trouble("is no JSON", [&] { read_config(folder.path()); });
  folder.write("config.json", "[]");
  expect_trouble("config.json is a list of 0, an object was wanted",
                 [&] { read_config(folder.path()); });
}

TEST(Config, names_of_rope_types_are_those_of_the_files) {
  EXPECT_EQ(name_of(RopeType::standard), "default");
  EXPECT_EQ(name_of(RopeType::longrope), "longrope");
}

}  // namespace
}  // namespace lockstep
