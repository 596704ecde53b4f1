// A judgement as people read it, first line to last:
//
//   lockstep 0.1.0  bard-qwen3  bf16 on cpu   what ran, from the provenance
//   map               layers x points         only where something is wrong or was not judged
//   1. layer 2 ..     the wrong ops           result_entries.cc
//   nodes, nearest, tokens, cache, ..         facts, each a name and a sentence
//   next              commands                that get further from here
//   diverged: ..      verdict and scope       the last line, which scripts read
//
// A right run is told by how near it came to its limits and by what it could not have shown:
// "clean" alone would claim more than was looked at.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "kernels/base/utf8.h"
#include "src/judge/ledger.h"
#include "src/judge/story.h"
#include "src/report/error_budget_blocks.h"
#include "src/report/report.h"
#include "src/report/result_entries.h"
#include "src/report/result_map.h"
#include "src/report/shell_word.h"
#include "src/report/untested.h"
#include "src/screen/wrap.h"
#include "traces/run_facts.h"

namespace lockstep {
namespace {

constexpr int kFlips = 3;        // tokens that differ, of those that are spelt out
constexpr size_t kUntested = 6;  // classes of bugs that are named
constexpr const char* kPictures = "the same with pictures";
constexpr int kKeys = 9;  // columns of the names below the map

using Entries = std::vector<std::pair<std::string, std::string>>;

int64_t count_of(const Result& result, Verdict verdict) { return result.counts[verdict]; }

// Texts of the provenance come from traces of others: what a terminal would take for commands is
// taken out.
std::string shown_fact(const Result& result, const std::string& name) {
  const auto at = result.provenance.find(name);
  return at == result.provenance.end() ? "" : screen_text(at->second);
}

// How much was served: requests, tokens in, tokens out.
std::string requests_text(const Result& result) {
  if (result.requests.empty()) return "";
  int64_t in = 0, out = 0;
  for (const RequestResult& r : result.requests)
    in += std::ssize(r.prompt), out += std::ssize(r.tokens);
  return fmt::format("{} request{}, {} token{} in, {} out", result.requests.size(),
                     result.requests.size() == 1 ? "" : "s", in, in == 1 ? "" : "s", out);
}

std::string joined(const char* between, const std::string& a, const std::string& b) {
  return b.empty() ? a : fmt::format("{}{}{}", a, between, b);
}

// "lockstep 0.1.0  bard-qwen3  bf16 on cpu, built-in matmul  3 requests, ..."
std::string ran_text(const Result& result) {
  const auto fact = [&](const char* name) { return shown_fact(result, name); };
  std::vector<std::string> parts;
  const auto say = [&parts](const std::string& part) {
    if (!part.empty()) parts.push_back(part);
  };
  say(joined(" ", fact("engine"), fact("engine_version")));
  say(std::filesystem::path(fact("model")).filename().string());
  const std::string matmul = fact(kMatmulFact);
  say(joined(", ", joined(" on ", fact("compute_dtype"), fact("device")),
             matmul.substr(0, matmul.find(" (")) + (matmul.empty() ? "" : " matmul")));
  if (const std::string user = fact("user_ops"); !user.empty()) say("ops: " + user);
  say(requests_text(result));
  return fmt::format("{}", fmt::join(parts, "  "));
}

// The nodes by verdict. Kinds of which there are none are not named, but for the wrong ones: their
// 0 is what a reader looks for.
std::string counts_text(const Result& result) {
  std::string text =
      fmt::format("{} of {}: {} exact bits, {} within rounding", result.judged, result.expected,
                  count_of(result, Verdict::bitwise), count_of(result, Verdict::rounding));
  const auto say = [&](int64_t count, const char* what) {
    if (count > 0) text += fmt::format(", {} {}", count, what);
  };
  say(count_of(result, Verdict::propagated), "wrong only by what they read");
  say(count_of(result, Verdict::confounded), "wrong by what they read or by themselves");
  text += fmt::format(", {} wrong", count_of(result, Verdict::introduced));
  say(count_of(result, Verdict::nonfinite), "not finite");
  say(count_of(result, Verdict::structural), "missing or of another shape");
  say(count_of(result, Verdict::inconclusive), "not judged");
  if (result.excluded > 0)
    text += fmt::format("; {} elements that are not finite, or need not be, are in no statistic",
                        result.excluded);
  return text;
}

// Findings at places that were not to be judged, and that what was judged shows all the same: a
// choice that is none of the largest logits.
int64_t beside(const Result& result) {
  return std::ranges::count_if(result.findings, [&](const Finding& finding) {
    return std::ranges::none_of(result.places, [&](const PlaceSummary& place) {
      return place.place == finding.node.place && place.expected > 0;
    });
  });
}

// The place that comes nearest to a limit of those that are right.
std::string nearest_text(const Result& result) {
  const PlaceSummary* nearest = nullptr;
  const auto reach = [](const PlaceSummary& p) { return std::max(p.worst_t1, p.worst_t2); };
  for (const PlaceSummary& p : result.places)
    if (p.measured && p.judged > 0 && (!nearest || reach(p) > reach(*nearest))) nearest = &p;
  if (!nearest || !(reach(*nearest) > 0)) return "";
  const bool one = nearest->worst_t1 >= nearest->worst_t2;
  const double shown = std::floor(1000 * reach(*nearest)) / 1000;  // what is below 1 is said so
  const std::string limits = shown_fact(result, "limits");
  return fmt::format(
      "{}, request {}, position {}: {:.3g} of {}; a right engine comes this near, for "
      "a limit is what rounding may do{}",
      text_of(nearest->place), nearest->worst_request, nearest->worst_position, shown,
      one ? "an element's budget (T1)" : "the limit of a node's errors together (T2)",
      limits.empty() || limits == "theory" ? "" : fmt::format(" (limits: {})", limits));
}

std::string divergence_text(const LogitsSummary& l, const Result& result) {
  if (!std::isfinite(l.kl_mean)) return "the logits' divergence is not measured: they hold NaN";
  const std::string dtype = shown_fact(result, "compute_dtype");
  return fmt::format("mean KL {:.3g} (the reference in {}: {:.3g})", l.kl_mean,
                     dtype.empty() ? "the run's dtype" : dtype, l.kl_reference);
}

// Whether the tokens of a text are other ones than the most likely, which are what is compared with
// the fp64 model's: they were drawn, or forced.
bool has_other_texts(const Result& result) {
  return std::ranges::any_of(result.requests, [](const RequestResult& request) {
    return !request.argmax.empty() && request.argmax != request.tokens;
  });
}

int64_t count_of_tokens(const Result& result) {
  int64_t tokens = 0;
  for (const RequestResult& request : result.requests) tokens += std::ssize(request.tokens);
  return tokens;
}

// How the tokens compare with those of the fp64 model, and how even the closest choice was.
std::string tokens_text(const Result& result) {
  const LogitsSummary& l = *result.logits;
  const int64_t flips = l.compared - l.argmax_equal;
  std::string text = fmt::format("{} of {} as the fp64 model chooses", l.argmax_equal, l.compared);
  if (has_other_texts(result))
    text = fmt::format(
        "{} of {} most likely ones as the fp64 model has them, and the texts have others, which "
        "were drawn or forced",
        l.argmax_equal, l.compared);
  if (const int64_t tokens = count_of_tokens(result); l.compared < tokens)
    text += fmt::format(", {} of {} tokens not compared", tokens - l.compared, tokens);
  if (flips > 0 && flips == l.explained_flips)
    text += fmt::format(", {} differ{} as rounding allows", flips, flips == 1 ? "s" : "");
  else if (flips > 0)
    text += fmt::format(", {} differ, {} by more than rounding explains", flips,
                        flips - l.explained_flips);
  return text + fmt::format("; least margin {:.3g} ulp; {}", l.least_margin_ulp,
                            divergence_text(l, result));
}

// A token by its text, or by its number where there is no tokenizer.
std::string token_text(int32_t id, const std::string& text) {
  return text.empty() ? std::to_string(id) : in_quotes(text);
}

// Choices that are not what their own logits choose, and are what the fp64 model chooses.
int64_t right_by_chance(const Result& result) {
  return std::ranges::count_if(result.findings, [&](const Finding& finding) {
    if (!(*finding.node.place.point == point("token")) || finding.index.empty()) return false;
    const auto request =
        std::ranges::find(result.requests, finding.node.request, &RequestResult::id);
    return request != result.requests.end() &&
           std::ranges::count(request->flips, finding.position, &Flip::position) == 0;
  });
}

// The tokens that differ because of the ops that are wrong. Those that may differ without them are
// only counted.
std::string effect_text(const Result& result) {
  const int64_t tokens = count_of_tokens(result);
  const int64_t compared = result.logits ? result.logits->compared : 0;
  if (compared == 0) return "not known: no logits were compared with those of the fp64 model";
  int64_t differ = 0, may = 0, others = 0;
  std::string flips;
  for (const RequestResult& request : result.requests) {
    for (const Flip& flip : request.flips) {
      if (flip.explained) ++may;
      // A flip without an ancestor is not the doing of a wrong op.
      if (!flip.explained && flip.ancestor.empty()) ++others;
      if (flip.explained || flip.ancestor.empty() || ++differ > kFlips) continue;
      flips += fmt::format("{}request {}, position {}, {} for {}", flips.empty() ? ": " : "; ",
                           request.id, flip.position, token_text(flip.engine, flip.engine_text),
                           token_text(flip.reference, flip.reference_text));
    }
  }
  if (differ > kFlips) flips += "; ...";
  // Where logits of a prompt's rows were recorded too, more choices were compared than tokens made.
  const bool other = has_other_texts(result), more = compared > tokens || other;
  std::string all = fmt::format("{} {}", compared, more ? "choices" : "tokens");
  if (compared < tokens) all += fmt::format(" (of {} that were made)", tokens);
  std::string text = differ == 0 ? fmt::format("none of {} differs by it", all)
                                 : fmt::format("{} of {} differ{} by it{}", differ, all,
                                               differ == 1 ? "s" : "", flips);
  if (may > 0) text += fmt::format("; {} differ{} as rounding allows", may, may == 1 ? "s" : "");
  if (others > 0)
    text +=
        fmt::format("; {} differ{} by what no finding explains", others, others == 1 ? "s" : "");
  if (const int64_t chance = right_by_chance(result); chance > 0)
    text += fmt::format("; {} {} another one by it, and the fp64 model's by chance", chance,
                        chance == 1 ? "is" : "are");
  if (other) text += "; the texts have other tokens, which were drawn or forced";
  return joined("\n", text, result.logits ? divergence_text(*result.logits, result) : "");
}

// The classes of bugs that this run had no occasion to show, by name.
std::string untested_text(const Result& result) {
  std::vector<std::string> names;
  for (const std::string& line : result.blind) names.push_back(untested_from(line).name);
  const bool more = names.size() > kUntested;
  if (more) names.resize(kUntested);
  return fmt::format("{}: {}{}   (--explain untested)", result.blind.size(), fmt::join(names, "; "),
                     more ? "; ..." : "");
}

// The points of the scope that `is_meant`, by contract.
std::string contracts_of(const Scope& scope, const auto& is_meant) {
  std::map<std::string, std::vector<std::string>> points;
  // In graph order, where the map has them by name.
  for (const Point& p : kPoints)
    if (const auto at = scope.contracts.find(std::string(p.name)); at != scope.contracts.end())
      if (is_meant(*at)) points[at->second].push_back(at->first);
  std::vector<std::string> parts;
  for (const auto& [contract, names] : points)
    parts.push_back(fmt::format("{}: {}", contract, fmt::join(names, " ")));
  return fmt::format("{}", fmt::join(parts, "; "));
}

// Contracts are a part of the verdict, but for one rounding a point that is declared. "": that.
std::string contracts_text(const Scope& scope) {
  const auto is_found = [&](const auto& entry) {
    return std::ranges::count(scope.found, entry.first) > 0;
  };
  const std::string declared = contracts_of(
      scope, [&](const auto& entry) { return entry.second != "fused" && !is_found(entry); });
  const std::string found = contracts_of(scope, is_found);
  std::vector<std::string> parts;
  if (!scope.asked.empty())
    parts.push_back(fmt::format("{} (asked for, whatever is declared)", scope.asked));
  else if (!declared.empty())
    parts.push_back(fmt::format("{} (declared)", declared));
  if (!found.empty()) parts.push_back(fmt::format("{} (found by trying: none is declared)", found));
  return fmt::format("{}", fmt::join(parts, "; "));
}

// Commands that get further, a line each, with what they are for.
std::string next_text(const Result& result, const NextSteps& steps) {
  if (!result.first) return "";
  const Place& place = result.first->node.place;
  std::string text;
  const auto say = [&](const std::string& command, const char* what) {
    text += fmt::format("{}{}   {}", text.empty() ? "" : "\n", command, what);
  };
  // A finding that was confirmed already needs no proposal to do so.
  const bool alone = steps.serves && !steps.over_ranks;
  // Nor can one be put right within ops that compute several.
  if (alone && result.confirmations.empty() && !result.provenance.contains(kFusedFact))
    say("lockstep run ... --confirm", "proves it by putting the op right");
  // Who shows a pass when all of it is computed gives no op what it was given in another mode.
  if (alone && result.first->verdict == Verdict::nonfinite &&
      !result.provenance.contains(kExecutorFact))
    say("lockstep run ... --modes poison", "whether slots past a context are read");
  // A tensor that is missing cannot be looked at, but the places that are there can.
  if (!steps.trace.empty() && result.first->verdict == Verdict::structural)
    say(fmt::format("lockstep inspect {}", shell_word(steps.trace)), "what the trace has");
  else if (!steps.trace.empty())
    say(fmt::format("lockstep inspect {} --point {}{}", shell_word(steps.trace), place.point->name,
                    place.layer < 0 ? "" : fmt::format(" --layer {}", place.layer)),
        "its numbers");
  else if (steps.serves)
    say("lockstep run ... --trace X.trace", "keeps its tensors, for lockstep inspect");
  if (steps.kept)
    say(fmt::format("lockstep report {} --html X.html", shell_word(steps.trace)), kPictures);
  else if (steps.serves)
    say("lockstep run ... --html X.html", kPictures);
  return text;
}

// The middle of a run that diverged.
void add_wrong(const Result& result, const NextSteps& steps, std::vector<Block>& blocks,
               Entries& facts) {
  blocks.push_back(Heading{});
  std::ranges::move(map_of(result), std::back_inserter(blocks));
  std::ranges::move(wrong_ops_of(result), std::back_inserter(blocks));
  const int64_t more = beside(result);
  facts.emplace_back(
      "nodes", counts_text(result) +
                   (more == 0 ? "" : fmt::format("; {} wrong beside them, which they show", more)));
  // Where rows were drawn no model was there that tokens could differ from.
  if (!result.requests.empty() && result.scope.rows.asked.all())
    facts.emplace_back("effect", effect_text(result));
  if (const std::string next = next_text(result, steps); !next.empty())
    facts.emplace_back("next", next);
}

// The middle of a run without a finding.
void add_right(const Result& result, std::vector<Block>& blocks, Entries& facts) {
  if (result.verdict == RunVerdict::inconclusive && result.expected > 0) {
    blocks.push_back(Heading{});
    std::ranges::move(map_of(result), std::back_inserter(blocks));
    blocks.push_back(Heading{});
  }
  facts.emplace_back("nodes", counts_text(result));
  if (const std::string nearest = nearest_text(result); !nearest.empty())
    facts.emplace_back("nearest", nearest);
  if (result.logits) facts.emplace_back("tokens", tokens_text(result));
}

// Facts that bound the verdict: what was selected, which rounding was taken for right, notes, what
// is untested. They stand before the commands.
void add_scope(const Result& result, const NextSteps& steps, Entries& facts) {
  const auto next =
      facts.empty() || facts.back().first != "next" ? facts.end() : std::prev(facts.end());
  Entries more;
  if (!result.cache.empty()) more.emplace_back("cache", result.cache);
  if (!result.scope.selection.empty())
    more.emplace_back("scope",
                      fmt::format("{}: nothing else was judged{}", result.scope.selection,
                                  beside(result) == 0 ? "" : ", but what it shows of other ops"));
  if (const JudgedRows& rows = result.scope.rows; !rows.all())
    more.emplace_back("rows", fmt::format("{}; {}", text_of(rows), power_text(rows)));
  if (const std::string contracts = contracts_text(result.scope); !contracts.empty())
    more.emplace_back("contract", contracts);
  if (steps.kept && !steps.serves)
    more.emplace_back(
        "kept",
        fmt::format("in {}, where lockstep inspect and lockstep report find it", steps.trace));
  for (const std::string& note : result.notes) more.emplace_back("note", note);
  if (!result.blind.empty()) more.emplace_back("untested", untested_text(result));
  facts.insert(next, more.begin(), more.end());
}

// "2 ops wrong, 3 missing"
std::string in_short(const FoundOps& found) {
  const auto ops = [](int64_t count) { return count == 1 ? "op" : "ops"; };
  if (found.missing == 0) return fmt::format("{} {} wrong", found.wrong, ops(found.wrong));
  if (found.wrong == 0) return fmt::format("{} {} missing", found.missing, ops(found.missing));
  return fmt::format("{} {} wrong, {} missing", found.wrong, ops(found.wrong), found.missing);
}

// The last line: a verdict and its scope, in few words. The story of the JSON says more.
std::string conclusion_of(const Result& result) {
  if (result.verdict == RunVerdict::diverged && result.first) {
    const Finding& first = *result.first;
    const std::string judged_by =
        first.region.empty() ? ""
                             : fmt::format("; judged by {} alone", first.node.place.point->name);
    return fmt::format("{} ({} of {}{})", where_it_begins(first), in_short(count_found_ops(result)),
                       count_judged_ops(result), judged_by);
  }
  if (result.verdict != RunVerdict::clean) return result.story;
  std::string scope = fmt::format("{} layer{}, positions to {}", result.scope.layers,
                                  result.scope.layers == 1 ? "" : "s", result.scope.positions - 1);
  if (!result.scope.selection.empty())
    scope += fmt::format("; of {} alone", result.scope.selection);
  if (const JudgedRows& rows = result.scope.rows; !rows.all())
    scope += fmt::format("; {} of {} rows judged", rows.judged, rows.expected);
  if (!result.scope.found.empty()) scope += "; contracts as found";
  if (result.hidden > 0)
    scope +=
        fmt::format("; {} nodes not recorded, judged with those that read them", result.hidden);
  if (!result.blind.empty()) scope += fmt::format("; {} untested", result.blind.size());
  if (result.scope.layers == 0) return result.story;  // of a run beside no reference
  return fmt::format("No bug shown in {} nodes ({})", result.judged, scope);
}

Table data_of(const Result& result) {
  Table table{
      {"layer", "point", "verdict", "expected", "judged", "worst_t1", "worst_t2", "worst_of_row",
       "request", "position", "pass", "introduced_rms", "propagated_rms", "total_rms", "ancestor"},
      {}};
  const auto number = [](bool measured, double x) { return measured ? Cell(x) : Cell(""); };
  for (const PlaceSummary& p : result.places)
    table.rows.push_back(
        {p.place.layer < 0 ? Cell("") : Cell(int64_t{p.place.layer}),
         std::string(p.place.point->name), name_of(p.verdict), p.expected, p.judged,
         number(p.measured, p.worst_t1), number(p.measured, p.worst_t2),
         number(p.measured, p.worst_of_row), int64_t{p.worst_request}, int64_t{p.worst_position},
         int64_t{p.worst_pass}, number(p.measured, p.introduced_rms),
         number(p.compared, p.propagated_rms), number(p.compared, p.total_rms), p.ancestor});
  return table;
}

// Every place with its numbers, the findings one by one, and what this run could not have shown.
void add_everything(const Result& result, std::vector<Block>& blocks) {
  Table places{{{"place", Table::Align::left, 24},
                {"verdict", Table::Align::left, 12},
                {"nodes", Table::Align::right, 9},
                {"T1", Table::Align::right, 9},
                {"T2", Table::Align::right, 9},
                {"introduced", Table::Align::right, 11},
                {"total rms", Table::Align::right, 11}},
               {},
               "{:.3g}",
               1};
  const auto number = [](bool measured, double x) { return measured ? Cell(x) : Cell("#"); };
  for (const PlaceSummary& p : result.places)
    places.rows.push_back(
        {text_of(p.place), name_of(p.verdict), fmt::format("{}/{}", p.judged, p.expected),
         number(p.measured, p.worst_t1), number(p.measured && p.has_t2, p.worst_t2),
         number(p.measured, p.introduced_rms), number(p.compared, p.total_rms)});
  blocks.push_back(Heading{"places"});
  blocks.push_back(std::move(places));
  List findings;
  for (const Finding& f : result.findings)
    findings.items.push_back(fmt::format("pass {} {}, {}: {}", f.node.pass, text_of(f.node.place),
                                         name_of(f.verdict), text_of(f)));
  if (!findings.items.empty()) {
    blocks.push_back(Heading{"findings, in the order of the computation"});
    blocks.push_back(std::move(findings));
  }
  for (Block& block : untested_document(result).blocks) blocks.push_back(std::move(block));
}

}  // namespace

Document document_of(const Result& result, const NextSteps& steps, Detail detail) {
  Document document{
      .data = data_of(result), .json = report_json(result), .tests = tests_of(result)};
  document.page = [result] { return page_of(result); };
  std::vector<Block>& blocks = document.blocks;
  if (const std::string ran = ran_text(result); !ran.empty())
    blocks.push_back(Paragraph{ran, 0, 2});
  Entries facts;
  if (result.findings.empty())
    add_right(result, blocks, facts);
  else
    add_wrong(result, steps, blocks, facts);
  add_scope(result, steps, facts);
  if (!result.findings.empty()) blocks.push_back(Heading{});
  blocks.push_back(KeyValues{std::move(facts), 0, kKeys});
  if (result.error_budget)
    std::ranges::move(error_budget_blocks(*result.error_budget, detail == Detail::everything),
                      std::back_inserter(blocks));
  if (detail == Detail::everything) add_everything(result, blocks);
  if (result.error_budget || result.verdict != RunVerdict::clean) blocks.push_back(Heading{});
  blocks.push_back(Conclusion{name_of(result.verdict), conclusion_of(result)});
  return document;
}

}  // namespace lockstep
