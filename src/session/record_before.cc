// Before each chosen op the tensors that it is about to read are written as a trace of one pass,
// replacing the last: whatever the op then does to the process, its inputs are on the disk.
#include "src/session/record_before.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "kernels/base/check.h"
#include "traces/writers.h"

namespace lockstep {
namespace {

std::string file_beside(const std::string& trace) {
  return std::filesystem::path(trace).replace_extension(".before.h5").string();
}

}  // namespace

RecordBefore::RecordBefore(const std::string& points, const std::string& trace, Device device)
    : chosen_(points, "", "", ""), path_(file_beside(trace)), device_(device) {
  check(!std::filesystem::exists(path_),
        "{}: the inputs of the op that is about to run would be kept there, and there is "
        "something: move it, or choose another --trace",
        path_);
}

// The file is written before the op is called: an op that kills the process leaves its inputs
// behind.
void RecordBefore::wrap(Ops& ops) {
  check(
      ops.fused.of_user.empty(),
      "--record-before keeps the inputs of single ops, found a fused one ({}) of --ops: leave one "
      "out",
      fmt::join(ops.fused.of_user, ", "));
  for_each_op([&](const auto& row) {
    lockstep::wrap(ops.*row.entry,
                   [this](const auto& op, const OpContext& context, const auto&... arguments) {
                     before(context);
                     op(context, arguments...);
                   });
  });
}

void RecordBefore::expect(const Manifest& manifest) {
  manifest_ = manifest;
  manifest_.level = TraceLevel::full;
  for (const Place& place : manifest.graph.places())
    if (chosen_.has(*place.point, place.layer))
      std::ranges::copy(manifest.graph.inputs_of(place), std::back_inserter(inputs_));
}

bool RecordBefore::wants(const Point& point, int layer) const {
  return std::ranges::count(inputs_, Place{&point, layer}) > 0;
}

void RecordBefore::begin(const PassInfo& pass) {
  pass_ = {.info = pass};
  pass_.info.inherited_known = false;  // the passes before it are not in the file
  last_ = {};
}

void RecordBefore::record(const Record& record) {
  Recorder one({}, true, [&](Pass seen) {
    std::ranges::move(seen.tensors, std::back_inserter(pass_.tensors));
  });
  one.begin(pass_.info);
  one.record(record);
  one.end();
}

void RecordBefore::before(const OpContext& context) {
  const Point* point = find_point(context.point);
  if (point == nullptr || !chosen_.has(*point, context.layer)) return;
  const Place place{point, context.layer};
  if (place == std::exchange(last_, place)) return;  // the second kernel of one op
  wait_for(device_);  // the op before may hang or fail yet: then its inputs must still be there
  Pass pass{.info = pass_.info};
  const std::vector<Place> reads = manifest_.graph.inputs_of(place);
  for (const RecordedTensor& tensor : pass_.tensors)
    if (std::ranges::count(reads, Place{tensor.point, tensor.layer}) > 0)
      pass.tensors.push_back(tensor);
  manifest_.provenance["before"] =
      fmt::format("{}{}, pass {}", context.layer < 0 ? "" : fmt::format("layer {} ", context.layer),
                  context.point, pass.info.pass);
  replace_single_file(path_, manifest_, pass);
}

void RecordBefore::finish() { std::filesystem::remove(path_); }

std::unique_ptr<RecordBefore> record_before_of(const ObserveOptions& options,
                                               const ModelOptions& model, EngineOptions& engine) {
  if (options.record_before.empty()) return nullptr;
  check(model.graph != "on",
        "--graph on was found with --record-before, which looks on before each op: leave one out");
  check(!engine.make_executor,
        "--record-before looks on before each op, found an --executor that calls none of them "
        "whole: leave one out");
  engine.graph = false;
  return std::make_unique<RecordBefore>(options.record_before, options.trace, engine.device);
}

}  // namespace lockstep
