// Tensors are laid one behind another, the widest elements first, so that each is aligned to its
// dtype without a gap, which the format forbids; the header is padded with blanks to a multiple of
// 8 bytes for the same reason.
#include "src/weights/safetensors_writer.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "kernels/base/check.h"

namespace lockstep {
namespace {

const char* name_in_file(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return "F64";
    case DType::f32:
      return "F32";
    case DType::f16:
      return "F16";
    case DType::bf16:
      return "BF16";
    case DType::i64:
      return "I64";
    case DType::i32:
      return "I32";
    case DType::u8:
      return "U8";
  }
  fail("safetensors have no such dtype");
}

}  // namespace

std::string safetensors_of(std::vector<NamedTensor> tensors,
                           const std::map<std::string, std::string>& metadata,
                           std::map<std::string, size_t>& offsets) {
  // There is no hole between two, so that the widest come first.
  std::ranges::stable_sort(tensors, std::ranges::greater(),
                           [](const NamedTensor& t) { return size_of(t.tensor.dtype); });
  nlohmann::ordered_json header;
  if (!metadata.empty()) header["__metadata__"] = metadata;
  size_t end = 0;
  for (const auto& [name, tensor] : tensors) {
    const auto extents = tensor.shape.extents();
    const size_t begin = end;
    end += tensor.bytes();
    header[name] = {{"dtype", name_in_file(tensor.dtype)},
                    {"shape", std::vector<int64_t>(extents.begin(), extents.end())},
                    {"data_offsets", {begin, end}}};
    offsets[name] = begin;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint64_t length = text.size();
  std::string file(sizeof(length), '\0');
  std::memcpy(file.data(), &length, sizeof(length));
  file += text;
  const size_t data = file.size();
  for (auto& [name, offset] : offsets) offset += data;
  for (const auto& [name, tensor] : tensors) file.append(tensor.as<const char>(), tensor.bytes());
  return file;
}

}  // namespace lockstep
