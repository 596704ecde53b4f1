// The questions that every renderer asks of a document, answered once for all of them.
#include "src/report/document.h"

#include <algorithm>

namespace lockstep {

// A column stands right as soon as one of its cells is a number: empty texts stand for numbers that
// were not measured.
bool Table::is_right_aligned(size_t column) const {
  if (columns[column].align != Table::Align::by_content)
    return columns[column].align == Table::Align::right;
  return std::ranges::any_of(rows, [column](const auto& row) {
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
