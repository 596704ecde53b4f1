#pragma once

#include <string>

#include "src/report/document.h"
#include "src/screen/screen.h"

namespace lockstep {

// Each draws a document in one format and knows no stream. To add one: write its function in
// render_<name>.cc and its row in src/report/output.cc.
std::string render_text(const Document& document);  // the blocks, for a terminal of 80 columns
std::string render_text(const Document& document, const Screen& screen);
std::string render_csv(const Document& document);  // the data, a line a row
std::string render_json(const Document& document);
// The verdict as a heading, then the blocks, as GitHub shows them on a page.
std::string render_markdown(const Document& document);
// The tests, as the readers of JUnit's XML take them. Throws Error when there are none.
std::string render_junit(const Document& document);
// A page for people, the document's own or one of its blocks: one file that loads nothing.
std::string render_html(const Document& document);

}  // namespace lockstep
