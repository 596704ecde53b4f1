// Arrays by name from the files in which other programs save tensors: an uncompressed .npz of NumPy
// (a zip archive whose entries are .npy files, stored as they are), .safetensors, or a folder of
// .npy files.
#include "src/replay/bundle_arrays.h"

#include <zlib.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string_view>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/printable.h"
#include "kernels/files/text.h"
#include "src/weights/safetensors.h"

namespace lockstep {
namespace {

// The sizes in these files are not to be believed before they are compared with the file.
constexpr size_t kMostBytes = size_t{1} << 34;

// A little-endian number in a file.
template <typename T>
T number_at(std::string_view bytes, size_t at, const std::string& name) {
  check(at <= bytes.size() && bytes.size() - at >= sizeof(T), "{} ends too soon: copy it again",
        name);
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof(T));
  return value;
}

DType dtype_of(const std::string& descr, const std::string& name) {
  static const std::map<std::string, DType> kKnown = {
      {"<f4", DType::f32},  {"<f2", DType::f16}, {"<u2", DType::bf16}, {"|V2", DType::bf16},
      {"<V2", DType::bf16}, {"<i4", DType::i32}, {"<i8", DType::i64}};
  const auto found = kKnown.find(descr);
  check(
      found != kKnown.end(),
      "{} holds numbers of the type '{}': fp32, fp16, int32, int64, or bf16 as uint16 were wanted",
      name, shown(descr));
  return found->second;
}

// The text behind a key, between two characters. A regular expression would recurse at each
// character, of which a header may have more than the stack has room for.
std::optional<std::string> between(std::string_view header, std::string_view key, char open,
                                   char close) {
  const size_t found = header.find(key);
  if (found == header.npos) return {};
  const size_t begin = header.find_first_not_of(' ', found + key.size());
  if (begin == header.npos || header[begin] != open) return {};
  const size_t end = header.find(close, begin + 1);
  if (end == header.npos) return {};
  return std::string(header.substr(begin + 1, end - begin - 1));
}

Shape shape_of(const std::string& text, const std::string& name) {
  std::vector<int64_t> extents;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    const size_t begin = std::min(text.find_first_not_of(' ', at), end);
    at = end + 1;
    if (begin == end) continue;
    int64_t& extent = extents.emplace_back();
    const auto [rest, error] = std::from_chars(&text[begin], text.data() + end, extent);
    check(error == std::errc() && extent >= 0 &&
              std::string_view(rest, text.data() + end).find_first_not_of("L ") == text.npos,
          "{} has the shape ({}), which is none", name, shown(text));
  }
  check(extents.size() <= 5, "{} has {} axes, at most 5 were wanted", name, extents.size());
  int64_t count = 1;  // no axis taken as empty, so that no order of them hides what cannot be
  for (const int64_t extent : extents)
    check(!__builtin_mul_overflow(count, std::max<int64_t>(extent, 1), &count),
          "{} has the shape ({}), which is none", name, shown(text));
  return Shape(extents);
}

// The checksum of the zip format.
uint32_t crc32_of(std::string_view bytes) {
  return static_cast<uint32_t>(
      crc32_z(0, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}

// A file of a zip archive that is stored as it is. Offsets are those of the zip format: 8 flags, of
// which the lowest says that it is encrypted, 10 method, 16 checksum, 24 size, 28 length of the
// name, 42 place of the local header, whose own names end 30 bytes behind its begin.
void add_entry(std::string_view zip, size_t at, const std::string& path, Arrays& arrays) {
  const auto flags = number_at<uint16_t>(zip, at + 8, path);
  const auto method = number_at<uint16_t>(zip, at + 10, path);
  const auto checksum = number_at<uint32_t>(zip, at + 16, path);
  const auto size = number_at<uint32_t>(zip, at + 24, path);
  const auto name_size = number_at<uint16_t>(zip, at + 28, path);
  const auto local = number_at<uint32_t>(zip, at + 42, path);
  check(at + 46 + name_size <= zip.size(), "{} ends too soon: copy it again", path);
  std::string name(zip.substr(at + 46, name_size));
  check(method == 0 && (flags & 1) == 0,
        "{}: {} is compressed or encrypted: write it with numpy.savez, or as .safetensors", path,
        shown(name));
  check(number_at<uint32_t>(zip, local, path) == 0x04034b50,
        "{} is no .npz archive: its table of files leads elsewhere", path);
  const size_t begin = size_t{local} + 30 + number_at<uint16_t>(zip, local + 26, path) +
                       number_at<uint16_t>(zip, local + 28, path);
  check(begin <= zip.size() && size <= zip.size() - begin, "{} ends too soon: copy it again", path);
  if (!name.ends_with(".npy")) return;
  name.resize(name.size() - 4);
  const std::string_view file = zip.substr(begin, size);
  check(crc32_of(file) == checksum, "{}: {} was changed after it was written: copy it again", path,
        shown(name));
  check(arrays.emplace(name, array_of_npy(file, path + ": " + shown(name))).second,
        "{}: {} is there twice, and which of them the call had is not known: write it anew", path,
        shown(name));
}

// The archive's table of files stands at its end, where a record says how many there are and where
// they begin.
Arrays of_npz(const std::string& path) {
  const std::string text = read_text(path, kMostBytes);
  const std::string_view zip = text;
  const size_t end = zip.rfind(std::string_view("PK\5\6", 4));
  check(end != zip.npos, "{} is no .npz archive: write it with numpy.savez", path);
  const auto count = number_at<uint16_t>(zip, end + 10, path);
  size_t at = number_at<uint32_t>(zip, end + 16, path);
  Arrays arrays;
  for (int i = 0; i < count; ++i) {
    check(number_at<uint32_t>(zip, at, path) == 0x02014b50,
          "{} is no .npz archive: its table of files is damaged", path);
    add_entry(zip, at, path, arrays);
    at += size_t{46} + number_at<uint16_t>(zip, at + 28, path) +
          number_at<uint16_t>(zip, at + 30, path) + number_at<uint16_t>(zip, at + 32, path);
  }
  return arrays;
}

Arrays of_folder(const std::string& path) {
  Arrays arrays;
  for (const auto& file : std::filesystem::directory_iterator(path))
    if (file.path().extension() == ".npy")
      arrays[file.path().stem().string()] =
          array_of_npy(read_text(file.path().string(), kMostBytes), file.path().string());
  return arrays;
}

}  // namespace

bool is_bundle(const std::string& path) {
  if (path.ends_with(".npz") || path.ends_with(".safetensors")) return true;
  std::error_code none;
  if (!std::filesystem::is_directory(path, none)) return false;
  for (const auto& file : std::filesystem::directory_iterator(path, none))
    if (file.path().extension() == ".npy") return true;
  return false;
}

Tensor array_of_npy(std::string_view bytes, const std::string& name) {
  check(bytes.starts_with("\x93NUMPY"), "{} is no .npy file: write it with numpy.save", name);
  const auto version = number_at<uint8_t>(bytes, 6, name);
  check(version >= 1 && version <= 3,
        "{} is of version {} of .npy, 1 to 3 were wanted: write it with numpy.save", name, version);
  const bool old = version == 1;
  const size_t begin = old ? 10 : 12;
  const size_t length =
      old ? number_at<uint16_t>(bytes, 8, name) : number_at<uint32_t>(bytes, 8, name);
  check(length <= 1 << 16 && begin + length <= bytes.size(), "{} ends too soon: copy it again",
        name);
  // The header is a Python dictionary in a fixed spelling, which NumPy alone writes.
  const std::string_view header = bytes.substr(begin, length);
  const auto descr = between(header, "'descr':", '\'', '\'');
  const auto shape = between(header, "'shape':", '(', ')');
  check(descr && shape,
        "{} has a header that says neither type nor shape: write it with numpy.save", name);
  check(header.find("'fortran_order': False") != header.npos,
        "{} is in Fortran's order: write numpy.ascontiguousarray of it", name);
  const Shape extents = shape_of(*shape, name);
  const DType dtype = dtype_of(*descr, name);
  const size_t size = bytes.size() - begin - length;
  // Before there is memory for it: the shape alone may ask for any amount.
  int64_t wanted = 0;
  check(!__builtin_mul_overflow(extents.count(), size_of(dtype), &wanted) &&
            std::cmp_equal(wanted, size),
        "{} has {} bytes of numbers, which its shape {} does not want", name, size, extents.text());
  Tensor array(extents, dtype);
  std::memcpy(array.as<char>(), bytes.data() + begin + length, size);
  return array;
}

Arrays arrays_of(const std::string& path) {
  if (path.ends_with(".npz")) return of_npz(path);
  if (!path.ends_with(".safetensors")) return of_folder(path);
  const SafeTensors file(path);
  Arrays arrays;
  for (const auto& [name, tensor] : file.tensors()) arrays[name] = copy_on(Device::cpu, tensor);
  return arrays;
}

}  // namespace lockstep
