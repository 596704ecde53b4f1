#include "src/report/untested.h"

#include <fmt/format.h>

namespace lockstep {

// "name (why): remedy", as a result has its lines, taken apart.
Untested untested_from(const std::string& line) {
  const size_t open = line.find(" ("), close = line.rfind("): ");
  if (open == std::string::npos) return {line, "", ""};
  const size_t end = close == std::string::npos ? line.rfind(')') : close;
  if (end == std::string::npos || end < open) return {line, "", ""};
  return {line.substr(0, open), line.substr(open + 2, end - open - 2),
          close == std::string::npos ? "" : line.substr(close + 3)};
}

Document untested_document(const Result& result) {
  Table data{{"untested", "why", "would_show"}, {}};
  Document document;
  document.blocks.push_back(Paragraph{
      result.blind.empty() ? "There is no class of bugs that is known to be hidden from this run."
                           : "Bugs of these could not have shown in this run, whatever its "
                             "verdict. What would show them stands last."});
  for (const std::string& line : result.blind) {
    const Untested what = untested_from(line);
    data.rows.push_back({what.name, what.why, what.remedy});
    document.blocks.push_back(Paragraph{what.name, 2, 4, /*strong=*/true});
    KeyValues lines{{}, 4, 6};
    if (!what.why.empty()) lines.entries.emplace_back("why", what.why);
    if (!what.remedy.empty()) lines.entries.emplace_back("try", what.remedy);
    document.blocks.push_back(std::move(lines));
  }
  document.data = std::move(data);
  return document;
}

}  // namespace lockstep
