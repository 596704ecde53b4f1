// The reader of safetensors: one file, checked as a whole when it is opened.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>

#include "kernels/base/tensor.h"
#include "src/weights/mapped_file.h"

namespace lockstep {

// One safetensors file, memory-mapped: a tensor costs nothing until it is read. Tensors are only
// dtype-aligned, read-only, and live as long as this object or a copy of it.
// Layout: u64 LE length N, N bytes of JSON, data. Formula and limits: the safetensors format.
// Immutable; several threads may read it.
class SafeTensors {
 public:
  // Throws Error, naming file and tensor, unless the header is sound, every tensor has as many
  // bytes as its shape and dtype say, and the tensors cover the data without a hole or an overlap.
  explicit SafeTensors(const std::string& path);

  const std::string& path() const { return path_; }
  const std::map<std::string, TensorView>& tensors() const { return tensors_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  std::span<const uint8_t> header() const { return header_; }  // the JSON text
  std::span<const uint8_t> data() const { return data_; }

 private:
  std::string path_;
  MappedFile file_;
  std::span<const uint8_t> header_;
  std::span<const uint8_t> data_;
  std::map<std::string, TensorView> tensors_;
  std::map<std::string, std::string> metadata_;
};

}  // namespace lockstep
