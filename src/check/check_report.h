// The faces of a check: a document for people and tables, JSON for programs, annotations for
// GitHub. All three are functions of CheckResult.
#pragma once

#include <string>

#include "src/check/check.h"
#include "src/report/document.h"

namespace lockstep {

// A check as a document; CSV has a line an op class.
Document document_of(const CheckResult& result);

// The same as JSON, with all that is known: schema tools/schemas/check.schema.json, and in its
// `result` the judgement by tools/schemas/result.schema.json.
std::string report_json(const CheckResult& result);

// Workflow commands of GitHub, a line each, that show failures and notes beside the job.
std::string annotations_of(const CheckResult& result);

}  // namespace lockstep
