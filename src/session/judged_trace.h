#pragma once

#include <memory>
#include <optional>
#include <string>

#include "kernels/base/check.h"
#include "src/judge/error_budget.h"
#include "src/judge/judge.h"
#include "src/report/document.h"
#include "src/weights/checkpoint.h"
#include "traces/trace.h"

namespace lockstep {

// Does what is asked of a file; an Error that comes of it names the file.
template <typename Work>
auto naming(const std::string& path, Work work) {
  try {
    return work();
  } catch (const Error& error) {
    const std::string_view said = error.what();
    if (said.find(path) != said.npos) throw;
    fail("{}: {}", path, said);
  }
}

// The note of a judgement that JudgeOptions::fail_fast ended, with what was judged, what there is
// of it, and what that is.
inline constexpr char kStoppedEarly[] =
    "stopped after the first pass with a finding (--fail-fast): {} of {} {} judged, the rest not";

// A saved trace, ready to be judged.
struct OpenedTrace {
  std::unique_ptr<TraceReader> reader;
  Manifest manifest;
  bool interleaved = false;  // pairs of Q and K, which read() puts in halves

  // Puts into the manifest what the trace of another program leaves open, and its model tells.
  void fill_in(const Graph& of_model, const std::string& path);
  // With all tensors that the trace kept, in memory.
  Pass read(int pass) const;
};

// Opens a trace of that model. rope_pairs: "half", "interleaved", or what the trace says
// (rope_pairs.h). Throws Error when it is no trace, or names another model.
OpenedTrace open_to_judge(const std::string& path, const Checkpoint& checkpoint,
                          const std::string& rope_pairs = "");

// Whoever gathers what the error budget of the logits is made of; none: it is not asked for.
std::optional<ErrorBudgetMaker> budget_maker_of(const JudgeOptions& options,
                                                const Manifest& manifest);

// The verdict on a saved trace, pass by pass. Throws Error when it is no trace, or when its
// manifest names another model than `checkpoint`.
// rope_pairs: "half", "interleaved", or what the trace says (rope_pairs.h).
Result judge_trace(const std::string& path, const Checkpoint& checkpoint, JudgeOptions options,
                   Detail detail = Detail::screen, const std::string& rope_pairs = "");

}  // namespace lockstep
