#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kernels/memory.h"
#include "src/weights/config.h"

namespace lockstep {

// A folder in the published Hugging Face layout: config.json and safetensors, single or sharded.
// Files are memory-mapped: a tensor costs nothing until it is read, and is only dtype-aligned.
class Checkpoint {
 public:
  // Throws Error, naming file and tensor, when a file is missing or malformed, and when a tensor that
  // this configuration needs is missing or has another shape.
  static Checkpoint open(const std::string& dir);

  const std::string& dir() const { return dir_; }
  const ModelConfig& config() const { return config_; }

  // The tensor of that name, read-only, as long as the checkpoint lives. Tied: "lm_head.weight" is
  // the embedding. Throws Error when there is none.
  TensorView tensor(const std::string& name) const;
  bool has(const std::string& name) const;
  std::vector<std::string> names() const;
  int64_t bytes() const;  // of all tensors

  // Identity of config and weights for manifests, as 16 hex digits: xxh3 of the config's text, the
  // header of every file, and 4 KiB of data out of every MiB.
  std::string fingerprint() const;

 private:
  struct File;
  std::string dir_;
  ModelConfig config_;
  std::vector<std::shared_ptr<File>> files_;
  std::map<std::string, TensorView> tensors_;
};

// A safetensors file alone, for tools and tests: name -> tensor. Same strictness.
class SafeTensors {
 public:
  explicit SafeTensors(const std::string& path);
  const std::map<std::string, TensorView>& tensors() const { return tensors_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

 private:
  std::shared_ptr<void> map_;
  std::map<std::string, TensorView> tensors_;
  std::map<std::string, std::string> metadata_;
};

// `tensor` in another dtype: the mapped memory itself when the dtype already fits, else a converted
// copy (rounded to nearest even), which `storage` then owns.
TensorView cast(const TensorView& tensor, DType dtype, Tensor& storage);

}  // namespace lockstep
