// The user's Python runs in a process of its own, so that neither its crash nor its interpreter's
// state is this process's.
//
//   lines   a socket: one line asks for a call, one line answers
//   memory  a file of memory that both map: tensors go through it without a copy more
//   said    what the program printed, shown when it fails
//   program the text of python_ops.py, from memory
//
// A SIGINT while a function runs is kept until the function has said where it was. Where it came
// too late for that, it ends the command as it does at any other time.
#include "kernels/plugin/python_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <sstream>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/printable.h"
#include "kernels/plugin/python_program.h"

namespace lockstep {
namespace {

constexpr int kLines = 3, kMemory = 4, kSaid = 5, kProgram = 6;  // files of the process
constexpr int kPollMilliseconds = 100;
constexpr size_t kMostSaid = 300;  // bytes of what a function says of its failure
constexpr int kPatience = 10;      // polls that an interrupted function has for saying where it was

constinit std::atomic<bool> interrupted = false;

// A guard: while it lives a SIGINT is kept, and does not end this process without a word.
class Interruptible {
 public:
  Interruptible() {
    interrupted = false;
    struct sigaction ours = {};
    ours.sa_handler = [](int) { interrupted = true; };
    sigemptyset(&ours.sa_mask);
    sigaction(SIGINT, &ours, &before_);
  }
  ~Interruptible() { sigaction(SIGINT, &before_, nullptr); }
  Interruptible(const Interruptible&) = delete;
  Interruptible& operator=(const Interruptible&) = delete;

 private:
  struct sigaction before_ = {};
};

// A file of memory, closed in every process that is started but where it is handed on.
int memory_file(const char* name) {
  const int file = memfd_create(name, MFD_CLOEXEC);
  check(file >= 0, "--ops wants memory to share with a Python, and there is none: {}",
        std::strerror(errno));
  return file;
}

int program_file() {
  const int file = memory_file("lockstep-ops.py");
  const ssize_t size = kPythonProgram.size();
  const bool whole = write(file, kPythonProgram.data(), kPythonProgram.size()) == size;
  check(whole, "--ops wants memory for the program of its Python, and there is none: {}",
        std::strerror(errno));
  return file;
}

// A copy of the file above all numbers that the process wants, so that none overwrites another.
int above(int file) { return fcntl(file, F_DUPFD_CLOEXEC, 100); }

}  // namespace

PythonProcess::PythonProcess(std::string path, Device device)
    : path_(std::move(path)), file_(std::filesystem::absolute(path_).lexically_normal().string()) {
  const bool readable = access(path_.c_str(), R_OK) == 0;
  check(readable, "--ops wants a library or a Python file of ops, and {} cannot be read: {}", path_,
        std::strerror(errno));
  const char* named = std::getenv("LOCKSTEP_PYTHON");
  python_ = named != nullptr && *named != '\0' ? named : "python3";
  try {
    start(device.kind == DeviceKind::cpu ? "cpu" : fmt::format("cuda:{}", device.index));
    std::istringstream words(answer(path_));
    for (std::string name; words >> name;) functions_.push_back(name);
  } catch (...) {
    end();
    throw;
  }
}

PythonProcess::~PythonProcess() { end(); }

void PythonProcess::end() {
  // It holds nothing that a quiet end would save.
  if (process_ > 0) {
    kill(process_, SIGKILL);
    waitpid(process_, nullptr, 0);
  }
  for (const int file : {lines_, memory_, said_})
    if (file >= 0) close(file);
  if (!mapped_.empty()) munmap(mapped_.data(), mapped_.size());
}

void PythonProcess::start(const std::string& device) {
  int ends[2];
  const bool paired = socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0;
  check(paired, "--ops wants a socket to a Python, and there is none: {}", std::strerror(errno));
  lines_ = ends[0];
  memory_ = memory_file("lockstep-tensors");
  said_ = memory_file("lockstep-said");
  const int program = program_file();
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  const std::array<std::array<int, 2>, 4> files = {{{above(ends[1]), kLines},
                                                    {above(memory_), kMemory},
                                                    {above(said_), kSaid},
                                                    {above(program), kProgram}}};
  for (const auto& [from, to] : files) posix_spawn_file_actions_adddup2(&actions, from, to);
  // A Ctrl-C is for the command alone, which hands it on.
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  std::array<std::string, 5> words = {python_, "/proc/self/fd/6", path_, file_, device};
  std::array<char*, words.size() + 1> arguments = {};
  std::ranges::transform(words, arguments.begin(), [](std::string& word) { return word.data(); });
  const int trouble =
      posix_spawnp(&process_, python_.c_str(), &actions, &attributes, arguments.data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  for (const auto& pair : files) close(pair[0]);
  for (const int file : {ends[1], program}) close(file);
  if (trouble == 0) return;
  process_ = -1;
  fail(
      "--ops {} wants a Python, and {} cannot be run: {}; put one that has torch into the PATH, or "
      "its path into LOCKSTEP_PYTHON",
      path_, python_, std::strerror(trouble));
}

std::span<uint8_t> PythonProcess::memory(size_t bytes) {
  if (bytes <= mapped_.size()) return mapped_;
  if (!mapped_.empty()) munmap(mapped_.data(), mapped_.size());
  constexpr size_t kPage = 1 << 16;
  // A quarter more than is wanted, so that calls that grow a little do not map anew each time.
  const size_t size = (bytes + bytes / 4 + kPage - 1) / kPage * kPage;
  mapped_ = {};
  void* at = ftruncate(memory_, size) == 0
                 ? mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, memory_, 0)
                 : MAP_FAILED;
  check(at != MAP_FAILED, "--ops {} wants {} bytes of memory for the tensors of a call: {}", path_,
        size, std::strerror(errno));
  mapped_ = {static_cast<uint8_t*>(at), size};
  return mapped_;
}

void PythonProcess::ask(const std::string& who, const std::string& line) {
  const std::string text = line + '\n';
  for (size_t sent = 0; sent < text.size();) {
    const ssize_t count = send(lines_, text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail_ended(who);
    sent += count;
  }
  answer(who);
}

// Returns when more was read, when a signal came and when some time went by.
void PythonProcess::await_lines(const std::string& who) {
  pollfd waited = {lines_, POLLIN, 0};
  if (poll(&waited, 1, kPollMilliseconds) <= 0) return;
  std::array<char, 4096> some;
  const ssize_t count = recv(lines_, some.data(), some.size(), 0);
  if (count < 0 && errno == EINTR) return;
  if (count <= 0) fail_ended(who);
  read_.append(some.data(), count);
}

std::string PythonProcess::next_line(const std::string& who) {
  const Interruptible guard;
  for (int polls = 0; read_.find('\n') == read_.npos;) {
    await_lines(who);
    if (!interrupted) continue;
    if (polls++ == 0) kill(process_, SIGINT);
    if (polls > kPatience) fail_interrupted(who);
  }
  std::string line = read_.substr(0, read_.find('\n'));
  read_.erase(0, line.size() + 1);
  return line;
}

// The words after `done`.
std::string PythonProcess::answer(const std::string& who) {
  const std::string line = next_line(who);
  constexpr std::string_view kDone = "done", kFailed = "failed ";
  if (line.starts_with(kFailed))
    fail("{} failed: {}", who, front_of(line.substr(kFailed.size()), kMostSaid));
  // The function did not see it: it had ended, or takes no notice.
  if (interrupted) raise(SIGINT);
  return line.substr(std::min(kDone.size(), line.size()));
}

void PythonProcess::fail_interrupted(const std::string& who) {
  fail("{} was interrupted, and does not come back: its Python process was killed", who);
}

// The place that faulthandler wrote: "mine.py:7: ", or nothing.
std::string PythonProcess::place_of_crash() const {
  std::array<char, 16384> said;
  const ssize_t size = pread(said_, said.data(), said.size(), 0);
  const std::string_view text(said.data(), std::max<ssize_t>(size, 0));
  const std::string file = fmt::format("File \"{}\", line ", file_);
  const size_t at = text.find(file);
  if (at == text.npos) return "";
  const std::string_view line = text.substr(at + file.size());
  return fmt::format("{}:{}: ", path_, line.substr(0, line.find_first_not_of("0123456789")));
}

void PythonProcess::fail_ended(const std::string& who) {
  int status = 0;
  // -1 keeps the destructor from killing a process that has this number later.
  const int ended = std::exchange(process_, -1);
  kill(ended, SIGKILL);  // no effect on one that ended: its status is its own
  waitpid(ended, &status, 0);
  if (WIFSIGNALED(status))
    fail("{} crashed: {}its Python process was ended by signal {}, {}", who, place_of_crash(),
         WTERMSIG(status), strsignal(WTERMSIG(status)));
  fail(
      "{} ended its Python process with status {}, as os._exit does: raise an error that says "
      "what went wrong",
      who, WEXITSTATUS(status));
}

}  // namespace lockstep
