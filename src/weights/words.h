// Unicode's part of tokenization: normal form C and the cutting into words, by PCRE2 and utf8proc.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace lockstep {

// Cuts text into the words that byte pairs are merged within, by the regular expression of the Qwen
// tokenizers; its one-letter classes follow Unicode. Immutable; may be used by many threads.
class WordSplitter {
 public:
  // The expression as tokenizer.json has it.
  static std::string_view pattern();

  WordSplitter();
  // Hands every word to `take`, in order; together they are the text. Throws Error on invalid
  // UTF-8.
  void split(std::string_view text, const std::function<void(std::string_view)>& take) const;

 private:
  std::shared_ptr<void> code_;
};

// Unicode normal form C. Throws Error on invalid UTF-8.
std::string normalised(std::string_view text);

}  // namespace lockstep
