#include "kernels/plugin/user_ops.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <bit>
#include <cfenv>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <thread>
#include <tuple>

#include "kernels/lockstep_ops.h"
#include "tests/helpers.h"
#include "tests/host_device.h"
#include "tests/places.h"

namespace lockstep {
namespace {

std::string plugin(const std::string& name) { return built_path("plugin_" + name + ".so"); }

std::string refusal(const std::string& path) {
  return error_of([&] { with_user_ops(cpu_ops(), path); });
}

Tensor floats(const std::vector<float>& values, const Shape& shape) {
  return tensor_of<float>(values, shape, DType::f32);
}

TEST(UserOps, ThatAreRightGiveWhatTheirsGive) {
  const Ops user = with_user_ops(cpu_ops(), plugin("right_rms_norm"));
  const Tensor x = floats({1, -2, 3, 4, 0.5, 6, -7, 8}, {2, 4});
  const Tensor weight = floats({1, 2, 3, 4}, {4});
  Tensor ours({2, 4}, DType::f32), theirs({2, 4}, DType::f32);
  cpu_ops().rms_norm({}, ours, x, weight, 1e-6f);
  user.rms_norm({.layer = 2, .point = "attn.norm"}, theirs, x, weight, 1e-6f);
  for (int i = 0; i < 8; ++i) EXPECT_NEAR(theirs.as<float>()[i], ours.as<float>()[i], 1e-6) << i;
}

TEST(UserOps, AreKnownByName) {
  EXPECT_EQ(replace_ops(cpu_ops(), plugin("right_rms_norm"), Device::cpu).names,
            std::vector<std::string>{"rms_norm"});
}

TEST(UserOps, ThatAreFusedHideWhatLiesInside) {
  const ReplacedOps user = replace_ops(cpu_ops(), plugin("right_fused"), Device::cpu);
  EXPECT_EQ(user.names, (std::vector<std::string>{"add_rms_norm", "qkv_matmul",
                                                  "qk_norm_rope_kv_write", "gate_up_silu"}));
  EXPECT_EQ(user.ops.fused.hidden(),
            (std::vector<std::string_view>{"attn.q_norm", "attn.k_norm", "mlp.gate", "mlp.up"}));
  EXPECT_TRUE(cpu_ops().fused.hidden().empty());
  // Of a piece that is replaced too, the fused op is the one that is called.
  EXPECT_TRUE(whole_fused_ops(user.ops).gate_up_silu);
}

TEST(UserOps, LeaveTheOthersAlone) {
  const Ops user = with_user_ops(cpu_ops(), plugin("right_rms_norm"));
  const Tensor a = floats({1, 2}, {1, 2});
  Tensor out({1, 2}, DType::f32);
  user.add({}, out, a, a);
  EXPECT_EQ(out.as<float>()[1], 4);
}

TEST(UserOps, WorkWhereTheOutputIsAnInput) {
  const Ops user = with_user_ops(cpu_ops(), plugin("right_rms_norm"));
  Tensor x = floats({3, 4}, {1, 2});
  user.rms_norm({}, x, x, floats({1, 1}, {2}), 0);
  EXPECT_NEAR(x.as<float>()[0], 3 / std::sqrt(12.5), 1e-6);
  EXPECT_NEAR(x.as<float>()[1], 4 / std::sqrt(12.5), 1e-6);
}

TEST(UserOps, LibrariesThatAreNoneAreRefused) {
  EXPECT_NE(refusal("./none.so").find("--ops wants a shared library of ops, found ./none.so"),
            std::string::npos);
  EXPECT_NE(refusal(".").find("found ., which is no regular file"), std::string::npos);
  EXPECT_NE(refusal(plugin("no_interface")).find("exports lockstep_ops_abi"), std::string::npos);
  EXPECT_NE(refusal(plugin("other_interface")).find("interface 2, found 43"), std::string::npos);
  const std::string misspelt = refusal(plugin("no_op"));
  EXPECT_NE(misspelt.find("exports lockstep_rmsnorm, which is no op; did you mean \"rms_norm\"?"),
            std::string::npos)
      << misspelt;
  EXPECT_NE(refusal(plugin("no_fused_op")).find("did you mean \"gate_up_silu\"?"),
            std::string::npos);
  EXPECT_NE(error_of([] {
              with_user_functions(
                  cpu_ops(), [](const char*) -> void* { return nullptr; }, "it");
            }).find("exports an op"),
            std::string::npos);
}

// A file of that name may lie in the folder of whoever was told to trust another.
TEST(UserOps, ANameWithoutASlashIsLookedForNowhere) {
  std::filesystem::copy_file(plugin("right_rms_norm"), "rms_norm_of_this_folder.so",
                             std::filesystem::copy_options::overwrite_existing);
  EXPECT_NE(refusal("rms_norm_of_this_folder.so")
                .find("without a slash, which is looked for nowhere: write "
                      "./rms_norm_of_this_folder.so for that of this folder"),
            std::string::npos);
  EXPECT_NO_THROW(with_user_ops(cpu_ops(), "./rms_norm_of_this_folder.so"));
  std::filesystem::remove("rms_norm_of_this_folder.so");
}

class BrokenOp : public testing::Test {
 protected:
  Ops user_ = with_user_ops(cpu_ops(), plugin("broken_ops"));
  Tensor a_ = floats({1, 2, 3, 4, 5, 6}, {2, 3});
  Tensor out_ = floats({9, 9, 9, 9, 9, 9}, {2, 3});
  OpContext at_{.layer = 1, .point = "mlp.act"};
};

TEST_F(BrokenOp, ThatLeavesAnElementUnwrittenIsNamedWithIt) {
  const std::string error = error_of([&] { user_.add(at_, out_, a_, a_); });
  EXPECT_NE(error.find("add of "), std::string::npos) << error;
  EXPECT_NE(error.find("at layer 1 mlp.act"), std::string::npos) << error;
  EXPECT_NE(error.find("row 1, element 2"), std::string::npos) << error;
  EXPECT_EQ(out_.as<float>()[5], 9) << "nothing is handed on";
}

TEST_F(BrokenOp, ThatWritesBesideItsOutputIsNamed) {
  std::string error = error_of([&] { user_.silu_mul(at_, out_, a_, a_); });
  EXPECT_NE(error.find("wrote after its output"), std::string::npos) << error;
  const Tensor x = floats({1, 2, 3, 4}, {2, 1, 2}), weights = floats({1, 1}, {2, 1});
  Tensor out({2, 2}, DType::f32);
  error = error_of([&] { user_.weighted_sum(at_, out, x, weights); });
  EXPECT_NE(error.find("wrote before its output"), std::string::npos) << error;
}

TEST_F(BrokenOp, ThatFailsIsNamedWithItsReason) {
  Tensor chosen({2}, DType::i32);
  const std::string error = error_of([&] { user_.argmax(at_, chosen, a_); });
  EXPECT_NE(error.find("it has no registers left"), std::string::npos) << error;
}

// Returns at once, and shows what it found in its output.
uint32_t g_found = 0;
const char* leave(const LockstepCall*, const DLTensor* out, const DLTensor*, const DLTensor*) {
  g_found = 0;
  if (out->byte_offset != 0 || out->strides != nullptr) return "no reader of DLPack takes it";
  std::memcpy(&g_found, static_cast<char*>(out->data) + out->byte_offset, out->dtype.bits / 8u);
  return nullptr;
}
const char* leave_index(const LockstepCall*, const DLTensor*, const DLTensor*) { return nullptr; }

const char* choose_none(const LockstepCall*, const DLTensor* out, const DLTensor*) {
  for (int64_t i = 0; i < out->shape[0]; ++i) static_cast<int32_t*>(out->data)[i] = -1;
  return nullptr;
}

// As where a search that finds nothing says -1.
TEST(WrittenOutput, OfAWrongIndexIsNotTakenForNone) {
  const Ops user = with_user_functions(
      cpu_ops(),
      [](const std::string& symbol) {
        return symbol == "lockstep_argmax" ? reinterpret_cast<void*>(choose_none) : nullptr;
      },
      "it");
  Tensor chosen({2}, DType::i32);
  EXPECT_NO_THROW(user.argmax({}, chosen, floats({1, 2, 3, 4}, {2, 2})));
  EXPECT_EQ(chosen.as<int32_t>()[1], -1);
}

TEST(UnwrittenOutput, IsSeenInEveryDtype) {
  const auto find = [](const std::string& symbol) -> void* {
    if (symbol == "lockstep_add") return reinterpret_cast<void*>(leave);
    if (symbol == "lockstep_argmax") return reinterpret_cast<void*>(leave_index);
    return nullptr;
  };
  const Ops user = with_user_functions(cpu_ops(), find, "it");
  const auto error = [&](const TensorView& out, const TensorView& x) {
    return error_of([&] {
      if (is_float(out.dtype))
        user.add({}, out, x, x);
      else
        user.argmax({}, out, x);
    });
  };
  // Neither arithmetic nor a conversion makes a NaN whose first bit of the mantissa is clear.
  const std::tuple<DType, uint32_t, uint32_t> kinds[] = {{DType::f32, 0x7f800000, 0x00400000},
                                                         {DType::bf16, 0x7f80, 0x0040},
                                                         {DType::f16, 0x7c00, 0x0200}};
  for (const auto& [dtype, exponent, quiet] : kinds) {
    const Tensor out({2, 3}, dtype), x({2, 3}, dtype);
    EXPECT_NE(error(out, x).find("row 0, element 0 of its output"), std::string::npos);
    EXPECT_EQ(g_found & exponent, exponent) << name_of(dtype);
    EXPECT_EQ(g_found & quiet, 0u) << name_of(dtype);
    EXPECT_NE(g_found & (quiet - 1), 0u) << name_of(dtype) << ": infinity";
  }
  const Tensor chosen({2}, DType::i32), logits({2, 3}, DType::f32);
  EXPECT_NE(error(chosen, logits).find("row 0, element 0 of its output"), std::string::npos);
}

class UserOpOfADevice : public HostDevice {};

TEST_F(UserOpOfADevice, IsToldWhichDeviceItsTensorsAreOf) {
  const Ops user = with_user_ops(cpu_ops(), plugin("broken_ops"));
  const Tensor a = floats({1, 2}, {1, 2}), chosen({1}, DType::i32);
  const auto told = [&](Device device) {
    const Tensor out = copy_on(device, chosen), logits = copy_on(device, a);
    return error_of([&] { user.argmax({}, out, logits); });
  };
  const Device other{DeviceKind::cuda, 3};
  EXPECT_NE(told(other).find("no registers left on device 2:3"), std::string::npos) << told(other);
  EXPECT_NE(told(Device::cuda).find("no registers left on device 2:0"), std::string::npos)
      << told(Device::cuda);
  EXPECT_NE(told(Device::cpu).find("no registers left on device 1:0"), std::string::npos)
      << told(Device::cpu);
}

TEST_F(UserOpOfADevice, IsBlamedForItsOwnKernelsOnly) {
  static int waits_left;  // until one finds that a kernel failed
  DeviceRuntime device = runtime_of(Device::cuda);
  device.wait = [](CUstream_st*) {
    if (waits_left-- == 0) throw Error("it said: an illegal address");
  };
  register_runtime(device);
  const auto trouble_after = [](int waits) {
    const Ops user = with_user_ops(cpu_ops(), plugin("broken_ops"));
    const Tensor a = copy_on(Device::cuda, floats({3, 4}, {1, 2}));
    const Tensor out = copy_on(Device::cuda, floats({0, 0}, {1, 2}));
    waits_left = waits;
    return error_of([&] { user.add({.layer = 1, .point = "attn.residual"}, out, a, a); });
  };
  // Until the library is called, it is that of an op before.
  int before = 0;
  while (before < 9 && trouble_after(before) == "it said: an illegal address") ++before;
  EXPECT_GT(before, 0);
  const std::string own = trouble_after(before);
  EXPECT_NE(own.find("add of "), std::string::npos) << own;
  EXPECT_NE(own.find(" at layer 1 attn.residual returned, but its kernels failed"),
            std::string::npos)
      << own;
  EXPECT_NE(own.find("its kernels failed: it said: an illegal"), std::string::npos) << own;
}

// An op may well give a NaN: only the pattern that nobody wrote is unwritten.
TEST(UserOps, MayGiveNaN) {
  const Ops user = with_user_ops(cpu_ops(), plugin("right_rms_norm"));
  // LibTorch makes NaNs of all bits set too.
  for (const float nan : {std::numeric_limits<float>::quiet_NaN(), std::bit_cast<float>(~0U)}) {
    Tensor x = floats({nan, 1}, {1, 2}), out({1, 2}, DType::f32);
    user.rms_norm({}, out, x, floats({1, 1}, {2}), 0);
    EXPECT_TRUE(std::isnan(out.as<float>()[0]));
  }
}

// Calls ops of a library that reach beyond their output.
class MeddlingOp : public testing::Test {
 protected:
  Ops user_ = with_user_ops(cpu_ops(), plugin("meddling_ops"));
  Tensor a_ = floats({1, 2, 3, 4, 5, 6}, {2, 3}), b_ = floats({9, 8, 7, 6, 5, 4}, {2, 3});
  Tensor out_ = floats({0, 0, 0, 0, 0, 0}, {2, 3});
};

TEST_F(MeddlingOp, ThatWritesAnInputIsNamedWithIt) {
  const OpContext at{.layer = 2, .point = "attn.residual"};
  const std::string error = error_of([&] { user_.add(at, out_, a_, b_); });
  EXPECT_NE(error.find("add of "), std::string::npos) << error;
  EXPECT_NE(error.find("at layer 2 attn.residual changed its input b [2, 3]: "), std::string::npos)
      << error;
  EXPECT_EQ(out_.as<float>()[0], 0) << "nothing is handed on";
}

TEST_F(MeddlingOp, ThatWritesTheCacheItReadsIsNamedWithIt) {
  const Tensor k = floats({1, 2, 3, 4}, {2, 1, 1, 2}), v = floats({1, 2, 3, 4}, {2, 1, 1, 2});
  const Tensor q = floats({1, 2}, {1, 1, 2}), out({1, 1, 2}, DType::f32);
  const auto ids = [](const std::vector<int32_t>& values, const Shape& shape) {
    return tensor_of<int32_t>(values, shape, DType::i32);
  };
  const Tensor start = ids({0, 1}, {2}), length = ids({1}, {1}), table = ids({1}, {1, 1});
  const std::string error = error_of([&] {
    user_.paged_attention({.layer = 0, .point = "attn.out"}, out, q, {k, v}, {start, length, table},
                          1, 0);
  });
  EXPECT_NE(error.find("changed its input cache.v [2, 1, 1, 2]: "), std::string::npos) << error;
}

TEST_F(MeddlingOp, ThatLeavesTheFloatingPointControlChangedIsNamedAndItIsPutBack) {
  std::string error =
      error_of([&] { user_.silu_mul({.layer = 0, .point = "mlp.act"}, out_, a_, b_); });
  EXPECT_NE(error.find("silu_mul of "), std::string::npos) << error;
  EXPECT_NE(error.find("at layer 0 mlp.act changed"), std::string::npos) << error;
  EXPECT_NE(error.find("changed the rounding mode: "), std::string::npos) << error;
  EXPECT_EQ(std::fegetround(), FE_TONEAREST);
  error = error_of([&] { user_.silu_mul({.layer = 1, .point = "mlp.act"}, out_, a_, b_); });
  EXPECT_NE(error.find("changed whether subnormal numbers are zero: "), std::string::npos) << error;
  volatile float smallest = std::numeric_limits<float>::min();
  EXPECT_NE(smallest / 2, 0);
}

TEST_F(MeddlingOp, MayRaiseTheFlagsOfExceptions) {
  user_.rms_norm({}, out_, a_, floats({1, 1, 1}, {3}), 0);
  EXPECT_EQ(out_.as<float>()[5], 6);
}

class MeddlingOpOfADevice : public HostDevice {};

TEST_F(MeddlingOpOfADevice, ThatWritesAnInputIsNamedWithIt) {
  const Ops user = with_user_ops(cpu_ops(), plugin("meddling_ops"));
  const Tensor a = floats({1, 2}, {1, 2});
  const Tensor there = copy_on(Device::cuda, a), b = copy_on(Device::cuda, a);
  const Tensor out = copy_on(Device::cuda, a);
  const std::string error = error_of([&] { user.add({}, out, there, b); });
  EXPECT_NE(error.find("changed its input b [1, 2]: "), std::string::npos) << error;
}

class CrashingOp : public testing::Test {
 protected:
  // In a process of its own, whose threads are then all its own.
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }

  static Ops user(const std::string& name) { return with_user_ops(cpu_ops(), plugin(name)); }
  Tensor a_ = floats({1, 2, 3, 4, 5, 6}, {2, 3});
  Tensor out_ = floats({9, 9, 9, 9, 9, 9}, {2, 3});
  OpContext at_{.layer = 2, .point = "mlp.act"};
};
const auto kEndsInTrouble = testing::ExitedWithCode(2);

TEST_F(CrashingOp, EndsTheProcessInASentenceThatNamesItAndTheSignal) {
  EXPECT_EXIT(user("crashing_ops").silu_mul(at_, out_, a_, a_), kEndsInTrouble,
              "^error: silu_mul of .*plugin_crashing_ops.so at layer 2 mlp.act crashed "
              "with SIGSEGV at the address 0x0: run it under gdb[^\n]*\n$");
  EXPECT_EXIT(
      user("crashing_ops").add({.point = "embed"}, out_, a_, a_), kEndsInTrouble,
      "^error: add of .* at embed .* SIGFPE in the instruction at 0x[0-9a-f]+: run it under gdb");
  EXPECT_EXIT(user("aborting_silu_mul").silu_mul(at_, out_, a_, a_), kEndsInTrouble,
              "^error: silu_mul of .* crashed with SIGABRT: run it under gdb");
}

TEST_F(CrashingOp, IsNamedWhenItsStackRunsOut) {
  EXPECT_EXIT(user("crashing_ops").rms_norm(at_, out_, a_, floats({1, 1, 1}, {3}), 0),
              kEndsInTrouble, "^error: rms_norm of .* crashed with SIGSEGV at the address 0x");
}

TEST_F(CrashingOp, IsNamedWhenItDoesSoInAThreadOfTheLibrary) {
  Tensor chosen({2}, DType::i32);
  EXPECT_EXIT(user("crashing_ops").argmax(at_, chosen, a_), kEndsInTrouble,
              "^error: argmax of .* crashed with SIGSEGV at the address 0x0: run it under gdb");
}

TEST_F(CrashingOp, IsNamedWhenItEndsTheProcessAsIfAllWereWell) {
  const char* sentence =
      "^error: [a-z_]+ of .*plugin_exiting_ops.so at layer 2 mlp.act ended the process, as exit "
      "does: [^\n]*\n$";
  EXPECT_EXIT(user("exiting_ops").silu_mul(at_, out_, a_, a_), kEndsInTrouble, sentence);
  EXPECT_EXIT(user("exiting_ops").add(at_, out_, a_, a_), kEndsInTrouble, sentence);
  const Tensor chosen({2}, DType::i32);
  EXPECT_EXIT(user("exiting_ops").argmax(at_, chosen, a_), kEndsInTrouble, sentence);
}

TEST_F(CrashingOp, IsNotBlamedForAnExitElsewhere) {
  const auto end = [&] {
    user("right_rms_norm").rms_norm(at_, out_, a_, floats({1, 1, 1}, {3}), 0);
    std::exit(3);
  };
  EXPECT_EXIT(end(), testing::ExitedWithCode(3), "^$");
  const auto end_beside = [&] {
    const Ops busy = user("crashing_ops");
    const Tensor x = floats({0, 0, 0, 0}, {2, 1, 2}), weights = floats({1, 1}, {2, 1});
    const Tensor out({2, 2}, DType::f32);
    const std::jthread thread([&] { busy.weighted_sum(at_, out, x, weights); });
    while (std::atomic_ref(*x.as<float>()) != 1) std::this_thread::yield();
    std::quick_exit(3);
  };
  EXPECT_EXIT(end_beside(), testing::ExitedWithCode(3), "^$");
}

TEST_F(CrashingOp, IsNotBlamedForWhatCrashesElsewhere) {
  // Killed by the signal; or what a sanitizer does with it, which is to report it.
  const auto as_ever = [](int status) {
    return WIFSIGNALED(status) ? WTERMSIG(status) == SIGSEGV : WEXITSTATUS(status) != 2;
  };
  const char* no_sentence = "^$|Sanitizer";
  EXPECT_EXIT(
      {
        user("right_rms_norm").rms_norm(at_, out_, a_, floats({1, 1, 1}, {3}), 0);
        raise(SIGSEGV);
      },
      as_ever, no_sentence);
  const auto crash_beside = [&] {
    const Ops busy = user("crashing_ops");
    const Tensor x = floats({0, 0, 0, 0}, {2, 1, 2}), weights = floats({1, 1}, {2, 1});
    const Tensor out({2, 2}, DType::f32);
    const std::jthread thread([&] { busy.weighted_sum(at_, out, x, weights); });
    while (std::atomic_ref(*x.as<float>()) != 1) std::this_thread::yield();
    raise(SIGSEGV);
  };
  EXPECT_EXIT(crash_beside(), as_ever, no_sentence);
}

}  // namespace
}  // namespace lockstep
