// GitHub reads commands from what a step prints: ::error title=..::message, with its own escapes.
#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "kernels/base/utf8.h"
#include "src/check/check_report.h"

namespace lockstep {
namespace {

constexpr size_t kOfAKind = 10;  // GitHub shows that many errors of a step, and as many notices

std::string escaped(const std::string& text, std::string_view meaningful) {
  std::string out;
  for (const char c : text) {
    if (meaningful.find(c) == std::string_view::npos)
      out += c;
    else
      out += fmt::format("%{:02X}", byte_of(c));
  }
  return out;
}

std::string command(const char* level, const std::string& title, const std::string& message) {
  return fmt::format("::{} title={}::{}\n", level, escaped(title, "%\r\n:,"),
                     escaped(message, "%\r\n"));
}

std::string commands_of(const char* level, const std::vector<CheckResult::Item>& items) {
  std::string out;
  for (size_t i = 0; i < std::min(kOfAKind, items.size()); ++i) {
    const CheckResult::Item& item = items[i];
    const std::string at = item.op_class ? fmt::format(" at {}", name_of(*item.op_class)) : "";
    out += command(level, fmt::format("lockstep: {}{}", name_of(item.kind), at), item.says);
  }
  return out;
}

}  // namespace

std::string annotations_of(const CheckResult& result) {
  std::string out = commands_of("error", result.failures);
  if (result.verdict == CheckResult::Verdict::inconclusive)
    out = command("error", "lockstep: inconclusive", result.story) + out;
  return out + commands_of("notice", result.notes);
}

}  // namespace lockstep
