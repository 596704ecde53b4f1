// Pages for people: what is on them is what is in the result, and nothing of it is taken for HTML.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <regex>

#include "src/report/marks.h"
#include "src/report/page/html.h"
#include "src/report/render.h"
#include "src/report/report.h"
#include "src/report/result_map.h"
#include "tests/report/json_schema.h"
#include "tests/report/results.h"

namespace lockstep {
namespace {

size_t count(const std::string& text, const std::string& part) {
  size_t n = 0;
  for (size_t at = text.find(part); at != text.npos; at = text.find(part, at + part.size())) ++n;
  return n;
}

// The start tag of the cell of that place.
std::string cell_of(const std::string& page, size_t place) {
  const size_t at = page.find(fmt::format("data-place=\"{}\"", place));
  if (at == page.npos) return "";
  const size_t start = page.rfind('<', at);
  return page.substr(start, page.find('>', at) - start + 1);
}

Json data_of(const std::string& page) {
  const std::string tag = "<script type=\"application/json\" id=\"result\">";
  const size_t at = page.find(tag) + tag.size();
  return Json::parse(page.substr(at, page.find("</script>", at) - at));
}

std::string short_text(const Json& number) {
  return number.is_string() ? number.get<std::string>()
                            : fmt::format("{:.3g}", number.get<double>());
}

TEST(Html, EscapesWhateverCouldEndATextOrAValue) {
  EXPECT_EQ(html_escaped("a<b>&\"'"), "a&lt;b&gt;&amp;&quot;&#39;");
  EXPECT_EQ(html_escaped("ulp \xc2\xb1 \xe2\x9c\x95 \xf0\x9f\x98\x80"),
            "ulp \xc2\xb1 \xe2\x9c\x95 \xf0\x9f\x98\x80");
  const std::string unknown = "\xef\xbf\xbd";
  EXPECT_EQ(html_escaped(std::string("\0\x1b\x7f", 3)), unknown + unknown + unknown);
  // Half a character, one that is longer than it must be, a surrogate, one past the last.
  EXPECT_EQ(html_escaped("\xc2"), unknown);
  EXPECT_EQ(html_escaped("\xc0\xaf"), unknown + unknown);
  EXPECT_EQ(html_escaped("\xed\xa0\x80"), unknown + unknown + unknown);
  EXPECT_EQ(html_escaped("\xf4\x90\x80\x80"), unknown + unknown + unknown + unknown);
  EXPECT_EQ(html_escaped("\xe2\x9c<"), unknown + unknown + "&lt;");
}

TEST(Html, DataEndNoElementAndStayTheSame) {
  Html html;
  const std::string text = "a \"</script>\" \\ \n b";
  const Json data = {{"text", text}, {"list", {1, 2.5, nullptr}}};
  html.json("result", data.dump(2));
  EXPECT_EQ(html.done().find("</script>"), html.done().rfind("</script>"));
  EXPECT_EQ(data_of(html.done()), data);
  EXPECT_EQ(html.done().find(": "), html.done().npos) << "blanks are left out";
}

TEST(Page, HasACellForEachPlaceAndFramesTheFirstFinding) {
  for (const Result& result : {clean_result(), diverged_result()}) {
    const std::string page = page_of(result);
    EXPECT_EQ(count(page, "class=\"cell "), result.places.size());
    EXPECT_EQ(count(page, " first\" href"), result.first ? 1u : 0u);
    for (size_t i = 0; i < result.places.size(); ++i) {
      const bool first = result.first && result.places[i].place == result.first->node.place;
      EXPECT_EQ(cell_of(page, i).find(" first\" ") != std::string::npos, first) << i;
    }
  }
}

TEST(Page, HasTheGlyphsOfTheScreen) {
  Result result = diverged_result();
  int verdict = 0;
  for (PlaceSummary& place : result.places) place.verdict = static_cast<Verdict>(verdict++ % 7);
  const std::string page = page_of(result), screen = render_text({.blocks = map_of(result)});
  for (size_t i = 0; i < result.places.size(); ++i) {
    const Mark& mark = mark_of(result, result.places[i]);
    const size_t cell = page.find(cell_of(page, i));
    EXPECT_EQ(page.substr(page.find('>', cell) + 1, 1), mark.glyph) << i;
    EXPECT_NE(screen.find(fmt::format("{} {}", mark.glyph, mark.says)), screen.npos) << screen;
    EXPECT_NE(cell_of(page, i).find(mark.says), std::string::npos) << i;
  }
}

TEST(Page, OfAHeldRunSaysWhatItWasHeldTo) {
  const std::string page = page_of(diverged_result(), {.tone = RunVerdict::diverged,
                                                       .title = "Check failed <1>",
                                                       .story = "less was looked at",
                                                       .blocks = {Heading{"Beside the baseline"}},
                                                       .json = "{\"format\": \"lockstep-check\"}"});
  EXPECT_NE(page.find("Check failed &lt;1&gt;"), page.npos);
  EXPECT_NE(page.find("id=\"story\">less was looked at<"), page.npos);
  EXPECT_LT(page.find("Beside the baseline"), page.find("id=\"map\""));
  EXPECT_EQ(data_of(page)["format"], "lockstep-check");
}

TEST(Page, SaysTheNumbersOfItsData) {
  Result result = diverged_result();
  result.places[1].introduced_rms = std::numeric_limits<double>::quiet_NaN();
  result.places[1].total_rms = std::numeric_limits<double>::infinity();
  const std::string page = page_of(result);
  const Json data = data_of(page);
  EXPECT_EQ(data, Json::parse(report_json(result)));
  const auto said = [&](size_t place, const char* pattern) {
    std::smatch match;
    const std::string cell = cell_of(page, place);
    return std::regex_search(cell, match, std::regex(pattern)) ? match[1].str() : "nothing";
  };
  const Json& q = data["points"][1];
  EXPECT_EQ(said(1, "worst element (\\S+) of its budget"), short_text(q["worst"]["t1"]));
  EXPECT_EQ(said(1, "T2 (\\S+) of its limit"), short_text(q["worst"]["t2"]));
  EXPECT_EQ(said(1, "introduced rms ([^,;]+)"), "NaN");
  EXPECT_EQ(said(1, "total rms ([^,;]+)"), "Infinity");
  EXPECT_EQ(said(2, "T1"), "nothing") << "of hashes there is no number";
  EXPECT_NE(cell_of(page, 2).find("no number measured"), std::string::npos);
}

TEST(Page, ShowsWhereTheErrorsOfAWrongOpLie) {
  const std::string page = page_of(diverged_result());
  const size_t at = page.find("id=\"w3\"");
  ASSERT_NE(at, page.npos);
  const std::string part = page.substr(at, page.find("</article>", at) - at);
  EXPECT_EQ(count(part, "<th scope=\"row\">head "), 4u);
  EXPECT_NE(part.find("title=\"head 3: 35.2 budgets\""), part.npos);
  // Three of the four positions are wrong in head 3, drawn as one rectangle of that width.
  EXPECT_NE(part.find("class=\"b4\" d=\"M17 0h3v1h-3z\""), part.npos) << part;
  EXPECT_EQ(count(part, "class=\"bar over\""), 1u);
  EXPECT_NE(part.find("<title>32 to 64 budgets: 24 elements</title>"), part.npos);
  EXPECT_EQ(count(part, "<tr>"), 1u + 10u + 1u) << "the head, ten elements, the positions";
  const size_t none = page.find("id=\"w4\"");
  ASSERT_NE(none, page.npos);
  EXPECT_NE(page.find("was not measured", none), page.npos) << "of a finding without elements";
}

TEST(Page, ShowsTokensByMarginAndWhereTheyDiffer) {
  Result result = clean_result();
  result.requests[0].flips = {{1, 5, 9, 12, false, "layer 2 attn.q_rope"}};
  const std::string page = page_of(result);
  EXPECT_NE(page.find("class=\" m0 flip\""), page.npos) << "margin 0.5 ulp";
  EXPECT_NE(page.find("which stems from layer 2 attn.q_rope"), page.npos);
  result.requests[0].flips[0].explained = true;
  EXPECT_NE(page_of(result).find("class=\" m0 flip even\""), page.npos);
}

// Whatever a prompt, a path or a sentence holds stays text.
TEST(Page, TakesNothingForHtml) {
  constexpr const char* kHostile = "</script><img src=x onerror=alert(1)>\"'";
  Result result = diverged_result();
  result.story = result.notes.emplace_back(kHostile);
  result.findings[0].rule = result.blind.emplace_back(kHostile);
  result.first = result.findings[0];
  result.provenance[kHostile] = kHostile;
  result.requests[0].name = result.requests[0].token_texts[1] = kHostile;
  result.scope.selection = kHostile;
  result.places[1].ancestor = kHostile;
  result.confirmations[0].says = kHostile;
  const std::string page = page_of(result);
  EXPECT_EQ(page.find("<img"), page.npos);
  EXPECT_EQ(count(page, "</script>"), 2u) << "of the data and of the program";
  EXPECT_EQ(count(page, "<script"), 2u);
  EXPECT_EQ(data_of(page)["story"], kHostile);
}

TEST(Page, NamesNothingToLoad) {
  for (const Result& result : {clean_result(), diverged_result()}) {
    const std::string page = page_of(result);
    for (const char* word : {"http:", "https:", " src=", "url(", "@import", "<iframe", "fetch("})
      EXPECT_EQ(page.find(word), page.npos) << word;
    EXPECT_NE(page.find("default-src &#39;none&#39;"), page.npos);
  }
}

TEST(Page, OfTwoTracesFramesWhereTheyDepart) {
  DiffResult result{.verdict = DiffResult::Verdict::different,
                    .story = "layer 1 attn.q differs <b>"};
  result.places = {{.place = {&point("embed"), -1}, .rows = 4, .equal = 4},
                   {.place = {&point("attn.q"), 1},
                    .rows = 4,
                    .equal = 1,
                    .measured = 64,
                    .difference_rms = 0.5,
                    .rms = 1,
                    .ulps = 35},
                   {.place = {&point("attn.kv"), 1}, .rows = 4, .equal = 1}};
  result.first_kind = DiffResult::Node{.id = {.place = {&point("attn.q"), 1}}};
  const std::string page = page_of(result);
  EXPECT_EQ(count(page, "class=\"cell "), 3u);
  EXPECT_EQ(count(page, " first\" href"), 1u);
  EXPECT_NE(cell_of(page, 1).find(" first\" "), std::string::npos);
  EXPECT_NE(cell_of(page, 1).find("35 ulp"), std::string::npos);
  EXPECT_NE(cell_of(page, 2).find("other hashes, no numbers"), std::string::npos);
  EXPECT_EQ(page.find("<b>"), page.npos);
  EXPECT_EQ(data_of(page)["verdict"], "different");
}

TEST(Page, OfADocumentHasItsBlocks) {
  const Document document{.blocks = {Heading{"part <1>"}, Paragraph{"A sentence."},
                                     Table{{"name", "x"}, {{std::string("<a>"), 0.5}}}}};
  const std::string page = render_html(document);
  EXPECT_NE(page.find("<h2>part &lt;1&gt;</h2>"), page.npos);
  EXPECT_NE(page.find(">&lt;a&gt;</td>"), page.npos);
  EXPECT_EQ(data_of(page)[0]["name"], "<a>");
}

}  // namespace
}  // namespace lockstep
