#include "kernels/base/check.h"

#include "kernels/base/printable.h"

namespace lockstep {
namespace {

// The fact stands at the front of a sentence and what to do at its end: both stay. With kCut
// between them these stay below the 1000 bytes that Error promises.
constexpr size_t kFront = 700, kBack = 280;

// Cut in the middle: the beginning says what was wanted, the end what to do.
std::string sentence_of(const std::string& text) {
  const std::string line = printable(text);
  if (line.size() <= kFront + kBack + kCut.size()) return line;
  return front_of(line, kFront) + std::string(kCut) + back_of(line, kBack);
}

}  // namespace

Error::Error(const std::string& sentence) : std::runtime_error(sentence_of(sentence)) {}

}  // namespace lockstep
