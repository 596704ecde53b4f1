// lockstep ops: each op of a library alone, over a grid of shapes.
#include <CLI/CLI.hpp>

#include "src/opcheck/opcheck.h"
#include "src/report/output.h"
#include "tools/options.h"

namespace lockstep {

int ops_command(Args args) {
  CLI::App app{
      "Try each op of your library alone, on shapes that no single model has: widths of heads,\n"
      "groups, pages, chunks over a cache, widths that are no multiple of 32, positions past "
      "65535,\n"
      "numbers that overflow fp16 or are near subnormal. Each is held to the exact result as in a\n"
      "run; nothing else is needed. Says what the wrong cases have in common, shows the smallest,\n"
      "and how fast each op is beside Lockstep's own. Exit status: 0 all are right, 1 one is "
      "wrong,\n"
      "2 trouble, or one computed no case.",
      "lockstep ops"};
  OpsOptions options;
  ReportOptions report;
  app.add_option("LIB", options.library,
                 "a shared library (kernels/lockstep_ops.h), or Python file")
      ->type_name("LIB.so|FILE.py")
      ->required();
  app.add_option("--ops-only", options.only, "these ops only, by their names there (all it has)")
      ->type_name("OP,...")
      ->delimiter(',')
      ->allow_extra_args(false);
  app.add_option("--dtype,--dtypes", options.dtypes, "of the tensors: fp32, bf16, fp16 (all three)")
      ->type_name("DTYPE,...")
      ->delimiter(',')
      ->allow_extra_args(false);
  app.add_option("-o,--out", options.folder,
                 "a folder for repros (see repro), one for each op that is wrong")
      ->type_name("FOLDER");
  add_device_option(app, options.device);
  add_threads_option(app, options.threads);
  add_rounding_options(app, options.rounding);
  add_report_options(app, report);
  if (!parse(app, args,
             "  lockstep ops ./mine.so\n"
             "  lockstep ops mine.py --ops-only rms_norm --dtype bf16 --out bugs\n"))
    return 0;
  check_outputs(report, {{"LIB", options.library}}, {"--out", options.folder});
  const OpsResult result = check_ops(options, report.detail);
  put(document_of(result), report);
  return exit_status(result);
}

}  // namespace lockstep
