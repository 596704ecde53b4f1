// The tokens of a run checked against each other: each row that is fed is the prompt's or what the
// pass before chose, positions follow one another, and a request that inherits says what it found.
//
// A text is known by a running hash, text(p) = hash(text(p - 1), token(p)), one number a position,
// so that two rows of any two requests can be told to stand behind the same text in constant time:
// their K and V must then be the same, and logits of the same text can be held to each other.
#include "src/judge/token_flow.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "probes/digest.h"

namespace lockstep {
namespace {

constexpr uint64_t kNoText = 1;  // of no token at all

// The hash of a text with one token more.
uint64_t text_with(uint64_t before, int32_t token) {
  const uint64_t both[] = {before, static_cast<uint64_t>(token)};
  return hash_of(both, sizeof(both));
}

uint64_t text_of_prompt(const RequestInfo& info) {
  uint64_t text = kNoText;
  for (const int32_t token : info.prompt) text = text_with(text, token);
  return text;
}

// The tokens whose logits are as large as the largest, that one included.
std::vector<int32_t> ties_of(const TopLogits& top) {
  std::vector<int32_t> ties;
  for (size_t j = 0; j < top.ids.size(); ++j)
    if (top.values[j] == top.values[0]) ties.push_back(top.ids[j]);
  return ties;
}

}  // namespace

uint64_t TokenFlow::text_at(int32_t request, int32_t position) const {
  if (position < 0) return kNoText;
  const auto found = texts_.find(request);
  const size_t at = position;
  return found == texts_.end() || at >= found->second.size() ? 0 : found->second[at];
}

void TokenFlow::put(int32_t request, int32_t position, int32_t token) {
  std::vector<uint64_t>& texts = texts_[request];
  const uint64_t before = text_at(request, position - 1);
  texts.resize(position + 1);
  texts.back() = text_with(before, token);
  std::vector<int32_t>& tokens = tokens_[request];
  tokens.resize(position + 1);
  tokens.back() = token;
}

std::vector<int32_t> TokenFlow::tokens_up_to(const Row& row) const {
  const std::vector<int32_t>& all = tokens_.at(row.request);
  return {all.begin(), all.begin() + std::min(std::ssize(all), std::ptrdiff_t{row.position} + 1)};
}

std::vector<int32_t> TokenFlow::writers_of(const Inherited& inherited, int64_t page_size) const {
  const int64_t all = std::ssize(inherited.tokens);
  const int64_t shared = std::clamp<int64_t>(page_size, std::min<int64_t>(1, all), all);
  uint64_t text = kNoText;
  for (int64_t p = 0; p < shared; ++p) text = text_with(text, inherited.tokens[p]);
  std::vector<int32_t> writers;
  for (const auto& [request, texts] : texts_)
    if (shared > 0 && request != inherited.request &&
        text_at(request, static_cast<int32_t>(shared) - 1) == text)
      writers.push_back(request);
  return writers;
}

std::vector<bool> TokenFlow::drafts_of(const PassInfo& pass) const {
  const std::set<int32_t> answered(pass.logit_rows.begin(), pass.logit_rows.end());
  std::map<int32_t, int32_t> last;  // row of the pass, by request
  std::vector<bool> drafts;
  for (int32_t i = 0; const PassRow& r : pass.rows) {
    const Row& row = r.row;
    const auto before = last.find(row.request);
    drafts.push_back(before != last.end() && answered.contains(before->second) &&
                     pass.rows[before->second].row.position == row.position - 1 &&
                     text_at(row.request, row.position) == 0 &&
                     !answered_.contains(text_at(row.request, row.position - 1)));
    last[row.request] = i++;
  }
  return drafts;
}

void TokenFlow::refuse_what_others_replace(const PassInfo& pass) {
  if (pending_.empty()) return;
  std::map<int32_t, std::map<int32_t, int32_t>> tokens;  // by request, by position
  for (const Inherited& inherited : pass.inherited)
    if (pending_.contains(inherited.request))
      for (int32_t p = 0; const int32_t token : inherited.tokens)
        tokens[inherited.request].emplace(p++, token);
  for (const PassRow& r : pass.rows)
    if (pending_.contains(r.row.request)) tokens[r.row.request].emplace(r.row.position, r.token);
  for (const auto& of_request : tokens) {
    const int32_t request = of_request.first;
    const std::map<int32_t, int32_t>& own = of_request.second;
    std::vector<Fed>& all = fed_.at(request);
    const std::vector<size_t> drafts = pending_.at(request);
    const auto replaced = [&](size_t i) {
      const auto now = own.find(all[i].position);
      return now != own.end() && now->second != all[i].token;
    };
    if (const auto first = std::ranges::find_if(drafts, replaced); first != drafts.end()) {
      Fed& fed = all[*first];
      const auto chosen = chosen_.find({request, fed.position - 1});
      fed.was_chosen = own.contains(fed.position - 1) && chosen != chosen_.end() &&
                       chosen->second.may_be(fed.token);
      refuse(request, fed.position);
    } else if (own.rbegin()->first >= all[drafts.back()].position) {
      pending_.erase(request);
    }
  }
}

void TokenFlow::refuse(int32_t request, int32_t position) {
  std::vector<Fed>& all = fed_.at(request);
  for (const size_t i : pending_.at(request)) {
    if (all[i].position < position) continue;
    all[i].is_refused = true;
    chosen_.erase({request, all[i].position});
  }
  pending_.erase(request);
  texts_.at(request).resize(std::min<size_t>(texts_.at(request).size(), position));
  tokens_.at(request).resize(texts_.at(request).size());
}

void TokenFlow::close(int32_t request) {
  const auto found = pending_.find(request);
  if (found == pending_.end()) return;
  const std::vector<Fed>& all = fed_.at(request);
  for (const size_t i : found->second) {
    const auto chosen = chosen_.find({request, all[i].position - 1});
    if (chosen == chosen_.end() || chosen->second.may_be(all[i].token)) continue;
    refuse(request, all[i].position);
    return;
  }
  pending_.erase(found);
}

void TokenFlow::begin(const PassInfo& pass) {
  trouble_.clear();
  refuse_what_others_replace(pass);
  const std::vector<bool> drafts = drafts_of(pass);
  for (size_t i = 0; i < drafts.size(); ++i)
    if (drafts[i]) close(pass.rows[i].row.request);
  for (const Inherited& inherited : pass.inherited) {
    next_[inherited.request] = static_cast<int32_t>(inherited.tokens.size());
    for (int32_t p = 0; const int32_t token : inherited.tokens) put(inherited.request, p++, token);
  }
  std::set<int32_t> entered, heirs;
  for (const Inherited& inherited : pass.inherited) heirs.insert(inherited.request);
  for (size_t i = 0; const PassRow& r : pass.rows) {
    const auto [found, first] = next_.try_emplace(r.row.request, 0);
    int32_t& next = found->second;
    // A request may enter a pass at an earlier position: what came after is computed again. But
    // what it inherits there it does not compute.
    const bool again = entered.insert(r.row.request).second && r.row.position < next &&
                       !heirs.contains(r.row.request);
    if (r.row.position != next && !again) {
      continues_ = false;
      Trouble trouble{fmt::format("position {} of request {} was next, found {}", next,
                                  r.row.request, r.row.position)};
      if (first && !pass.inherited_known) {
        begun_at_[r.row.request] = r.row.position;
        trouble = {
            "the trace does not say which tokens a request that begins after its first "
            "position found in the cache",
            /*unknown=*/true};
      }
      trouble_.try_emplace(r.row.request, std::move(trouble));
    }
    next = r.row.position + 1;
    std::vector<Fed>& fed = fed_[r.row.request];
    if (drafts[i++]) pending_[r.row.request].push_back(fed.size());
    fed.push_back({r.row.position, r.token, pass.pass, text_at(r.row.request, r.row.position - 1),
                   r.phase == Phase::decode});
    put(r.row.request, r.row.position, r.token);
  }
  for (const int32_t i : pass.logit_rows) {
    const Row& row = pass.rows[i].row;
    answered_.insert(text_at(row.request, row.position));
    first_answer_.try_emplace(row.request, row.position);
  }
}

void TokenFlow::end(const Pass& pass) {
  if (const RecordedTensor* logits = pass.find(point("logits"), -1);
      logits && logits->shape.rank() == 2)
    vocabulary_ = std::max(vocabulary_, logits->shape[1]);
  const RecordedTensor* tokens = pass.find(point("token"), -1);
  const bool seen = tokens && tokens->dtype == DType::i32 && !tokens->data.view().empty();
  for (size_t i = 0; seen && i < tokens->rows.size(); ++i) {
    const Row& row = tokens->rows[i];
    Chosen chosen{static_cast<int32_t>(value_at(tokens->data, i)), pass.info.pass, {}};
    for (const TopLogits& top : pass.logits)
      if (top.row == row) chosen.ties = ties_of(top);
    choose(row, std::move(chosen));
  }
  if (seen) return;
  for (const TopLogits& top : pass.logits)
    if (std::optional<Chosen> chosen = choice_of(top, pass.info.pass))
      choose(top.row, *std::move(chosen));
}

bool TokenFlow::ends_before(const RequestInfo& info, const Fed& draft) const {
  const int64_t at = draft.position - std::ssize(info.prompt), named = std::ssize(info.tokens);
  if (at < std::ssize(info.forced)) return false;
  if (named > 0) return at >= named || (at == named - 1 && info.tokens[at] != draft.token);
  const auto chosen = chosen_.find({info.id, draft.position - 1});
  return chosen != chosen_.end() && (chosen->second.seen || !info.sampled) &&
         !chosen->second.may_be(draft.token);
}

void TokenFlow::finish(const std::vector<RequestInfo>& requests) {
  // A request has gone back from some tokens: choices behind them are none of its own.
  std::erase_if(chosen_, [this](const auto& chosen) {
    const auto& [request, position] = chosen.first;
    return text_at(request, position) == 0;
  });
  for (const RequestInfo& info : requests) {
    const auto found = pending_.find(info.id);
    if (found == pending_.end() || info.prompt.empty()) continue;
    const std::vector<size_t> drafts = found->second;
    const std::vector<Fed>& all = fed_.at(info.id);
    const int64_t named = std::ssize(info.tokens);
    for (const size_t i : drafts)  // it may have taken less than all that was chosen at once
      if (named > 0 && all[i].position + 1 - std::ssize(info.prompt) >= named)
        chosen_.erase({info.id, all[i].position});
    const auto refused =
        std::ranges::find_if(drafts, [&](size_t i) { return ends_before(info, all[i]); });
    if (refused != drafts.end()) refuse(info.id, all[*refused].position);
  }
}

bool TokenFlow::Chosen::may_be(int32_t other) const {
  return other == token || std::ranges::count(ties, other) > 0;
}

std::optional<TokenFlow::Chosen> TokenFlow::choice_of(const TopLogits& top, int32_t pass) {
  if (top.chosen >= 0) return Chosen{top.chosen, pass, ties_of(top)};
  Chosen chosen{-1, pass, ties_of(top), /*seen=*/false};
  // Where all that were kept are as large, so may be others.
  const bool open = std::ssize(chosen.ties) == kTopLogits;
  if (top.ids.empty() || std::isnan(top.values[0]) || open) return {};
  chosen.token = top.ids[0];
  return chosen;
}

void TokenFlow::choose(const Row& row, Chosen chosen) {
  const uint64_t text = text_at(row.request, row.position);
  chosen_by_text_.emplace(text, chosen.token);
  if (!chosen.seen)
    for (const int32_t tie : chosen.ties) chosen_by_text_.emplace(text, tie);
  chosen_[{row.request, row.position}] = std::move(chosen);
}

void TokenFlow::check_order(const NodeRows& node, NodeOutcome& outcome) const {
  const auto found = trouble_.find(node.request);
  if (found == trouble_.end()) return;
  if (!found->second.unknown) {
    outcome.verdict = Verdict::structural;
    outcome.finding = {.position = node.rows.front().position, .rule = found->second.text};
  } else if (!outcome.is_finding()) {
    outcome.verdict = Verdict::inconclusive;
    outcome.reason = found->second.text;
  }
}

std::vector<TokenFlow::Fed> TokenFlow::fed_of(const RequestInfo& info) const {
  const auto found = fed_.find(info.id);
  return found == fed_.end() || info.prompt.empty() ? std::vector<Fed>{} : found->second;
}

std::optional<int32_t> TokenFlow::other_choice(uint64_t text, int32_t token) const {
  const auto least = chosen_by_text_.lower_bound({text, std::numeric_limits<int32_t>::min()});
  if (least == chosen_by_text_.end() || least->first != text) return {};
  if (chosen_by_text_.contains({text, token})) return {};
  return least->second;
}

void TokenFlow::judge_input(const RequestInfo& info, const Fed& fed,
                            std::vector<Finding>& findings) const {
  const size_t p = fed.position, prompt = info.prompt.size();
  // A prompt and forced tokens are no guesses; a later turn makes decoded rows a prompt too.
  const bool is_given = p < prompt ? !fed.is_decoded : p < prompt + info.forced.size();
  if (fed.is_refused && !is_given && (info.sampled || !fed.was_chosen)) return;
  std::optional<int32_t> wanted;
  std::string from = "the prompt has";
  const auto own = chosen_.find({info.id, fed.position - 1});
  const std::optional<int32_t> other = other_choice(fed.before, fed.token);
  if (p < prompt) {
    wanted = info.prompt[p];
  } else if (p - prompt < info.forced.size()) {
    wanted = info.forced[p - prompt];
    from = "was forced";
  } else if (!info.sampled && own != chosen_.end()) {
    const Chosen& chosen = own->second;
    // A choice that nobody saw is judged by what the request says of it, where it says anything.
    const bool named = p - prompt < info.argmax.size() && info.argmax[p - prompt] == fed.token;
    const bool fits = !chosen.seen && (named || chosen.may_be(fed.token));
    wanted = fits ? fed.token : chosen.token;
    from = chosen.seen ? fmt::format("position {} chose", fed.position - 1)
                       : fmt::format("position {} has the largest logit at", fed.position - 1);
  } else if (!info.sampled && other) {
    wanted = other;
    from = "who had the same tokens chose";
  }
  // The draw is the engine's to state, and is known once the run has ended.
  const bool told = p >= prompt && p - prompt < info.tokens.size();
  if (told && (!wanted || *wanted == fed.token)) {
    wanted = info.tokens[p - prompt];
    from = info.sampled ? "the engine drew" : "the request names";
  }
  if (!wanted || *wanted == fed.token) return;
  findings.push_back(
      {.node = {.place = {&point("embed"), -1}, .pass = fed.pass, .request = info.id},
       .position = fed.position,
       .verdict = Verdict::structural,
       .rule = fmt::format("token {} was fed, but {} token {}", fed.token, from, *wanted)});
}

// Choice i of the request, which its own row made, against what the request says of it.
void TokenFlow::judge_choice(const RequestInfo& info, size_t i,
                             std::vector<Finding>& findings) const {
  const auto position = static_cast<int32_t>(info.prompt.size() + i) - 1;
  const auto chosen = chosen_.find({info.id, position});
  if (chosen == chosen_.end()) return;
  const Chosen& choice = chosen->second;
  const auto other = [&choice](int32_t named) { return !choice.may_be(named); };
  const auto none = [this](int32_t named) {
    return vocabulary_ > 0 && (named < 0 || named >= vocabulary_);
  };
  std::string rule;
  const std::string found =
      choice.seen ? fmt::format("token {} was chosen", choice.token)
                  : fmt::format("the largest logit is that of token {}", choice.token);
  // A token that was fed is judged where it was fed.
  const bool last = text_at(info.id, position + 1) == 0;
  if (i < info.tokens.size() && none(info.tokens[i]))
    rule = fmt::format("the request names token {}, which is none of the {} of the vocabulary",
                       info.tokens[i], vocabulary_);
  else if (i < info.argmax.size() && other(info.argmax[i]))
    rule =
        fmt::format("{}, but the request names {} as the most likely one", found, info.argmax[i]);
  else if (last && i < info.tokens.size() && i >= info.forced.size() && !info.sampled &&
           other(info.tokens[i]))
    rule = fmt::format("{}, but the request names {}", found, info.tokens[i]);
  if (!rule.empty())
    findings.push_back(
        {.node = {.place = {&point("token"), -1}, .pass = choice.pass, .request = info.id},
         .position = position,
         .verdict = Verdict::structural,
         .rule = std::move(rule)});
}

void TokenFlow::judge_lists(const RequestInfo& info, std::vector<Finding>& findings) const {
  if (info.tokens.empty() && info.argmax.empty()) return;  // it says nothing of what it became
  const auto first = static_cast<int32_t>(info.prompt.size()) - 1;
  for (auto at = chosen_.lower_bound({info.id, first});
       at != chosen_.end() && at->first.first == info.id; ++at) {
    const int32_t position = at->first.second;
    const size_t i = position - first;
    const bool likely = i < info.tokens.size();
    // A trace may leave out which ones were the most likely, and the last choice if nobody saw it.
    if (!at->second.seen || (likely && (i < info.argmax.size() || info.argmax.empty()))) continue;
    findings.push_back(
        {.node = {.place = {&point("token"), -1}, .pass = at->second.pass, .request = info.id},
         .position = position,
         .verdict = Verdict::structural,
         .rule = fmt::format("token {} was chosen, but the request names only {} {}",
                             at->second.token, likely ? info.argmax.size() : info.tokens.size(),
                             likely ? "most likely ones" : "tokens")});
    return;
  }
}

bool TokenFlow::lists_begin(const RequestInfo& info) const {
  const auto begun = begun_at_.find(info.id);
  return begun == begun_at_.end() || std::ssize(info.prompt) > begun->second;
}

std::vector<Finding> TokenFlow::wrong_tokens(const std::vector<RequestInfo>& requests) const {
  std::vector<Finding> findings;
  for (const RequestInfo& info : requests) {
    if (!lists_begin(info)) continue;
    for (const Fed& fed : fed_of(info)) judge_input(info, fed, findings);
    if (info.prompt.empty()) continue;
    for (size_t i = 0; i < std::max(info.tokens.size(), info.argmax.size()); ++i)
      judge_choice(info, i, findings);
  }
  return findings;
}

std::vector<Finding> TokenFlow::unnamed_choices(const std::vector<RequestInfo>& requests) const {
  std::vector<Finding> findings;
  for (const RequestInfo& info : requests)
    if (!info.prompt.empty() && lists_begin(info)) judge_lists(info, findings);
  return findings;
}

std::string TokenFlow::unserved(const RequestInfo& info) const {
  const auto fed = fed_.find(info.id);
  if (fed == fed_.end()) {
    // A single token can be chosen without a row after a prompt that another request computed.
    const bool shared = info.tokens.size() == 1 && answered_.contains(text_of_prompt(info));
    return shared ? "" : fmt::format("request {} is in no pass", info.id);
  }
  size_t known = texts_.at(info.id).size();  // positions, with those that it inherited
  for (const Fed& one : fed->second) known = std::max(known, static_cast<size_t>(one.position) + 1);
  if (known < info.prompt.size())
    return fmt::format("of the prompt of request {}, {} of {} tokens are in a pass", info.id, known,
                       info.prompt.size());
  if (info.max_new > 0 && std::ssize(info.tokens) > info.max_new)
    return fmt::format("request {} has {} tokens, and asks for no more than {}", info.id,
                       info.tokens.size(), info.max_new);
  if (std::ssize(info.tokens) >= info.max_new || info.stopped) return "";
  return fmt::format("request {} has {} of the {} tokens that it asks for, and nothing ended it",
                     info.id, info.tokens.size(), info.max_new);
}

std::string TokenFlow::unserved(const std::vector<RequestInfo>& requests) const {
  std::string first;
  int64_t count = 0;
  for (const RequestInfo& info : requests) {
    const std::string why = unserved(info);
    if (!why.empty() && count++ == 0) first = why;
  }
  if (count == 0) return "";
  return fmt::format("{} of {} requests were not served as they ask: {}", count, requests.size(),
                     first);
}

std::string TokenFlow::unseen_choice() const {
  for (const auto& [request, first] : first_answer_)
    for (const Fed& fed : fed_.at(request))
      if (fed.is_decoded && fed.position > first + 1 && !answered_.contains(fed.before))
        return fmt::format(
            "the token of request {} at position {} was chosen by logits that the trace does not "
            "have",
            request, fed.position);
  return "";
}

std::string TokenFlow::undecided(const std::vector<RequestInfo>& requests) const {
  if (requests.empty()) return unseen_choice();
  std::set<int32_t> known;
  for (const RequestInfo& info : requests)
    if (!info.prompt.empty()) known.insert(info.id);
  for (const auto& [request, fed] : fed_)
    if (!known.contains(request))
      return fmt::format(
          "what request {} was to be fed is not known, for the trace has no prompt "
          "of it",
          request);
  if (std::string text = unserved(requests); !text.empty()) return text;
  for (const RequestInfo& info : requests) {
    const size_t given = info.prompt.size() + info.forced.size();
    const auto choice_of = [&](size_t position) {
      return fmt::format(
          "token {} of request {}, at position {}, was chosen by logits that the "
          "trace does not have",
          position - info.prompt.size(), info.id, position);
    };
    for (const Fed& fed : fed_of(info))
      if (static_cast<size_t>(fed.position) >= given && fed.before != 0 &&
          !answered_.contains(fed.before))
        return choice_of(fed.position);
    // Tokens that were chosen and fed to nobody are mostly the last ones.
    uint64_t text = text_of_prompt(info);
    for (size_t i = 0; i < info.tokens.size(); text = text_with(text, info.tokens[i++])) {
      const size_t position = info.prompt.size() + i;
      if (position < given || text_at(info.id, static_cast<int32_t>(position)) != 0) continue;
      if (!answered_.contains(text)) return choice_of(position);
      if (!info.sampled && other_choice(text, info.tokens[i]))
        return fmt::format("token {} of request {} is named {}, which no logits of the trace chose",
                           i, info.id, info.tokens[i]);
    }
  }
  return "";
}

}  // namespace lockstep
