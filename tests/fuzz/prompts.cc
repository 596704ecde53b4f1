// A text: its words and tokens with a sound tokenizer, and as one that is shown.
#include <vector>

#include "kernels/base/check.h"
#include "kernels/base/printable.h"
#include "kernels/base/shell_words.h"
#include "kernels/base/utf8.h"
#include "src/weights/tokenizer.h"
#include "src/weights/words.h"
#include "tests/fuzz/target.h"
#include "tests/places.h"

namespace lockstep::fuzz {
namespace {

void look_at_bytes(const std::string& text) {
  const std::string shown_text = printable(text);
  if (printable(shown_text) != shown_text) wrong("what is printable was made so again");
  if (front_of(text, 7).size() > 7 || back_of(text, 7).size() > 7) wrong("a cut is too long");
  shown(text);
  std::string bytes = text, whole;
  take_characters(bytes, whole);
  if (bytes.size() > 3) wrong("more than a character was left");
  const std::vector<std::string> words = shell_words(text);
  if (shell_words(shell_text(words)) != words) wrong("the words of a shell changed");
}

}  // namespace

void read(std::string_view input) {
  static const Tokenizer tokenizer = Tokenizer::open(source_path("tests/data/bard-qwen3"));
  static const WordSplitter splitter;
  look_at_bytes(std::string(input));
  const std::vector<int32_t> ids = tokenizer.encode(input);
  std::string together;
  const std::string normal = normalised(input);
  splitter.split(normal, [&](std::string_view word) { together += word; });
  if (together != normal) wrong("the words are not the text");
  // The pieces between added tokens are normalised each by itself.
  if (input.find('<') == input.npos && tokenizer.decode(ids) != normal)
    wrong("the tokens are not the text");
}

}  // namespace lockstep::fuzz
