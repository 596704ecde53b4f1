// lockstep generate: the engine alone.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <deque>
#include <optional>

#include "kernels/base/check.h"
#include "probes/tee.h"
#include "src/audit/audit.h"
#include "src/report/output.h"
#include "src/session/conversation.h"
#include "src/session/printer.h"
#include "src/session/provenance.h"
#include "src/session/record_before.h"
#include "src/session/requests.h"
#include "src/session/session.h"
#include "src/session/trace_capture.h"
#include "tools/options.h"

namespace lockstep {
namespace {

// Tells people on stderr what an audit found: stdout is the text alone.
void tell(const Auditor& auditor) {
  fmt::print(stderr, "K/V audit: {} rows written, {} read back, {} findings\n",
             auditor.rows_written(), auditor.rows_read(), auditor.findings().size());
  for (const Finding& finding : auditor.findings()) fmt::print(stderr, "  {}\n", finding.rule);
}

struct GenerateOptions {
  ModelOptions model;
  ObserveOptions observe{.keep = "digest"};
  std::string format = "text";
  bool audit = false;
};

// Whether all is well, as far as it was looked at.
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
  while (engine.step(probe)) {
    check(probe.failure().empty(), "{}", probe.failure());
    printer.print_new();
  }
  if (capture) capture->finish(engine, probe);
  if (before) before->finish();
  if (options.audit) tell(auditor);
  return auditor.findings().empty();
}

}  // namespace

int generate_command(Args args) {
  CLI::App app{
      "Generate text with the engine alone, as it comes: one paragraph a request and sample, in\n"
      "the order of the options. Greedy unless --temperature says otherwise. Without a request, "
      "on\n"
      "a terminal, it holds a conversation: a line is what you say, Ctrl-D ends it.",
      "lockstep generate"};
  GenerateOptions options;
  add_model_options(app, options.model);
  add_logprobs_option(app, options.model);
  add_observe_options(app, options.observe);
  begin_group(app, "Judge");
  app.add_flag("--audit", options.audit,
               "check what is written to and read from the K/V cache; exit status 1 when it is "
               "wrong");
  begin_group(app, "Output");
  add_choice(app, "--format", options.format, {"text", "json"},
             "text as it comes, or a JSON object a line for each text, which needs no "
             "tokenizer.json (text)");
  if (!parse(app, args,
             "  lockstep generate --model Qwen3-0.6B --prompt 'To be, or' --max-new 40\n"
             "  lockstep generate --model Qwen3-0.6B --chat --prompt 'Why?' --temperature 0.7 "
             "--top-p 0.8\n"
             "  lockstep generate --model Qwen3-0.6B --requests chat.jsonl --format json\n"
             "  lockstep generate --model Qwen3-0.6B --prompt 'Once' --device cuda --trace "
             "once.trace\n"
             "  lockstep generate --model Qwen3-0.6B --max-new 500\n"))
    return 0;
  const bool json = options.format == "json";
  check(json || options.model.sampling.logprobs == 0,
        "--logprobs are shown with --format json, found --format {}: add it or leave them out",
        options.format);
  if (!(options.model.asks_for_nothing() && isatty(STDIN_FILENO) && !json))
    return generate(options, command_line_of("generate", args)) ? 0 : 1;
  check(!options.audit && options.observe.trace.empty(),
        "--audit and --trace go with a request, found none: add --prompt or leave them out");
  converse(options.model);
  return 0;
}

}  // namespace lockstep
