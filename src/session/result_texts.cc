#include "src/session/result_texts.h"

namespace lockstep {

void add_texts(Result& result, const Tokenizer& tokenizer) {
  for (RequestResult& request : result.requests) {
    request.text = tokenizer.decode(request.tokens);
    const auto text_of = [&](int32_t id) { return tokenizer.decode({&id, 1}); };
    for (const auto* ids : {&request.prompt, &request.tokens})
      for (const int32_t id : *ids) request.token_texts.push_back(text_of(id));
    for (Flip& flip : request.flips) {
      flip.engine_text = text_of(flip.engine);
      flip.reference_text = text_of(flip.reference);
    }
  }
}

}  // namespace lockstep
