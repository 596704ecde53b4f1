#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "kernels/check.h"

namespace lockstep {

inline std::string test_data(const std::string& name) {
  return std::string(LOCKSTEP_TEST_DATA) + "/" + name;
}

inline std::string text_of(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

// A folder of one test, gone with it.
class Folder {
 public:
  Folder() {
    std::string name = std::filesystem::temp_directory_path() / "lockstep-XXXXXX";
    if (mkdtemp(name.data()) == nullptr) throw Error("no temporary folder for a test");
    path_ = name;
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  const std::string& path() const { return path_; }
  std::string write(const std::string& name, const std::string& text) const {
    const std::string path = path_ + "/" + name;
    std::ofstream(path, std::ios::binary) << text;
    return path;
  }
  void copy(const std::string& from) const {
    std::filesystem::copy(from, path_, std::filesystem::copy_options::recursive);
  }

 private:
  std::string path_;
};

// `body` must throw an Error whose sentence has `phrase`.
template <typename Body>
void expect_trouble(const std::string& phrase, Body body) {
  try {
    body();
    ADD_FAILURE() << "no Error; wanted one with: " << phrase;
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(phrase), std::string::npos)
        << "found: " << error.what() << "\nwanted: " << phrase;
  }
}

}  // namespace lockstep
