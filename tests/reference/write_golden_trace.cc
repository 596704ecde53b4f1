// Writes Hugging Face's bf16 activations of a bundled model as another engine's trace, for
// `lockstep judge` and `lockstep selftest --clean-trace`: write_golden_trace MODEL PATH.
#include <cstdio>

#include "tests/reference/hf_passes.h"

namespace lockstep {
namespace {

void write(const std::string& model, const std::string& path) {
  const HuggingFacePasses golden(model);
  Manifest manifest = golden.manifest(HuggingFacePasses::every(RoundingContract::hf));
  manifest.provenance = {{"engine", "Hugging Face transformers"},
                         {"model", model},
                         {"model_xxh3", golden.checkpoint().fingerprint()}};
  manifest.level = TraceLevel::full;
  const auto writer = create_trace(path, manifest);
  for (const Pass& pass : golden.passes(/*digests=*/true)) writer->write(pass);
  writer->finish({});
}

}  // namespace
}  // namespace lockstep

int main(int count, char** arguments) {
  try {
    if (count == 3) lockstep::write(arguments[1], arguments[2]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
  return count == 3 ? 0 : 2;
}
