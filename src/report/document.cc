#include "src/report/document.h"

#include <algorithm>

namespace lockstep {

bool is_right_aligned(const Table& table, size_t column) {
  if (table.columns[column].align != Align::by_content)
    return table.columns[column].align == Align::right;
  return std::ranges::any_of(table.rows, [column](const auto& row) {
    return !std::holds_alternative<std::string>(row[column]);
  });
}

const Table& data_of(const Document& document) {
  if (!document.data.columns.empty()) return document.data;
  for (const Block& block : document.blocks)
    if (const auto* table = std::get_if<Table>(&block)) return *table;
  return document.data;
}

}  // namespace lockstep
