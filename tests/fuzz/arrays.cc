// Arrays of NumPy: a file of one, or behind a NUL an archive of them.
#include "src/replay/bundle_arrays.h"
#include "tests/fuzz/target.h"

namespace lockstep::fuzz {

void read(std::string_view input) {
  if (!input.starts_with('\0')) {
    const Tensor array = array_of_npy(input, "x.npy");
    if (static_cast<size_t>(array.view().bytes()) >= input.size())
      wrong("an array of more bytes than its file was taken");
    return;
  }
  for (const auto& [name, array] : arrays_of(write("x.npz", input.substr(1))))
    if (static_cast<size_t>(array.view().bytes()) >= input.size())
      wrong("an array of more bytes than its archive was taken");
}

}  // namespace lockstep::fuzz
