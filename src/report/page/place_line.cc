#include <fmt/format.h>

#include <cmath>

#include "src/judge/ledger.h"
#include "src/report/page/sections.h"

namespace lockstep {

// Words, and not "nan" and "inf", since programs read the same in JSON.
std::string short_number(double x, bool measured) {
  if (!measured) return "#";
  if (std::isnan(x)) return "NaN";
  if (std::isinf(x)) return x > 0 ? "Infinity" : "-Infinity";
  return fmt::format("{:.3g}", x);
}

std::string row_id(size_t place) { return fmt::format("p{}", place); }
std::string part_id(size_t place) { return fmt::format("w{}", place); }

// All that is known of a place in one line; what was not measured is not said.
std::string line_of(const PlaceSummary& p, const Mark& mark) {
  std::string line = fmt::format("{}: {}", text_of(p.place), mark.says);
  if (!p.ancestor.empty()) line += ", from " + p.ancestor;
  if (p.measured) {
    line += fmt::format("; worst element {} of its budget (T1)", short_number(p.worst_t1));
    if (p.has_t2) line += fmt::format(", T2 {} of its limit", short_number(p.worst_t2));
    line += fmt::format("; introduced rms {}", short_number(p.introduced_rms));
  }
  if (p.compared) line += fmt::format(", total rms {}", short_number(p.total_rms));
  if (!p.measured && p.judged > 0) line += "; judged by its bits, no number measured";
  line += fmt::format("; {} of {} nodes judged", p.judged, p.expected);
  if (p.excluded > 0) line += fmt::format(", {} elements not finite", p.excluded);
  if (p.judged > 0)
    line += fmt::format("; worst at request {}, position {}", p.worst_request, p.worst_position);
  return line;
}

}  // namespace lockstep
