#include "src/weights/mapped_file.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "kernels/base/check.h"
#include "kernels/files/text.h"

namespace lockstep {

MappedFile::MappedFile(const std::string& path) {
  const InputFile file(path);
  const size_t size = file.size();
  check(size > 0, "\"{}\" is empty; fetch the file again", path);
  void* memory = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.descriptor(), 0);
  check(memory != MAP_FAILED, "{} bytes of \"{}\" cannot be mapped into memory ({}); free some",
        size, path, std::strerror(errno));
  memory_ = std::shared_ptr<void>(memory, [size](void* mapped) { ::munmap(mapped, size); });
  bytes_ = {static_cast<const uint8_t*>(memory), size};
}

}  // namespace lockstep
