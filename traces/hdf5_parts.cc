// Types and properties of HDF5 that both sides share. bf16 and fp16 are HDF5 floats of 16 bits,
// built from fp32's by moving the fields, so that any reader of HDF5 knows how to widen them.
#include "traces/hdf5_parts.h"

#include <hdf5.h>

#include <algorithm>

#include "kernels/base/check.h"

namespace lockstep {
namespace {

// An IEEE-like float of two bytes: sign, exponent, then `mantissa` bits. The fields are moved
// before the size is set, which HDF5 refuses where they have no room.
Hdf5Id half_type(size_t mantissa, size_t bias) {
  Hdf5Id type(H5Tcopy(H5T_IEEE_F32LE));
  H5Tset_fields(type, 15, mantissa, 15 - mantissa, 0, mantissa);
  H5Tset_size(type, 2);
  H5Tset_ebias(type, bias);
  return type;
}

}  // namespace

Hdf5Id::~Hdf5Id() {
  if (id_ >= 0) H5Idec_ref(id_);
}

Hdf5Id hdf5_text_type() {
  Hdf5Id type(H5Tcopy(H5T_C_S1));
  H5Tset_size(type, H5T_VARIABLE);
  H5Tset_cset(type, H5T_CSET_UTF8);
  return type;
}

Hdf5Id hdf5_type_of(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return Hdf5Id(H5Tcopy(H5T_IEEE_F64LE));
    case DType::f32:
      return Hdf5Id(H5Tcopy(H5T_IEEE_F32LE));
    case DType::f16:
      return half_type(10, 15);
    case DType::bf16:
      return half_type(7, 127);
    case DType::i64:
      return Hdf5Id(H5Tcopy(H5T_STD_I64LE));
    case DType::i32:
      return Hdf5Id(H5Tcopy(H5T_STD_I32LE));
    case DType::u8:
      return Hdf5Id(H5Tcopy(H5T_STD_U8LE));
  }
  fail("a tensor of an unknown dtype cannot be stored");
}

std::vector<int64_t> dims_of(int64_t dataset) {
  const Hdf5Id space(H5Dget_space(dataset));
  const int rank = H5Sget_simple_extent_ndims(space);
  std::vector<hsize_t> extents(std::max(rank, 0));
  if (rank > 0) H5Sget_simple_extent_dims(space, extents.data(), nullptr);
  return {extents.begin(), extents.end()};
}

// -1 where they cannot be counted.
int64_t count_of(int64_t dataset) {
  const Hdf5Id space(H5Dget_space(dataset));
  if (H5Sget_simple_extent_type(space) == H5S_NULL) return 0;
  int64_t count = 1;
  for (const int64_t extent : dims_of(dataset))
    if (extent < 0 || __builtin_mul_overflow(count, extent, &count)) return -1;
  return count;
}

// Why the bytes of a dataset are not simply in this file; empty when they are. Only then is its
// size bounded by the file's.
std::string_view elsewhere(int64_t dataset) {
  const Hdf5Id made(H5Dget_create_plist(dataset));
  const H5D_layout_t layout = H5Pget_layout(made);
  if (layout == H5D_VIRTUAL) return "is put together from other datasets";
  if (layout == H5D_CHUNKED) return "is stored in chunks";
  if (layout != H5D_CONTIGUOUS && layout != H5D_COMPACT) return "is stored in an unknown way";
  if (H5Pget_external_count(made) != 0) return "is stored in other files";
  return H5Pget_nfilters(made) != 0 ? "is compressed" : "";
}

// Every part of the path is looked at: a group may be a link as well as a dataset.
bool is_own(int64_t file, const std::string& path) {
  for (size_t end = path.find('/', 1);; end = path.find('/', end + 1)) {
    H5L_info_t link{};
    const std::string front = path.substr(0, end);
    if (H5Lget_info(file, front.c_str(), &link, H5P_DEFAULT) < 0) return true;  // it is missing
    if (link.type != H5L_TYPE_HARD) return false;
    if (end == path.npos) return true;
  }
}

}  // namespace lockstep
