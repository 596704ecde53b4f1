// lockstep schedule: the list of instructions of a persistent kernel, made, read and checked.
#include <CLI/CLI.hpp>

#include "kernels/base/check.h"
#include "src/report/output.h"
#include "src/schedule/checker.h"
#include "src/schedule/make_schedule.h"
#include "src/schedule/schedule_document.h"
#include "src/schedule/schedule_json.h"
#include "tools/options.h"

namespace lockstep {

int schedule_command(Args args) {
  CLI::App app{
      "Show the schedule of a decode step: the instructions that a persistent kernel runs, in a\n"
      "queue for every multiprocessor, and the counters that they wait for and raise. --model\n"
      "makes one, a FILE has one of yours. --check looks at all executions that the counters\n"
      "allow: each number is written once, nothing waits for ever, no read comes before its\n"
      "write.\n"
      "Exit status: 0 nothing found, 1 findings, 2 trouble.",
      "lockstep schedule"};
  std::string file, model;
  ScheduleOptions options;
  bool checked = false;
  ReportOptions report;
  app.add_option("FILE", file, "a schedule in JSON")->type_name("FILE");
  add_model_folder(app, model, /*required=*/false);
  app.add_option("--queues", options.queues, "queues of a schedule that is made")
      ->type_name("N")
      ->default_val(132);
  app.add_option("--kv-shares", options.kv_shares, "shares that attention cuts the pages into")
      ->type_name("N");
  app.add_option("--down-shares", options.down_shares, "shares of the sum of mlp.down")
      ->type_name("N");
  app.add_flag("--check", checked, "hold it to what every execution needs");
  add_report_options(app, report);
  if (!parse(app, args,
             "  lockstep schedule --model Qwen3-0.6B --queues 132 --json step.json\n"
             "  lockstep schedule step.json --check\n"))
    return 0;
  check(file.empty() != model.empty(),
        "one schedule was wanted, found {}: give a FILE, or --model for one that is made",
        file.empty() ? "neither a FILE nor --model" : "a FILE and --model");
  for (const char* of_made : {"--queues", "--kv-shares", "--down-shares"})
    check(file.empty() || app.count(of_made) == 0,
          "{} is for a schedule that is made, and {} is one: leave it out", of_made, file);
  check_outputs(report, {{"FILE", file}, {"--model", model}});
  const Schedule schedule = file.empty()
                                ? make_schedule(scheduled_model(read_config(model)), options)
                                : read_schedule(file);
  if (!checked) {
    put(document_of(schedule), report);
    return 0;
  }
  const ScheduleCheck result = check_schedule(schedule);
  put(document_of(schedule, result, report.detail), report);
  return exit_status(result);
}

}  // namespace lockstep
