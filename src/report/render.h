#pragma once

#include <string>

#include "src/report/document.h"
#include "src/report/screen.h"

namespace lockstep {

// Each draws a document in one format and knows no stream. To add one: write its function in
// render_<name>.cc and its row in src/report/output.cc.
std::string render_text(const Document& document);  // the blocks, for a terminal of 80 columns
std::string render_text(const Document& document, const Screen& screen);
std::string render_csv(const Document& document);  // the data, a line a row
std::string render_json(const Document& document);

}  // namespace lockstep
