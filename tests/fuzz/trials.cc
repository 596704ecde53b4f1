// Takes the place of traces/trial.cc where libFuzzer makes inputs. There each file is tried by a
// process of its own, and a fork of what AddressSanitizer maps takes up to 90 ms. Here one process
// tries file after file, and another follows when it crashed, or after so many that what they left
// behind in HDF5's library could tell. Only what it read well is then tried by a fork too, as
// everywhere else: on some forged files the library reads memory that is not its own, and only a
// fork has the same there. Inputs that are replayed are tried as everywhere else.
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <string>
#include <utility>

#include "kernels/base/check.h"
#include "tests/fuzz/target.h"
#include "traces/trace.h"
#include "traces/trial.h"

extern "C" int H5set_free_list_limits(int, int, int, int, int, int);  // of HDF5's library

namespace lockstep {

// traces/trial.cc's try_reading, which CMakeLists.txt gives this name.
void try_by_a_fork(const std::string& path, const std::function<void()>& reading);

namespace {

constexpr int kMostTried = 500;  // by one process
// Of the processor, for one file: sound ones take 2 ms. traces/trial.cc gives 2 s and more, which
// on some forged files HDF5's library takes to no end.
constexpr suseconds_t kMostMicroseconds = 40'000;
constexpr int kAskerEnded = 77;  // the exit status of a process whose questions have ended

bool is_trial = false;  // this process tries, and starts no other

struct Tried {};  // thrown where the trial of a file ends well, for what follows it is not wanted

// A text and how it begins: '+' is read, '-' an Error that reading threw, '!' a crash.
void tell(int to, char kind, std::string text) {
  text.resize(std::min<size_t>(text.size(), 1500));
  const std::string line = kind + text + '\n';  // an Error's sentence has no end of line
  if (::write(to, line.data(), line.size()) != std::ssize(line)) ::_exit(kAskerEnded);
}

// Ends the process when it has passed; nothing: never.
void limit_time(suseconds_t microseconds) {
  const itimerval limit{.it_interval = {}, .it_value = {.tv_sec = 0, .tv_usec = microseconds}};
  ::setitimer(ITIMER_PROF, &limit, nullptr);
}

std::string line_from(int from) {
  std::string line;
  for (char one = 0;;) {
    const ssize_t got = ::read(from, &one, 1);
    if (got < 0 && errno == EINTR) continue;  // libFuzzer has a timer
    if (got != 1) return "";
    if (one == '\n') return line;
    line += one;
  }
}

// Opens the files that it is asked about, to the end of their trials.
[[noreturn]] void try_files(int questions, int answers) {
  is_trial = true;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  // Those of libFuzzer and of the sanitizers would tell of a crash as of this program's.
  for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGPROF})
    ::signal(signal, SIG_DFL);
  const rlimit none{};
  ::setrlimit(RLIMIT_CORE, &none);
  const int nowhere = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  ::dup2(nowhere, STDOUT_FILENO);
  ::dup2(nowhere, STDERR_FILENO);
  for (int i = 0; i < kMostTried; ++i) {
    const std::string path = line_from(questions);
    if (path.empty()) ::_exit(kAskerEnded);
    fuzz::allow_memory(std::filesystem::file_size(path));
    limit_time(kMostMicroseconds);
    try {
      open_trace(path);
      tell(answers, '!', "");  // it was not tried at all
    } catch (const Tried&) {
      tell(answers, '+', "");
    } catch (const Error& error) {
      tell(answers, '-', error.what());
    }
    limit_time(0);
  }
  ::_exit(0);
}

// Forks one process that tries files after another. It does nothing else, so that it stays small
// and forks fast, however much the fuzzed process has come to map.
[[noreturn]] void start_trials(int questions, int answers) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (;;) {
    const pid_t trial = ::fork();
    if (trial == 0) try_files(questions, answers);
    int status = 0;
    // No timer of libFuzzer's is inherited, and so nothing interrupts the waiting.
    if (trial < 0 || ::waitpid(trial, &status, 0) < 0) ::_exit(kAskerEnded);
    if (WIFEXITED(status) && WEXITSTATUS(status) == kAskerEnded) ::_exit(0);
    // It ended at a file that it was asked about.
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) tell(answers, '!', "");
  }
}

// The ends for asking and for being answered.
std::pair<int, int> started() {
  // Each opened file has a table of half a megabyte, which the library would give back each time.
  H5set_free_list_limits(-1, -1, -1, -1, -1, -1);
  std::array<int, 2> questions{}, answers{};
  if (::pipe2(questions.data(), O_CLOEXEC) != 0 || ::pipe2(answers.data(), O_CLOEXEC) != 0)
    fuzz::wrong("no pipe for trials");
  if (::fork() == 0) {
    ::close(questions[1]);
    ::close(answers[0]);
    start_trials(questions[0], answers[1]);
  }
  ::close(questions[0]);
  ::close(answers[1]);
  return {questions[1], answers[0]};
}

}  // namespace

void try_reading(const std::string& path, const std::function<void()>& reading) {
  if (is_trial) {
    reading();
    throw Tried{};
  }
  static const auto [ask, hear] = started();
  const std::string question = path + '\n';
  if (::write(ask, question.data(), question.size()) != std::ssize(question))
    fuzz::wrong("the process that tries files is gone");
  const std::string answer = line_from(hear);
  if (answer.empty()) fuzz::wrong("the process that tries files is gone");
  check(answer[0] != '-', "{}", answer.substr(1));
  check(answer[0] != '!', "{}: HDF5's library crashes as it reads it", path);
  // What is read now is the file, not the input that says how it is made; and what passed the trial
  // with less passes here.
  fuzz::allow_memory(std::filesystem::file_size(path));
  try_by_a_fork(path, reading);
  fuzz::allow_memory(2 * std::filesystem::file_size(path));
}

}  // namespace lockstep
