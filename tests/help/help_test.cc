// What people read of commands and words, without a command.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <sstream>

#include "kernels/base/check.h"
#include "kernels/base/nearest.h"
#include "src/help/completions.h"
#include "src/help/glossary.h"
#include "src/help/help_text.h"
#include "src/help/man_page.h"
#include "src/stats/statistic_kind.h"
#include "tests/places.h"

namespace lockstep {
namespace {

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

TEST(Nearest, IsSilentWhenNothingIsNear) {
  const std::vector<std::string_view> names = {"run", "judge", "inspect", "q", "temperature"};
  const auto to = [&](std::string_view name) { return std::string(nearest(name, names)); };
  EXPECT_EQ(to("inspct"), "inspect");
  EXPECT_EQ(to("jugde"), "judge") << "neighbours in the other order are one mistake";
  EXPECT_EQ(to("rnu"), "run");
  EXPECT_EQ(to("temp"), "temperature") << "a beginning";
  for (const char* far : {"-V", "V", "x", "xyz", "", "checkpoint"}) EXPECT_EQ(to(far), "") << far;
  EXPECT_EQ(did_you_mean("V", names), "");
  EXPECT_EQ(did_you_mean("rum", names), "; did you mean \"run\"?");
  EXPECT_EQ(nearest("run", {}), "");
}

TEST(Glossary, HasEachWordOnceAndEveryStatistic) {
  std::set<std::string_view> names;
  for (const Word& word : glossary()) {
    EXPECT_TRUE(names.insert(word.name).second) << word.name;
    EXPECT_TRUE(word.brief.ends_with(".")) << word.name;
    EXPECT_EQ(find_word(word.name), &word);
  }
  for (int i = 0; i < kStatisticKinds; ++i)
    EXPECT_TRUE(find_word(name_of(static_cast<StatisticKind>(i))))
        << name_of(static_cast<StatisticKind>(i));
  EXPECT_TRUE(find_word("T6"));
}

TEST(Glossary, FindsWordsHoweverTheyAreWritten) {
  EXPECT_EQ(find_word("t1"), find_word("max_error"));
  EXPECT_EQ(find_word("Max-Error"), find_word("max_error"));
  EXPECT_EQ(find_word("of_row"), find_word("of row"));
  EXPECT_EQ(find_word(""), nullptr);
  const std::string said = explanation_of("T1", 60);
  EXPECT_TRUE(said.starts_with("max_error (T1), in budgets\n  ")) << said;
  for (const std::string& line : lines_of(explanation_of("budget", 60)))
    EXPECT_LE(line.size(), 60U) << line;
  try {
    explanation_of("budgt", 80);
    FAIL() << "an unknown word is no Error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("did you mean \"budget\"?"), std::string::npos);
  }
}

// The README shows the words that everybody needs, in the sentences of the table.
TEST(Glossary, IsWhatTheReadmeHas) {
  std::ifstream in(source_path("README.md"));
  std::stringstream readme;
  readme << in.rdbuf();
  const std::string text = readme.str();
  std::string expected = "| word | means |\n|---|---|\n";
  int words = 0;
  for (const Word& word : glossary()) {
    if (!word.everyday) continue;
    ++words;
    expected += "| " + std::string(word.name) + " | " + std::string(word.brief) + " |\n";
  }
  EXPECT_EQ(words, 16);
  EXPECT_NE(text.find(expected + "\n"), std::string::npos)
      << "README.md must have this table, and no row more:\n"
      << expected;
}

CommandPage example_page() {
  CommandPage page{.name = "look",
                   .situation = "What is there?",
                   .summary = "look at it",
                   .about = "Look at it\nfor long.",
                   .examples = {"lockstep look x --points 'a b' --layers 3"}};
  page.options = {{.group = "Arguments",
                   .name = "FILE",
                   .value = "FILE",
                   .help = "which one",
                   .required = true,
                   .completion = CommandPage::Option::Completion::files},
                  {.group = "Observe",
                   .name = "--points",
                   .short_name = "-p",
                   .also = {"--point"},
                   .value = "GLOB,...",
                   .help = "some [of] it: a's",
                   .repeatable = true,
                   .completion = CommandPage::Option::Completion::list,
                   .words = {"attn.q", "attn.k"}},
                  {.group = "Help", .name = "--help", .short_name = "-h", .help = "print this"}};
  return page;
}

TEST(HelpText, HasHeadingsUsageAndNoLineThatIsTooLong) {
  const CommandPage page = example_page();
  const std::string text = help_text(page, 40);
  for (const char* part :
       {"Look at it for long.", "Usage: lockstep look FILE [OPTIONS]", "\nArguments:\n  FILE ",
        "\nObserve:\n  -p, --points GLOB,...   some [of] it:\n", "(repeatable)",
        "\nHelp:\n  -h, --help ", "Examples:\n  lockstep look x --points 'a b' \\\n"})
    EXPECT_NE(text.find(part), std::string::npos) << part << " in " << text;
  EXPECT_EQ(text.find("--point "), std::string::npos) << "another spelling is no other option";
  for (const std::string& line : lines_of(text)) EXPECT_LE(line.size(), 40U) << line;
  EXPECT_NE(overview_text(std::vector{page}, 80).find("\nWhat is there?\n  look   "),
            std::string::npos);
}

TEST(ManPage, EscapesWhatTroffWouldRead) {
  CommandPage page = example_page();
  page.about = ".hidden 'quoted' back\\slash";
  const std::string text = man_page(std::vector{page}, "1.2.3");
  EXPECT_NE(text.find("\n\\&.hidden \\(aqquoted\\(aq back\\eslash\n"), std::string::npos) << text;
  EXPECT_NE(text.find("\"lockstep 1.2.3\""), std::string::npos);
  for (const Word& word : glossary())
    EXPECT_NE(text.find("\n.B " + std::string(word.name)), std::string::npos) << word.name;
}

TEST(Completions, TakeEverySpellingAndOfferOne) {
  const std::vector<CommandPage> pages{example_page()};
  const std::string bash = bash_completions(pages);
  EXPECT_NE(bash.find("-p|--points|--point) kind=list words='attn.q attn.k'"), std::string::npos)
      << bash;
  EXPECT_NE(bash.find("options='-p --points -h --help'\n"), std::string::npos) << bash;
  const std::string zsh = zsh_completions(pages);
  EXPECT_NE(zsh.find(R"('*'{-p,--points}'[some \[of\] it\: a'\''s]:)"), std::string::npos) << zsh;
}

}  // namespace
}  // namespace lockstep
