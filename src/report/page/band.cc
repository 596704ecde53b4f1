// The verdict at the top of a page.
#include <fmt/format.h>

#include <algorithm>

#include "src/judge/ledger.h"
#include "src/judge/story.h"
#include "src/report/page/sections.h"
#include "src/report/result_entries.h"

namespace lockstep {
namespace {

// One number with its name, and what is to be known beside it.
void write_stat(Html& html, std::string_view name, std::string_view number,
                const std::string& beside = "") {
  const auto group = html.open("div");
  html.leaf("dt", name);
  const auto value = html.open("dd");
  html.text(number);
  if (!beside.empty()) html.leaf("small", beside);
}

std::string value_in(const Result& result, const std::string& name) {
  const auto found = result.provenance.find(name);
  return found == result.provenance.end() ? "" : found->second;
}

std::string plural(int64_t count, const char* one) {
  return fmt::format("{} {}{}", count, one, count == 1 ? "" : "s");
}

// "lockstep 0.2.0 · bard-qwen3 · bf16 on cpu · 3 requests, 38 tokens in, 56 out". What nobody
// recorded is left out, piece by piece.
std::string subject_of(const Result& result) {
  std::string text = value_in(result, "engine");
  if (text.empty()) text = "an engine";
  if (const std::string version = value_in(result, "engine_version"); !version.empty())
    text += " " + version;
  std::string model = value_in(result, "model");
  // A path's last name, whether it ends with a slash or not.
  while (model.ends_with('/')) model.pop_back();
  if (!model.empty()) text += " · " + model.substr(model.find_last_of('/') + 1);
  if (const std::string dtype = value_in(result, "compute_dtype"); !dtype.empty())
    text += " · " + dtype;
  if (const std::string device = value_in(result, "device"); !device.empty())
    text += " on " + device;
  int64_t in = 0, out = 0;
  for (const RequestResult& r : result.requests)
    in += std::ssize(r.prompt), out += std::ssize(r.tokens);
  if (!result.requests.empty())
    text += fmt::format(" · {}, {} in, {} out", plural(std::ssize(result.requests), "request"),
                        plural(in, "token"), out);
  return text;
}

// The figures that a reader asks for first; what was not measured is left out.
void write_stats(Html& html, const Result& result) {
  const auto stats = html.open("dl", {{"class", "stats"}});
  write_stat(html, "nodes judged", std::to_string(result.judged),
             fmt::format("of {} expected", result.expected));
  const FoundOps found = count_found_ops(result);
  const std::string of_all = fmt::format("of {}", result.places.size());
  write_stat(html, "ops wrong", std::to_string(found.wrong), of_all);
  if (found.missing > 0) write_stat(html, "ops missing", std::to_string(found.missing), of_all);
  if (result.first && result.first->statistic)
    write_stat(html, "worst of the first", short_number(result.first->budgets) + " ×",
               fmt::format("its limit ({})", name_of(*result.first->statistic)));
  if (!result.logits) return;
  const LogitsSummary& l = *result.logits;
  write_stat(html, "tokens that differ", std::to_string(l.compared - l.argmax_equal),
             fmt::format("of {}, {} explained by rounding", l.compared, l.explained_flips));
  write_stat(html, "mean KL", short_number(l.kl_mean),
             fmt::format("nats; the reference in the same dtype {}", short_number(l.kl_reference)));
  if (l.kl.max)
    write_stat(
        html, "largest KL", short_number(*l.kl.max),
        fmt::format("median {}", short_number(l.kl.median.value_or(0), l.kl.median.has_value())));
}

constexpr std::string_view glyph_of(RunVerdict verdict) {
  return verdict == RunVerdict::clean ? "✓" : verdict == RunVerdict::diverged ? "✕" : "?";
}

void write_title(Html& html, std::string_view glyph, std::string_view title) {
  const auto heading = html.open("h1");
  html.leaf("span", glyph, {{"class", "mark"}, {"aria-hidden", "true"}});
  html.text(fmt::format(" {}", title));
}

}  // namespace

void write_band(Html& html, const Result& result, const PageTop& top) {
  const bool unclear = top.tone == RunVerdict::inconclusive;
  // A verdict and a class of style share a name, but for inconclusive, which is a place's colour
  // too.
  const auto band = html.open(
      "header",
      {{"class", fmt::format("band {}", unclear ? "inconclusive-run" : name_of(top.tone))}});
  const auto inside = html.open("div");
  html.leaf("p", subject_of(result), {{"class", "eyebrow"}});
  write_title(html, glyph_of(top.tone), top.title);
  html.leaf("p", top.story, {{"class", "story"}, {"id", "story"}});
  write_stats(html, result);
}

// Green for identical and noise, red for different, grey where it cannot be told: the colours of a
// judged run.
void write_band(Html& html, const DiffResult& result) {
  const bool alike = result.verdict == DiffResult::Verdict::identical ||
                     result.verdict == DiffResult::Verdict::noise;
  const bool different = result.verdict == DiffResult::Verdict::different;
  const auto band =
      html.open("header", {{"class", fmt::format("band {}", alike       ? "clean"
                                                            : different ? "different"
                                                                        : "inconclusive-run")}});
  const auto inside = html.open("div");
  html.leaf("p", "two traces against each other", {{"class", "eyebrow"}});
  std::string title = name_of(result.verdict);
  // The names of verdicts are lower case.
  title.front() = static_cast<char>(title.front() - 'a' + 'A');
  if (result.first_kind) title += " from " + text_of(result.first_kind->id.place) + " on";
  write_title(html, alike ? "✓" : different ? "✕" : "?", title);
  html.leaf("p", result.story, {{"class", "story"}, {"id", "story"}});
  const auto stats = html.open("dl", {{"class", "stats"}});
  write_stat(html, "rows compared", std::to_string(result.rows));
  write_stat(html, "of equal bits", std::to_string(result.equal));
  write_stat(html, "of other bits, no numbers", std::to_string(result.unmeasured));
  write_stat(html, "only in the first", std::to_string(result.only_a));
  write_stat(html, "only in the second", std::to_string(result.only_b));
}

}  // namespace lockstep
