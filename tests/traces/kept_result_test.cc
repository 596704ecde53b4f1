// A result that a trace keeps is there, and the trace is what it was.
#include "traces/kept_result.h"

#include <gtest/gtest.h>

#include "tests/traces/passes.h"
#include "traces/seal.h"

namespace lockstep {
namespace {

// A journal keeps digests alone.
TraceLevel level_of(std::string_view path) {
  return path.ends_with(".jsonl") ? TraceLevel::digest : TraceLevel::full;
}

class KeptResult : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override { write_test_trace(path, 2, level_of(path)); }

  void expect_whole() const {
    const auto trace = open_trace(path);
    EXPECT_TRUE(trace->complete());
    ASSERT_EQ(trace->passes(), 2);
    for (int i = 0; i < 2; ++i)
      expect_equal(trace->read(i, true), test_pass(i, level_of(path) == TraceLevel::full), true);
    expect_equal(trace->manifest().requests, ended_requests());
  }

  const TempFolder scratch;
  const std::string path = scratch / GetParam();
  const std::string first = R"({"verdict":"diverged","story":"a\nb","findings":[0.1,1e-300]})",
                    second = R"({"verdict":"clean"})";
};

TEST_P(KeptResult, IsReadBackAndReplaced) {
  EXPECT_EQ(read_kept_result(path), "");
  for (const std::string& json : {first, second, first}) {
    write_kept_result(path, json);
    EXPECT_EQ(read_kept_result(path), json);
    expect_whole();
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, KeptResult, testing::Values("x.trace", "x.h5", "x.jsonl"));

class KeptInFile : public KeptResult {};

TEST_P(KeptInFile, LiesBehindATraceOfWhichNoByteChanges) {
  const std::string before = text_of(path);
  write_kept_result(path, first);
  EXPECT_EQ(text_of(path).substr(0, before.size()), before);
}

TEST_P(KeptInFile, ThatWasCutIsNone) {
  const std::string before = text_of(path);
  write_kept_result(path, first);
  const std::string after = text_of(path);
  for (size_t bytes = before.size(); bytes < after.size(); bytes += 3) {
    scratch.write(GetParam(), after.substr(0, bytes));
    EXPECT_EQ(read_kept_result(path), "") << bytes;
    expect_whole();
  }
  write_kept_result(path, second);
  EXPECT_EQ(read_kept_result(path), second);
  EXPECT_EQ(text_of(path).substr(0, before.size()), before);
}

INSTANTIATE_TEST_SUITE_P(Formats, KeptInFile, testing::Values("x.h5", "x.jsonl"));

TEST(KeptInHdf5, ThatWasDamagedIsNone) {
  const TempFolder scratch;
  const std::string path = scratch / "x.h5";
  write_test_trace(path, 1);
  write_kept_result(path, R"({"verdict":"clean"})");
  std::string bytes = text_of(path);
  bytes[bytes.rfind("clean")] = 'g';
  scratch.write("x.h5", bytes);
  EXPECT_EQ(read_kept_result(path), "");
  EXPECT_TRUE(open_trace(path)->complete());
}

TEST(KeptInHdf5, IsAllThatMayFollowATrace) {
  const TempFolder scratch;
  const std::string path = scratch / "x.h5";
  write_test_trace(path, 1);
  scratch.write("x.h5", text_of(path) + "more");
  expect_trouble("it was cut or changed", [&] { open_trace(path); });
}

TEST(KeptInJournal, NeedsATraceThatEnded) {
  const TempFolder scratch;
  const std::string path = scratch / "x.jsonl";
  write_test_trace(path, 1, TraceLevel::digest);
  const std::string whole = text_of(path), cut = whole.substr(0, whole.size() - 10);
  scratch.write("x.jsonl", cut);
  expect_trouble("its last line was cut", [&] { write_kept_result(path, "{}"); });
  EXPECT_EQ(text_of(path), cut);
  // A result in the place of the end is no end.
  scratch.write("x.jsonl", whole.substr(0, whole.rfind('\n', whole.size() - 2) + 1) +
                               std::string(kResultLine) + "{}}\n");
  EXPECT_FALSE(open_trace(path)->complete());
}

}  // namespace
}  // namespace lockstep
