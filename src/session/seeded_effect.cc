// Whether a seeded bug acted is asked of the bits: the same engine serves the same requests with
// the bug and without it, and every tensor of every pass is hashed, whatever was judged. A bug of
// pages that are never shared, or of an op that is never called, leaves all of them as they are.
//
//     the run's verdict    a difference of bits    what is said
//     clean                none                    the bug did not act: inconclusive
//     clean                at a place that the     the bug was not looked for: inconclusive
//                          selection leaves out
//     clean                at another place        missed, as rounding may do as much
//     diverged, of one     not asked               the bug is what was found
//     diverged, of more    none                    which of them did not act, in a note
//
// Bits are compared and no numbers: a bug that acts within rounding acts. What a bug does to page
// tables alone, so that the same numbers are read from elsewhere, changes none. A bug in a kernel
// of its own is held to that kernel got right, as the engine's adds up in another order.
#include "src/session/seeded_effect.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "kernels/base/check.h"
#include "probes/digest.h"
#include "probes/digest_recorder.h"
#include "src/judge/ledger.h"

namespace lockstep {
namespace {

// A tensor that a run showed, by its place and its bits.
struct Shown {
  Place place;
  int32_t pass = 0;
  uint64_t hash = 0;
  uint64_t judged = 0;  // of the rows alone that the selection has
  friend bool operator==(const Shown&, const Shown&) = default;
};

// Where a fault changes bits.
struct Change {
  Place first;            // place
  bool is_judged = true;  // in any row of that point that the selection has
};

uint64_t hash_of_all(const std::vector<uint64_t>& hashes) {
  return hash_of(hashes.data(), hashes.size() * sizeof(uint64_t));
}

// The hash of the rows that are judged.
uint64_t judged_hash_of(const RecordedTensor& tensor, const Selection& selection) {
  std::vector<uint64_t> hashes;
  for (size_t i = 0; i < std::min(tensor.rows.size(), tensor.row_hashes.size()); ++i)
    if (selection.has(tensor.rows[i])) hashes.push_back(tensor.row_hashes[i]);
  return hash_of_all(hashes);
}

// All that the engine shows with these faults, in the order in which it is computed. graph: whether
// decode passes may be replayed; faults that want numbers in host memory rule it out.
std::vector<Shown> shown_with(const JudgedRun& run, std::vector<FaultRequest> faults, bool& graph) {
  JudgedRun seeded_run = run;
  seeded_run.faults = std::move(faults);
  seeded_run.watch = nullptr;
  EngineOptions options = run.engine;
  const Seeded seeded = seeded_of(seeded_run, options);
  options.graph = graph = graph && options.graph && seeded.clean;
  const std::unique_ptr<Engine> engine = engine_of(seeded_run, seeded, options);
  for (const Request& request : run.requests) engine->submit(request);
  std::vector<Shown> all;
  DigestRecorder recorder({}, /*tensors=*/false, [&](const Pass& pass) {
    for (const RecordedTensor& tensor : pass.tensors) {
      std::vector<uint64_t> hashes = tensor.row_hashes;
      hashes.push_back(tensor.digest.hash);
      all.push_back({{tensor.point, tensor.layer},
                     pass.info.pass,
                     hash_of_all(hashes),
                     judged_hash_of(tensor, run.judge.selection)});
    }
  });
  Probe probe(&recorder);
  while (engine->step(probe)) check(probe.failure().empty(), "{}", probe.failure());
  probe.flush();
  return all;
}

// All that the engine shows without a fault, once it was asked for: without graphs, and with them.
using Unseeded = std::array<std::optional<std::vector<Shown>>, 2>;

// Says what the fault changes; nothing: no bit.
std::optional<Change> change_by(const JudgedRun& run, const FaultRequest& fault,
                                Unseeded& unseeded) {
  bool graph = true;
  const std::vector<Shown> with = shown_with(run, {fault}, graph);
  const bool own_kernel = fault_of(fault).right != nullptr;
  FaultRequest right = fault;
  right.right = true;
  std::optional<std::vector<Shown>> of_its_own;
  std::optional<std::vector<Shown>>& without = own_kernel ? of_its_own : unseeded[graph ? 1 : 0];
  if (!without)
    without = shown_with(run, own_kernel ? std::vector{right} : std::vector<FaultRequest>(), graph);
  const auto [other, mine] = std::ranges::mismatch(with, *without);
  if (other == with.end() && mine == without->end()) return {};
  Change change{other != with.end() ? other->place : mine->place,
                run.judge.selection.has_every_row() || with.size() != without->size()};
  for (size_t i = 0; i < std::min(with.size(), without->size()); ++i)
    if (*with[i].place.point == *change.first.point)
      change.is_judged |= with[i].judged != (*without)[i].judged;
  return change;
}

// Whether the selection has no place or row of the first one's point that the fault acts on.
bool is_left_out(const JudgedRun& run, const FaultRequest& fault, const Change& change) {
  const Place& first = change.first;
  if (!change.is_judged) return true;
  const auto is_judged = [&](int layer) { return run.judge.selection.has(*first.point, layer); };
  if (first.layer < 0 || fault.layer >= 0) return !is_judged(first.layer);
  for (int layer = first.layer; layer < run.checkpoint.config().layers; ++layer)
    if (is_judged(layer)) return false;
  return true;
}

// Why nothing shows a bug that changed the bits of that place, and all that was made of them.
std::string why_unseen(const JudgedRun& run, const Result& result, const FaultRequest& fault,
                       const Change& change) {
  const std::string alone = run.judge.selection.text();
  if (is_left_out(run, fault, change)) return alone + " leaves that out";
  std::string text = "that is within what rounding may do";
  if (!alone.empty()) text += fmt::format(", or outside of {}", alone);
  if (!run.judge.rows.all()) text += ", or in a row that --judge-rows did not draw";
  if (result.judged < result.expected) text += ", or in a node that could not be judged";
  return text;
}

}  // namespace

std::string text_of(const FaultRequest& fault) {
  std::string text = fault.name;
  auto add = [&, before = '@'](const char* name, const auto& value) mutable {
    text += fmt::format("{}{}={}", std::exchange(before, ','), name, value);
  };
  if (fault.layer >= 0) add("layer", fault.layer);
  if (fault.size != 0) add("size", fault.size);
  if (fault.rank >= 0) add("rank", fault.rank);
  return text;
}

void say_of_faults(const JudgedRun& run, Result& result) {
  const bool shown = result.verdict == RunVerdict::diverged;
  if (shown && run.faults.size() == 1) return;
  std::string untried;  // the first that this run could not show
  Unseeded unseeded;
  for (const FaultRequest& fault : run.faults) {
    if (run.progress) run.progress(fmt::format("asking what {} changes", text_of(fault)));
    const std::optional<Change> change = change_by(run, fault, unseeded);
    const std::string needs(fault_of(fault).needs);
    if (change && !shown) {
      const std::string unseen =
          fmt::format("nothing shows the seeded {}, which changes {} first: {}", text_of(fault),
                      text_of(change->first), why_unseen(run, result, fault, *change));
      if (untried.empty() && is_left_out(run, fault, *change)) untried = unseen;
      result.notes.push_back(unseen);
    }
    if (change) continue;
    const std::string says = fmt::format(
        "the seeded {} did not act: without it every number of the run has the same bits; it needs "
        "{}",
        text_of(fault), needs);
    if (untried.empty()) untried = says;
    result.notes.push_back(says);
  }
  if (untried.empty() || result.verdict != RunVerdict::clean) return;
  result.verdict = RunVerdict::inconclusive;
  untried.front() = untried.front() == 't' ? 'T' : 'N';
  result.story = fmt::format("{}. {}", untried, result.story);
}

}  // namespace lockstep
