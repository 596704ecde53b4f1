// Text files of others, read whole and with bounds.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace lockstep {

// A file that is open for reading, closed with this object.
class InputFile {
 public:
  // Throws Error unless `path` is a regular file that can be read: a folder has no text, a device
  // may have no end, and a pipe may wait for ever. A pipe or a terminal that this process was given
  // is read all the same: /dev/stdin, /dev/fd/N.
  explicit InputFile(const std::string& path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  // It belongs to this object. read() moves its place.
  int descriptor() const { return descriptor_; }
  size_t size() const { return size_; }  // in bytes; 0 where the system does not know it
  bool begins_with(std::string_view bytes) const;
  // Reads to the end. Throws Error for more than `most` bytes, and where reading fails.
  std::string read(size_t most) const;

 private:
  std::string path_;
  int descriptor_ = -1;
  size_t size_ = 0;
};

// The same of a path, in one call.
std::string read_text(const std::string& path, size_t most);

}  // namespace lockstep
