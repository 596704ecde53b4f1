#include "traces/disk.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "kernels/base/check.h"

namespace lockstep {
namespace {

void write_all(int file, const std::string& path, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(file, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail_system(path, "written");
    text.remove_prefix(static_cast<size_t>(written));
  }
}

std::string folder_of(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path();
  return folder.empty() ? "." : folder;
}

}  // namespace

void check_readable(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0 || ::access(path.c_str(), R_OK) != 0)
    fail_system(path, "read");
  check(!S_ISDIR(status.st_mode), "{}: a file was wanted, found a folder", path);
}

std::string read_file(const std::string& path) {
  check_readable(path);
  std::ifstream file(path, std::ios::binary);
  std::string text;
  std::array<char, 1 << 16> block;
  while (file.read(block.data(), block.size()), file.gcount() > 0)
    text.append(block.data(), static_cast<size_t>(file.gcount()));
  // Where reading failed, what was read so far is no file.
  if (file.bad() || !file.eof()) fail_system(path, "read to its end");
  return text;
}

void write_file(const std::string& path, std::string_view text) {
  const std::string part = path + ".part";
  const int file = ::open(part.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (file < 0) fail_system(path, "written");
  try {
    write_all(file, path, text);
    ::close(file);
    publish(part, path);
  } catch (const Error&) {
    discard(part);
    throw;
  }
}

void publish(const std::string& part, const std::string& path) {
  sync(part);
  if (::rename(part.c_str(), path.c_str()) != 0) fail_system(path, "written");
  sync(folder_of(path));
}

void sync(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) fail_system(path, "written");
  const int done = ::fsync(file);
  const int reason = errno;
  ::close(file);
  errno = reason;
  // Some file systems cannot sync a folder and say EINVAL: their names need none.
  if (done != 0 && reason != EINVAL) fail_system(path, "written");
}

void discard(const std::string& path) noexcept {
  // An open file keeps its blocks after unlink; cut to nothing it has none.
  const int done = ::truncate(path.c_str(), 0);
  (void)done;
  ::unlink(path.c_str());
}

bool is_disk_full(std::string_view message) {
  return message.find(std::strerror(ENOSPC)) != std::string_view::npos ||
         message.find(std::strerror(EDQUOT)) != std::string_view::npos;
}

void fail_disk_full(const std::string& path) {
  struct statvfs space {};
  ::statvfs(folder_of(path).c_str(), &space);
  fail(
      "{}: the disk is full, {:.1f} MB are left there: make room, choose another --trace, or keep "
      "less (--keep, --points, --layers)",
      path, static_cast<double>(space.f_bavail * space.f_frsize) / 1e6);
}

void fail_system(const std::string& path, const char* wanted) {
  const int reason = errno;
  if (reason == ENOSPC || reason == EDQUOT) fail_disk_full(path);
  fail("{}: cannot be {}: {}", path, wanted, std::strerror(reason));
}

AppendFile::AppendFile(const std::string& path)
    : path_(path),
      file_(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666)) {
  if (file_ < 0) fail_system(path_, "written");
}

AppendFile::~AppendFile() {
  if (file_ >= 0) ::close(file_);
}

void AppendFile::append(std::string_view text) { write_all(file_, path_, text); }

void AppendFile::sync() {
  if (::fdatasync(file_) != 0) fail_system(path_, "written");
}

}  // namespace lockstep
