// The shared library as the commands meet it: what comes out of it, and what is not in it.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "kernels/base/ending.h"
#include "src/judge/halving_oracle.h"
#include "src/judge/no_memory.h"
#include "src/session/reference_library.h"
#include "tests/helpers.h"
#include "tests/places.h"

namespace lockstep {
namespace {

// What `command` prints.
std::string output_of(const std::string& command) {
  FILE* pipe = popen(command.c_str(), "r");
  if (!pipe) return "";
  std::string output;
  std::array<char, 4096> chunk;
  for (size_t n; (n = fread(chunk.data(), 1, chunk.size(), pipe)) > 0;)
    output.append(chunk.data(), n);
  pclose(pipe);
  return output;
}

const std::string kLibrary = built_path("liblockstep_reference.so");

TEST(Library, ExportsOneSymbol) {
  const std::string symbols = output_of("nm -D --defined-only " + kLibrary + " | cut -d' ' -f3");
  EXPECT_EQ(symbols, "lockstep_reference\n");
}

TEST(Library, HasNoOpOfTheEngine) {
  const std::string symbols = output_of("nm -C " + kLibrary);
  // If the names could not be read, nothing below would mean anything.
  ASSERT_NE(symbols.find(" lockstep::Checkpoint::tensor("), std::string::npos);
  ASSERT_NE(symbols.find(" lockstep::read_recipe("), std::string::npos);
  // It reads config.json itself and makes its own rotary tables.
  for (const char* name :
       {"rope_row", "rope_frequencies", "cpu_ops", "gather_rows", "rms_norm", "matmul", "rope",
        "kv_write", "kv_gather", "paged_attention", "silu_mul", "add", "argmax", "parallel_for",
        "ThreadPool", "qwen_forward", "Engine", "PagePool"}) {
    EXPECT_EQ(symbols.find(" lockstep::" + std::string(name) + "("), std::string::npos) << name;
    EXPECT_EQ(symbols.find(" lockstep::" + std::string(name) + "::"), std::string::npos) << name;
  }
}

TEST(Library, SaysWhichLibTorchItIs) {
  EXPECT_EQ(open_reference().version().find("2."), 0u) << open_reference().version();
}

// Ends this process, whose statics say that they end.
[[noreturn]] void leave() {
  std::atexit([] { std::fputs(", as statics do", stderr); });
  open_reference();
  std::setvbuf(stderr, nullptr, _IOFBF, BUFSIZ);
  std::fputs("it ends", stderr);
  std::exit(3);
}

TEST(Library, IsLeftAtOnceAndWithAllThatWasPrinted) {
  if (dlsym(RTLD_DEFAULT, "__lsan_do_leak_check") != nullptr)
    GTEST_SKIP() << "what looks for leaks is a static that must end";
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(leave(), testing::ExitedWithCode(3), "^it ends$");
}

TEST(Library, IsLeftAsOthersWhoseCodeIsHereWantIt) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto leave_with_others = [] {
    keep_ends();
    leave();
  };
  EXPECT_EXIT(leave_with_others(), testing::ExitedWithCode(3), "^it ends, as statics do$");
}

// The address space of the process held at what it has and a little more, until destroyed.
class LittleMemory {
 public:
  explicit LittleMemory(rlim_t more) {
    rlim_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    getrlimit(RLIMIT_AS, &before_);
    const rlimit now{pages * static_cast<rlim_t>(sysconf(_SC_PAGESIZE)) + more, before_.rlim_max};
    setrlimit(RLIMIT_AS, &now);
  }
  ~LittleMemory() { setrlimit(RLIMIT_AS, &before_); }
  LittleMemory(const LittleMemory&) = delete;

 private:
  rlimit before_{};
};

TEST(Library, SaysInASentenceThatItHasNoMemoryLeft) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer's own memory cannot be limited";
#endif
  const Checkpoint checkpoint = Checkpoint::open(data_path("bard-qwen3"));
  const auto oracle = open_reference().oracle(checkpoint, {.dtype = DType::bf16, .threads = 1});
  const auto norm = [&](int64_t rows) {
    const Tensor x(Shape{rows, checkpoint.config().hidden}, DType::bf16);
    std::fill_n(x.as<uint16_t>(), x.view().count(), uint16_t{0});
    const std::vector<Row> names(static_cast<size_t>(rows), Row{0, 0});
    const OracleCall call{
        .place = {&point("attn.norm"), 0}, .dtype = DType::bf16, .inputs = {x}, .rows = names};
    const LittleMemory little(rlim_t{64} << 20);
    oracle->evaluate(call);
  };
  EXPECT_NO_THROW(norm(4));
  const std::string error = error_of([&] { norm(200000); });
  EXPECT_NE(error.find("the reference has no memory left for"), std::string::npos) << error;
  EXPECT_NE(error.find("bytes more: judge some --layers"), std::string::npos) << error;
  EXPECT_NO_THROW(norm(4));  // and it goes on
}

// The rows that fit are told from the error, and come to what all of them come to.
TEST(Library, AnswersByPartsWhatItHasNoMemoryFor) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer's own memory cannot be limited";
#endif
  const Checkpoint checkpoint = Checkpoint::open(data_path("bard-qwen3"));
  const auto oracle = open_reference().oracle(checkpoint, {.dtype = DType::bf16, .threads = 1});
  constexpr int64_t kRows = 20000;
  mallopt(M_MMAP_THRESHOLD, 1 << 16);  // so that what is freed is gone at once
  const Tensor x(Shape{kRows, checkpoint.config().hidden}, DType::bf16);
  for (int64_t i = 0; i < x.view().count(); ++i)
    x.as<BFloat16>()[i] = from_float<BFloat16>(static_cast<float>(i % 251) - 125);
  const std::vector<Row> names(kRows, Row{0, 0});
  const OracleCall call{
      .place = {&point("attn.norm"), 0}, .dtype = DType::bf16, .inputs = {x}, .rows = names};
  const Exact whole = oracle->evaluate(call);
  HalvingOracle halving(*oracle);
  const Exact parts = [&] {
    const LittleMemory little(rlim_t{72} << 20);
    EXPECT_THROW(oracle->evaluate(call), NoMemory);
    return halving.evaluate(call);
  }();
  EXPECT_LT(halving.most_rows(point("attn.norm")), static_cast<size_t>(kRows));
  EXPECT_EQ(parts.shape, whole.shape);
  EXPECT_TRUE(std::ranges::equal(parts.want, whole.want));
}

// What a model shows of its attention in the first layer.
std::vector<double> attended(ReferenceModel& model, const PassInfo& pass) {
  struct Keep final : Sink {
    bool wants(const Point& p, int layer) const override {
      return p == point("attn.out") && layer == 0;
    }
    void begin(const PassInfo&) override {}
    void record(const Record& record) override {
      shown.resize(static_cast<size_t>(record.tensor.count()));
      widen(record.tensor, 0, shown);
    }
    void end() override {}
    std::vector<double> shown;
  } sink;
  Probe probe(&sink);
  model.begin(pass, probe);
  model.advance(0);
  EXPECT_EQ(probe.failure(), "");
  return sink.shown;
}

TEST(Library, AttendsInSmallerBlocksWhereScoresHaveNoMemory) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer's own memory cannot be limited";
#endif
  mallopt(M_MMAP_THRESHOLD, 1 << 16);
  const Checkpoint checkpoint = Checkpoint::open(data_path("bard-qwen3"));
  PassInfo pass;
  for (int32_t i = 0; i < 1500; ++i) pass.rows.push_back({{0, i}, i * 37 % 4000});
  pass.logit_rows = {1499};
  const auto model = open_reference().model(checkpoint, {.threads = 1}, DType::f64);
  const std::vector<double> whole = attended(*model, pass);
  // The scores of all queries take 108 MB.
  const std::vector<double> parts = [&] {
    const LittleMemory little(rlim_t{80} << 20);
    return attended(*model, pass);
  }();
  ASSERT_EQ(parts.size(), whole.size());
  for (size_t i = 0; i < whole.size(); ++i)
    ASSERT_NEAR(parts[i], whole[i], 1e-12 * (1 + std::fabs(whole[i])));
}

// Also shows that an exception which is thrown inside is the same type outside.
TEST(Library, RefusesWhatItCannotDoWithAnError) {
  const Checkpoint checkpoint = Checkpoint::open(data_path("tiny/qwen3-default"));
  ReferenceLibrary& library = open_reference();
  EXPECT_NE(error_of([&] { library.model(checkpoint, {}, DType::i32); }).find("int32"),
            std::string::npos);
  EXPECT_NE(error_of([&] { library.oracle(checkpoint, {.dtype = DType::u8}); }).find("uint8"),
            std::string::npos);
  EXPECT_NE(error_of([&] { library.oracle(checkpoint, {.threads = -1}); }).find("-1"),
            std::string::npos);
}

TEST(Library, KnowsTheSamePointsAsTheExecutable) {
  const Checkpoint checkpoint = Checkpoint::open(data_path("tiny/qwen2-default"));
  const Graph graph = open_reference().oracle(checkpoint, {})->graph();
  EXPECT_EQ(graph.layers(), 3);
  EXPECT_FALSE(graph.has({&point("attn.q_norm"), 0}));

  struct Collect final : Sink {
    bool wants(const Point&, int) const override { return true; }
    void begin(const PassInfo&) override {}
    void record(const Record& record) override { places.push_back({record.point, record.layer}); }
    void end() override {}
    std::vector<Place> places;
  } sink;
  Probe probe(&sink);
  const PassInfo pass{.rows = {{{0, 0}, 7}}, .logit_rows = {0}};
  open_reference().model(checkpoint, {}, DType::f32)->run(pass, probe);
  EXPECT_EQ(probe.failure(), "");
  EXPECT_EQ(sink.places, graph.places());
}

}  // namespace
}  // namespace lockstep
