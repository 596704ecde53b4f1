// lockstep generate: the engine alone.
#include <unistd.h>

#include <CLI/CLI.hpp>

#include "kernels/base/check.h"
#include "src/session/conversation.h"
#include "src/session/generation.h"
#include "src/session/provenance.h"
#include "tools/options.h"

namespace lockstep {
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
  checked_files(options.model, {{"--trace", options.observe.trace}});
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
