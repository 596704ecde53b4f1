// lockstep generate: the engine alone.
#include <CLI/CLI.hpp>

#include "kernels/check.h"
#include "tools/options.h"
#include "tools/output.h"
#include "tools/session.h"

namespace lockstep {
namespace {

// Prints what each request made since the last call, as soon as its characters are whole. Requests
// after the first wait for their turn, so that texts do not mix.
class Printer {
 public:
  Printer(const Engine& engine, const Tokenizer& tokenizer)
      : engine_(engine), tokenizer_(tokenizer), decoder_(tokenizer) {}

  void print_new() {
    while (current_ < engine_.requests()) {
      const Sequence& sequence = engine_.sequence(current_);
      const auto made = static_cast<size_t>(sequence.length()) - sequence.request.prompt.size();
      for (; printed_ < made; ++printed_)
        print(decoder_.push(sequence.tokens[sequence.request.prompt.size() + printed_]));
      if (!sequence.finished) return;
      print(decoder_.finish() + "\n");
      ++current_;
      printed_ = 0;
    }
  }

 private:
  const Engine& engine_;
  const Tokenizer& tokenizer_;
  StreamDecoder decoder_;
  int32_t current_ = 0;
  size_t printed_ = 0;
};

void generate(const ModelOptions& options) {
  const Session session = open_session(options);
  check(session.tokenizer.has_value(), "generate prints text, but {} has no tokenizer.json: add it",
        options.model);
  Engine engine(session.checkpoint, cpu_ops(), session.engine);
  for (const Request& request : session.requests) engine.submit(request);
  Printer printer(engine, *session.tokenizer);
  Probe off;
  while (engine.step(off)) printer.print_new();
}

}  // namespace

int generate_command(Args args) {
  CLI::App app{
      "Generate text with the engine alone, as it comes: one paragraph a request, in the order of\n"
      "the options. Greedy: always the most likely token.",
      "lockstep generate"};
  ModelOptions options;
  add_model_options(app, options);
  if (!parse(app, args,
             "  lockstep generate --model Qwen3-0.6B --prompt 'To be, or' --max-new 40\n"
             "  lockstep generate --model Qwen3-0.6B --requests chat.jsonl --dtype fp32\n"))
    return 0;
  generate(options);
  return 0;
}

}  // namespace lockstep
