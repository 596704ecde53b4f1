// The room of reports has two halves that know nothing of each other. Documents are made of
// results: what is said, in which order, with which numbers. Renderers draw a document in one
// format: they know no result. A new result needs one function, a new format another. Numbers are
// kept as numbers up to the renderer, so that a program reads all digits of what people see
// rounded.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace lockstep {

// A cell of a table: text, a whole number or a fraction. A fraction that is not finite is told by
// each renderer in its own way.
using Cell = std::variant<std::string, int64_t, double>;

// Where it is wider than the screen, its widest column of text is broken into lines if that makes
// it fit; else the columns that do not fit stand below the others, beside the first one again.
// Every row has a cell for each column.
struct Table {
  enum class Align : uint8_t {
    by_content,  // numbers right, text left
    left,
    right,
  };

  struct Column {
    Column(const char* name_) : name(name_) {}
    Column(std::string name_) : name(std::move(name_)) {}
    Column(std::string name_, Align align_, int least_width_)
        : name(std::move(name_)), align(align_), least_width(least_width_) {}

    std::string name;
    Align align = Align::by_content;
    int least_width = 0;  // characters that people's table gives it, however short its cells are
  };

  std::vector<Column> columns;
  std::vector<std::vector<Cell>> rows;
  const char* number_format = "{:.4g}";  // of fractions, when people read them
  int gap = 2;                           // blanks between two columns, when people read them
  std::string title = {};                // a line above it
  bool marks = false;                    // its texts are glyphs of a map, "=" ".", "~" and the like

  // Whether a column stands at its right edge.
  bool is_right_aligned(size_t column) const;
};

// Begins a part of the document. One without text only separates what follows from what precedes.
struct Heading {
  std::string text;
};

// Prose, in as many lines as the screen needs.
struct Paragraph {
  std::string text;
  int indent = 0;       // blanks before its first line
  int hang = 0;         // and before the others
  bool strong = false;  // as the title of what follows
};

struct List {
  std::vector<std::string> items;
  std::string title = {};  // a line above it
};

// Names and what they stand for; a value's lines stand below each other.
struct KeyValues {
  std::vector<std::pair<std::string, std::string>> entries;
  int indent = 0;      // blanks before the names
  int key_width = 16;  // columns of a name, with the blanks behind it
};

// The data of a bar chart: how many there are of each name.
struct Bars {
  std::vector<std::pair<std::string, int64_t>> counts;
};

// The last word of a result, and the last line of what scripts read: only a terminal breaks it.
struct Conclusion {
  std::string verdict, story;
};

using Block = std::variant<Heading, Paragraph, List, KeyValues, Table, Bars, Conclusion>;

// One line of a report of tests.
struct TestCase {
  enum class Outcome : uint8_t {
    passed,
    failed,   // there is a difference
    trouble,  // it could not be told
    skipped,  // it was not tried
  };

  std::string name;
  Outcome outcome = Outcome::passed;
  std::string kind = {};     // of what is wrong, one word
  std::string message = {};  // a sentence; of a case that passed none
  std::string details = {};  // lines
};

// A result as continuous integration counts it.
struct TestSuite {
  std::string name;
  std::vector<TestCase> cases;
  std::vector<std::pair<std::string, std::string>> properties = {};
};

// A result as it is told, before it is known in which format. Renderers (render.h) are functions of
// it:
//
//   Result, DiffResult, Selftest, a trace, a table  ->  Document  ->  table, csv, json,
//                                                                      markdown, junit
// It owns all that it says but `page`, which may hold a copy of the result that it draws.
struct Document {
  std::vector<Block> blocks;  // for people, in the order in which they read
  // For programs: all rows with all digits. Without columns, the first table of the blocks.
  Table data = {};
  // For programs: the whole result. Empty: the rows of the data are all there is.
  std::string json = {};
  // For continuous integration; without cases the result has no such form.
  TestSuite tests = {};
  // For people: a page of its own. None: a page of the blocks.
  std::function<std::string()> page = {};
};

// How much of a result people are shown.
enum class Detail : uint8_t {
  verdict,     // its last word alone
  screen,      // the gravest of everything
  everything,  // all places and findings, however many
};

// The table that programs read. It belongs to the document. Empty where there is neither data nor a
// table among the blocks.
const Table& data_of(const Document& document);

}  // namespace lockstep
