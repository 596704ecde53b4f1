// People see the first ten findings and the end of each execution; the JSON and the table have all
// that were kept, each execution whole.
#include "src/schedule/schedule_document.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "src/schedule/schedule_json.h"

namespace lockstep {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kShownFindings = 10, kShownOrder = 6;

KeyValues facts_of(const Schedule& s) {
  std::vector<int64_t> lengths(s.queues);
  for (const Instruction& in : s.instructions) ++lengths[in.queue];
  const auto [least, most] = std::ranges::minmax(lengths);
  const ScheduledModel& m = s.model;
  return {
      {{"model",
        fmt::format("{} layers of {}, {} heads of {} over {} of K and V, MLP {}, {} words",
                    m.layers, m.hidden, m.heads, m.head_dim, m.kv_heads, m.intermediate, m.vocab)},
       {"queues", fmt::format("{}, of {} to {} instructions", s.queues, least, most)},
       {"instructions", fmt::format("{}", s.instructions.size())},
       {"counters", fmt::format("{}", s.counters.size())},
       {"tensors", fmt::format("{}", s.tensors.size())}}};
}

// A line for each opcode, in the order in which they first stand in the list.
Table opcodes_of(const Schedule& s) {
  struct Row {
    std::string name;
    int64_t count = 0, least = 0, most = 0, waits = 0;
  };
  std::vector<Row> rows;
  for (const Instruction& in : s.instructions) {
    auto row = std::ranges::find(rows, in.name, &Row::name);
    const int64_t held = in.end - in.begin;
    if (row == rows.end()) row = rows.insert(rows.end(), {in.name, 0, held, held, 0});
    ++row->count;
    row->least = std::min(row->least, held);
    row->most = std::max(row->most, held);
    row->waits += std::ssize(in.waits);
  }
  Table table{{"opcode", "instructions", "rows of one", "waits"}, {}};
  for (const Row& row : rows)
    table.rows.push_back({row.name, row.count,
                          row.least == row.most ? fmt::format("{}", row.most)
                                                : fmt::format("{} to {}", row.least, row.most),
                          row.waits});
  return table;
}

// The end of an execution, by what findings call the instructions.
std::string end_of(const Schedule& s, const std::vector<int>& order) {
  const size_t shown = std::min(order.size(), kShownOrder);
  std::vector<std::string> ids;
  for (const int place : std::span(order).last(shown))
    ids.push_back(fmt::format("{}", s.instructions[place].id));
  return fmt::format("{}{}", order.size() > shown ? "..., " : "", fmt::join(ids, ", "));
}

KeyValues facts_of(const Schedule& s, const ScheduleCheck::Finding& finding) {
  KeyValues lines{.entries = {}, .indent = 5, .key_width = 12};
  if (finding.order.empty()) return lines;
  const bool is_pair = finding.first >= 0, is_stuck = !finding.span;
  lines.entries.emplace_back(
      "execution",
      fmt::format("{}{}", end_of(s, finding.order),
                  is_pair    ? fmt::format(", with {} to come", s.instructions[finding.first].id)
                  : is_stuck ? ", and nothing can follow"
                             : ""));
  return lines;
}

Conclusion conclusion_of(const ScheduleCheck& checked) {
  if (checked.findings.empty())
    return {"clean",
            fmt::format("{} instructions write {} numbers once each, {} pairs that share some are "
                        "kept in order by the counters, and all run",
                        checked.instructions, checked.numbers, checked.ordered_pairs)};
  const size_t all = checked.findings.size() + checked.not_kept;
  return {
      "broken",
      fmt::format("{}{}", checked.findings.front().says,
                  all > 1 ? fmt::format("; {} more finding{}", all - 1, all > 2 ? "s" : "") : "")};
}

Json finding_json(const Schedule& s, const ScheduleCheck::Finding& finding) {
  const auto id = [&](int place) { return place < 0 ? Json() : Json(s.instructions[place].id); };
  Json span, order = Json::array();
  if (finding.span) {
    const ScheduledTensor& tensor = s.tensors[finding.span->tensor];
    span = {{"point", tensor.point},
            {"layer", tensor.layer < 0 ? Json() : Json(tensor.layer)},
            {"begin", finding.span->begin},
            {"end", finding.span->end}};
  }
  for (const int place : finding.order) order.push_back(s.instructions[place].id);
  return {{"fault", name_of(finding.fault)},
          {"first", id(finding.first)},
          {"second", id(finding.second)},
          {"numbers", span},
          {"says", finding.says},
          {"order", order}};
}

}  // namespace

Document document_of(const Schedule& schedule) {
  return {.blocks = {facts_of(schedule), opcodes_of(schedule)}, .json = schedule_json(schedule)};
}

Document document_of(const Schedule& schedule, const ScheduleCheck& checked, Detail detail) {
  Document document;
  Json findings = Json::array();
  Table table{{"fault", "first", "second", "says"}, {}};
  document.blocks.emplace_back(facts_of(schedule));
  for (size_t i = 0; i < checked.findings.size(); ++i) {
    const ScheduleCheck::Finding& finding = checked.findings[i];
    const Json json = finding_json(schedule, finding);
    findings.push_back(json);
    table.rows.push_back({std::string(name_of(finding.fault)), json["first"].dump(),
                          json["second"].dump(), finding.says});
    if (i >= kShownFindings && detail != Detail::everything) continue;
    document.blocks.emplace_back(
        Paragraph{fmt::format("{}. {}: {}", i + 1, name_of(finding.fault), finding.says), 2, 5});
    KeyValues lines = facts_of(schedule, finding);
    if (!lines.entries.empty()) document.blocks.emplace_back(std::move(lines));
  }
  const Conclusion conclusion = conclusion_of(checked);
  document.blocks.emplace_back(conclusion);
  document.data = std::move(table);
  document.json = Json{
      {"format", "lockstep-schedule-check"},
      {"format_version", "1.0"},
      {"verdict", conclusion.verdict},
      {"story", conclusion.story},
      {"instructions", checked.instructions},
      {"numbers", checked.numbers},
      {"ordered_pairs", checked.ordered_pairs},
      {"not_kept", checked.not_kept},
      {"findings",
       findings}}.dump(2);
  return document;
}

}  // namespace lockstep
