#include "src/weights/safetensors.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>
#include <vector>

#include "kernels/base/check.h"

namespace lockstep {
namespace {

using nlohmann::json;

constexpr uint64_t kMaxHeader = 100'000'000;
constexpr size_t kLengthBytes = 8;

constexpr std::array<std::pair<std::string_view, DType>, 7> kDTypes = {{
    {"F64", DType::f64},
    {"F32", DType::f32},
    {"F16", DType::f16},
    {"BF16", DType::bf16},
    {"I64", DType::i64},
    {"I32", DType::i32},
    {"U8", DType::u8},
}};

// Where a tensor's bytes lie in the data.
struct Extent {
  uint64_t begin = 0;
  uint64_t end = 0;
  std::string name;
  auto operator<=>(const Extent&) const = default;
};

std::span<const uint8_t> header_of(std::span<const uint8_t> file, const std::string& path) {
  check(file.size() >= kLengthBytes,
        "\"{}\" has {} bytes and a safetensors file has at least 8; fetch it again", path,
        file.size());
  uint64_t length = 0;
  for (size_t i = 0; i < kLengthBytes; ++i) length |= uint64_t{file[i]} << (8 * i);
  check(length <= kMaxHeader,
        "the header of \"{}\" claims {} bytes and {} are allowed; it is no safetensors file", path,
        length, kMaxHeader);
  check(length <= file.size() - kLengthBytes,
        "the header of \"{}\" claims {} bytes and {} follow: the file is cut; fetch it again", path,
        length, file.size() - kLengthBytes);
  return file.subspan(kLengthBytes, length);
}

// The library keeps the last of two equal keys, which would hide one of two tensors.
json parse_without_duplicates(std::span<const uint8_t> text, const std::string& path) {
  std::vector<std::set<std::string>> keys;
  const auto see = [&](int, json::parse_event_t event, json& value) {
    if (event == json::parse_event_t::object_start) keys.emplace_back();
    if (event == json::parse_event_t::object_end) keys.pop_back();
    if (event == json::parse_event_t::key) {
      const auto& key = value.get_ref<const std::string&>();
      check(keys.back().insert(key).second,
            "the header of \"{}\" has the key \"{}\" twice; write the file again", path, key);
    }
    return true;
  };
  json header = json::parse(text.begin(), text.end(), see, /*allow_exceptions=*/false);
  check(!text.empty() && text.front() == '{' && header.is_object(),
        "the header of \"{}\" is not a JSON object; it is no safetensors file, or it is damaged",
        path);
  return header;
}

DType dtype_of(const json& entry, const std::string& name, const std::string& path) {
  const auto text = entry.find("dtype");
  check(text != entry.end() && text->is_string(),
        "tensor \"{}\" of \"{}\" has no dtype; write the file again", name, path);
  const auto& wanted = text->get_ref<const std::string&>();
  const auto* found =
      std::find_if(kDTypes.begin(), kDTypes.end(), [&](auto& row) { return row.first == wanted; });
  check(
      found != kDTypes.end(),
      "tensor \"{}\" of \"{}\" has the dtype \"{}\", and F64, F32, F16, BF16, I64, I32 and U8 are "
      "read; convert the checkpoint",
      name, path, wanted);
  return found->second;
}

Shape shape_of(const json& entry, const std::string& name, const std::string& path) {
  const auto list = entry.find("shape");
  check(list != entry.end() && list->is_array() && list->size() <= 5,
        "tensor \"{}\" of \"{}\" should have a shape of at most five extents; write the file again",
        name, path);
  std::vector<int64_t> extents;
  for (const json& extent : *list) {
    check(extent.is_number_unsigned() && extent.get<uint64_t>() <= INT64_MAX,
          "tensor \"{}\" of \"{}\" has the extent {} in its shape; write the file again", name,
          path, extent.dump());
    extents.push_back(extent.get<int64_t>());
  }
  return Shape(extents);
}

// Checked step by step: a product that wraps around could fit the file by accident.
uint64_t bytes_of(const Shape& shape, DType dtype, const std::string& name,
                  const std::string& path) {
  uint64_t bytes = static_cast<uint64_t>(size_of(dtype));
  for (const int64_t extent : shape.extents())
    check(!__builtin_mul_overflow(bytes, static_cast<uint64_t>(extent), &bytes),
          "tensor \"{}\" of \"{}\" has the shape {}, more than 2^64 bytes; the header is damaged",
          name, path, shape.text());
  return bytes;
}

Extent extent_of(const json& entry, const std::string& name, const std::string& path,
                 uint64_t data_size) {
  const auto pair = entry.find("data_offsets");
  check(
      pair != entry.end() && pair->is_array() && pair->size() == 2 &&
          (*pair)[0].is_number_unsigned() && (*pair)[1].is_number_unsigned(),
      "tensor \"{}\" of \"{}\" should have data_offsets of two whole numbers; write the file again",
      name, path);
  const Extent extent{(*pair)[0].get<uint64_t>(), (*pair)[1].get<uint64_t>(), name};
  check(
      extent.begin <= extent.end && extent.end <= data_size,
      "tensor \"{}\" of \"{}\" lies at bytes {} to {} of {} bytes of data; the file is cut or its "
      "header damaged: fetch it again",
      name, path, extent.begin, extent.end, data_size);
  return extent;
}

// Each byte of the data belongs to exactly one tensor, so nothing can hide in the file.
void check_cover(std::vector<Extent> extents, uint64_t data_size, const std::string& path) {
  std::sort(extents.begin(), extents.end());
  uint64_t covered = 0;
  for (const Extent& extent : extents) {
    check(extent.begin >= covered,
          "tensor \"{}\" of \"{}\" begins at byte {} and overlaps one that ends at {}; write the "
          "file "
          "again",
          extent.name, path, extent.begin, covered);
    check(extent.begin == covered,
          "bytes {} to {} of the data of \"{}\", before tensor \"{}\", belong to no tensor; write "
          "the "
          "file again",
          covered, extent.begin, path, extent.name);
    covered = extent.end;
  }
  check(covered == data_size,
        "the tensors of \"{}\" end at byte {} of {} bytes of data; write the file again", path,
        covered, data_size);
}

std::map<std::string, std::string> metadata_of(const json& entry, const std::string& path) {
  check(entry.is_object(), "__metadata__ of \"{}\" is not an object; write the file again", path);
  std::map<std::string, std::string> metadata;
  for (const auto& [key, value] : entry.items()) {
    check(value.is_string(),
          "__metadata__ of \"{}\" has no text under \"{}\"; write the file again", path, key);
    metadata[key] = value.get<std::string>();
  }
  return metadata;
}

}  // namespace

SafeTensors::SafeTensors(const std::string& path)
    : path_(path),
      file_(path),
      header_(header_of(file_.bytes(), path)),
      data_(file_.bytes().subspan(kLengthBytes + header_.size())) {
  const json header = parse_without_duplicates(header_, path);
  std::vector<Extent> extents;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") {
      metadata_ = metadata_of(entry, path);
      continue;
    }
    check(entry.is_object(), "tensor \"{}\" of \"{}\" is not described; write the file again", name,
          path);
    const DType dtype = dtype_of(entry, name, path);
    const Shape shape = shape_of(entry, name, path);
    const uint64_t bytes = bytes_of(shape, dtype, name, path);
    const Extent extent = extent_of(entry, name, path, data_.size());
    check(extent.end - extent.begin == bytes,
          "tensor \"{}\" of \"{}\" has {} bytes and {} {} needs {}; the header is damaged", name,
          path, extent.end - extent.begin, name_of(dtype), shape.text(), bytes);
    const uint8_t* begin = data_.data() + extent.begin;
    check(
        reinterpret_cast<uintptr_t>(begin) % static_cast<uintptr_t>(size_of(dtype)) == 0,
        "tensor \"{}\" of \"{}\" is not aligned to its {}; save the file again with a safetensors "
        "library that pads the header",
        name, path, name_of(dtype));
    // Views have one pointer type; the mapping is read-only, so a write through it would fault.
    tensors_[name] = {const_cast<uint8_t*>(begin), dtype, Device::cpu, shape};
    extents.push_back(extent);
  }
  check_cover(std::move(extents), data_.size(), path);
}

}  // namespace lockstep
