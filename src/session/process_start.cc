#include "src/session/process_start.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <string_view>

#include "src/session/build_info.h"

namespace lockstep {

std::string version_text() {
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

void start_again_prepared(char** argv) {
  const auto told = [](const char* name) { return std::getenv(name) != nullptr; };
  if (told("OMP_WAIT_POLICY") && told("GLIBC_TUNABLES")) return;
  setenv("OMP_WAIT_POLICY", "passive", /*overwrite=*/0);
  setenv("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1", /*overwrite=*/0);
  execv("/proc/self/exe", argv);  // returns only when it cannot: then it is slow, not wrong
}

void open_standard_descriptors() {
  for (const int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    if (fcntl(descriptor, F_GETFD) == -1)
      open("/dev/null", descriptor == STDIN_FILENO ? O_WRONLY : O_RDONLY);
}

}  // namespace lockstep
