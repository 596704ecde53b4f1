// A result that a trace keeps is there, and the trace is what it was.
#include "traces/kept_result.h"

#include <gtest/gtest.h>

#include "tests/traces/journal_bytes.h"
#include "tests/traces/passes.h"
#include "traces/seal.h"

namespace lockstep {
namespace {

// A journal keeps digests alone.
TraceLevel level_of(std::string_view path) {
  return path.ends_with(".journal") ? TraceLevel::digest : TraceLevel::full;
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

INSTANTIATE_TEST_SUITE_P(Formats, KeptResult, testing::Values("x.trace", "x.h5", "x.journal"));

class KeptInFile : public KeptResult {};

TEST_P(KeptInFile, LiesBehindATraceOfWhichNoByteChanges) {
  const std::string before = text_of(path);
  write_kept_result(path, first);
  EXPECT_EQ(text_of(path).substr(0, before.size()), before);
}

TEST_P(KeptInFile, ThatWasCutIsRefused) {
  const std::string before = text_of(path);
  write_kept_result(path, first);
  const std::string after = text_of(path);
  for (size_t bytes = before.size() + 1; bytes < after.size(); ++bytes) {
    scratch.write(GetParam(), after.substr(0, bytes));
    expect_trouble(path + ": the result that it keeps was cut", [&] { read_kept_result(path); });
    if (bytes % 16 == 0) expect_whole();
  }
  scratch.write(GetParam(), before);
  EXPECT_EQ(read_kept_result(path), "") << "all of it is gone";
  write_kept_result(path, second);
  EXPECT_EQ(read_kept_result(path), second);
  EXPECT_EQ(text_of(path).substr(0, before.size()), before);
}

TEST_P(KeptInFile, ThatWasDamagedIsRefused) {
  write_kept_result(path, second);
  std::string bytes = text_of(path);
  bytes[bytes.rfind("clean")] = 'g';
  scratch.write(GetParam(), bytes);
  expect_trouble(path + ": the result that it keeps was cut or changed",
                 [&] { read_kept_result(path); });
  expect_whole();
}

INSTANTIATE_TEST_SUITE_P(Formats, KeptInFile, testing::Values("x.h5", "x.journal"));

TEST(KeptInHdf5, IsAllThatMayFollowATrace) {
  const TempFolder scratch;
  const std::string path = scratch / "x.h5";
  write_test_trace(path, 1);
  scratch.write("x.h5", text_of(path) + "more");
  expect_trouble("it was cut or changed", [&] { open_trace(path); });
}

TEST(KeptInJournal, NeedsATraceThatEnded) {
  const TempFolder scratch;
  const std::string path = scratch / "x.journal";
  write_test_trace(path, 1, TraceLevel::digest);
  const std::string whole = text_of(path), cut = whole.substr(0, whole.size() - 10);
  scratch.write("x.journal", cut);
  expect_trouble("it was cut or damaged", [&] { write_kept_result(path, "{}"); });
  EXPECT_EQ(text_of(path), cut);
  std::vector<JournalPart> parts = journal_parts(whole);
  parts.back() = {JournalKind::result, "{}"};
  scratch.write("x.journal", journal_of(parts));
  EXPECT_FALSE(open_trace(path)->complete()) << "a result in the place of the end is no end";
  parts.pop_back();
  scratch.write("x.journal", journal_of(parts));
  expect_trouble("its run did not end", [&] { write_kept_result(path, "{}"); });
}

TEST(KeptInJournal, IsAllThatMayFollowATrace) {
  const TempFolder scratch;
  const std::string path = scratch / "x.journal";
  write_test_trace(path, 1, TraceLevel::digest);
  for (const JournalKind kind : {JournalKind::manifest, JournalKind::pass, JournalKind::tensor}) {
    std::vector<JournalPart> parts = journal_parts(text_of(path));
    parts.push_back({kind, parts[0].body});
    scratch.write("y.journal", journal_of(parts));
    EXPECT_FALSE(open_trace(scratch / "y.journal")->complete());
  }
}

}  // namespace
}  // namespace lockstep
