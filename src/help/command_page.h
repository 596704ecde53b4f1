// The description of a command as data: the screen of --help, the completions of a shell and the
// man page are functions of it, so that none of them can lack an option that a command has.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep {

// The values that a shell can offer for an option or an argument.
enum class Completion : uint8_t {
  nothing,  // free text, a number
  files,
  folders,
  words,  // one of OptionPage::words
  list,   // some of OptionPage::words, with commas between
};

// One option, or one argument that stands without a name.
struct OptionPage {
  std::string group;              // the heading that it stands under
  std::string name;               // "--model"; of an argument "TRACE"
  std::string short_name = {};    // "-m"; "" where there is none
  std::vector<std::string> also;  // other spellings that are taken and shown nowhere: "--layer"
  std::string value = {};         // stands for the value: "DIR"; "" for a flag
  std::string help;               // begins in lower case; a line break in it is kept
  bool required = false;
  bool repeatable = false;
  Completion completion = Completion::nothing;
  std::vector<std::string> words = {};

  bool is_argument() const { return !name.starts_with('-'); }
  bool takes_value() const { return !is_argument() && !value.empty(); }
};

struct CommandPage {
  std::string name;       // "run"
  std::string situation;  // the question that it answers: commands stand under it
  std::string summary;    // a line
  std::string about;      // prose; its line breaks mean nothing
  std::vector<OptionPage> options;
  std::vector<std::string> examples;  // shell commands, a line each
};

}  // namespace lockstep
