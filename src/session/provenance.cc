// Everything that another run would need to be this one, as texts by name: the model and its
// fingerprint, options, versions, the machine, the command line. A comparison of two traces reads
// differences from here, so that names are stable.
#include "src/session/provenance.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "kernels/base/shell_words.h"
#include "kernels/files/text.h"
#include "kernels/matmul.h"
#include "probes/digest.h"
#include "src/session/build_info.h"
#include "src/session/machine.h"
#include "traces/run_facts.h"

namespace lockstep {
namespace {

std::string hash_text(uint64_t hash) { return fmt::format("{:016x}", hash); }

std::string hash_of_file(const std::string& path) {
  if (!std::filesystem::exists(path)) return "";
  const std::string text = read_text(path, size_t{1} << 30);
  return hash_text(hash_of(text.data(), text.size()));
}

std::string hash_of_prompts(const std::vector<Request>& requests) {
  std::vector<int32_t> all;
  for (const Request& r : requests) {
    all.push_back(static_cast<int32_t>(r.prompt.size()));  // so that two prompts are not one
    all.insert(all.end(), r.prompt.begin(), r.prompt.end());
  }
  return hash_text(hash_of(all.data(), all.size() * sizeof(int32_t)));
}

// Keys that a query sees where it sees fewest; 0: all, in every layer.
int64_t narrowest_window(const ModelConfig& config) {
  int64_t least = 0;
  for (const int64_t keys : config.window)
    if (keys > 0 && (least == 0 || keys < least)) least = keys;
  return least;
}

std::string text_of(Preempt preempt) { return name_of(preempt); }
std::string text_of(auto number) { return std::to_string(number); }  // of bool: 1 or 0

}  // namespace

// All that numbers can depend on, so that traces can be told apart by their facts; `lockstep diff`
// prints those that differ.
std::map<std::string, std::string> provenance_of(const Session& session,
                                                 const std::vector<std::string>& command_line) {
  std::map<std::string, std::string> facts = facts_of(session, command_line);
  facts["weights_xxh3"] = session.checkpoint.weights_hash();
  return facts;
}

std::map<std::string, std::string> facts_of(const Session& session,
                                            const std::vector<std::string>& command_line) {
  const Checkpoint& checkpoint = session.checkpoint;
  const EngineOptions& options = session.engine;
  const std::string dtype(name_of(options.dtype));
  const bool on_cpu = options.device == Device::cpu;
  const std::string model = std::filesystem::path(checkpoint.dir()).lexically_normal().string();
  std::map<std::string, std::string> facts = {
      {"created_utc", fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)))},
      {"command_line", shell_text(command_line)},
      {"tool_version", kToolVersion},
      {"git_sha", kGitSha},
      {"git_dirty", kGitDirty ? "1" : "0"},
      {"compiler", kCompiler},
      {"build_flags", fmt::format("{} {}", kBuildType, kBuildFlags)},
      {"engine", "lockstep"},
      {"engine_version", kToolVersion},
      {"model", model},
      {"model_xxh3", checkpoint.fingerprint()},
      {"tokenizer_xxh3", hash_of_file(model + "/tokenizer.json")},
      {"prompt_xxh3", hash_of_prompts(session.requests)},
      {"device", on_cpu ? "cpu" : "cuda"},
      {kMatmulFact, on_cpu ? std::string(matmul_path(options.dtype)) : "cuBLASLt"},
      {"weight_dtype", dtype},
      {"compute_dtype", dtype},
      {"accumulator", "fp32"},
      {"kv_dtype", dtype},
      {"sliding_window", std::to_string(narrowest_window(checkpoint.config()))},
      {"path", options.graph ? "graph" : "eager"},
  };
  facts.merge(machine_facts(options.device));
  if (!session.user_ops.empty()) {
    facts["user_ops"] = session.user_ops;
    facts["user_ops_xxh3"] = hash_of_file(session.user_ops_file);
  }
  // Whoever proposes --confirm asks for it, and check_can_confirm() refuses the same.
  if (session.engine.make_executor || !session.ops.fused.of_user.empty()) facts[kFusedFact] = "1";
  if (session.engine.make_executor)
    facts[kExecutorFact] = session.schedule ? "instructions" : "persistent";
  if (session.schedule) {
    facts["path"] = "instructions";
    facts["queues"] = std::to_string(session.schedule->queues);
  }
  for_each_engine_option([&](const auto& option) {
    std::string name = option.name;
    std::ranges::replace(name, '-', '_');
    facts[name] = text_of(options.*option.member);
  });
  return facts;
}

std::vector<std::string> command_line_of(const std::string& command, std::span<char*> arguments) {
  std::vector<std::string> line = {"lockstep", command};
  line.insert(line.end(), arguments.begin(), arguments.end());
  return line;
}

std::string build_text() {
  const auto library = [](std::string_view version, std::string_view without) {
    return version.empty() ? fmt::format("none: {}", without) : std::string(version);
  };
  const std::string_view sha = kGitSha;
  return fmt::format(
      "lockstep {}\n"
      "commit    {}{}\n"
      "build     {}, {}\n"
      "compiler  {}\n"
      "oneDNN    {}\n"
      "LibTorch  {}\n"
      "CUDA      {}\n",
      kToolVersion, sha.empty() ? "not known" : sha, kGitDirty ? ", with changes" : "", kBuildType,
      kBuildFlags, kCompiler, kOneDnnVersion,
      library(kLibTorchVersion, "it judges nothing (LOCKSTEP_TORCH=OFF)"),
      library(kCudaVersion, "it has the CPU alone (LOCKSTEP_CUDA=OFF)"));
}

}  // namespace lockstep
