// The table of commands, the only catch, the only exit.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <string>
#include <string_view>

#include "kernels/base/check.h"
#include "kernels/base/nearest.h"
#include "src/report/output.h"
#include "src/session/build_info.h"
#include "tools/commands.h"

namespace lockstep {
namespace {

struct Command {
  std::string_view name;
  std::string_view help;
  int (*run)(Args args);
};

constexpr auto kCommands = std::to_array<Command>({
    {"run", "run the engine beside the reference and judge every op (start here)", run_command},
    {"judge", "judge a saved trace: each op against its exact result", judge_command},
    {"calibrate", "learn from clean runs how tight the limits of this engine can be",
     calibrate_command},
    {"diff", "compare two traces and name the first place where they differ", diff_command},
    {"inspect", "show what is in a trace: provenance, digests, numbers", inspect_command},
    {"selftest", "measure whether the judge can be trusted on a model", selftest_command},
    {"generate", "run the engine alone and print the text", generate_command},
    {"model", "show what was understood of a checkpoint", model_command},
    {"bench", "measure the engine as shares of what this machine can give", bench_command},
    {"points", "list the places in a model where a tensor can be seen", points_command},
    {"faults", "list the bugs that --fault can seed", faults_command},
});

std::string usage() {
  std::string text =
      "lockstep finds the first op of a language model that computes a wrong number.\n"
      "It runs a paged-attention Qwen engine beside a LibTorch reference, looks at every op of "
      "every\n"
      "layer, and says which op introduced an error, by how much, and what else is wrong.\n\n"
      "Usage: lockstep COMMAND [OPTIONS]\n\nCommands:\n";
  for (const Command& c : kCommands) text += fmt::format("  {:<10}{}\n", c.name, c.help);
  text +=
      "\nExamples:\n"
      "  lockstep run --model DIR --prompt \"To be, or not\"             is the engine right?\n"
      "  lockstep run --model DIR --prompt \"To be\" --trace a.trace     the same, kept in a "
      "trace\n"
      "  lockstep diff before.trace after.trace                        did the numbers change?\n"
      "  lockstep inspect a.trace --point attn.q --layer 2             what was computed there?\n\n"
      "DIR is a checkpoint as Hugging Face publishes it: config.json, *.safetensors, "
      "tokenizer.json.\n"
      "Exit status: 0 alike, 1 different, 2 trouble. `lockstep COMMAND --help` explains a "
      "command.\n";
  return text;
}

int dispatch(Args args) {
  if (args.empty()) {
    std::fputs(usage().c_str(), stderr);
    return 2;
  }
  const std::string_view name = args[0];
  if (name == "--help" || name == "-h" || name == "help") {
    print(usage());
    return 0;
  }
  if (name == "--version") {
    print(fmt::format("lockstep {}\n", kToolVersion));
    return 0;
  }
  for (const Command& c : kCommands)
    if (c.name == name) return c.run(args.subspan(1));
  std::array<std::string_view, kCommands.size()> names;
  std::ranges::transform(kCommands, names.begin(), &Command::name);
  fail("lockstep has no command \"{}\"; did you mean \"{}\"? `lockstep --help` lists them", name,
       nearest(name, names));
}

// Two things can only be told before a process begins: by starting again. OpenMP's threads
// (LibTorch's and oneDNN's) spin while they wait, which costs tenfold as soon as another process
// shares the cores. And the system clears new memory 4 KiB at a time unless it is asked for huge
// pages (glibc 2.35 on; elsewhere nothing changes), which is a third of the time of judging a long
// prompt: all that two models and an engine show of it is kept.
void start_again_prepared(char** argv) {
  const auto told = [](const char* name) { return std::getenv(name) != nullptr; };
  if (told("OMP_WAIT_POLICY") && told("GLIBC_TUNABLES")) return;
  setenv("OMP_WAIT_POLICY", "passive", /*overwrite=*/0);
  setenv("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1", /*overwrite=*/0);
  execv("/proc/self/exe", argv);  // returns only when it cannot: then it is slow, not wrong
}

// A descriptor that the caller closed would be given to the next file that is opened, and what is
// printed would go into it. Each is opened so that its use fails, as it did: a result that reached
// nobody is trouble.
void open_standard_descriptors() {
  for (const int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    if (fcntl(descriptor, F_GETFD) == -1)
      open("/dev/null", descriptor == STDIN_FILENO ? O_WRONLY : O_RDONLY);
}

// Whether or not there is somebody to tell. A library's exception is told as one of ours is.
int trouble(const std::string& sentence) {
  const std::string line = fmt::format("error: {}\n", Error(sentence).what());
  std::fwrite(line.data(), 1, line.size(), stderr);
  return 2;
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) try {
  lockstep::open_standard_descriptors();
  signal(SIGXFSZ, SIG_IGN);  // a file that may not grow is a write that fails, with its sentence
  lockstep::start_again_prepared(argv);
  return lockstep::dispatch(lockstep::Args(argv, static_cast<size_t>(argc)).subspan(1));
} catch (const std::bad_alloc&) {
  return lockstep::trouble(
      "there is not enough memory for this; ask for fewer --pages, shorter prompts or fewer "
      "requests");
} catch (const std::exception& error) {
  return lockstep::trouble(error.what());
}
