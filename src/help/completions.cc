// Completions are generated from the same pages as --help and are plain shell text: the shell calls
// no program while a user types, so that a key press costs nothing and a broken build completes
// too.
//
// bash has one case a command, which sets what may stand next: `kind` (files, folders, words, list)
// and `words`. What follows an option depends on the word before the cursor. zsh has a
// specification of _arguments an option, where colons and brackets are syntax and must be escaped.
#include "src/help/completions.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace lockstep {
namespace {

// All spellings of an option.
std::vector<std::string> names_of(const CommandPage::Option& option) {
  std::vector<std::string> names = option.also;
  names.insert(names.begin(), option.name);
  if (!option.short_name.empty()) names.insert(names.begin(), option.short_name);
  return names;
}

// Assignments that say what may stand for the option's value, or as the argument.
std::string bash_values(const CommandPage::Option& option) {
  std::string text = fmt::format("kind={}", name_of(option.completion));
  if (!option.words.empty()) text += fmt::format(" words='{}'", fmt::join(option.words, " "));
  return text;
}

// How the words of one command are completed: what stands alone, and what follows an option.
std::string bash_case(const CommandPage& page) {
  std::vector<std::string> offered;
  std::string argument, after;
  for (const CommandPage::Option& option : page.options) {
    if (option.is_argument()) {
      argument = bash_values(option);
      continue;
    }
    if (!option.short_name.empty()) offered.push_back(option.short_name);
    offered.push_back(option.name);
    if (option.takes_value())
      after +=
          fmt::format("        {}) {} ;;\n", fmt::join(names_of(option), "|"), bash_values(option));
  }
  std::string text =
      fmt::format("    {})\n      options='{}'\n", page.name, fmt::join(offered, " "));
  if (!argument.empty()) text += fmt::format("      {}\n", argument);
  if (!after.empty()) text += fmt::format("      case $before in\n{}      esac\n", after);
  return text + "      ;;\n";
}

// bash hands over `--format=js` as three words.
constexpr char kBashBegin[] = R"(# bash completion of lockstep, made by `lockstep completions bash`.
_lockstep() {
  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]}
  local options='' words='' kind='' IFS=$'\n'
  if [[ $word == = ]]; then
    word=''
  elif [[ $before == = ]]; then
    before=${COMP_WORDS[COMP_CWORD - 2]}
  fi
  COMPREPLY=()
)";
constexpr char kBashEnd[] = R"(  esac
  if [[ $word == -* && ! $kind == nothing ]]; then
    kind=words words=$options
  fi
  case $kind in
    files) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -- "$word") ;;
    folders) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -d -- "$word") ;;
    words) mapfile -t COMPREPLY < <(compgen -W "${words// /$IFS}" -- "$word") ;;
    list)
      local last=${word##*,}
      compopt -o nospace 2>/dev/null
      mapfile -t COMPREPLY < <(compgen -P "${word%"$last"}" -W "${words// /$IFS}" -- "$last")
      ;;
    '') mapfile -t COMPREPLY < <(compgen -W "${options// /$IFS}" -- "$word") ;;
  esac
}
complete -F _lockstep lockstep
)";

std::vector<std::string> command_names(std::span<const CommandPage> pages) {
  std::vector<std::string> names;
  for (const CommandPage& page : pages) names.push_back(page.name);
  return names;
}

std::string replaced(std::string text, const std::string& what, const std::string& by) {
  for (size_t at = 0; (at = text.find(what, at)) != std::string::npos; at += by.size())
    text.replace(at, what.size(), by);
  return text;
}

// Text between single quotes of zsh, within which _arguments reads colons and brackets.
std::string zsh_text(const std::string& text) {
  // The first line alone: what follows is a list for --help.
  std::string out = replaced(text.substr(0, text.find('\n')), "\\", "\\\\");
  for (const char* special : {":", "[", "]"})
    out = replaced(out, special, std::string("\\") + special);
  return replaced(out, "'", "'\\''");
}

// The action of _arguments that completes the value. A blank completes nothing.
std::string zsh_action(const CommandPage::Option& option) {
  switch (option.completion) {
    case CommandPage::Option::Completion::files:
      return "_files";
    case CommandPage::Option::Completion::folders:
      return "_files -/";
    case CommandPage::Option::Completion::words:
      return fmt::format("({})", fmt::join(option.words, " "));
    case CommandPage::Option::Completion::list:
      return fmt::format("_values -s , value {}", fmt::join(option.words, " "));
    case CommandPage::Option::Completion::nothing:
      break;
  }
  return " ";
}

// One specification of _arguments, quoted.
std::string zsh_spec(const CommandPage::Option& option) {
  const std::string value = fmt::format(
      ":{}:{}", zsh_text(option.value.empty() ? option.name : option.value), zsh_action(option));
  if (option.is_argument()) return fmt::format("'{}'", value);
  const std::string says =
      fmt::format("[{}]{}", zsh_text(option.help), option.takes_value() ? value : "");
  const std::string once = option.repeatable ? "*" : "";
  if (option.short_name.empty()) return fmt::format("'{}{}{}'", once, option.name, says);
  const std::string both = fmt::format("{} {}", option.short_name, option.name);
  // The shell expands {-x,--long} to two specifications; the list in front says that one excludes
  // the other.
  return fmt::format("'{}'{{{},{}}}'{}'", option.repeatable ? once : fmt::format("({})", both),
                     option.short_name, option.name, says);
}

// The branch of one command: all its options as specifications, a line each.
std::string zsh_case(const CommandPage& page) {
  std::string text = fmt::format("    {})\n      _arguments -s", page.name);
  for (const CommandPage::Option& option : page.options)
    text += fmt::format(" \\\n        {}", zsh_spec(option));
  return text + "\n      ;;\n";
}

}  // namespace

std::string bash_completions(std::span<const CommandPage> pages) {
  std::string text = kBashBegin;
  text += fmt::format(
      "  if ((COMP_CWORD == 1)); then\n"
      "    kind=words words='{0}' options='--help --version'\n"
      "  fi\n"
      "  ((COMP_CWORD > 1)) && case ${{COMP_WORDS[1]}} in\n",
      fmt::join(command_names(pages), " "));
  for (const CommandPage& page : pages) text += bash_case(page);
  return text + kBashEnd;
}

std::string zsh_completions(std::span<const CommandPage> pages) {
  std::string text =
      "#compdef lockstep\n"
      "# zsh completion of lockstep, made by `lockstep completions zsh`.\n"
      "_lockstep() {\n"
      "  local -a commands\n"
      "  commands=(\n";
  for (const CommandPage& page : pages)
    text += fmt::format("    '{}:{}'\n", page.name, zsh_text(page.summary));
  text +=
      "  )\n"
      "  if ((CURRENT == 2)); then\n"
      "    _describe -t commands 'lockstep command' commands\n"
      "    return\n"
      "  fi\n"
      "  shift words\n"
      "  ((CURRENT--))\n"
      "  case $words[1] in\n";
  for (const CommandPage& page : pages) text += zsh_case(page);
  // Loaded from fpath the file is the function's body; sourced it must name the function.
  return text +
         "  esac\n"
         "}\n"
         "if [[ $funcstack[1] == _lockstep ]]; then\n"
         "  _lockstep \"$@\"\n"
         "else\n"
         "  compdef _lockstep lockstep\n"
         "fi\n";
}

}  // namespace lockstep
