#include "src/session/result_texts.h"

#include <span>

namespace lockstep {

void add_texts(Result& result, const Tokenizer& tokenizer) {
  const auto text_of = [&](int32_t token) { return tokenizer.decode(std::span(&token, 1)); };
  for (RequestResult& request : result.requests) {
    request.text = tokenizer.decode(request.tokens);
    for (Flip& flip : request.flips) {
      flip.engine_text = text_of(flip.engine);
      flip.reference_text = text_of(flip.reference);
    }
  }
}

}  // namespace lockstep
