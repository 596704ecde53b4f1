// A file appears under its name whole or not at all: it is written as NAME.XXXXXX.part beside its
// place and renamed. With Durable::yes the bytes are on the disk before the name is, and the name
// before the call returns, so that a machine that loses power leaves the old file or the new one.
#include "kernels/files/disk.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/printable.h"

namespace lockstep {
namespace {

// Writes all of it; a signal in between means nothing.
void write_all(int file, const std::string& path, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(file, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail_writing(path);
    text.remove_prefix(written);
  }
}

// Whether a library's message holds the system's words for an error.
bool says(std::string_view message, int reason) {
  return message.find(std::strerror(reason)) != std::string_view::npos;
}

std::string folder_of(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path();
  return folder.empty() ? "." : folder;
}

// The access that the user's umask leaves. It can only be read by setting it: for a moment to one
// under which another thread's file would be more private, not less.
mode_t mode_of_new_files() {
  const mode_t mask = ::umask(077);
  ::umask(mask);
  return 0666 & ~mask;
}

constexpr std::string_view kPart = ".part", kRest = ".XXXXXX.part";

}  // namespace

// A new file lies beside its place under a name of its own, so that publishing it is a rename
// within one file system.
NewFile::NewFile(const std::string& path) : path_(path) {
  const std::filesystem::path final(path);
  // A name has at most 255 bytes: one that leaves no room for the rest is cut.
  const std::string front = front_of(final.filename().string(), 255 - kRest.size());
  name_ = final.parent_path() / (front + std::string(kRest));
  file_ = ::mkostemps(name_.data(), kPart.size(), O_CLOEXEC);
  if (file_ < 0) fail_writing(path_);
}

NewFile::~NewFile() {
  if (file_ < 0) return;
  // A library may hold it open yet, and an open file keeps its blocks after unlink: cut to nothing
  // it has none.
  const int done = ::ftruncate(file_, 0);
  (void)done;
  ::unlink(name_.c_str());
  ::close(file_);
}

void NewFile::write(std::string_view text) { write_all(file_, path_, text); }

// Contents reach the disk before the name does, and the name before this returns: after a loss of
// power there is the old file or the new one.
void NewFile::publish(Durable durable) {
  if (::fchmod(file_, mode_of_new_files()) != 0) fail_writing(path_);
  if (durable == Durable::yes && ::fsync(file_) != 0) fail_writing(path_);
  if (::rename(name_.c_str(), path_.c_str()) != 0) fail_writing(path_);
  ::close(std::exchange(file_, -1));
  if (durable == Durable::yes) sync(folder_of(path_));
}

void replace_file(const std::string& path, std::string_view text, Durable durable) {
  NewFile file(path);
  file.write(text);
  file.publish(durable);
}

// The file up to `begin` is not touched; if writing fails it ends there.
void replace_end(const std::string& path, size_t begin, std::string_view text) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (file < 0) fail_writing(path);
  const off_t at = begin;
  try {
    if (::ftruncate(file, at) != 0 || ::lseek(file, at, SEEK_SET) != at) fail_writing(path);
    write_all(file, path, text);
    if (::fsync(file) != 0) fail_writing(path);
  } catch (const Error&) {
    const int done = ::ftruncate(file, at);
    (void)done;
    ::close(file);
    throw;
  }
  ::close(file);
}

void sync(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) fail_writing(path);
  const int done = ::fsync(file);
  const int reason = errno;
  ::close(file);
  errno = reason;
  // Some file systems cannot sync a folder and say EINVAL: their names need none.
  if (done != 0 && reason != EINVAL) fail_writing(path);
}

bool is_out_of_room(std::string_view message) {
  return std::ranges::any_of(std::array{ENOSPC, EDQUOT, EFBIG},
                             [&](int reason) { return says(message, reason); });
}

// Libraries report a full disk in words of their own: the reason is found in the message.
void fail_out_of_room(const std::string& path, std::string_view message) {
  check(!says(message, EFBIG),
        "{}: grew larger than this process may make a file: raise the limit (ulimit -f)", path);
  struct statvfs space {};
  ::statvfs(folder_of(path).c_str(), &space);
  fail(
      "{}: the disk is full, {:.1f} MB are left there: make room, write elsewhere, or let a trace "
      "keep less (--keep, --points, --layers)",
      path, static_cast<double>(space.f_bavail * space.f_frsize) / 1e6);
}

void fail_writing(const std::string& path) {
  const std::string reason = std::strerror(errno);
  if (is_out_of_room(reason)) fail_out_of_room(path, reason);
  fail("{} cannot be written: {}; name a file in a folder that exists and has room", path, reason);
}

// O_APPEND: each write goes to the end as it is then, whatever others wrote.
AppendFile::AppendFile(const std::string& path, bool may_exist)
    : path_(path),
      file_(::open(path.c_str(),
                   O_WRONLY | O_CREAT | (may_exist ? 0 : O_EXCL) | O_APPEND | O_CLOEXEC, 0666)) {
  if (file_ < 0) fail_writing(path_);
}

AppendFile::~AppendFile() {
  if (file_ >= 0) ::close(file_);
}

void AppendFile::append(std::string_view text) { write_all(file_, path_, text); }

void AppendFile::sync() {
  if (::fdatasync(file_) != 0) fail_writing(path_);
}

ScratchFolder::ScratchFolder() : path_(std::filesystem::temp_directory_path() / "lockstep-XXXXXX") {
  check(::mkdtemp(path_.data()) != nullptr,
        "a temporary folder cannot be made at \"{}\" ({}); set TMPDIR to a folder with room", path_,
        std::strerror(errno));
}

ScratchFolder::~ScratchFolder() {
  std::error_code ignored;  // a destructor has nobody to tell
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace lockstep
