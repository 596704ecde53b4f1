// A Python file of ops: whatever a function does ends as one sentence, and the engine lives on.
#include "kernels/plugin/python_ops.h"

#include <gtest/gtest.h>

#include <array>
#include <csignal>
#include <cstdlib>
#include <filesystem>

#include "kernels/base/memory.h"
#include "tests/helpers.h"
#include "tests/places.h"

namespace lockstep {
namespace {

std::string python_file(const std::string& name) {
  return source_path("tests/kernels/plugins/" + name + ".py");
}

void expect_part(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << text << "\n  lacks " << part;
}

Tensor floats(const std::vector<float>& values, const Shape& shape) {
  return tensor_of<float>(values, shape, DType::f32);
}

// The Python of the tests, which has torch.
class PythonOps : public testing::Test {
 protected:
  void SetUp() override {
    const std::string python = built_path("venv/bin/python");
    if (!std::filesystem::exists(python)) GTEST_SKIP() << "it needs torch in " << python;
    setenv("LOCKSTEP_PYTHON", python.c_str(), 1);
  }

  // Why a file with that text is refused.
  static std::string refusal(const std::string& text) {
    const TempFolder folder;
    return error_of(
        [&] { with_python_ops(cpu_ops(), folder.write("mine.py", text), Device::cpu); });
  }
};

class BrokenPython : public PythonOps {
 protected:
  // One process for all tests: torch takes seconds to be there.
  static const Ops& user() {
    static const Ops ops = with_python_ops(cpu_ops(), python_file("broken_ops"), Device::cpu).ops;
    return ops;
  }

  Tensor a_ = floats({1, 2, 3, 4, 5, 6}, {2, 3});
  Tensor out_ = floats({9, 9, 9, 9, 9, 9}, {2, 3});
  Tensor index_ = tensor_of<int32_t>(std::array<int32_t, 2>{1, 0}, {2}, DType::i32);
  OpContext at_{.layer = 1, .point = "mlp.act"};
};

TEST_F(BrokenPython, ThatRaisesIsNamedWithItsLine) {
  const std::string error = error_of([&] {
    user().rms_norm(at_, out_, a_, floats({1, 1, 1}, {3}), 1e-6f);
  });
  expect_part(error, "rms_norm of ");
  expect_part(error, "broken_ops.py at layer 1 mlp.act failed: ");
  expect_part(error, "broken_ops.py:11: ValueError: no kernel for this width");
}

TEST_F(BrokenPython, ThatReturnsItsResultIsToldToWriteIt) {
  const std::string error = error_of([&] { user().silu_mul(at_, out_, a_, a_); });
  expect_part(error, "it returned a Tensor: an op writes into out, as out.copy_(...) does");
}

TEST_F(BrokenPython, OutputsAreWatched) {
  expect_part(error_of([&] { user().add(at_, out_, a_, a_); }),
              "left row 1, element 0 of its output [2, 3] unwritten");
  EXPECT_EQ(out_.as<float>()[0], 9) << "nothing is handed on";
  const Tensor x = floats({1, 2, 3, 4}, {2, 1, 2}), weights = floats({1, 1}, {2, 1});
  Tensor out({2, 2}, DType::f32);
  expect_part(error_of([&] { user().weighted_sum(at_, out, x, weights); }),
              "wrote after its output [2, 2]");
}

TEST_F(BrokenPython, InputsAreWatched) {
  expect_part(error_of([&] { user().gather_rows(at_, out_, index_, a_); }),
              "changed its input table [2, 3]");
  EXPECT_EQ(a_.as<float>()[0], 1) << "it had a copy";
}

TEST_F(BrokenPython, ThatExitsIsNamedWithItsLine) {
  Tensor chosen({2}, DType::i32);
  expect_part(error_of([&] { user().argmax(at_, chosen, a_); }),
              "broken_ops.py:33: it called exit: raise an error");
}

TEST_F(BrokenPython, ThatHangsEndsByCtrlCWithItsLine) {
  Tensor chosen({2, 1}, DType::i32);
  const std::string error = error_of([&] { user().top_k(at_, chosen, a_); });
  expect_part(error, "top_k of ");
  expect_part(error, "broken_ops.py:3");
  expect_part(error, ": it was interrupted");
}

TEST_F(BrokenPython, WhatItPrintsIsNoResult) {
  testing::internal::CaptureStdout();
  const Tensor weight = floats({1, 0, 0, 0, 1, 0, 0, 0, 1}, {3, 3});
  user().matmul(at_, out_, a_, WeightView(weight), {});
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "");
  EXPECT_EQ(out_.as<float>()[5], 6);
}

TEST_F(BrokenPython, ThatRanBeforeACrashIsWithoutItsProcessAfterwards) {
  const Tensor k = floats({1, 2}, {1, 1, 1, 2}), v = floats({3, 4}, {1, 1, 1, 2});
  Tensor out({1, 2, 1, 2}, DType::f32);
  const Tensor table = tensor_of<int32_t>(std::array<int32_t, 1>{0}, {1}, DType::i32);
  const std::string error = error_of([&] { user().kv_gather(at_, out, {k, v}, table); });
  expect_part(error, "kv_gather of ");
  expect_part(error, "broken_ops.py:44: its Python process was ended by signal 11");
}

TEST_F(PythonOps, FilesThatCannotServeAreRefused) {
  expect_part(error_of([] { with_python_ops(cpu_ops(), "none.py", Device::cpu); }),
              "none.py cannot be read: No such file");
  expect_part(refusal("def rms_norm(out, x\n"), "mine.py:1: SyntaxError: '(' was never closed");
  expect_part(refusal("\nimport nowhere\n"), "mine.py:2: ModuleNotFoundError: No module named");
  expect_part(refusal("def helper(x): pass\n"), "named as an op, such as rms_norm, found none in");
  expect_part(refusal("def rms_norm(out, x, weight, eps): pass\ndef rmsnorm(out): pass\n"),
              "has a function rmsnorm, which is no op; did you mean \"rms_norm\"?");
  expect_part(refusal("def rope(out, x): pass\n"),
              "takes (out, x): it is called with (out, x, cos, sin, positions)");
}

TEST_F(PythonOps, HelpersMayBeNamedAsTheBeginningOfAnOp) {
  expect_part(refusal("def softmax(x): pass\ndef silu(x): pass\ndef _rmsnorm(x): pass\n"
                      "from operator import index\n"),
              "named as an op, such as rms_norm, found none in");
}

// As Ctrl-C does, once whoever called is waiting for the answer and no signal would end it.
const std::string kCtrlC = "import os, time\ntime.sleep(0.5)\nos.kill(os.getppid(), 2)\n";

TEST_F(PythonOps, ProcessesThatDieAreASentence) {
  expect_part(refusal("import os\nos._exit(3)\n"), "ended its Python process with status 3");
  expect_part(refusal("import ctypes\n\nctypes.string_at(0)\n"),
              "mine.py:3: its Python process was ended by signal 11, Segmentation fault");
  expect_part(refusal(kCtrlC + "while True: pass\n"), ": it was interrupted");
  expect_part(
      refusal("import signal\nsignal.signal(2, signal.SIG_IGN)\n" + kCtrlC + "while True: pass\n"),
      "was interrupted, and does not come back: its Python process was killed");
}

// Such as comes between the end of the function and the reading of its answer.
TEST_F(PythonOps, ACtrlCThatTheFunctionDoesNotSeeIsNotLost) {
  static volatile sig_atomic_t came = 0;
  const auto before = std::signal(SIGINT, [](int) { came = came + 1; });
  const std::string unseen = "import signal\nsignal.signal(2, signal.SIG_IGN)\n";
  expect_part(refusal(unseen), "found none in");
  EXPECT_EQ(came, 0);
  expect_part(refusal(unseen + kCtrlC), "found none in");
  EXPECT_EQ(came, 1) << "raised when the answer is read, and by nobody else";
  std::signal(SIGINT, before);
}

TEST_F(PythonOps, WithoutAPythonOrTorchAreRefused) {
  const std::string op = "def add(out, a, b): pass\n";
  setenv("LOCKSTEP_PYTHON", "/nowhere/python3", 1);
  expect_part(refusal(op),
              "/nowhere/python3 cannot be run: No such file or directory; put one that");
  const TempFolder folder;
  const std::string python =
      folder.write("python", "#!/bin/sh\nexec " + built_path("venv/bin/python") + " -S \"$@\"\n");
  std::filesystem::permissions(python, std::filesystem::perms::owner_all);
  setenv("LOCKSTEP_PYTHON", python.c_str(), 1);
  expect_part(refusal(op), "has no torch (No module named 'torch'): install it there");
}

}  // namespace
}  // namespace lockstep
