// A safetensors file; its length of the header is made to fit where the input begins with a brace.
#include "src/weights/safetensors.h"

#include <fmt/format.h>

#include <cstring>
#include <numeric>

#include "tests/fuzz/target.h"

namespace lockstep::fuzz {
namespace {

// The JSON to a NUL is the header, the rest is the data.
std::string with_length(std::string_view input) {
  Bytes bytes(input);
  const std::string header(bytes.part());
  const uint64_t size = header.size();
  std::string file(sizeof size, '\0');
  std::memcpy(file.data(), &size, sizeof size);
  return file + header + std::string(bytes.take(input.size()));
}

}  // namespace

void read(std::string_view input) {
  const bool is_header = input.starts_with("{");
  const std::string path =
      write("model.safetensors", is_header ? with_length(input) : std::string(input));
  const SafeTensors file(path);
  uint64_t sum = 0;
  for (const auto& [name, tensor] : file.tensors()) {
    const auto* at = static_cast<const uint8_t*>(tensor.data);
    sum += std::accumulate(at, at + tensor.bytes(), uint64_t{0});
  }
  if (sum != std::accumulate(file.data().begin(), file.data().end(), uint64_t{0}))
    wrong("the tensors are not the data");
}

}  // namespace lockstep::fuzz
