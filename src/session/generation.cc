// The engine alone, at full speed: no reference is opened and nothing is judged.
#include "src/session/generation.h"

#include <fmt/format.h>

#include <chrono>
#include <deque>
#include <optional>

#include "kernels/base/check.h"
#include "probes/tee.h"
#include "src/audit/audit.h"
#include "src/report/output.h"
#include "src/session/instructions.h"
#include "src/session/printer.h"
#include "src/session/provenance.h"
#include "src/session/record_before.h"
#include "src/session/session.h"
#include "src/session/trace_capture.h"

namespace lockstep {
namespace {

// Tells people on stderr what an audit found: stdout is the text alone.
void tell(const Auditor& auditor) {
  fmt::print(stderr, "K/V audit: {} rows written, {} read back, {} findings\n",
             auditor.rows_written(), auditor.rows_read(), auditor.findings().size());
  for (const Finding& finding : auditor.findings()) fmt::print(stderr, "  {}\n", finding.rule);
}

// How far the choosing is, on a terminal, where no text shows that.
class Choosing {
 public:
  explicit Choosing(const Engine& engine) : engine_(engine) {
    for (int32_t i = 0; i < engine.requests(); ++i) {
      const Request& request = engine.sequence(i).request;
      prompts_ += std::ssize(request.prompt);
      total_ += request.all_steps();
    }
    line_.show(fmt::format("reading {} tokens of prompts, to choose {} at most", prompts_, total_));
  }

  // Ten times a second at most.
  void show() {
    const Clock::time_point now = Clock::now();
    if (now - shown_ < std::chrono::milliseconds(100)) return;
    shown_ = now;
    int64_t chosen = 0;
    for (int32_t i = 0; i < engine_.requests(); ++i)
      chosen += std::ssize(engine_.sequence(i).argmax);
    const double seconds = std::chrono::duration<double>(now - begin_).count();
    const double rate = static_cast<double>(chosen) / seconds;
    const auto left = static_cast<double>(total_ - chosen);
    line_.show(fmt::format("{} of {} tokens chosen, {:.2g} a second, {:.0f} s left at most", chosen,
                           total_, rate, rate > 0 ? left / rate : 0));
  }
  void hide() { line_.show(""); }

 private:
  using Clock = std::chrono::steady_clock;
  const Engine& engine_;
  Progress line_;
  int64_t prompts_ = 0, total_ = 0;
  Clock::time_point begin_ = Clock::now(), shown_ = begin_;
};

}  // namespace

//   engine -> Probe -> [RecordBefore] -> [TraceCapture] -> [Auditor]
//
// Each in brackets is there when it is asked for; a Tee hands on to two.
bool generate(const GenerateOptions& options, const std::vector<std::string>& command_line) {
  Session session = open_session(options.model);
  const bool json = options.format == "json";
  const Tokenizer* tokenizer = json && !session.tokenizer ? nullptr : &session.wanted_tokenizer();
  options.observe.selection().check_layers(static_cast<int>(session.checkpoint.config().layers));
  const auto before = record_before_of(options.observe, options.model, session.engine);
  if (before) before->wrap(session.ops);
  Engine engine(session.checkpoint, session.ops, session.engine);
  for (const Request& request : session.requests) engine.submit(request);
  Printer printer(engine, engine.requests(), tokenizer,
                  json ? Printer::Format::json : Printer::Format::text);
  Auditor auditor(session.engine.page_size);
  std::optional<TraceCapture> capture;
  if (!options.observe.trace.empty())
    capture.emplace(options.observe, engine, provenance_of(session, command_line));
  if (before) before->expect(capture->manifest());
  Sink* seen = capture ? &capture->sink() : options.audit ? &auditor : nullptr;
  std::deque<Tee> tees;
  if (capture && options.audit) seen = &tees.emplace_back(*seen, auditor);
  if (before) seen = &tees.emplace_back(*before, *seen);
  Probe probe(seen);
  Choosing choosing(engine);
  while (engine.step(probe)) {
    check(probe.failure().empty(), "{}", probe.failure());
    if (json)
      choosing.show();
    else
      choosing.hide();
    printer.print_new();
  }
  choosing.hide();
  write_timeline(session, options.model.instructions.timeline);
  if (capture) capture->finish(engine, probe);
  if (before) before->finish();
  if (options.audit) tell(auditor);
  return auditor.findings().empty();
}

}  // namespace lockstep
