// Files are opened without waiting, asked what they are, and only then read: a name may be a
// folder, a pipe that nobody writes to, or a device without an end. Pipes are read only where the
// process was given them (process substitution, /dev/stdin).
#include "kernels/files/text.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "kernels/base/check.h"

namespace lockstep {
namespace {

constexpr size_t kBlock = 1 << 16;  // bytes that are read first where the size is not known

constexpr char kTooLong[] =
    "\"{}\" has more than {} bytes, and no file of its kind does: give another";

const char* kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISSOCK(mode)) return "a socket";
  return "a device";
}

// Whether the name stands for a descriptor that this process was started with.
bool was_given(const std::string& path) {
  return path == "/dev/stdin" || path.starts_with("/dev/fd/") || path.starts_with("/proc/self/fd/");
}

bool has_an_end(const std::string& path, const struct stat& status, int descriptor) {
  if (S_ISREG(status.st_mode)) return true;
  return was_given(path) && (S_ISFIFO(status.st_mode) || ::isatty(descriptor) == 1);
}

}  // namespace

// Opened without waiting: a pipe that nobody writes to would hang the process before it can be
// refused.
InputFile::InputFile(const std::string& path)
    : path_(path), descriptor_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY)) {
  check(descriptor_ >= 0, "\"{}\" cannot be opened ({}): give the path of a file that can be read",
        path, std::strerror(errno));
  struct stat status {};
  const bool known = ::fstat(descriptor_, &status) == 0;
  const bool readable = known && has_an_end(path, status, descriptor_);
  if (!readable) ::close(descriptor_);  // the destructor of what was not made does not run
  check(readable, "\"{}\" should be a regular file and is {}: give the path of a file", path,
        kind_of(status.st_mode));
  ::fcntl(descriptor_, F_SETFL, 0);  // now that opening did not wait, reading may
  size_ = S_ISREG(status.st_mode) ? status.st_size : 0;
}

InputFile::~InputFile() { ::close(descriptor_); }

bool InputFile::begins_with(std::string_view bytes) const {
  std::string begin(bytes.size(), '\0');
  const ssize_t got = ::pread(descriptor_, begin.data(), begin.size(), 0);
  return got == std::ssize(bytes) && begin == bytes;
}

std::string InputFile::read(size_t most) const {
  check(size_ <= most, kTooLong, path_, most);
  std::string text;
  size_t done = 0;
  // To the end rather than by the size, which files of /proc do not tell.
  while (true) {
    // One byte more than the size says: the end of a file is seen without a second block.
    if (text.size() == done)
      text.resize(done == 0 && size_ > 0 ? size_ + 1 : done + std::max(done, kBlock));
    const ssize_t got = ::read(descriptor_, text.data() + done, text.size() - done);
    if (got < 0 && errno == EINTR) continue;
    check(got >= 0, "\"{}\" cannot be read to its end ({}, after {} bytes): check the disk", path_,
          std::strerror(errno), done);
    if (got == 0) break;
    done += got;
    check(done <= most, kTooLong, path_, most);
  }
  text.resize(done);
  return text;
}

std::string read_text(const std::string& path, size_t most) { return InputFile(path).read(most); }

}  // namespace lockstep
