#include "kernels/files/text.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "kernels/base/printable.h"
#include "tests/helpers.h"

namespace lockstep {
namespace {

constexpr size_t kMost = 1 << 20;

TEST(ReadText, TakesAWholeFileAndNoMoreThanItMay) {
  const TempFolder folder;
  const std::string text(200'001, 'x');
  EXPECT_EQ(read_text(folder.write("long", text), text.size()), text);
  EXPECT_EQ(read_text(folder.write("empty", ""), 0), "");
  EXPECT_EQ(error_of([&] { read_text(folder / "long", 200'000); }),
            "\"" + folder / "long" +
                "\" has more than 200000 bytes, and no file of its kind does: give another");
  EXPECT_NE(read_text("/proc/self/status", kMost), "") << "whose size the system does not know";
}

// It opens, and nothing can be read of it: there is nothing at address 0.
TEST(ReadText, DoesNotTakeAFailureForTheEnd) {
  EXPECT_EQ(error_of([] { read_text("/proc/self/mem", kMost); }),
            "\"/proc/self/mem\" cannot be read to its end (Input/output error, after 0 bytes): "
            "check the disk");
}

// A device may have no end, and a pipe that nobody writes would be waited for.
TEST(ReadText, RefusesWhatIsNoFile) {
  const TempFolder folder;
  ASSERT_EQ(mkfifo((folder / "pipe").c_str(), 0600), 0);
  for (const auto& [path, kind] : std::vector<std::pair<std::string, std::string>>{
           {folder / "pipe", "a pipe"}, {"/dev/full", "a device"}, {folder.path(), "a folder"}})
    EXPECT_EQ(
        error_of([&] { read_text(path, kMost); }),
        "\"" + path + "\" should be a regular file and is " + kind + ": give the path of a file");
  expect_trouble("cannot be opened (No such file", [&] { read_text(folder / "none", kMost); });
}

TEST(ReadText, ReadsAPipeThatTheProcessWasGiven) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  ASSERT_EQ(write(ends[1], "text", 4), 4);
  close(ends[1]);
  EXPECT_EQ(read_text("/dev/fd/" + std::to_string(ends[0]), kMost), "text");
  close(ends[0]);
}

TEST(Printable, IsOneLineThatShowsWhatWasThere) {
  EXPECT_EQ(printable("a\tb\r\n\x1b[31m\x7f"), "a\\tb\\r\\n\\x1b[31m\\x7f");
  EXPECT_EQ(printable(std::string("a\0b", 3)), "a\\x00b");
  EXPECT_EQ(printable("\xff\xe6\x9d"), "\\xff\\xe6\\x9d");
  EXPECT_EQ(printable("\u6771 \u00e9 \U0001F600"), "\u6771 \u00e9 \U0001F600");
  EXPECT_EQ(printable("\uffff\ufffe\ufdd0\U0001fffe\ufffd"), "\\uffff\\ufffe\\ufdd0\\u1fffe\ufffd")
      << "no characters, but for the last";
  EXPECT_EQ(printable("\u202e\u0085"), "\\u202e\\u0085") << "which turn and break a line";
  EXPECT_EQ(printable(printable("\n\xff")), printable("\n\xff"));
}

TEST(Shown, IsCutBetweenCharacters) {
  EXPECT_EQ(shown(std::string(80, 'x')), std::string(80, 'x'));
  EXPECT_EQ(shown(std::string(81, 'x')), std::string(80, 'x') + "...");
  std::string umlauts, want;
  for (int i = 0; i < 1000; ++i) umlauts += "\u00fc";
  for (int i = 0; i < 80; ++i) want += "\u00fc";
  EXPECT_EQ(shown(umlauts), want + "...");
}

TEST(Error, IsOneLineWhateverItTells) {
  EXPECT_EQ(error_of([] { fail("{} is no name", std::string("a\n\0b", 4)); }),
            "a\\n\\x00b is no name");
  const std::string sentence = error_of([] { fail("{}: do this", std::string(100'000, 'x')); });
  EXPECT_LE(sentence.size(), 1000u);
  EXPECT_TRUE(sentence.ends_with("x: do this")) << sentence;
}

}  // namespace
}  // namespace lockstep
