#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_set>
#include <vector>

#include "probes/recorder.h"
#include "src/judge/ledger.h"
#include "src/judge/pass_view.h"
#include "traces/trace.h"

namespace lockstep {

// Whether the passes hang together: positions of a request follow each other, and what is fed at a
// position is the prompt, what was forced, or what was chosen one position earlier. It keeps the
// tokens of all requests, and of each position one hash, for the whole run.
class TokenFlow {
 public:
  // The passes in their order: what each was fed, and, when it has ended, what it chose. After the
  // last of them what the requests became, before anything is asked of the whole run.
  void begin(const PassInfo& pass);
  void end(const Pass& pass);
  void finish(const std::vector<RequestInfo>& requests);
  // Whether every request of this pass, and of all before it, went on where it had stopped or its
  // inherited tokens end, or started again earlier.
  bool continues() const { return continues_; }
  // Makes the outcome of embed structural where this pass's positions do not follow; inconclusive
  // where they may follow what a request inherited, of which the trace says nothing.
  void check_order(const NodeRows& node, NodeOutcome& outcome) const;

  // One structural finding for every pass and request that was fed another token than it should
  // have been (at embed), or whose choice is not the one that the request names (at token): another
  // one, or one that is no token of the vocabulary. Known only at the end: a run may be
  // forced from outside.
  std::vector<Finding> wrong_tokens(const std::vector<RequestInfo>& requests) const;
  // One at token for the first choice of a request that its lists, where it has any, do not name.
  std::vector<Finding> unnamed_choices(const std::vector<RequestInfo>& requests) const;
  // The requests that may have written what that one inherits: those that begin with as many of its
  // tokens as a page holds, or with all. 0: it is not known how many a page holds.
  std::vector<int32_t> writers_of(const Inherited& inherited, int64_t page_size) const;
  // The tokens of a request up to that row, which was fed, its own included.
  std::vector<int32_t> tokens_up_to(const Row& row) const;
  // Says which tokens cannot be judged, in a sentence's words; empty: none. That includes those
  // that were asked for and not served: a request that no pass computes, a prompt of which a part
  // is in no pass, fewer tokens than the request asks for though nothing ended it. Without any
  // request the tokens that were fed are taken for granted, but for those that were decoded after
  // a row that has no logits, where an earlier one of the request has.
  std::string undecided(const std::vector<RequestInfo>& requests) const;

 private:
  struct Fed {
    int32_t position, token, pass;
    uint64_t before;  // text; 0: not known
    bool is_decoded;
    bool is_refused = false;  // a draft that did not stay
    bool was_chosen = false;  // one that its row chose, which was computed again with another there
  };
  struct Trouble {
    std::string text;
    bool unknown = false;  // whether it is one
  };
  struct Chosen {
    int32_t token, pass;
    std::vector<int32_t> ties;  // whose logits are as large
    bool seen = true;           // false: nobody recorded the choice, and this has the largest logit
    bool may_be(int32_t other) const;
  };
  // The choice that a row of logits names, or else the largest of them.
  static std::optional<Chosen> choice_of(const TopLogits& top, int32_t pass);
  void choose(const Row& row, Chosen chosen);
  void put(int32_t request, int32_t position, int32_t token);
  // By row of the pass that begins, whether it is a draft of speculative decoding: it is fed where
  // nobody had fed anything, in one pass with the row that chooses what stands there, behind tokens
  // of which that is not known yet. Rows of a prompt may be the same.
  std::vector<bool> drafts_of(const PassInfo& pass) const;
  // Refuses drafts from where a pass feeds, or a request inherits, another token.
  void refuse_what_others_replace(const PassInfo& pass);
  // Ends the pending drafts of a request that has new ones: none that was not chosen had stayed.
  void close(int32_t request);
  // Takes back the pending drafts of a request from a position on, and what they chose.
  void refuse(int32_t request, int32_t position);
  // Whether a draft that is pending at the end did not stay.
  bool ends_before(const RequestInfo& info, const Fed& draft) const;
  uint64_t text_at(int32_t request, int32_t position) const;
  std::vector<Fed> fed_of(const RequestInfo& info) const;
  // The least token that anybody chose behind that text, where nobody chose this one.
  std::optional<int32_t> other_choice(uint64_t text, int32_t token) const;
  void judge_input(const RequestInfo& info, const Fed& fed, std::vector<Finding>& findings) const;
  void judge_choice(const RequestInfo& info, size_t i, std::vector<Finding>& findings) const;
  void judge_lists(const RequestInfo& info, std::vector<Finding>& findings) const;
  // Whether its lists begin at position 0, as far as is known: where nobody tells what it found in
  // the cache, a prompt that is shorter than that names other positions.
  bool lists_begin(const RequestInfo& info) const;
  // Says what of a request was not served, in a sentence's words; "": nothing.
  std::string unserved(const RequestInfo& info) const;
  // The same of choices that nobody shows, where no request says what it was to be fed.
  std::string unseen_choice() const;
  std::string unserved(const std::vector<RequestInfo>& requests) const;

  std::map<int32_t, int32_t> next_;      // position by request
  std::map<int32_t, int32_t> begun_at_;  // position by request, behind tokens that nobody tells
  std::map<int32_t, Trouble> trouble_;   // of this pass, by request
  std::map<int32_t, std::vector<Fed>> fed_;
  // Drafts by request, as numbers in fed_: of its last pass that had any, until a later one goes on
  // behind them or has another token for one of them.
  std::map<int32_t, std::vector<size_t>> pending_;
  std::map<std::pair<int32_t, int32_t>, Chosen> chosen_;  // by (request, position)
  // A number that stands for all tokens up to a position: requests with the same ones share it, for
  // what one of them chose may be fed to the others. By request, by position.
  std::map<int32_t, std::vector<uint64_t>> texts_;
  std::map<int32_t, std::vector<int32_t>> tokens_;         // by request, by position
  std::unordered_set<uint64_t> answered_;                  // texts that got logits
  std::map<int32_t, int32_t> first_answer_;                // its position, by request
  std::set<std::pair<uint64_t, int32_t>> chosen_by_text_;  // (text, token), by anybody
  int64_t vocabulary_ = 0;  // tokens that logits are of; 0: none were seen
  bool continues_ = true;
};

}  // namespace lockstep
