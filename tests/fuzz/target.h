// A fuzz target: one reader of files or texts of others, as a function of bytes. Each target is a
// program of its own, twice: with libFuzzer it makes inputs (tests/fuzz/run), and in the usual
// build it reads those that are kept in corpus/TARGET.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep::fuzz {

// Reads the input with everything that its kind is read with. It may throw Error and nothing else;
// what cannot be, it says with wrong().
void read(std::string_view input);

// Ends the process with a finding.
[[noreturn]] void wrong(const std::string& what);

// The target's Error, if there is one, is a sentence for a person, and all else is a finding: calls
// wrong() unless. Returns whether the input was taken.
bool attempt(std::string_view input);

// From here on more memory at a time than an input of that size may take is a finding. With
// libFuzzer alone.
void allow_memory(size_t input_bytes);

// A path for the input as a file; the folder is gone when the process ends.
std::string path_of(const std::string& name);
// Writes it, over what was there.
std::string write(const std::string& name, std::string_view text);

// Takes values off the front of an input, zeros when it has ended.
class Bytes {
 public:
  explicit Bytes(std::string_view rest) : rest_(rest) {}
  bool empty() const { return rest_.empty(); }
  uint8_t byte();
  int64_t number();  // small ones, powers of two and their neighbours, and any
  std::string_view take(size_t count);
  std::string_view part();  // up to a NUL or the end

 private:
  std::string_view rest_;
};

}  // namespace lockstep::fuzz
