// The description of a command as data: the screen of --help, the completions of a shell and the
// man page are functions of it, so that none of them can lack an option that a command has.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/base/names.h"

namespace lockstep {

struct CommandPage {
  // One option, or one argument that stands without a name.
  struct Option {
    // The values that a shell can offer for an option or an argument.
    enum class Completion : uint8_t {
      nothing,  // free text, a number
      files,
      folders,
      words,  // one of `words`
      list,   // some of `words`, with commas between
    };

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
    std::string signature() const;  // "-m, --model DIR"
    // Its purpose, and whether it must be given and may be repeated.
    std::string says() const;
  };

  std::string name;       // "run"
  std::string situation;  // the question that it answers: commands stand under it
  std::string summary;    // a line
  std::string about;      // prose; its line breaks mean nothing
  std::vector<Option> options;
  std::vector<std::string> examples;  // shell commands, a line each

  // "lockstep judge TRACE --model DIR [OPTIONS]": what must be given, and that there is more.
  std::string usage() const;
  // The headings of its options, in the order in which they first appear.
  std::vector<std::string> groups() const;
};
template <>
inline constexpr auto kNamesOf<CommandPage::Option::Completion> =
    std::to_array<const char*>({"nothing", "files", "folders", "words", "list"});

}  // namespace lockstep
