#include "kernels/files/disk.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <csignal>

#include "tests/helpers.h"

namespace lockstep {
namespace {

mode_t mode_of(const std::string& path) {
  struct stat status {};
  stat(path.c_str(), &status);
  return status.st_mode & 07777;
}

std::vector<std::string> names_in(const TempFolder& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path()))
    names.push_back(entry.path().filename());
  std::ranges::sort(names);
  return names;
}

TEST(NewFile, IsItsOwnersAloneUntilItIsWhole) {
  const TempFolder folder;
  folder.write("a.json", "before");
  {
    NewFile file(folder / "a.json");
    file.write("after");
    EXPECT_EQ(text_of(folder / "a.json"), "before");
    EXPECT_EQ(mode_of(file.name()), 0600u);
    EXPECT_TRUE(file.name().starts_with(folder / "a.json.") && file.name().ends_with(".part"));
    const mode_t mask = umask(027);
    file.publish(Durable::yes);
    umask(mask);
  }
  EXPECT_EQ(text_of(folder / "a.json"), "after");
  EXPECT_EQ(mode_of(folder / "a.json"), 0640u) << "as the umask of the user has it";
  EXPECT_EQ(names_in(folder), std::vector<std::string>{"a.json"});
}

TEST(NewFile, IsGoneWhereItIsNotPublishedAndTouchesNothingElse) {
  const TempFolder folder;
  folder.write("a.json", "mine");
  folder.write("a.json.part", "somebody's");
  {
    NewFile one(folder / "a.json"), two(folder / "a.json");
    one.write("x");
    EXPECT_NE(one.name(), two.name()) << "two writers are not in each other's way";
  }
  EXPECT_EQ(text_of(folder / "a.json"), "mine");
  EXPECT_EQ(text_of(folder / "a.json.part"), "somebody's");
  EXPECT_EQ(names_in(folder).size(), 2u);
}

TEST(NewFile, SaysWhyThereCanBeNone) {
  const TempFolder folder;
  EXPECT_EQ(error_of([&] { replace_file(folder / "none/a.json", "x", Durable::no); }),
            folder / "none/a.json" +
                " cannot be written: No such file or directory; name a file in a folder that "
                "exists and has room");
  std::filesystem::create_directories(folder / "taken/inside");
  expect_trouble("taken cannot be written",
                 [&] { replace_file(folder / "taken", "x", Durable::no); });
  EXPECT_EQ(names_in(folder), std::vector<std::string>{"taken"});
  replace_file(folder / std::string(255, 'n'), "x", Durable::no);  // the longest name there is
  EXPECT_EQ(names_in(folder).size(), 2u);
}

// The command ignores the signal, so that the write fails.
[[noreturn]] void write_beyond_the_limit(const std::string& path) {
  std::signal(SIGXFSZ, SIG_IGN);
  const rlimit limit{1000, 1000};
  setrlimit(RLIMIT_FSIZE, &limit);
  const std::string error =
      error_of([&] { replace_file(path, std::string(2000, 'x'), Durable::no); });
  const bool said = error == path +
                                 ": grew larger than this process may make a file: raise the "
                                 "limit (ulimit -f)";
  std::_Exit(said ? 0 : 1);
}

TEST(NewFile, ThatMayNotGrowIsASentence) {
  const TempFolder folder;
  EXPECT_EXIT(write_beyond_the_limit(folder / "a.json"), testing::ExitedWithCode(0), "");
  EXPECT_EQ(names_in(folder), std::vector<std::string>{});
}

TEST(AppendFile, ExtendsWhatIsThereOnlyWhereItMay) {
  const TempFolder folder;
  folder.write("log", "a\n");
  expect_trouble("File exists", [&] { AppendFile(folder / "log"); });
  AppendFile(folder / "log", /*may_exist=*/true).append("b\n");
  EXPECT_EQ(text_of(folder / "log"), "a\nb\n");
}

}  // namespace
}  // namespace lockstep
