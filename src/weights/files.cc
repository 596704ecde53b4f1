#include "src/weights/files.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "kernels/base/check.h"

namespace lockstep {
namespace {

class Descriptor {
 public:
  explicit Descriptor(const std::string& path) : fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    check(fd_ >= 0, "\"{}\" cannot be opened ({}); give the path of a file that can be read", path,
          std::strerror(errno));
  }
  ~Descriptor() { ::close(fd_); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

size_t size_of_file(const Descriptor& file, const std::string& path) {
  struct stat status {};
  check(::fstat(file.get(), &status) == 0 && S_ISREG(status.st_mode),
        "\"{}\" should be a regular file and is something else; give the path of a file", path);
  return static_cast<size_t>(status.st_size);
}

}  // namespace

std::string read_text(const std::string& path) {
  const Descriptor file(path);
  std::string text(size_of_file(file, path), '\0');
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t got = ::read(file.get(), text.data() + done, text.size() - done);
    if (got < 0 && errno == EINTR) continue;
    check(got > 0, "reading \"{}\" stopped after {} of {} bytes ({}); check the disk", path, done,
          text.size(), got == 0 ? "the file became shorter" : std::strerror(errno));
    done += static_cast<size_t>(got);
  }
  return text;
}

MappedFile::MappedFile(const std::string& path) {
  const Descriptor file(path);
  const size_t size = size_of_file(file, path);
  check(size > 0, "\"{}\" is empty; fetch the file again", path);
  void* memory = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0);
  check(memory != MAP_FAILED, "{} bytes of \"{}\" cannot be mapped into memory ({}); free some",
        size, path, std::strerror(errno));
  memory_ = std::shared_ptr<void>(memory, [size](void* mapped) { ::munmap(mapped, size); });
  bytes_ = {static_cast<const uint8_t*>(memory), size};
}

}  // namespace lockstep
