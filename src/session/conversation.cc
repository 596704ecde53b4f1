// An engine for the whole conversation, with a prefix cache: each turn is a new request that begins
// with all turns before it, and finds their pages.
#include "src/session/conversation.h"

#include <fmt/format.h>

#include <iostream>

#include "src/engine/engine.h"
#include "src/report/output.h"
#include "src/session/chat.h"
#include "src/session/printer.h"
#include "src/session/requests.h"
#include "src/session/session.h"

namespace lockstep {
namespace {

constexpr int64_t kChatPositions = 4096;  // that a conversation may take when no --pages say more

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

}  // namespace

void converse(const ModelOptions& options) {
  Session session = open_model(options);
  const Tokenizer& tokenizer = session.wanted_tokenizer();
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

}  // namespace lockstep
