// A result that a trace keeps, and what is made of it.
#include "src/judge/verdict.h"
#include "src/report/report.h"
#include "tests/fuzz/target.h"

namespace lockstep::fuzz {

void read(std::string_view input) {
  const Result result = result_from_json(std::string(input), "x.json");
  report_json(result);
  page_of(result);
  document_of(result);
}

}  // namespace lockstep::fuzz
