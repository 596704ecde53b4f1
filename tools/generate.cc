// lockstep generate: the engine alone.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <deque>
#include <iostream>
#include <optional>

#include "kernels/check.h"
#include "probes/tee.h"
#include "src/judge/audit.h"
#include "tools/keeping.h"
#include "tools/options.h"
#include "tools/output.h"
#include "tools/printer.h"
#include "tools/provenance.h"
#include "tools/record_before.h"
#include "tools/requests.h"
#include "tools/session.h"

namespace lockstep {
namespace {

constexpr int64_t kChatPositions = 4096;  // that a conversation may take when no --pages say more

const Tokenizer& tokenizer_of(const Session& session) {
  check(session.tokenizer.has_value(),
        "generate prints text, but {} has no tokenizer.json: add it, or give --tokens with "
        "--format json, which shows tokens alone then",
        session.checkpoint.dir());
  return *session.tokenizer;
}

// What an audit found, for people, on stderr: stdout is the text alone.
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
  const Tokenizer* tokenizer = json && !session.tokenizer ? nullptr : &tokenizer_of(session);
  selection_of(options.observe).check_layers(static_cast<int>(session.checkpoint.config().layers));
  const auto before = record_before_of(options.observe, options.model, session.engine);
  if (before) before->wrap(session.ops);
  Engine engine(session.checkpoint, session.ops, session.engine);
  for (const Request& request : session.requests) engine.submit(request);
  Printer printer(engine, engine.requests(), tokenizer, json ? TextFormat::json : TextFormat::text);
  Auditor auditor(session.engine.page_size);
  std::optional<Keeping> keeping;
  if (!options.observe.trace.empty())
    keeping.emplace(
        options.observe, engine,
        provenance_of(session.checkpoint, session.engine, session.requests, command_line));
  if (before) before->expect(keeping->manifest());
  Sink* seen = keeping ? &keeping->sink() : options.audit ? &auditor : nullptr;
  std::deque<Tee> tees;
  if (keeping && options.audit) seen = &tees.emplace_back(*seen, auditor);
  if (before) seen = &tees.emplace_back(*before, *seen);
  Probe probe(seen);
  while (engine.step(probe)) {
    check(probe.failure().empty(), "{}", probe.failure());
    printer.print_new();
  }
  if (keeping) keeping->finish(engine, probe);
  if (before) before->finish();
  if (options.audit) tell(auditor);
  return auditor.findings().empty();
}

// Prints the answer as it comes, and returns it.
std::string answer(Engine& engine, Request request, const Tokenizer& tokenizer) {
  const int32_t id = engine.submit(std::move(request));
  SequenceText text(engine.sequence(id), tokenizer);
  Probe off;
  std::string all;
  while (engine.step(off)) {
    const std::string part = text.take_new();
    print(part);
    all += part;
  }
  print("\n");
  return all;
}

// A conversation, a line of the terminal a turn, until its end (Ctrl-D).
void converse(const ModelOptions& options) {
  Session session = open_model(options);
  const Tokenizer& tokenizer = tokenizer_of(session);
  EngineOptions& settings = session.engine;
  // The next turn begins with all that was said: the cache has most of it.
  settings.prefix_cache = true;
  const ModelConfig& config = session.checkpoint.config();
  if (settings.pages == 0)
    settings.pages = (std::min(kChatPositions, config.max_positions) + settings.page_size - 1) /
                     settings.page_size;
  Engine engine(session.checkpoint, session.ops, settings);
  Request request = request_pattern(options, config);
  std::vector<Message> messages;
  std::string line;
  while (fmt::print(stderr, "> "), std::getline(std::cin, line)) {
    if (line.empty()) continue;
    messages.push_back({"user", line});
    request.eos = request_pattern(options, config).eos;
    put_chat(request, messages, options, tokenizer);
    messages.push_back({"assistant", answer(engine, request, tokenizer)});
    ++request.sampling.seed;  // so that a question asked again is not answered by the same draws
  }
  fmt::print(stderr, "\n");
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
  app.add_flag("--audit", options.audit,
               "check what is written to and read from the K/V cache; exit status 1 when it is "
               "wrong");
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
