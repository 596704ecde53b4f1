// tokenizer.json. The tokens of all single bytes, which each must have, are put in where the input
// says @bytes@, so that inputs are short.
#include "src/weights/tokenizer.h"

#include <fmt/format.h>

#include "src/weights/words.h"
#include "tests/fuzz/target.h"

namespace lockstep::fuzz {
namespace {

// "Ā":0,...: the characters of GPT-2 for bytes, each with an id.
std::string byte_tokens() {
  std::string text;
  uint32_t next = 0x100;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const bool shows = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
    const uint32_t point = shows ? byte : next++;
    if (byte > 0) text += ',';
    text += fmt::format(R"("\u{:04x}":{})", point, byte);
  }
  return text;
}

}  // namespace

void read(std::string_view input) {
  std::string text(input);
  constexpr std::string_view kBytes = "@bytes@";
  if (const size_t at = text.find(kBytes); at != text.npos)
    text.replace(at, kBytes.size(), byte_tokens());
  write("tokenizer.json", text);
  const Tokenizer tokenizer = Tokenizer::open(path_of(""));
  for (const char* words : {"a b  c\n\nthe the", "<|x|>ab 12\xC3\xA9"}) {
    const std::vector<int32_t> ids = tokenizer.encode(words);
    if (tokenizer.decode(ids).empty()) wrong("a text became nothing");
  }
  for (int32_t id = 0; id < 600; ++id) tokenizer.bytes_of(id);
}

}  // namespace lockstep::fuzz
