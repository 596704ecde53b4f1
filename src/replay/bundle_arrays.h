// Arrays by name, from files of NumPy and of safetensors.
#pragma once

#include <map>
#include <string>

#include "kernels/base/memory.h"

namespace lockstep {

using Arrays = std::map<std::string, Tensor>;

// Whether a path is of a bundle of arrays: an .npz, a .safetensors, or a folder with .npy files.
// Looks at the name, and of a folder at its entries, and opens none of them.
bool is_bundle(const std::string& path);

// The arrays of a folder of .npy files (by their names without .npy), of an .npz that is not
// compressed, or of a .safetensors file. Numbers are fp32, fp16, bf16 (in NumPy two bytes without a
// sign, or of no type), int32 and int64. Throws Error, which names the file, for anything else.
Arrays arrays_of(const std::string& path);

// The array of a .npy file's bytes. name: what errors call it. Copies the numbers. Throws Error
// where its header or its size is not as NumPy writes them, and on Fortran's order.
Tensor array_of_npy(std::string_view bytes, const std::string& name);

}  // namespace lockstep
