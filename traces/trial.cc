// A file that another program made is first read by a child process, with limits on memory and time
// in proportion to the file: HDF5 crashes on some damaged files, and takes any memory that they
// claim. The child says by its exit status whether reading works; only then does this process read.
#include "traces/trial.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <fstream>

#include "kernels/base/check.h"

namespace lockstep {
namespace {

constexpr rlim_t kFreeBytes = rlim_t{256} << 20, kPerByte = 64, kBytesPerSecond = 1 << 20;
constexpr int kThrew = 3;  // the exit status of a trial whose reading threw

// AddressSanitizer reserves more address space than any limit would leave.
#ifdef __SANITIZE_ADDRESS__
constexpr bool kAddressesAreMemory = false;
#elif defined(__has_feature)
constexpr bool kAddressesAreMemory = !__has_feature(address_sanitizer);
#else
constexpr bool kAddressesAreMemory = true;
#endif

// A limit is only ever lowered: one that the user set may be lower already.
void limit(__rlimit_resource_t what, rlim_t most) {
  rlimit now{};
  if (::getrlimit(what, &now) != 0 || now.rlim_cur <= most) return;
  now.rlim_cur = most;
  ::setrlimit(what, &now);
}

rlim_t bytes_of_addresses() {
  rlim_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * ::sysconf(_SC_PAGESIZE);
}

// Libraries say on stderr how they crash, and sanitizers at length.
void be_silent() {
  const int nowhere = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  if (nowhere < 0) return;
  ::dup2(nowhere, STDOUT_FILENO);
  ::dup2(nowhere, STDERR_FILENO);
}

// Handlers of this process (a plugin guard's, say) would report the child's crash as its own.
void confine(rlim_t file_bytes) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGXCPU})
    ::signal(signal, SIG_DFL);
  limit(RLIMIT_CORE, 0);
  limit(RLIMIT_CPU, 2 + file_bytes / kBytesPerSecond);
  const rlim_t now = bytes_of_addresses();
  if (kAddressesAreMemory && now > 0) limit(RLIMIT_AS, now + kFreeBytes + kPerByte * file_bytes);
}

// Ends the process, without what it would do at its end as this one's copy.
[[noreturn]] void run(const std::string& path, const std::function<void()>& reading, int to) {
  std::string sentence;
  try {
    be_silent();
    confine(std::filesystem::file_size(path));
    reading();
    ::_exit(0);
  } catch (const Error& error) {
    sentence = error.what();
  } catch (const std::bad_alloc&) {
    sentence = path + ": wants more memory than any file of its size: the file is damaged";
  } catch (...) {
    ::abort();
  }
  const ssize_t written = ::write(to, sentence.data(), sentence.size());  // a pipe holds them
  ::_exit(written == std::ssize(sentence) ? kThrew : 1);
}

std::string all_of(int from) {
  std::string text;
  std::array<char, 1024> part{};
  for (;;) {
    const ssize_t got = ::read(from, part.data(), part.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return text;
    text.append(part.data(), got);
  }
}

}  // namespace

void try_reading(const std::string& path, const std::function<void()>& reading) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return;
  const pid_t trial = ::fork();
  if (trial == 0) run(path, reading, ends[1]);
  ::close(ends[1]);
  // The pipe is read to its end before the child is waited for, so that neither waits for the
  // other.
  const std::string sentence = trial < 0 ? "" : all_of(ends[0]);
  ::close(ends[0]);
  int status = 0;
  if (trial < 0) return;
  while (::waitpid(trial, &status, 0) < 0)
    if (errno != EINTR) return;
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return;
  check(!WIFEXITED(status) || WEXITSTATUS(status) != kThrew, "{}", sentence);
  check(!WIFSIGNALED(status) || WTERMSIG(status) != SIGXCPU,
        "{}: reading it did not end: the file is damaged or was forged", path);
  fail("{}: HDF5's library crashes as it reads it: the file is damaged or was forged", path);
}

}  // namespace lockstep
