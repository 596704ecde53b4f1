#pragma once

#include <string>
#include <vector>

#include "src/judge/verdict.h"

namespace lockstep {

// The reasons why a result without findings is not clean. The texts are empty where there is none.
struct Inconclusive {
  bool complete = true;     // the trace holds every pass of its run
  std::string reason;       // why nodes are inconclusive
  std::string unexplained;  // wrong with tokens by an op that was not judged
  std::string undecided;    // what of the tokens cannot be judged by the trace
  std::string divided;      // a point whose contract may excuse a wrong layer
  std::string suspicion;    // where the reference contradicts itself
  bool none() const {
    return complete && unexplained.empty() && undecided.empty() && divided.empty() &&
           suspicion.empty();
  }
};

// Fills in `verdict` and `story` of a result whose counts, findings, logits and requests stand.
void summarise(Result& result, const Inconclusive& inconclusive = {});

// The rule of a finding begins so where its op hands on what is not finite.
inline constexpr const char* kPassedOn = "propagated: ";

// The rule of a finding ends with one of these where another contract explains it, before the
// contract's name: the op is held to its own budget, or to that of what it is judged together with.
inline constexpr const char* kWouldPassAs = "would pass if it rounded as";
inline constexpr const char* kWithinWider = "within the wider budget of one that rounds as";

// Finding::rule, and after it where the wrong elements are.
std::string rule_of(const Finding& finding);
// Takes apart what rule_of() joined. `finding` has the words as its rule, and the precision and the
// recall of its shape, which gets its place.
void split_rule(Finding& finding);

// A number of budgets, in four digits or as "over 1e9": a budget beside an exact zero is as small
// as the dtype's numbers get, and how many of them a difference is says little more than that.
std::string budgets_text(double budgets);

// Says what a place looks like: "RMSNorm over blocks of 16 (explains 1920 of 1920 elements, 56 of
// 56 nodes)"; several with " or " between them; empty where nothing explains it.
std::string text_of(const std::vector<Finding::LooksLike>& looks_like);

// The ops that the error may be of, as a stretch of the computation: "layer 2 attn.norm .. attn.o"
// where the last alone was recorded, and all of them are judged by it; else the place of the node.
std::string stretch_text(const Finding& finding);
// Whether the tensor of the finding's node was looked for, and is not there at all.
bool is_missing(const Finding& finding);
// Whether the node's op made what it should of inputs that were not finite already.
bool passes_on(const Finding& finding);
// Whether want and got are numbers of the tensor: of a row alone, of a cache, none were compared.
bool has_numbers(const Finding& finding);
// A number that is compared with 1, in three digits, or in more where it would read as 1 and is
// not.
std::string ratio_text(double ratio);
// How many digits tell these numbers apart: six, or more of numbers that are nearer to each other.
int digits_apart(double want, double got);
// The first finding as the beginning of all that is wrong: "layer 3 attn.q_rope introduces the
// first error".
std::string where_it_begins(const Finding& first);

// A finding in words: place, request, position, what was wanted and found.
std::string text_of(const Finding& finding);

}  // namespace lockstep
