// The manual page, lockstep(1), is made of the pages of all commands and of the glossary, so that
// it has every option and every word that a screen has. troff takes a line that begins with "." or
// "'" for a macro, and a backslash for an escape: roff() is the only way by which text gets here.
#include "src/help/man_page.h"

#include <fmt/format.h>

#include <algorithm>

#include "src/help/glossary.h"
#include "src/help/help_text.h"

namespace lockstep {
namespace {

// Text that troff shows as it is; its line breaks mean nothing.
std::string roff(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const bool begins_line = out.empty() || out.back() == '\n';
    if (begins_line && (c == '.' || c == '\'')) out += "\\&";
    if (c == '\\')
      out += "\\e";
    else if (c == '-')
      out += "\\-";
    else if (c == '\'')
      out += "\\(aq";
    else if (c == '`')
      out += "\\(ga";
    else if (c == '|')
      out += "|\\:";  // a list of choices may be longer than a line, which breaks here
    else
      out += c == '\n' ? ' ' : c;
  }
  return out;
}

// A line break in what an option is for begins an item there.
std::string items(std::string_view text) {
  std::string out;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    out += (out.empty() ? "" : "\n.br\n") + roff(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return out;
}

// A tagged paragraph: `head` in bold, what it is below.
std::string entry(const std::string& head, const std::string& text) {
  return fmt::format(".TP\n.B {}\n{}\n", roff(head), items(text));
}

// Commands as they are typed, unfilled.
std::string shell(const std::vector<std::string>& commands) {
  std::string out = ".PP\n.nf\n";
  for (const std::string& command : commands) out += roff(command) + "\n";
  return out + ".fi\n";
}

std::string trimmed(std::string text) { return text.erase(0, text.find_first_not_of(' ')); }

std::string command_section(const CommandPage& page) {
  std::string out = fmt::format(".SS {}\n.B {}\n.PP\n{}\n", roff("lockstep " + page.name),
                                roff(page.usage()), roff(page.about));
  for (const std::string& group : page.groups()) {
    out += fmt::format(".PP\n.I {}\n", roff(group));
    for (const CommandPage::Option& option : page.options)
      if (option.group == group) out += entry(trimmed(option.signature()), option.says());
  }
  return out + shell(page.examples);
}

std::string words_section() {
  std::string out = ".SH WORDS\nWords of the screens, which \\fBlockstep help\\fR explains too.\n";
  for (const Word& word : glossary()) out += entry(word.title(), word.text());
  return out;
}

}  // namespace

std::string man_page(std::span<const CommandPage> pages, const std::string& version) {
  std::string out = fmt::format(
      ".TH LOCKSTEP 1 \"\" \"lockstep {}\" \"User Commands\"\n"
      ".SH NAME\nlockstep \\- find the first op of a language model that computes a wrong number\n"
      ".SH SYNOPSIS\n.B lockstep\n.I COMMAND\n[OPTIONS]\n"
      ".SH DESCRIPTION\nLockstep runs a paged\\-attention Qwen engine beside a LibTorch "
      "reference, looks at every op of every layer, and says which op introduced an error, by how "
      "much, and what else is wrong.\n",
      version);
  for (const CommandPage& page : pages) out += entry(page.name, page.summary);
  out += ".SH COMMANDS\n";
  for (const CommandPage& page : pages) out += command_section(page);
  return out + words_section() +
         ".SH EXIT STATUS\n"
         ".TP\n0\nAlike: clean, identical, or within noise.\n"
         ".TP\n1\nDifferent: an op introduced an error, or two traces differ.\n"
         ".TP\n2\nTrouble: a bad option or file, too little memory, or nothing that could be "
         "judged.\n";
}

}  // namespace lockstep
