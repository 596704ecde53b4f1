// NumPy's .npy format, version 1.0: a header that is text, padded so that the data is aligned to 64
// bytes.
#include "src/report/npy.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace lockstep {

// Version 1.0 of NumPy's format: magic, two bytes of version, a header's length in little-endian,
// the header as a Python dict padded to a multiple of 64 bytes, and the numbers.
std::string npy_of(std::span<const float> numbers, const std::vector<int64_t>& shape) {
  constexpr size_t kBefore = 10, kAligned = 64;  // magic, version and length; of the header
  std::string header = fmt::format("{{'descr': '<f4', 'fortran_order': False, 'shape': ({}{}), }}",
                                   fmt::join(shape, ", "), shape.size() == 1 ? "," : "");
  // The line's end belongs to the padded header. Where it fits already, a whole 64 blanks more are
  // as good.
  header.append(kAligned - (kBefore + header.size() + 1) % kAligned, ' ');
  header += '\n';
  std::string bytes = "\x93NUMPY";
  bytes += '\x01';
  bytes += '\0';
  bytes += static_cast<char>(header.size() & 0xff);
  bytes += static_cast<char>(header.size() >> 8);
  bytes += header;
  bytes.append(reinterpret_cast<const char*>(numbers.data()), numbers.size_bytes());
  return bytes;
}

}  // namespace lockstep
