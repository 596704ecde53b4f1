// The tokens of each request, by how sure the model in fp64 was of each.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "src/report/page/sections.h"

namespace lockstep {
namespace {

// Tokens of a request that are shown: the last ones of a prompt, the first ones that were chosen.
constexpr size_t kMostPrompt = 120, kMostChosen = 400;
constexpr size_t kMostRequests = 40;

// Blanks and ends of lines as what can be seen.
std::string shown(const std::string& token) {
  std::string text;
  // Other control characters are left to html_escaped().
  for (const char c : token)
    if (c == '\n')
      text += "⏎";
    else if (c == '\t')
      text += "⇥";
    else
      text += c;
  if (text == " ") return "␣";
  return text;
}

// Four times as far a shade: within an ulp any token may win.
std::string_view shade_of(double margin) {
  if (margin <= 1) return "m0";
  if (margin <= 4) return "m1";
  if (margin <= 16) return "m2";
  return margin <= 64 ? "m3" : "m4";
}

// One request: where things stand in it.
class TokenStrip {
 public:
  // A margin and a flip belong to the row that made the choice, one position before the token.
  explicit TokenStrip(const RequestResult& request) : request_(request) {
    for (const Margin& m : request.margins) margins_[m.position] = m.ulp;
    for (const Flip& f : request.flips) flips_[f.position] = &f;
  }

  // position: of the token itself, which was chosen at the position before.
  void write(Html& html, size_t position) const {
    const size_t prompt = request_.prompt.size();
    const bool chosen = position >= prompt;
    const int32_t id = chosen ? request_.tokens[position - prompt] : request_.prompt[position];
    const auto before = static_cast<int32_t>(position) - 1;
    const auto margin = margins_.find(before);
    const auto flip = flips_.find(before);
    std::string kind = chosen ? "" : "prompt";
    std::string title = fmt::format("position {}, token {}", position, id);
    if (margin != margins_.end()) {
      kind += fmt::format(" {}", shade_of(margin->second));
      title += fmt::format(", margin {} ulp", short_number(margin->second));
    }
    if (flip != flips_.end()) {
      const Flip& f = *flip->second;
      kind += f.explained ? " flip even" : " flip";
      title += fmt::format("; the engine chose {}, the fp64 model {}, by {} ulp, {}", f.engine,
                           f.reference, short_number(f.margin_ulp),
                           f.explained          ? "as rounding explains"
                           : f.ancestor.empty() ? "which rounding does not explain"
                                                : "which stems from " + f.ancestor);
    }
    const auto item = html.open("li", {{"class", kind}, {"title", title}});
    if (flip != flips_.end()) html.text(flip->second->explained ? "≈ " : "✕ ");
    html.text(position < request_.token_texts.size() ? shown(request_.token_texts[position])
                                                     : std::to_string(id));
  }

 private:
  const RequestResult& request_;
  std::map<int32_t, double> margins_;
  std::map<int32_t, const Flip*> flips_;
};

// The end of the prompt, and the beginning of what was chosen.
void write_request(Html& html, const RequestResult& request) {
  const size_t prompt = request.prompt.size();
  const size_t first = prompt > kMostPrompt ? prompt - kMostPrompt : 0;
  const size_t end = prompt + std::min(request.tokens.size(), kMostChosen);
  html.leaf("h3", fmt::format("request {}{}{}: {} in, {} out", request.id,
                              request.name.empty() ? "" : " ", request.name, prompt,
                              request.tokens.size()));
  const auto list = html.open("ol", {{"class", "tokens"}});
  if (first > 0) html.leaf("li", fmt::format("… {} tokens before", first), {{"class", "prompt"}});
  const TokenStrip strip(request);
  for (size_t position = first; position < end; ++position) strip.write(html, position);
  if (end < prompt + request.tokens.size())
    html.leaf("li", fmt::format("… {} more", prompt + request.tokens.size() - end));
}

}  // namespace

void write_tokens(Html& html, const Result& result) {
  if (result.requests.empty()) return;
  const Part part(html, "tokens", "Tokens, by margin",
                  "The darker a token, the nearer the runner-up was in the fp64 model: up to 1, 4, "
                  "16, 64 ulp of the run's dtype, and more. Pale text is the prompt. ✕: another "
                  "token than the fp64 model's; ≈: another, at a margin that rounding explains.");
  for (size_t i = 0; i < std::min(result.requests.size(), kMostRequests); ++i)
    write_request(html, result.requests[i]);
  if (result.requests.size() > kMostRequests)
    html.leaf("p", fmt::format("{} more requests are in the data.",
                               result.requests.size() - kMostRequests));
}

}  // namespace lockstep
