#include "src/report/document.h"

namespace lockstep {

const Table& data_of(const Document& document) {
  if (!document.data.columns.empty()) return document.data;
  for (const Block& block : document.blocks)
    if (const auto* table = std::get_if<Table>(&block)) return *table;
  return document.data;
}

}  // namespace lockstep
