// A file system lets one thread at a time write into a file, which is as fast as that thread
// copies. Where the file system is memory, its pages can be mapped instead, and threads fill them
// beside each other. A disk takes the first way: pages that are written through a mapping cost it
// more.
#include "kernels/files/shared_file.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "kernels/files/disk.h"

namespace lockstep {
namespace {

constexpr int64_t kMapped = int64_t{1} << 20;  // bytes that are worth a mapping
constexpr int64_t kStep = int64_t{1} << 20;    // that are cleared and filled while in a cache
// MADV_POPULATE_WRITE, which the C library's headers have later than the system does.
constexpr int kPopulateWrite = 23;

}  // namespace

SharedFile::SharedFile(const std::string& path)
    : path_(path), file_(::open(path.c_str(), O_RDWR | O_CLOEXEC)) {
  if (file_ < 0) fail_writing(path_);
  struct statfs on {};
  in_memory_ = ::fstatfs(file_, &on) == 0 && on.f_type == TMPFS_MAGIC;
}

SharedFile::~SharedFile() {
  if (file_ >= 0) ::close(file_);
}

void SharedFile::write(const void* from, int64_t bytes, int64_t at) const {
  const char* next = static_cast<const char*>(from);
  if (in_memory_ && bytes >= kMapped && write_mapped(next, bytes, at)) return;
  while (bytes > 0) {
    const ssize_t written = ::pwrite(file_, next, bytes, at);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail_writing(path_);
    next += written, at += written, bytes -= written;
  }
}

// Returns false where that did not work, as where there is no room or the system is too old: an
// ordinary write then says why, or works.
bool SharedFile::write_mapped(const char* from, int64_t bytes, int64_t at) const {
  // Its last byte makes the file long enough, and never shorter than another thread made it.
  if (::pwrite(file_, from + bytes - 1, 1, at + bytes - 1) != 1) return false;
  const int64_t page = ::sysconf(_SC_PAGESIZE), front = at % page, mapped = front + bytes;
  void* const map = ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_SHARED, file_, at - front);
  if (map == MAP_FAILED) return false;
  char* const to = static_cast<char*>(map);
  bool whole = true;
  for (int64_t begin = 0; whole && begin < mapped; begin += kStep) {
    const int64_t end = std::min(begin + kStep, mapped);
    // Pages that are not asked for first come with a signal where there is no room for them.
    whole = ::madvise(to + begin, end - begin, kPopulateWrite) == 0;
    const int64_t first = std::max(begin, front);
    if (whole) std::memcpy(to + first, from + first - front, end - first);
  }
  ::munmap(map, mapped);
  return whole;
}

}  // namespace lockstep
