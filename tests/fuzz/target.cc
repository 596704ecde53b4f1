#include "tests/fuzz/target.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "kernels/base/check.h"
#include "kernels/base/printable.h"

namespace lockstep::fuzz {
namespace {

class Folder {
 public:
  Folder() {
    if (mkdtemp(path_.data()) == nullptr) wrong("no temporary folder");
  }
  ~Folder() {
    std::error_code ignored;  // a destructor has nobody to tell
    std::filesystem::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_ = std::filesystem::temp_directory_path() / "lockstep-fuzz-XXXXXX";
};

// Words of libraries, which no sentence of this project has.
constexpr std::array<std::string_view, 6> kForeign = {
    "json.exception", "std::", "basic_string", "vector::", "bad_alloc", "filesystem error"};

void check_sentence(const std::string& sentence, std::string_view input) {
  constexpr size_t kMost = 1000;
  if (sentence.empty() || sentence.size() > kMost || printable(sentence) != sentence)
    wrong("an Error that is no printable line of at most 1000 bytes: " + sentence);
  for (const std::string_view word : kForeign)
    if (sentence.find(word) != sentence.npos && printable(input).find(word) == input.npos)
      wrong("an Error in the words of a library: " + sentence);
}

}  // namespace

void wrong(const std::string& what) {
  std::fprintf(stderr, "finding: %s\n", what.c_str());
  std::abort();
}

bool attempt(std::string_view input) {
  try {
    read(input);
    return true;
  } catch (const Error& error) {
    check_sentence(error.what(), input);
    return false;
  }
}

std::string path_of(const std::string& name) {
  static const Folder folder;
  return folder.path() + "/" + name;
}

std::string write(const std::string& name, std::string_view text) {
  const std::string path = path_of(name);
  // A new file each time: HDF5's library knows a file by its inode, and one that it was led not to
  // close would be read in the place of the next.
  std::filesystem::remove(path);
  std::ofstream(path, std::ios::binary) << text;
  return path;
}

uint8_t Bytes::byte() {
  const std::string_view one = take(1);
  return one.empty() ? uint8_t{0} : static_cast<uint8_t>(one[0]);
}

int64_t Bytes::number() {
  const uint8_t kind = byte();
  if (kind < 128) return kind - 32;  // -32 to 95
  if (kind < 255) return static_cast<int64_t>((uint64_t{1} << (kind & 63)) + (kind >> 6 & 1) - 1);
  int64_t any = 0;
  const std::string_view bytes = take(sizeof any);
  std::memcpy(&any, bytes.data(), bytes.size());
  return any;
}

std::string_view Bytes::take(size_t count) {
  const std::string_view taken = rest_.substr(0, count);
  rest_.remove_prefix(taken.size());
  return taken;
}

std::string_view Bytes::part() {
  const std::string_view taken = rest_.substr(0, rest_.find('\0'));
  rest_.remove_prefix(std::min(rest_.size(), taken.size() + 1));
  return taken;
}

}  // namespace lockstep::fuzz
