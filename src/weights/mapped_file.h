// A file in memory by mmap, so that a checkpoint larger than memory can be opened and only what is
// read is loaded. A file that another process cuts meanwhile would end this one by SIGBUS: see
// mapped_watch.h.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace lockstep {

// A file's bytes, read-only, mapped while this object or a copy of it lives. Not for empty files.
// Throws Error when the file is missing, not a file, empty, or cannot be mapped.
class MappedFile {
 public:
  explicit MappedFile(const std::string& path);
  std::span<const uint8_t> bytes() const { return bytes_; }

 private:
  std::shared_ptr<void> memory_;
  std::span<const uint8_t> bytes_;
};

}  // namespace lockstep
