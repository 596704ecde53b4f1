// Documents as Markdown and as JUnit's XML, and results as tests.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

#include "src/report/output.h"
#include "src/report/page/html.h"
#include "src/report/render.h"
#include "src/report/report.h"
#include "tests/helpers.h"

namespace lockstep {
namespace {

void expect_has(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << part << "\nis not in\n" << text;
}

TEST(Markdown, PutsTheVerdictFirstAndDrawsEveryBlock) {
  const Document document{
      .blocks = {Heading{"findings"}, Heading{}, Paragraph{"a line"}, List{{"one", "two"}, "both"},
                 Table{{"op", "nodes"}, {{"attn.q_rope", int64_t{3}}, {"x|y", 0.5}}},
                 KeyValues{{{"dtype", "bf16"}}}, Bars{{{"2^1", 3}}},
                 Conclusion{"diverged", "layer 3"}}};
  const std::string text = render_markdown(document);
  EXPECT_TRUE(text.starts_with("### lockstep: diverged\n\nlayer 3\n\n#### findings\n\na line\n\n"))
      << text;
  expect_has(text, "**both**\n\n- one\n- two\n\n");
  expect_has(text, "| op | nodes |\n| --- | ---: |\n| attn.q_rope | 3 |\n| x\\|y | 0.5 |\n\n");
  expect_has(text, "```text\ndtype           bf16\n```\n");
  expect_has(text, "```text\n  2^1 ");
}

TEST(Markdown, ShowsWhatMeansSomethingAsItIs) {
  const std::string text =
      render_markdown({.blocks = {Paragraph{"<b> *x* `y` _z_ a_b [l](u) #1 @me \n# \x1b[1m"}}});
  EXPECT_EQ(text, "\\<b\\> \\*x\\* \\`y\\` \\_z\\_ a_b \\[l\\](u) \\#1 \\@me  \\#  \\[1m\n\n");
}

// Texts as of a token, a tensor's name or a prompt, that mean something in some format.
constexpr const char* kHostile[] = {"a\033[2Jb\rc\td\x7f",
                                    "a|b|c",
                                    "</td></table><img src=x onerror=y>",
                                    "line\nline\n\n# head",
                                    "```\nend",
                                    "a,\"b\"",
                                    "]]>",
                                    "\xff\xc0\xaf\xed\xa0\x80",
                                    "\u202eevil\u2028",
                                    "- item",
                                    "1. item",
                                    "&amp;",
                                    "*a* _b_ [c](d) <e> ~f~ `g`"};

Document of_text(const std::string& text) {
  const Table table{{"name", "x"}, {{text, int64_t{7}}, {std::string("next"), int64_t{8}}}};
  return {
      .blocks = {Heading{text}, Paragraph{text}, List{{text, "next"}, text},
                 KeyValues{{{"key", text}}}, table, Bars{{{"2^0", 1}}}, Conclusion{"clean", text}},
      .data = table,
      .tests = {text, {{text, TestCase::Outcome::failed, text, text, text}}, {{text, text}}}};
}

// The lines that begin with that text.
int64_t lines_with(const std::string& text, const std::string& beginning) {
  std::istringstream lines(text);
  int64_t found = 0;
  for (std::string line; std::getline(lines, line);) found += line.starts_with(beginning);
  return found;
}

// Markdown without its fenced blocks and escaped brackets, which show what they hold as it is.
std::string meant_in(const std::string& markdown) {
  std::istringstream lines(markdown);
  std::string meant;
  bool fenced = false;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("```")) fenced = !fenced;
    if (!fenced) meant += line + "\n";
  }
  EXPECT_FALSE(fenced) << markdown;
  for (size_t at = 0; (at = meant.find("\\<")) != meant.npos;) meant.erase(at, 2);
  return meant;
}

// Fields of CSV as RFC 4180 has them.
std::vector<std::string> fields_of(const std::string& csv) {
  std::vector<std::string> fields(1);
  bool quoted = false;
  for (size_t i = 0; i < csv.size(); ++i) {
    if (csv[i] == '"' && quoted && i + 1 < csv.size() && csv[i + 1] == '"')
      fields.back() += csv[i++];
    else if (csv[i] == '"')
      quoted = !quoted;
    else if (!quoted && (csv[i] == ',' || csv[i] == '\n'))
      fields.emplace_back();
    else
      fields.back() += csv[i];
  }
  return fields;
}

TEST(EveryFormat, TakesNoTextForItsOwn) {
  for (const std::string text : kHostile) {
    const Document document = of_text(text);
    const std::string screen = render_text(document);
    EXPECT_EQ(std::ranges::count_if(screen, [](char c) { return c != '\n' && c >= 0 && c < ' '; }),
              0)
        << screen;
    EXPECT_EQ(lines_with(screen, "next"), 1) << screen;
    EXPECT_EQ(fields_of(render_csv(document)),
              (std::vector<std::string>{"name", "x", text, "7", "next", "8", ""}));
    EXPECT_EQ(nlohmann::json::parse(render_json(document)).size(), 2u) << text;
    const std::string page = render_html(document);
    EXPECT_EQ(page.find("<img"), page.npos);
    EXPECT_NE(page.find(html_escaped(text) + "</td>"), page.npos) << text;
    const std::string xml = render_junit(document);
    EXPECT_EQ(lines_with(xml, "    <testcase "), 1) << xml;
    for (const char* never : {"<img", "]]>", "\033", "<e>"}) EXPECT_EQ(xml.find(never), xml.npos);
  }
}

TEST(EveryFormat, KeepsATableOfMarkdownWholeWhateverItsTexts) {
  for (const std::string text : kHostile) {
    const std::string markdown = render_markdown(of_text(text));
    EXPECT_EQ(lines_with(markdown, "| "), 4) << markdown;  // the head, its rule, and two rows
    EXPECT_EQ(lines_with(markdown, "#"), 2) << markdown;   // the verdict and one heading
    EXPECT_EQ(lines_with(markdown, "- "), 2) << markdown;  // the list's items
    EXPECT_EQ(lines_with(markdown, "1. "), 0) << markdown;
    EXPECT_EQ(markdown.find('\033'), markdown.npos) << markdown;
    for (const char* never : {"<img", "</td>", "<e>", "\nend"})
      EXPECT_EQ(meant_in(markdown).find(never), std::string::npos) << markdown;
    std::istringstream lines(markdown);
    for (std::string line; std::getline(lines, line);) {
      if (!line.starts_with("| ")) continue;
      const bool hostile = line.find("next") == line.npos && line.find(" 7 ") != line.npos;
      const auto escaped = hostile ? std::ranges::count(text, '|') : 0;
      EXPECT_EQ(std::ranges::count(line, '|') - escaped, 3) << line;
    }
  }
}

TestSuite some_tests() {
  return {.name = "m.1 bf16",
          .cases = {{"norm"},
                    {"rope", TestCase::Outcome::failed, "introduced", "want <1> & \"2\"\n3",
                     "a\tb\x01\r"},
                    {"linear", TestCase::Outcome::trouble, "inconclusive", "\xef\xbf\xbf\xff", ""},
                    {"audit", TestCase::Outcome::skipped},
                    {"tokens", TestCase::Outcome::passed, "", "", "3 of 3 ]]>\n"}},
          .properties = {{"device", "cpu"}}};
}

TEST(Junit, IsWhatReadersOfItTake) {
  EXPECT_EQ(
      render_junit({.tests = some_tests()}),
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
      "<testsuites name=\"lockstep\" tests=\"5\" failures=\"1\" errors=\"1\" skipped=\"1\">\n"
      "  <testsuite name=\"m.1 bf16\" tests=\"5\" failures=\"1\" errors=\"1\" skipped=\"1\">\n"
      "    <properties>\n"
      "      <property name=\"device\" value=\"cpu\"/>\n"
      "    </properties>\n"
      "    <testcase classname=\"m_1 bf16\" name=\"norm\"/>\n"
      "    <testcase classname=\"m_1 bf16\" name=\"rope\">\n"
      "      <failure message=\"want &lt;1&gt; &amp; &quot;2&quot;&#10;3\" "
      "type=\"introduced\">a\tb\\x01\\x0d</failure>\n"
      "    </testcase>\n"
      "    <testcase classname=\"m_1 bf16\" name=\"linear\">\n"
      "      <error message=\"\\uffff\xef\xbf\xbd\" type=\"inconclusive\"></error>\n"
      "    </testcase>\n"
      "    <testcase classname=\"m_1 bf16\" name=\"audit\">\n"
      "      <skipped/>\n"
      "    </testcase>\n"
      "    <testcase classname=\"m_1 bf16\" name=\"tokens\">\n"
      "      <system-out>3 of 3 ]]&gt;\n</system-out>\n"
      "    </testcase>\n"
      "  </testsuite>\n"
      "</testsuites>\n");
  expect_trouble("has no tests", [] { render_junit({}); });
}

TEST(TestsOf, AResultFailWhereItsFindingsAre) {
  Result run;
  run.verdict = RunVerdict::diverged;
  run.provenance = {{"model", "a/m"}, {"compute_dtype", "fp16"}};
  for (const Point* p : {&point("embed"), &point("attn.norm"), &point("attn.q_rope")})
    run.places.push_back({.place = {p, p->per_layer ? 0 : -1}, .expected = 2, .judged = 2});
  run.places[1].judged = 1;
  for (int32_t i = 0; i < 25; ++i)
    run.findings.push_back({.node = {{&point("attn.q_rope"), 0}, i, 0}, .position = 7});
  const TestSuite suite = tests_of(run);
  EXPECT_EQ(suite.name, "m fp16");
  std::vector<std::string> names;
  std::vector<TestCase::Outcome> outcomes;
  for (const TestCase& test : suite.cases) {
    names.push_back(test.name);
    outcomes.push_back(test.outcome);
  }
  EXPECT_EQ(names,
            (std::vector<std::string>{"gather", "norm", "rope", "audit", "tokens", "coverage"}));
  using enum TestCase::Outcome;
  EXPECT_EQ(outcomes,
            (std::vector<TestCase::Outcome>{passed, trouble, failed, skipped, passed, passed}));
  EXPECT_EQ(suite.cases[2].message, "layer 0 attn.q_rope, pass 0: request 0, position 7");
  EXPECT_EQ(std::ranges::count(suite.cases[2].details, '\n'), 21);  // 20, and how many more
  run.findings.clear();
  run.verdict = RunVerdict::inconclusive;
  run.notes = {"K/V audit: 0 rows"};
  EXPECT_EQ(tests_of(run).cases[3].outcome, passed);
  EXPECT_EQ(tests_of(run).cases[5].outcome, trouble);
}

TEST(Put, WritesEveryFileThatIsNamed) {
  const TempFolder folder;
  ReportOptions options{
      .json = folder / "a.json", .markdown = folder / "a.md", .junit = folder / "a.xml"};
  const Document document{.blocks = {Conclusion{"clean", "all"}}, .tests = some_tests()};
  testing::internal::CaptureStdout();
  put(document, options);
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "clean: all\n");
  EXPECT_EQ(text_of(options.markdown), render_markdown(document));
  EXPECT_EQ(text_of(options.junit), render_junit(document));
  options.junit = options.json;
  expect_trouble("--junit and --json were wanted to be two files",
                 [&] { check_outputs(options, {}); });
  append_file(options.markdown, "more");
  EXPECT_EQ(text_of(options.markdown), render_markdown(document) + "more");
  expect_trouble("cannot be written", [&] { append_file(folder / "none/a.md", "x"); });
}

}  // namespace
}  // namespace lockstep
