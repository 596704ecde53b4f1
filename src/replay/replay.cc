// One op of a recorded run, computed again from its recorded inputs by several implementations,
// each judged as the run itself would be:
//
//   trace -> inputs of the place, pass by pass -> OpRunner: the op by each implementation
//         -> Trial of each: judge, distances in ulp, causes; beside the trace's own numbers
//
// The implementations are ours and that of the library which --ops names, beside the numbers that
// the trace stored; the oracle is asked once per pass for all of them (SharedOracle).
#include "src/replay/replay.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>

#include "kernels/base/check.h"
#include "src/judge/presets.h"
#include "src/judge/shares.h"
#include "src/replay/bundle.h"
#include "src/replay/bundle_arrays.h"
#include "src/replay/found_cache.h"
#include "src/replay/replay_source.h"
#include "src/report/output.h"
#include "src/session/device.h"
#include "src/session/judged_trace.h"
#include "src/session/reference_library.h"

namespace lockstep {
namespace {

Selection here_of(const ReplayOptions& options, const Place& place) {
  return {std::string(place.point->name), place.layer < 0 ? "" : fmt::format("{}", place.layer),
          options.positions, options.requests};
}

// The pass with other tensors at that place. The best logits that a pass names are made anew of the
// tensor, for those of the trace would contradict it.
Pass with(const Pass& pass, const Place& place, std::vector<RecordedTensor> made) {
  Pass other{.info = pass.info};
  for (const RecordedTensor& tensor : pass.tensors)
    if (!(Place{tensor.point, tensor.layer} == place)) other.tensors.push_back(tensor);
  for (RecordedTensor& tensor : made) other.tensors.push_back(std::move(tensor));
  const RecordedTensor* logits = other.find(point("logits"), -1);
  if (logits != nullptr && !logits->data.view().empty()) put_top_logits(other);
  return other;
}

bool has_wanted_row(const Pass& pass, const Selection& selection) {
  return std::ranges::any_of(pass.info.rows,
                             [&](const PassRow& row) { return selection.has(row.row); });
}

// The options that decide an implementation's verdict. Lockstep's own op and the user's round once
// unless the person who asks says otherwise; the trace's is held to what the trace declares.
JudgeOptions judging(const Selection& selection, int threads, bool rounds_once) {
  JudgeOptions options{.selection = selection, .threads = threads};
  if (rounds_once) options.contracts = contracts_of_preset("fused");
  return options;
}

// A folder of repro or ops --out shows one op of no model, and is run by itself.
void refuse_repro(const std::string& path) {
  check(!std::filesystem::exists(std::filesystem::path(path) / "repro.py"),
        "{} is a folder that lockstep repro or ops wrote, and replay reads a trace or a bundle: "
        "give the library to the folder's own repro.py or repro.c, as its README.md says",
        path);
}

// The inputs of a replay, and the model that they are of.
struct Source {
  Checkpoint checkpoint;
  OpenedTrace opened;
  bool is_bundle = false;
  std::vector<std::string> unread = {};  // arrays of a bundle
};

Source source_of(const ReplayOptions& options) {
  if (!is_bundle(options.trace)) {
    refuse_repro(options.trace);
    check(!options.model.empty(), "--model wants the checkpoint that {} was made with, found none",
          options.trace);
    check(!options.point.empty(), "--point wants the op, by the point that shows its result");
    Checkpoint checkpoint = Checkpoint::open(options.model);
    OpenedTrace opened = open_to_judge(options.trace, checkpoint, options.rope_pairs);
    return {std::move(checkpoint), std::move(opened)};
  }
  check(options.model.empty() && options.layer < 0 &&
            (options.point.empty() || options.point == "attn.out"),
        "{} holds one attention of no model: leave out --model, --layer and --point",
        options.trace);
  Bundle bundle = open_bundle(options.trace);
  check(bundle.has_out || !options.ops.empty(),
        "{} has no array out (or o), so that there is no result to judge{}: save what the call "
        "stored as out, or name the library that computes it with --ops",
        options.trace,
        bundle.unread.empty()
            ? ""
            : fmt::format(", and what it has as {} is not read", fmt::join(bundle.unread, ", ")));
  Manifest manifest = bundle.reader->manifest();
  return {std::move(bundle.checkpoint),
          {std::move(bundle.reader), std::move(manifest)},
          true,
          std::move(bundle.unread)};
}

// The options for a bundle, which has one op at one place.
ReplayOptions of_bundle(ReplayOptions options) {
  options.point = "attn.out";
  options.layer = 0;
  return options;
}

class Replay {
 public:
  Replay(const ReplayOptions& options, Source source, Detail detail)
      : options_(source.is_bundle ? of_bundle(options) : options),
        is_bundle_(source.is_bundle),
        unread_(std::move(source.unread)),
        checkpoint_(std::move(source.checkpoint)),
        opened_(std::move(source.opened)),
        device_(open_device(options.device)),
        reference_{.dtype = opened_.manifest.dtype, .threads = options.threads},
        oracle_(open_reference().oracle(checkpoint_, reference_)),
        hypotheses_(open_reference().hypotheses(checkpoint_, reference_)),
        shared_(*oracle_),
        progress_(detail) {
    opened_.fill_in(oracle_->graph(), options.trace);
    opened_.manifest.graph = without_merges(opened_.manifest.graph);
    place_ = place_of(options_, opened_.manifest.graph);
    selection_ = here_of(options_, place_);
    if (place_.point->is_cache()) {
      const std::vector<Place> read = opened_.manifest.graph.inputs_of(place_);
      found_.emplace(place_, read.at(0), read.at(1));
    }
    std::vector<Implementation> all = implementations_of(options_, device_, place_);
    add_trials(all);
    runner_ = std::make_unique<OpRunner>(
        checkpoint_, place_, std::move(all),
        OpRunner::Options{opened_.manifest.dtype, device_, options.threads});
  }

  ReplayResult result();

 private:
  void add_trials(const std::vector<Implementation>& all);
  void add(const Pass& whole, ReplayResult& result);

  ReplayOptions options_;
  bool is_bundle_;
  std::vector<std::string> unread_;
  bool stored_ = false;  // there is a result that was kept
  Checkpoint checkpoint_;
  OpenedTrace opened_;
  Device device_;
  ReferenceOptions reference_;
  std::unique_ptr<Oracle> oracle_;
  std::unique_ptr<Hypotheses> hypotheses_;
  SharedOracle shared_;
  Progress progress_;
  Place place_;
  Selection selection_;
  std::optional<FoundCache> found_;  // of an op that writes a cache
  std::unique_ptr<OpRunner> runner_;
  std::vector<std::unique_ptr<Trial>> trials_;  // of the trace, then of the runner's
};

void Replay::add_trials(const std::vector<Implementation>& all) {
  const auto add = [&](const std::string& name, JudgeOptions options) {
    trials_.push_back(std::make_unique<Trial>(name, opened_.manifest, place_, shared_, *hypotheses_,
                                              std::move(options)));
  };
  const bool of_user = all.size() > 1;
  JudgeOptions of_trace = judging(selection_, options_.threads, false);
  if (!of_user) ask_for(options_.rounding, of_trace);
  add(is_bundle_ ? "the bundle" : "the trace", std::move(of_trace));
  for (size_t i = 0; i < all.size(); ++i) {
    JudgeOptions own = judging(selection_, options_.threads, true);
    if (i > 0) ask_for(options_.rounding, own);
    add(all[i].name, std::move(own));
  }
}

// Every trial sees every pass, also those whose rows are not asked for: what was written to the
// cache earlier is what attention reads later.
void Replay::add(const Pass& whole, ReplayResult& result) {
  shared_.forget();
  const Pass pass = found_ ? found_->without_found(whole) : whole;
  for (const RecordedTensor& tensor : pass.tensors)
    stored_ = stored_ || Place{tensor.point, tensor.layer} == place_;
  // The trace's own trial comes first, as the others read the history that it keeps.
  naming(options_.trace, [&] { trials_[0]->add(pass, nullptr); });
  if (!has_wanted_row(pass, selection_)) {
    for (size_t i = 1; i < trials_.size(); ++i) trials_[i]->add(pass, nullptr);
    return;
  }
  ++result.of_passes;
  const OpInputs inputs(whole, place_, opened_.manifest.graph, trials_[0]->history(),
                        pool_of(opened_.manifest));
  // The others get the pass without a result, so that their nodes are expected and not judged.
  if (!inputs.lacking().empty()) {
    result.lacking = inputs.lacking();
    for (size_t i = 1; i < trials_.size(); ++i) trials_[i]->add(with(pass, place_, {}), nullptr);
    return;
  }
  ++result.passes;
  if (result.unlike_run.empty()) result.unlike_run = runner_->unlike_run(inputs);
  result.rows += std::ssize(inputs.rows());
  for (size_t i = 1; i < trials_.size(); ++i) {
    OpRunner::Made made = runner_->run(i - 1, inputs);
    trials_[i]->took(made.seconds);
    if (found_) made.tensors = found_->without_given(std::move(made.tensors), whole, inputs.rows());
    trials_[i]->add(with(pass, place_, std::move(made.tensors)), &whole);
  }
}

ReplayResult Replay::result() {
  ReplayResult result{.source = options_.trace,
                      .place = place_,
                      .dtype = opened_.manifest.dtype,
                      .device = device_.text(),
                      .model = options_.model,
                      .unread = unread_};
  const std::vector<Place> needed = needed_by(place_, opened_.manifest.graph);
  const int passes = opened_.reader->passes();
  for (int i = 0; i < passes; ++i) {
    progress_.show(fmt::format("pass {} of {}", i + 1, passes));
    add(read_only(opened_, i, needed), result);
  }
  check(result.of_passes > 0,
        "{} has no row of those that were asked for: `lockstep inspect` lists "
        "its requests",
        options_.trace);
  check(result.passes > 0, "{} cannot be computed again from {}: {}; {}", text_of(place_),
        options_.trace, result.lacking, remedy_of(opened_.manifest));
  // A bundle without `out` has no result that could be held to anything.
  for (size_t i = is_bundle_ && !stored_ ? 1 : 0; i < trials_.size(); ++i)
    result.trials.push_back(trials_[i]->finish());
  return result;
}

}  // namespace

std::vector<NamedFile> files_read_by(const ReplayOptions& options) {
  return {{"TRACE", options.trace}, {"--model", options.model}, {"--ops", options.ops}};
}

ReplayResult replay(const ReplayOptions& options, Detail detail) {
  return Replay(options, source_of(options), detail).result();
}

int exit_status(const ReplayResult& result) {
  int64_t judged = 0;
  for (const TrialResult& trial : result.trials) {
    if (trial.wrong > 0) return 1;
    judged += trial.judged;
  }
  const bool all = std::ranges::all_of(result.trials,
                                       [](const TrialResult& t) { return t.judged == t.expected; });
  return judged > 0 && all ? 0 : 2;
}

}  // namespace lockstep
