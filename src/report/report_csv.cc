#include <fmt/format.h>

#include "src/report/report.h"

namespace lockstep {

std::string report_csv(const Result& result) {
  std::string csv =
      "layer,point,verdict,expected,judged,worst_t1,worst_t2,worst_of_row,request,position,pass,"
      "introduced_rms,propagated_rms,total_rms,ancestor\n";
  for (const PlaceSummary& p : result.places)
    csv += fmt::format("{},{},{},{},{},{},{},{},{},{},{},{},{},{},{}\n",
                       p.place.layer < 0 ? "" : std::to_string(p.place.layer), p.place.point->name,
                       name_of(p.verdict), p.expected, p.judged, p.worst_t1, p.worst_t2,
                       p.worst_of_row, p.worst_request, p.worst_position, p.worst_pass,
                       p.introduced_rms, p.propagated_rms, p.total_rms, p.ancestor);
  return csv;
}

}  // namespace lockstep
