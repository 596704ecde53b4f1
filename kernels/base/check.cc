#include "kernels/base/check.h"

#include "kernels/base/printable.h"

namespace lockstep {
namespace {

// The fact stands at the front of a sentence and what to do at its end: both stay. With kCut
// between them these stay below the 1000 bytes that Error promises.
constexpr size_t kFront = 700, kBack = 280;

// A path or another word of more bytes keeps as many of its begin and its end, so that the words
// around it are read.
constexpr size_t kWord = 300;

std::string cut_word(std::string_view word) {
  if (word.size() <= kWord) return std::string(word);
  return front_of(word, kWord / 2) + std::string(kCut) + back_of(word, kWord / 2 - kCut.size());
}

std::string with_cut_words(std::string_view line) {
  std::string sentence;
  for (size_t end = line.find(' '); end != line.npos; end = line.find(' ')) {
    sentence += cut_word(line.substr(0, end)) + ' ';
    line.remove_prefix(end + 1);
  }
  return sentence + cut_word(line);
}

// Cut in the middle: the beginning says what was wanted, the end what to do.
std::string sentence_of(const std::string& text) {
  const std::string line = with_cut_words(printable(text));
  if (line.size() <= kFront + kBack + kCut.size()) return line;
  return front_of(line, kFront) + std::string(kCut) + back_of(line, kBack);
}

}  // namespace

Error::Error(const std::string& sentence) : std::runtime_error(sentence_of(sentence)) {}

}  // namespace lockstep
