// A user's library of ops is judged in place: by the command, as its user calls it.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "src/weights/safetensors.h"
#include "tests/lockstep_binary.h"
#include "tests/places.h"
#include "tests/whole.h"
#include "traces/trace.h"

namespace lockstep {
namespace {

std::string run_of(const std::string& model, const std::string& library, const std::string& more) {
  return "run --model " + data_path(model) +
         " --tokens 5,6,7,8,9,10,11 --tokens 40,41,42 --max-new 3 --ops " +
         built_path("plugin_" + library + ".so ") + more;
}

// Of the smallest model, where it is not its size that shows a bug.
std::string run_with(const std::string& library, const std::string& more = "") {
  return run_of("tiny/qwen3-default", library, more);
}

TEST(UserOps, ThatAreRightComeOutClean) {
  for (const char* dtype : {"bf16", "fp32"}) {
    const Outcome outcome =
        call_lockstep(run_with("right_rms_norm", std::string("--dtype ") + dtype));
    EXPECT_EQ(outcome.status, 0) << outcome.out << outcome.err;
    EXPECT_NE(outcome.out.find("\nclean: No bug shown in "), std::string::npos) << outcome.out;
    EXPECT_NE(outcome.out.find("ops: rms_norm of "), std::string::npos) << "whose ops ran";
  }
}

// The model has no experts: whatever its choice of them computes, the run knows nothing of it.
TEST(UserOps, ThatAreNeverCalledAreNotCalledClean) {
  const std::string trace = temp_path("uncalled.h5");
  for (const char* more : {"", "--modes threads", "--determinism 2"}) {
    const Outcome outcome = call_lockstep(run_with("uncalled_ops", more));
    EXPECT_EQ(outcome.status, 2) << more << outcome.out << outcome.err;
    EXPECT_NE(outcome.out.find("\ninconclusive: top_k of "), std::string::npos) << outcome.out;
    EXPECT_NE(outcome.out.find(" was never called"), std::string::npos) << outcome.out;
    EXPECT_EQ(outcome.out.find("ops: top_k"), std::string::npos) << outcome.out;
  }
  const auto result = nlohmann::json::parse(
      call_lockstep(run_with("uncalled_ops", "--format json --trace " + trace)).out);
  const std::string ran = result["provenance"]["user_ops"];
  EXPECT_EQ(ran, "");
  EXPECT_EQ(open_trace(trace)->manifest().provenance.at("user_ops"), ran);
  std::filesystem::remove(trace);
}

// A fault that computes an op itself leaves the user's uncalled.
TEST(UserOps, ThatAFaultReplacesAreNotSaidToHaveRun) {
  const Outcome outcome = call_lockstep(
      run_with("host_silu_mul", "--dtype fp32 --fault gate-and-up-swapped --format json"));
  EXPECT_EQ(outcome.status, 1) << outcome.err;
  const auto result = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(result["provenance"]["user_ops"], "");
  EXPECT_NE(outcome.out.find("plugin_host_silu_mul.so was never called"), std::string::npos)
      << outcome.out;
}

TEST(UserOps, ThatAreWrongAreNamed) {
  const Outcome outcome = call_lockstep(run_of("bard-qwen3", "wrong_rms_norm", "--format json"));
  EXPECT_EQ(outcome.status, 1) << outcome.err;
  const auto result = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(result["first"]["point"], "attn.norm");
  EXPECT_EQ(result["first"]["layer"], 0);
  // Rows of a head have fewer than its 128 elements.
  for (const auto& finding : result["findings"]) {
    const std::string point = finding["point"];
    EXPECT_TRUE(point == "attn.norm" || point == "mlp.norm" || point == "final.norm") << point;
  }
}

// A fused op is judged from its inputs to its outputs, and found by the point of these.
TEST(UserOps, ThatAreFusedAreJudgedAsRegions) {
  for (const char* dtype : {"bf16", "fp32"}) {
    const Outcome right = call_lockstep(run_with("right_fused", std::string("--dtype ") + dtype));
    EXPECT_EQ(right.status, 0) << right.out << right.err;
    EXPECT_NE(right.out.find("ops: add_rms_norm, qkv_matmul, "), std::string::npos)
        << "whose ops ran";
    EXPECT_NE(right.out.find("attn.q_rope is judged together with attn.q_norm"), std::string::npos)
        << right.out;
  }
  // Models that go ahead of the engine are checked at no more places than others.
  std::vector<int> checked;
  for (const char* threads : {"1", "2"})
    checked.push_back(nlohmann::json::parse(
        call_lockstep(run_with("right_fused", std::string("--format json --threads ") + threads))
            .out)["scope"]["references_checked"]);
  EXPECT_GT(checked[0], 0);
  EXPECT_EQ(checked[0], checked[1]);
  const Outcome wrong = call_lockstep(run_with("wrong_fused", "--format json"));
  EXPECT_EQ(wrong.status, 1) << wrong.err;
  const auto first = nlohmann::json::parse(wrong.out)["first"];
  EXPECT_EQ(first["point"], "mlp.act");
  EXPECT_EQ(first["layer"], 0);
  ASSERT_EQ(first["region"].size(), 2u) << first;
  EXPECT_EQ(first["region"][0]["point"], "mlp.gate");
  EXPECT_EQ(first["region"][1]["point"], "mlp.up");
  EXPECT_NE(
      trouble_of(run_with("right_fused", "--confirm")).find("--confirm puts single ops right"),
      std::string::npos);
}

// Ragged requests in chunks, on pages in any order.
std::string run_layer(const std::string& name, const std::string& model, const std::string& more) {
  return "run --model " + data_path(model) +
         " --tokens 5,6,7,8,9,10,11 --tokens 40,41,42 --max-new 3 --page-size 4 --page-order 3 "
         "--chunk 5 --format json --ops " +
         built_path("plugin_layer_" + name + ".so ") + more;
}

// Of a layer three places are seen, and nothing else is held to anything.
TEST(UserOps, OfAWholeLayerAreJudgedFromItsStreamToItsStream) {
  for (const std::string model : {"bard-qwen3", "bard-qwen2.5"})
    for (const std::string dtype : {"bf16", "fp32"}) {
      if (!whole() && (model == "bard-qwen3") != (dtype == "bf16")) continue;
      const Outcome right = call_lockstep(run_layer("right", model, "--dtype " + dtype));
      EXPECT_EQ(right.status, 0) << right.out << right.err;
      const auto result = nlohmann::json::parse(right.out);
      const std::string ops = result["provenance"]["user_ops"];
      EXPECT_NE(ops.find("gather_rows, decoder_layer of "), std::string::npos) << ops;
      EXPECT_TRUE(ops.ends_with(" (within layers decoder_layer alone)")) << ops;
      std::map<std::string, int> judged;  // layers, by point
      for (const auto& place : result["points"])
        if (!place["layer"].is_null() && place["judged"] > 0) ++judged[place["point"]];
      const std::map<std::string, int> seen = {
          {"attn.v", 6}, {"attn.k_rope", 6}, {"attn.kv", 6}, {"mlp.residual", 6}};
      EXPECT_EQ(judged, seen);
    }
}

struct WrongLayer {
  const char* name;
  const char* model;
  const char* dtype;
  const char* first;  // point of layer 0
  const char* at;     // the op of its region that is wrong
};

// Ops that nobody sees are found by their region, and then by what explains all of it.
TEST(UserOps, OfAWholeLayerThatAreWrongAreNamedWithTheirRegion) {
  for (const auto& [name, model, dtype, first, at] : {
           WrongLayer{"no_eps", "bard-qwen3", "fp32", "attn.v", "attn.norm"},
           WrongLayer{"late_rope", "tiny/qwen3-default", "bf16", "attn.k_rope", ""},
           WrongLayer{"no_residual", "tiny/qwen2-default", "bf16", "mlp.residual", "attn.residual"},
           WrongLayer{"wrong_scale", "tiny/qwen3-default", "bf16", "mlp.residual", "attn.out"},
       }) {
    SCOPED_TRACE(name);
    const Outcome wrong = call_lockstep(
        "run --model " + data_path(model) + " --tokens 5,6,7,8 --max-new 1 --fail-fast --ops " +
        built_path("plugin_layer_" + std::string(name)) + ".so --format json --dtype " + dtype);
    EXPECT_EQ(wrong.status, 1) << wrong.out << wrong.err;
    const auto result = nlohmann::json::parse(wrong.out);
    const auto finding = result["first"];
    EXPECT_EQ(finding["layer"], 0);
    EXPECT_EQ(finding["point"], first);
    for (const auto& place : finding["region"]) EXPECT_EQ(place["layer"], 0) << place;
    EXPECT_GE(finding["region"].size(), 1u);
    std::string like;
    for (const auto& place : result["points"])
      if (place["point"] == first && place["layer"] == 0 && !place["looks_like"].empty())
        like = place["looks_like"][0]["says"];
    EXPECT_NE(like.find(at), std::string::npos) << like;
    std::set<std::string> wrong_points;
    for (const auto& other : result["findings"])
      if (other["layer"] == 0) wrong_points.insert(other["point"]);
    const std::string rule = finding["rule"];
    EXPECT_EQ(rule.find("within the wider budget of one that rounds as") != std::string::npos,
              name == std::string("no_eps"))
        << rule;
    EXPECT_EQ(rule.find("would pass if it rounded as"), std::string::npos) << rule;
    // V is right, and so is the norm that K and Q are made of: each has an error of its own.
    EXPECT_EQ(wrong_points.contains("mlp.residual"),
              first == std::string("mlp.residual") || name == std::string("late_rope"));
  }
}

// Only what works is proposed, and an op that is asked for alone is judged with all that it needs.
TEST(UserOps, OfAWholeLayerAreSelectedByWhatIsSeen) {
  const std::string wrong = "run --model " + data_path("tiny/qwen3-default") +
                            " --tokens 5,6,7,8 --max-new 1 --fail-fast --ops " +
                            built_path("plugin_layer_wrong_scale.so --points ");
  const Outcome seen = call_lockstep(wrong + "mlp.residual");
  EXPECT_EQ(seen.status, 1) << seen.err;
  EXPECT_NE(seen.out.find("layer 0 attn.norm .. mlp.residual introduces"), std::string::npos)
      << seen.out;
  EXPECT_EQ(seen.out.find("--confirm"), std::string::npos) << seen.out;
  const Outcome hidden = call_lockstep(wrong + "mlp.act");
  EXPECT_EQ(hidden.status, 2) << hidden.err;
  EXPECT_NE(hidden.out.find("not seen, but judged with those that read them"), std::string::npos)
      << hidden.out;
}

TEST(UserOps, OfAWholeLayerAreRefusedWhereSingleOpsAreAskedFor) {
  const auto expect_said = [](const std::string& more, const std::string& wanted) {
    const std::string said = trouble_of(run_layer("right", "bard-qwen3", more));
    EXPECT_NE(said.find(wanted), std::string::npos) << said;
  };
  expect_said("--confirm", "--confirm puts single ops right");
  expect_said("--executor instructions", "calls single ops");
  expect_said("--fault gate-and-up-swapped",
              "--fault breaks single ops, found decoder_layer of --ops");
  expect_said("--tp 2", "--tp computes one op at a time, found decoder_layer of --ops");
  const std::string experts = trouble_of(run_layer("right", "tiny/qwen3-moe", ""));
  EXPECT_NE(experts.find("computes layers without experts, found layer 0 with them"),
            std::string::npos)
      << experts;
}

// Where a tensor ends in a file.
size_t end_of(const std::string& path, const std::string& name) {
  const SafeTensors file(path);
  const TensorView& tensor = file.tensors().at(name);
  const auto at = tensor.as<const uint8_t>() - file.data().data();
  return std::filesystem::file_size(path) - file.data().size() +
         static_cast<size_t>(at + tensor.bytes());
}

// One weight in a place that no sample is taken of, as of a projection that was rounded anew.
TEST(OtherWeights, AreNotTakenForThoseOfATraceOrABaseline) {
  namespace fs = std::filesystem;
  const TempFolder folder;
  const std::string model = folder / "model", file = model + "/model.safetensors";
  fs::copy(data_path("tiny/qwen3-default"), model);
  const std::string ids = " --tokens 5,6,7 --max-new 2 --model " + model;
  const std::string judge = "judge " + (folder / "a.trace") + " --model " + model;
  const std::string check = "check" + ids + " --baseline ";
  const std::string onto = trouble_of(check + model + "/config.json --update");
  EXPECT_NE(onto.find("a file of the checkpoint"), std::string::npos) << onto;
  EXPECT_EQ(call_lockstep("run" + ids + " --keep full --trace " + (folder / "a.trace")).status, 0);
  EXPECT_EQ(call_lockstep(judge).status, 0);
  EXPECT_EQ(call_lockstep(check + (folder / "b.json") + " --update").status, 0);
  EXPECT_EQ(call_lockstep(check + (folder / "b.json")).status, 0);
  std::string bytes = text_of(file);
  bytes[end_of(file, "model.embed_tokens.weight") - 2] ^= 1;
  std::ofstream(file, std::ios::binary) << bytes;
  const std::string judged = trouble_of(judge);
  EXPECT_NE(judged.find("was made with other weights than"), std::string::npos) << judged;
  const std::string checked = trouble_of(check + (folder / "b.json"));
  EXPECT_NE(checked.find("is of another set of weights"), std::string::npos) << checked;
}

TEST(UserOps, AreConfirmedAndServeInEveryMode) {
  Outcome outcome =
      call_lockstep(run_of("bard-qwen3", "wrong_rms_norm", "--confirm --format json"));
  const auto result = nlohmann::json::parse(outcome.out);
  // The places that are tried out; a norm of every layer is more than these.
  ASSERT_GE(result["confirmations"].size(), 8u);
  for (size_t i = 0; i < 8; ++i)
    EXPECT_TRUE(result["confirmations"][i]["confirmed"]) << result["confirmations"][i];
  outcome = call_lockstep(run_with("right_rms_norm", "--modes all"));
  EXPECT_EQ(outcome.status, 0) << outcome.out << outcome.err;
}

TEST(UserOps, ThatBreakTheContractEndTheRunInOneSentence) {
  EXPECT_NE(
      trouble_of(run_with("broken_ops", "--dtype fp32")).find("unwritten: cover the last rows"),
      std::string::npos);
  EXPECT_NE(trouble_of(run_with("right_rms_norm", "--dtype fp16"))
                .find(" failed: it knows fp32 and bf16 only"),
            std::string::npos);
  EXPECT_NE(trouble_of(run_with("none")).find("cannot be opened"), std::string::npos);
}

// With the trace that was being written left as a killed run leaves it.
TEST(UserOps, ThatCrashEndTheRunInOneSentence) {
  const std::string folder = temp_path("crash"), file = folder + "/x.h5";
  std::filesystem::create_directory(folder);
  const std::string trouble = trouble_of(run_with("crashing_ops", "--trace " + file));
  EXPECT_NE(trouble.find("plugin_crashing_ops.so at "), std::string::npos) << trouble;
  EXPECT_NE(trouble.find(" crashed with SIG"), std::string::npos) << trouble;
  EXPECT_FALSE(std::filesystem::exists(file));
  EXPECT_FALSE(open_trace(file + ".part")->complete());
  std::filesystem::remove_all(folder);
}

// Which would else end it with their own status, 0 as often as not.
TEST(UserOps, ThatExitEndTheRunInOneSentence) {
  const std::string trouble = trouble_of(run_with("exiting_ops"));
  EXPECT_NE(trouble.find("plugin_exiting_ops.so at "), std::string::npos) << trouble;
  EXPECT_NE(trouble.find(" ended the process"), std::string::npos) << trouble;
}

// Whatever they write of others', the op after them is not the one at fault.
TEST(UserOps, ThatReachBeyondTheirOutputEndTheRunInOneSentence) {
  const std::string trouble = trouble_of(run_with("meddling_ops", "--dtype fp32"));
  EXPECT_NE(trouble.find("plugin_meddling_ops.so at layer 0 attn"), std::string::npos) << trouble;
  EXPECT_NE(trouble.find(" changed its input "), std::string::npos) << trouble;
}

TEST(UserOps, ThatReadADevicesMemoryOnTheHostEndTheRunInOneSentence) {
  const std::string library = "host_silu_mul", fp32 = "--dtype fp32";
  EXPECT_EQ(call_lockstep(run_with(library, fp32)).status, 0);
  const std::string trouble = trouble_of(run_with(library, fp32 + " --device cuda"));
  if (trouble.find("CUDA ops, which could not be opened") != std::string::npos ||
      trouble.find("this machine has no CUDA device that works") != std::string::npos)
    GTEST_SKIP() << "it needs a CUDA device: " << trouble;
  EXPECT_NE(trouble.find("silu_mul of "), std::string::npos) << trouble;
  EXPECT_NE(trouble.find(" at layer 0 mlp.act crashed"), std::string::npos) << trouble;
  EXPECT_NE(trouble.find("SIGSEGV at the address 0x"), std::string::npos) << trouble;
  EXPECT_NE(trouble.find("in a tensor in the memory of the CUDA device"), std::string::npos)
      << trouble;
}

TEST(UserOps, AreJudgedOnACudaDeviceToo) {
  const std::string on_device = "--device cuda --dtype bf16";
  const Outcome right = call_lockstep(run_with("right_silu_mul", on_device));
  if (right.err.find("CUDA") != std::string::npos && right.status == 2)
    GTEST_SKIP() << "it needs a CUDA device: " << right.err;
  EXPECT_EQ(right.status, 0) << right.out << right.err;
  const Outcome wrong = call_lockstep(run_with("wrong_silu_mul", on_device + " --format json"));
  EXPECT_EQ(wrong.status, 1) << wrong.err;
  const auto result = nlohmann::json::parse(wrong.out);
  EXPECT_EQ(result["first"]["point"], "mlp.act");
  EXPECT_EQ(result["first"]["layer"], 0);
}

TEST(UserOps, WhoseKernelsFailOnACudaDeviceEndTheRunInOneSentence) {
  const std::string file = temp_path("kernel.h5"), before = temp_path("kernel.before.h5");
  const std::string trouble = trouble_of(
      run_with("crashing_silu_mul", "--device cuda --record-before 'mlp.*' --trace " + file));
  if (trouble.find("CUDA ops, which could not be opened") != std::string::npos ||
      trouble.find("this machine has no CUDA device that works") != std::string::npos)
    GTEST_SKIP() << "it needs a CUDA device: " << trouble;
  EXPECT_NE(trouble.find("silu_mul of "), std::string::npos) << trouble;
  EXPECT_NE(trouble.find(" at layer 0 mlp.act returned, but its kernels failed"), std::string::npos)
      << trouble;
  EXPECT_NE(trouble.find("an illegal memory access"), std::string::npos) << trouble;
  EXPECT_FALSE(std::filesystem::exists(file));
  EXPECT_EQ(open_trace(before)->manifest().provenance.at("before"), "layer 0 mlp.act, pass 0");
}

}  // namespace
}  // namespace lockstep
