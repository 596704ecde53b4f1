// The parts of a page, each a function that writes it, in the order in which they are read.
//
//   band       the verdict, and what it is about
//   map        layers x points: which ops are right, which are wrong, which carry an error
//   growth     the error that is in the stream and what each op adds, along the graph
//   budget     which ops cause the error of the logits, where that was asked for
//   wrong ops  of each: where its errors lie, how large they are, the ten worst
//   tokens     each token by how sure the model was of it
//   nearness   how much of its limit each kind of op used
//   untested   what this run could not have shown, what it takes for granted, notes
//   places     every number of every op
//   origin     provenance, limits
//
// A part of which there is nothing to say is left out.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "src/diff/diff.h"
#include "src/judge/verdict.h"
#include "src/report/document.h"
#include "src/report/marks.h"
#include "src/report/page/html.h"
#include "src/report/report.h"

namespace lockstep {

void write_band(Html& html, const Result& result, const PageTop& top);
void write_map(Html& html, const Result& result);
void write_growth(Html& html, const Result& result);
void write_error_budget(Html& html, const Result& result);
void write_wrong_ops(Html& html, const Result& result);
void write_tokens(Html& html, const Result& result);
void write_nearness(Html& html, const Result& result);
void write_untested(Html& html, const Result& result);
void write_places(Html& html, const Result& result);
void write_origin(Html& html, const Result& result);

// The parts of a page of two traces.
void write_band(Html& html, const DiffResult& result);
void write_map(Html& html, const DiffResult& result);
void write_places(Html& html, const DiffResult& result);

// A table as it is, numbers to the right. kind: "tight" is as wide as it must be.
void write_table(Html& html, const Table& table, std::string_view kind = "");

// Three digits; NaN, Infinity and -Infinity as in JSON, and "#" where nothing was measured.
std::string short_number(double x, bool measured = true);

// Ids of what the page has about the place of that number: a row of the table of places, and a part
// when it is wrong.
std::string row_id(size_t place);
std::string part_id(size_t place);

// All that is said of a place in one line.
std::string line_of(const PlaceSummary& place, const Mark& mark);

// A map of layers x points. Draws places by layer and point, those of no layer before and after.
struct PlaceMap {
  struct Cell {
    Place place;
    std::string kind;  // the class of its colours
    std::string glyph;
    std::string line;  // all that is said of it: its title and its name for who cannot see
    std::string link;  // id of what tells more
    bool first = false;
  };
  // A choice of the filter: a class of cells or a group of them, with the number of cells.
  struct Choice {
    std::string id, kind, glyph, label;
    size_t cells = 0;
  };

  std::vector<Cell> cells;  // their numbers on the page are those of this order
  std::vector<Choice> choices;

  void write(Html& html) const;
};

// A part of the page with a heading and a sentence on how to read it; it ends with its scope.
class Part {
 public:
  Part(Html& html, std::string_view id, std::string_view heading, std::string_view how = "");

 private:
  Html::Element section_;
};

}  // namespace lockstep
