// The lines of --requests, without a tokenizer and with one.
#include "src/session/requests.h"

#include "tests/fuzz/target.h"
#include "tests/places.h"

namespace lockstep::fuzz {

void read(std::string_view input) {
  static const Tokenizer tokenizer = Tokenizer::open(source_path("tests/data/bard-qwen3"));
  Bytes bytes(input);
  const bool has_texts = bytes.byte() == 't';
  ModelOptions options;
  options.requests = "x.jsonl";
  const std::string lines(input.substr(input.empty() ? 0 : 1));
  for (const Request& request :
       requests_in(lines, options, {.vocab = 1000}, has_texts ? &tokenizer : nullptr))
    for (const int32_t token : request.prompt)
      if (token < 0 || token >= 1000) wrong("a token that the model lacks was taken");
}

}  // namespace lockstep::fuzz
