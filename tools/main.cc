// The table of commands, the only catch, the only exit.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <exception>
#include <string>
#include <string_view>

#include "kernels/base/check.h"
#include "kernels/base/nearest.h"
#include "kernels/base/printable.h"
#include "kernels/base/sentence.h"
#include "src/help/help_text.h"
#include "src/report/output.h"
#include "src/screen/screen.h"
#include "src/session/process.h"
#include "src/session/provenance.h"
#include "tools/commands.h"

namespace lockstep {
namespace {

// Neighbours of one situation stand under one heading in the help.
constexpr auto kCommands = std::to_array<Command>({
    {"run", "Is the engine right?", "run engine beside reference and judge every op (start here)",
     run_command, /*computes=*/true},
    {"judge", "Is the engine right?", "judge a saved trace: each op against its exact result",
     judge_command, /*computes=*/true},
    {"ops", "Is the engine right?", "try each op of your library alone, over a grid of shapes",
     ops_command, /*computes=*/true},
    {"check", "What changed, and what was computed?",
     "hold a run to a kept baseline, for continuous integration", check_command, /*computes=*/true},
    {"diff", "What changed, and what was computed?",
     "compare two traces and name the first place where they differ", diff_command,
     /*computes=*/true},
    {"inspect", "What changed, and what was computed?",
     "show what is in a trace: provenance, digests, numbers", inspect_command},
    {"replay", "What changed, and what was computed?",
     "compute one op again on what a trace kept: yours, Lockstep's, the exact result",
     replay_command, /*computes=*/true},
    {"repro", "What changed, and what was computed?",
     "write a folder that shows one wrong op without Lockstep", repro_command, /*computes=*/true},
    {"report", "What changed, and what was computed?",
     "draw a page for people of a result or a trace", report_command},
    {"schedule", "What changed, and what was computed?",
     "make, show and check the instructions of a persistent kernel", schedule_command},
    {"generate", "What changed, and what was computed?", "run the engine alone and print the text",
     generate_command, /*computes=*/true},
    {"selftest", "Can the verdict be trusted, and how tight is it?",
     "measure whether the judge can be trusted on a model", selftest_command, /*computes=*/true},
    {"calibrate", "Can the verdict be trusted, and how tight is it?",
     "learn from clean runs how tight the limits of this engine can be", calibrate_command,
     /*computes=*/true},
    {"model", "What is there?", "show what was understood of a checkpoint", model_command},
    {"points", "What is there?", "list the places in a model where a tensor can be seen",
     points_command},
    {"faults", "What is there?", "list the bugs that --fault can seed", faults_command},
    {"bench", "How fast is it here?", "measure the engine as shares of what this machine can give",
     bench_command, /*computes=*/true},
    {"help", "How is it used?", "explain a command, or a word of the screens", help_command},
    {"completions", "How is it used?", "print what bash or zsh needs to complete a command line",
     completions_command},
    {"man", "How is it used?", "print the manual page", man_command},
});

int dispatch(char** argv, Args args) {
  if (args.empty()) {
    fmt::print(stderr, "{}",
               overview_text(command_pages(), screen_of(STDERR_FILENO).prose_width()));
    return 2;
  }
  const std::string_view name = args[0];
  if (name == "--version" || name == "-V") {
    print(build_text());
    return 0;
  }
  const Args rest{args.subspan(1)};
  if (name == "--help" || name == "-h") return help_command(rest);
  for (const Command& c : kCommands) {
    if (c.name != name) continue;
    if (c.computes) prepare_to_compute(argv);
    return c.run(rest);
  }
  std::array<std::string_view, kCommands.size()> names;
  std::ranges::transform(kCommands, names.begin(), &Command::name);
  fail("lockstep has no command \"{}\"{} (`lockstep --help` lists them)", name,
       did_you_mean(name, names));
}

// Whether or not there is somebody to tell. A library's exception is told as one of ours is.
int trouble(const std::string& sentence) {
  const std::string line = fmt::format("error: {}\n", Error(sentence).what());
  std::fwrite(line.data(), 1, line.size(), stderr);
  return 2;
}

}  // namespace

std::span<const Command> commands() { return kCommands; }

}  // namespace lockstep

// Errors of all kinds end here, as one sentence and the status 2.
int main(int argc, char** argv) try {
  lockstep::prepare_process();
  return lockstep::dispatch(argv, {std::span(argv, argc).subspan(1)});
} catch (const std::exception& error) {
  return lockstep::trouble(lockstep::sentence_of(error));
}
