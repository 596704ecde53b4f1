// The side of the usual build: `replay FOLDER...` reads every file of the folders, in the order of
// their names, and fails on the first that is a finding. It says which one it reads before it does,
// for a crash tells nothing.
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "tests/fuzz/target.h"

namespace {

constexpr unsigned kMostSeconds = 5;

long peak_kb() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  return used.ru_maxrss;
}

// AddressSanitizer keeps what was freed, so that its peak tells nothing.
#ifdef __SANITIZE_ADDRESS__
constexpr bool kPeakTells = false;
#else
constexpr bool kPeakTells = true;
#endif

bool taken(const std::string& input) {
  const long before = peak_kb();
  const long most = 64 * (1024 + static_cast<long>(input.size()) / 1024);
  alarm(kMostSeconds);  // ends the process
  const bool took = lockstep::fuzz::attempt(input);
  alarm(0);
  if (kPeakTells && peak_kb() - before > most)
    lockstep::fuzz::wrong("more than 64 times the input and 64 MB of memory");
  return took;
}

}  // namespace

int main(int count, char** arguments) {
  std::vector<std::filesystem::path> files;
  for (int i = 1; i < count; ++i)
    for (const auto& file : std::filesystem::directory_iterator(arguments[i]))
      files.push_back(file.path());
  std::ranges::sort(files);
  size_t took = 0;
  for (const auto& path : files) {
    std::printf("%s\n", path.filename().c_str());
    std::fflush(stdout);
    std::ifstream file(path, std::ios::binary);
    took += taken(std::string(std::istreambuf_iterator<char>(file), {})) ? 1 : 0;
  }
  std::printf("%zu files, of which %zu were taken\n", files.size(), took);
  // A target that takes nothing, or everything, looks at nothing behind its first check.
  return took > 0 && took < files.size() ? 0 : 1;
}
