// Readings that end their process, and files that make HDF5's library do so.
#include "traces/trial.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <cstring>

#include "kernels/base/check.h"
#include "tests/traces/passes.h"
#include "traces/seal.h"

namespace lockstep {
namespace {

std::string error_of_trial(const std::function<void()>& reading) {
  const TempFolder scratch;
  scratch.write("x.h5", "x");
  try {
    try_reading(scratch / "x.h5", reading);
  } catch (const Error& error) {
    const std::string sentence = error.what();
    return sentence.substr(sentence.find("x.h5"));
  }
  return "";
}

TEST(Trial, AReadingThatEndsIsNoTrouble) {
  int read = 0;
  EXPECT_EQ(error_of_trial([&] { ++read; }), "");
  EXPECT_EQ(read, 0) << "it was read in this process";
}

TEST(Trial, ACrashIsASentence) {
  const std::string crash =
      "x.h5: HDF5's library crashes as it reads it: the file is damaged or was forged";
  EXPECT_EQ(error_of_trial([] { ::raise(SIGSEGV); }), crash);
  EXPECT_EQ(error_of_trial([] { ::abort(); }), crash);
  EXPECT_EQ(error_of_trial([] { ::_exit(1); }), crash);
}

TEST(Trial, WhatItThrowsIsThrownHere) {
  EXPECT_EQ(error_of_trial([] { fail("x.h5: is no trace"); }), "x.h5: is no trace");
  EXPECT_EQ(error_of_trial([] { throw std::bad_alloc(); }),
            "x.h5: wants more memory than any file of its size: the file is damaged");
}

TEST(Trial, AReadingWithoutAnEndIsEnded) {
  rlimit before{};
  getrlimit(RLIMIT_CPU, &before);
  rlimit second = before;
  second.rlim_cur = 1;
  ASSERT_EQ(setrlimit(RLIMIT_CPU, &second), 0);  // the trial has no more than that
  EXPECT_EQ(error_of_trial([] {
              volatile bool again = true;
              while (again) {
              }
            }),
            "x.h5: reading it did not end: the file is damaged or was forged");
  setrlimit(RLIMIT_CPU, &before);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST(Trial, MemoryIsBoundedByTheFile) {
  EXPECT_EQ(error_of_trial([] { std::string(size_t{1} << 30, 'x'); }),
            "x.h5: wants more memory than any file of its size: the file is damaged");
}
#endif

// Texts lie in a heap of the file. Its library believes what the heap says of their lengths.
TEST(Trial, AForgedHeapIsASentence) {
  const TempFolder scratch;
  const std::string path = scratch / "x.h5";
  write_test_trace(path, 1);
  const std::string whole = text_of(path);
  const size_t heap = whole.find("GCOL");
  ASSERT_NE(heap, std::string::npos);
  int refused = 0;
  for (const size_t at : {heap + 8, heap + 16, heap + 24, heap + 32})
    for (const uint64_t value : {uint64_t{0}, uint64_t{7}, uint64_t{1} << 20, ~uint64_t{0}}) {
      SCOPED_TRACE(fmt::format("{} at {}", value, at - heap));
      std::string forged = whole;
      std::memcpy(&forged[at], &value, sizeof value);
      scratch.write("x.h5", forged);
      write_seal(path, kSealBytes);
      const std::string error = open_error(path);
      refused += error.empty() ? 0 : 1;
      EXPECT_TRUE(error.empty() || error.find("x.h5: ") != std::string::npos) << error;
    }
  EXPECT_GT(refused, 4);
}

}  // namespace
}  // namespace lockstep
