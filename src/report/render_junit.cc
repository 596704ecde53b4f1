// The tests of a document in JUnit's XML, which CI systems read. Characters that XML 1.0 has no way
// to hold are written as a programmer writes them, \x1b.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "kernels/base/check.h"
#include "kernels/base/utf8.h"
#include "src/report/render.h"

namespace lockstep {
namespace {

// Bytes that are no UTF-8 become replacement characters, as in JSON.
std::string valid(const std::string& text) {
  using Json = nlohmann::json;
  // A JSON writer repairs the text, and what is read back of it is UTF-8.
  return Json::parse(Json(text).dump(-1, ' ', false, Json::error_handler_t::replace));
}

// XML has no way to hold most control characters and U+FFFE and U+FFFF, not even by number: they
// are shown as a programmer writes them.
std::string unmentionable(const std::string& text, size_t at) {
  const uint8_t byte = byte_of(text[at]);
  if (byte < 0x20 || byte == 0x7f) return fmt::format("\\x{:02x}", byte);
  const std::string_view three = std::string_view(text).substr(at, 3);
  if (three == "\xef\xbf\xbe") return "\\ufffe";
  return three == "\xef\xbf\xbf" ? "\\uffff" : "";
}

// For an attribute, where line ends and tabs would be read as blanks, or for an element.
std::string escaped(const std::string& raw, bool attribute) {
  const std::string text = valid(raw);
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const bool blank = c == '\n' || c == '\t';
    if (c == '&') {
      out += "&amp;";
    } else if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else if (c == '"') {
      out += "&quot;";
    } else if (blank && attribute) {
      out += fmt::format("&#{};", byte_of(c));
    } else if (blank) {
      out += c;
    } else if (const std::string shown = unmentionable(text, i); !shown.empty()) {
      out += shown;
      // U+FFFE and U+FFFF are three bytes.
      if (shown[1] == 'u') i += 2;
    } else {
      out += c;
    }
  }
  return out;
}

std::string attribute(const char* name, const std::string& value) {
  return fmt::format(" {}=\"{}\"", name, escaped(value, /*attribute=*/true));
}

// " tests=.. failures=.. errors=.. skipped=.."
std::string counts_of(const TestSuite& suite) {
  const auto count = [&](TestCase::Outcome outcome) {
    return std::to_string(std::ranges::count(suite.cases, outcome, &TestCase::outcome));
  };
  return attribute("tests", std::to_string(suite.cases.size())) +
         attribute("failures", count(TestCase::Outcome::failed)) +
         attribute("errors", count(TestCase::Outcome::trouble)) +
         attribute("skipped", count(TestCase::Outcome::skipped));
}

std::string element_of(const TestCase& test) {
  const std::string about = attribute("message", test.message) + attribute("type", test.kind);
  const std::string details = escaped(test.details, /*attribute=*/false);
  switch (test.outcome) {
    case TestCase::Outcome::failed:
      return fmt::format("      <failure{}>{}</failure>\n", about, details);
    case TestCase::Outcome::trouble:
      return fmt::format("      <error{}>{}</error>\n", about, details);
    case TestCase::Outcome::skipped:
      return "      <skipped/>\n";
    case TestCase::Outcome::passed:
      break;
  }
  return details.empty() ? "" : fmt::format("      <system-out>{}</system-out>\n", details);
}

}  // namespace

std::string render_junit(const Document& document) {
  const TestSuite& suite = document.tests;
  check(!suite.cases.empty(), "this result has no tests: leave out --junit");
  // Readers take a dot for the end of a package's name.
  std::string group = suite.name;
  std::ranges::replace(group, '.', '_');
  std::string out = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n";
  out += fmt::format("<testsuites{}{}>\n  <testsuite{}{}>\n", attribute("name", "lockstep"),
                     counts_of(suite), attribute("name", suite.name), counts_of(suite));
  if (!suite.properties.empty()) out += "    <properties>\n";
  for (const auto& [name, value] : suite.properties)
    out +=
        fmt::format("      <property{}{}/>\n", attribute("name", name), attribute("value", value));
  if (!suite.properties.empty()) out += "    </properties>\n";
  for (const TestCase& test : suite.cases) {
    const std::string inside = element_of(test);
    const std::string head = attribute("classname", group) + attribute("name", test.name);
    out += inside.empty() ? fmt::format("    <testcase{}/>\n", head)
                          : fmt::format("    <testcase{}>\n{}    </testcase>\n", head, inside);
  }
  return out + "  </testsuite>\n</testsuites>\n";
}

}  // namespace lockstep
