// lockstep report: a page for people, of a result or of a trace.
#include <CLI/CLI.hpp>

#include "src/report/output.h"
#include "src/session/kept_result.h"
#include "tools/options.h"

namespace lockstep {

int report_command(Args args) {
  CLI::App app{
      "Draw a page for people of a result (what run or judge wrote with --json) or of a trace:\n"
      "its verdict, when run kept one in it, or else what is in it. The page is one file that\n"
      "loads nothing.",
      "lockstep report"};
  std::string path, html;
  app.add_option("RESULT", path, "RESULT.json or X.trace")->type_name("")->required();
  app.add_option("--html", html, "the page's file")->type_name("FILE")->required();
  if (!parse(app, args,
             "  lockstep report result.json --html result.html\n"
             "  lockstep report once.trace --html once.html\n"))
    return 0;
  check_output({"--html", html}, {{"RESULT", path}});
  write_file(html, page_of_file(path));
  return 0;
}

}  // namespace lockstep
