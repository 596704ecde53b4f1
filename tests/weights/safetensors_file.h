#pragma once

#include <cstdint>
#include <string>

namespace lockstep {

// The bytes of a safetensors file: the length, the header as it is, the data.
inline std::string safetensors_file(const std::string& header, const std::string& data) {
  std::string file;
  for (int i = 0; i < 8; ++i)
    file += static_cast<char>((uint64_t{header.size()} >> (8 * i)) & 0xFF);
  return file + header + data;
}

// The header, filled up with blanks so that the data begins at a multiple of 8.
inline std::string padded(std::string header) {
  header.append((8 - header.size() % 8) % 8, ' ');
  return header;
}

}  // namespace lockstep
