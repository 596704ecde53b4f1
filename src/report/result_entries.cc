// Findings become entries: those of one place are one, and where places are many those of one point
// are one too, so that a bug in a kernel of all layers reads as one bug. An entry says the worst
// element, where the wrong ones lie (shape_rule.h), what they look like (src/causes), and in how
// many nodes.
#include "src/report/result_entries.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "src/judge/ledger.h"
#include "src/judge/story.h"
#include "src/screen/wrap.h"

namespace lockstep {
namespace {

constexpr size_t kMostEntries = 8;  // a screen holds so many; the map and the JSON have all
constexpr int kIndent = 5;          // of what stands under the title of an entry

// All findings at one place, and, where places are many, the same point's in later layers.
struct WrongOp {
  Place place;
  std::vector<const Finding*> findings;
  std::vector<int> also;  // layers
  int64_t also_findings = 0;
  double also_budgets = 0;  // the most
};

// Findings come in the order of the computation, and so do the ops.
std::vector<WrongOp> wrong_ops(const Result& result) {
  std::vector<WrongOp> ops;
  for (const Finding& f : result.findings) {
    const auto same = [&](const WrongOp& op) { return op.place == f.node.place; };
    auto at = std::ranges::find_if(ops, same);
    if (at == ops.end()) at = ops.insert(at, {.place = f.node.place});
    at->findings.push_back(&f);
  }
  return ops;
}

double most_budgets(const WrongOp& op) {
  double most = 0;
  for (const Finding* f : op.findings) most = std::max(most, f->budgets);
  return most;
}

// The entries of each point in one, that of its first layer.
std::vector<WrongOp> by_point(const std::vector<WrongOp>& ops) {
  std::vector<WrongOp> out;
  for (const WrongOp& op : ops) {
    const auto same = [&](const WrongOp& o) { return *o.place.point == *op.place.point; };
    const auto at = std::ranges::find_if(out, same);
    if (at == out.end()) {
      out.push_back(op);
      continue;
    }
    at->also.push_back(op.place.layer);
    at->also_findings += std::ssize(op.findings);
    at->also_budgets = std::max(at->also_budgets, most_budgets(op));
  }
  return out;
}

// "1-3, 7"
std::string ranges_text(const std::vector<int>& numbers) {
  std::vector<std::string> runs;
  for (size_t i = 0; i < numbers.size();) {
    size_t end = i + 1;
    while (end < numbers.size() && numbers[end] == numbers[end - 1] + 1) ++end;
    runs.push_back(end == i + 1 ? std::to_string(numbers[i])
                                : fmt::format("{}-{}", numbers[i], numbers[end - 1]));
    i = end;
  }
  return fmt::format("{}", fmt::join(runs, ", "));
}

const RequestResult* request_of(const Result& result, int32_t id) {
  const auto at = std::ranges::find(result.requests, id, &RequestResult::id);
  return at == result.requests.end() ? nullptr : &*at;
}

// A statistic over all nodes of a place points at no element.
bool is_of_all_nodes(const Finding& f) { return f.index.empty() && f.statistic.has_value(); }

// Which nodes they are, as far as it takes few words: "every decode pass, no prefill".
std::string which_nodes(const Result& result, const WrongOp& op) {
  int64_t in_prompt = 0, past_it = 0, decodes = 0;
  bool one_request = true;
  for (const Finding* f : op.findings) {
    const RequestResult* request = request_of(result, f->node.request);
    if (!request) return "";
    ++(f->position < std::ssize(request->prompt) ? in_prompt : past_it);
    one_request = one_request && f->node.request == op.findings.front()->node.request;
  }
  for (const RequestResult& r : result.requests)
    // The first token comes of the prefill, and each further one of a decode pass.
    decodes += std::max<int64_t>(std::ssize(r.tokens) - 1, 0);
  if (in_prompt == 0 && past_it == decodes) return "every decode pass, no prefill";
  // Where no pass is of decode there is nothing that they could be told from.
  // Of a cache the position is one that was read, and any pass may read one of a prompt.
  const bool in_any_pass = op.findings.front()->node.place.point->is_cache();
  std::string text = decodes == 0                   ? ""
                     : in_prompt == 0               ? "past the prompts only"
                     : past_it == 0 && !in_any_pass ? "prompts only"
                                                    : "";
  if (one_request && result.requests.size() > 1)
    text += fmt::format("{}request {} alone", text.empty() ? "" : ", ",
                        op.findings.front()->node.request);
  return text;
}

// "53 of 56 nodes: every decode pass, no prefill"
std::string nodes_text(const Result& result, const WrongOp& op) {
  const auto at = std::ranges::find(result.places, op.place, &PlaceSummary::place);
  const auto count = std::ssize(op.findings);
  if (op.findings.size() == 1 && is_of_all_nodes(*op.findings.front())) return "all nodes together";
  // A node may have several findings, of several statistics.
  if (at == result.places.end() || count > at->expected)
    return fmt::format("{} finding{}", count, count == 1 ? "" : "s");
  if (count == at->expected)
    return count == 1 ? "its one node" : fmt::format("all {} nodes", count);
  const std::string which = which_nodes(result, op);
  return fmt::format("{} of {} nodes{}{}", count, at->expected, which.empty() ? "" : ": ", which);
}

const Finding& worst_of(const WrongOp& op) {
  const Finding* worst = op.findings.front();
  for (const Finding* f : op.findings)
    if (f->budgets > worst->budgets) worst = f;  // of what has no budgets, the first
  return *worst;
}

const char* meaning_of(StatisticKind kind) {
  switch (kind) {
    case StatisticKind::bits:
      return "other bits";
    case StatisticKind::max_error:
      return "one element";
    case StatisticKind::rms_error:
      return "all errors of the node together";
    case StatisticKind::misrounds:
      return "the share that is not the exact result rounded";
    case StatisticKind::worst_slice:
      return "one row, column, head or page";
    case StatisticKind::gain:
      return "all elements by one factor";
    case StatisticKind::flips:
      return "tokens that differ";
    case StatisticKind::divergence:
      return "the choices";
    case StatisticKind::contract:
      break;
  }
  return "another contract than its like";
}

// How far it is off: in budgets where one element decides, in limits where all of a node do.
std::string size_text(const Finding& f) {
  std::string text;
  const bool many = f.statistic && f.statistic != StatisticKind::bits;
  if (f.statistic == StatisticKind::max_error)
    text = fmt::format("{} x its budget", budgets_text(f.budgets));
  else if (many && f.limit > 0)
    text = fmt::format("{} {} x its limit ({})", name_of(*f.statistic),
                       ratio_text(f.value / f.limit), meaning_of(*f.statistic));
  if (f.of_row > 0)
    text += fmt::format("{}{:.2g} x the size of its row", text.empty() ? "" : ", ", f.of_row);
  return text;
}

std::string number_text(double x, int digits) {
  if (std::isnan(x)) return "NaN";
  return std::isinf(x) ? (x > 0 ? "Inf" : "-Inf") : fmt::format("{:.{}g}", x, digits);
}

std::string numbers_text(const Finding& f) {
  std::string text;
  if (has_numbers(f)) {
    const int digits = digits_apart(f.want, f.got);
    text = fmt::format("want {}, got {}", number_text(f.want, digits), number_text(f.got, digits));
  }
  const std::string size = size_text(f);
  return text + (text.empty() || size.empty() ? "" : "   ") + size;
}

std::string request_text(const Result& result, int32_t id) {
  const RequestResult* request = request_of(result, id);
  if (!request || request->name.empty()) return fmt::format("request {}", id);
  return fmt::format("request {} ({})", id, screen_text(request->name));
}

std::string place_of(const Result& result, const Finding& f) {
  const std::string where =
      f.index.empty() ? fmt::format("position {}", f.position) : element_text(f);
  return fmt::format("{}, {}", request_text(result, f.node.request), where);
}

std::string cause_of(const Result& result, const Place& place) {
  const auto summary = std::ranges::find(result.places, place, &PlaceSummary::place);
  return summary == result.places.end() ? "" : text_of(summary->looks_like);
}

// The same point in later layers. What is missing there has no size, and 0 would be one.
std::string also_text(const WrongOp& op) {
  std::string text =
      fmt::format("in layer{} {}: {} node{}", op.also.size() == 1 ? "" : "s", ranges_text(op.also),
                  op.also_findings, op.also_findings == 1 ? "" : "s");
  if (op.also_budgets > 0)
    text += fmt::format(", worst {} x its budget", budgets_text(op.also_budgets));
  return text;
}

void add_details(const Result& result, const WrongOp& op, std::vector<Block>& blocks) {
  const Finding& worst = worst_of(op);
  const std::string cause = cause_of(result, op.place);
  KeyValues lines{{}, kIndent, cause.empty() ? 8 : 12};
  if (is_of_all_nodes(worst)) {
    // A layer that only rounds otherwise than others has none.
    if (const std::string size = size_text(worst); !size.empty())
      lines.entries.emplace_back("size", size);
  } else {
    const std::string numbers = numbers_text(worst);
    lines.entries.emplace_back("worst",
                               (numbers.empty() ? "" : numbers + "\n") + place_of(result, worst));
  }
  if (worst.shape)
    // rule_of() begins with "wrong: " where there is no other rule: the entry's name says it here.
    lines.entries.emplace_back("where", rule_of({.rule = "", .shape = worst.shape}).substr(7));
  const bool counts = worst.statistic.has_value() && !is_of_all_nodes(worst);
  const char* const whose = counts && op.findings.size() > 1 ? "in that node " : "";
  if (!worst.rule.empty()) lines.entries.emplace_back("what", whose + worst.rule);
  if (!worst.region.empty())
    lines.entries.emplace_back(
        "region", fmt::format("{}: any of the ops that no verdict clears, or {} itself",
                              stretch_text(worst), worst.node.place.point->name));
  if (!cause.empty()) lines.entries.emplace_back("looks like", cause);
  if (!op.also.empty()) lines.entries.emplace_back("also", also_text(op));
  for (const Confirmation& c : result.confirmations)
    if (c.place == op.place)
      lines.entries.emplace_back("again",
                                 fmt::format("{}{}", c.confirmed ? "" : "not confirmed: ", c.says));
  blocks.push_back(std::move(lines));
}

// Whether the op beside the one before it is wrong in the same nodes and is of the same kind.
bool repeats(const WrongOp& op, const WrongOp& before) {
  if (op.place.layer != before.place.layer || op.place.point->op != before.place.point->op)
    return false;
  return std::ranges::equal(op.findings, before.findings, [](const Finding* a, const Finding* b) {
    return a->node.pass == b->node.pass && a->node.request == b->node.request &&
           a->verdict == b->verdict && a->statistic == b->statistic;
  });
}

bool is_confirmed_apart(const Result& result, const WrongOp& op) {
  return std::ranges::any_of(result.confirmations,
                             [&](const Confirmation& c) { return c.place == op.place; });
}

}  // namespace

std::string element_text(const Finding& f) {
  if (f.node.place.point->is_cache() && f.index.size() == 4)
    return fmt::format("position {}, {}, kv head {}, dim {}", f.index[0],
                       f.index[1] == 0 ? "K" : "V", f.index[2], f.index[3]);
  std::string text = fmt::format("position {}", f.index.empty() ? f.position : f.index[0]);
  // The shape is a text, "rows, heads, head_dim": the first name is that of the rows, whose index
  // is the position.
  std::string_view axes = f.node.place.point->shape;
  for (size_t i = 1; i < f.index.size(); ++i) {
    const size_t comma = axes.find(", ");
    axes.remove_prefix(comma == std::string_view::npos ? axes.size() : comma + 2);
    text += fmt::format(", {} {}", axes.substr(0, axes.find(", ")), f.index[i]);
  }
  return text;
}

FoundOps count_found_ops(const Result& result) {
  FoundOps found;
  for (const WrongOp& op : wrong_ops(result))
    ++(std::ranges::all_of(op.findings, [](const Finding* f) { return is_missing(*f); })
           ? found.missing
           : found.wrong);
  return found;
}

std::string text_of(const FoundOps& found) {
  std::string text;
  if (found.wrong > 0 || found.missing == 0)
    text = fmt::format("{} op{} wrong", found.wrong, found.wrong == 1 ? " is" : "s are");
  if (found.missing == 0) return text;
  const bool one = found.missing == 1;
  return text + fmt::format("{}the tensor{} of {}{} {} missing", text.empty() ? "" : ", and ",
                            one ? "" : "s", found.missing,
                            !text.empty() ? ""
                            : one         ? " op"
                                          : " ops",
                            one ? "is" : "are");
}

int64_t count_judged_ops(const Result& result) {
  // The cache is judged in all layers, whatever was selected.
  const auto beside = std::ranges::count_if(wrong_ops(result), [&](const WrongOp& op) {
    return std::ranges::find(result.places, op.place, &PlaceSummary::place) == result.places.end();
  });
  return std::ssize(result.places) + beside;
}

std::vector<Block> wrong_ops_of(const Result& result) {
  std::vector<WrongOp> ops = wrong_ops(result);
  const size_t all = ops.size();
  if (ops.size() > kMostEntries) ops = by_point(ops);
  std::vector<Block> blocks;
  if (ops.empty()) return blocks;
  blocks.push_back(Heading{text_of(count_found_ops(result)) +
                           (all == 1 ? "" : ", in the order of the computation")});
  for (size_t i = 0; i < std::min(ops.size(), kMostEntries); ++i) {
    const WrongOp& op = ops[i];
    const bool same =
        i > 0 && op.also.empty() && repeats(op, ops[i - 1]) && !is_confirmed_apart(result, op);
    std::string text = nodes_text(result, op);
    if (same) {
      const std::string size = size_text(worst_of(op));
      text = fmt::format("{}, the same{}{}", text.substr(0, text.find(':')),
                         size.empty() ? "" : ": ", size);
    }
    blocks.push_back(Paragraph{fmt::format("{:>2}. {:<22} {}", i + 1, text_of(op.place), text), 1,
                               kIndent,
                               /*strong=*/!same});
    if (!same) add_details(result, op, blocks);
  }
  if (ops.size() > kMostEntries)
    blocks.push_back(
        Paragraph{fmt::format("... and at {} more points: the map and --json have them",
                              ops.size() - kMostEntries),
                  kIndent, kIndent});
  return blocks;
}

}  // namespace lockstep
