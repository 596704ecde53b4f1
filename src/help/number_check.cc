// The text is checked before it is converted: a conversion would cut a number that is too large, or
// say no more than that it failed.
#include "src/help/number_check.h"

#include <fmt/format.h>

#include <charconv>

#include "kernels/base/printable.h"

namespace lockstep {
namespace {

// All of the text as a number. is_large: it is one, but none that fits.
template <typename Number>
bool read_all(const std::string& text, Number& number, bool& is_large) {
  const char* const end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, number);
  is_large = error == std::errc::result_out_of_range && at == end;
  return error == std::errc() && at == end;
}

bool is_negative(const std::string& text) { return text.starts_with('-'); }

}  // namespace

ValueCheck whole_number(int64_t least, int64_t most) {
  return [least, most](const std::string& text) -> std::string {
    int64_t number = 0;
    bool is_large = false;
    const bool is_whole = read_all(text, number, is_large);
    if (is_whole && number >= least && number <= most) return "";
    const bool too_many = (is_whole && number > most) || (is_large && !is_negative(text));
    return fmt::format("a whole number of {} {} is wanted, found \"{}\"",
                       too_many ? "at most" : "at least", too_many ? most : least, shown(text));
  };
}

ValueCheck positive_number(double most) {
  return [most](const std::string& text) -> std::string {
    double number = 0;
    bool is_large = false;
    const bool is_number = read_all(text, number, is_large);
    if (is_number && number > 0 && number <= most) return "";
    return fmt::format("a number over 0 and up to {:g} is wanted, found \"{}\"", most, shown(text));
  };
}

}  // namespace lockstep
