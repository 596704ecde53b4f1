#include "src/session/judged_trace.h"

#include <fmt/format.h>

#include <filesystem>

#include "kernels/base/check.h"
#include "src/audit/table_audit.h"
#include "src/report/output.h"
#include "src/session/reference_library.h"
#include "src/session/result_texts.h"
#include "src/session/run_progress.h"
#include "src/weights/tokenizer.h"
#include "traces/kept_verdict.h"
#include "traces/trace.h"

namespace lockstep {

namespace {

int64_t tokens_of(TraceReader& trace) {
  int64_t tokens = 0;
  for (int i = 0; i < trace.passes(); ++i)
    tokens += std::ssize(trace.read(i, /*data=*/false).info.rows);
  return tokens;
}

// A trace that cannot be written to was judged all the same.
void keep(const std::string& path, const Result& result) {
  try {
    keep_verdict(path, name_of(result.verdict), result.story);
  } catch (const Error& error) {
    fmt::print(stderr, "warning: the verdict is not kept in the trace: {}\n", error.what());
  }
}

}  // namespace

Result judge_trace(const std::string& path, const Checkpoint& checkpoint,
                   const JudgeOptions& options) {
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
  Progress line;
  RunProgress progress([&](const std::string& text) { line.show(text); }, manifest.graph.layers(),
                       tokens_of(*trace));
  JudgeOptions judging = options;
  judging.progress = [&](std::string_view doing, int layer) { progress.at(doing, layer); };
  Judge judge(manifest, *oracle, exact.get(), rounded.get(), judging);
  for (int i = 0; i < trace->passes(); ++i) {
    const Pass pass = trace->read(i, /*data=*/true);
    progress.begin_pass(pass.info.pass, std::ssize(pass.info.rows));
    judge.judge(pass);
    tables.add(pass.info);
    progress.end_pass();
  }
  Result result = judge.finish(manifest.requests, trace->complete());
  tables.put_into(result);
  result.notes.insert(result.notes.end(), trace->problems().begin(), trace->problems().end());
  if (std::filesystem::exists(std::filesystem::path(checkpoint.dir()) / "tokenizer.json"))
    add_texts(result, Tokenizer::open(checkpoint.dir()));
  // A verdict on a part of the trace is none on the trace, and one that could not be given takes
  // the place of none: a run that kept digests alone may have been judged as it ran.
  if (options.selection.is_everything() && result.verdict != RunVerdict::inconclusive)
    keep(path, result);
  return result;
}

}  // namespace lockstep
