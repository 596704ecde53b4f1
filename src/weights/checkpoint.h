// The room of what is on the disk: config.json, safetensors, tokenizer.json, and the formulas that
// belong to them (rotary tables, the graph of the Qwen family). Nothing here computes an op. Files
// are not trusted: each size, offset and name is checked before it is used, and trouble is an Error
// that names the file and the tensor.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "kernels/base/memory.h"
#include "src/weights/config.h"
#include "src/weights/safetensors.h"

namespace lockstep {

// Every tensor that a model of that configuration reads, by the name that Hugging Face gives it.
std::map<std::string, Shape> needed_tensors(const ModelConfig& config);

// A folder in the published Hugging Face layout: config.json and safetensors, single or sharded.
// Files are memory-mapped: a tensor costs nothing until it is read, and is only dtype-aligned.
// Immutable once it is open: several threads may read it, and copies share the mapped memory.
class Checkpoint {
 public:
  // Throws Error, naming file and tensor, when a file is missing or malformed, when a tensor that
  // this configuration needs is missing or has another shape or dtype than declared, and when there
  // is one that this configuration has no use for (a bias that nobody would add).
  static Checkpoint open(const std::string& dir);
  // The same folder with other sizes and tensors, which others own: the part of a rank. Nothing is
  // checked.
  Checkpoint with(ModelConfig config, std::map<std::string, TensorView> tensors) const;

  const std::string& dir() const { return dir_; }
  const ModelConfig& config() const { return config_; }
  // config.json as it is, for who reads it otherwise.
  const std::string& config_text() const { return config_text_; }

  // The tensor of that name, read-only, as long as the checkpoint lives. Tied: "lm_head.weight" is
  // the embedding. Throws Error when there is none. In the dtype of the file, on the CPU,
  // row-major.
  TensorView tensor(const std::string& name) const;
  // The weight matrix of that name; of the checkpoints that can be opened today it is plain.
  WeightView weight(const std::string& name) const { return tensor(name); }
  bool has(const std::string& name) const;
  std::vector<std::string> names() const;
  int64_t bytes() const;  // of all tensors, a tied lm_head not counted

  // Identity of what the model computes, for manifests, as 16 hex digits: xxh3 of the config as it
  // was read, but for the ids that end a text, and of every tensor in the order of their names: its
  // name, dtype, shape, and 4 KiB of data out of every MiB. Files, their order, a tied head that is
  // spelled out, and keys of config.json that nobody reads do not count.
  std::string fingerprint() const;
  // The same of every byte of the weights, which the fingerprint, a sample, does not tell apart:
  // xxh3 of each tensor, with that of the tensor before as its seed. Reads the files whole.
  std::string weights_hash() const;

 private:
  std::string dir_;
  std::string config_text_;
  ModelConfig config_;
  std::vector<SafeTensors> files_;
  std::map<std::string, TensorView> tensors_;
};

// `tensor` in another float dtype: the mapped memory itself when the dtype already fits, else a
// converted copy (rounded to nearest even), which `storage` then owns. Throws Error for a dtype
// that is no float.
TensorView cast(const TensorView& tensor, DType dtype, Tensor& storage);

}  // namespace lockstep
