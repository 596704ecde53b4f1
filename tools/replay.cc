// lockstep replay: one op again, on what a trace kept for it.
#include "src/replay/replay.h"

#include <CLI/CLI.hpp>

#include "src/report/output.h"
#include "tools/options.h"

namespace lockstep {

int replay_command(Args args) {
  CLI::App app{
      "Compute one op again, on the inputs that a trace kept for it: in the passes as they were,\n"
      "by Lockstep's own kernel and by yours (--ops), each held to the exact result on the same\n"
      "inputs. Says whose rows have the bits of the trace's, how far the worst element is off in\n"
      "ulp and in budgets, what a wrong one looks like, and how long each took. Needs the\n"
      "tensors of the op's inputs (--keep full). A bundle is one call of paged attention as\n"
      "FlashAttention takes it (q, k, v, cu_seqlens, block_tables, slot_mapping, out), without\n"
      "a model. Exit status: 0 all are right, 1 one is wrong, 2 trouble or inconclusive.",
      "lockstep replay"};
  ReplayOptions options;
  ReportOptions report;
  app.add_option("TRACE", options.trace, "a trace, or a bundle: a folder, .npz or .safetensors")
      ->type_name("TRACE")
      ->required();
  add_model_folder(app, options.model, /*required=*/false);
  add_device_option(app, options.device);
  add_ops_option(app, options.ops);
  add_threads_option(app, options.threads);
  add_place_options(app, options);
  add_rounding_options(app, options.rounding);
  add_rope_pairs_option(app, options.rope_pairs);
  add_report_options(app, report);
  if (!parse(app, args,
             "  lockstep replay x.trace --model Qwen3-0.6B --point logits --ops ./mine.so\n"
             "  lockstep replay call.npz --ops ./mine.so\n"))
    return 0;
  check_outputs(report, files_read_by(options));
  const ReplayResult result = replay(options, report.detail);
  put(document_of(result), report);
  return exit_status(result);
}

}  // namespace lockstep
