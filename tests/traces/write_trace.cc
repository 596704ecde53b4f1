// Writes the trace that h5py_test.py reads: write_trace PATH.
#include <cmath>
#include <cstdio>
#include <limits>

#include "probes/qwen_graph.h"
#include "traces/trace.h"

namespace lockstep {
namespace {

// Values that a reader which takes 16-bit floats for anything else gets wrong.
constexpr float kValues[] = {1.5f, -0.0f, 3.0e38f, 1.0e-40f, INFINITY, -INFINITY, NAN, 0.3f};

template <typename T>
Tensor halves(DType dtype) {
  Tensor tensor({2, 4}, dtype);
  for (int i = 0; i < 8; ++i) tensor.as<T>()[i] = from_float<T>(kValues[i]);
  return tensor;
}

void write(const std::string& path) {
  Manifest manifest;
  manifest.provenance = {{"model", "bard"}, {"run_id", "0123456789abcdef"}};
  manifest.graph = qwen_graph({.layers = 1});
  manifest.level = TraceLevel::full;
  manifest.requests = {{.id = 0, .name = "first", .prompt = {5, 6}, .tokens = {7}}};
  const auto writer = create_trace(path, manifest);
  Recorder recorder({}, true, [&](Pass pass) { writer->write(pass); });
  const std::vector<Row> rows = {{0, 0}, {0, 1}}, last = {{0, 1}};
  const std::vector<float> logits = {0.5f, 4.0f, -1.0f, 2.5f};
  const std::vector<int32_t> token = {1};
  recorder.begin({.pass = 0,
                  .rows = {{rows[0], 5, 32}, {rows[1], 6, 33}},
                  .pages = {{0, {2}}},
                  .logit_rows = {1}});
  recorder.record({&point("embed"), -1, rows, halves<BFloat16>(DType::bf16)});
  recorder.record({&point("attn.q"), 0, rows, halves<Float16>(DType::f16)});
  recorder.record({&point("logits"), -1, last, tensor_of<float>(logits, {1, 4}, DType::f32)});
  recorder.record({&point("token"), -1, last, tensor_of<int32_t>(token, {1}, DType::i32)});
  recorder.end();
  writer->finish(manifest.requests);
}

}  // namespace
}  // namespace lockstep

int main(int count, char** arguments) {
  try {
    if (count == 2) lockstep::write(arguments[1]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
  return count == 2 ? 0 : 2;
}
