// What tests of every room use; it needs no engine.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "kernels/base/check.h"
#include "tests/places.h"

namespace lockstep {

inline std::string data_path(const std::string& name) { return source_path("tests/data/" + name); }

inline std::string text_of(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

// A folder that is gone with this object, but for a process that was forked from its owner's.
class TempFolder {
 public:
  TempFolder() {
    if (mkdtemp(path_.data()) == nullptr) throw Error("no temporary folder for a test");
  }
  ~TempFolder() {
    std::error_code ignored;  // a destructor has nobody to tell
    if (getpid() == owner_) std::filesystem::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(*this / name, std::ios::binary) << text;
    return *this / name;
  }
  void copy(const std::string& from) const {
    std::filesystem::copy(from, path_, std::filesystem::copy_options::recursive);
  }

 private:
  pid_t owner_ = getpid();
  std::string path_ = std::filesystem::temp_directory_path() / "lockstep-XXXXXX";
};

// A path for a test's own file, in a folder that is gone when its process ends.
inline std::string temp_path(const std::string& name) {
  static const TempFolder folder;
  return folder / name;
}

// The sentence of the Error that `body` throws; fails the test when it throws none.
template <typename Body>
std::string error_of(Body body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  ADD_FAILURE() << "an Error was expected";
  return "";
}

// `body` must throw an Error whose sentence has `phrase`.
template <typename Body>
void expect_trouble(const std::string& phrase, Body body) {
  const std::string error = error_of(body);
  EXPECT_NE(error.find(phrase), std::string::npos) << "found: " << error << "\nwanted: " << phrase;
}

// `count` token ids below `vocab` that look like nothing special, always the same for one seed.
inline std::vector<int32_t> some_tokens(int64_t count, int64_t vocab, uint64_t seed = 1) {
  std::vector<int32_t> tokens;
  for (uint64_t state = seed * 0x9e3779b97f4a7c15u; std::ssize(tokens) < count;) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    tokens.push_back(static_cast<int32_t>((state >> 33) % static_cast<uint64_t>(vocab)));
  }
  return tokens;
}

}  // namespace lockstep
