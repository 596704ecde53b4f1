#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include "kernels/base/check.h"
#include "tests/traces/journal_bytes.h"
#include "tests/traces/passes.h"
#include "traces/segment.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

void put(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

void replace(const std::string& path, const std::string& from, const std::string& to) {
  std::string bytes = text_of(path);
  const size_t at = bytes.find(from);
  ASSERT_NE(at, std::string::npos) << from;
  put(path, bytes.replace(at, from.size(), to));
}

bool mentions(const std::vector<std::string>& sentences, const std::string& word) {
  return std::ranges::any_of(sentences, [&](const std::string& sentence) {
    return sentence.find(word) != std::string::npos;
  });
}

void expect_mention(const std::string& sentence, const std::string& word) {
  EXPECT_NE(sentence.find(word), std::string::npos) << sentence << "\nand not " << word;
}

class Damage : public testing::Test {
 protected:
  void SetUp() override {
    write_test_trace(folder, 20);  // segments of 8, 8 and 4 passes
    write_test_trace(file, 2);
  }

  TempFolder scratch;
  std::string folder = scratch / "x.trace", file = scratch / "x.h5";
};

// What is left of the folder after damage: the passes of `lost` as digests, all others whole.
void expect_digests_of(const std::string& folder, int first, int last) {
  const auto trace = open_trace(folder);
  EXPECT_FALSE(trace->complete());
  ASSERT_EQ(trace->passes(), 20);
  for (int i = 0; i < 20; ++i) {
    const bool lost = i >= first && i <= last;
    expect_equal(trace->read(i, true), test_pass(i, !lost), true);
  }
  expect_equal(trace->manifest().requests, ended_requests());
}

TEST_F(Damage, ASegmentCutAnywhereIsReportedAndItsDigestsComeFromTheJournal) {
  const std::string segment = folder + "/seg-000001.h5", whole = text_of(segment);
  for (size_t size : {size_t{0}, size_t{1}, size_t{47}, size_t{1000}, whole.size() / 3,
                      whole.size() / 2, whole.size() - 5000, whole.size() - 1}) {
    SCOPED_TRACE(size);
    put(segment, whole.substr(0, size));
    expect_digests_of(folder, 8, 15);
    EXPECT_TRUE(mentions(open_trace(folder)->problems(), "seg-000001.h5"));
    EXPECT_TRUE(mentions(open_trace(folder)->problems(), "passes 8..15"));
  }
}

TEST_F(Damage, AMissingSegmentIsReported) {
  fs::remove(folder + "/seg-000002.h5");
  expect_digests_of(folder, 16, 19);
  EXPECT_TRUE(mentions(open_trace(folder)->problems(), "passes 16..19"));
  fs::remove(folder + "/run.journal");
  const auto trace = open_trace(folder);
  EXPECT_EQ(trace->passes(), 16);
  EXPECT_TRUE(mentions(trace->problems(), "4 of its 20 passes are missing altogether"));
}

TEST_F(Damage, AHoleAmongTheSegmentsIsNamed) {
  fs::remove(folder + "/seg-000000.h5");
  EXPECT_TRUE(mentions(open_trace(folder)->problems(), "seg-000000.h5 is missing"));
  expect_digests_of(folder, 0, 7);
}

// A number that is far off is not counted up to.
TEST_F(Damage, ManyMissingSegmentsAreOneSentence) {
  fs::rename(folder + "/seg-000002.h5", folder + "/seg-999999.h5");
  const auto trace = open_trace(folder);
  EXPECT_TRUE(
      mentions(trace->problems(), "seg-000002.h5 to seg-999998.h5 are missing, 999997 segments"));
  EXPECT_LT(trace->problems().size(), 5u);
  EXPECT_EQ(trace->passes(), 20);
}

TEST_F(Damage, ASegmentOfAnotherRunIsNotMixedIn) {
  write_test_trace(scratch / "y.trace", 20);
  fs::copy_file(scratch / "y.trace/seg-000001.h5", folder + "/seg-000001.h5",
                fs::copy_options::overwrite_existing);
  EXPECT_TRUE(mentions(open_trace(folder)->problems(), "another run"));
  expect_digests_of(folder, 8, 15);
}

TEST_F(Damage, ACutJournalIsUsedUpToTheCut) {
  fs::remove(folder + "/seg-000002.h5");
  const std::string journal = folder + "/run.journal", whole = text_of(journal);
  const std::vector<JournalPart> parts = journal_parts(whole);
  size_t at = 0;
  for (int passes = 0; passes < 19; ++at) passes += parts[at].kind == JournalKind::pass;
  const size_t pass_18 = journal_places(whole)[at - 1], tensor = journal_places(whole)[at];
  for (size_t size : {pass_18, pass_18 + 1, pass_18 + 40, tensor, tensor + 1, tensor + 100}) {
    SCOPED_TRACE(size);
    put(journal, whole.substr(0, size));
    const auto trace = open_trace(folder);
    EXPECT_EQ(trace->passes(), 18);
    expect_equal(trace->read(17, true), test_pass(17, false), true);
    EXPECT_TRUE(mentions(trace->problems(), "2 of its 20 passes are missing altogether"));
    EXPECT_EQ(mentions(trace->problems(), "it was cut or damaged at record"), size != pass_18);
  }
  put(journal, "");
  EXPECT_TRUE(mentions(open_trace(folder)->problems(), "the file is empty"));
  put(journal, "{]\n");
  EXPECT_TRUE(mentions(open_trace(folder)->problems(),
                       "run.journal: a journal was wanted, it does not begin"));
}

// Where a flipped byte hits a tensor is known: its bytes are in the file as they are.
TEST_F(Damage, AFlippedByteInATensorIsNamed) {
  const Pass want = test_pass(1);
  const RecordedTensor& q = want.tensors[1];
  ASSERT_EQ(q.point->name, "attn.q");
  const auto* data = q.data.as<const char>();
  std::string bytes = text_of(file);
  const size_t at = bytes.find(std::string(data, static_cast<size_t>(q.data.view().bytes())));
  ASSERT_NE(at, std::string::npos) << "the rows are not contiguous";
  bytes[at + 7] = static_cast<char>(bytes[at + 7] ^ 4);
  put(file, bytes);
  const auto trace = open_trace(file);
  expect_equal(trace->read(0, true), test_pass(0), true);
  expect_equal(trace->read(1, false), want, false);
  try {
    trace->read(1, true);
    FAIL() << "the flipped byte was not seen";
  } catch (const Error& error) {
    expect_mention(error.what(), "x.h5: in pass 1, the tensor attn.q of layer 0 is not what was");
  }
}

// As of a writer that fills the column with anything: two traces of it would be identical by it.
TEST_F(Damage, HashesOfOtherRowsAreNamed) {
  Pass pass = test_pass(0);
  ASSERT_EQ(pass.tensors[1].point->name, "attn.q");
  pass.tensors[1].row_hashes.back() ^= 1;
  const std::string path = scratch / "hashes.trace";
  const auto writer = create_trace(path, test_manifest());
  writer->write(pass);
  writer->finish({});
  const auto trace = open_trace(path);
  expect_equal(trace->read(0, false), pass, false);
  try {
    trace->read(0, true);
    FAIL() << "the wrong hash was not seen";
  } catch (const Error& error) {
    expect_mention(error.what(),
                   "the tensor attn.q of layer 0 is not what was written (its row_xxh3");
  }
}

// Wherever else: reading throws, or gives what was written (a byte between the data, say).
TEST_F(Damage, AFlippedByteAnywhereIsSeenOrHarmless) {
  const std::string whole = text_of(file);
  const Pass want[] = {test_pass(0), test_pass(1)};
  int seen = 0;
  for (size_t at = 0; at < whole.size(); at += 389) {
    SCOPED_TRACE(at);
    std::string bytes = whole;
    bytes[at] = static_cast<char>(bytes[at] ^ 0x20);
    put(file, bytes);
    try {
      const auto trace = open_trace(file);
      ASSERT_EQ(trace->passes(), 2);
      for (int i = 0; i < 2; ++i) expect_equal(trace->read(i, true), want[i], true);
    } catch (const Error&) {
      ++seen;
    }
  }
  EXPECT_GT(seen, 20);
}

TEST_F(Damage, AFileCutAnywhereIsRefused) {
  const std::string whole = text_of(file);
  for (size_t size : {size_t{0}, size_t{1}, size_t{8}, size_t{48}, size_t{2048}, whole.size() / 2,
                      whole.size() - 1}) {
    put(file, whole.substr(0, size));
    expect_mention(open_error(file), "x.h5: ");
  }
}

TEST_F(Damage, ALostTensorIsNamed) {
  const Pass pass = test_pass(1);
  replace(file, "attn.kv.request000002", "attn.kv.request000009");
  const std::string error = open_error(file);
  if (!error.empty()) return expect_mention(error, "x.h5");
  EXPECT_THROW((open_trace(file)->read(0, true), open_trace(file)->read(1, true)), Error);
}

TEST(Malformed, EachHasItsSentence) {
  const TempFolder scratch;
  expect_mention(open_error(scratch / "none.trace"), "nothing is there");
  fs::create_directory(scratch / "empty.trace");
  expect_mention(open_error(scratch / "empty.trace"), "it is empty");
  put(scratch / "empty.trace/notes.txt", "x");
  expect_mention(open_error(scratch / "empty.trace"), "no manifest.json");
  put(scratch / "empty.trace/manifest.json", "{}");
  expect_mention(open_error(scratch / "empty.trace"),
                 "manifest.json: format is missing, a text was wanted");
  put(scratch / "text.h5", "this is no HDF5 file");
  expect_mention(open_error(scratch / "text.h5"), "it does not begin as one");
  put(scratch / "zero.h5", "");
  expect_mention(open_error(scratch / "zero.h5"), "it does not begin as one");
  put(scratch / "x.zip", "PK");
  expect_mention(open_error(scratch / "x.zip"), "no trace format has that name");
  put(scratch / "x.journal", "");
  expect_mention(open_error(scratch / "x.journal"), "the file is empty");
}

TEST(Malformed, ARequestThatIsThereTwiceIsRefused) {
  const TempFolder scratch;
  const std::string file = scratch / "y.h5";
  Manifest manifest = test_manifest();
  manifest.requests.push_back(manifest.requests[1]);
  SegmentWriter segment(file, 0);
  segment.add(test_pass(0));
  segment.finish(manifest);
  expect_mention(open_error(file),
                 "y.h5: request 1 is there twice, and which of them the rows of that number are "
                 "of is not known");
}

// The tensor and its hashes are whole; what else the index says of it is not so.
TEST(Malformed, StatisticsThatAreNotTheTensorsAreRefused) {
  const TempFolder scratch;
  const auto error = [&](auto change) {
    const std::string file = scratch / "x.h5";
    fs::remove(file);
    Pass pass = test_pass(0);
    change(pass.tensors.at(1).digest);
    SegmentWriter writer(file, 0);
    writer.add(pass);
    writer.finish(test_manifest());
    return error_of([&] { open_trace(file)->read(0, true); });
  };
  const std::string tail = " differs): the file is damaged";
  expect_mention(error([](Digest& d) { d.max = 1e6; }), "attn.q of layer 0 is not what was");
  expect_mention(error([](Digest& d) { d.max = 1e6; }), "(its max" + tail);
  expect_mention(error([](Digest& d) { d.mean += 1; }), "(its mean" + tail);
  expect_mention(error([](Digest& d) { std::swap(d.exponents[100], d.exponents[120]); }),
                 "(its exponent_count" + tail);
}

TEST(Malformed, APassThatTwoSegmentsHaveIsRefused) {
  const TempFolder scratch;
  const std::string folder = scratch / "x.trace";
  write_test_trace(folder, 20);
  fs::copy_file(folder + "/seg-000001.h5", folder + "/seg-000003.h5");
  expect_mention(open_error(folder), "x.trace: pass 8 is there twice, in two segments");
}

}  // namespace
}  // namespace lockstep
