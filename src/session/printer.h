#pragma once

#include <functional>
#include <optional>
#include <string>

#include "src/engine/engine.h"
#include "src/session/text_stream.h"
#include "src/weights/tokenizer.h"

namespace lockstep {

// Hands on the text of a sequence as it grows: what it made since the last call, as far as it is
// certain. Neither a stop text nor the token that ended it is part of the text. Borrows both, and
// the sequence must be one of an engine that goes on living.
class SequenceText {
 public:
  SequenceText(const Sequence& sequence, const Tokenizer& tokenizer)
      : sequence_(sequence), stream_(tokenizer, sequence.request.stop) {}

  std::string take_new();
  bool finished() const { return sequence_.finished; }

 private:
  const Sequence& sequence_;
  TextStream stream_;
  int64_t read_ = 0;  // tokens after the prompt
};

// Prints every text of the first requests of an engine, one after another: by request, then by
// sample. Those after the first wait for their turn, so that texts do not mix.
class Printer {
 public:
  // How generate shows what its requests became.
  enum class Format : uint8_t {
    text,  // a paragraph each, as it comes
    json,  // an object a line, when it has ended
  };

  // Without a tokenizer, which may be null for JSON alone, tokens are all that is known of a text.
  Printer(const Engine& engine, int32_t requests, const Tokenizer* tokenizer, Format format);

  void print_new();  // what came since the last call

 private:
  const Sequence* current() const;  // null: not begun yet
  std::string json_line(const Sequence& sequence) const;

  const Engine& engine_;
  const Tokenizer* tokenizer_;
  Format format_;
  int32_t requests_;
  int32_t request_ = 0, sample_ = 0;  // whose turn it is
  std::optional<SequenceText> text_;
  std::string whole_;
};

}  // namespace lockstep
