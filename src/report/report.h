#pragma once

#include <string>

#include "src/diff/diff.h"
#include "src/judge/verdict.h"

namespace lockstep {

// Reports are functions of a Result and know no stream. To add one: write its function in
// report_<name>.cc and its row in src/report/output.cc.
std::string report_table(const Result& result);  // the last line is the verdict
std::string report_json(const Result& result);   // schema: tools/result.schema.json
std::string report_csv(const Result& result);    // one line a place

// The same of two traces against each other; CSV has one line a place too.
std::string report_table(const DiffResult& result);
std::string report_json(const DiffResult& result);
std::string report_csv(const DiffResult& result);

}  // namespace lockstep
