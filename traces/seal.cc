// The seal is a line at the very begin of a file: its length, and the xxh3 of its bytes from some
// place on. It is written last, when everything else is on the disk, so that a file without a whole
// seal was cut or is being written.
#include "traces/seal.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "kernels/base/check.h"
#include "kernels/files/disk.h"
#include "kernels/files/text.h"
#include "probes/digest.h"
#include "traces/kept_result.h"

namespace lockstep {
namespace {

// Fixed widths, so that sscanf has nothing to guess.
constexpr const char* kLine = "lockstep trace: {:016x} bytes, xxh3 from {:016x} on {:016x}\n";
constexpr const char* kScan = "lockstep trace: %16lx bytes, xxh3 from %16lx on %16lx\n";

// xxh3 of a file from `begin` to its end.
uint64_t hash_from(const std::string& path, uint64_t begin, uint64_t size) {
  if (begin == size) return hash_of(nullptr, 0);
  const InputFile file(path);
  // Mapped rather than read: of a large file only the part behind the seal's begin is touched.
  void* const map = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.descriptor(), 0);
  check(map != MAP_FAILED, "{}: cannot be mapped into memory ({})", path, std::strerror(errno));
  const uint64_t hash = hash_of(static_cast<const char*>(map) + begin, size - begin);
  ::munmap(map, size);
  return hash;
}

struct Seal {
  uint64_t size = 0, begin = 0, hash = 0;
};
Seal seal_of(const InputFile& file, const std::string& path) {
  std::string line(kSealBytes, '\0');
  const ssize_t got = ::pread(file.descriptor(), line.data(), line.size() - 1, 0);
  Seal seal;
  check(got > 0 && std::sscanf(line.c_str(), kScan, &seal.size, &seal.begin, &seal.hash) == 3,
        "{}: a trace was wanted, but it does not begin as one: it is of another kind or damaged",
        path);
  return seal;
}

bool only_a_result_follows(const InputFile& file, const Seal& seal) {
  std::string rest(kResultInFile.size(), '\0');
  const ssize_t got = ::pread(file.descriptor(), rest.data(), rest.size(), seal.size);
  return got >= 0 && begins_result(std::string_view(rest).substr(0, got));
}

// Writes it to the front of a file.
bool write_at_front(int file, std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const ssize_t written = ::pwrite(file, text.data() + at, text.size() - at, at);
    if (written < 0 && errno != EINTR) return false;
    at += std::max<ssize_t>(written, 0);
  }
  return true;
}

}  // namespace

void write_seal(const std::string& path, int64_t begin) {
  const uint64_t size = std::filesystem::file_size(path);
  const uint64_t from = begin;
  const std::string line = fmt::format(kLine, size, from, hash_from(path, from, size));
  const int file = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (file < 0) fail_writing(path);
  const bool whole = write_at_front(file, line);
  const int reason = errno;
  ::close(file);
  errno = reason;
  if (!whole) fail_writing(path);
}

void check_seal(const std::string& path) {
  const InputFile file(path);
  const Seal seal = seal_of(file, path);
  check(seal.size <= file.size() && seal.begin <= seal.size && only_a_result_follows(file, seal),
        "{}: it was cut or changed: it has {} bytes and was written with {}", path, file.size(),
        seal.size);
  check(hash_from(path, seal.begin, seal.size) == seal.hash,
        "{}: its index is not what was written (its xxh3 differs): the file is damaged", path);
}

bool is_unsealed(const std::string& path) {
  constexpr std::string_view kSignature = "\x89HDF\r\n\x1a\n";
  return InputFile(path).begins_with(kSignature);
}

int64_t sealed_bytes(const std::string& path) { return seal_of(InputFile(path), path).size; }

}  // namespace lockstep
