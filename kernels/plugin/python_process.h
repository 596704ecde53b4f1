#pragma once

#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/tensor.h"

namespace lockstep {

// A python3 of the user's in a process of its own (python_ops.py runs there), which has the
// functions of one file and calls them on tensors in memory that both share. A process, because
// whatever a function does to it ends as a sentence here, and because LibTorch of the reference and
// the torch of that Python, which are rarely of one version, could not be loaded into one.
//
// Lines go to and fro on a socket, words between spaces. `done WORD...` or `failed SENTENCE`
// answers each; the first answer names what functions there are. `use OP...` wants torch and the
// right parameters, `call OP BYTES ARGUMENT...` calls one: BYTES is the size of the memory, and an
// argument is `tensor:DTYPE/OFFSET/EXTENT,...`, `out:...`, which has guards beside it, `none`,
// `cache`, `batch` and `layer` (its weights) with their tensors after them, `list:COUNT` likewise,
// `float:`, `int:`, `bool:`.
class PythonProcess {
 public:
  // Starts the python3 of the PATH, or the one that LOCKSTEP_PYTHON names, which reads the file at
  // `path`. It dies when the thread that made it does. Throws Error when either cannot be done.
  PythonProcess(std::string path, Device device);
  ~PythonProcess();
  PythonProcess(const PythonProcess&) = delete;
  PythonProcess& operator=(const PythonProcess&) = delete;

  const std::string& path() const { return path_; }
  // By name: all that the file defines and names without a leading underscore, and what it imports
  // under the name of an op.
  const std::vector<std::string>& functions() const { return functions_; }

  // The memory that both share, of `bytes` at least. What was there is lost where it grows.
  std::span<uint8_t> memory(size_t bytes);
  // Sends the line and waits for its answer. Throws Error, which begins with `who`, when that is
  // that it failed, when the process ended, and when a SIGINT came first, which it gets too. One
  // that came as the call ended is raised again, so that it does what it does elsewhere.
  void ask(const std::string& who, const std::string& line);
  // Who calls holds it from the first byte that is written to the memory to the last that is read.
  std::mutex& mutex() { return mutex_; }

 private:
  void start(const std::string& device);
  void end();
  std::string answer(const std::string& who);
  std::string next_line(const std::string& who);
  void await_lines(const std::string& who);
  [[noreturn]] void fail_ended(const std::string& who);
  [[noreturn]] void fail_interrupted(const std::string& who);
  std::string place_of_crash() const;

  std::string path_, file_;  // as it was named, and absolute
  std::string python_, read_;
  std::vector<std::string> functions_;
  std::mutex mutex_;
  int process_ = -1;
  int lines_ = -1, memory_ = -1, said_ = -1;  // files
  std::span<uint8_t> mapped_;
};

}  // namespace lockstep
