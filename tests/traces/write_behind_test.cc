// Tensors that threads write behind whoever hands them over, and segments that are published so.
#include "traces/write_behind.h"

#include <chrono>
#include <cstring>

#include "tests/traces/passes.h"
#include "traces/segment_closer.h"
#include "traces/writers.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

Tensor filled(int64_t bytes, uint8_t value) {
  Tensor tensor({bytes}, DType::u8);
  std::memset(tensor.as<char>(), value, static_cast<size_t>(bytes));
  return tensor;
}

std::shared_ptr<WriteBehind::Writes> writes_into(const std::string& path) {
  std::ofstream(path).flush();
  return std::make_shared<WriteBehind::Writes>(std::make_shared<SharedFile>(path));
}

TEST(WriteBehind, PutsEachTensorInItsPlaceOfItsFile) {
  const TempFolder scratch;
  WriteBehind behind(3, 20'000'000);
  constexpr int64_t kBytes = 5'000'003;
  std::vector<std::shared_ptr<WriteBehind::Writes>> files;
  for (const char* name : {"a", "b"}) files.push_back(writes_into(scratch / name));
  for (uint8_t i = 0; i < 12; ++i)
    behind.put(files[i % 2], i / 2 * kBytes, filled(kBytes, static_cast<uint8_t>(i + 1)));
  for (size_t file = 0; file < 2; ++file) {
    behind.wait(*files[file]);
    std::string want;
    for (size_t i = 0; i < 6; ++i)
      want.append(static_cast<size_t>(kBytes), static_cast<char>(2 * i + file + 1));
    EXPECT_TRUE(text_of(scratch / (file == 0 ? "a" : "b")) == want);
  }
}

TEST(WriteBehind, TakesATensorThatIsLargerThanWhatMayWait) {
  const TempFolder scratch;
  WriteBehind behind(2, 1000);
  const auto file = writes_into(scratch / "a");
  for (int i = 0; i < 3; ++i) behind.put(file, i * 9'000'000, filled(9'000'000, 5));
  behind.wait(*file);
  EXPECT_EQ(fs::file_size(scratch / "a"), 27'000'000u);
}

TEST(WriteBehind, SaysOfTheFileThatFailedAndWritesTheOthers) {
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "no /dev/full";
  const TempFolder scratch;
  WriteBehind behind(2);
  const auto good = writes_into(scratch / "a"), bad = writes_into("/dev/full");
  behind.put(bad, 0, filled(1000, 1));
  behind.put(good, 0, filled(1000, 2));
  expect_trouble("the disk is full", [&] { behind.wait(*bad); });
  expect_trouble("the disk is full", [&] { behind.put(bad, 0, filled(1000, 1)); });
  behind.wait(*good);
  EXPECT_EQ(text_of(scratch / "a"), std::string(1000, 2));
  behind.drop(*bad);
}

TEST(WriteBehind, GivesUpWhatIsDropped) {
  const TempFolder scratch;
  WriteBehind behind(1);
  const auto file = writes_into(scratch / "a");
  behind.put(file, 0, filled(200'000'000, 1));
  behind.drop(*file);
  const auto size = fs::file_size(scratch / "a");
  EXPECT_LT(size, 200'000'000) << "all was written";
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(fs::file_size(scratch / "a"), size) << "somebody writes there yet";
}

// A pass with tensors that are worth handing over, of sizes that no page and no piece divides.
Pass heavy_pass(int number) {
  Pass pass = test_pass(number);
  const std::vector<Row> rows = pass.tensors[0].rows;
  unsigned seed = 7000 + static_cast<unsigned>(number) * 2;
  for (const char* name : {"mlp.act", "mlp.up"})
    pass.tensors.push_back(test_tensor(*find_point(name), 1, rows, DType::bf16,
                                       {900'001 / std::ssize(rows)}, seed++, true));
  return pass;
}

class Behind : public testing::TestWithParam<std::string> {
 protected:
  static constexpr size_t kRoom = size_t{200} << 20;

  void SetUp() override {
    if (!fs::is_directory(GetParam())) GTEST_SKIP() << "no " << GetParam();
    if (fs::space(GetParam()).available < kRoom)
      GTEST_SKIP() << "no room for " << kRoom << " bytes in " << GetParam();
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string folder_ = GetParam() + "/lockstep-behind-" + std::to_string(getpid());
};

// Both files have the same tensors in the same places, whoever wrote them and when.
TEST_P(Behind, MakesTheFileThatOneWriterMakes) {
  const std::string alone = folder_ + "/alone.h5", together = folder_ + "/together.h5";
  WriteBehind behind(4);
  for (const std::string& path : {alone, together}) {
    SegmentWriter segment(path, 0, path == alone ? nullptr : &behind);
    for (int i = 0; i < 3; ++i) segment.add(heavy_pass(i));
    segment.finish(test_manifest());
  }
  EXPECT_EQ(fs::file_size(alone), fs::file_size(together));
  for (const std::string& path : {alone, together}) {
    const auto trace = open_trace(path);
    EXPECT_TRUE(trace->complete());
    ASSERT_EQ(trace->passes(), 3);
    for (int i = 0; i < 3; ++i) expect_equal(trace->read(i, true), heavy_pass(i), true);
  }
  const auto bytes_of = [](const std::string& path) {
    const SegmentReader segment(path);
    std::string bytes;
    for (size_t i = 0; i < 3; ++i)
      for (const RecordedTensor& tensor :
           segment.read(i, [](const Place&) { return true; }).tensors)
        bytes.append(tensor.data.as<const char>(),
                     tensor.data.view().empty() ? 0 : tensor.data.view().bytes());
    return bytes;
  };
  EXPECT_TRUE(bytes_of(alone) == bytes_of(together));
}

TEST_P(Behind, KeepsTheOrderOfThePassesOverManySegments) {
  const std::string path = folder_ + "/x.trace";
  constexpr int kPasses = 3 * kSegmentPasses + 1;
  {
    const auto writer = create_trace(path, test_manifest());
    for (int i = 0; i < kPasses; ++i) writer->write(heavy_pass(i));
    writer->finish(ended_requests());
  }
  for (const auto& entry : fs::directory_iterator(path))
    EXPECT_NE(entry.path().extension(), ".part") << entry.path();
  const auto trace = open_trace(path);
  EXPECT_TRUE(trace->complete());
  ASSERT_EQ(trace->passes(), kPasses);
  for (int i = 0; i < kPasses; ++i) expect_equal(trace->read(i, true), heavy_pass(i), true);
  for (size_t i = 0; i < 4; ++i) {
    const SegmentReader segment(fmt::format("{}/seg-{:06}.h5", path, i));
    EXPECT_EQ(segment.columns().number.at(0), static_cast<int>(i * kSegmentPasses));
  }
}

INSTANTIATE_TEST_SUITE_P(Places, Behind, testing::Values("/tmp", "/dev/shm"), [](const auto& in) {
  return std::string(in.param == "/tmp" ? "temporary_files" : "memory");
});

TEST(SegmentCloser, PublishesNothingAfterTrouble) {
  const TempFolder scratch;
  WriteBehind behind;
  SegmentCloser closer;
  const auto segment = [&](int number) {
    auto made = std::make_unique<NewSegment>(scratch / std::to_string(number), 0, behind);
    made->writer.add(heavy_pass(number));
    made->writer.end(test_manifest());
    return made;
  };
  closer.take(segment(0));
  closer.flush();
  auto lost = segment(1);
  fs::remove(lost->part.name());  // its seal has no place any more
  auto later = segment(2);
  closer.take(std::move(lost));
  try {
    closer.take(std::move(later));
  } catch (const Error&) {  // the trouble was heard of already
  }
  expect_trouble(scratch / "1", [&] { closer.flush(); });
  expect_trouble(scratch / "1", [&] { closer.check_trouble(); });
  EXPECT_TRUE(fs::exists(scratch / "0"));
  EXPECT_EQ(std::distance(fs::directory_iterator(scratch.path()), {}), 1);
}

}  // namespace
}  // namespace lockstep
