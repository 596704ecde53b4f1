#include "src/session/process.h"

#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>

#include "kernels/base/sentence.h"
#include "src/weights/mapped_watch.h"

namespace lockstep {
namespace {

// A descriptor that the caller closed would be given to the next file that is opened, and what is
// printed would go into it. Each is opened so that its use fails, as it did: a result that reached
// nobody is trouble.
void open_standard_descriptors() {
  for (const int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    if (fcntl(descriptor, F_GETFD) == -1)
      open("/dev/null", descriptor == STDIN_FILENO ? O_WRONLY : O_RDONLY);
}

}  // namespace

void prepare_process() {
  open_standard_descriptors();
  signal(SIGXFSZ, SIG_IGN);  // a file that may not grow is a write that fails, with its sentence
  watch_mapped_files();
  tell_lack_of_memory();
}

// Two things can only be told before a process begins: by starting again. OpenMP's threads
// (LibTorch's and oneDNN's) spin while they wait, which costs tenfold as soon as another process
// shares the cores. And the system clears new memory 4 KiB at a time unless it is asked for huge
// pages (glibc 2.35 on; elsewhere nothing changes), which is a third of the time of judging a long
// prompt: all that two models and an engine show of it is kept.
void prepare_to_compute(char** argv) {
  const auto told = [](const char* name) { return std::getenv(name) != nullptr; };
  if (told("OMP_WAIT_POLICY") && told("GLIBC_TUNABLES")) return;
  setenv("OMP_WAIT_POLICY", "passive", /*overwrite=*/0);
  setenv("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1", /*overwrite=*/0);
  execv("/proc/self/exe", argv);  // returns only when it cannot: then it is slow, not wrong
}

}  // namespace lockstep
