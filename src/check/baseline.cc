// A baseline holds only what is the same for two runs of one build: no times, numbers of four
// digits, hashes that do not depend on how rows were batched. A hash keeps 32 bits for a place and
// 16 for a position: enough to see that bits changed, and few enough to review.
#include "src/check/baseline.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <string_view>

#include "probes/digest.h"

namespace lockstep {
namespace {

// Facts that differ between two runs of the same build, or stand elsewhere in the baseline.
constexpr auto kOwnPlace =
    std::to_array<std::string_view>({"created_utc", "command_line", "model", "model_xxh3",
                                     "weights_xxh3", "prompt_xxh3", "limits"});

// Four digits: a review reads them, and they do not hang on the last bit of a sum.
double short_of(double x) { return std::stod(fmt::format("{:.4g}", x)); }

std::string fact_of(const Result& result, const std::string& name) {
  const auto found = result.provenance.find(name);
  return found == result.provenance.end() ? "" : found->second;
}

// The last part of a path, with a slash behind it or without.
std::string name_of_folder(const std::filesystem::path& path) {
  return path.has_filename() ? path.filename() : path.parent_path().filename();
}

// Adds one layer's place to the row of its point. Cache reads have no hash: RunBits leaves them
// out.
void add_place(const PlaceSummary& place, const RunBits& bits, Baseline& baseline) {
  const auto same = [&](const Baseline::PointRow& row) { return *row.point == *place.place.point; };
  auto row = std::ranges::find_if(baseline.points, same);
  if (row == baseline.points.end())
    row = baseline.points.insert(row, {.point = place.place.point, .layers = 0});
  ++row->layers;
  row->nodes += place.judged;
  row->excluded += place.excluded;
  if (!place.place.point->is_cache())
    row->bits.push_back(static_cast<uint32_t>(bits.of(place.place)));
}

// How near each kind of op came, for kinds that the model has; exact kinds have zeros.
std::vector<Baseline::OpClass> classes_of(const Result& result, const Limits& limits, DType dtype) {
  std::vector<Baseline::OpClass> classes;
  for (const OpKindRow& row : kOpKinds) {
    const auto of_kind = [&](const PlaceSummary& p) { return p.place.point->op == row.kind; };
    if (std::ranges::none_of(result.places, of_kind)) continue;
    Baseline::OpClass& added = classes.emplace_back(
        Baseline::OpClass{.op = row.kind, .limits = limits.of(row.kind, dtype)});
    const auto found = result.reached.find(row.kind);
    if (found == result.reached.end()) continue;
    const Reached& r = found->second;
    added.reached = {short_of(r.inner), short_of(r.rms), short_of(r.share), short_of(r.gain)};
  }
  return classes;
}

// One request's text with a hash a position that was fed: the prompt and all chosen tokens but the
// last.
Baseline::Text text_of(const RequestResult& request, const RunBits& bits) {
  Baseline::Text text{
      .name = request.name, .prompt = std::ssize(request.prompt), .tokens = request.tokens};
  if (request.argmax != request.tokens) text.argmax = request.argmax;
  const int64_t positions = text.prompt + std::ssize(text.tokens) - 1;
  for (int32_t p = 0; p < positions; ++p)
    text.bits.push_back(static_cast<uint16_t>(bits.of(Row{request.id, p})));
  return text;
}

}  // namespace

Limits Baseline::limits() const {
  Limits limits;
  for (const OpClass& row : classes)
    if (!(row.limits == OpLimits{})) limits.set(row.op, dtype, row.limits);
  return limits;
}

std::string asks_of(const Request& request) {
  const Sampling& s = request.sampling;
  std::string all = fmt::format("{} {} {} {} {} {} {} {} {} {}", request.max_new, request.arrival,
                                request.samples, s.temperature, s.top_k, s.top_p, s.min_p,
                                s.repetition_penalty, s.seed, request.stop.size());
  for (const std::string& stop : request.stop) all += fmt::format(" {}:{}", stop.size(), stop);
  for (const auto* tokens : {&request.prompt, &request.forced, &request.eos}) {
    all += fmt::format(" {}:", tokens->size());
    for (const int32_t token : *tokens) all += fmt::format(" {}", token);
  }
  return fmt::format("{:016x}", hash_of(all.data(), all.size()));
}

Baseline baseline_of(const Result& result, const std::vector<Request>& requests,
                     const Limits& limits, const RunBits& bits) {
  const DType dtype = dtype_from(fact_of(result, "compute_dtype"));
  Baseline baseline{.model = name_of_folder(fact_of(result, "model")),
                    .model_xxh3 = fact_of(result, "model_xxh3"),
                    .weights_xxh3 = fact_of(result, "weights_xxh3"),
                    .dtype = dtype,
                    .untested = result.blind,
                    .classes = classes_of(result, limits, dtype)};
  for (const auto& [name, value] : result.provenance)
    if (std::ranges::count(kOwnPlace, name) == 0) baseline.provenance[name] = value;
  for (const PlaceSummary& place : result.places) add_place(place, bits, baseline);
  for (const RequestResult& request : result.requests)
    baseline.texts.push_back(text_of(request, bits));
  for (size_t i = 0; i < requests.size(); ++i) baseline.texts[i].asks = asks_of(requests[i]);
  return baseline;
}

}  // namespace lockstep
