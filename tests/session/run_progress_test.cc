#include "src/session/run_progress.h"

#include <gtest/gtest.h>

#include <vector>

namespace lockstep {
namespace {

TEST(RunProgress, SaysWhereARunIsAndWhenItMayEnd) {
  RunProgress::Moment m{.pass = 0, .rows = 1210, .doing = "computing", .layer = 3, .layers = 28};
  m.total = 1258;
  m.seconds = 12;
  EXPECT_EQ(m.text(), "pass 0, 1210 tokens: computing layer 3 of 28; 0 of 1258 tokens, 12 s")
      << "before a pass has ended there is no rate";
  m = {.pass = 3, .rows = 1, .doing = "judging", .layer = -1, .layers = 28};
  m.done = 1000;
  m.total = 1500;
  m.seconds = 500;
  EXPECT_EQ(m.text(),
            "pass 3, 1 token: judging; 1000 of 1500 tokens, 2 a second, about 4 min 10 s left");
  m.done = 2000;  // of a run that was preempted
  m.total = 1500;
  EXPECT_EQ(m.text(), "pass 3, 1 token: judging; 1500 of 1500 tokens, 4 a second, about 0 s left");
}

TEST(RunProgress, IsShownNoMoreThanTenTimesASecond) {
  std::vector<std::string> lines;
  RunProgress progress([&](const std::string& line) { lines.push_back(line); }, 2, 8);
  progress.begin_pass(0, 5);
  for (int i = 0; i < 1000; ++i) progress.at("computing", i % 2);
  EXPECT_GE(lines.size(), 1u);
  EXPECT_LT(lines.size(), 100u);
  EXPECT_TRUE(lines[0].starts_with("pass 0, 5 tokens: computing layer 0 of 2; 0 of 8 tokens"));
}

}  // namespace
}  // namespace lockstep
