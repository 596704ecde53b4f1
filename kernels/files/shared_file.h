#pragma once

#include <cstdint>
#include <string>

namespace lockstep {

// A file that is there already, into which several threads write, each its own part.
class SharedFile {
 public:
  explicit SharedFile(const std::string& path);  // throws Error when it cannot be written
  ~SharedFile();
  SharedFile(const SharedFile&) = delete;
  SharedFile& operator=(const SharedFile&) = delete;

  // Puts bytes at their place, which may be behind the end: then the file grows. They are with the
  // system on return. Throws Error when the disk is full or the write fails.
  void write(const void* from, int64_t bytes, int64_t at) const;
  // Whether threads that write at a time are faster than one, as in memory where the system can map
  // what it has room for: else they wait for each other.
  bool gains_by_threads() const { return in_memory_; }

 private:
  bool write_mapped(const char* from, int64_t bytes, int64_t at) const;

  std::string path_;
  int file_ = -1;
  bool in_memory_ = false;  // the file system
};

}  // namespace lockstep
