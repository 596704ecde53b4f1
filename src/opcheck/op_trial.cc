// A case is judged by the Judge of a run, on a trace of one layer that only has the op's inputs and
// outputs: so a library's op is held to the same budgets and statistics as an engine's. What a
// fused op keeps inside is hidden, and judged with its output (src/judge/hidden.h).
#include "src/opcheck/op_trial.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "kernels/base/check.h"
#include "probes/recorder.h"
#include "src/judge/contracts.h"
#include "src/judge/ledger.h"
#include "src/judge/story.h"
#include "src/opcheck/one_op.h"
#include "src/session/reference_library.h"

namespace lockstep {
namespace {

Place named_place(const GridCase& shape, const OpPlaces& places) {
  const auto found = std::ranges::find(places.outputs, shape.point,
                                       [](const Place& place) { return place.point->name; });
  check(found != places.outputs.end(), "the op at {} does not store that", shape.point);
  return *found;
}

bool is_fused(std::string_view op) {
  return std::ranges::count(kFusedOps, op, &FusedRow::name) > 0;
}

OpRunner::Options runner_options(std::string_view op, DType dtype, const OpTrial::Options& options,
                                 const OpPlaces& places) {
  return {.dtype = dtype,
          .device = options.device,
          .threads = options.threads,
          .fused = is_fused(op) ? op : std::string_view(),
          .shown = places.outputs};
}

// One rounding at the store is what the headers of ops promise, unless the person who asks declares
// another contract.
JudgeOptions judging_as_run(const OpTrial::Options& options, const OpPlaces& places,
                            const Graph& graph, DType dtype, const Oracle& oracle) {
  std::vector<std::string_view> names;
  for (const Place& place : places.outputs) names.push_back(place.point->name);
  JudgeOptions judge{.selection = Selection(fmt::format("{}", fmt::join(names, ",")), "", "", ""),
                     .threads = options.threads,
                     .contracts = contracts_of_preset("fused"),
                     .may_saturate = false,
                     .inputs_are_given = true};
  ask_for(options.rounding, judge);
  // The models of an op's cases have other points each, and a bias of q, k and v or none.
  const auto has_it = [&](const PointRounding& asked, const Place& place) {
    const auto can_with = [&](bool bias) {
      const auto can = contracts_of(place.point->op, ContractTraits{dtype, bias});
      return std::ranges::count(can, asked.contract) > 0;
    };
    const bool may_have_bias = place.point->head_axis >= 0;
    return asked.is_of(*place.point) &&
           (!may_have_bias || can_with(oracle.has_bias(place)) || !can_with(true));
  };
  std::erase_if(judge.rounding, [&](const PointRounding& asked) {
    return std::ranges::none_of(graph.places(),
                                [&](const Place& place) { return has_it(asked, place); });
  });
  if (!places.hidden.empty())
    judge.recorded = [hidden = places.hidden](const Place& place) {
      return std::ranges::count(hidden, place) == 0;
    };
  return judge;
}

// Inputs that are not finite are the grid's own: an op that hands them on as its exact result does
// is right. Elsewhere somebody made them, and the judge reports the first that reads them.
bool hands_on(const Finding& finding) {
  return finding.verdict == Verdict::nonfinite && finding.rule.starts_with("propagated: ");
}

// A rule without what it ends with where another contract explains the finding.
std::string without_contract(const std::string& rule) {
  for (const char* says : {kWouldPassAs, kWithinWider})
    if (const size_t at = rule.rfind(says); at != rule.npos)
      return rule.substr(0, at < 2 ? 0 : at - 2);  // without the semicolon before it
  return rule;
}

}  // namespace

OpTrial::OpTrial(std::string_view op, const GridCase& shape, DType dtype,
                 const std::vector<Implementation>& implementations,
                 const OpTrial::Options& options)
    : op_(op),
      shape_(shape),
      dtype_(dtype),
      options_(options),
      places_(places_of(op, shape)),
      data_(data_of(shape, places_, dtype)),
      judged_(data_.manifest),
      reference_{.dtype = dtype, .threads = options.threads},
      oracle_(open_reference().oracle(data_.checkpoint, reference_)),
      runner_(data_.checkpoint, named_place(shape, places_), implementations,
              runner_options(op, dtype, options, places_)) {
  judged_.graph = graph_of(shape.model, places_.turns);
}

// An op that writes a cache finds there what its earlier passes wrote, and 0 in slots that nobody
// has written.
Pass OpTrial::begun(size_t number, const std::vector<RecordedTensor>& made) const {
  Pass pass = data_.passes[number];
  const SmallModel& m = shape_.model;
  for (const Place& place : places_.outputs) {
    if (!place.point->is_cache()) continue;
    for (size_t r = 0; r < shape_.passes[number].size(); ++r) {
      const auto request = static_cast<int32_t>(r);
      const auto& [first, count] = shape_.passes[number][r];
      RecordedTensor kv{.point = place.point, .layer = place.layer, .dtype = dtype_};
      kv.shape = {first + count, 2, m.kv_heads, m.head_dim};
      for (int32_t p = 0; p < first + count; ++p) kv.rows.push_back({request, p});
      kv.data = Tensor(kv.shape, dtype_);
      std::memset(kv.data.as<char>(), 0, static_cast<size_t>(kv.data.view().bytes()));
      for (const RecordedTensor& before : made)
        if (before.point->is_cache() && before.rows.front().request == request)
          std::memcpy(kv.data.as<char>(), before.data.as<char>(),
                      static_cast<size_t>(before.data.view().bytes()));
      pass.tensors.push_back(std::move(kv));
    }
  }
  return pass;
}

std::vector<RecordedTensor> OpTrial::compute(const Pass& pass, size_t which, bool timed,
                                             double* seconds) {
  const KvHistory nothing(/*keep_bytes=*/false);
  const OpInputs inputs(pass, named_place(shape_, places_), places_.reads, nothing,
                        pool_of(data_.manifest));
  check(inputs.lacking().empty(), "the grid's case {} lacks what {} reads: {}", shape_.point, op_,
        inputs.lacking());
  OpRunner::Made made = runner_.run(which, inputs, timed);
  if (seconds != nullptr) *seconds += made.seconds;
  return std::move(made.tensors);
}

double OpTrial::seconds(size_t which) {
  double all = 0;
  std::vector<RecordedTensor> made;
  for (size_t i = 0; i < data_.passes.size(); ++i)
    made = compute(begun(i, made), which, /*timed=*/true, &all);
  return all;
}

OpTrial::Verdict OpTrial::judge(bool with_causes) {
  try {
    return judge_passes(with_causes);
  } catch (const OpRefusal& refusal) {
    return {.refusal = refusal.what()};
  } catch (const OpError& error) {
    Verdict verdict{.budgets = std::numeric_limits<double>::infinity()};
    verdict.failure = OpTrial::Failure{.shape = text_of(traits_of(shape_, dtype_)),
                                       .says = error.what(),
                                       .budgets = verdict.budgets};
    return verdict;
  }
}

OpTrial::Verdict OpTrial::judge_passes(bool with_causes) {
  Judge judge(judged_, *oracle_, nullptr, nullptr,
              judging_as_run(options_, places_, judged_.graph, judged_.dtype, *oracle_));
  std::unique_ptr<Hypotheses> hypotheses;
  std::unique_ptr<Causes> causes;
  if (with_causes) {
    hypotheses = open_reference().hypotheses(data_.checkpoint, reference_);
    causes = std::make_unique<Causes>(judged_, judge, *oracle_, *hypotheses);
  }
  std::vector<RecordedTensor> made;
  for (size_t i = 0; i < data_.passes.size(); ++i) {
    made = compute(begun(i, made), 1, /*timed=*/false, nullptr);
    Pass pass = data_.passes[i];
    pass.tensors.insert(pass.tensors.end(), made.begin(), made.end());
    if (pass.find(point("logits"), -1) != nullptr) put_top_logits(pass);
    const std::vector<NodeId> flags = judge.judge(pass);
    if (causes) causes->add(pass, flags);
  }
  Result result = judge.finish({}, /*complete=*/true);
  if (causes) causes->put_into(result);
  // A case of which something was not judged would count as right by silence.
  check(result.judged > 0 && result.judged == result.expected,
        "of the grid's case {} ({}) {} of {} nodes could be judged: {}", op_,
        text_of(traits_of(shape_, dtype_)), result.judged, result.expected, result.story);
  return verdict_of(result, judge);
}

OpTrial::Verdict OpTrial::verdict_of(const Result& result, const Judge& judge) const {
  Verdict verdict;
  for (const PlaceSummary& place : result.places)
    if (place.measured && std::ranges::count(places_.outputs, place.place) > 0)
      verdict.budgets = std::max(verdict.budgets, place.worst_t1);
  const Finding* gravest = nullptr;
  for (const Finding& finding : result.findings)
    if (!hands_on(finding) && (gravest == nullptr || finding.budgets > gravest->budgets))
      gravest = &finding;
  if (gravest == nullptr) return verdict;
  const Finding& f = *gravest;
  verdict.budgets = std::max(verdict.budgets, f.budgets);
  Failure failure{.shape = text_of(traits_of(shape_, dtype_)),
                  .point = std::string(f.node.place.point->name),
                  .statistic = f.statistic ? name_of(*f.statistic) : "",
                  .pass = f.node.pass,
                  .request = f.node.request,
                  .index = f.index,
                  .want = f.want,
                  .got = f.got,
                  .budgets = f.budgets,
                  .rule = without_contract(f.rule),
                  .right_as = judge.right_as(f.node.place)};
  if (f.index.empty()) failure.says = failure.rule.empty() ? name_of(f.verdict) : failure.rule;
  for (const PlaceSummary& place : result.places)
    if (place.place == f.node.place) failure.looks_like = place.looks_like;
  verdict.failure = std::move(failure);
  return verdict;
}

}  // namespace lockstep
