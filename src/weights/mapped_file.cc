// The list of mapped files is walked in a signal handler, which may neither lock nor allocate: it
// is linked by atomics, entries are prepended and never freed, and a mapping that ended has the
// size 0. A file is remembered before anybody can read it.
#include "src/weights/mapped_file.h"

#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "kernels/base/check.h"
#include "kernels/base/printable.h"
#include "kernels/files/text.h"
#include "src/weights/mapped_watch.h"

namespace lockstep {
namespace {

// One file that is or was mapped. A signal handler walks these, so that none is ever freed.
struct Mapped {
  std::string path;  // as it is shown
  uintptr_t begin = 0;
  std::atomic<size_t> size = 0;  // 0: not any more
  Mapped* next = nullptr;
};
constinit std::atomic<Mapped*> newest = nullptr;

// Prepends an entry for a mapping that begins now. The few bytes of it outlive the process's use of
// the file on purpose.
Mapped* remember(const std::string& path, const void* memory, size_t size) {
  auto* mapped = new Mapped{.path = shown(path), .begin = reinterpret_cast<uintptr_t>(memory)};
  mapped->size = size;
  mapped->next = newest;
  while (!newest.compare_exchange_weak(mapped->next, mapped)) {
  }
  return mapped;
}

// Writes by one call, as a handler may: no allocation, no stream.
void write_error(std::string_view path) {
  constexpr std::string_view kBefore = "error: \"";
  constexpr std::string_view kAfter =
      "\" was cut by another process while it was read: fetch the file again, and leave it as it "
      "is until this has ended\n";
  std::array<iovec, 3> parts;
  size_t i = 0;
  for (const std::string_view part : {kBefore, path, kAfter})
    parts[i++] = {const_cast<char*>(part.data()), part.size()};
  const ssize_t written = ::writev(STDERR_FILENO, parts.data(), static_cast<int>(parts.size()));
  (void)written;
}

// SIGBUS at an address within a mapped file means that the file is shorter now. Any other is a bug
// of the program and takes the way that it had.
void on_bus_error(int signal, siginfo_t* info, void*) {
  const auto at = reinterpret_cast<uintptr_t>(info->si_addr);
  for (const Mapped* mapped = newest; mapped != nullptr; mapped = mapped->next) {
    if (at < mapped->begin || at - mapped->begin >= mapped->size) continue;
    // Every thread that reads the file may come here at the same time. The first one speaks, the
    // others wait until it has ended the process.
    static constinit std::atomic<bool> spoken = false;
    while (spoken.exchange(true)) ::pause();
    write_error(mapped->path);
    ::_exit(2);
  }
  ::signal(signal, SIG_DFL);
  ::raise(signal);
}

}  // namespace

void watch_mapped_files() {
  struct sigaction action {};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO;
  ::sigaction(SIGBUS, &action, nullptr);
}

MappedFile::MappedFile(const std::string& path) {
  const InputFile file(path);
  const size_t size = file.size();
  check(size > 0, "\"{}\" is empty; fetch the file again", path);
  void* memory = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.descriptor(), 0);
  check(memory != MAP_FAILED, "{} bytes of \"{}\" cannot be mapped into memory ({}); free some",
        size, path, std::strerror(errno));
  Mapped* known = remember(path, memory, size);
  memory_ = std::shared_ptr<void>(memory, [known](void* mapped) {
    const size_t bytes = known->size.exchange(0);
    ::munmap(mapped, bytes);
  });
  bytes_ = {static_cast<const uint8_t*>(memory), size};
}

}  // namespace lockstep
