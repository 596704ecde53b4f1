// lockstep help: the table of commands, one command, or a word of the screens.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <vector>

#include "kernels/base/check.h"
#include "kernels/base/nearest.h"
#include "src/help/glossary.h"
#include "src/help/help_text.h"
#include "src/report/output.h"
#include "src/screen/screen.h"
#include "tools/parse.h"

namespace lockstep {
namespace {

std::string text_about(const std::string& topic) {
  const std::vector<CommandPage> pages = command_pages();
  const auto page = std::ranges::find(pages, topic, &CommandPage::name);
  if (page != pages.end()) return help_text(*page, screen_of(STDOUT_FILENO).prose_width());
  if (find_word(topic)) return explanation_of(topic, screen_of(STDOUT_FILENO).prose_width());
  std::vector<std::string_view> known;
  for (const CommandPage& command : pages) known.push_back(command.name);
  for (const Word& word : glossary()) known.push_back(word.name);
  fail(
      "\"{}\" is neither a command nor a word of the screens{} (`lockstep help` lists commands, "
      "`man lockstep` words)",
      topic, did_you_mean(topic, known));
}

}  // namespace

// A command that is given a page describes itself on it and does nothing else: help, the manual and
// completions are made of the very options that it parses.
std::vector<CommandPage> command_pages() {
  std::vector<CommandPage> pages;
  for (const Command& command : commands()) {
    CommandPage& page = pages.emplace_back();
    command.run({{}, &page});
    page.situation = command.situation;
    page.summary = command.summary;
  }
  return pages;
}

int help_command(Args args) {
  CLI::App app{
      "Explain a command, or a word of the screens such as budget, propagated or T1; without "
      "either, list the commands.",
      "lockstep help"};
  std::string topic;
  app.add_option("COMMAND|WORD", topic, "what to explain")->type_name("COMMAND|WORD");
  if (!parse(app, args,
             "  lockstep help run\n"
             "  lockstep help budget\n"))
    return 0;
  print(topic.empty() ? overview_text(command_pages(), screen_of(STDOUT_FILENO).prose_width())
                      : text_about(topic));
  return 0;
}

}  // namespace lockstep
