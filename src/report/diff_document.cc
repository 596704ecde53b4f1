#include <fmt/format.h>

#include <algorithm>

#include "src/judge/ledger.h"
#include "src/report/report.h"

namespace lockstep {
namespace {

Table places_table(const DiffResult& result) {
  Table table{{{"place", Align::left, 24},
               {"equal rows", Align::right, 15},
               {"difference", Align::right, 12},
               {"rms", Align::right, 12},
               {"ulps", Align::right, 9}},
              {},
              "{:.3g}",
              1};
  for (const DiffPlace& p : result.places)
    if (p.equal != p.rows)
      table.rows.push_back({text_of(p.place), fmt::format("{}/{}", p.equal, p.rows),
                            p.difference_rms, p.rms, p.ulps});
  return table;
}

Table data_of(const DiffResult& result) {
  Table table{{"layer", "point", "rows", "equal", "measured", "difference_rms", "rms", "ulps"}, {}};
  for (const DiffPlace& p : result.places)
    table.rows.push_back({p.place.layer < 0 ? Cell("") : Cell(int64_t{p.place.layer}),
                          std::string(p.place.point->name), p.rows, p.equal, p.measured,
                          p.difference_rms, p.rms, p.ulps});
  return table;
}

}  // namespace

Document document_of(const DiffResult& result) {
  Document document{.data = data_of(result), .json = report_json(result)};
  document.page = [result] { return page_of(result); };
  std::vector<Block>& blocks = document.blocks;
  if (Table table = places_table(result); !table.rows.empty()) blocks.push_back(std::move(table));
  for (const std::string& sentence : result.structure) blocks.push_back(Paragraph{sentence});
  if (result.only_a + result.only_b > 0)
    blocks.push_back(
        Paragraph{fmt::format("rows that only the first trace has: {}, only the second: {}",
                              result.only_a, result.only_b)});
  for (const DiffJudgement& j : result.judged)
    blocks.push_back(Paragraph{fmt::format("{} is {}: {}", j.trace, name_of(j.verdict), j.story)});
  blocks.push_back(Conclusion{name_of(result.verdict), result.story});
  return document;
}

}  // namespace lockstep
