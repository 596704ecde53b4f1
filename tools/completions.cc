// lockstep completions: what a shell needs to complete a command line of lockstep.
#include "src/help/completions.h"

#include <CLI/CLI.hpp>

#include "src/report/output.h"
#include "tools/options.h"

namespace lockstep {

int completions_command(Args args) {
  CLI::App app{
      "Print a script that completes commands, options and their values in a shell: devices, "
      "dtypes, points, the names of faults, files. It calls no program.",
      "lockstep completions"};
  std::string shell;
  add_choice(app, "SHELL", shell, {"bash", "zsh"}, "whose script: bash or zsh")->required();
  if (!parse(app, args,
             "  source <(lockstep completions bash)\n"
             "  lockstep completions zsh >~/.zsh/completions/_lockstep\n"))
    return 0;
  const std::vector<CommandPage> pages = command_pages();
  print(shell == "bash" ? bash_completions(pages) : zsh_completions(pages));
  return 0;
}

}  // namespace lockstep
