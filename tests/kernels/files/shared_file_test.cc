#include "kernels/files/shared_file.h"

#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "tests/helpers.h"

namespace lockstep {
namespace {

std::string noise(size_t bytes) {
  std::mt19937 random(7);
  std::string text(bytes, '\0');
  for (char& c : text) c = static_cast<char>(random());
  return text;
}

// A new file there, which is gone with this object; memory: of the machine's file system in it.
class Place {
 public:
  explicit Place(bool memory)
      : path_(memory ? "/dev/shm/lockstep-" + std::to_string(getpid()) : temp_path("shared")) {
    std::ofstream(path_).flush();
  }
  ~Place() { std::filesystem::remove(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

class SharedFileIn : public testing::TestWithParam<bool> {};

// Odd places and lengths, so that pages are shared between threads.
TEST_P(SharedFileIn, HoldsWhatSeveralThreadsPutThere) {
  if (GetParam() && !std::filesystem::is_directory("/dev/shm")) GTEST_SKIP() << "no /dev/shm";
  const Place place(GetParam());
  const std::string text = noise(9'000'001);
  const std::vector<size_t> edges = {0, 3, 1'300'007, 1'300'008, 4'100'000, 8'999'999, text.size()};
  {
    const SharedFile file(place.path());
    std::vector<std::jthread> threads;
    for (size_t i = edges.size() - 1; i > 0; --i)  // the end of the file first
      threads.emplace_back([&, i] {
        file.write(text.data() + edges[i - 1], static_cast<int64_t>(edges[i] - edges[i - 1]),
                   static_cast<int64_t>(edges[i - 1]));
      });
  }
  EXPECT_TRUE(text_of(place.path()) == text);
}

TEST_P(SharedFileIn, LeavesTheRestOfTheFileAlone) {
  if (GetParam() && !std::filesystem::is_directory("/dev/shm")) GTEST_SKIP() << "no /dev/shm";
  const Place place(GetParam());
  std::string want = noise(6'000'000);
  std::ofstream(place.path(), std::ios::binary) << want;
  const std::string part(2'500'000, 'x');
  want.replace(1'000'001, part.size(), part);
  SharedFile(place.path()).write(part.data(), std::ssize(part), 1'000'001);
  EXPECT_TRUE(text_of(place.path()) == want);
}

INSTANTIATE_TEST_SUITE_P(Both, SharedFileIn, testing::Bool(),
                         [](const auto& in) { return in.param ? "memory" : "temporary_files"; });

TEST(SharedFile, SaysWhatCannotBeWritten) {
  expect_trouble("No such file", [] { SharedFile(temp_path("none")); });
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "no /dev/full";
  expect_trouble("/dev/full: the disk is full", [] {
    const std::string text = noise(5'000'000);
    SharedFile("/dev/full").write(text.data(), std::ssize(text), 0);
  });
}

}  // namespace
}  // namespace lockstep
