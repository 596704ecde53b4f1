#pragma once

#include <string>

#include "src/report/document.h"

namespace lockstep {

// Each draws a document in one format and knows no stream. To add one: write its function in
// render_<name>.cc and its row in src/report/output.cc.
std::string render_text(const Document& document);  // the blocks, for a terminal
std::string render_csv(const Document& document);   // the data, a line a row
std::string render_json(const Document& document);
// A page for people, the document's own or one of its blocks: one file that loads nothing.
std::string render_html(const Document& document);

}  // namespace lockstep
