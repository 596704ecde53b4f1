// A wrong op in a folder that shows it alone.
#include "src/replay/repro.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <limits>

#include "src/replay/repro_folder.h"
#include "src/weights/safetensors.h"
#include "tests/judged.h"
#include "tests/lockstep_binary.h"
#include "tests/report/json_schema.h"

namespace lockstep {
namespace {

std::string traced(const std::string& model, int64_t tokens, const std::string& fault = "") {
  const std::string path = temp_path(
      fmt::format("{}-{}-{}.h5", std::filesystem::path(model).filename().string(), tokens, fault));
  if (std::filesystem::exists(path)) return path;
  const Checkpoint checkpoint = Checkpoint::open(data_path(model));
  JudgedRun run{.checkpoint = checkpoint, .reference = open_reference(), .trace = path};
  run.engine.dtype = DType::bf16;
  run.requests = {{.prompt = some_tokens(tokens, checkpoint.config().vocab), .max_new = 1}};
  run.level = TraceLevel::full;
  run.audit = run.causes = false;
  if (!fault.empty()) run.faults = {parse_fault(fault)};
  judged(run);
  return path;
}

ReproOptions asked(const std::string& trace, const std::string& model, const std::string& ops,
                   const std::string& point, int layer, const std::string& folder) {
  return {.of = {.trace = trace,
                 .model = data_path(model),
                 .point = point,
                 .layer = layer,
                 .ops = ops.empty() ? "" : built_path("tests/replay/wrong/" + ops + ".so")},
          .folder = temp_path(folder)};
}

// The exit status of the folder's program in C, then of the one in Python, on a library, without
// Lockstep.
std::pair<int, int> statuses_of(const std::string& folder, const std::string& library) {
  const std::string compiled =
      fmt::format("cc -Wall -Werror {0}/repro.c -o {0}/repro -ldl -lm && {0}/repro {1} >{0}/c",
                  folder, library);
  const std::string python =
      fmt::format("{} {}/repro.py {} >{}/python", LOCKSTEP_PYTHON, folder, library, folder);
  const int c = std::system(compiled.c_str()), p = std::system(python.c_str());
  EXPECT_EQ(text_of(folder + "/c"), text_of(folder + "/python"));
  return {WEXITSTATUS(c), WEXITSTATUS(p)};
}

TEST(Repro, OfAQueryAtPosition900IsOneRowInAFolderThatStandsAlone) {
  const std::string trace = temp_path("long.h5"), model = data_path("tiny/qwen3-default");
  const std::vector<int32_t> tokens = some_tokens(1000, 320);
  const Outcome made = call_lockstep(fmt::format(
      "generate --model {} --tokens {} --max-new 1 --format json --keep full --trace {}", model,
      fmt::join(tokens, ","), trace));
  ASSERT_EQ(made.status, 0) << made.err;
  const ReproOptions options =
      asked(trace, "tiny/qwen3-default", "late_queries", "attn.out", 1, "late");
  const ReproResult result = make_repro(options);
  EXPECT_EQ(result.rows, 1);
  EXPECT_EQ(result.of_rows, 1000);
  EXPECT_GT(result.worst.budgets, 1);
  EXPECT_TRUE(result.own_is_right);
  EXPECT_LE(result.bytes, 100 << 10);
  const std::string wrong = options.of.ops;
  EXPECT_EQ(statuses_of(options.folder, wrong), std::pair(1, 1)) << text_of(options.folder + "/c");
  // What was stored came from a right op of other inputs, and a right op is right on these.
  EXPECT_EQ(statuses_of(options.folder, built_path("tests/replay/wrong/right_attention.so")),
            std::pair(0, 0))
      << text_of(options.folder + "/c");
  EXPECT_EQ(result.unlike_run, "");
  const SafeTensors inputs(options.folder + "/inputs.safetensors");
  EXPECT_EQ(inputs.tensors().at("q").shape, Shape({4, 32})) << "heads of one query";
}

TEST(Repro, OfAProductKeepsTheInputsThatShowIt) {
  const std::string trace = traced("bard-qwen3", 20);
  const ReproOptions options = asked(trace, "bard-qwen3", "k_tail", "mlp.down", 2, "tail");
  const ReproResult result = make_repro(options);
  EXPECT_EQ(result.rows, 1);
  EXPECT_TRUE(result.own_is_right);
  EXPECT_LE(result.bytes, 40 << 10);
  EXPECT_EQ(statuses_of(options.folder, options.of.ops), std::pair(1, 1));
  const SafeTensors inputs(options.folder + "/inputs.safetensors");
  EXPECT_LE(inputs.tensors().at("weight").shape[1], 5) << "the inputs that are left out";
}

// The numbers of the elements are no argument of the op, whatever its arguments are called.
TEST(Repro, OfAnOpThatIsToldByAnIndexWhatToRead) {
  struct Case {
    const char *model, *point;
    int layer;
  };
  const std::string right = built_path("tests/opcheck/ours.so");
  for (const auto& [model, point, layer] :
       std::to_array<Case>({{"bard-qwen3", "embed", -1},
                            {"tiny/qwen3-moe", "mlp.weights", 1},
                            {"tiny/qwen3-moe", "mlp.expert_gate", 1}})) {
    const ReproOptions options =
        asked(traced(model, 20), model, "by_index", point, layer, fmt::format("by-{}", point));
    EXPECT_TRUE(make_repro(options).own_is_right) << point;
    EXPECT_EQ(statuses_of(options.folder, options.of.ops), std::pair(1, 1)) << point;
    EXPECT_EQ(statuses_of(options.folder, right), std::pair(0, 0))
        << point << text_of(options.folder + "/c");
    const SafeTensors inputs(options.folder + "/inputs.safetensors");
    EXPECT_EQ(inputs.tensors().at("index").dtype, DType::i32) << point << ": those of the op";
  }
}

// A row at position 16 is the first that is wrong, and its position must be the folder's too.
TEST(Repro, OfARotationThatIsWrongByPosition) {
  for (const char* point : {"attn.q_rope", "attn.k_rope"}) {
    const ReproOptions options = asked(traced("bard-qwen3", 20), "bard-qwen3", "by_index", point, 1,
                                       fmt::format("by-{}", point));
    const ReproResult result = make_repro(options);
    EXPECT_GE(result.worst.index.at(0), 16) << point;
    EXPECT_TRUE(result.own_is_right) << point;
    EXPECT_EQ(statuses_of(options.folder, options.of.ops), std::pair(1, 1)) << point;
    EXPECT_EQ(statuses_of(options.folder, built_path("tests/opcheck/ours.so")), std::pair(0, 0))
        << point << text_of(options.folder + "/c");
  }
}

// A sum beyond what fp16 holds is Infinity in a right op too, of the same sign.
TEST(Repro, CountsNoOverflowThatIsDue) {
  const auto numbers = [](std::vector<float> x) {
    Tensor tensor({1, std::ssize(x)}, DType::f16);
    for (size_t i = 0; i < x.size(); ++i) tensor.as<uint16_t>()[i] = to_float16(x[i]).bits;
    return tensor;
  };
  CapturedCall call{.function = "add", .point = "attn.residual", .layer = 0};
  call.outputs.push_back({"out", numbers({0, 0, 0})});
  call.inputs.push_back({"a", numbers({60000, -60000, 3})});
  call.inputs.push_back({"b", numbers({60000, -60000, 4})});
  call.arguments = {{CapturedCall::Argument::Type::tensor, 0, 1},
                    {CapturedCall::Argument::Type::tensor, 1, 1}};
  const double inf = std::numeric_limits<double>::infinity();
  CaseElements elements{.rows = {{0, 0}}, .outputs = {}, .want = {}, .limit = {}, .got = {}};
  elements.outputs.push_back({.argument = "out", .dtype = DType::f16, .row_size = 3, .at = {0}});
  elements.want = {120000, -120000, 7};
  elements.limit = {32, 32, 0.01};
  elements.got = {inf, inf, 7};
  EXPECT_EQ(elements.wrong(), std::vector<size_t>{1}) << "to the other side";
  const std::string folder = temp_path("overflow");
  write_repro(folder, call, picked_from(elements, call), {"an overflow", {}});
  EXPECT_EQ(statuses_of(folder, built_path("tests/opcheck/ours.so")), std::pair(0, 0))
      << text_of(folder + "/c");
  EXPECT_EQ(statuses_of(folder, ""), std::pair(1, 1));
  EXPECT_TRUE(text_of(folder + "/c").starts_with("stored: 1 of 3")) << text_of(folder + "/c");
}

TEST(Repro, OfTheFirstFindingShowsWhatTheTraceHas) {
  const std::string trace = traced("bard-qwen3", 24, "qk-norm-over-16-wide-blocks@layer=3");
  ReproOptions options = asked(trace, "bard-qwen3", "", "", -1, "first");
  const ReproResult result = make_repro(options);
  EXPECT_EQ(result.place, (Place{&point("attn.q_norm"), 3}));
  EXPECT_EQ(result.by, "the trace");
  EXPECT_EQ(result.rows, 1);
  EXPECT_EQ(statuses_of(options.folder, ""), std::pair(1, 1));
  EXPECT_EQ(statuses_of(options.folder, built_path("plugin_right_rms_norm.so")), std::pair(0, 0))
      << text_of(options.folder + "/c");
}

// Of a library that has the fused op and the single ones, a run calls the fused one.
TEST(Repro, OfAFusedOpOrACacheCallsThatOp) {
  struct Case {
    const char *model, *point, *function, *output;
    int layer;
  };
  const std::string right = built_path("tests/opcheck/ours.so");
  for (const auto& [model, point, function, output, layer] : std::to_array<Case>(
           {{"bard-qwen3", "mlp.norm", "add_rms_norm", "of out", 2},
            {"bard-qwen3", "attn.norm", "add_rms_norm", "of out", 3},
            {"bard-qwen2.5", "attn.v", "qkv_matmul", "of v", 1},
            {"bard-qwen3", "attn.k_rope", "qk_norm_rope_kv_write", "of cache.k", 4},
            {"bard-qwen2.5", "attn.q_rope", "qk_norm_rope_kv_write", "of cache.k", 2},
            {"bard-qwen3", "mlp.act", "gate_up_silu", "of out", 5}})) {
    const std::string name = fmt::format("{}-{}-{}", model, function, layer);
    const ReproOptions options = asked(traced(model, 20), model, "fused", point, layer, name);
    const ReproResult result = make_repro(options);
    EXPECT_LE(result.rows, 2) << name;
    EXPECT_TRUE(result.own_is_right) << name;
    EXPECT_LE(result.bytes, 100 << 10) << name;
    const std::string folder = options.folder;
    EXPECT_EQ(statuses_of(folder, options.of.ops), std::pair(1, 1)) << name;
    EXPECT_NE(text_of(folder + "/c").find(output), std::string::npos) << text_of(folder + "/c");
    EXPECT_NE(text_of(folder + "/README.md").find(function), std::string::npos) << name;
    EXPECT_EQ(statuses_of(folder, right), std::pair(0, 0)) << name << text_of(folder + "/c");
    // Those traces have no size of a page.
    const std::string anew = "pages and slots are numbered anew, one after the other";
    EXPECT_EQ(result.unlike_run, output == std::string("of cache.k") ? anew : "") << name;
    EXPECT_EQ(
        text_of(folder + "/README.md").find("Not as in the run: " + anew) != std::string::npos,
        !result.unlike_run.empty())
        << name;
  }
}

TEST(Repro, SaysWhyThereIsNone) {
  const std::string trace = traced("bard-qwen3", 20), model = " --model " + data_path("bard-qwen3");
  const auto call = [&](const std::string& more) {
    return trouble_of("repro " + trace + model + " " + more);
  };
  const auto expect_said = [](const std::string& said, const std::string& wanted) {
    EXPECT_NE(said.find(wanted), std::string::npos) << said;
  };
  const std::string out = " --out " + temp_path("none");
  expect_said(call("--first" + out), "has no finding");
  expect_said(call("--point attn.out --layer 1" + out), "no single element");
  expect_said(call("--point attn.kv --layer 1" + out), "with --ops");
  expect_said(
      call("--point attn.out --layer 1 --ops " + built_path("plugin_right_rms_norm.so") + out),
      "paged_attention");
  expect_said(call("--point mlp.norm --layer 1 --ops " + built_path("plugin_wrong_rms_norm.so") +
                   " --out " + temp_path("")),
              "is there already");
  // The folder is looked at before the trace.
  expect_said(trouble_of("repro " + temp_path("no.h5") + " --first --model " + temp_path("none") +
                         " --out " + trace + "/bug"),
              trace + " is no folder");
  EXPECT_FALSE(std::filesystem::exists(temp_path("none")));
}

TEST(Repro, LeavesNoFolderThatIsNotWhole) {
  const std::string trace = traced("bard-qwen3", 20), folder = temp_path("half");
  const std::string call = built_path("lockstep") + " repro " + trace + " --model " +
                           data_path("bard-qwen3") + " --point mlp.norm --layer 1 --ops " +
                           built_path("plugin_wrong_rms_norm.so") + " --out " + folder;
  // A file may have one block, as on a disk that is full soon.
  const int full = std::system(("sh -c \"trap '' XFSZ; ulimit -f 1; " + call + "\" 2>&1").c_str());
  EXPECT_EQ(WEXITSTATUS(full), 2);
  EXPECT_FALSE(std::filesystem::exists(folder));
  EXPECT_FALSE(std::filesystem::exists(folder + ".part"));
  std::filesystem::create_directory(folder + ".part");
  EXPECT_EQ(WEXITSTATUS(std::system((call + " 2>/dev/null").c_str())), 2);
  std::filesystem::remove(folder + ".part");
  EXPECT_EQ(WEXITSTATUS(std::system((call + "/").c_str())), 0);
  EXPECT_TRUE(std::filesystem::exists(folder + "/repro.py"));
  EXPECT_FALSE(std::filesystem::exists(folder + ".part"));
}

// The commands are for a shell, whatever the folder's name is.
TEST(Repro, PrintsCommandsThatRun) {
  ReproResult result{.folder = "it's a bug", .place = {&point("mlp.norm"), 1}};
  result.worst = {.index = {0, 0}, .want = -std::nan(""), .got = -std::nan(""), .budgets = 2};
  const std::string text = text_of(document_of(result), "table");
  EXPECT_NE(text.find("cc 'it'\\''s a bug/repro.c' -o 'it'\\''s a bug/repro' -ldl"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("want NaN, got NaN, 2 x its budget"), std::string::npos) << text;
}

TEST(Repro, PrintsWhatItsSchemaSays) {
  const std::string trace = traced("bard-qwen3", 20);
  const Outcome outcome =
      call_lockstep("repro " + trace + " --model " + data_path("bard-qwen3") +
                    " --point mlp.norm --layer 1 --ops " + built_path("plugin_wrong_rms_norm.so") +
                    " --format json --out " + temp_path("schema"));
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  const Json rules = schema_of("repro");
  EXPECT_EQ(violation(Json::parse(outcome.out), rules, rules), "");
}

}  // namespace
}  // namespace lockstep
