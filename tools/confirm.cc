#include "tools/confirm.h"

#include <fmt/format.h>

#include <algorithm>

#include "src/judge/ledger.h"
#include "src/judge/story.h"
#include "tools/op_watch.h"

namespace lockstep {
namespace {

// How often a run may show new places once others are put right before it is given up.
constexpr int kRounds = 4;

// The same requests, which choose what they chose.
JudgedRun again(const JudgedRun& run, const Result& result) {
  JudgedRun same = run;
  same.trace.clear();
  same.progress = {};
  for (size_t i = 0; i < same.requests.size() && i < result.requests.size(); ++i) {
    Request& request = same.requests[i];
    const std::vector<int32_t>& tokens = result.requests[i].tokens;
    if (request.samples > 1 || tokens.empty()) continue;
    request.forced.assign(tokens.begin(), tokens.end() - 1);
    request.max_new = std::ssize(tokens);
  }
  return same;
}

std::vector<Place> places_of(const std::vector<Finding>& findings) {
  std::vector<Place> places;
  for (const Finding& finding : findings)
    if (std::ranges::count(places, finding.place) == 0) places.push_back(finding.place);
  return places;
}

Result with_right(JudgedRun run, const std::vector<Place>& right) {
  const DType dtype = run.engine.dtype;
  const auto oracle =
      run.reference.oracle(run.checkpoint, reference_options(run.reference, run.engine));
  Substitution substitution(*oracle, dtype, right);
  run.watch = &substitution;
  return judge_run(run);
}

// Puts right what is wrong until nothing is, or nothing more can be. Adds what showed on the way.
Result heal(const JudgedRun& run, std::vector<Place>& right) {
  Result healed = with_right(run, right);
  for (int round = 1; round < kRounds && !healed.findings.empty(); ++round) {
    const size_t before = right.size();
    for (const Place& place : places_of(healed.findings))
      if (Substitution::possible(place) && std::ranges::count(right, place) == 0)
        right.push_back(place);
    if (right.size() == before) break;
    healed = with_right(run, right);
  }
  return healed;
}

Confirmation alone(const JudgedRun& run, const std::vector<Place>& right, const Place& place,
                   const Result& healed) {
  if (!healed.findings.empty())
    return {place, false,
            fmt::format("not confirmed: with {} of the places put right, {} is still wrong",
                        right.size(), text_of(healed.findings.front().place))};
  std::vector<Place> others = right;
  std::erase(others, place);
  const Result result = with_right(run, others);
  if (result.findings.empty())
    return {place, false, "not confirmed: on inputs that are right it does nothing wrong"};
  const Finding& first = result.findings.front();
  if (!(first.place == place))
    return {
        place, false,
        fmt::format("not confirmed: left wrong alone, {} is found instead", text_of(first.place))};
  return {place, true,
          fmt::format("confirmed: put right, all that comes after is within rounding; left wrong "
                      "alone, it is found again ({})",
                      text_of(first))};
}

}  // namespace

std::vector<Confirmation> confirm(const JudgedRun& run, const Result& result, size_t most) {
  std::vector<Confirmation> confirmations;
  std::vector<Place> right;
  for (const Place& place : places_of(result.findings)) {
    if (Substitution::possible(place))
      right.push_back(place);
    else
      confirmations.push_back(
          {place, false, "not tried: no op computes this, so that none can be put right"});
  }
  if (right.empty()) return confirmations;
  const JudgedRun same = again(run, result);
  const size_t known = right.size();
  const Result healed = heal(same, right);
  for (size_t i = 0; i < right.size(); ++i) {
    if (i >= most) {
      confirmations.push_back(
          {right[i], false, fmt::format("not tried: only the first {} places are", most)});
      continue;
    }
    Confirmation& made = confirmations.emplace_back(alone(same, right, right[i], healed));
    if (i >= known) made.says += "; a greater error before it hid it";
  }
  return confirmations;
}

}  // namespace lockstep
