// lockstep repro: a wrong op of a trace, in a folder that shows it alone.
#include "src/replay/repro.h"

#include <CLI/CLI.hpp>

#include "kernels/base/check.h"
#include "src/report/output.h"
#include "tools/options.h"

namespace lockstep {

int repro_command(Args args) {
  CLI::App app{
      "Write a folder that shows one wrong op of a trace without Lockstep: its inputs, the exact\n"
      "result and the budgets of its elements, a program in C and one in Python (with numpy) that\n"
      "call it and print the worst element. The case is made small first: rows, keys and numbers\n"
      "are left out as long as the op of --ops stays wrong. Without --ops the folder shows what\n"
      "the trace has, reduced to rows of it. Without --point it is the trace's first finding.\n"
      "Exit status: 0 written, 2 trouble, such as that nothing is wrong.",
      "lockstep repro"};
  ReproOptions options;
  ReportOptions report;
  bool first = false;
  app.add_option("TRACE", options.of.trace, "a trace with the tensors (--keep full)")
      ->type_name("TRACE")
      ->required();
  app.add_option("-o,--out", options.folder, "the folder to write, which must be new")
      ->type_name("FOLDER")
      ->required();
  add_model_folder(app, options.of.model);
  add_device_option(app, options.of.device);
  add_ops_option(app, options.of.ops);
  add_threads_option(app, options.of.threads);
  add_place_options(app, options.of);
  app.add_flag("--first", first, "of the trace's first finding (so it is without --point)");
  add_rounding_options(app, options.of.rounding);
  add_rope_pairs_option(app, options.of.rope_pairs);
  add_report_options(app, report);
  if (!parse(app, args,
             "  lockstep repro x.trace --first --model Qwen3-0.6B --ops ./mine.so --out bug\n"
             "  lockstep repro x.trace --model Qwen3-0.6B --point logits --out bug\n"))
    return 0;
  check(!first || options.of.point.empty(),
        "--first and --point {} were given: the one or the other says which op it is",
        options.of.point);
  check_outputs(report, files_read_by(options.of), {"--out", options.folder});
  put(document_of(make_repro(options, report.detail)), report);
  return 0;
}

}  // namespace lockstep
