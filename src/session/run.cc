// `lockstep run`: what the options name is opened, cheap troubles first, and becomes either one run
// beside the reference or the same requests served in several ways without one.
#include "src/session/run.h"

#include <fmt/format.h>

#include <cmath>
#include <future>

#include "kernels/base/check.h"
#include "src/session/confirm.h"
#include "src/session/determinism.h"
#include "src/session/device.h"
#include "src/session/instructions.h"
#include "src/session/judged_run.h"
#include "src/session/modes.h"
#include "src/session/provenance.h"
#include "src/session/ranked.h"
#include "src/session/ranked_run.h"
#include "src/session/reference_library.h"
#include "src/session/result_texts.h"
#include "src/session/run_estimate.h"
#include "src/session/seeded_effect.h"
#include "src/session/session.h"

namespace lockstep {
namespace {

// In bytes; 0: all that is free.
int64_t memory_to_judge_in(const RunOptions& options, const Session& session) {
  check(options.judge_memory == 0 || options.judge_memory >= 0.001,
        "--judge-memory {} is less than 0.001 GB, in which nothing can be computed: give it more",
        options.judge_memory);
  check(options.judge_memory == 0 || session.engine.device != Device::cpu,
        "--judge-memory {} is of a CUDA device, and the run is on the CPU: leave it out, or add "
        "--device cuda",
        options.judge_memory);
  return std::llround(options.judge_memory * 1e9);
}

// The engine beside the reference.
Result run_beside(const RunOptions& options, Session& session, Progress& progress,
                  const std::vector<std::string>& command_line, RankSeat* seat) {
  // Bad options are said first: opening the reference takes a while, and a build may have none.
  const std::vector<FaultRequest> faults = parse_faults(options.faults);
  const std::string needs_all = options.confirm        ? "--confirm"
                                : options.error_budget ? "--error-budget"
                                                       : "";
  JudgeOptions judge{.selection = options.observe.selection(),
                     .rows = rows_to_judge(options.judge_rows, needs_all),
                     .limits = limits_of(options.limits),
                     .accumulator = accumulator_of(options.accumulator),
                     .fail_fast = options.fail_fast,
                     .error_budget = options.error_budget};
  ask_for(options.rounding, judge);
  const int64_t memory = memory_to_judge_in(options, session);
  judge.selection.check_layers(static_cast<int>(session.checkpoint.config().layers));
  const auto before = record_before_of(options.observe, options.model, session.engine);
  const std::string notice =
      estimate_judging(session.checkpoint.config(), session.engine, session.requests).notice();
  if (!notice.empty()) fmt::print(stderr, "{}\n", notice);
  // All of the weights are read for it, meanwhile.
  const std::shared_future<std::string> weights_hash =
      std::async([&] { return session.checkpoint.weights_hash(); });
  progress.show("opening the reference");
  ReferenceLibrary& reference = open_reference();
  if (memory > 0) reference.bound_memory(number_of(session.engine.device), memory);
  std::optional<Ranked> ranked;
  if (seat) ranked.emplace(session.checkpoint, *seat, brings_of(options, session));
  const JudgedRun run{
      .checkpoint = session.checkpoint,
      .reference = reference,
      .engine = seat ? engine_of_rank(session.engine, seat->ranks(), faults) : session.engine,
      .step = session.step,
      .ranks = ranked ? &*ranked : nullptr,
      .ops = session.ops,
      .user_op_calls = session.user_op_calls.get(),
      .requests = session.requests,
      .faults = faults,
      .judge = judge,
      .memory = memory,
      .before = before.get(),
      .audit = !options.no_audit,
      .trace = options.observe.trace,
      .level = trace_level_from(options.observe.keep),
      .provenance = facts_of(session, command_line),
      .weights_hash = weights_hash,
      .progress = [&](const std::string& line) { progress.show(line); }};
  Result result = judge_run(run);
  if (options.confirm) {
    progress.show("running again with ops put right");
    result.confirmations = confirm(run, result);
  }
  if (!seat) say_of_faults(run, result);
  return result;
}

// The engine against itself, served in other ways.
Result run_in_modes(const RunOptions& options, Session& session, Progress& progress,
                    const std::vector<std::string>& command_line, RankSeat* seat) {
  ModesRun run = modes_run(options, session);
  std::optional<Ranked> ranked;
  if (seat) run.ranks = &ranked.emplace(session.checkpoint, *seat, brings_of(options, session));
  check(seat || options.modes == "all" || !asks_for_ranks(options.modes),
        "--modes tp compares a model over ranks with one over none: add --tp 2");
  run.provenance = provenance_of(session, command_line);
  run.progress = [&](std::string_view mode) { progress.show(fmt::format("serving: {}", mode)); };
  Result result = run_modes(run);
  if (session.user_op_calls) session.user_op_calls->put_into(result);
  return result;
}

// Notes the faults that nothing shows, where nobody asks what they changed.
void note_unseen(const RunOptions& options, auto& result, const std::string& why) {
  for (const FaultRequest& fault : parse_faults(options.faults))
    result.notes.push_back(fmt::format(
        "nothing shows the seeded {}, and whether it acted was not asked{}: it needs {}",
        text_of(fault), why, fault_of(fault).needs));
}

}  // namespace

ModesRun modes_run(const RunOptions& options, const Session& session) {
  return {.checkpoint = session.checkpoint,
          .engine = session.engine,
          .requests = session.requests,
          .faults = parse_faults(options.faults),
          .modes = modes_from(options.modes),
          .ops = session.ops};
}

Result run(const RunOptions& options, const std::vector<std::string>& command_line,
           RankSeat* seat) {
  for (const FaultRequest& fault : parse_faults(options.faults))
    check(seat != nullptr || fault.rank < 0,
          "--fault {} names rank {}, but the model is over none: add --tp 2", fault.name,
          fault.rank);
  // Meanwhile the device is opened, whose library would wait to be loaded: unless LibTorch is to be
  // told something before that.
  std::future<void> loading;
  if (options.modes.empty() && options.judge_memory == 0 &&
      options.model.device.starts_with("cuda") && cuda_devices() > 0)
    loading = load_reference_for_device();
  Session session = open_session(options.model);
  if (options.confirm) check_can_confirm(session);
  Progress progress(options.report.detail);
  Result result = options.modes.empty()
                      ? run_beside(options, session, progress, command_line, seat)
                      : run_in_modes(options, session, progress, command_line, seat);
  result.notes.insert(result.notes.end(), session.notes.begin(), session.notes.end());
  write_timeline(session, options.model.instructions.timeline);
  if (session.schedule) name_instructions(result, *session.schedule);
  if (session.tokenizer) add_texts(result, *session.tokenizer);
  const bool asked = options.modes.empty() && !seat;  // what each fault changed
  if (asked || exit_status(result) != 0) return result;
  note_unseen(options, result,
              seat ? "" : " (what is wrong alike in every way of serving shows in no --modes)");
  return result;
}

Determinism run_determinism(const RunOptions& options,
                            const std::vector<std::string>& command_line) {
  const std::vector<FaultRequest> faults = parse_faults(options.faults);
  const Session session = open_session(options.model);
  Progress progress(options.report.detail);
  Determinism result =
      run_determinism({.checkpoint = session.checkpoint,
                       .engine = session.engine,
                       .requests = session.requests,
                       .faults = faults,
                       .repeats = options.determinism,
                       .ops = session.ops,
                       .can_graph = session.engine.graph && faults.empty(),
                       .provenance = provenance_of(session, command_line),
                       .progress = [&](const std::string& line) { progress.show(line); }});
  if (session.user_op_calls) session.user_op_calls->put_into(result);
  if (exit_status(result) == 0)
    note_unseen(options, result,
                " (what is wrong alike in every serving shows in no --determinism)");
  return result;
}

}  // namespace lockstep
