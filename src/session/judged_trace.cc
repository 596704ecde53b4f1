#include "src/session/judged_trace.h"

#include "kernels/base/check.h"
#include "src/audit/table_audit.h"
#include "src/report/output.h"
#include "src/session/reference_library.h"
#include "src/weights/tokenizer.h"
#include "traces/trace.h"

namespace lockstep {

Result judge_trace(const std::string& path, const Checkpoint& checkpoint,
                   const JudgeOptions& options, Detail detail) {
  const auto trace = open_trace(path);
  const Manifest& manifest = trace->manifest();
  const auto made_with = manifest.provenance.find("model_xxh3");
  check(made_with == manifest.provenance.end() || made_with->second == checkpoint.fingerprint(),
        "{} was made with another model ({}, fingerprint {}) than {} (fingerprint {}): give the "
        "--model it was made with",
        path, manifest.provenance.contains("model") ? manifest.provenance.at("model") : "unnamed",
        made_with->second, checkpoint.dir(), checkpoint.fingerprint());

  options.selection.check_layers(manifest.graph.layers());

  TableAudit tables(manifest);
  const ReferenceOptions reference{.dtype = manifest.dtype};
  const auto oracle = open_reference().oracle(checkpoint, reference);
  const auto exact = open_reference().model(checkpoint, reference, DType::f64);
  const auto rounded = open_reference().model(checkpoint, reference, manifest.dtype);
  Judge judge(manifest, *oracle, exact.get(), rounded.get(), options);
  Progress progress(detail);
  bool found = false;
  int judged = 0;
  while (judged < trace->passes() && !(options.fail_fast && found)) {
    const Pass pass = trace->read(judged++, /*data=*/true);
    found |= !judge.judge(pass).empty();
    tables.add(pass.info);
    progress.show(fmt::format("{} of {} passes judged", judged, trace->passes()));
  }
  Result result = judge.finish(manifest.requests, trace->complete());
  tables.put_into(result);
  if (judged < trace->passes())
    result.notes.push_back(fmt::format(kStoppedEarly, judged, trace->passes(), "passes"));
  result.notes.insert(result.notes.end(), trace->problems().begin(), trace->problems().end());
  return result;
}

}  // namespace lockstep
