#pragma once

#include <string>

#include "src/diff/diff.h"
#include "src/judge/verdict.h"
#include "src/report/document.h"

namespace lockstep {

// A judgement, and two traces against each other, as documents. CSV has a line a place.
Document document_of(const Result& result, Detail detail = Detail::screen);
Document document_of(const DiffResult& result);

// The same as JSON, with all that is known.
std::string report_json(const Result& result);  // schema: tools/result.schema.json
std::string report_json(const DiffResult& result);

// The result that report_json() wrote. The report holds neither Result::limit_ratio nor
// Result::others. Throws Error when `text` is no such report; `name` says in its sentence where it
// comes from.
Result result_from_json(const std::string& text, const std::string& name);

}  // namespace lockstep
