// The tensors that a configuration needs are listed first, from config.json alone; the files are
// then held to that list in both directions. A tensor that is missing, has another shape, or that
// nobody would read is an Error here, and not a wrong number later.
#include "src/weights/checkpoint.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <climits>
#include <filesystem>
#include <memory>

#include "kernels/base/check.h"
#include "kernels/base/printable.h"
#include "kernels/files/json.h"
#include "kernels/files/text.h"
#include "src/weights/fingerprint.h"

namespace lockstep {
namespace {

constexpr std::string_view kHead = "lm_head.weight";
constexpr std::string_view kEmbedding = "model.embed_tokens.weight";

// One tensor a matrix of an expert, as published checkpoints have it.
void add_experts(const ModelConfig& c, const std::string& prefix,
                 std::map<std::string, Shape>& needed) {
  needed[prefix + "mlp.gate.weight"] = {c.experts.count, c.hidden};
  for (int64_t e = 0; e < c.experts.count; ++e) {
    const std::string expert = fmt::format("{}mlp.experts.{}.", prefix, e);
    needed[expert + "gate_proj.weight"] = {c.experts.intermediate, c.hidden};
    needed[expert + "up_proj.weight"] = {c.experts.intermediate, c.hidden};
    needed[expert + "down_proj.weight"] = {c.hidden, c.experts.intermediate};
  }
}

void add_layer(const ModelConfig& c, int64_t layer, std::map<std::string, Shape>& needed) {
  const std::string prefix = fmt::format("model.layers.{}.", layer);
  const int64_t q = c.heads * c.head_dim, kv = c.kv_heads * c.head_dim;
  const auto add = [&](std::string_view name, const Shape& shape) {
    needed[prefix + std::string(name)] = shape;
  };
  add("input_layernorm.weight", {c.hidden});
  add("post_attention_layernorm.weight", {c.hidden});
  add("self_attn.q_proj.weight", {q, c.hidden});
  add("self_attn.k_proj.weight", {kv, c.hidden});
  add("self_attn.v_proj.weight", {kv, c.hidden});
  add("self_attn.o_proj.weight", {c.hidden, q});
  if (c.experts.in(layer)) {
    add_experts(c, prefix, needed);
  } else {
    add("mlp.gate_proj.weight", {c.intermediate, c.hidden});
    add("mlp.up_proj.weight", {c.intermediate, c.hidden});
    add("mlp.down_proj.weight", {c.hidden, c.intermediate});
  }
  if (c.qkv_bias) {
    add("self_attn.q_proj.bias", {q});
    add("self_attn.k_proj.bias", {kv});
    add("self_attn.v_proj.bias", {kv});
  }
  if (c.o_bias) add("self_attn.o_proj.bias", {c.hidden});
  if (c.qk_norm) {
    add("self_attn.q_norm.weight", {c.head_dim});
    add("self_attn.k_norm.weight", {c.head_dim});
  }
}

// Tensors that published checkpoints carry along and nobody reads: the head that is the embedding
// anyway, and rotary frequencies, which follow from the configuration.
bool is_ballast(const std::string& name, const ModelConfig& config) {
  return (config.tied && name == kHead) || name.ends_with("rotary_emb.inv_freq");
}

constexpr size_t kMostIndex = 32 << 20;  // bytes; of a hundred thousand tensors it has 10 MB

// A path would lead out of the folder that the user named.
bool is_file_name(const JsonValue& file) {
  return file.is_text() && !file.text().empty() && file.text().size() <= NAME_MAX &&
         file.text().find('/') == std::string::npos;
}

// File name of every tensor, as the index of a sharded checkpoint says.
std::map<std::string, std::string> read_index(const std::string& path) {
  const JsonDocument document = JsonDocument::read(path, "fetch the file again", kMostIndex);
  for (const auto& [name, file] : document.root()["weight_map"].fields())
    if (!is_file_name(file)) file.refuse("the name of a file of its own folder");
  return document.root()["weight_map"].text_fields();
}

std::vector<SafeTensors> open_sharded(const std::string& dir, const std::string& index_path) {
  const std::map<std::string, std::string> index = read_index(index_path);
  std::map<std::string, SafeTensors> shards;
  for (const auto& [name, file] : index) {
    auto shard = shards.find(file);
    if (shard == shards.end()) shard = shards.emplace(file, SafeTensors(dir + "/" + file)).first;
    check(shard->second.tensors().contains(name),
          "\"{}\" says that tensor \"{}\" is in \"{}\", and it is not there; fetch both again",
          index_path, shown(name), shown(file));
  }
  std::vector<SafeTensors> files;
  for (auto& [name, shard] : shards) files.push_back(std::move(shard));
  return files;
}

// Where both are there, the single file wins, as it does in Hugging Face.
std::vector<SafeTensors> open_files(const std::string& dir) {
  const std::string single = dir + "/model.safetensors", index = single + ".index.json";
  if (std::filesystem::exists(single)) return {SafeTensors(single)};
  check(
      std::filesystem::exists(index),
      "\"{}\" has neither model.safetensors nor model.safetensors.index.json; give the folder of a "
      "whole checkpoint",
      dir);
  return open_sharded(dir, index);
}

// The path of the file that has the tensor.
std::string file_of(const std::string& tensor, const std::vector<SafeTensors>& files) {
  const auto found = std::ranges::find_if(
      files, [&](const SafeTensors& file) { return file.tensors().contains(tensor); });
  return found == files.end() ? "" : found->path();
}

void check_tensors(const std::map<std::string, TensorView>& tensors, const ModelConfig& config,
                   const std::string& dir, const std::vector<SafeTensors>& files) {
  const std::map<std::string, Shape> needed = needed_tensors(config);
  for (const auto& [name, shape] : needed) {
    const auto found = tensors.find(name);
    check(found != tensors.end(),
          "the checkpoint \"{}\" has no tensor \"{}\", which its config.json asks for; fetch it "
          "again",
          dir, name);
    if (found->second.shape != shape)
      fail(
          "tensor \"{}\" of \"{}\" has the shape {} and config.json asks for {}; the two do not "
          "belong together",
          name, file_of(name, files), found->second.shape.text(), shape.text());
    // One dtype for all: weights of two would be cast in part, and nobody could say to what.
    if (found->second.dtype != config.dtype)
      fail(
          "tensor \"{}\" of \"{}\" is stored as {} and config.json declares {}; correct its "
          "\"dtype\"",
          name, file_of(name, files), name_of(found->second.dtype), name_of(config.dtype));
  }
  // A bias or a layer that nobody reads would be left out of the model without a word.
  for (const auto& [name, tensor] : tensors)
    if (!needed.contains(name) && !is_ballast(name, config))
      fail(
          "\"{}\" has a tensor \"{}\", for which its config.json has no use; the two do not belong "
          "together",
          file_of(name, files), shown(name));
}

template <typename T>
// In pieces of 32 KiB of doubles, which stay in a cache.
void convert(const TensorView& from, T* to) {
  std::array<double, 4096> buffer;
  for (int64_t first = 0; first < from.count(); first += std::ssize(buffer)) {
    const size_t n = std::min<int64_t>(std::ssize(buffer), from.count() - first);
    widen(from, first, std::span(buffer).first(n));
    for (size_t i = 0; i < n; ++i) to[first + i] = T(buffer[i]);
  }
}

// The last step of a cast: through fp32, which holds every value of a 16-bit dtype.
template <typename T, DType kDType>
struct Rounded {
  T value;
  // Rounded once: what round_to() gives is a number of the dtype, which fp32 and from_float() keep.
  explicit Rounded(double x) : value(from_float<T>(static_cast<float>(round_to(x, kDType)))) {}
};

}  // namespace

std::map<std::string, Shape> needed_tensors(const ModelConfig& config) {
  std::map<std::string, Shape> needed;
  needed[std::string(kEmbedding)] = {config.vocab, config.hidden};
  needed["model.norm.weight"] = {config.hidden};
  if (!config.tied) needed[std::string(kHead)] = {config.vocab, config.hidden};
  for (int64_t layer = 0; layer < config.layers; ++layer) add_layer(config, layer, needed);
  return needed;
}

Checkpoint Checkpoint::open(const std::string& dir) {
  std::error_code ignored;  // a name that is too long is no folder either
  check(std::filesystem::is_directory(dir, ignored),
        "\"{}\" is not a folder; give the folder of a checkpoint in the Hugging Face layout", dir);
  Checkpoint checkpoint;
  checkpoint.dir_ = dir;
  checkpoint.config_ = read_config(dir);
  checkpoint.config_text_ = read_text(dir + "/config.json", kMostJson);
  checkpoint.files_ = open_files(dir);
  for (const SafeTensors& file : checkpoint.files_)
    for (const auto& [name, tensor] : file.tensors())
      if (!checkpoint.tensors_.emplace(name, tensor).second)
        fail("tensor \"{}\" is in two files, \"{}\" and \"{}\"; fetch the checkpoint again",
             shown(name), file_of(name, checkpoint.files_), file.path());
  check_tensors(checkpoint.tensors_, checkpoint.config_, dir, checkpoint.files_);
  // A copy of the embedding that may differ from it: tied means that nobody reads it.
  if (checkpoint.config_.tied) checkpoint.tensors_.erase(std::string(kHead));
  return checkpoint;
}

Checkpoint Checkpoint::with(ModelConfig config, std::map<std::string, TensorView> tensors) const {
  Checkpoint other;
  other.dir_ = dir_;
  other.config_text_ = config_text_;
  other.config_ = std::move(config);
  other.tensors_ = std::move(tensors);
  return other;
}

TensorView Checkpoint::tensor(const std::string& name) const {
  const bool embedding = config_.tied && name == kHead;
  const auto found = tensors_.find(embedding ? std::string(kEmbedding) : name);
  check(found != tensors_.end(), "the checkpoint \"{}\" has no tensor \"{}\"; ask for one it has",
        dir_, name);
  return found->second;
}

bool Checkpoint::has(const std::string& name) const {
  return tensors_.contains(name) || (config_.tied && name == kHead);
}

std::vector<std::string> Checkpoint::names() const {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors_) names.push_back(name);
  return names;
}

int64_t Checkpoint::bytes() const {
  int64_t sum = 0;
  for (const auto& [name, tensor] : tensors_) sum += tensor.bytes();
  return sum;
}

namespace {

constexpr size_t kStride = 1 << 20, kSample = 4096;

// All that a model computes depends on. A member that is added does not compile before it is here.
std::string text_of(const ModelConfig& config) {
  const auto& [architecture, model_type, hidden, layers, heads, kv_heads, head_dim, intermediate,
               vocab, max_positions, norm_eps, tied, qkv_bias, o_bias, qk_norm, dtype, rope,
               experts, window, eos] = config;
  const auto& [type, theta, factor, original_max_positions, attention_factor, beta_fast, beta_slow,
               mscale, mscale_all_dim, truncate, low_freq_factor, high_freq_factor, short_factor,
               long_factor] = rope;
  const auto& [count, chosen, of_expert, normalised, with_experts] = experts;
  std::string text =
      fmt::format("{} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {}", architecture, model_type,
                  hidden, layers, heads, kv_heads, head_dim, intermediate, vocab, max_positions,
                  norm_eps, tied, qkv_bias, o_bias, qk_norm, name_of(dtype));
  text += fmt::format(" rope {} {} {} {} {} {} {} {} {} {} {} {} [{}] [{}]", name_of(type), theta,
                      factor, original_max_positions, attention_factor, beta_fast, beta_slow,
                      mscale, mscale_all_dim, truncate, low_freq_factor, high_freq_factor,
                      fmt::join(short_factor, " "), fmt::join(long_factor, " "));
  return text + fmt::format(" experts {} {} {} {} [{}] window [{}]", count, chosen, of_expert,
                            normalised, fmt::join(with_experts, " "), fmt::join(window, " "));
}

// xxh3 of what is added, as 16 hex digits.
class Hash {
 public:
  Hash() : state_(XXH3_createState(), XXH3_freeState) { XXH3_64bits_reset(state_.get()); }
  void add(const void* bytes, size_t size) { XXH3_64bits_update(state_.get(), bytes, size); }
  void add(std::string_view text) { add(text.data(), text.size()); }
  // All of a large checkpoint would take minutes; a sample of each MiB tells two trainings apart.
  void add_sample(const char* bytes, size_t size) {
    for (size_t at = 0; at < size; at += kStride) add(bytes + at, std::min(kSample, size - at));
  }
  std::string text() const { return fmt::format("{:016x}", XXH3_64bits_digest(state_.get())); }

 private:
  std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> state_;
};

}  // namespace

std::string Checkpoint::fingerprint() const {
  Hash hash;
  hash.add(text_of(config_));
  for (const auto& [name, tensor] : tensors_) {
    if (is_ballast(name, config_)) continue;
    hash.add(fmt::format("\n{} {} {}\n", name, name_of(tensor.dtype), tensor.shape.text()));
    hash.add_sample(tensor.as<const char>(), static_cast<size_t>(tensor.bytes()));
  }
  return hash.text();
}

std::string Checkpoint::weights_hash() const {
  uint64_t hash = 0;
  for (const auto& [name, tensor] : tensors_)
    if (!is_ballast(name, config_))
      hash = XXH3_64bits_withSeed(tensor.data, static_cast<size_t>(tensor.bytes()), hash);
  return fmt::format("{:016x}", hash);
}

namespace {

std::string fingerprint_of_files(const Checkpoint& checkpoint) {
  Hash hash;
  hash.add(checkpoint.config_text());
  for (const SafeTensors& file : open_files(checkpoint.dir())) {
    // The header is hashed whole, with the names, shapes and places of all tensors.
    hash.add(file.header().data(), file.header().size());
    hash.add_sample(reinterpret_cast<const char*>(file.data().data()), file.data().size());
  }
  return hash.text();
}

std::string hash_of_files(const Checkpoint& checkpoint) {
  uint64_t hash = 0;
  for (const SafeTensors& file : open_files(checkpoint.dir()))
    hash = XXH3_64bits_withSeed(file.data().data(), file.data().size(), hash);
  return fmt::format("{:016x}", hash);
}

}  // namespace

bool has_fingerprint(const Checkpoint& checkpoint, const std::string& recorded) {
  return recorded == checkpoint.fingerprint() || recorded == fingerprint_of_files(checkpoint);
}

bool has_weights_hash(const Checkpoint& checkpoint, const std::string& recorded) {
  return recorded == checkpoint.weights_hash() || recorded == hash_of_files(checkpoint);
}

TensorView cast(const TensorView& tensor, DType dtype, Tensor& storage) {
  check(is_float(tensor.dtype) && is_float(dtype),
        "a cast from {} to {} was asked for; both should be "
        "floats",
        name_of(tensor.dtype), name_of(dtype));
  if (tensor.dtype == dtype) return tensor;
  storage = Tensor(tensor.shape, dtype);
  switch (dtype) {
    case DType::f64:
      convert(tensor, storage.as<double>());
      break;
    case DType::f32:
      convert(tensor, storage.as<float>());
      break;
    case DType::f16:
      convert(tensor, storage.as<Rounded<Float16, DType::f16>>());
      break;
    default:
      convert(tensor, storage.as<Rounded<BFloat16, DType::bf16>>());
      break;
  }
  return storage;
}

}  // namespace lockstep
