#include <gtest/gtest.h>

#include "kernels/base/check.h"
#include "tests/traces/passes.h"

namespace lockstep {
namespace {

class RoundTrip : public testing::TestWithParam<const char*> {};

TEST_P(RoundTrip, GivesBackEverything) {
  const TempFolder scratch;
  const std::string path = scratch / GetParam();
  const bool full = !path.ends_with(".journal");
  write_test_trace(
      path, 11,
      full ? TraceLevel::full : TraceLevel::digest);  // one segment and a part of another
  const auto trace = open_trace(path);
  EXPECT_TRUE(trace->complete());
  EXPECT_TRUE(trace->problems().empty());
  ASSERT_EQ(trace->passes(), 11);
  for (int i = 0; i < 11; ++i) {
    expect_equal(trace->read(i, false), test_pass(i), false);
    expect_equal(trace->read(i, true), test_pass(i, full), true);
  }
  EXPECT_THROW(trace->read(11, false), Error);
  EXPECT_THROW(trace->read(-1, false), Error);

  const Manifest& got = trace->manifest();
  const Manifest want = test_manifest();
  for (const auto& [name, value] : want.provenance) EXPECT_EQ(got.provenance.at(name), value);
  EXPECT_EQ(got.provenance.size(), want.provenance.size() + 1) << "and a run_id";
  EXPECT_EQ(got.graph, want.graph);
  EXPECT_EQ(got.dtype, DType::bf16);
  EXPECT_EQ(got.level, full ? TraceLevel::full : TraceLevel::digest);
  EXPECT_EQ(got.selection, want.selection);
  EXPECT_EQ(got.contracts, want.contracts);
  expect_equal(got.requests, ended_requests());
}

TEST_P(RoundTrip, OfNoPassAtAll) {
  const TempFolder scratch;
  const std::string path = scratch / GetParam();
  write_test_trace(path, 0, TraceLevel::digest);
  const auto trace = open_trace(path);
  EXPECT_TRUE(trace->complete());
  EXPECT_EQ(trace->passes(), 0);
}

TEST_P(RoundTrip, NothingIsOverwritten) {
  const TempFolder scratch;
  const std::string path = scratch / GetParam();
  write_test_trace(path, 1, TraceLevel::digest);
  try {
    create_trace(path, test_manifest(TraceLevel::digest));
    FAIL() << "a trace was written over another";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("exists already"), std::string::npos);
  }
  EXPECT_TRUE(open_trace(path)->complete());
}

TEST_P(RoundTrip, ATraceThatWasNotFinishedIsIncompleteAndReadable) {
  const TempFolder scratch;
  const std::string path = scratch / GetParam();
  {
    const auto writer = create_trace(path, test_manifest(TraceLevel::digest));
    writer->write(test_pass(0, false));
    EXPECT_THROW(writer->write(test_pass(0, false)), Error) << "the same pass twice";
  }
  const std::string there = path.ends_with(".h5") ? path + ".part" : path;
  EXPECT_EQ(std::filesystem::exists(path), there == path);
  const auto trace = open_trace(there);
  EXPECT_FALSE(trace->complete());
  ASSERT_EQ(trace->problems().size(), 1u);
  EXPECT_NE(trace->problems().back().find("did not end"), std::string::npos);
  ASSERT_EQ(trace->passes(), 1);
  expect_equal(trace->read(0, true), test_pass(0, false), true);
}

// As traces were written that had numbers of attn.kv too: then its hash is of the bytes.
TEST_P(RoundTrip, OfACacheWhoseDigestHasNumbers) {
  const TempFolder scratch;
  const std::string path = scratch / GetParam();
  const bool full = !path.ends_with(".journal");
  Pass pass = test_pass(0);
  for (RecordedTensor& tensor : pass.tensors) {
    if (tensor.point->is_cache()) tensor.digest = digest_of(tensor.data);
    if (!full) tensor.data = {};
  }
  const auto writer =
      create_trace(path, test_manifest(full ? TraceLevel::full : TraceLevel::digest));
  writer->write(pass);
  writer->finish(ended_requests());
  expect_equal(open_trace(path)->read(0, true), pass, true);
}

// As traces are that do not say who inherits what: it is not taken for nobody.
TEST_P(RoundTrip, OfPassesThatDoNotSayWhoInherits) {
  const TempFolder scratch;
  const std::string path = scratch / GetParam();
  const auto writer = create_trace(path, test_manifest(TraceLevel::digest));
  std::vector<Pass> passes;
  for (int i = 0; i < 3; ++i) {
    Pass& pass = passes.emplace_back(test_pass(i, false));
    pass.info.inherited.clear();
    pass.info.inherited_known = false;
    writer->write(pass);
  }
  writer->finish(ended_requests());
  const auto trace = open_trace(path);
  for (int i = 0; i < 3; ++i)
    expect_equal(trace->read(i, true), passes[static_cast<size_t>(i)], true);
}

INSTANTIATE_TEST_SUITE_P(Formats, RoundTrip, testing::Values("x.trace", "x.h5", "x.journal"),
                         [](const auto& name) { return std::string(name.param).substr(2); });

TEST(SingleFile, LeavesNothingBeside) {
  const TempFolder scratch;
  write_test_trace(scratch / "x.h5", 3);
  EXPECT_FALSE(std::filesystem::exists(scratch / "x.h5.part"));
  std::filesystem::create_directory(scratch / "y.h5.part");
  EXPECT_THROW(create_trace(scratch / "y.h5", test_manifest()), Error);
}

TEST(CreateTrace, RefusesWhatItCannotWrite) {
  const TempFolder scratch;
  EXPECT_THROW(create_trace(scratch / "x.zip", test_manifest()), Error);
  EXPECT_THROW(create_trace(scratch / "none/x.trace", test_manifest()), Error);
  EXPECT_THROW(create_trace(scratch / "x.journal", test_manifest(TraceLevel::full)), Error);
  Pass pass = test_pass(0);
  pass.tensors[0].digest = {};
  const auto writer = create_trace(scratch / "x.trace", test_manifest());
  EXPECT_THROW(writer->write(pass), Error) << "a tensor without a digest";
}

TEST(Names, OfLevelsGoBothWays) {
  for (TraceLevel level :
       {TraceLevel::off, TraceLevel::digest, TraceLevel::flagged, TraceLevel::full})
    EXPECT_EQ(trace_level_from(name_of(level)), level);
  EXPECT_THROW(trace_level_from("all"), Error);
}

}  // namespace
}  // namespace lockstep
