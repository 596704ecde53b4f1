// Files and folders, with errors that say what to do.
#pragma once

#include <string>
#include <string_view>

namespace lockstep {

// Throws Error when `path` is no file that can be read.
void check_readable(const std::string& path);
std::string read_file(const std::string& path);

// Replaces `path` by a file of that text: whole or not at all, and on the disk on return.
void write_file(const std::string& path, std::string_view text);

// Puts a finished file under its final name: its bytes and the name are on the disk on return.
void publish(const std::string& part, const std::string& path);
// Makes the bytes of a file, or the names in a folder, survive a power cut.
void sync(const std::string& path);

// Removes a half-written file and gives its space back, even while a library still holds it open.
void discard(const std::string& path) noexcept;

bool is_disk_full(std::string_view system_message);
// Throws Error with the file, the space that is left there, and what to do.
[[noreturn]] void fail_disk_full(const std::string& path);
// Throws Error for the system call that just failed on `path`: errno says why.
[[noreturn]] void fail_system(const std::string& path, const char* wanted);

// A file that only grows. What `append` was given is with the system on return: it survives the
// death of this process.
class AppendFile {
 public:
  explicit AppendFile(const std::string& path);  // the file must not exist
  ~AppendFile();
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;
  void append(std::string_view text);
  void sync();  // survives a power cut too

 private:
  std::string path_;
  int file_ = -1;
};

}  // namespace lockstep
