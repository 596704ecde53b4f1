#include "src/session/result_texts.h"

#include <string>
#include <vector>

namespace lockstep {

void add_texts(Result& result, const Tokenizer& tokenizer) {
  for (RequestResult& request : result.requests) {
    // A wrong op may choose what is no id.
    std::vector<int32_t> ids = request.tokens;
    std::erase_if(ids, [](int32_t id) { return id < 0; });
    request.text = tokenizer.decode(ids);
    const auto text_of = [&](int32_t id) {
      return id < 0 ? std::string() : tokenizer.decode({&id, 1});
    };
    for (const auto* ids : {&request.prompt, &request.tokens})
      for (const int32_t id : *ids) request.token_texts.push_back(text_of(id));
    for (Flip& flip : request.flips) {
      flip.engine_text = text_of(flip.engine);
      flip.reference_text = text_of(flip.reference);
    }
  }
}

}  // namespace lockstep
