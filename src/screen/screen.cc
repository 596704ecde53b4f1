#include "src/screen/screen.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <string_view>

namespace lockstep {
namespace {

// The number that the whole text is, or else 0.
int number_of(const char* text) {
  int number = 0;
  if (text == nullptr) return 0;
  const std::string_view all = text;
  const auto [end, error] = std::from_chars(all.data(), all.data() + all.size(), number);
  return error == std::errc{} && end == all.data() + all.size() && number > 0 ? number : 0;
}

int width_of(int descriptor) {
  winsize size{};
  return ::ioctl(descriptor, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

}  // namespace

Screen screen_from(bool is_terminal, int columns_of_device, const char* columns,
                   const char* no_color, const char* term) {
  Screen screen{.terminal = is_terminal};
  if (!is_terminal) return screen;
  if (columns_of_device > 0)
    screen.width = columns_of_device;
  else if (const int told = number_of(columns); told > 0)
    screen.width = told;
  const bool refused = no_color != nullptr && *no_color != '\0';
  // NO_COLOR counts when it is set to any text (no-color.org).
  const bool dumb = term == nullptr || *term == '\0' || std::string_view(term) == "dumb";
  screen.colour = !refused && !dumb;
  return screen;
}

Screen screen_of(int descriptor) {
  return screen_from(::isatty(descriptor) == 1, width_of(descriptor), std::getenv("COLUMNS"),
                     std::getenv("NO_COLOR"), std::getenv("TERM"));
}

size_t Screen::prose_width() const {
  constexpr int kNarrowest = 40, kWidest = 120;
  return std::clamp(width, kNarrowest, kWidest);
}

}  // namespace lockstep
