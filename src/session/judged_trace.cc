#include "src/session/judged_trace.h"

#include <set>

#include "kernels/base/check.h"
#include "src/audit/table_audit.h"
#include "src/report/output.h"
#include "src/session/reference_library.h"
#include "src/weights/tokenizer.h"
#include "traces/trace.h"

namespace lockstep {

namespace {

// Which places the trace holds a tensor or a digest of. Where it was meant to hold all, a place of
// a point that other layers have is missed, and no part of a region.
std::function<bool(const Place&)> recorded_in(TraceReader& trace) {
  std::set<std::pair<int, int>> places;
  std::set<int> points;
  for (int i = 0; i < trace.passes(); ++i)
    for (const RecordedTensor& tensor : trace.read(i, /*data=*/false).tensors) {
      places.emplace(order_of(*tensor.point), tensor.layer);
      points.insert(order_of(*tensor.point));
    }
  const bool selected = !trace.manifest().selection.empty();
  return [places = std::move(places), points = std::move(points), selected](const Place& place) {
    const int order = order_of(*place.point);
    return selected ? places.contains({order, place.layer}) : points.contains(order);
  };
}

}  // namespace

Result judge_trace(const std::string& path, const Checkpoint& checkpoint, JudgeOptions options) {
  const auto trace = open_trace(path);
  const Manifest& manifest = trace->manifest();
  const auto made_with = manifest.provenance.find("model_xxh3");
  check(made_with == manifest.provenance.end() || made_with->second == checkpoint.fingerprint(),
        "{} was made with another model ({}, fingerprint {}) than {} (fingerprint {}): give the "
        "--model it was made with",
        path, manifest.provenance.contains("model") ? manifest.provenance.at("model") : "unnamed",
        made_with->second, checkpoint.dir(), checkpoint.fingerprint());

  options.selection.check_layers(manifest.graph.layers());

  options.recorded = recorded_in(*trace);
  TableAudit tables(manifest);
  const ReferenceOptions reference{.dtype = manifest.dtype};
  const auto oracle = open_reference().oracle(checkpoint, reference);
  const auto exact = open_reference().model(checkpoint, reference, DType::f64);
  const auto rounded = open_reference().model(checkpoint, reference, manifest.dtype);
  Judge judge(manifest, *oracle, exact.get(), rounded.get(), options);
  Progress progress;
  for (int i = 0; i < trace->passes(); ++i) {
    const Pass pass = trace->read(i, /*data=*/true);
    judge.judge(pass);
    tables.add(pass.info);
    progress.show(fmt::format("{} of {} passes judged", i + 1, trace->passes()));
  }
  Result result = judge.finish(manifest.requests, trace->complete());
  tables.put_into(result);
  result.notes.insert(result.notes.end(), trace->problems().begin(), trace->problems().end());
  return result;
}

}  // namespace lockstep
