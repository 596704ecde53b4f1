// The ops of a library, each alone, over a grid of shapes.
#include "src/opcheck/opcheck.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>

#include "src/opcheck/op_grid.h"
#include "tests/lockstep_binary.h"
#include "tests/places.h"
#include "tests/report/json_schema.h"

namespace lockstep {
namespace {

std::string library(const std::string& name) { return built_path("tests/opcheck/" + name + ".so"); }

OpsResult::Account tried(const std::string& name, const std::string& op,
                         const std::vector<std::string>& dtypes = {"bf16"},
                         const std::string& folder = "") {
  const OpsResult result =
      check_ops({.library = library(name), .only = {op}, .dtypes = dtypes, .folder = folder});
  EXPECT_EQ(result.ops.size(), 1U);
  EXPECT_EQ(exit_status(result), result.ops[0].wrong > 0 ? 1 : 0);
  return result.ops[0];
}

// What is said of a wrong op, for people.
std::string said_of(const OpsResult::Account& op) {
  if (!op.first) return "right";
  return fmt::format("{} of {}: {} | {} | {} | {} {} [{}] want {} got {}", op.wrong, op.cases,
                     op.common, op.first->shape, op.first->says, op.first->point, op.first->rule,
                     op.first->statistic, op.first->want, op.first->got);
}

void expect_wrong(const OpsResult::Account& op, const std::string& common) {
  EXPECT_GT(op.wrong, 0) << op.op;
  EXPECT_LT(op.wrong, op.cases) << said_of(op);
  EXPECT_NE(op.common.find(common), std::string::npos) << said_of(op);
  ASSERT_TRUE(op.first) << op.op;
}

TEST(Ops, OfLockstepAreRightOverTheWholeGrid) {
  const OpsResult result = check_ops({.library = library("ours")});
  EXPECT_EQ(exit_status(result), 0);
  EXPECT_EQ(result.ops.size(), 18U) << "every op that a library can have";
  for (const OpsResult::Account& op : result.ops) {
    EXPECT_EQ(op.wrong, 0) << op.op << " " << said_of(op);
    EXPECT_GE(op.cases, 40) << op.op;
    EXPECT_LE(op.budgets, 1) << op.op;
    EXPECT_FALSE(op.worst_case.empty()) << op.op;
    ASSERT_TRUE(op.seconds && op.own_seconds && op.ratio) << op.op;
    EXPECT_GT(*op.seconds, 0) << op.op;
  }
}

TEST(Ops, ThatAreWrongInSomeShapesAreNamedByThem) {
  expect_wrong(tried("first", "gather_rows"), "table rows from 33000 on");
  expect_wrong(tried("first", "rms_norm", {"bf16", "fp16"}), "fp16");
  expect_wrong(tried("first", "matmul"), "inputs that is no multiple of 32");
  expect_wrong(tried("first", "rope"), "positions past 65535");
  const OpsResult::Account heads = tried("first", "paged_attention");
  expect_wrong(heads, "KV heads 2 and queries per KV head that are several");
  ASSERT_TRUE(heads.first && !heads.first->looks_like.empty()) << said_of(heads);
  EXPECT_NE(heads.first->looks_like[0].says.find("modulo"), std::string::npos)
      << heads.first->looks_like[0].says;
  expect_wrong(tried("first", "silu_mul", {"fp32"}), "values that overflow fp16");
  expect_wrong(tried("first", "softmax_of", {"fp32"}), "values that overflow fp16");
  expect_wrong(tried("second", "rope"), "head_dim 80");
  expect_wrong(tried("second", "add_rms_norm", {"fp32"}), "eps from 1e-05 on");
}

// Ops round as IEEE 754 does: what overflows is Inf.
TEST(Ops, ThatSaturateAreNamed) {
  const auto expect_named = [](const OpsResult::Account& op, const std::string& how) {
    ASSERT_GT(op.wrong, 0) << op.op;
    ASSERT_FALSE(op.first->looks_like.empty()) << said_of(op);
    EXPECT_NE(op.first->looks_like[0].says.find(how), std::string::npos)
        << op.first->looks_like[0].says;
  };
  for (const char* dtype : {"bf16", "fp32"}) {
    const OpsResult::Account sum = tried("third", "add", {dtype});
    expect_named(sum, "the largest number of the dtype where the right result overflows to Inf");
    EXPECT_NE(sum.common.find("values with huge results"), std::string::npos) << said_of(sum);
  }
  for (const char* op : {"add", "matmul", "silu_mul"})
    expect_named(tried("third", op, {"fp16"}), "clamped to what fp16 holds");
}

TEST(Ops, ThatTakeTheLastOfEqualOnesAreNamed) {
  const OpsResult::Account op = tried("third", "argmax", {"fp32"});
  EXPECT_LT(op.wrong, op.cases) << "most rows have one largest";
  EXPECT_NE(said_of(op).find("not the first of the largest logits"), std::string::npos);
}

// A plain loop's sum of squares is right, whatever the patterns of numbers of 8 bits.
TEST(Ops, ThatAddOneSquareAfterTheOtherAreRight) {
  const OpsResult::Account norm = tried("third", "rms_norm", {"bf16", "fp16"});
  EXPECT_EQ(norm.wrong, 0) << said_of(norm);
  EXPECT_GT(norm.cases, 80);
}

// Two of its results in a hundred thousand lie so near to a border that they are rounded otherwise.
// They are that many where no pair of a gate and an up comes twice.
TEST(Ops, ThatRoundOtherwiseByABorderAreRight) {
  const OpsResult::Account silu = tried("fourth", "silu_mul", {"bf16"});
  EXPECT_EQ(silu.wrong, 0) << said_of(silu);
  EXPECT_GT(silu.cases, 20);
}

TEST(Ops, ThatAreWrongInCallsOfOneRowAloneAreFound) {
  const OpsResult::Account rope = tried("fourth", "rope");
  EXPECT_GT(rope.wrong, 0) << said_of(rope);
  EXPECT_LT(rope.wrong, rope.cases / 4) << said_of(rope);
}

// What an op does with inputs that few runs have: each of these is right but for one.
TEST(Ops, ThatAreWrongOfRareInputsAreFound) {
  const auto verdict = [](const char* op, const char* edge, const char* dtype) {
    setenv("EDGE", edge, 1);
    const OpsResult::Account account = tried("edges", op, {dtype});
    unsetenv("EDGE");
    return account;
  };
  struct Rare {
    const char *op, *edge, *dtype;
  };
  for (const auto& [op, edge, dtype] : std::to_array<Rare>({{"argmax", "last", "bf16"},
                                                            {"argmax", "tail of 32", "bf16"},
                                                            {"argmax", "tail of 1024", "fp16"},
                                                            {"argmax", "nan", "bf16"},
                                                            {"argmax", "low", "fp16"},
                                                            {"argmax", "mask", "fp32"},
                                                            {"argmax", "half", "fp32"},
                                                            {"top_k", "nan", "fp32"},
                                                            {"top_k", "mask", "bf16"},
                                                            {"silu_mul", "nan", "fp32"},
                                                            {"silu_mul", "low", "bf16"},
                                                            {"silu_mul", "small", "bf16"},
                                                            {"silu_mul", "flush", "bf16"},
                                                            {"add", "nan", "bf16"},
                                                            {"gather_rows", "first", "bf16"},
                                                            {"kv_write", "first", "bf16"},
                                                            {"kv_write", "padding at 0", "fp16"},
                                                            {"kv_write", "padding before", "bf16"},
                                                            {"kv_write", "padding ends", "fp32"},
                                                            {"rms_norm", "nan", "bf16"},
                                                            {"rope", "nan", "fp16"},
                                                            {"rope", "far", "fp32"}})) {
    EXPECT_GT(verdict(op, edge, dtype).wrong, 0) << op << ", " << edge;
  }
  for (const OpsResult::Account& op : check_ops({.library = library("edges")}).ops)
    EXPECT_EQ(op.wrong, 0) << op.op << " without an edge: " << said_of(op);
  EXPECT_NE(said_of(verdict("argmax", "nan", "bf16")).find("the first NaN among the logits"),
            std::string::npos);
  EXPECT_NE(said_of(verdict("kv_write", "padding at 0", "bf16")).find("must write nowhere"),
            std::string::npos);
}

// Headers of ops promise one rounding, so that nobody has to declare it.
TEST(Ops, ThatRoundTwiceAreRightWhereThatIsDeclared) {
  const OpsResult::Account norm = tried("rounds_twice", "rms_norm");
  EXPECT_GT(norm.wrong, 0);
  EXPECT_NE(said_of(norm).find("would pass if it rounded as hf"), std::string::npos)
      << said_of(norm);
  const OpsResult declared = check_ops({.library = library("rounds_twice"),
                                        .only = {"rms_norm"},
                                        .dtypes = {"bf16"},
                                        .rounding = {.schema = "hf"}});
  EXPECT_EQ(exit_status(declared), 0) << said_of(declared.ops.at(0));
}

// Some cases of a product have no bias, and nothing to round twice: they are held to one rounding.
TEST(Ops, OfWhichSomeCasesAloneCanRoundSoAreJudgedByIt) {
  const OpsResult::Account product = tried("rounds_twice", "matmul");
  EXPECT_NE(said_of(product).find("--rounding attn.q=bias_after_store"), std::string::npos)
      << said_of(product);
  EXPECT_EQ(said_of(product).find("mlp.down=bias_after_store"), std::string::npos)
      << said_of(product);
  const auto declared = [](const std::string& dtype, const std::string& point = "attn.q") {
    return check_ops({.library = library("rounds_twice"),
                      .only = {"matmul"},
                      .dtypes = {dtype},
                      .rounding = {.rounding = {point + "=bias_after_store"}}});
  };
  const OpsResult right = declared("bf16");
  EXPECT_EQ(exit_status(right), 0) << said_of(right.ops.at(0));
  EXPECT_EQ(right.ops.at(0).cases, product.cases);
  EXPECT_THROW(declared("fp32"), Error) << "where none can";
  EXPECT_THROW(declared("bf16", "mlp.down"), Error) << "which has no bias anywhere";
}

// One case that another contract fits is no proof: a kernel rounds in one way.
TEST(Ops, AreOfferedAContractThatMakesAllCasesRightAlone) {
  const OpsResult::Account norm = tried("rounds_twice", "rms_norm");
  EXPECT_NE(said_of(norm).find(fmt::format("(all {} cases tried): --rounding ", norm.cases)),
            std::string::npos)
      << said_of(norm);
  EXPECT_NE(said_of(norm).find("--rounding attn.q_norm=hf"), std::string::npos) << said_of(norm);
  const OpsResult::Account silu = tried("rounds_twice", "silu_mul");
  EXPECT_EQ(said_of(silu).find("would pass if it rounded as"), std::string::npos) << said_of(silu);
  const OpsResult declared = check_ops({.library = library("rounds_twice"),
                                        .only = {"silu_mul"},
                                        .dtypes = {"bf16"},
                                        .rounding = {.schema = "hf"}});
  ASSERT_GT(declared.ops.at(0).wrong, 0) << "it is wrong under the contract too";
  EXPECT_NE(said_of(silu).find(fmt::format("as hf, which fits this case, it is wrong in {} of {} ",
                                           declared.ops.at(0).wrong, silu.cases)),
            std::string::npos)
      << said_of(silu);
}

TEST(Ops, ThatWriteWhereTheyMayNotAreNamed) {
  const OpsResult::Account beside = tried("first", "add");
  EXPECT_GT(beside.wrong, 0);
  ASSERT_TRUE(beside.first);
  EXPECT_NE(beside.first->says.find("wrote after its output"), std::string::npos)
      << said_of(beside);
  const OpsResult::Account changing = tried("second", "rms_norm");
  EXPECT_EQ(changing.wrong, changing.cases);
  ASSERT_TRUE(changing.first);
  EXPECT_NE(changing.first->says.find("changed its input x"), std::string::npos)
      << said_of(changing);
  const OpsResult::Account slot = tried("first", "kv_write");
  EXPECT_GT(slot.wrong, 0);
  ASSERT_TRUE(slot.first);
  EXPECT_NE(slot.first->says.find("which another token may have"), std::string::npos)
      << said_of(slot);
  const OpsResult::Account unwritten = tried("second", "silu_mul");
  expect_wrong(unwritten, "");
  EXPECT_NE(unwritten.first->says.find("unwritten"), std::string::npos) << said_of(unwritten);
}

TEST(Ops, ThatAreFusedAreNamedByTheirOutput) {
  const OpsResult::Account halves = tried("second", "gate_up_silu");
  ASSERT_TRUE(halves.first);
  EXPECT_EQ(halves.first->point, "mlp.act");
  EXPECT_EQ(halves.wrong, halves.cases) << said_of(halves);
}

TEST(Ops, HaveTheirSmallestWrongCaseInAFolder) {
  const std::string folder = temp_path("bugs");
  const OpsResult::Account op = tried("first", "matmul", {"bf16"}, folder);
  ASSERT_EQ(op.folder, folder + "/matmul") << op.no_folder;
  const auto status = [&](const std::string& name) {
    return WEXITSTATUS(
        std::system(fmt::format("cc {0}/repro.c -o {0}/repro -ldl -lm && {0}/repro {1} >{0}/out",
                                op.folder, library(name))
                        .c_str()));
  };
  EXPECT_EQ(status("first"), 1);
  EXPECT_EQ(status("ours"), 0) << text_of(op.folder + "/out");
  const OpsResult::Account beside = tried("first", "add", {"bf16"}, folder);
  EXPECT_TRUE(beside.folder.empty());
  EXPECT_NE(beside.no_folder.find("sentence"), std::string::npos) << beside.no_folder;
}

// A library that crashes in its first case shows what is found out before.
TEST(Ops, HaveTheirFoldersCheckedBeforeTheyAreTried) {
  const TempFolder there;
  there.write("file", "");
  for (const char* folder : {"/half/rms_norm.part", "/full/rms_norm/bug", "/free/rms_norm"})
    std::filesystem::create_directories(there.path() + folder);
  const auto said = [&](const std::string& out) {
    return trouble_of("ops " + library("crashing") + " --ops-only rms_norm --out " + there.path() +
                      "/" + out);
  };
  const auto expect_said = [](const std::string& text, const std::string& wanted) {
    EXPECT_NE(text.find(wanted), std::string::npos) << text;
  };
  expect_said(said("file"), there.path() + "/file is no folder: name another one with --out");
  expect_said(said("file/bugs"), there.path() + "/file is no folder: name another one with --out");
  expect_said(said("full"), there.path() + "/full/rms_norm is there already: name a new folder");
  expect_said(said("half"), there.path() + "/half/rms_norm.part is there already, and is where");
  expect_said(said("free"), "crashed with SIGSEGV");
  expect_said(said("new/er"), "crashed with SIGSEGV");
}

TEST(Ops, ThatStoreSeveralTensorsHaveAFolderToo) {
  const std::string folder = temp_path("several"),
                    wrong = built_path("tests/replay/wrong/fused.so");
  const OpsResult result = check_ops({.library = wrong, .dtypes = {"bf16"}, .folder = folder});
  EXPECT_EQ(result.ops.size(), 5U);
  for (const OpsResult::Account& op : result.ops) {
    ASSERT_EQ(op.folder, folder + "/" + op.op) << op.no_folder;
    const auto status = [&](const std::string& name) {
      return WEXITSTATUS(
          std::system(fmt::format("cc {0}/repro.c -o {0}/repro -ldl -lm && {0}/repro {1} >{0}/out",
                                  op.folder, name)
                          .c_str()));
    };
    EXPECT_EQ(status(wrong), 1) << op.op << text_of(op.folder + "/out");
    EXPECT_EQ(status(library("ours")), 0) << op.op << text_of(op.folder + "/out");
  }
}

// A crash ends the command, which says in which case it was.
TEST(Ops, ThatCrashEndInASentence) {
  const std::string norm = trouble_of("ops " + library("crashing") + " --ops-only rms_norm");
  EXPECT_NE(norm.find("rms_norm of " + library("crashing")), std::string::npos) << norm;
  EXPECT_NE(
      norm.find("crashed with SIGSEGV at the address 0x0 in the case fp32, width 100, rows 1"),
      std::string::npos)
      << norm;
  const std::string sum = trouble_of("ops " + library("crashing") + " --ops-only add --dtype bf16");
  EXPECT_NE(sum.find("in the case bf16, width 64, rows 1"), std::string::npos) << sum;
  EXPECT_NE(sum.find("ended the process, as exit does"), std::string::npos) << sum;
}

TEST(Ops, ThatDoNotKnowADtypeAreHeldToWhatTheyCompute) {
  const std::string path = built_path("plugin_wrong_rms_norm.so");
  const OpsResult some = check_ops({.library = path, .dtypes = {"bf16", "fp16"}});
  ASSERT_EQ(some.ops.size(), 1U);
  EXPECT_EQ(exit_status(some), 1);
  EXPECT_GT(some.ops[0].cases, 40);
  EXPECT_GT(some.ops[0].refused, 40);
  EXPECT_LT(some.ops[0].wrong, some.ops[0].cases) << "rows of 128 elements and fewer are right";
  EXPECT_NE(some.ops[0].refusal.find("it knows fp32 and bf16 only"), std::string::npos);
  ASSERT_TRUE(some.ops[0].first);
  EXPECT_EQ(some.ops[0].first->point, "attn.norm") << said_of(some.ops[0]);

  const OpsResult none = check_ops({.library = path, .dtypes = {"fp16"}});
  EXPECT_EQ(exit_status(none), 2);
  EXPECT_EQ(none.ops[0].cases, 0);
  EXPECT_FALSE(none.ops[0].first);
}

// A library that only has what is not tried is not called right.
TEST(Ops, OfAWholeLayerAreNotTriedAlone) {
  const Outcome outcome = call_lockstep("ops " + built_path("plugin_layer_no_eps.so"));
  EXPECT_EQ(outcome.status, 2) << outcome.out;
  EXPECT_NE(
      outcome.out.find("decoder_layer was not tried: a whole layer is judged where it stands"),
      std::string::npos)
      << outcome.out;
  EXPECT_EQ(outcome.out.find("clean"), std::string::npos) << outcome.out;
}

TEST(Ops, ThatAreNotThereAreNoRightOnes) {
  const auto expect_said = [](const std::string& arguments, const std::string& wanted) {
    const std::string said = trouble_of("ops " + arguments);
    EXPECT_NE(said.find(wanted), std::string::npos) << said;
  };
  expect_said(library("first") + " --ops-only rms_nrm", "did you mean \"rms_norm\"");
  expect_said(library("first") + " --ops-only top_k", "has gather_rows");
  expect_said(library("first") + " --dtype fp8", "fp32, bf16 or fp16");
  expect_said(built_path("plugin_no_op.so"), "did you mean \"rms_norm\"?");
  expect_said(built_path("plugin_broken_ops.so") + " --ops-only nothing", "nothing");
  expect_said(library("nowhere"), "cannot be opened");
}

TEST(Ops, PrintWhatTheirSchemaSays) {
  const Outcome outcome =
      call_lockstep("ops " + library("first") + " --ops-only rope,add --dtype fp32 --format json");
  EXPECT_EQ(outcome.status, 1) << outcome.err;
  const Json rules = schema_of("ops"), json = Json::parse(outcome.out);
  EXPECT_EQ(violation(json, rules, rules), "");
  EXPECT_EQ(json["ops"][0]["op"], "rope");
  EXPECT_EQ(json["verdict"], "diverged");
  const Outcome people = call_lockstep("ops " + library("first") + " --ops-only rope --dtype fp32");
  EXPECT_NE(people.out.find("diverged: 1 of 1 ops is wrong: rope ("), std::string::npos)
      << people.out;
}

TEST(OpGrid, HasWhatSingleModelsLack) {
  int64_t far = 0, long_contexts = 0;
  std::set<int64_t> head_dims, groups, pages;
  for (const GridCase& shape : grid_of("paged_attention")) {
    head_dims.insert(shape.model.head_dim);
    groups.insert(shape.model.heads / shape.model.kv_heads);
    pages.insert(shape.page_size);
    for (const GridCase::Stretch& stretch : shape.passes.at(0)) {
      const int32_t length = stretch.first + stretch.count;
      far += length > 65536 ? 1 : 0;
      long_contexts += length >= 8192 ? 1 : 0;
    }
  }
  EXPECT_EQ(head_dims, (std::set<int64_t>{64, 80, 96, 128, 256}));
  EXPECT_TRUE(groups.contains(1) && groups.contains(16));
  EXPECT_EQ(pages, (std::set<int64_t>{8, 16, 32}));
  EXPECT_GE(far, 1);
  EXPECT_GE(long_contexts, 2);
}

}  // namespace
}  // namespace lockstep
