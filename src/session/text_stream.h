#pragma once

#include <string>
#include <vector>

#include "src/weights/tokenizer.h"

namespace lockstep {

// The text of tokens as they come, up to the first of some stop texts. What might be the beginning
// of one is held back until it is known not to be, so that nothing of it is ever handed out. The
// texts that it hands out are whole characters of UTF-8, put together from tokens that may end
// inside of one.
class TextStream {
 public:
  TextStream(const Tokenizer& tokenizer, std::vector<std::string> stop)
      : decoder_(tokenizer), stop_(std::move(stop)) {}

  std::string push(int32_t id);  // what is certain now; may be empty
  std::string finish();          // what was held back, when no more tokens come

 private:
  std::string take_certain();

  StreamDecoder decoder_;
  std::vector<std::string> stop_;  // none is empty
  std::string held_;
  bool stopped_ = false;
};

}  // namespace lockstep
