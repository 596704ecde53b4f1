#include "src/weights/checkpoint.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>

#include "src/weights/fingerprint.h"
#include "tests/weights/changed_checkpoint.h"

namespace lockstep {
namespace {

using nlohmann::json;

void unchanged(StoredWeights&) {}

TEST(Checkpoint, holds_the_weights_that_transformers_read) {
  // The golden embedding of a prompt is rows of the embedding, picked by other code.
  for (const std::string model : {"bard-qwen3", "bard-qwen2.5"}) {
    const Checkpoint checkpoint = Checkpoint::open(data_path(model));
    const SafeTensors golden(data_path("golden/" + model + ".safetensors"));
    const TensorView ids = golden.tensors().at("float32/romeo/prompt_ids");
    const TensorView wanted = golden.tensors().at("float32/romeo/step0/embed");
    const TensorView table = checkpoint.tensor("model.embed_tokens.weight");
    ASSERT_EQ(wanted.rows(), ids.count());
    for (int64_t row = 0; row < wanted.rows(); ++row)
      for (int64_t i = 0; i < wanted.row_size(); ++i)
        ASSERT_EQ(value_at(wanted.slice(row, 1), i),
                  value_at(table.slice(static_cast<int64_t>(value_at(ids, row)), 1), i));
  }
}

TEST(Checkpoint, opens_every_tiny_one_with_what_its_kind_has) {
  const auto has = [](const std::string& name, const std::string& tensor) {
    return Checkpoint::open(data_path("tiny/" + name)).has("model.layers.2.self_attn." + tensor);
  };
  EXPECT_TRUE(has("qwen2-default", "q_proj.bias"));
  EXPECT_FALSE(has("qwen2-default", "o_proj.bias"));
  EXPECT_FALSE(has("qwen2-mha", "q_norm.weight"));
  EXPECT_TRUE(has("qwen3-default", "q_norm.weight"));
  EXPECT_FALSE(has("qwen3-default", "q_proj.bias"));
  EXPECT_TRUE(has("qwen3-bias-mqa", "o_proj.bias"));
  EXPECT_TRUE(has("qwen2-sliding", "k_proj.bias"));
  EXPECT_TRUE(has("qwen3-yarn", "k_norm.weight"));
}

TEST(Checkpoint, a_layer_has_one_mlp_or_its_experts) {
  const Checkpoint experts = Checkpoint::open(data_path("tiny/qwen3-moe"));
  EXPECT_TRUE(experts.has("model.layers.2.mlp.gate.weight"));
  EXPECT_TRUE(experts.has("model.layers.2.mlp.experts.7.down_proj.weight"));
  expect_trouble("mlp.experts.5.up_proj.weight", [] {
    open_changed("qwen3-moe", [](StoredWeights& weights) {
      weights.erase("model.layers.1.mlp.experts.5.up_proj.weight");
    });
  });
  expect_trouble("no tensor \"model.layers.1.mlp.down_proj.weight\"", [] {
    open_changed("qwen3-moe", unchanged, {{"mlp_only_layers", {1}}});
  });
  expect_trouble("config.json asks for [7, 64]", [] {
    open_changed("qwen3-moe", unchanged, {{"num_local_experts", 7}});
  });
}

TEST(Checkpoint, a_tied_head_is_the_embedding_stored_or_not) {
  const Checkpoint without = open_changed("qwen3-default", unchanged);
  ASSERT_TRUE(without.config().tied);
  const Checkpoint with = open_changed("qwen3-default", [](StoredWeights& weights) {
    weights["lm_head.weight"] = weights.at("model.embed_tokens.weight");
  });
  for (const Checkpoint& checkpoint : {without, with}) {
    EXPECT_TRUE(checkpoint.has("lm_head.weight"));
    EXPECT_EQ(checkpoint.tensor("lm_head.weight").data,
              checkpoint.tensor("model.embed_tokens.weight").data);
    EXPECT_EQ(checkpoint.bytes(), without.bytes());
    EXPECT_EQ(checkpoint.names(), without.names());
  }
}

TEST(Checkpoint, says_which_tensor_does_not_fit) {
  const std::string name = "model.layers.1.mlp.up_proj.weight";
  const auto removed = [&](StoredWeights& weights) { weights.erase(name); };
  const auto turned = [&](StoredWeights& weights) {
    std::swap(weights.at(name).shape[0], weights.at(name).shape[1]);
  };
  const auto halved = [&](StoredWeights& weights) { weights.at(name).dtype = "F16"; };
  const auto biased = [](StoredWeights& weights) {
    weights["model.layers.0.self_attn.q_proj.bias"] = {"BF16", {128}, std::string(256, '\0')};
  };
  expect_trouble("no tensor \"" + name, [&] { open_changed("qwen3-default", removed); });
  expect_trouble("has the shape [64, 160] and config.json asks for [160, 64]",
                 [&] { open_changed("qwen3-default", turned); });
  expect_trouble("stored as fp16 and config.json declares bf16",
                 [&] { open_changed("qwen3-default", halved); });
  expect_trouble("q_proj.bias\", for which its config.json has no use",
                 [&] { open_changed("qwen3-default", biased); });
  expect_trouble("declares fp32", [] {
    open_changed("qwen3-default", unchanged, {{"dtype", "float32"}});
  });
  expect_trouble("has no use", [] {
    open_changed("qwen3-default", unchanged, {{"num_hidden_layers", 2}, {"layer_types", nullptr}});
  });
  expect_trouble("no tensor \"model.layers.3.", [] {
    open_changed("qwen3-default", unchanged, {{"num_hidden_layers", 4}, {"layer_types", nullptr}});
  });
  expect_trouble("no tensor \"lm_head.weight\"", [] {
    open_changed("qwen3-default", unchanged, {{"tie_word_embeddings", false}});
  });
}

TEST(Checkpoint, carries_old_rotary_buffers_along) {
  const Checkpoint checkpoint = open_changed("qwen3-default", [](StoredWeights& weights) {
    weights["model.layers.0.self_attn.rotary_emb.inv_freq"] = {"F32", {16}, std::string(64, '\0')};
  });
  EXPECT_TRUE(checkpoint.has("model.norm.weight"));
}

// A copy of the sharded checkpoint, whose index a test changes.
class Sharded : public testing::Test {
 protected:
  Sharded() { folder_.copy(data_path("tiny/qwen3-untied-sharded")); }
  json index() const { return json::parse(text_of(folder_.path() + "/" + kIndex)); }
  void expect(const std::string& phrase) const {
    expect_trouble(phrase, [&] { Checkpoint::open(folder_.path()); });
  }

  static constexpr const char* kIndex = "model.safetensors.index.json";
  static constexpr const char* kName = "model.layers.1.mlp.up_proj.weight";
  TempFolder folder_;
};

TEST_F(Sharded, has_the_tensors_of_all_files) {
  const Checkpoint checkpoint = Checkpoint::open(folder_.path());
  EXPECT_EQ(checkpoint.names().size(), index()["weight_map"].size());
  EXPECT_EQ(checkpoint.bytes(), index()["metadata"]["total_size"].get<int64_t>());
  EXPECT_NE(checkpoint.tensor("lm_head.weight").data,
            checkpoint.tensor("model.embed_tokens.weight").data);
  expect_trouble("no tensor \"lm_head.bias\"", [&] { checkpoint.tensor("lm_head.bias"); });
}

TEST_F(Sharded, misses_a_file) {
  std::filesystem::remove(folder_.path() + "/model-00002-of-00004.safetensors");
  expect("model-00002-of-00004.safetensors\" cannot be opened");
}

TEST_F(Sharded, has_a_cut_file) {
  std::filesystem::resize_file(folder_.path() + "/model-00002-of-00004.safetensors", 50000);
  expect("model-00002-of-00004.safetensors: model.layers.1.mlp.gate_proj.weight lies at bytes");
}

TEST_F(Sharded, has_an_index_that_is_wrong) {
  json wrong = index();
  wrong["weight_map"][kName] = wrong["weight_map"]["lm_head.weight"];
  folder_.write(kIndex, wrong.dump());
  expect("and it is not there");
  wrong = index();
  wrong["weight_map"].erase(kName);  // the file still has it, and it is read
  folder_.write(kIndex, wrong.dump());
  EXPECT_TRUE(Checkpoint::open(folder_.path()).has(kName));
  wrong = index();
  wrong["weight_map"][kName] = "../elsewhere.safetensors";
  folder_.write(kIndex, wrong.dump());
  expect("a file of its own folder");
  wrong["weight_map"][kName] = 1;
  folder_.write(kIndex, wrong.dump());
  expect("a file of its own folder");
  folder_.write(kIndex, "{}");
  expect("weight_map is missing");
  folder_.write(kIndex, "{");
  expect("is no JSON");
  folder_.write(kIndex, R"({"weight_map": {}})");
  expect("no tensor \"lm_head.weight\"");
}

TEST_F(Sharded, has_a_tensor_twice) {
  const std::string first = folder_.path() + "/model-00001-of-00004.safetensors";
  StoredWeights more = weights_of(first);
  more[kName] = {"BF16", {160, 64}, std::string(160 * 64 * 2, '\0')};
  folder_.write("model-00001-of-00004.safetensors", file_of(more));
  expect("is in two files");
}

TEST(Checkpoint, refuses_what_is_no_checkpoint) {
  const TempFolder folder;
  expect_trouble("is not a folder", [&] { Checkpoint::open(folder.path() + "/none"); });
  folder.write("config.json", text_of(data_path("tiny/qwen3-default/config.json")));
  expect_trouble("has neither model.safetensors nor", [&] { Checkpoint::open(folder.path()); });
}

TEST(Checkpoint, its_fingerprint_follows_config_and_weights) {
  const std::string plain = open_changed("qwen3-default", unchanged).fingerprint();
  EXPECT_EQ(plain.size(), 16u);
  EXPECT_EQ(plain.find_first_not_of("0123456789abcdef"), std::string::npos);
  EXPECT_EQ(open_changed("qwen3-default", unchanged).fingerprint(), plain);
  EXPECT_NE(open_changed("qwen3-default", unchanged, {{"rms_norm_eps", 1e-5}}).fingerprint(),
            plain);
  const auto first_byte = [](StoredWeights& weights) { weights.begin()->second.bytes[0] ^= 1; };
  EXPECT_NE(open_changed("qwen3-default", first_byte).fingerprint(), plain);
  EXPECT_NE(Checkpoint::open(data_path("tiny/qwen3-linear")).fingerprint(),
            Checkpoint::open(data_path("tiny/qwen3-dynamic")).fingerprint());
}

TEST(Checkpoint, the_hash_of_its_weights_follows_each_byte) {
  const std::string plain = open_changed("qwen3-default", unchanged).weights_hash();
  EXPECT_EQ(plain.size(), 16u);
  EXPECT_EQ(open_changed("qwen3-default", unchanged, {{"rms_norm_eps", 1e-5}}).weights_hash(),
            plain);
  // It lies past the sample that the fingerprint is made of.
  const auto last_byte = [](StoredWeights& weights) {
    weights["model.embed_tokens.weight"].bytes.back() ^= 1;
  };
  EXPECT_NE(open_changed("qwen3-default", last_byte).weights_hash(), plain);
  EXPECT_EQ(open_changed("qwen3-default", last_byte).fingerprint(),
            open_changed("qwen3-default", unchanged).fingerprint());
}

// What lies otherwise on the disk and computes the same is the same model.
TEST_F(Sharded, is_the_same_model_in_one_file) {
  const Checkpoint sharded = Checkpoint::open(folder_.path());
  StoredWeights all;
  for (int i = 1; i <= 4; ++i)
    all.merge(weights_of(fmt::format("{}/model-0000{}-of-00004.safetensors", folder_.path(), i)));
  folder_.write("model.safetensors", file_of(all));
  const Checkpoint whole = Checkpoint::open(folder_.path());
  EXPECT_EQ(whole.fingerprint(), sharded.fingerprint());
  EXPECT_EQ(whole.weights_hash(), sharded.weights_hash());
  const std::string up = "model.layers.0.mlp.up_proj.weight";
  std::swap(all[up].bytes, all["model.layers.0.mlp.gate_proj.weight"].bytes);
  folder_.write("model.safetensors", file_of(all));
  EXPECT_NE(Checkpoint::open(folder_.path()).fingerprint(), sharded.fingerprint());
  EXPECT_NE(Checkpoint::open(folder_.path()).weights_hash(), sharded.weights_hash());
}

TEST(Checkpoint, is_the_same_model_with_what_nobody_reads) {
  const Checkpoint plain = open_changed("qwen3-default", unchanged);
  const Checkpoint other = open_changed(
      "qwen3-default",
      [](StoredWeights& weights) {
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"];  // it is tied
        weights["model.layers.0.self_attn.rotary_emb.inv_freq"] = {
            "F32", {16}, std::string(64, '\1')};
      },
      {{"use_cache", false}, {"_name_or_path", "elsewhere"}});
  EXPECT_EQ(other.fingerprint(), plain.fingerprint());
  EXPECT_EQ(other.weights_hash(), plain.weights_hash());
  for (const json& field : {json{{"rope_theta", 5e4}, {"rope_parameters", nullptr}},
                            json{{"max_position_embeddings", 100}}})
    EXPECT_NE(open_changed("qwen3-default", unchanged, field).fingerprint(), plain.fingerprint())
        << field;
}

// As version 0.1.0 wrote them into traces, of the files as they lie.
TEST(Checkpoint, knows_what_was_recorded_of_its_files) {
  const Checkpoint checkpoint = Checkpoint::open(data_path("tiny/qwen3-default"));
  EXPECT_TRUE(has_fingerprint(checkpoint, "5c4862ee302b37bb"));
  EXPECT_TRUE(has_weights_hash(checkpoint, "18d097aac55a1e1b"));
  EXPECT_TRUE(has_fingerprint(checkpoint, checkpoint.fingerprint()));
  EXPECT_TRUE(has_weights_hash(checkpoint, checkpoint.weights_hash()));
  const Checkpoint other = Checkpoint::open(data_path("tiny/qwen3-linear"));
  EXPECT_FALSE(has_fingerprint(other, "5c4862ee302b37bb"));
  EXPECT_FALSE(has_fingerprint(other, checkpoint.fingerprint()));
}

template <typename T>
double cast_one(T x, DType from, DType to) {
  const Tensor tensor = tensor_of(std::span<const T>(&x, 1), {1}, from);
  Tensor storage;
  return value_at(cast(tensor, to, storage), 0);
}

TEST(Cast, rounds_to_nearest_even_once) {
  const float tie = 1 + 0x1p-8f, tie_up = 1 + 3 * 0x1p-8f;
  EXPECT_EQ(cast_one(tie, DType::f32, DType::bf16), 1);
  EXPECT_EQ(cast_one(tie_up, DType::f32, DType::bf16), 1 + 0x1p-6);
  EXPECT_EQ(cast_one(1 + 0x1p-11f, DType::f32, DType::f16), 1);
  EXPECT_EQ(cast_one(65520.f, DType::f32, DType::f16), std::numeric_limits<double>::infinity());
  EXPECT_EQ(cast_one(-0x1p-24f, DType::f32, DType::f16), -0x1p-24);
  // Through fp32 this would round twice, down to 1.
  EXPECT_EQ(cast_one(1 + 0x1p-8 + 0x1p-40, DType::f64, DType::bf16), 1 + 0x1p-7);
  EXPECT_EQ(cast_one(1 + 0x1p-24, DType::f64, DType::f32), 1);
  EXPECT_EQ(cast_one(0.1f, DType::f32, DType::f64), static_cast<double>(0.1f));
  EXPECT_TRUE(std::isnan(cast_one(std::nanf(""), DType::f32, DType::bf16)));
}

TEST(Cast, keeps_the_memory_when_the_dtype_fits) {
  const Checkpoint checkpoint = Checkpoint::open(data_path("bard-qwen3"));
  const TensorView norm = checkpoint.tensor("model.norm.weight");
  Tensor storage;
  EXPECT_EQ(cast(norm, DType::bf16, storage).data, norm.data);
  EXPECT_TRUE(storage.view().empty());
  const TensorView wide = cast(norm, DType::f32, storage);
  EXPECT_EQ(wide.data, storage.view().data);
  EXPECT_EQ(wide.shape, norm.shape);
  for (int64_t i = 0; i < norm.count(); ++i) EXPECT_EQ(value_at(wide, i), value_at(norm, i));
}

TEST(Cast, converts_more_than_one_block) {
  std::vector<float> values(10001);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  const Tensor tensor = tensor_of(std::span<const float>(values), {73, 137}, DType::f32);
  Tensor storage;
  const TensorView wide = cast(tensor, DType::f64, storage);
  for (int64_t i = 0; i < wide.count(); ++i) ASSERT_EQ(value_at(wide, i), static_cast<double>(i));
}

TEST(Cast, refuses_what_is_no_float) {
  expect_trouble("from int32 to fp32", [] { cast_one(int32_t{1}, DType::i32, DType::f32); });
  expect_trouble("from fp32 to uint8", [] { cast_one(1.f, DType::f32, DType::u8); });
}

}  // namespace
}  // namespace lockstep
