// What follows a trace behind the seal of an HDF5 file, and a result that was written there and is
// read again.
#include <fstream>
#include <iterator>

#include "tests/fuzz/target.h"
#include "traces/hdf5_file.h"
#include "traces/kept_result.h"
#include "traces/seal.h"

namespace lockstep::fuzz {
namespace {

std::string sealed_bytes() {
  const std::string path = path_of("sealed.h5");
  Hdf5File file = Hdf5File::create(path);
  file.write<int32_t>("/x", {1, 2, 3});
  file.close();
  file.seal();
  std::ifstream made(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(made), {}};
}

}  // namespace

void read(std::string_view input) {
  static const std::string sealed = sealed_bytes();
  const std::string path = write("x.h5", sealed);
  write_kept_result(path, std::string(input));
  if (read_kept_result(path) != input) wrong("a result is another when it is read again");
  write("x.h5", sealed + std::string(input));
  check_seal(path);
  const std::string kept = read_kept_result(path);
  if (kept.size() > input.size()) wrong("more was read than there is");
  if (kept.empty() && !input.empty()) wrong("what is no whole result was taken for none");
}

}  // namespace lockstep::fuzz
