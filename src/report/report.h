#pragma once

#include <string>

#include "src/diff/diff.h"
#include "src/judge/verdict.h"
#include "src/report/document.h"

namespace lockstep {

// Tells what can be done after a command, so that its screen proposes only what works.
struct NextSteps {
  bool serves = false;     // it was `lockstep run` beside a reference, which can be run again
  std::string trace = {};  // what it left or read; "": nothing
  bool kept = false;       // the trace keeps the result
};

// A judgement, and two traces against each other, as documents. CSV has a line a place.
Document document_of(const Result& result, const NextSteps& steps = {},
                     Detail detail = Detail::screen);
Document document_of(const DiffResult& result);

// A judgement as tests: one an op class that was looked at (a row of kOpKinds), and `audit` (of the
// K/V cache), `tokens` and `coverage`. Where nodes could not be judged the tests are in trouble.
TestSuite tests_of(const Result& result);

// The same as JSON, with all that is known.
std::string report_json(const Result& result);  // schema: tools/schemas/result.schema.json
std::string report_json(const DiffResult& result);

// The same as a page: one file of HTML that loads nothing, tells the same without JavaScript, and
// holds the JSON.
std::string page_of(const Result& result);
std::string page_of(const DiffResult& result);

// The result that report_json() wrote. The report holds neither Result::limit_ratio nor others nor
// reached. Throws Error when `text` is no such report; `name` says in its sentence where it
// comes from.
Result result_from_json(const std::string& text, const std::string& name);

}  // namespace lockstep
