#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "src/weights/tokenizer.h"

namespace lockstep {

// One turn of a conversation.
struct Message {
  std::string role;  // system, user or assistant
  std::string content;
};

// The conversation as Qwen's chat models were taught it (ChatML: chat_template of their
// tokenizer_config.json, without tools), open for the assistant to answer. No system message is
// added where there is none. The text is for encode(), which turns the marks of turns into their
// tokens.
std::string chat_text(const std::vector<Message>& messages);

// The token that ends a turn. Throws Error when the tokenizer does not have the marks of ChatML.
int32_t end_of_turn(const Tokenizer& tokenizer);

}  // namespace lockstep
