// The screens of --help. A command's description comes as data (command_page.h), which the parser
// of its options fills in, so what is shown here is what is parsed:
//   CLI11 options -> CommandPage -> about, usage, options by group, examples
//   all pages     -> overview: the commands under the questions that they answer
// Text is broken at the width of the terminal here and nowhere else; line breaks within `help`
// alone are kept, for lists.
#include "src/help/help_text.h"

#include <fmt/format.h>

#include <algorithm>

#include "src/screen/wrap.h"

namespace lockstep {
namespace {

constexpr size_t kColumn = 26;          // where what an option is for begins
constexpr size_t kOverviewColumn = 16;  // where what a command does begins

// Two columns: what stands on the left is beside what it is for, or above it where it is longer.
std::string two_columns(const std::string& left, const std::string& right, size_t column,
                        size_t width) {
  const bool beside = left.size() + 4 <= column;
  const std::string gap(beside ? column - left.size() - 2 : column, ' ');
  return fmt::format("  {}{}{}{}\n", left, beside ? "" : "\n", gap, indented(right, column, width));
}

std::string without_breaks(std::string text) {
  std::ranges::replace(text, '\n', ' ');
  return text;
}

// A signature that is longer than a line goes on in the next one, after one of its choices.
std::string broken(const std::string& signature, size_t width) {
  constexpr size_t kIndent = 8;
  std::string text, line;
  for (size_t from = 0; from < signature.size();) {
    const size_t to = std::min(signature.find('|', from), signature.size() - 1) + 1;
    if (!line.empty() && line.size() + to - from > width) {
      text += line + "\n";
      line.assign(kIndent, ' ');
    }
    line += signature.substr(from, to - from);
    from = to;
  }
  return text + line;
}

// The options under the headings of their groups.
std::string options_text(const CommandPage& page, size_t width) {
  std::string text;
  for (const std::string& group : page.groups()) {
    text += fmt::format("\n{}:\n", group);
    for (const CommandPage::Option& option : page.options)
      if (option.group == group)
        text += two_columns(broken(option.signature(), width - 2), option.says(), kColumn, width);
  }
  return text;
}

}  // namespace

std::vector<std::string> CommandPage::groups() const {
  std::vector<std::string> groups;
  for (const CommandPage::Option& option : options)
    if (std::ranges::find(groups, option.group) == groups.end()) groups.push_back(option.group);
  return groups;
}

std::string CommandPage::Option::signature() const {
  if (is_argument()) return name;
  // Names without a short form stand below those with one.
  const std::string names = short_name.empty() ? "    " + name : short_name + ", " + name;
  return takes_value() ? names + " " + value : names;
}

std::string CommandPage::Option::says() const {
  std::string text = help;
  if (repeatable) text += " (repeatable)";
  if (required && !is_argument()) text += " (required)";
  return text;
}

std::string CommandPage::usage() const {
  std::string text = "lockstep " + name;
  for (const CommandPage::Option& option : options) {
    if (!option.is_argument()) continue;
    text += option.required ? " " + option.name : fmt::format(" [{}]", option.name);
  }
  for (const CommandPage::Option& option : options)
    if (!option.is_argument() && option.required)
      text += fmt::format(" {} {}", option.name, option.value);
  return text + " [OPTIONS]";
}

std::string help_text(const CommandPage& page, size_t width) {
  std::string text =
      fmt::format("{}\n\nUsage: {}\n", indented(without_breaks(page.about), 0, width),
                  indented(page.usage(), 7, width));
  text += options_text(page, width) + "\nExamples:\n";
  for (const std::string& example : page.examples)
    text += "  " + wrapped_command(example, 6, width - 2) + "\n";
  return text;
}

std::string overview_text(std::span<const CommandPage> pages, size_t width) {
  std::string text =
      indented(
          "Lockstep finds the first op of a language model that computes a wrong number. It "
          "runs a paged-attention Qwen engine beside a LibTorch reference, looks at every op "
          "of every layer, and says which op introduced an error, by how much, and what else "
          "is wrong.",
          0, width) +
      "\n\nUsage: lockstep COMMAND [OPTIONS]\n";
  std::string situation;
  for (const CommandPage& page : pages) {
    if (page.situation != situation) text += fmt::format("\n{}\n", page.situation);
    situation = page.situation;
    text += two_columns(page.name, page.summary, kOverviewColumn, width);
  }
  text += "\nExamples:\n";
  for (const char* example :
       {"lockstep run -m DIR -p 'To be, or not'", "lockstep run -m DIR -p 'To be' --trace a.trace",
        "lockstep diff before.trace after.trace",
        "lockstep inspect a.trace --points attn.q --layers 2"})
    text += fmt::format("  {}\n", example);
  return text + "\n" +
         indented(
             "DIR is a checkpoint as Hugging Face publishes it: config.json, *.safetensors, "
             "tokenizer.json. `lockstep help COMMAND` explains a command, `lockstep help WORD` "
             "a word of the screens, `lockstep --version` how this one was built.",
             0, width) +
         "\nExit status: 0 alike, 1 different, 2 trouble.\n";
}

}  // namespace lockstep
