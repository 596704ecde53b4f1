#include "src/session/chat.h"

#include <fmt/format.h>

#include "kernels/base/check.h"

namespace lockstep {

// ChatML, the template of Qwen's models, without the turns for tools and thinking.
std::string chat_text(const std::vector<Message>& messages) {
  std::string text;
  for (const Message& m : messages)
    text += fmt::format("<|im_start|>{}\n{}<|im_end|>\n", m.role, m.content);
  return text + "<|im_start|>assistant\n";
}

int32_t end_of_turn(const Tokenizer& tokenizer) {
  for (const char* mark : {"<|im_start|>", "<|im_end|>"})
    check(tokenizer.encode(mark).size() == 1,
          "a chat needs the token {}, which this tokenizer lacks: take a chat model, or give "
          "--prompt without --chat",
          mark);
  return tokenizer.encode("<|im_end|>").front();
}

}  // namespace lockstep
