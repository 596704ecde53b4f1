// A table with a line an op, a paragraph for each op that is wrong, and the verdict. The JSON has
// the same, by the names of tools/schemas/ops.schema.json.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "src/judge/story.h"
#include "src/opcheck/opcheck.h"
#include "src/session/build_info.h"
#include "traces/json_number.h"

namespace lockstep {
namespace {

using Json = nlohmann::ordered_json;

std::string short_number(double x) {
  if (std::isinf(x)) return "inf";
  return x >= 1e4 ? fmt::format("{:.1e}", x) : fmt::format("{:.3g}", x);
}

std::string time_of(double seconds) {
  if (seconds < 1e-3) return fmt::format("{:.3g} us", seconds * 1e6);
  return seconds < 1 ? fmt::format("{:.3g} ms", seconds * 1e3) : fmt::format("{:.3g} s", seconds);
}

Table table_of_ops(const OpsResult& result) {
  Table table{{"op",
               {"cases", Table::Align::right, 0},
               "verdict",
               {"budgets", Table::Align::right, 0},
               {"time", Table::Align::right, 0},
               {"ours", Table::Align::right, 0},
               {"times ours", Table::Align::right, 0}},
              {}};
  for (const OpsResult::Account& op : result.ops)
    table.rows.push_back({op.op, op.cases,
                          op.cases == 0   ? std::string(op.refused > 0 ? "refused" : "not tried")
                          : op.wrong == 0 ? std::string("right")
                                          : fmt::format("wrong in {}", op.wrong),
                          op.cases == 0 ? std::string("-") : short_number(op.budgets),
                          op.seconds ? time_of(*op.seconds) : std::string("-"),
                          op.own_seconds ? time_of(*op.own_seconds) : std::string("-"),
                          op.ratio ? fmt::format("{:.2f}", *op.ratio) : std::string("-")});
  return table;
}

std::string place_text(const OpTrial::Failure& failure) {
  std::string text =
      fmt::format("{}, pass {}, request {}", failure.point, failure.pass, failure.request);
  if (failure.index.empty()) return text;
  text += fmt::format(", position {}", failure.index.front());
  const std::vector<int64_t> axes(failure.index.begin() + 1, failure.index.end());
  const Point* p = find_point(failure.point);
  const size_t comma = p == nullptr ? std::string::npos : p->shape.find(", ");
  if (comma == std::string::npos || axes.empty()) return text;
  return text + fmt::format(", {} [{}]", p->shape.substr(comma + 2), fmt::join(axes, ", "));
}

void add_wrong_op(const OpsResult::Account& op, std::vector<Block>& blocks) {
  const OpTrial::Failure& first = *op.first;
  KeyValues lines{.entries = {}, .indent = 5, .key_width = 12};
  const auto line = [&](const char* name, std::string text) {
    if (!text.empty()) lines.entries.emplace_back(name, std::move(text));
  };
  line("smallest", first.shape);
  if (!first.point.empty()) line("place", place_text(first));
  line("says", first.says);
  if (!first.index.empty())
    line("worst", fmt::format("want {:.6g}, got {:.6g}\n{} x its budget{}", first.want, first.got,
                              short_number(first.budgets),
                              first.statistic.empty() || first.statistic == "max_error"
                                  ? ""
                                  : fmt::format(" ({})", first.statistic)));
  if (first.rule != first.says) line("where", first.rule);
  if (!first.looks_like.empty()) line("looks like", text_of(first.looks_like));
  if (!op.folder.empty())
    line("repro", fmt::format("{0}: {0}/README.md says how to run it", op.folder));
  if (!op.no_folder.empty()) line("no repro", op.no_folder);
  blocks.push_back(Paragraph{fmt::format("{} is wrong in {} of {} cases{}{}", op.op, op.wrong,
                                         op.cases, op.common.empty() ? "" : ": ", op.common),
                             2, 2, /*strong=*/true});
  blocks.push_back(std::move(lines));
}

int64_t cases_of(const OpsResult& result) {
  int64_t cases = 0;
  for (const OpsResult::Account& op : result.ops) cases += op.cases;
  return cases;
}

// An op that refused every case is said before right ones are: it was held to nothing.
std::string story_of_ops(const OpsResult& result) {
  std::vector<std::string> wrong;
  for (const OpsResult::Account& op : result.ops)
    if (op.wrong > 0)
      wrong.push_back(fmt::format("{} ({} of {} cases)", op.op, op.wrong, op.cases));
  const size_t count = result.ops.size();
  std::vector<std::string> untried;
  for (const OpsResult::Account& op : result.ops)
    if (op.cases == 0) untried.push_back(op.op);
  if (wrong.empty() && !untried.empty())
    return fmt::format("{} computed none of the cases, and was held to nothing",
                       fmt::join(untried, ", "));
  if (wrong.empty())
    return fmt::format("{} {} right in {} cases", count, count == 1 ? "op is" : "ops are",
                       cases_of(result));
  return fmt::format("{} of {} ops {} wrong: {}", wrong.size(), count,
                     wrong.size() == 1 ? "is" : "are", fmt::join(wrong, ", "));
}

Json optional_seconds(const std::optional<double>& x) { return x ? json_number<Json>(*x) : Json(); }

Json failure_json(const std::optional<OpTrial::Failure>& failure) {
  if (!failure) return {};
  Json like = Json::array();
  for (const Finding::LooksLike& one : failure->looks_like) like.push_back(one.says);
  return {{"shape", failure->shape},
          {"point", failure->point.empty() ? Json() : Json(failure->point)},
          {"pass", failure->pass},
          {"request", failure->request},
          {"index", failure->index},
          {"want", json_number<Json>(failure->want)},
          {"got", json_number<Json>(failure->got)},
          {"budgets", json_number<Json>(failure->budgets)},
          {"statistic", failure->statistic},
          {"rule", failure->rule},
          {"says", failure->says},
          {"looks_like", like}};
}

Json account_json(const OpsResult::Account& op) {
  return {{"op", op.op},
          {"cases", op.cases},
          {"wrong", op.wrong},
          {"refused", op.refused},
          {"refusal", op.refusal},
          {"worst", {{"budgets", json_number<Json>(op.budgets)}, {"shape", op.worst_case}}},
          {"common", op.common},
          {"first", failure_json(op.first)},
          {"seconds", optional_seconds(op.seconds)},
          {"own_seconds", optional_seconds(op.own_seconds)},
          {"ratio", optional_seconds(op.ratio)},
          {"repro", op.folder.empty() ? Json() : Json(op.folder)}};
}

}  // namespace

Document document_of(const OpsResult& result) {
  static constexpr const char* kVerdicts[] = {"clean", "diverged", "inconclusive"};
  const char* verdict = kVerdicts[exit_status(result)];
  Json ops = Json::array();
  for (const OpsResult::Account& op : result.ops) ops.push_back(account_json(op));
  Document document{.json = Json{
                        {"format", "lockstep-ops"},
                        {"format_version", "1.0"},
                        {"verdict", verdict},
                        {"story", story_of_ops(result)},
                        {"library", result.library},
                        {"device", result.device},
                        {"dtypes", result.dtypes},
                        {"seconds", json_number<Json>(result.seconds)},
                        {"ops",
                         ops}}.dump(2)};
  std::vector<Block>& blocks = document.blocks;
  blocks.push_back(Paragraph{fmt::format("lockstep {}  {}  {} on {}", kToolVersion, result.library,
                                         fmt::join(result.dtypes, " "), result.device),
                             0, 2, /*strong=*/true});
  blocks.push_back(
      Paragraph{fmt::format("{} cases in {}", cases_of(result), time_of(result.seconds)), 2, 4});
  blocks.push_back(Heading{});
  blocks.push_back(table_of_ops(result));
  for (const OpsResult::Account& op : result.ops)
    if (!op.refusal.empty())
      blocks.push_back(Paragraph{
          op.refused > 0
              ? fmt::format("{} did not compute {} more cases: {}", op.op, op.refused, op.refusal)
              : fmt::format("{} was not tried: {}", op.op, op.refusal),
          2, 4});
  for (const OpsResult::Account& op : result.ops) {
    if (op.wrong == 0) continue;
    blocks.push_back(Heading{});
    add_wrong_op(op, blocks);
  }
  blocks.push_back(Heading{});
  blocks.push_back(Conclusion{verdict, story_of_ops(result)});
  return document;
}

}  // namespace lockstep
