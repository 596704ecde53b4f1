// The facts of a machine, from the files in which Linux has them, so that no tool needs to be
// there. A fact that cannot be read is empty: provenance stops no run.
#include "src/session/machine.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <set>
#include <sstream>

#include "kernels/cpu_facts.h"

namespace lockstep {
namespace {

std::string text_of_file(const std::filesystem::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string trimmed(const std::string& text) {
  const size_t first = text.find_first_not_of(" \t");
  return first == std::string::npos
             ? ""
             : text.substr(first, text.find_last_not_of(" \t\r") - first + 1);
}

// CUDA may number them otherwise, and hide some: these are the models of all of them.
std::string gpu_models() {
  std::set<std::string> models;
  std::error_code none;  // a machine without the driver has no such folder
  for (const auto& gpu : std::filesystem::directory_iterator("/proc/driver/nvidia/gpus", none))
    models.insert(field_of(text_of_file(gpu.path() / "information"), "Model"));
  std::string all;
  for (const std::string& model : models) all += (all.empty() ? "" : ", ") + model;
  return all;
}

// "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  ..."
std::string gpu_driver() {
  static const std::regex kVersion(R"(\b\d+\.\d+(\.\d+)?\b)");
  const std::string text = field_of(text_of_file("/proc/driver/nvidia/version"), "NVRM version");
  std::smatch found;
  return std::regex_search(text, found, kVersion) ? found.str() : "";
}

}  // namespace

// "name : value", as /proc has its facts.
std::string field_of(const std::string& text, const std::string& name) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const size_t colon = line.find(':');
    if (colon != std::string::npos && trimmed(line.substr(0, colon)) == name)
      return trimmed(line.substr(colon + 1));
  }
  return "";
}

std::map<std::string, std::string> machine_facts(Device device) {
  std::map<std::string, std::string> facts = {
      {"cpu", field_of(text_of_file("/proc/cpuinfo"), "model name")},
      {"isa", cpu_isa()},
      {"onednn_version", onednn_version()},
  };
  if (device == Device::cpu) return facts;
  facts["gpu"] = gpu_models();
  facts["gpu_driver"] = gpu_driver();
  return facts;
}

}  // namespace lockstep
