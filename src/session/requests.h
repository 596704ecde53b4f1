#pragma once

#include <string>
#include <vector>

#include "src/engine/request.h"
#include "src/session/chat.h"
#include "src/session/options.h"
#include "src/weights/config.h"
#include "src/weights/tokenizer.h"

namespace lockstep {

// Token ids from "1,2,3". `option` is named in the Error on anything else.
std::vector<int32_t> ids_from(const std::string& text, const std::string& option);

// A request with all that the options say of every one; it has no prompt yet.
Request request_pattern(const ModelOptions& options, const ModelConfig& config);

// Makes a conversation the request's prompt. The end of the assistant's turn ends its text, unless
// the options say to ignore that.
void put_chat(Request& request, const std::vector<Message>& messages, const ModelOptions& options,
              const Tokenizer& tokenizer);

// The requests of a JSON object a line, each as the pattern where it does not say otherwise; blank
// lines are none. Throws Error, naming options.requests and the line, on a malformed one, and on
// one with tokens that the model does not have.
std::vector<Request> requests_in(const std::string& lines, const ModelOptions& options,
                                 const ModelConfig& config, const Tokenizer* tokenizer);

// The requests of --prompt, --tokens and --requests, in this order, each as the pattern where it
// does not say otherwise. `tokenizer` may be null: then a prompt that is text throws Error. Throws
// Error too when nothing was asked for, on a malformed file, naming its line, on tokens that the
// model does not have, and on a file that cannot be read to its end: what was read until then is
// not what was asked for.
std::vector<Request> requests_from(const ModelOptions& options, const ModelConfig& config,
                                   const Tokenizer* tokenizer);

}  // namespace lockstep
