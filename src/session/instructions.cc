// Puts the interpreter of a schedule (src/instructions) in the place of the model's own executors,
// and leads findings back to the instruction that wrote them.
#include "src/session/instructions.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "kernels/base/check.h"
#include "src/instructions/interpreter.h"
#include "src/model/op_names.h"
#include "src/model/persistent_executor.h"
#include "src/report/output.h"
#include "src/schedule/checker.h"
#include "src/schedule/make_schedule.h"
#include "src/schedule/schedule_json.h"

namespace lockstep {
namespace {

constexpr size_t kNamed = 3;  // findings whose instruction a note names

// The execution of the first pair that the counters leave unordered; none where there is no pair.
// Such an execution lets one of the two read or write too early, so that what the check proves is
// seen in the numbers.
Interleaving adversarial_order(const ScheduleCheck& checked, std::vector<std::string>& notes) {
  for (const ScheduleCheck::Finding& finding : checked.findings)
    if (finding.first >= 0 && !finding.order.empty()) return {.begin = finding.order};
  notes.emplace_back(
      "--interleave adversarial had no pair to play: the counters order all instructions that use "
      "the same numbers, so that every execution computes the same, and the queues ran as threads");
  return {};
}

// Says of a list that was read what one execution need not show.
void note_broken(const ScheduleCheck& checked, const std::string& path,
                 std::vector<std::string>& notes) {
  if (checked.findings.empty()) return;
  const int64_t more = std::ssize(checked.findings) + checked.not_kept - 1;
  notes.push_back(fmt::format(
      "{} is broken, whatever this execution of it shows: {}{} (lockstep schedule {} --check)",
      path, checked.findings.front().says, more > 0 ? fmt::format("; {} more", more) : "", path));
}

Interleaving interleaving_of(const std::string& text, const ScheduleCheck& checked,
                             std::vector<std::string>& notes) {
  if (text.empty()) return {};
  if (text == "adversarial") return adversarial_order(checked, notes);
  uint64_t seed = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seed);
  check(error == std::errc() && end == text.data() + text.size(),
        "--interleave wants a seed or \"adversarial\", found {}", text);
  return {.seed = seed};
}

// The place of an element within its row, by which its instruction is known. The index is
// [position, number], [position, head, dim], of experts [position, choice, number], or, of shares,
// [position, share, head] and perhaps dim.
int64_t number_in_row(const std::vector<int64_t>& index, const Point& point,
                      const ScheduledModel& model) {
  if (index.size() == 2) return index[1];
  if (point.name == "mlp.expert_down") return index[1] * model.hidden + index[2];
  if (point.name.starts_with("mlp.expert_")) return index[1] * model.expert_intermediate + index[2];
  if (!point.is_of_shares()) return index[1] * model.head_dim + index[2];
  const int64_t head = index[1] * model.heads + index[2];
  return index.size() == 3 ? head : head * model.head_dim + index[3];
}

}  // namespace

void use_executor(const InstructionOptions& options, const std::vector<std::string>& replaced,
                  Session& session) {
  check(options.timeline.empty() || (!options.executor.empty() && options.executor != "ops"),
        "--timeline is of --executor instructions or persistent, found {}: add one or leave it out",
        options.executor.empty() ? "neither" : options.executor);
  if (!options.timeline.empty()) session.timeline = std::make_shared<Timeline>();
  if (options.executor == "persistent")
    session.engine.make_executor = persistent_executors(
        session.checkpoint.config(), session.engine.dtype, session.ops, session.timeline);
  const bool asked = options.executor == "instructions";
  check(
      asked || (options.step.empty() && options.interleave.empty() && options.queues == 0),
      "--queues, --step and --interleave are of --executor instructions: add it or leave them out");
  if (!asked) return;
  check(session.engine.device == Device::cpu,
        "--executor instructions is of the CPU, found --device {}: leave one out",
        session.engine.device.text());
  check(
      session.ops.fused.of_user.empty(),
      "--executor instructions calls single ops, found {}, of which some are fused: leave one out",
      session.user_ops);
  for (const OpKind within : {OpKind::cache, OpKind::attention})
    for (const std::string_view op : op_names_of(within))
      check(std::ranges::count(replaced, op) == 0,
            "--executor instructions attends and writes the cache within its instructions, and "
            "never calls {}, found {}: leave one out",
            op, session.user_ops);
  check(options.step.empty() || options.queues == 0,
        "--queues are of a schedule that is made, found --step {}: leave one out", options.step);
  const ModelConfig& config = session.checkpoint.config();
  const int queues = options.queues == 0 ? 4 : options.queues;
  session.schedule = std::make_shared<const Schedule>(
      options.step.empty() ? make_schedule(scheduled_model(config), {.queues = queues})
                           : read_schedule(options.step));
  const ScheduleCheck checked = check_schedule(*session.schedule);
  if (!options.step.empty()) note_broken(checked, options.step, session.notes);
  const Interleaving interleaving = interleaving_of(options.interleave, checked, session.notes);
  session.step = {*session.schedule, interleaving, session.timeline};
  session.engine.make_executor = interpreter_of(config, *session.step);
  session.engine.in_shares = shows_shares(*session.schedule);
}

void write_timeline(const Session& session, const std::string& path) {
  if (!session.timeline) return;
  check(static_cast<bool>(session.timeline->last),
        "--timeline {} wants a step, found none that one launch computed: a prompt is computed "
        "otherwise, so ask for --max-new 2 or more",
        path);
  write_file(path, chrome_trace(session.timeline->last()));
}

void name_instructions(Result& result, const Schedule& schedule) {
  std::vector<std::string> named;
  for (const Finding& finding : result.findings) {
    if (named.size() == kNamed || finding.index.size() < 2) continue;
    const Place& place = finding.node.place;
    const int64_t number = number_in_row(finding.index, *place.point, schedule.model);
    const Instruction* writer = writer_of(schedule, place.point->name, place.layer, number);
    // Other points may be of the pass and of no instruction, as embed is.
    if (writer == nullptr && !place.point->is_of_shares()) continue;
    std::string note = fmt::format(
        "{} the worst element of {}{}",
        writer ? said(*writer) + " wrote" : "no instruction of the schedule writes",
        place.layer < 0 ? "" : fmt::format("layer {} ", place.layer), place.point->name);
    if (std::ranges::count(named, note) > 0) continue;
    named.push_back(note);
    result.notes.push_back(std::move(note));
  }
}

}  // namespace lockstep
