// What is left of a trace when its process is killed, and when its disk is full or closed.
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <random>
#include <thread>

#include "kernels/base/check.h"
#include "tests/traces/passes.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

bool mentions(const std::vector<std::string>& sentences, const std::string& word) {
  return std::ranges::any_of(sentences, [&](const std::string& sentence) {
    return sentence.find(word) != std::string::npos;
  });
}

// A pass with a tensor of that many bytes, besides the others.
Pass large_pass(int number, int64_t bytes = 1 << 18) {
  Pass pass = test_pass(number);
  std::vector<Row> rows = pass.tensors[0].rows;
  pass.tensors.push_back(
      test_tensor(point("mlp.act"), 1, rows, DType::f32, {bytes / 4 / std::ssize(rows)}, 1, true));
  return pass;
}

// What is written behind, while segments after it are begun.
constexpr int64_t kHeavy = 3 << 20;

// Starts a process that writes a trace without end, and kills it when `wait` returns.
void write_and_be_killed(
    const std::string& path, const std::function<void()>& wait,
    const std::function<Pass(int)>& pass = [](int i) { return test_pass(i); }) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    try {
      const auto writer = create_trace(path, test_manifest());
      for (int i = 0;; ++i) writer->write(pass(i));
    } catch (...) {
      ::_exit(3);
    }
  }
  wait();
  ASSERT_EQ(::kill(child, SIGKILL), 0);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status)) << "the writer ended by itself";
}

// How long such a process takes to close its second segment: machines and their load differ.
double seconds_to_segments(const TempFolder& scratch) {
  const std::string path = scratch / "timed.trace";
  const auto begin = std::chrono::steady_clock::now();
  const auto elapsed = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  write_and_be_killed(path, [&] {
    while (!fs::exists(path + "/seg-000001.h5") && elapsed() < 60)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  });
  EXPECT_TRUE(fs::exists(path + "/seg-000001.h5")) << "nothing is written";
  return elapsed();
}

TEST(Kill, AtAnyMomentLeavesWhatWasClosed) {
  const TempFolder scratch;
  std::mt19937 random(20);
  std::uniform_real_distribution<double> moment(0, 2 * seconds_to_segments(scratch));
  int with_segments = 0, with_digests = 0;
  for (int round = 0; round < 20; ++round) {
    const std::string name = round % 4 == 3 ? "x.h5" : "x.trace";
    const std::string path = scratch / (std::to_string(round) + name);
    write_and_be_killed(
        path, [&] { std::this_thread::sleep_for(std::chrono::duration<double>(moment(random))); });
    const std::string there = name == "x.h5" ? path + ".part" : path;
    EXPECT_FALSE(there != path && fs::exists(path)) << "a half file under the final name";
    if (!fs::exists(there + "/manifest.json")) continue;  // killed before there was anything
    const auto trace = open_trace(there);
    EXPECT_FALSE(trace->complete());
    EXPECT_TRUE(mentions(trace->problems(), "the run did not end"));
    bool digests = false;
    for (int i = 0; i < trace->passes(); ++i) {
      const Pass got = trace->read(i, true);
      EXPECT_EQ(got.info.pass, i);
      digests = digests || got.tensors[0].data.view().empty();
      ++(digests ? with_digests : with_segments);
      expect_equal(got, test_pass(i, !digests), true);
    }
    EXPECT_EQ(mentions(trace->problems(), "their tensors are lost"), digests);
  }
  EXPECT_GT(with_segments, 0) << "no kill came late enough to see a closed segment";
  EXPECT_GT(with_digests, 0) << "no kill hit an open segment";
}

// Passes come faster than they are written, so that several segments are on their way: those that
// are published have no hole among them.
TEST(Kill, WhileSegmentsAreWrittenBesideEachOtherLeavesTheFirstOnes) {
  const TempFolder scratch;
  Pass heavy = large_pass(0, kHeavy);
  const RecordedTensor tensor = heavy.tensors.back();
  const auto pass = [&](int i) {
    Pass next = test_pass(i);
    RecordedTensor& big = next.tensors.emplace_back(tensor);
    big.rows = next.tensors[0].rows;
    big.rows.resize(1), big.row_hashes.clear();
    big.shape = {1, big.data.view().count()};
    big.data = tensor.data.part(0, big.shape, DType::f32);
    return next;
  };
  std::mt19937 random(21);
  int with_segments = 0;
  for (int round = 0; round < 6; ++round) {
    const std::string path = scratch / (std::to_string(round) + ".trace");
    const int number = round % 3;
    write_and_be_killed(
        path,
        [&] {
          const std::string first = fmt::format("{}/seg-{:06}.h5", path, number);
          for (int i = 0; !fs::exists(first) && i < 30000; ++i)
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
          std::this_thread::sleep_for(std::chrono::milliseconds(random() % 40));
        },
        pass);
    const auto trace = open_trace(path);
    EXPECT_FALSE(trace->complete());
    EXPECT_TRUE(mentions(trace->problems(), "the run did not end"));
    EXPECT_FALSE(mentions(trace->problems(), "missing")) << "a hole among the segments";
    ASSERT_GE(trace->passes(), 8 * (number + 1));
    bool digests = false;
    for (int i = 0; i < trace->passes(); ++i) {
      const Pass got = trace->read(i, true);
      digests = digests || got.tensors[0].data.view().empty();
      with_segments += digests ? 0 : 1;
      ASSERT_EQ(got.tensors.back().data.view().empty(), digests);
      if (!digests) expect_equal(got, pass(i), true);
    }
    fs::remove_all(path);
  }
  EXPECT_GE(with_segments, 6 * 8);
}

// A small file system of its own; `failure` says why there is none.
class Mount {
 public:
  Mount(const std::string& path, const char* options) : path_(path) {
    fs::create_directories(path);
    mounted_ = ::mount("tmpfs", path.c_str(), "tmpfs", 0, options) == 0;
    if (!mounted_) failure = std::string("mounting a tmpfs needs root: ") + std::strerror(errno);
  }
  ~Mount() {
    if (mounted_) ::umount2(path_.c_str(), MNT_DETACH);
  }
  void make_read_only() { ::mount("tmpfs", path_.c_str(), "tmpfs", MS_REMOUNT | MS_RDONLY, ""); }

  std::string failure;

 private:
  std::string path_;
  bool mounted_ = false;
};

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(FullDisk, EndsTheTraceWithASentenceAndNoHalfFile) {
  const TempFolder scratch;
  const Mount disk(scratch / "disk", "size=4m");
  if (!disk.failure.empty()) GTEST_SKIP() << disk.failure;
  for (const char* name : {"disk/x.trace", "disk/x.h5"}) {
    const std::string path = scratch / name;
    const auto writer = create_trace(path, test_manifest());
    int written = 0;
    const std::string error = error_of([&] {
      for (; written < 100; ++written) writer->write(large_pass(written));
    });
    EXPECT_NE(error.find("the disk is full"), std::string::npos) << error;
    EXPECT_NE(error.find("MB are left"), std::string::npos) << error;
    EXPECT_NE(error.find(path), std::string::npos) << error;
    EXPECT_GE(written, 8) << "not even one segment";
    EXPECT_EQ(error_of([&] { writer->write(large_pass(written + 1)); }), error);
    EXPECT_EQ(error_of([&] { writer->finish({}); }), error);

    const std::string there = fs::exists(path) ? path : path + ".part";
    EXPECT_EQ(there == path, path.ends_with(".trace"));
    auto trace = open_trace(there);
    EXPECT_FALSE(trace->complete());
    ASSERT_GE(trace->passes(), 8);
    for (int i = 0; i < 8; ++i) expect_equal(trace->read(i, true), large_pass(i), true);
    for (const auto& entry : fs::directory_iterator(there))
      EXPECT_NE(entry.path().extension(), ".part") << entry.path();
    trace.reset();
    fs::remove_all(there);
    EXPECT_GT(fs::space(scratch / "disk").available, 3u << 20) << "space was not given back";
  }
}

// The disk is full while threads write, which no call of the writer's waits for.
TEST(FullDisk, WhileTensorsAreWrittenBehindLeavesWhatWasClosed) {
  const TempFolder scratch;
  const Mount disk(scratch / "disk", "size=40m");
  if (!disk.failure.empty()) GTEST_SKIP() << disk.failure;
  const std::string path = scratch / "disk/x.trace";
  const auto writer = create_trace(path, test_manifest());
  int written = 0;
  const std::string error = error_of([&] {
    for (; written < 100; ++written) writer->write(large_pass(written, kHeavy));
  });
  EXPECT_NE(error.find("the disk is full"), std::string::npos) << error;
  EXPECT_EQ(error_of([&] { writer->write(large_pass(written + 1, kHeavy)); }), error);
  EXPECT_EQ(error_of([&] { writer->finish({}); }), error);
  auto trace = open_trace(path);
  EXPECT_FALSE(trace->complete());
  ASSERT_GE(trace->passes(), 8);
  for (int i = 0; i < 8; ++i) expect_equal(trace->read(i, true), large_pass(i, kHeavy), true);
  for (const auto& entry : fs::directory_iterator(path))
    EXPECT_NE(entry.path().extension(), ".part") << entry.path();
  trace.reset();
  fs::remove_all(path);
  EXPECT_GT(fs::space(scratch / "disk").available, 38u << 20) << "space was not given back";
}

TEST(FullDisk, OneFileThatDoesNotFitLeavesItsSegments) {
  const TempFolder scratch;
  const Mount disk(scratch / "disk", "size=4m");
  if (!disk.failure.empty()) GTEST_SKIP() << disk.failure;
  const std::string path = scratch / "disk/x.h5";
  const auto writer = create_trace(path, test_manifest());
  for (int i = 0; i < 8; ++i) writer->write(large_pass(i));
  const std::string error = error_of([&] { writer->finish(ended_requests()); });
  EXPECT_NE(error.find("the disk is full"), std::string::npos) << error;
  EXPECT_FALSE(fs::exists(path));
  EXPECT_TRUE(open_trace(path + ".part")->complete());
}

TEST(ReadOnly, FoldersAreRefusedAndTracesInThemRead) {
  const TempFolder scratch;
  Mount disk(scratch / "disk", "size=4m");
  if (!disk.failure.empty()) GTEST_SKIP() << disk.failure;
  write_test_trace(scratch / "disk/kept.trace", 2);
  disk.make_read_only();
  for (const char* name : {"disk/x.trace", "disk/x.h5", "disk/x.journal"}) {
    const std::string error =
        error_of([&] { create_trace(scratch / name, test_manifest(TraceLevel::digest)); });
    EXPECT_NE(error.find("Read-only file system"), std::string::npos) << error;
  }
  expect_equal(open_trace(scratch / "disk/kept.trace")->read(1, true), test_pass(1), true);
}

}  // namespace
}  // namespace lockstep
