// An HDF5 file that a forger changed: bytes of a sound trace are others, and its seal, if it has
// one, is made anew. The library's own reading of it may crash, but not this process.
#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "tests/fuzz/target.h"
#include "tests/traces/passes.h"
#include "traces/seal.h"
#include "traces/segment.h"

namespace lockstep::fuzz {
namespace {

std::string bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string sound_trace() {
  const std::string path = path_of("sound.h5");
  SegmentWriter segment(path, 0);
  Pass pass = test_pass(0);
  pass.tensors.resize(6);  // to the first attn.kv
  segment.add(pass);
  segment.finish(test_manifest());
  return bytes_of(path);
}

std::string bare_trace() {
  const std::string path = path_of("bare.h5");
  Hdf5File file = Hdf5File::create(path);
  for (const char* group : {"/passes", "/tensors"}) file.make_group(group);
  file.write<int32_t>("/passes/token", {5, 6, 7});
  file.write<int64_t>("/passes/position", {0, 1, 2});
  Tensor tensor(Shape({3, 4}), DType::bf16);
  std::memset(tensor.as<uint8_t>(), 0, 24);
  file.write_tensor("/tensors/pass000000/layer000000/attn.norm", tensor);
  file.set("/", "dtype", "bf16");
  file.set("/", "schema", "hf");
  file.close();
  return bytes_of(path).substr(static_cast<size_t>(kSealBytes));
}

size_t offset_in(const std::string& file, Bytes& bytes) {
  const size_t low = bytes.byte(), middle = bytes.byte(), high = bytes.byte();
  return (low | middle << 8 | high << 16) % file.size();
}

// Each change is of a byte, of a number of 2 to 8 bytes, or copies a part to another place.
void change(std::string& file, Bytes& bytes) {
  const size_t at = offset_in(file, bytes), left = file.size() - at;
  const uint8_t what = bytes.byte();
  if (what % 4 == 0) {
    const size_t from = offset_in(file, bytes), count = size_t{1} << (what / 4 % 8);
    std::memmove(&file[at], &file[from], std::min({count, left, file.size() - from}));
  } else if (what % 4 == 1) {
    const int64_t number = bytes.number();
    std::memcpy(&file[at], &number, std::min(size_t{1} << (what / 4 % 4), left));
  } else {
    file[at] = static_cast<char>(bytes.byte());
  }
}

}  // namespace

void read(std::string_view input) {
  static const std::array<std::string, 2> sound = {sound_trace(), bare_trace()};
  Bytes bytes(input);
  const uint8_t which = bytes.byte();
  std::string file = sound[which % 2];
  while (!bytes.empty()) change(file, bytes);
  const bool is_unsealed = which % 3 == 0;
  const size_t front = which % 2 == 0 && is_unsealed ? static_cast<size_t>(kSealBytes) : 0;
  const std::string path = write("x.h5", std::string_view(file).substr(front));
  if (which % 2 == 0 && !is_unsealed) write_seal(path, kSealBytes);
  const auto trace = open_trace(path);
  for (int i = 0; i < trace->passes(); ++i) trace->read(i, true);
}

}  // namespace lockstep::fuzz
