#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <span>
#include <string>
#include <vector>

#include "probes/recorder.h"
#include "reference/reference.h"
#include "src/session/reference_library.h"
#include "tests/golden.h"

namespace lockstep {

// Tokens of one request that a pass computes.
struct Chunk {
  int32_t request = 0;
  int32_t first = 0;  // position
  std::vector<int32_t> tokens;
};

// A pass over some chunks, with logits of the last token of each.
inline PassInfo pass_over(int32_t number, const std::vector<Chunk>& chunks) {
  PassInfo pass{.pass = number};
  for (const Chunk& chunk : chunks) {
    for (int32_t i = 0; i < std::ssize(chunk.tokens); ++i)
      pass.rows.push_back({{chunk.request, chunk.first + i}, chunk.tokens[static_cast<size_t>(i)]});
    pass.logit_rows.push_back(static_cast<int32_t>(pass.rows.size()) - 1);
  }
  return pass;
}

// The prompt in one pass, then the forced tokens one by one.
inline std::vector<PassInfo> prefill_and_decode(const std::vector<int32_t>& prompt,
                                                const std::vector<int32_t>& forced) {
  std::vector<PassInfo> passes = {pass_over(0, {{0, 0, prompt}})};
  auto position = static_cast<int32_t>(prompt.size());
  for (int32_t token : forced)
    passes.push_back(pass_over(static_cast<int32_t>(passes.size()), {{0, position++, {token}}}));
  return passes;
}

// Everything that the model shows while it runs the passes.
inline std::vector<Pass> run_passes(ReferenceModel& model, const std::vector<PassInfo>& passes) {
  std::vector<Pass> seen;
  Recorder recorder({}, false, [&](Pass pass) { seen.push_back(std::move(pass)); });
  Probe probe(&recorder);
  for (const PassInfo& pass : passes) model.run(pass, probe);
  EXPECT_EQ(probe.failure(), "");
  return seen;
}

inline std::vector<double> values_of(const TensorView& tensor) {
  std::vector<double> values(static_cast<size_t>(tensor.count()));
  widen(tensor, 0, values);
  return values;
}

inline double rms_of(std::span<const double> values) {
  double sum = 0;
  for (double value : values) sum += value * value;
  return values.empty() ? 0 : std::sqrt(sum / static_cast<double>(values.size()));
}

// Largest difference, as a share of `want`'s rms. NaN anywhere gives NaN or Inf, never a pass.
inline double worst_difference(std::span<const double> got, std::span<const double> want) {
  EXPECT_EQ(got.size(), want.size());
  if (got.size() != want.size() || want.empty()) return INFINITY;
  const double rms = rms_of(want);
  double worst = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double difference = std::fabs(got[i] - want[i]);
    if (!(difference <= worst)) worst = difference;
    if (std::isnan(worst)) return worst;
  }
  return rms > 0 ? worst / rms : worst;
}

}  // namespace lockstep
