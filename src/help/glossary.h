// The words of the screens. One table is what --explain says, what the man page lists and what the
// README has of it. To add one: a row in glossary.cc.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace lockstep {

struct Word {
  std::string_view name;
  std::string_view number;  // of a statistic, as limits and JSON results have it: "T1"; else ""
  std::string_view unit;    // of the number that a screen shows under this name; else ""
  std::string_view brief;   // one sentence
  std::string_view more;    // the rest of the paragraph; "" where there is none
  bool everyday = false;    // needed to read any verdict: the README has it

  std::string title() const;  // "max_error (T1), in budgets"
  std::string text() const;   // its paragraph
};

// Constants of the program.
std::span<const Word> glossary();

// The word of that name or number, whatever its case, and with blanks or dashes for underscores;
// null when there is none.
const Word* find_word(std::string_view name);

// Title and paragraph for a terminal of that width. Throws Error with the nearest word when there
// is none of that name.
std::string explanation_of(std::string_view name, size_t width);

}  // namespace lockstep
