// A command line in a report can be run again as it stands there.
#include "kernels/base/shell_words.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdio>

namespace lockstep {
namespace {

using Words = std::vector<std::string>;

const Words kHard = {"lockstep", "run",  "--prompt", "it's \"so\"\n$HOME `x` \\n",
                     "",         "*",    "a b",      "~/x",
                     "-n",       "3",    "ü",        "x=y;z",
                     "'",        "#one", "!!",       "(x)"};

TEST(ShellText, LeavesPlainWordsAsTheyAre) {
  EXPECT_EQ(shell_text(Words{"lockstep", "run", "--fault", "rope@layer=3", "-n", "0.5"}),
            "lockstep run --fault rope@layer=3 -n 0.5");
  EXPECT_EQ(shell_text(Words{"-p", "To be"}), "-p 'To be'");
}

TEST(ShellText, IsReadBackByAShell) {
  const std::string command = "printf '%s|' " + shell_text(kHard);
  FILE* pipe = ::popen(command.c_str(), "r");
  ASSERT_NE(pipe, nullptr);
  std::string read, wanted;
  std::array<char, 256> part;
  while (std::fgets(part.data(), part.size(), pipe) != nullptr) read += part.data();
  EXPECT_EQ(::pclose(pipe), 0);
  for (const std::string& word : kHard) wanted += word + "|";
  EXPECT_EQ(read, wanted);
}

TEST(ShellWords, AreTheTextsWords) {
  EXPECT_EQ(shell_words(shell_text(kHard)), kHard);
  EXPECT_EQ(shell_words("  a \"b c\"'d'\\ e\tf  "), (Words{"a", "b cd e", "f"}));
  EXPECT_EQ(shell_words("a 'b c"), (Words{"a", "b c"})) << "a quote that does not end";
  EXPECT_TRUE(shell_words("").empty());
}

}  // namespace
}  // namespace lockstep
