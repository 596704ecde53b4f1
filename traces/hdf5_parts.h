// Parts that the readers and the writer of HDF5 files share. HDF5's ids are the int64_t here.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/base/dtype.h"

namespace lockstep {

// Owns one id; closed as its kind wants.
class Hdf5Id {
 public:
  explicit Hdf5Id(int64_t id) : id_(id) {}
  Hdf5Id(Hdf5Id&& other) noexcept : id_(std::exchange(other.id_, -1)) {}
  ~Hdf5Id();
  operator int64_t() const { return id_; }
  int64_t release() { return std::exchange(id_, -1); }

 private:
  int64_t id_;
};

// Before the first call of the library. Called as often as one likes; only the first call does
// anything.
void prepare_hdf5();
// The innermost sentence of HDF5's stack of errors: the cause.
std::string hdf5_cause();

Hdf5Id hdf5_type_of(DType dtype);  // little endian; bf16 and fp16 are floats
Hdf5Id hdf5_text_type();           // of variable length, UTF-8

std::vector<int64_t> dims_of(int64_t dataset);
// Elements of a dataset; less than none where their number does not fit 63 bits.
int64_t count_of(int64_t dataset);
// Says why the bytes of a dataset are not simply in the file; empty when they are.
std::string_view elsewhere(int64_t dataset);
// Whether each name of the path is one of the file's own, which no link stands for.
bool is_own(int64_t file, const std::string& path);
// Reads a text; false when the attribute is none.
bool get_text(int64_t attribute, std::string& value);

}  // namespace lockstep
