#pragma once

#include <string>

#include "src/diff/diff.h"
#include "src/judge/verdict.h"
#include "src/report/document.h"

namespace lockstep {

struct Determinism;

// Tells what can be done after a command, so that its screen proposes only what works.
struct NextSteps {
  bool serves = false;      // it was `lockstep run` beside a reference, which can be run again
  bool over_ranks = false;  // of a model over ranks, which takes no --confirm and no --modes
  std::string trace = {};   // what it left or read; "": nothing
  bool kept = false;        // the trace keeps the result
};

// A judgement, and two traces against each other, as documents. CSV has a line a place. A document
// holds copies of what it draws later, so that the result may go.
Document document_of(const Result& result, const NextSteps& steps = {},
                     Detail detail = Detail::screen);
Document document_of(const DiffResult& result);
// The bits of ops, under tools/schemas/determinism.schema.json. CSV has a line an op.
Document document_of(const Determinism& determinism);

// A judgement as tests: one an op class that was looked at (a row of kOpKinds), and `audit` (of the
// K/V cache), `tokens` and `coverage`. Where nodes could not be judged the tests are in trouble.
TestSuite tests_of(const Result& result);
// Two traces as tests: one an op class, of which that fails where the difference begins, and
// `structure`, `tokens` and `coverage`, which is in trouble where nobody can tell.
TestSuite tests_of(const DiffResult& result);

// The same as JSON, with all that is known.
std::string report_json(const Result& result);  // schema: tools/schemas/result.schema.json
std::string report_json(const DiffResult& result);

// The same as a page: one file of HTML that loads nothing, tells the same without JavaScript, and
// holds the JSON.
std::string page_of(const Result& result);
std::string page_of(const DiffResult& result);

// The top of a page of a judged run that was held to more than the judge does.
struct PageTop {
  RunVerdict tone = RunVerdict::clean;
  std::string title, story;
  std::vector<Block> blocks;  // what it was held to, above the parts of the run
  std::string json;           // what the page holds, in the place of the run's own
};
std::string page_of(const Result& result, const PageTop& top);

// The result that report_json() wrote. The report holds neither Result::limit_ratio nor others nor
// reached. Throws Error when `text` is no such report; `name` says in its sentence where it
// comes from.
Result result_from_json(const std::string& text, const std::string& name);

}  // namespace lockstep
