// A finding is tried by experiment: the same requests are served again, forced to the same tokens,
// with an OpWatch that replaces results of ops by the oracle's.
//
//     heal()         all wrong places put right, until nothing new is wrong: they explain the run
//     alone()        all but one put right: that one must be found again, on right inputs
//     tokens_back()  it alone put right: which of the tokens that differ come back
//     judge_again()  its elements by the other hand of src/opinion: the oracle is not the suspect
#include "src/session/confirm.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "kernels/base/check.h"
#include "src/judge/ledger.h"
#include "src/judge/story.h"
#include "src/opinion/second_opinion.h"
#include "src/session/op_watch.h"
#include "traces/manifest.h"

namespace lockstep {
namespace {

// How often a run may show new places once others are put right before it is given up.
constexpr int kRounds = 4;
// Findings of a place that are computed a second time, and how far that may be from the oracle's
// results: fp64 and long double are a millionth of an ulp of fp32 apart, unless nearly all cancels.
constexpr size_t kMostComputed = 4;
constexpr double kOfDifference = 1.0 / 8, kOfUlp = 1.0 / 100;

// The same requests, which choose what they chose. A request of several samples keeps its own
// choices: each sample would have to be forced by itself.
JudgedRun again(const JudgedRun& run, const Result& result) {
  JudgedRun same = run;
  same.trace.clear();
  same.seen = {};
  same.causes = false;
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
    if (std::ranges::count(places, finding.node.place) == 0) places.push_back(finding.node.place);
  return places;
}

// The tensors that passes showed of a place and what it reads, where it was found wrong.
class Evidence {
 public:
  Evidence(const Place& place, std::vector<Place> reads)
      : place_(place), places_(std::move(reads)) {
    places_.push_back(place);
  }
  // Tensors are shared with the pass; passes beyond those that are computed a second time are not
  // kept.
  void add(const Pass& pass, const std::vector<NodeId>& flags) {
    const auto here = [&](const NodeId& flag) { return flag.place == place_; };
    if (passes_.size() == kMostComputed || std::ranges::none_of(flags, here)) return;
    Pass& kept = passes_.emplace_back(Pass{.info = pass.info});
    for (const RecordedTensor& tensor : pass.tensors)
      if (std::ranges::count(places_, Place{tensor.point, tensor.layer}) > 0)
        kept.tensors.push_back(tensor);
  }
  const Pass* of(int32_t pass) const {
    const auto found = std::ranges::find(passes_, pass, [](const Pass& p) { return p.info.pass; });
    return found == passes_.end() ? nullptr : &*found;
  }

 private:
  Place place_;
  std::vector<Place> places_;
  std::vector<Pass> passes_;
};

struct SecondJudgement {
  bool agrees = false, disagrees = false;  // neither: there is none
  std::string says;
};

// Two right computations differ by far less than the engine from both: by a part of an ulp of the
// dtype, or by a part of what the engine is off.
bool close(const SecondOpinion::Opinion& opinion, const Finding& finding, DType dtype) {
  if (!std::isfinite(finding.want) || !std::isfinite(opinion.stored)) {
    const double want = round_to(finding.want, dtype);
    return want == opinion.stored || (std::isnan(want) && std::isnan(opinion.stored));
  }
  const double off = std::fabs(finding.got - finding.want);
  const double may = kOfUlp * ulp(finding.want, dtype);
  return std::fabs(static_cast<double>(opinion.exact - static_cast<long double>(finding.want))) <=
         (std::isfinite(off) ? std::max(may, kOfDifference * off) : may);
}

// The elements of a place's findings by another hand. What is said is of the first of them, or of
// the first that the oracle has otherwise.
SecondJudgement judge_again(const Result& result, const Place& place, const Evidence& evidence,
                            const SecondOpinion& second, DType dtype) {
  SecondJudgement judgement{.says = "none of its findings names an element"};
  const auto contract = result.scope.contracts.find(std::string(place.point->name));
  size_t computed = 0;
  for (const Finding& f : result.findings) {
    const Pass* pass = evidence.of(f.node.pass);
    if (!(f.node.place == place) || f.index.empty() || !pass || computed == kMostComputed) continue;
    const SecondOpinion::Opinion opinion =
        second.of(place,
                  contract == result.scope.contracts.end() ? RoundingContract::fused
                                                           : contract_from(contract->second),
                  *pass, {f.node.request, f.position}, std::span(f.index).subspan(1));
    if (!opinion.lacking.empty()) return {.says = opinion.lacking};
    const double exact = static_cast<double>(opinion.exact);
    if (!close(opinion, f, dtype))
      return {.disagrees = true,
              .says = fmt::format("gives {:.9g} at index [{}], where the oracle has {:.9g} and the "
                                  "engine wrote {:.9g}: the oracle is the suspect",
                                  exact, fmt::join(f.index, ", "), f.want, f.got)};
    if (computed++ > 0) continue;
    const double ulps = std::fabs(f.got - exact) / ulp(opinion.stored, dtype);
    judgement = {
        .agrees = true,
        .says = fmt::format("gives {:.9g}; the engine wrote {:.9g}, {} ulp away", exact, f.got,
                            ulps >= 1e9 ? "over 1e9" : fmt::format("{:.3g}", ulps))};
  }
  if (computed > 1)
    judgement.says += fmt::format(" (and agrees at {} more elements)", computed - 1);
  return judgement;
}

// The run whose progress says what it is for: each is as long as the run that it confirms.
JudgedRun told(JudgedRun run, const std::string& what) {
  if (run.progress)
    run.progress = [show = run.progress, what](const std::string& line) {
      show(fmt::format("{}: {}", what, line));
    };
  return run;
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

// Two runs make one confirmation. With all wrong places computed by the oracle, nothing is found
// (`healed`); with all but this one, it is what is found first. Then it is computed a second time
// by other hands (src/opinion), in long double.
Confirmation alone(JudgedRun run, const std::vector<Place>& right, const Place& place,
                   const Result& healed, const SecondOpinion& second) {
  if (!healed.findings.empty())
    return {place, false,
            fmt::format("not confirmed: with {} of the places put right, {} is still wrong",
                        right.size(), text_of(healed.findings.front().node.place))};
  std::vector<Place> others = right;
  std::erase(others, place);
  Evidence evidence(place, second.reads(place));
  run.seen = [&](const Pass& pass, const std::vector<NodeId>& flags) { evidence.add(pass, flags); };
  const Result result = with_right(run, others);
  if (result.findings.empty())
    return {place, false, "not confirmed: on inputs that are right it does nothing wrong"};
  const Finding& first = result.findings.front();
  if (!(first.node.place == place))
    return {place, false,
            fmt::format("not confirmed: left wrong alone, {} is found instead",
                        text_of(first.node.place))};
  const std::string found = fmt::format(
      "put right by the oracle, all that comes after is within rounding; left wrong alone, it is "
      "found again ({})",
      text_of(first));
  const DType dtype = run.engine.dtype;
  const SecondJudgement again = judge_again(result, place, evidence, second, dtype);
  if (again.agrees)
    return {
        place, true,
        fmt::format("confirmed: {}; a second computation in long double {}", found, again.says)};
  if (again.disagrees)
    return {place, false,
            fmt::format("not confirmed: a second computation in long double {} ({})", again.says,
                        found)};
  return {place, false,
          fmt::format("found again, but not computed a second time, because {}: {}", again.says,
                      found)};
}

const Flip* flip_at(const Result& result, size_t request, int32_t position) {
  if (request >= result.requests.size()) return nullptr;
  const std::vector<Flip>& flips = result.requests[request].flips;
  const auto found = std::ranges::find(flips, position, &Flip::position);
  return found == flips.end() ? nullptr : &*found;
}

// The tokens that differ because of a finding, and which of them are the model's again in a run
// with one place put right. "": none differs. A token that differs without a finding behind it
// differs by rounding, and is not counted.
std::string tokens_back(const Result& result, const Result& put_right) {
  int64_t differ = 0, back = 0;
  std::string first;
  for (size_t i = 0; i < result.requests.size(); ++i)
    for (const Flip& flip : result.requests[i].flips) {
      if (flip.ancestor.empty()) continue;
      ++differ;
      if (flip_at(put_right, i, flip.position)) continue;
      if (back++ == 0)
        first =
            fmt::format("token at position {} of request {}", flip.position, result.requests[i].id);
    }
  if (differ == 0) return "";
  if (back == 0) return "; put right alone, it brings no token back";
  if (back == 1 && differ == 1)
    return fmt::format("; the {} comes back when it is put right", first);
  return fmt::format(
      "; {} of {} tokens that differ come back when it alone is put right, first the {}", back,
      differ, first);
}

}  // namespace

void check_can_confirm(const Session& session) {
  check(!session.engine.make_executor,
        "--confirm puts right what the next op reads, found an --executor that shows what it "
        "computed when all of it is: leave one out");
  check(session.ops.fused.of_user.empty(),
        "--confirm puts single ops right, found {}, of which some are fused: leave one out",
        session.user_ops);
}

// heal() may add to the places: what is wrong behind a greater error shows when that is put right.
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
  const auto oracle =
      run.reference.oracle(run.checkpoint, reference_options(run.reference, run.engine));
  const SecondOpinion second(run.checkpoint, oracle->graph(), run.engine.dtype);
  const size_t known = right.size();
  const bool differs = std::ranges::any_of(result.requests, [](const RequestResult& request) {
    return std::ranges::any_of(request.flips,
                               [](const Flip& flip) { return !flip.ancestor.empty(); });
  });
  const Result healed = heal(told(same, "all put right"), right);
  for (size_t i = 0; i < right.size(); ++i) {
    if (i >= most) {
      confirmations.push_back(
          {right[i], false, fmt::format("not tried: only the first {} places are", most)});
      continue;
    }
    Confirmation& made = confirmations.emplace_back(alone(
        told(same, "all put right but " + text_of(right[i])), right, right[i], healed, second));
    if (i >= known) made.says += "; a greater error before it hid it";
    if (differs)
      made.says += tokens_back(
          result, with_right(told(same, text_of(right[i]) + " alone put right"), {right[i]}));
  }
  return confirmations;
}

}  // namespace lockstep
