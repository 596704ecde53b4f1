// The C interface of traces: what goes in comes out, and what is wrong is a sentence.
#include "traces/lockstep_trace.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "tests/helpers.h"
#include "traces/bare_file.h"
#include "traces/trace.h"

namespace lockstep {
namespace {

// A tensor of the CPU that owns its numbers.
template <typename T>
struct Shown {
  Shown(std::vector<T> numbers, std::vector<int64_t> extents, DLDataType dtype)
      : values(std::move(numbers)), shape(std::move(extents)) {
    tensor = {.data = values.data(),
              .device = {kDLCPU, 0},
              .ndim = static_cast<int32_t>(shape.size()),
              .dtype = dtype,
              .shape = shape.data()};
  }
  Shown(const Shown&) = delete;
  Shown& operator=(const Shown&) = delete;

  std::vector<T> values;
  std::vector<int64_t> shape, strides;
  DLTensor tensor;
};

constexpr DLDataType kF32 = {kDLFloat, 32, 1}, kBf16 = {kDLBfloat, 16, 1}, kI64 = {kDLInt, 64, 1};
constexpr LockstepRow kRows[] = {{0, 0, 5}, {0, 1, 6}, {3, 4, 7}};

std::vector<float> counting(int64_t count) {
  std::vector<float> numbers;
  for (int64_t i = 0; i < count; ++i) numbers.push_back(static_cast<float>(i));
  return numbers;
}

class CInterface : public testing::Test {
 protected:
  LockstepTraceOptions options() {
    return {.path = path_.c_str(), .model = model_.c_str(), .dtype = "bf16"};
  }
  LockstepTrace* opened() {
    const LockstepTraceOptions given = options();
    LockstepTrace* trace = lockstep_trace_open(&given);
    EXPECT_NE(trace, nullptr) << lockstep_trace_error(nullptr);
    EXPECT_EQ(lockstep_trace_begin_pass(trace, kRows, 3), 0);
    return trace;
  }
  // The call fails, says so, and the trace takes nothing more.
  template <typename Call>
  void expect_refused(const std::string& phrase, Call call) {
    LockstepTrace* trace = opened();
    EXPECT_EQ(call(trace), -1);
    const std::string sentence = lockstep_trace_error(trace);
    EXPECT_NE(sentence.find(phrase), std::string::npos) << sentence;
    EXPECT_EQ(lockstep_trace_begin_pass(trace, kRows, 3), -1);
    EXPECT_EQ(lockstep_trace_close(trace), -1);
    EXPECT_EQ(lockstep_trace_error(nullptr), sentence);
    std::filesystem::remove_all(path_);
    std::filesystem::remove_all(path_ + ".part");
  }
  void expect_not_opened(const std::string& phrase, const LockstepTraceOptions* given) {
    EXPECT_EQ(lockstep_trace_open(given), nullptr);
    const std::string sentence = lockstep_trace_error(nullptr);
    EXPECT_NE(sentence.find(phrase), std::string::npos) << sentence;
  }

  TempFolder scratch_;
  std::string path_ = scratch_ / "x.h5", model_ = data_path("tiny/qwen3-default");
};

TEST_F(CInterface, WritesWhatItIsShown) {
  EXPECT_EQ(lockstep_trace_abi(), LOCKSTEP_TRACE_ABI);
  LockstepTraceOptions given = options();
  given.schema = "vllm";
  given.engine = "mine 1.0";
  LockstepTrace* trace = lockstep_trace_open(&given);
  ASSERT_NE(trace, nullptr) << lockstep_trace_error(nullptr);
  ASSERT_EQ(lockstep_trace_begin_pass(trace, kRows, 3), 0);
  // Heads of 32 in one axis, the rows two apart.
  Shown<uint16_t> q(std::vector<uint16_t>(6 * 128, 0x3f80), {3, 128}, kBf16);
  q.values[2 * 128] = 0xbf80;
  q.strides = {2 * 128, 1};
  q.tensor.strides = q.strides.data();
  EXPECT_EQ(lockstep_trace_show(trace, "attn.q", 1, &q.tensor, nullptr), 0);
  Shown<float> logits(counting(2 * 320), {2, 320}, kF32);
  EXPECT_EQ(lockstep_trace_logits(trace, &logits.tensor, nullptr), 0);
  Shown<int64_t> token({319, 319}, {2}, kI64);
  EXPECT_EQ(lockstep_trace_show(trace, "token", -1, &token.tensor, nullptr), 0);
  const LockstepRow next = {0, 2, 319};
  EXPECT_EQ(lockstep_trace_begin_pass(trace, &next, 1), 0);
  EXPECT_STREQ(lockstep_trace_error(trace), "");
  ASSERT_EQ(lockstep_trace_close(trace), 0);

  const auto read = open_trace(path_);
  EXPECT_TRUE(read->complete());
  EXPECT_TRUE(read->problems().empty());
  EXPECT_TRUE(read->manifest().graph_known);
  EXPECT_EQ(read->manifest().graph.layers(), 3);
  EXPECT_EQ(read->manifest().provenance.at(kSchema), "vllm");
  EXPECT_EQ(read->manifest().provenance.at("engine"), "mine 1.0");
  ASSERT_EQ(read->passes(), 2);
  const Pass pass = read->read(0, true);
  ASSERT_EQ(pass.tensors.size(), 3u);
  const RecordedTensor& shown = pass.tensors[0];
  EXPECT_EQ(shown.shape, (Shape{3, 4, 32}));
  EXPECT_EQ(shown.dtype, DType::bf16);
  EXPECT_EQ(shown.data.as<uint16_t>()[128], 0xbf80);
  EXPECT_EQ(shown.data.as<uint16_t>()[256], 0x3f80);
  EXPECT_EQ(shown.rows, (std::vector<Row>{{0, 0}, {0, 1}, {3, 4}}));
  EXPECT_EQ(pass.info.logit_rows, (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(pass.logits.at(1).chosen, 319);
  EXPECT_EQ(pass.logits.at(1).row, (Row{3, 4}));
  EXPECT_EQ(pass.tensors[2].data.as<int32_t>()[0], 319);
  EXPECT_EQ(read->read(1, true).info.rows[0].phase, Phase::decode);
}

TEST_F(CInterface, TakesRowsThatAreNamed) {
  LockstepTrace* trace = opened();
  Shown<float> logits(counting(2 * 320), {2, 320}, kF32);
  const int32_t rows[] = {0, 2};
  EXPECT_EQ(lockstep_trace_show_rows(trace, "logits", -1, &logits.tensor, rows, 2, nullptr), 0)
      << lockstep_trace_error(trace);
  ASSERT_EQ(lockstep_trace_close(trace), 0);
  EXPECT_EQ(open_trace(path_)->read(0, false).info.logit_rows, (std::vector<int32_t>{0, 2}));
}

TEST_F(CInterface, ATraceThatIsNotOpenedIsASentence) {
  expect_not_opened("the options of lockstep_trace_open were wanted, found NULL", nullptr);
  LockstepTraceOptions given = options();
  given.path = nullptr;
  expect_not_opened("the option path of lockstep_trace_open was wanted", &given);
  given = options();
  given.dtype = "bf17";
  expect_not_opened("dtype 'bf17' is not known", &given);
  given = options();
  given.model = "/nowhere";
  expect_not_opened("/nowhere", &given);
  given = options();
  given.path = "x.npz";
  expect_not_opened("no trace format has that name", &given);
  given = options();
  given.schema = "{\"attn.nrm\": \"hf\"}";
  expect_not_opened("attn.nrm", &given);
  EXPECT_EQ(lockstep_trace_close(nullptr), 0);
  EXPECT_EQ(lockstep_trace_begin_pass(nullptr, kRows, 3), -1);
}

TEST_F(CInterface, RowsThatAreNoneAreRefused) {
  expect_refused("a pass has one row or more, found 0",
                 [](LockstepTrace* trace) { return lockstep_trace_begin_pass(trace, kRows, 0); });
  expect_refused("found request 0 position 3 after request 0 position 1", [](LockstepTrace* trace) {
    const LockstepRow rows[] = {{0, 1, 5}, {0, 3, 6}};
    return lockstep_trace_begin_pass(trace, rows, 2);
  });
  expect_refused("has request -1", [](LockstepTrace* trace) {
    const LockstepRow row = {-1, 0, 5};
    return lockstep_trace_begin_pass(trace, &row, 1);
  });
}

TEST_F(CInterface, TensorsThatAreNoneAreRefused) {
  const auto showing = [](const char* point, int layer, std::vector<int64_t> shape,
                          DLDataType dtype = kF32) {
    return [=](LockstepTrace* trace) {
      int64_t count = 1;
      for (const int64_t extent : shape) count *= extent;
      Shown<float> shown(counting(2 * count), shape, dtype);
      return lockstep_trace_show(trace, point, layer, &shown.tensor, nullptr);
    };
  };
  expect_refused("'attn.nrm' is no point; did you mean \"attn.norm\"?",
                 showing("attn.nrm", 0, {3, 64}));
  expect_refused("the model has no attn.norm of layer 3", showing("attn.norm", 3, {3, 64}));
  expect_refused("the model has no mlp.router of layer 0", showing("mlp.router", 0, {3, 8}));
  expect_refused("attn.kv of layer 0 is not shown here", showing("attn.kv", 0, {3, 2, 2, 32}));
  expect_refused("attn.norm of layer 0 has 4 rows, and pass 0 has 3",
                 showing("attn.norm", 0, {4, 64}));
  expect_refused("has 6 axes", showing("attn.norm", 0, {1, 1, 1, 1, 3, 64}));
  expect_refused("type 2 of 64 bits", showing("attn.norm", 0, {3, 64}, {kDLFloat, 64, 1}));
  expect_refused("attn.norm of layer 0 was shown twice in pass 0", [&](LockstepTrace* trace) {
    EXPECT_EQ(showing("attn.norm", 0, {3, 64})(trace), 0);
    return showing("attn.norm", 0, {3, 64})(trace);
  });
  expect_refused("ascending rows of the 3 of pass 0 were wanted", [](LockstepTrace* trace) {
    Shown<float> shown(counting(2 * 64), {2, 64}, kF32);
    const int32_t rows[] = {2, 1};
    return lockstep_trace_show_rows(trace, "final.norm", -1, &shown.tensor, rows, 2, nullptr);
  });
  expect_refused("lies on a device of DLPack's type 7", [](LockstepTrace* trace) {
    Shown<float> shown(counting(3 * 64), {3, 64}, kF32);
    shown.tensor.device.device_type = kDLVulkan;
    return lockstep_trace_show(trace, "attn.norm", 0, &shown.tensor, nullptr);
  });
  expect_refused("was shown as NULL", [](LockstepTrace* trace) {
    return lockstep_trace_show(trace, "attn.norm", 0, nullptr, nullptr);
  });
}

TEST_F(CInterface, ATraceThatIsNotClosedIsThatOfARunThatDidNotEnd) {
  LockstepTrace* trace = opened();
  Shown<float> norm(counting(3 * 64), {3, 64}, kF32);
  EXPECT_EQ(lockstep_trace_show(trace, "attn.norm", 0, &norm.tensor, nullptr), 0);
  EXPECT_EQ(lockstep_trace_begin_pass(trace, kRows, 3), 0);
  EXPECT_FALSE(std::filesystem::exists(path_));
  EXPECT_FALSE(open_trace(path_ + ".part")->complete());
  EXPECT_EQ(lockstep_trace_close(trace), 0);
}

}  // namespace
}  // namespace lockstep
