#pragma once

#include "probes/qwen_graph.h"
#include "tests/fixtures.h"
#include "traces/trace.h"

namespace lockstep {

// What to leave out of a trace.
struct LeftOut {
  const Point* numbers_of = nullptr;  // of that point only digests are kept
  size_t passes = 0;                  // the last so many; then the trace is not finished either
};

// Writes what bard-qwen3 showed in bf16.
inline void write_trace(const std::string& path, const Served& served, LeftOut left_out = {}) {
  Manifest manifest{.provenance = {{"engine", "lockstep"}, {"model", "bard"}},
                    .graph = qwen_graph({.layers = 6, .qk_norm = true, .rope_tables = true}),
                    .dtype = DType::bf16,
                    .level = TraceLevel::full};
  for (const Sequence& s : served.sequences)
    manifest.requests.push_back(
        {.id = s.id,
         .name = s.request.name,
         .prompt = s.request.prompt,
         .forced = s.request.forced,
         .tokens = {s.tokens.begin() + std::ssize(s.request.prompt), s.tokens.end()},
         .argmax = s.argmax});
  const auto writer = create_trace(path, manifest);
  for (size_t i = 0; i + left_out.passes < served.passes.size(); ++i) {
    Pass pass = served.passes[i];
    for (RecordedTensor& t : pass.tensors)
      if (left_out.numbers_of && *t.point == *left_out.numbers_of) t.data = {};
    writer->write(pass);
  }
  if (left_out.passes == 0) writer->finish(manifest.requests);
}

}  // namespace lockstep
