// The seal of an HDF5 trace: HDF5 checks its own structures, but neither small data nor texts, and
// a damaged text can crash it. So the first 512 bytes of a file (HDF5's user block, which its
// readers skip) hold a line with the size of the file and the xxh3 of everything from some offset
// to its end.
#pragma once

#include <cstdint>
#include <string>

namespace lockstep {

inline constexpr int64_t kSealBytes = 512;

// Seals a closed file from `begin` (at least kSealBytes) to its end. Throws Error when it cannot be
// written. The file must be closed: its size is taken as it is.
void write_seal(const std::string& path, int64_t begin);
// Throws Error unless the file has a seal and is what it was when it was sealed. A kept result
// (kept_result.h) may follow that.
void check_seal(const std::string& path);
// Whether the file is HDF5 from its first byte on: another program made it, for a file of ours
// begins with its seal.
bool is_unsealed(const std::string& path);
// Bytes that the file had when it was sealed. Throws Error unless it has a seal.
int64_t sealed_bytes(const std::string& path);

}  // namespace lockstep
