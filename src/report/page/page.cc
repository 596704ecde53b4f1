// A page for people: one file that asks nothing of anybody, tells the same without a program, and
// holds the result as data.
#include <fmt/format.h>

#include <variant>

#include "src/judge/ledger.h"
#include "src/report/page/assets.h"
#include "src/report/page/sections.h"
#include "src/report/render.h"
#include "src/report/report.h"

namespace lockstep {
namespace {

// A page may not load, send or embed anything, whatever a prompt holds.
constexpr std::string_view kPolicy =
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'none'";

// The policy forbids every connection: a page may be mailed and opened anywhere.
void write_head(Html& html, std::string_view title) {
  const auto head = html.open("head");
  html.single("meta", {{"charset", "utf-8"}});
  html.single("meta", {{"http-equiv", "Content-Security-Policy"}, {"content", kPolicy}});
  html.single("meta", {{"name", "viewport"}, {"content", "width=device-width, initial-scale=1"}});
  html.single("meta", {{"name", "color-scheme"}, {"content", "light dark"}});
  // Without it a browser asks the server that the page came from for an icon.
  html.single("link", {{"rel", "icon"}, {"href", "data:,"}});
  html.leaf("title", title);
  html.style(kPageStyle);
}

// Writes the frame of a page: `band`, then `body` in its middle.
// The whole result goes along as JSON: who has the page has the numbers.
template <typename Band, typename Body>
std::string page(std::string_view title, const std::string& json, Band band, Body body) {
  Html html;
  html.doctype();
  {
    const auto root = html.open("html", {{"lang", "en"}});
    write_head(html, title);
    const auto all = html.open("body");
    band(html);
    {
      const auto main = html.open("main");
      body(html);
    }
    html.leaf("footer",
              "Made by lockstep. The result is in this page as JSON, in the element "
              "with the id “result”.");
    html.json("result", json);
    html.script(kPageScript);
  }
  return html.done();
}

void write_block(Html& html, const Heading& heading) {
  if (!heading.text.empty()) html.leaf("h2", heading.text);
}
void write_block(Html& html, const Paragraph& paragraph) { html.leaf("p", paragraph.text); }
void write_block(Html& html, const List& list) {
  if (!list.title.empty()) html.leaf("h3", list.title);
  const auto items = html.open("ul", {{"class", "plain"}});
  for (const std::string& item : list.items) html.leaf("li", item);
}
void write_block(Html& html, const KeyValues& facts) {
  const auto list = html.open("dl", {{"class", "facts"}});
  for (const auto& [name, value] : facts.entries) {
    html.leaf("dt", name);
    html.leaf("dd", value);
  }
}
void write_block(Html& html, const Table& table) { write_table(html, table); }
void write_block(Html& html, const Bars& bars) {
  Table table{{"size", "count"}, {}};
  for (const auto& [name, count] : bars.counts) table.rows.push_back({name, count});
  write_table(html, table);
}
void write_block(Html& html, const Conclusion& conclusion) {
  html.leaf("p", fmt::format("{}: {}", conclusion.verdict, conclusion.story), {{"class", "story"}});
}

void write_blocks(Html& html, const std::vector<Block>& blocks) {
  for (const Block& block : blocks) std::visit([&](const auto& b) { write_block(html, b); }, block);
}

}  // namespace

Part::Part(Html& html, std::string_view id, std::string_view heading, std::string_view how)
    : section_(html.open("section", {{"id", id}})) {
  html.leaf("h2", heading);
  if (!how.empty()) html.leaf("p", how, {{"class", "how"}});
}

std::string page_of(const Result& result) {
  return page_of(result,
                 {.tone = result.verdict,
                  .title = result.verdict == RunVerdict::clean          ? "Clean"
                           : result.verdict == RunVerdict::inconclusive ? "Inconclusive"
                           : result.first ? "Diverged at " + text_of(result.first->node.place)
                                          : "Diverged",
                  .story = result.story,
                  .json = report_json(result)});
}

// In the order of a reader's questions: where, what, since when, which tokens, how near were the
// others, what was not looked at, every number.
std::string page_of(const Result& result, const PageTop& top) {
  return page(
      top.title, top.json, [&](Html& html) { write_band(html, result, top); },
      [&](Html& html) {
        if (!top.blocks.empty()) {
          const auto section = html.open("section", {{"id", "held"}});
          write_blocks(html, top.blocks);
        }
        write_map(html, result);
        write_wrong_ops(html, result);
        write_growth(html, result);
        write_error_budget(html, result);
        write_tokens(html, result);
        write_nearness(html, result);
        write_untested(html, result);
        write_places(html, result);
        write_origin(html, result);
      });
}

std::string page_of(const DiffResult& result) {
  return page(
      fmt::format("{}: two traces", name_of(result.verdict)), report_json(result),
      [&](Html& html) { write_band(html, result); },
      [&](Html& html) {
        write_map(html, result);
        write_places(html, result);
      });
}

std::string render_html(const Document& document) {
  if (document.page) return document.page();
  return page(
      "lockstep", render_json(document),
      [](Html& html) {
        const auto band = html.open("header", {{"class", "band"}});
        html.leaf("div", "lockstep", {{"class", "eyebrow"}});
      },
      [&](Html& html) { write_blocks(html, document.blocks); });
}

}  // namespace lockstep
