// The surface that text for people is drawn on.
#pragma once

#include <cstddef>

namespace lockstep {

struct Screen {
  int width = 80;       // columns
  bool colour = false;  // whether escape sequences may stand in the text
  bool terminal = false;

  // Columns that prose takes on it: no more than people can read, and as many as its parts need.
  size_t prose_width() const;
};

// The terminal that a descriptor is: its width by the kernel, or else by COLUMNS; colour unless
// NO_COLOR is set to a text or TERM is "dumb". What is no terminal is 80 columns wide and without
// colour, so that a file holds the same whoever wrote it.
Screen screen_of(int descriptor);

// The same decision as a function of what it depends on. A null pointer is a variable that is not
// set; `columns_of_device` is 0 where the kernel does not know.
Screen screen_from(bool is_terminal, int columns_of_device, const char* columns,
                   const char* no_color, const char* term);

}  // namespace lockstep
