// lockstep man: the manual page.
#include <CLI/CLI.hpp>

#include "src/help/man_page.h"
#include "src/report/output.h"
#include "src/session/build_info.h"
#include "tools/parse.h"

namespace lockstep {

int man_command(Args args) {
  CLI::App app{
      "Print the manual page, lockstep(1), as troff: every command with its options, and the words "
      "of the screens.",
      "lockstep man"};
  if (!parse(app, args,
             "  lockstep man | man -l -\n"
             "  lockstep man >lockstep.1\n"))
    return 0;
  print(man_page(command_pages(), kToolVersion));
  return 0;
}

}  // namespace lockstep
