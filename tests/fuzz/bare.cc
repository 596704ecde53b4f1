// A file as another program writes it: the input says which datasets are in it and what they hold.
#include <array>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <vector>

#include "probes/points.h"
#include "tests/fuzz/target.h"
#include "traces/hdf5_file.h"
#include "traces/kept_result.h"
#include "traces/seal.h"
#include "traces/trace.h"

namespace lockstep::fuzz {
namespace {

constexpr int kMostDatasets = 10;
constexpr int64_t kMostElements = 256;

template <typename T>
void put(Hdf5File& file, const std::string& path, std::vector<int64_t> dims, Bytes& bytes) {
  int64_t count = 1;
  for (const int64_t extent : dims) count *= extent;
  if (count > kMostElements) return;
  std::vector<T> values(static_cast<size_t>(count));
  for (T& value : values) value = static_cast<T>(bytes.number());
  file.write(path, values, dims);
}

void put_floats(Hdf5File& file, const std::string& path, const std::vector<int64_t>& dims,
                DType dtype, Bytes& bytes) {
  int64_t count = 1;
  for (const int64_t extent : dims) count *= extent;
  if (count == 0 || count > kMostElements) return;
  Tensor tensor(Shape(dims), dtype);
  for (int64_t i = 0; i < tensor.view().bytes(); ++i) tensor.as<uint8_t>()[i] = bytes.byte();
  file.write_tensor(path, tensor);
}

void put_any(Hdf5File& file, const std::string& path, std::vector<int64_t> dims, Bytes& bytes) {
  constexpr std::array kFloats = {DType::f32, DType::bf16, DType::f16, DType::f64};
  const int type = bytes.byte() % 9;
  if (type == 0) put<int32_t>(file, path, dims, bytes);
  if (type == 1) put<int64_t>(file, path, dims, bytes);
  if (type == 2) put<uint8_t>(file, path, dims, bytes);
  if (type == 3) put<uint64_t>(file, path, dims, bytes);
  if (type == 4) put<double>(file, path, dims, bytes);
  if (type >= 5) put_floats(file, path, dims, kFloats[static_cast<size_t>(type) - 5], bytes);
}

std::string column_name(Bytes& bytes) {
  const std::array<std::string, 5> names = {"token", "position", "request", "pass", "x"};
  return "/passes/" + names[bytes.byte() % names.size()];
}

std::string tensor_name(Bytes& bytes) {
  std::string path = "/tensors/pass" + std::to_string(bytes.number()) + "/";
  const int64_t layer = bytes.number();
  path += layer < 0 ? "model/" : "layer" + std::to_string(layer) + "/";
  const uint8_t point = bytes.byte();
  if (point >= kPoints.size()) return path + "x" + std::string(bytes.part());
  path += kPoints[point].name;
  if (kPoints[point].is_cache()) path += ".request" + std::to_string(bytes.number());
  return path;
}

void put_dataset(Hdf5File& file, Bytes& bytes) {
  const uint8_t kind = bytes.byte();
  if (kind % 8 == 0) {
    const std::array<std::string, 5> dtypes = {"bf16", "fp16", "fp32", "i32", "x"};
    file.set("/", kind % 16 == 0 ? "dtype" : "schema", dtypes[bytes.byte() % dtypes.size()]);
    return;
  }
  const bool is_column = kind % 8 < 4;
  const std::string path = is_column ? column_name(bytes) : tensor_name(bytes);
  std::vector<int64_t> dims;
  for (int rank = is_column ? 1 : bytes.byte() % 6; rank > 0; --rank)
    dims.push_back(bytes.byte() % 9);
  put_any(file, path, dims, bytes);
  if (kind % 8 == 7) file.set(path, "dtype", bytes.byte() % 2 == 0 ? "bf16" : "fp16");
}

// The file without the user block in front of it, where a seal would lie.
std::string unsealed(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  file.seekg(kSealBytes);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace

void read(std::string_view input) {
  const std::string made = path_of("made.h5");
  {
    Hdf5File file = Hdf5File::create(made);
    Bytes bytes(input);
    for (const char* group : {"/passes", "/tensors"})
      if (bytes.byte() < 250) file.make_group(group);
    for (int i = 0; i < kMostDatasets && !bytes.empty(); ++i) put_dataset(file, bytes);
    file.close();
  }
  const std::string path = write("x.h5", unsealed(made));
  read_kept_result(path);
  const auto trace = open_trace(path);
  for (int i = 0; i < trace->passes(); ++i) trace->read(i, true);
}

}  // namespace lockstep::fuzz
