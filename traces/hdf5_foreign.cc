// The part of Hdf5File that reads what other programs wrote.
#include <hdf5.h>

#include <algorithm>
#include <array>

#include "kernels/base/check.h"
#include "traces/columns.h"
#include "traces/hdf5_file.h"
#include "traces/hdf5_parts.h"

namespace lockstep {
namespace {

constexpr std::array kFloats = {DType::f32, DType::bf16, DType::f16};

// Integers of all bits of their bytes: others are nobody's, and the library would convert them.
bool is_integer(int64_t type) {
  const size_t bytes = H5Tget_size(type);
  return H5Tget_class(type) == H5T_INTEGER && bytes <= 8 && H5Tget_precision(type) == 8 * bytes;
}
bool is_bits(int64_t type) { return H5Tequal(type, H5T_STD_U16LE) > 0; }

}  // namespace

// Links could lead out of the file, to any file of the machine.
std::vector<std::string> Hdf5File::names(const std::string& group) const {
  check(is_own(id_, group), "{}: {} is a link, and nothing of a trace is: write it into the file",
        path_, group);
  std::vector<std::string> found;
  const Hdf5Id owner(H5Gopen2(id_, group.c_str(), H5P_DEFAULT));
  hsize_t next = 0;
  const auto take = [](hid_t, const char* name, const H5L_info_t*, void* to) -> herr_t {
    static_cast<decltype(found)*>(to)->emplace_back(name);
    return 0;
  };
  check(owner >= 0, "{}: {} is no group, and one was wanted (traces/README.md, The least trace)",
        path_, group);
  if (H5Literate(owner, H5_INDEX_NAME, H5_ITER_INC, &next, take, &found) < 0)
    trouble("what lies in " + group + " cannot be read");
  return found;
}

std::vector<int64_t> Hdf5File::integers(const std::string& path) const {
  const Hdf5Id dataset(stored_dataset(path));
  const Hdf5Id type(H5Dget_type(dataset));
  check(is_integer(type) && dims_of(dataset).size() == 1,
        "{}: {} is not a row of integers, and one was wanted (traces/README.md, The least trace)",
        path_, path);
  std::vector<int64_t> values(count_of(dataset));
  if (!values.empty() &&
      H5Dread(dataset, H5T_NATIVE_INT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()) < 0)
    trouble("the column " + path + " cannot be read");
  return values;
}

int64_t Hdf5File::stored_bytes(const std::string& path) const {
  const Hdf5Id dataset(stored_dataset(path));
  return count_of(dataset) * H5Tget_size(Hdf5Id(H5Dget_type(dataset)));
}

// Floats in the dtypes that runs have; uint16 is taken for bits, since h5py has no bfloat16.
Hdf5File::ForeignNumbers Hdf5File::numbers(const std::string& path, bool whole) const {
  const Hdf5Id dataset(stored_dataset(path));
  const Hdf5Id type(H5Dget_type(dataset));
  const std::vector<int64_t> dims = dims_of(dataset);
  check(!dims.empty() && dims.size() <= 5 && is_shape(dims),
        "{}: {} has {} axes, wanted 1 to 5 of extents that can be counted", path_, path,
        dims.size());
  const Shape shape(dims);
  const auto fits = [&](DType dtype) { return H5Tequal(type, hdf5_type_of(dtype)) > 0; };
  const auto dtype = std::ranges::find_if(kFloats, fits);
  check(whole ? is_integer(type) : dtype != kFloats.end() || is_bits(type),
        "{}: {} is of a type that is no {}: convert it before it is written (traces/README.md, "
        "The least trace)",
        path_, path,
        whole ? "integer of at most 64 bits"
              : "float32, float16 or bfloat16, little endian, and no uint16 that holds their bits");
  // Bits of unknown meaning are put into fp16's two bytes; the caller says which of the two they
  // are.
  Hdf5File::ForeignNumbers found{.only_bits = !whole && dtype == kFloats.end()};
  found.tensor = Tensor(shape, whole ? DType::i64 : found.only_bits ? DType::f16 : *dtype);
  const int64_t as = whole ? H5T_NATIVE_INT64 : type;
  if (shape.count() > 0 &&
      H5Dread(dataset, as, H5S_ALL, H5S_ALL, H5P_DEFAULT, found.tensor.view().data) < 0)
    trouble("the tensor " + path + " cannot be read");
  return found;
}

}  // namespace lockstep
