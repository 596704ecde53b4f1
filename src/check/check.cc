// The way of a check: the file is read and found to be of this model, dtype and set of requests;
// the requests are forced to its tokens; the run is judged under the limits that it holds, while
// RunBits adds up what every pass shows; compare() holds the one to the other.
//
// Forcing is what makes two versions of an engine comparable at all: without it the first token
// that flips at a near tie would make all that follows another text, and every hash after it
// another one. The flip itself is still seen, for the engine's own most likely token is recorded
// beside the forced one.
#include "src/check/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "kernels/base/check.h"
#include "src/check/compare.h"
#include "src/report/output.h"
#include "src/session/seeded_effect.h"
#include "src/weights/fingerprint.h"

namespace lockstep {
namespace {

bool draws(const Request& request) { return request.samples > 1 || !request.sampling.argmax(); }

// Forces the requests that take the most likely token. Returns how many tokens that are.
int64_t force(std::vector<Request>& requests, const Baseline& baseline) {
  int64_t forced = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    Request& request = requests[i];
    if (draws(request)) continue;
    const std::vector<int32_t>& tokens = baseline.texts[i].tokens;
    request.forced.assign(tokens.begin(), tokens.end() - 1);
    request.max_new = std::ssize(tokens);  // where one token was chosen, none is forced
    request.eos.clear();
    request.stop.clear();
    forced += std::ssize(request.forced);
  }
  return forced;
}

// Judges the run, with its passes handed to `bits` on the thread that judges them.
Result judge(JudgedRun& run, RunBits& bits) {
  run.seen = [&bits](const Pass& pass, const std::vector<NodeId>&) { bits.add(pass); };
  Result result = judge_run(run);
  say_of_faults(run, result);
  return result;
}

std::string counted(size_t count, const char* what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

}  // namespace

int exit_status(const CheckResult& result) { return static_cast<int>(result.verdict); }

Baseline read_baseline_for(const std::string& path, const Checkpoint& checkpoint, DType dtype,
                           const std::vector<Request>& requests) {
  Baseline baseline = read_baseline(path);
  const auto another = [&](const std::string& what, const std::string& then,
                           const std::string& now) {
    fail(
        "{} is of another {} ({}, now {}): give the one that it is of, or make the baseline again "
        "with --update",
        path, what, then, now);
  };
  if (!has_fingerprint(checkpoint, baseline.model_xxh3))
    another("model", fmt::format("{}, xxh3 {}", baseline.model, baseline.model_xxh3),
            fmt::format("{}, xxh3 {}", checkpoint.dir(), checkpoint.fingerprint()));
  if (!baseline.weights_xxh3.empty() && !has_weights_hash(checkpoint, baseline.weights_xxh3))
    another("set of weights", fmt::format("{}, xxh3 {}", baseline.model, baseline.weights_xxh3),
            fmt::format("{}, xxh3 {}", checkpoint.dir(), checkpoint.weights_hash()));
  if (baseline.dtype != dtype)
    another("dtype", std::string(name_of(baseline.dtype)), std::string(name_of(dtype)));
  const auto asked = std::ranges::count_if(
      baseline.texts, [](const Baseline::Text& text) { return !text.asks.empty(); });
  if (asked != std::ssize(requests))
    another("set of requests", counted(asked, "request"), std::to_string(requests.size()));
  for (size_t i = 0; i < requests.size(); ++i) {
    const std::string asks = asks_of(requests[i]);
    if (baseline.texts[i].asks != asks)
      another("set of requests",
              fmt::format("request {}{} asks for something else", i,
                          requests[i].name.empty() ? "" : " " + requests[i].name),
              "hash " + asks);
  }
  return baseline;
}

CheckResult check_against(const Baseline& baseline, JudgedRun run, const CheckOptions& options) {
  run.judge.limits = baseline.limits();
  std::vector<bool> drawn;
  for (const Request& request : run.requests) drawn.push_back(draws(request));
  const int64_t forced = force(run.requests, baseline);
  RunBits bits;
  Result judged = judge(run, bits);
  CheckResult result = compare(baseline, std::move(judged), bits, drawn, options);
  result.forced = forced;
  return result;
}

CheckResult update_baseline(JudgedRun run, const CheckOptions& options) {
  check_replaceable(options.path);
  RunBits bits;
  Result judged = judge(run, bits);
  const Baseline baseline = baseline_of(judged, run.requests, run.judge.limits, bits);
  CheckResult result = compare(baseline, std::move(judged), bits, {}, options);
  if (result.verdict != CheckResult::Verdict::pass) {
    result.story = fmt::format("{} is left as it was, for a baseline is made of a clean run: {}",
                               options.path, result.story);
    return result;
  }
  write_file(options.path, json_of(baseline));
  result.updated = true;
  result.story = fmt::format("{} of {} nodes within rounding, written to {}", result.run.judged,
                             result.run.expected, options.path);
  return result;
}

}  // namespace lockstep
