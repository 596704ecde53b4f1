// JSON of a document: its own where it has one, else the rows of its data as objects by column.
#include <nlohmann/json.hpp>

#include "src/report/render.h"
#include "traces/json_number.h"

namespace lockstep {
namespace {

using Json = nlohmann::ordered_json;

Json json_of(const Cell& cell) {
  if (const auto* number = std::get_if<double>(&cell)) return json_number<Json>(*number);
  return std::visit([](const auto& value) { return Json(value); }, cell);
}

}  // namespace

std::string render_json(const Document& document) {
  if (!document.json.empty()) return document.json;
  const Table& table = data_of(document);
  Json list = Json::array();
  for (const auto& row : table.rows) {
    Json object;
    for (size_t i = 0; i < row.size(); ++i) object[table.columns[i].name] = json_of(row[i]);
    list.push_back(std::move(object));
  }
  return list.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace lockstep
