#include "src/session/result_texts.h"

namespace lockstep {

void add_texts(Result& result, const Tokenizer& tokenizer) {
  for (RequestResult& request : result.requests) {
    request.text = tokenizer.decode(request.tokens);
    for (const auto* ids : {&request.prompt, &request.tokens})
      for (const int32_t id : *ids) request.token_texts.push_back(tokenizer.decode({&id, 1}));
  }
}

}  // namespace lockstep
