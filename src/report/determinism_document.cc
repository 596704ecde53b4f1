// Which ops give the same bits whatever happens around them, as a document. The screen has one row
// for all layers of a point that behave alike; CSV and JSON have each op.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "src/judge/determinism.h"
#include "src/judge/ledger.h"
#include "src/report/place_json.h"
#include "src/report/report.h"
#include "traces/json_number.h"

namespace lockstep {
namespace {

using OrderedJson = nlohmann::ordered_json;

// One point in the layers of which the same is known.
struct OpsAlike {
  const OpBits* first = nullptr;
  std::vector<int> layers = {};
  double ulps = 0;
};

// By what is shown of an op: the numbers of comparisons do not count, so that layers with one
// behaviour make one row.
bool same_bits(const OpBits& a, const OpBits& b) {
  return *a.place.point == *b.place.point && a.bits == b.bits && a.allowed == b.allowed &&
         a.depends_on == b.depends_on && a.decode == b.decode && a.prefill == b.prefill;
}

// Those of a point stand beside each other, where its first op does.
std::vector<OpsAlike> ops_alike(const Determinism& determinism) {
  std::vector<OpsAlike> all;
  for (const OpBits& op : determinism.ops) {
    const auto same = std::ranges::find_if(
        all, [&](const OpsAlike& alike) { return same_bits(*alike.first, op); });
    if (same != all.end()) {
      same->layers.push_back(op.place.layer);
      same->ulps = std::max(same->ulps, op.ulps);
      continue;
    }
    // Behind the last op of the same point, so that what differs among layers stands together.
    auto behind = std::find_if(all.rbegin(), all.rend(), [&](const OpsAlike& alike) {
                    return *alike.first->place.point == *op.place.point;
                  }).base();
    if (behind == all.begin()) behind = all.end();
    all.insert(behind, OpsAlike{&op, {op.place.layer}, op.ulps});
  }
  return all;
}

// "0-2, 5"
std::string layers_of(const OpsAlike& alike) {
  std::string text;
  for (size_t i = 0; i < alike.layers.size();) {
    size_t end = i + 1;
    while (end < alike.layers.size() && alike.layers[end] == alike.layers[end - 1] + 1) ++end;
    if (alike.layers[i] < 0) return "";
    text += fmt::format("{}{}", text.empty() ? "" : ", ", alike.layers[i]);
    if (end - i > 1) text += fmt::format("-{}", alike.layers[end - 1]);
    i = end;
  }
  return text;
}

const char* words_of(const OpBits& op) {
  if (op.bits == OpBits::SameFor::always) return "always the same";
  return op.bits == OpBits::SameFor::of_batch ? "the same for a batch size" : "vary";
}

// from_position is null where nothing differed: 0 is a position.
OrderedJson json_of(const OpBits& op) {
  OrderedJson by = OrderedJson::array();
  for (const Circumstance circumstance : op.depends_on) by.push_back(name_of(circumstance));
  return {{"layer", layer_json<OrderedJson>(op.place)},
          {"point", op.place.point->name},
          {"bits", name_of(op.bits)},
          {"depends_on", by},
          {"allowed", op.allowed},
          {"compared", op.compared},
          {"differ", op.differ},
          {"ulps", json_number<OrderedJson>(op.ulps)},
          {"first", op.first},
          {"terms", op.terms},
          {"from_position", op.differ > 0 ? OrderedJson(op.from) : OrderedJson(nullptr)},
          {"rows_of_decode", op.decode},
          {"rows_of_prefill", op.prefill},
          {"says", text_of(op)}};
}

std::string determinism_json(const Determinism& determinism) {
  OrderedJson ops = OrderedJson::array();
  for (const OpBits& op : determinism.ops) ops.push_back(json_of(op));
  const OrderedJson json = {{"format", "lockstep-determinism"},
                            {"format_version", "1.0"},
                            {"verdict", name_of(determinism.verdict)},
                            {"story", determinism.story},
                            {"requests", determinism.requests},
                            {"servings", determinism.servings},
                            {"ops", ops},
                            {"provenance", determinism.provenance},
                            {"notes", determinism.notes}};
  // Bytes that are no UTF-8, as a path may have, are replaced: a report that cannot be written
  // tells nothing.
  return json.dump(2, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
}

Table rows_of(const Determinism& determinism) {
  Table table{{"layer", "point", "bits", "allowed", "compared", "differ", "ulps", "depends_on"},
              {}};
  for (const OpBits& op : determinism.ops)
    table.rows.push_back({op.place.layer < 0 ? Cell("") : Cell(int64_t{op.place.layer}),
                          std::string(op.place.point->name), name_of(op.bits),
                          op.allowed ? "yes" : "no", op.compared, op.differ, op.ulps, text_of(op)});
  return table;
}

// A test a point; where nothing was compared, one in trouble.
TestSuite tests_of(const Determinism& determinism) {
  TestSuite suite{.name = "determinism"};
  for (const OpBits& op : determinism.ops) {
    const std::string name(op.place.point->name);
    auto test = std::ranges::find(suite.cases, name, &TestCase::name);
    if (test == suite.cases.end()) test = suite.cases.insert(test, TestCase{.name = name});
    // The first op that breaks its promise speaks for all of its point.
    if (op.allowed || test->outcome == TestCase::Outcome::failed) continue;
    *test = {.name = name,
             .outcome = TestCase::Outcome::failed,
             .kind = name_of(op.bits),
             .message = fmt::format("{} depends on {}", text_of(op.place), text_of(op)),
             .details = op.first};
  }
  if (suite.cases.empty())
    suite.cases.push_back({.name = "coverage",
                           .outcome = TestCase::Outcome::trouble,
                           .kind = "nothing",
                           .message = determinism.story});
  return suite;
}

}  // namespace

Document document_of(const Determinism& determinism) {
  Document document{.data = rows_of(determinism),
                    .json = determinism_json(determinism),
                    .tests = tests_of(determinism)};
  std::vector<Block>& blocks = document.blocks;
  Table table{{{"op", Table::Align::left, 16},
               {"layers", Table::Align::left, 6},
               {"bits", Table::Align::left, 16},
               {"ulp", Table::Align::right, 5},
               {"depends on", Table::Align::left, 20}},
              {},
              "{:.3g}"};
  List wrong{.title = "not as their headers promise:"};
  for (const OpsAlike& alike : ops_alike(determinism)) {
    const OpBits& op = *alike.first;
    table.rows.push_back({std::string(op.place.point->name), layers_of(alike), words_of(op),
                          op.differ > 0 ? Cell(alike.ulps) : Cell(""), text_of(op)});
    if (!op.allowed && wrong.items.size() < 8)
      wrong.items.push_back(fmt::format("{}: {}", text_of(op.place), op.first));
  }
  blocks.push_back(Paragraph{
      fmt::format("{} request{} served: {}", determinism.requests,
                  determinism.requests == 1 ? "" : "s", fmt::join(determinism.servings, "; ")),
      0, 2});
  blocks.push_back(Heading{});
  blocks.push_back(std::move(table));
  if (!wrong.items.empty()) {
    blocks.push_back(Heading{});
    blocks.push_back(std::move(wrong));
  }
  if (!determinism.notes.empty()) blocks.push_back(List{determinism.notes, "notes:"});
  blocks.push_back(Heading{});
  blocks.push_back(Conclusion{name_of(determinism.verdict), determinism.story});
  return document;
}

}  // namespace lockstep
