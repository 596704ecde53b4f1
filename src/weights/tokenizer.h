// Text to token ids and back, as the Qwen family has it, read from a checkpoint's tokenizer.json.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

// Byte-level BPE as tokenizer.json of the Qwen family describes it. Immutable after reading.
class Tokenizer {
 public:
  // Reads DIR/tokenizer.json. Throws Error when it is missing, malformed, or of another kind.
  static Tokenizer open(const std::string& dir);

  // Invalid UTF-8 throws Error.
  std::vector<int32_t> encode(std::string_view text) const;
  // Bytes that are no whole character become U+FFFD. Negative ids throw Error.
  std::string decode(std::span<const int32_t> ids) const;
  // The bytes of one token, which need not be whole characters. U+FFFD for an id that the tokenizer
  // lacks: models have rows for more, which a wrong kernel may well choose.
  std::string_view bytes_of(int32_t id) const;
  int64_t size() const;  // largest id + 1

 private:
  struct Tables;
  std::shared_ptr<const Tables> tables_;
};

// Turns tokens into text as they come and never hands out half a character. For one text and one
// thread; the tokenizer must outlive it.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}
  std::string push(int32_t id);  // the text that is complete now; may be empty
  std::string finish();          // what is left, broken characters as U+FFFD

 private:
  const Tokenizer& tokenizer_;
  std::string pending_;
};

}  // namespace lockstep
