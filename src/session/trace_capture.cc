// A trace without a judge. On a device digests are made there and copied beside the passes, through
// a ring; how often the engine had to wait for it is said at the end.
#include "src/session/trace_capture.h"

#include <fmt/format.h>

#include "kernels/base/check.h"

namespace lockstep {
namespace {

// Enough to draw the same token again; nothing where the largest logit is taken.
std::optional<DrawInfo> draw_of(const Sequence& s) {
  const Sampling& sampling = s.request.sampling;
  if (sampling.argmax()) return {};
  return DrawInfo{.repetition_penalty = sampling.repetition_penalty,
                  .temperature = sampling.temperature,
                  .top_k = sampling.top_k,
                  .top_p = sampling.top_p,
                  .min_p = sampling.min_p,
                  .seed = sampling.seed,
                  .sample = static_cast<uint32_t>(s.sample)};
}

RequestInfo info_of(const Sequence& s) {
  const std::ptrdiff_t prompt = s.request.prompt.size();
  return {.id = s.id,
          .name = s.request.name,
          .prompt = s.request.prompt,
          .forced = s.request.forced,
          .tokens = {s.tokens.begin() + prompt, s.tokens.end()},
          .argmax = s.argmax,
          .sampled = !s.request.sampling.argmax(),
          .draw = draw_of(s),
          .max_new = s.request.steps(),
          .stopped = s.ending == Ending::eos || s.ending == Ending::stop};
}

}  // namespace

std::vector<RequestInfo> infos_of(const Engine& engine) {
  std::vector<RequestInfo> infos;
  for (int32_t id = 0; id < engine.requests(); ++id) infos.push_back(info_of(engine.sequence(id)));
  return infos;
}

Manifest manifest_of(const Engine& engine, TraceLevel level, const Selection& selection,
                     const std::map<std::string, std::string>& provenance) {
  Manifest manifest{.provenance = provenance,
                    .graph = engine.model().graph(),
                    .dtype = engine.model().dtype(),
                    .level = level,
                    .selection = selection.text(),
                    .requests = infos_of(engine)};
  // Every op of this engine rounds once, at the store.
  for (const Place& place : manifest.graph.places())
    manifest.contracts[std::string(place.point->name)] = RoundingContract::fused;
  return manifest;
}

TraceCapture::TraceCapture(const ObserveOptions& options, const Engine& engine,
                           const std::map<std::string, std::string>& provenance) {
  const TraceLevel level = trace_level_from(options.keep);
  check(level == TraceLevel::digest || level == TraceLevel::full,
        "--keep digest or full is wanted where nothing is judged, found {}: use lockstep run, or "
        "one of both",
        options.keep);
  const Selection selection = options.selection();
  manifest_ = manifest_of(engine, level, selection, provenance);
  writer_ = create_trace(options.trace, manifest_);
  recorder_.emplace(selection, level == TraceLevel::full,
                    [this](const Pass& pass) { writer_->write(pass); });
}

// How often the engine waited for the trace is a fact of the trace: its times are not those of a
// run without one.
void TraceCapture::finish(const Engine& engine, Probe& probe) {
  check(probe.failure().empty(), "{}", probe.failure());
  const DigestRing* ring = probe.digests();
  // On the CPU nothing is on its way.
  if (const DigestRing::Waits waits = ring ? ring->waits() : DigestRing::Waits{};
      waits.passes > 0) {
    const std::string said =
        fmt::format("{} of {} passes, {:.3f} s", waits.waited, waits.passes, waits.seconds);
    writer_->note("trace_waits", said);
    fmt::print(stderr, "trace: the engine waited for it in {}\n", said);
  }
  writer_->finish(infos_of(engine));
}

}  // namespace lockstep
