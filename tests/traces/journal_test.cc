// A journal that was cut, altered or forged: what was whole before is read, and the rest is named.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "kernels/base/check.h"
#include "tests/traces/journal_bytes.h"
#include "tests/traces/passes.h"
#include "traces/kept_result.h"

namespace lockstep {
namespace {

constexpr int kPasses = 3;

class Journal : public testing::Test {
 protected:
  void SetUp() override {
    write_test_trace(path_, kPasses, TraceLevel::digest);
    whole_ = text_of(path_);
    parts_ = journal_parts(whole_);
  }

  // How many passes are read, each as it was written, and what is said of the rest.
  struct Found {
    int passes = 0;
    std::string said;
  };
  Found found(const std::string& bytes) {
    scratch_.write("x.journal", bytes);
    Found found;
    try {
      const auto trace = open_trace(path_);
      if (!trace->complete()) found.said = "incomplete: ";
      for (const std::string& problem : trace->problems()) found.said += problem + "\n";
      for (; found.passes < trace->passes(); ++found.passes)
        expect_equal(trace->read(found.passes, true), test_pass(found.passes, false), true);
    } catch (const Error& error) {
      found.said += error.what();
    }
    return found;
  }

  // The record of the pass, and that of the n-th tensor of it.
  JournalPart& pass_part(int pass) {
    const auto is_pass = [](const JournalPart& part) { return part.kind == JournalKind::pass; };
    auto at = std::ranges::find_if(parts_, is_pass);
    for (; pass > 0; --pass) at = std::find_if(at + 1, parts_.end(), is_pass);
    return *at;
  }
  JournalPart& tensor_part(int pass, size_t n) { return *(&pass_part(pass) + 1 + n); }

  // What is said where a number of a record is another: the passes before it are read.
  template <typename T>
  std::string said_of(JournalPart& part, size_t at, T value, int passes = 0) {
    const JournalPart before = part;
    part.set(at, value);
    const Found got = found(journal_of(parts_));
    EXPECT_EQ(got.passes, passes);
    part = before;
    return got.said;
  }

  TempFolder scratch_;
  std::string path_ = scratch_ / "x.journal", whole_;
  std::vector<JournalPart> parts_;
};

void expect_in(const std::string& part, const std::string& said) {
  EXPECT_NE(said.find(part), std::string::npos) << said << "\nand not " << part;
}

TEST_F(Journal, CutAnywhereGivesThePassesBefore) {
  const std::vector<size_t> places = journal_places(whole_);
  std::vector<size_t> ends;  // of the passes
  for (size_t i = 1; i < parts_.size(); ++i)
    if (parts_[i].kind != JournalKind::tensor && i > 1) ends.push_back(places[i]);
  ASSERT_EQ(ends.size(), size_t{kPasses});
  for (size_t size = 0; size < whole_.size(); size += size < places[1] ? 97 : 13) {
    SCOPED_TRACE(size);
    const Found got = found(whole_.substr(0, size));
    EXPECT_EQ(got.passes, std::ranges::count_if(ends, [&](size_t end) { return end <= size; }));
    EXPECT_FALSE(got.said.empty());
    EXPECT_EQ(got.said.find('\n'), got.said.empty() ? 0 : got.said.find('\n'));
  }
  EXPECT_EQ(found(whole_).said, "");
}

TEST_F(Journal, AFlippedBitAnywhereIsFoundAndEverythingBeforeItIsRead) {
  const std::vector<size_t> places = journal_places(whole_);
  for (size_t at = 0; at < whole_.size(); at += at < places[1] ? 101 : 17) {
    SCOPED_TRACE(at);
    std::string bytes = whole_;
    bytes[at] = static_cast<char>(bytes[at] ^ (1 << at % 8));
    const Found got = found(bytes);
    const auto record = std::ranges::upper_bound(places, at) - places.begin() - 1;
    int before = 0;
    for (long i = 2; i <= record; ++i)
      before += parts_[static_cast<size_t>(i)].kind != JournalKind::tensor;
    EXPECT_EQ(got.passes, std::min(before, kPasses));
    EXPECT_NE(got.said, "");
  }
}

TEST_F(Journal, ARecordThatIsMissingMovedOrOfAnotherRunIsFound) {
  const std::vector<size_t> places = journal_places(whole_);
  const auto record = [&](size_t i) { return whole_.substr(places[i], places[i + 1] - places[i]); };
  const size_t n = 4;
  expect_in("its checksum is another",
            found(whole_.substr(0, places[n]) + whole_.substr(places[n + 1])).said);
  expect_in("its checksum is another", found(whole_.substr(0, places[n]) + record(n + 1) +
                                             record(n) + whole_.substr(places[n + 2]))
                                           .said);
  write_test_trace(scratch_ / "y.journal", kPasses, TraceLevel::digest);
  const std::string other = text_of(scratch_ / "y.journal");
  expect_in("its checksum is another",
            found(whole_.substr(0, places[n]) + other.substr(journal_places(other)[n])).said);
}

TEST_F(Journal, OfAnotherVersionIsRefused) {
  std::string bytes = whole_;
  bytes[16] = 2;
  expect_in("a journal of version 1 was wanted, found 2", found(bytes).said);
  for (const auto& [from, to, said] :
       {std::array<std::string, 3>{"\"2.2\"", "\"1.2\"",
                                   "format version 2.2 was wanted, found 1.2"},
        {"\"lockstep\"", "\"lockstop\"", "says it is 'lockstop'"},
        {"\"layer\":1,", "\"layer\":1000000000,",
         "at most 65536 layers was wanted, its graph has layer 1000000000"},
        {"\"layer\":1,", "\"layer\":-2,", "its graph has layer -2"},
        {"\"layer\":1,", "\"layer\":1099511627776,", "layer is 1099511627776, a whole number"}}) {
    std::vector<JournalPart> parts = parts_;
    std::string& json = parts[0].body;
    json.replace(json.find(from), from.size(), to);
    expect_in(said, found(journal_of(parts)).said);
  }
}

// What is not there is not looked up, and what does not fit is not taken.
TEST_F(Journal, NumbersThatMakeNoSenseAreNamed) {
  const size_t rows = sizeof(PassHead), logit_rows = rows + 9 * sizeof(PackedRow);
  JournalPart &pass = pass_part(0), &embed = tensor_part(0, 0), &q = tensor_part(0, 1),
              &kv = tensor_part(0, 3);
  expect_in("its 9 rows, found 500", said_of(pass, logit_rows, 500));
  expect_in("its 9 rows, found -1", said_of(pass, logit_rows, -1));
  expect_in("from position 2147483600 on", said_of(pass, rows + 4, 2147483600));
  expect_in("pass 0 is there twice in its journal", said_of(pass_part(1), 0, 0));
  expect_in("a record of kind 1 is out of place", said_of(pass_part(2), 8, 100, 2));
  std::vector<JournalPart> parts = parts_;
  parts.insert(parts.begin() + 1, embed);
  expect_in("a record of kind 3 is out of place", found(journal_of(parts)).said);
  expect_in("goes on with hashes of more than 64 passes before", said_of(pass, 4, 2));

  const size_t names = sizeof(TensorHead), shape = names + 6 + 4, exponents = 17, same = 24;
  expect_in("the tensor attn.q is of layer -1", said_of(q, 8, -1));
  expect_in("the tensor attn.q is of layer 1099511", said_of(q, 8, 1099511));
  expect_in("the point 'attn.Q' is not known here", said_of(q, names + 5, 'Q'));
  expect_in("has 9 axes, wanted 1 to 5", said_of(q, 16, uint8_t{9}));
  expect_in("none that a tensor can have",
            said_of(q, shape + 8, std::numeric_limits<int64_t>::max()));
  expect_in("none that a tensor can have", said_of(q, shape, int64_t{-1}));
  expect_in("has 10 rows and names of 9", said_of(q, shape, int64_t{10}));
  expect_in("counts of elements take 1, 2 or 4 bytes", said_of(q, exponents, uint8_t{3}));
  expect_in("a record has fewer bytes than it says", said_of(q, 18, uint16_t{0xffff}));
  for (const size_t at : {size_t{20}, size_t{28}})
    expect_in("a record has fewer bytes than it says", said_of(q, at, 0xffffffffu));
  expect_in("9 rows and hashes of", said_of(q, same, 1u));
  kv.set(same, 5u);
  expect_in("has 5 hashes of a pass before, which has 0", said_of(kv, 28, 0u));
  kv.set(same, 0u);
  expect_in("a record has more bytes than it says", said_of(q, 12, uint8_t{0}));
  expect_in("contradicts itself in its exponent_count",
            said_of(embed, embed.body.size() - 9 * 8 - 1, uint8_t{200}));
  kv.set(sizeof(TensorHead) + 7 + 4 + 4 * 8 + 8, 16'000'000);
  expect_in("more rows than those of any file of its size", said_of(kv, 8, 0));
}

TEST_F(Journal, LengthsBeyondTheFileEndIt) {
  const std::vector<size_t> places = journal_places(whole_);
  for (const uint32_t bytes : {0xffffffffu, kMostRecord, 0x7fffffffu}) {
    std::string changed = whole_;
    std::memcpy(&changed[places[1] + 8], &bytes, sizeof bytes);
    const Found got = found(changed);
    EXPECT_EQ(got.passes, 0);
    expect_in("it was cut or damaged at record 2 (it has no end)", got.said);
  }
}

// Two caches whose rows are the more the later the pass.
Pass pass_of_caches(int number, int first_rows) {
  Pass pass{.info = test_info(number)};
  for (const int layer : {0, 1}) {
    RecordedTensor kv{.point = &point("attn.kv"), .layer = layer, .dtype = DType::bf16};
    // Pass 100 computes the last rows again, and in pass 30 a row is another.
    const int rows = first_rows + number - (number >= 100 ? 50 : 0);
    kv.shape = {rows, 2, 1, 8};
    for (int p = 0; p < rows; ++p) {
      kv.rows.push_back({7, p});
      kv.row_hashes.push_back(
          static_cast<uint64_t>(p * 3 + layer + (number >= 100 && p > first_rows - 10)));
    }
    if (number == 30) kv.row_hashes[5] = 1;
    kv.digest = digest_of_rows(kv.row_hashes, kv.shape.count());
    pass.tensors.push_back(std::move(kv));
  }
  return pass;
}

// Of a cache a pass has the hashes of the rows that are new or others, and all come back, in
// whatever order passes are read.
TEST(JournalOfCaches, HoldsWhatChangedAlone) {
  const TempFolder scratch;
  const std::string path = scratch / "x.journal";
  constexpr int kRows = 4000, kMany = 150;
  const auto pass_at = [](int number) { return pass_of_caches(number, kRows); };
  {
    const auto writer = create_trace(path, test_manifest(TraceLevel::digest));
    size_t before = std::filesystem::file_size(path);
    for (int i = 0; i < kMany; ++i) {
      writer->write(pass_at(i));
      const size_t after = std::filesystem::file_size(path);
      const bool all = i % 64 == 0 || i == 30 || i == 31;
      EXPECT_EQ(after - before > 2 * 8 * (kRows - 64), all) << "pass " << i;
      EXPECT_TRUE(all || i == 100 || after - before < 1000)
          << "pass " << i << " " << after - before;
      before = after;
    }
    writer->finish(ended_requests());
  }
  const auto trace = open_trace(path);
  ASSERT_EQ(trace->passes(), kMany);
  EXPECT_TRUE(trace->complete());
  for (const int i : {149, 0, 1, 30, 31, 29, 100, 99, 101, 63, 64, 65, 127, 128, 149, 3})
    expect_equal(trace->read(i, false), pass_at(i), false);
}

// So many that the records are made by threads.
TEST(JournalOfCaches, ComeBackWhereTheyHaveManyRows) {
  const TempFolder scratch;
  const std::string path = scratch / "x.journal";
  const auto writer = create_trace(path, test_manifest(TraceLevel::digest));
  for (int i = 0; i < 3; ++i) writer->write(pass_of_caches(i, 40'000));
  writer->finish(ended_requests());
  EXPECT_LT(std::filesystem::file_size(path), 2u * 8 * 41'000 + 20'000);
  const auto trace = open_trace(path);
  for (int i = 0; i < 3; ++i) expect_equal(trace->read(i, false), pass_of_caches(i, 40'000), false);
}

TEST(JournalOfCaches, MayHaveOneTwiceInAPass) {
  const TempFolder scratch;
  const std::string path = scratch / "x.journal";
  std::vector<Pass> passes;
  const auto writer = create_trace(path, test_manifest(TraceLevel::digest));
  for (int i = 0; i < 3; ++i) {
    Pass& pass = passes.emplace_back(test_pass(i, false));
    pass.tensors.push_back(pass.tensors[3]);
    ASSERT_TRUE(pass.tensors[3].point->is_cache());
    writer->write(pass);
  }
  writer->finish(ended_requests());
  const auto trace = open_trace(path);
  for (const int i : {2, 0, 1})
    expect_equal(trace->read(i, false), passes[static_cast<size_t>(i)], false);
}

TEST(JournalOfAFolder, HasAloneThePassesOfWhichNoTensorIsKept) {
  const TempFolder scratch;
  const std::string path = scratch / "x.trace";
  const auto keeps = [](int i) { return i % 3 == 1; };
  const auto writer = create_trace(path, test_manifest(TraceLevel::flagged));
  for (int i = 0; i < 30; ++i) writer->write(test_pass(i, keeps(i)));
  writer->finish(ended_requests());
  EXPECT_TRUE(std::filesystem::exists(path + "/seg-000001.h5"));
  EXPECT_FALSE(std::filesystem::exists(path + "/seg-000002.h5"));
  {
    const auto trace = open_trace(path);
    EXPECT_TRUE(trace->complete());
    ASSERT_EQ(trace->passes(), 30);
    for (int i = 0; i < 30; ++i) expect_equal(trace->read(i, true), test_pass(i, keeps(i)), true);
  }
  std::filesystem::remove(path + "/seg-000001.h5");
  const auto trace = open_trace(path);
  ASSERT_EQ(trace->passes(), 30);
  EXPECT_EQ(trace->problems().at(0),
            "the segment of passes 25, 28 was never closed or is damaged: their tensors are lost, "
            "their digests are taken from the journal");
}

TEST(JournalOfAFolder, OfJsonLinesIsNotRead) {
  const TempFolder scratch;
  const std::string path = scratch / "x.trace";
  write_test_trace(path, 3, TraceLevel::digest);
  std::filesystem::rename(path + "/run.journal", path + "/journal.jsonl");
  const auto trace = open_trace(path);
  EXPECT_FALSE(trace->complete());
  expect_in("journal.jsonl: a journal of JSON lines is not read any more", trace->problems().at(0));
}

}  // namespace
}  // namespace lockstep
