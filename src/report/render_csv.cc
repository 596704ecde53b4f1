// The data of a document as CSV (RFC 4180): fields with commas, quotes or line breaks are quoted,
// and numbers have all their digits.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include "src/report/render.h"
#include "traces/json_number.h"

namespace lockstep {
namespace {

std::string quoted(const std::string& text) {
  if (text.find_first_of(",\"\n\r") == std::string::npos) return text;
  std::string out = "\"";
  for (const char c : text) out += c == '"' ? "\"\"" : std::string(1, c);
  return out + "\"";
}

// Numbers that are not finite have the names that they have in JSON.
std::string field_of(const Cell& cell) {
  if (const auto* text = std::get_if<std::string>(&cell)) return quoted(*text);
  if (const auto* whole = std::get_if<int64_t>(&cell)) return std::to_string(*whole);
  const double number = std::get<double>(cell);
  const auto json = json_number<nlohmann::json>(number);
  // {} gives the shortest digits that read back as the same number.
  return json.is_string() ? json.get<std::string>() : fmt::format("{}", number);
}

std::string line_of(const std::vector<std::string>& fields) {
  return fmt::format("{}\n", fmt::join(fields, ","));
}

}  // namespace

std::string render_csv(const Document& document) {
  const Table& table = data_of(document);
  std::vector<std::string> fields;
  for (const Table::Column& column : table.columns) fields.push_back(quoted(column.name));
  std::string out = line_of(fields);
  for (const auto& row : table.rows) {
    fields.clear();
    for (const Cell& cell : row) fields.push_back(field_of(cell));
    out += line_of(fields);
  }
  return out;
}

}  // namespace lockstep
