// From a trace to a folder: the first wrong op is found (or the one that was named), its inputs
// become a case of one op, the case is computed by the implementation in question and judged, made
// smaller while it stays wrong, and written with what a right op gives.
//
// Without --ops the numbers that are wrong are those that the trace stored; the folder then holds
// them as `got`, and the programs need the reader's own kernel to call.
#include "src/replay/repro.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/fused.h"
#include "src/judge/contracts.h"
#include "src/judge/ledger.h"
#include "src/judge/shares.h"
#include "src/replay/reduction.h"
#include "src/replay/replay_source.h"
#include "src/replay/repro_folder.h"
#include "src/report/output.h"
#include "src/report/report.h"
#include "src/session/device.h"
#include "src/session/reference_library.h"
#include "traces/kept_result.h"
#include "traces/manifest.h"

namespace lockstep {
namespace {

// Names the place of the trace's first finding: of the verdict that it keeps, or else of one that
// is made now.
void name_first(ReplayOptions& options, const Checkpoint& checkpoint, Detail detail) {
  const std::string kept = read_kept_result(options.trace);
  const Result result = kept.empty() ? judge_trace(options.trace, checkpoint, {}, detail)
                                     : result_from_json(kept, options.trace);
  check(result.first.has_value(),
        "{} has no finding ({}), so there is no first one to show: name an op with --point, and "
        "with --ops whose",
        options.trace, result.story);
  options.point = result.first->node.place.point->name;
  options.layer = result.first->node.place.layer;
}

class Maker {
 public:
  Maker(const ReproOptions& options, const Checkpoint& checkpoint, OpenedTrace opened,
        Detail detail)
      : options_(options),
        of_(options.of),
        checkpoint_(checkpoint),
        opened_(std::move(opened)),
        device_(open_device(of_.device)),
        reference_{.dtype = opened_.manifest.dtype, .threads = of_.threads},
        oracle_(open_reference().oracle(checkpoint, reference_)),
        progress_(detail) {
    opened_.fill_in(oracle_->graph(), of_.trace);
    opened_.manifest.graph = without_merges(opened_.manifest.graph);
    place_ = place_of(of_, opened_.manifest.graph);
    auto [call, all] = call_source_of(of_, options.op, device_, place_, opened_.manifest.graph);
    call_ = std::move(call);
    stored_ = all.size() == 1;
    by_ = stored_ ? "the trace" : all[1].name;
    check(!stored_ || !place_.point->is_cache(),
          "{} copies what others wrote, and the trace does not tell which call did: give the "
          "library that writes it with --ops, or see which page was taken in `lockstep replay`",
          text_of(place_));
    for (const Place& place : call_.outputs)
      contracts_[std::string(place.point->name)] = contract_at(place);
    for (const Place& place : call_.hidden)
      contracts_[std::string(place.point->name)] = contract_at(place);
    runner_ = std::make_unique<OpRunner>(checkpoint, call_.named, std::move(all),
                                         OpRunner::Options{.dtype = opened_.manifest.dtype,
                                                           .device = device_,
                                                           .threads = of_.threads,
                                                           .fused = call_.fused,
                                                           .shown = call_.outputs});
  }

  ReproResult result();

 private:
  ContractTraits traits(const Place& place) const;
  RoundingContract contract_at(const Place& place) const;
  CaseJudge judge() const {
    return {.manifest = opened_.manifest,
            .oracle = *oracle_,
            .runner = *runner_,
            .which = stored_ ? size_t{0} : size_t{1},
            .call = call_,
            .contracts = contracts_,
            .pool = pool_of(opened_.manifest)};
  }
  bool wanted(const Pass& pass) const;
  // The first pass in which an element is wrong, as a case. Throws Error when there is none.
  std::pair<Pass, CaseElements> found();
  void write(const Reduced& reduced, ReproResult& result);

  const ReproOptions& options_;
  const ReplayOptions& of_;
  const Checkpoint& checkpoint_;
  OpenedTrace opened_;
  Device device_;
  ReferenceOptions reference_;
  std::unique_ptr<Oracle> oracle_;
  Progress progress_;
  Place place_;  // that was asked for
  CallPlaces call_;
  std::map<std::string, RoundingContract> contracts_;  // of the call, by point name
  bool stored_ = false;
  std::string by_;
  std::unique_ptr<OpRunner> runner_;
};

ContractTraits Maker::traits(const Place& place) const {
  const bool linear = place.point->op == OpKind::linear;
  return {.dtype = opened_.manifest.dtype, .has_bias = linear && oracle_->has_bias(place)};
}

// A user's op is held to one rounding unless another is asked for; numbers that the trace stored
// are held to what the trace declares.
RoundingContract Maker::contract_at(const Place& place) const {
  const OpKind op = place.point->op;
  const std::vector<RoundingContract> candidates = candidates_of(op, traits(place));
  if (place.point->is_cache() || candidates.empty()) return RoundingContract::fused;
  JudgeOptions asked;
  ask_for(of_.rounding, asked);
  const auto& declared = asked.contracts ? *asked.contracts : opened_.manifest.contracts;
  RoundingContract contract = candidates.front();
  const auto found = declared.find(std::string(place.point->name));
  if (found != declared.end() && (stored_ || asked.contracts))
    contract = meant_by(found->second, op, traits(place));
  for (const PointRounding& rounding : asked.rounding)
    if (rounding.is_of(*place.point)) contract = meant_by(rounding.contract, op, traits(place));
  check(!is_of_sum(contract) || call_.fused == kAddRmsNorm.name,
        "{} norms a sum before it is rounded ({}), which no call of rms_norm does: there is no "
        "folder that shows it alone",
        text_of(place), name_of(contract));
  return contract;
}

bool Maker::wanted(const Pass& pass) const {
  const Selection selection("", "", of_.positions, of_.requests);
  return std::ranges::any_of(pass.info.rows,
                             [&](const PassRow& row) { return selection.has(row.row); });
}

std::pair<Pass, CaseElements> Maker::found() {
  const std::vector<Place> needed = needed_by(call_, opened_.manifest.graph);
  const ModelConfig& config = checkpoint_.config();
  const Shape position = {config.kv_heads, config.head_dim};
  KvHistory history(/*keep_bytes=*/true);
  std::string lacking;
  int64_t looked = 0;
  for (int i = 0; i < opened_.reader->passes(); ++i) {
    progress_.show(fmt::format("pass {} of {}", i + 1, opened_.reader->passes()));
    const Pass pass = narrowed(read_only(opened_, i, needed), opened_.manifest.dtype);
    // Passes before the wanted one are read too: K and V that attention reads later, and that were
    // kept as hashes, are found among what was written.
    history.begin(pass.info);
    const RecordedTensor* k = pass.find(point("attn.k_rope"), place_.layer);
    const RecordedTensor* v = pass.find(point("attn.v"), place_.layer);
    if (k && v && k->rows == v->rows && !k->data.view().empty() && !v->data.view().empty())
      history.write(place_.layer, k->rows, k->data, v->data);
    if (!wanted(pass)) continue;
    std::string why;
    Pass op_case = case_of(pass, call_, history, position, opened_.manifest.dtype, why);
    const KvHistory nothing(/*keep_bytes=*/false);
    if (why.empty()) why = OpInputs(op_case, call_.named, call_.reads, nothing, {}).lacking();
    const RecordedTensor* made = op_case.find(*place_.point, place_.layer);
    if (why.empty() && stored_ && (made == nullptr || made->data.view().empty()))
      why = fmt::format("the numbers of {} were not kept", text_of(place_));
    if (!why.empty()) {
      lacking = why;
      continue;
    }
    ++looked;
    CaseElements elements =
        naming(of_.trace, [&] { return judged_case(judge(), op_case, stored_); });
    if (!elements.wrong().empty()) return {std::move(op_case), std::move(elements)};
  }
  check(looked > 0, "{} cannot be computed again from {}: {}; {}", text_of(place_), of_.trace,
        lacking.empty() ? "no row was asked for" : lacking, remedy_of(opened_.manifest));
  fail(
      "no single element of {} by {} is over its budget in {} passes, so that no small case shows "
      "one: `lockstep replay` judges all of them together",
      text_of(place_), by_, looked);
}

// Those that the call reads.
int64_t keys_of(const CallPlaces& call, const Pass& op_case) {
  int64_t keys = 0;
  for (const RecordedTensor& tensor : op_case.tensors)
    if (std::ranges::count(call.reads, Place{tensor.point, tensor.layer}) > 0 &&
        tensor.point->is_cache())
      keys += std::ssize(tensor.rows);
  return keys;
}

void Maker::write(const Reduced& reduced, ReproResult& result) {
  const KvHistory nothing(/*keep_bytes=*/false);
  const OpInputs inputs(reduced.op_case, call_.named, call_.reads, nothing,
                        pool_of(opened_.manifest));
  const CapturedCall call = runner_->call_on(inputs);
  const ReproElements elements = picked_from(reduced.elements, call);
  result.elements = std::ssize(elements.index);
  // Lockstep's own rounds once, whatever the trace's does.
  CaseJudge own = judge();
  own.which = 0;
  const RoundingContract of_case = own.contract_at(place_);
  for (auto& [point, contract] : own.contracts) contract = RoundingContract::fused;
  result.own_is_right = judged_case(own, reduced.op_case, /*stored=*/false).wrong().empty();
  const TrialResult::Element& worst = result.worst;
  ReproStory story{fmt::format("{} of {}", text_of(place_), of_.trace), {}};
  story.lines.push_back(fmt::format(
      "{} has {} of {} elements over their budgets; the worst: want {}, got {}, {} budgets.", by_,
      result.wrong, reduced.elements.got.size(), shown(worst.want, 6), shown(worst.got, 6),
      shown(worst.budgets, 3)));
  if (of_case != RoundingContract::fused)
    story.lines.push_back(fmt::format(
        "`want` rounds inside as `{}` does, which the trace declares.", name_of(of_case)));
  result.unlike_run = runner_->unlike_run(inputs);
  if (!result.unlike_run.empty())
    story.lines.push_back(fmt::format("Not as in the run: {}.", result.unlike_run));
  if (!reduced.steps.empty())
    story.lines.push_back(
        fmt::format("Reduced from pass {}: {}.", result.pass, fmt::join(reduced.steps, "; ")));
  story.lines.push_back(
      fmt::format("Lockstep's own op is {} on it.", result.own_is_right ? "right" : "wrong too"));
  result.bytes = write_repro(options_.folder, call, elements, story);
}

ReproResult Maker::result() {
  const auto [op_case, of_case] = found();
  ReproResult result{.source = of_.trace,
                     .folder = options_.folder,
                     .place = place_,
                     .by = by_,
                     .pass = op_case.info.pass,
                     .of_rows = std::ssize(op_case.info.rows),
                     .of_keys = keys_of(call_, op_case)};
  progress_.show("looking for a smaller case");
  const Reduced small = reduced(judge(), op_case, of_case, stored_);
  const CaseElements& elements = small.elements;
  result.rows = std::ssize(elements.rows);
  result.keys = keys_of(call_, small.op_case);
  result.wrong = std::ssize(elements.wrong());
  result.steps = small.steps;
  const size_t worst = elements.worst();
  const Row& row = elements.row_of(worst);
  result.worst = {.pass = result.pass,
                  .request = row.request,
                  .index = {row.position, elements.column_of(worst)},
                  .want = elements.want[worst],
                  .got = elements.got[worst],
                  .budgets = elements.budgets(worst)};
  progress_.show("");
  write(small, result);
  return result;
}

}  // namespace

ReproResult make_repro(const ReproOptions& options, Detail detail) {
  check_repro_folder(options.folder);
  const Checkpoint checkpoint = Checkpoint::open(options.of.model);
  ReproOptions named = options;
  if (named.of.point.empty()) name_first(named.of, checkpoint, detail);
  return make_repro(named, checkpoint,
                    open_to_judge(named.of.trace, checkpoint, named.of.rope_pairs), detail);
}

ReproResult make_repro(const ReproOptions& options, const Checkpoint& checkpoint,
                       OpenedTrace opened, Detail detail) {
  return Maker(options, checkpoint, std::move(opened), detail).result();
}

}  // namespace lockstep
