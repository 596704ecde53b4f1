// A file from the network is read as if it were hostile. The header's length is held to the file
// before it is followed; shapes are multiplied with a check for overflow; offsets must fit dtype
// and shape; and the tensors must cover the data without a hole or an overlap, as the format
// demands, so that nothing can hide between them or be read twice.
//
//   u64 length | JSON header | data
//                name -> {dtype, shape, data_offsets [begin, end)}
#include "src/weights/safetensors.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "kernels/base/check.h"
#include "kernels/base/printable.h"
#include "kernels/files/json.h"

namespace lockstep {
namespace {

constexpr size_t kMaxHeader = 100'000'000;
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
  std::string_view name;
  auto operator<=>(const Extent&) const = default;
};

// The JSON text, after its length was found to lie within the file.
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

DType dtype_named(const JsonValue& value) {
  const std::string& wanted = value.text();
  const auto* found =
      std::find_if(kDTypes.begin(), kDTypes.end(), [&](auto& row) { return row.first == wanted; });
  if (found == kDTypes.end())
    value.refuse("one of F64, F32, F16, BF16, I64, I32 and U8, which are read,");
  return found->second;
}

Shape shape_of(const JsonValue& list) {
  if (!list.is_list() || list.size() > 5) list.refuse("a list of at most five extents");
  return Shape(list.wholes<int64_t>(0));
}

// Checked step by step: a product that wraps around could fit the file by accident.
uint64_t bytes_of(const JsonValue& entry, const Shape& shape, DType dtype) {
  uint64_t bytes = size_of(dtype);
  for (const int64_t extent : shape.extents())
    if (__builtin_mul_overflow(bytes, extent, &bytes))
      fail("{} has the shape {}, more than 2^64 bytes; the header is damaged", entry.where(),
           shape.text());
  return bytes;
}

// A tensor's bytes in the data, which must lie within it.
Extent extent_of(const JsonValue& entry, std::string_view name, uint64_t data_size) {
  const JsonValue pair = entry["data_offsets"];
  if (!pair.is_list() || pair.size() != 2) pair.refuse("a list of two whole numbers");
  const Extent extent{pair[0].whole<uint64_t>(), pair[1].whole<uint64_t>(), name};
  if (extent.begin > extent.end || extent.end > data_size)
    fail(
        "{} lies at bytes {} to {} of {} bytes of data; the file is cut or its header damaged: "
        "fetch it again",
        entry.where(), extent.begin, extent.end, data_size);
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
          shown(extent.name), path, extent.begin, covered);
    check(extent.begin == covered,
          "bytes {} to {} of the data of \"{}\", before tensor \"{}\", belong to no tensor; write "
          "the "
          "file again",
          covered, extent.begin, path, shown(extent.name));
    covered = extent.end;
  }
  check(covered == data_size,
        "the tensors of \"{}\" end at byte {} of {} bytes of data; write the file again", path,
        covered, data_size);
}

}  // namespace

SafeTensors::SafeTensors(const std::string& path)
    : path_(path),
      file_(path),
      header_(header_of(file_.bytes(), path)),
      data_(file_.bytes().subspan(kLengthBytes + header_.size())) {
  check(!header_.empty() && header_.front() == '{',
        "the header of \"{}\" is not a JSON object; it is no safetensors file, or it is damaged",
        path);
  const JsonDocument header({reinterpret_cast<const char*>(header_.data()), header_.size()},
                            {"the header of " + path, "fetch the file again", kMaxHeader});
  std::vector<Extent> extents;
  for (const auto& [name, entry] : header.root().fields()) {
    if (name == "__metadata__") {
      metadata_ = entry.text_fields();
      continue;
    }
    const DType dtype = dtype_named(entry["dtype"]);
    const Shape shape = shape_of(entry["shape"]);
    const Extent extent = extent_of(entry, name, data_.size());
    const uint64_t bytes = bytes_of(entry, shape, dtype);
    check(extent.end - extent.begin == bytes,
          "tensor \"{}\" of \"{}\" has {} bytes and {} {} needs {}; the header is damaged",
          shown(name), path, extent.end - extent.begin, name_of(dtype), shape.text(), bytes);
    const uint8_t* begin = data_.data() + extent.begin;
    check(
        reinterpret_cast<uintptr_t>(begin) % size_of(dtype) == 0,
        "tensor \"{}\" of \"{}\" is not aligned to its {}; save the file again with a safetensors "
        "library that pads the header",
        shown(name), path, name_of(dtype));
    // Views have one pointer type; the mapping is read-only, so a write through it would fault.
    tensors_[std::string(name)] = {const_cast<uint8_t*>(begin), dtype, Device::cpu, shape};
    extents.push_back(extent);
  }
  check_cover(std::move(extents), data_.size(), path);
}

}  // namespace lockstep
