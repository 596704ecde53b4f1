#include "src/judge/token_flow.h"

#include <fmt/format.h>

#include <optional>
#include <set>

namespace lockstep {

void TokenFlow::begin(const Pass& pass) {
  trouble_.clear();
  for (const Inherited& inherited : pass.info.inherited)
    next_[inherited.request] = static_cast<int32_t>(inherited.tokens.size());
  std::set<int32_t> entered;
  for (const PassRow& r : pass.info.rows) {
    int32_t& next = next_[r.row.request];
    // A request may enter a pass at an earlier position: what came after is computed again.
    const bool again = entered.insert(r.row.request).second && r.row.position < next;
    if (r.row.position != next && !again) {
      continues_ = false;
      trouble_.try_emplace(r.row.request,
                           fmt::format("position {} of request {} was next, found {}", next,
                                       r.row.request, r.row.position));
    }
    next = r.row.position + 1;
    fed_[r.row.request].push_back({r.row.position, r.token, pass.info.pass});
  }
  const KeptTensor* tokens = pass.find(point("token"), -1);
  if (!tokens || tokens->dtype != DType::i32 || tokens->data.view().empty()) return;
  for (size_t i = 0; i < tokens->rows.size(); ++i)
    chosen_[{tokens->rows[i].request, tokens->rows[i].position}] =
        static_cast<int32_t>(value_at(tokens->data, static_cast<int64_t>(i)));
}

void TokenFlow::check_order(const NodeRows& node, NodeOutcome& outcome) const {
  const auto found = trouble_.find(node.request);
  if (found == trouble_.end()) return;
  outcome.verdict = Verdict::structural;
  outcome.finding = {.position = node.rows.front().position, .rule = found->second};
}

std::vector<Finding> TokenFlow::wrong_tokens(const std::vector<RequestInfo>& requests) const {
  std::vector<Finding> findings;
  for (const RequestInfo& info : requests) {
    const auto fed = fed_.find(info.id);
    if (fed == fed_.end() || info.prompt.empty()) continue;
    for (const Fed& f : fed->second) {
      const auto p = static_cast<size_t>(f.position);
      std::optional<int32_t> wanted;
      std::string from = "the prompt has";
      if (p < info.prompt.size()) {
        wanted = info.prompt[p];
      } else if (p - info.prompt.size() < info.forced.size()) {
        wanted = info.forced[p - info.prompt.size()];
        from = "was forced";
      } else if (info.sampled) {
        // The draw is the engine's to state, and is known once the run has ended.
        if (p - info.prompt.size() < info.tokens.size())
          wanted = info.tokens[p - info.prompt.size()];
        from = "the engine drew";
      } else if (const auto chosen = chosen_.find({info.id, f.position - 1});
                 chosen != chosen_.end()) {
        wanted = chosen->second;
        from = fmt::format("position {} chose", f.position - 1);
      }
      if (!wanted || *wanted == f.token) continue;
      findings.push_back(
          {.request = info.id,
           .position = f.position,
           .pass = f.pass,
           .place = {&point("embed"), -1},
           .verdict = Verdict::structural,
           .rule = fmt::format("token {} was fed, but {} token {}", f.token, from, *wanted)});
    }
  }
  return findings;
}

}  // namespace lockstep
