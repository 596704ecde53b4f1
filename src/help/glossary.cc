// The table of words. Each row is a word of a screen, the statistic that it stands for where it is
// one, and a paragraph that a reader of a verdict needs; `everyday` rows are in the README too, and
// a test holds the README to them. Rows are in the order in which a reader meets the words.
#include "src/help/glossary.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <vector>

#include "kernels/base/check.h"
#include "kernels/base/nearest.h"
#include "kernels/base/utf8.h"
#include "src/screen/wrap.h"

namespace lockstep {
namespace {

constexpr auto kWords = std::to_array<Word>({
    {"point", "", "", "A kind of place in a model where a tensor can be seen, such as attn.q.",
     "`lockstep points` lists them in the order in which the model computes them.", true},
    {"place", "", "", "A point of one layer, such as layer 3 attn.q.",
     "Layers count from 0; embed, final.norm, logits and token are of no layer.", true},
    {"node", "", "", "The rows of one request in one pass at one place: the least that is judged.",
     "Nodes judged must equal nodes expected, which are counted from the passes and the selection, "
     "so that nothing that is missing goes unnoticed.",
     true},
    {"oracle", "", "",
     "The exact result of one op in fp64, computed on the inputs that the engine's op itself had.",
     "It rounds where the op's contract says and nowhere else, and shares no arithmetic with the "
     "engine.",
     true},
    {"budget", "", "units of the tensor",
     "The most that one correct evaluation of an op may differ from the exact result, an element.",
     "One rounding of the output, and what an accumulator of fp32 may add. It is that of one op: "
     "it does not grow with layers or steps.",
     true},
    {"introduced", "", "fractions of the exact result's rms",
     "The error that an op itself adds, given the inputs that it really had; as a verdict, it is "
     "over a limit.",
     "It is the engine's output less the oracle's on the same inputs. The first node that "
     "introduces an error, in the order of the computation, is where to look.",
     true},
    {"propagated", "", "fractions of the exact result's rms",
     "Wrong only because of what it read: an op before it introduced the error.",
     "Its own arithmetic is within its budget, but its numbers are over three times as far from "
     "the fp64 model as those of the same model in the run's dtype.",
     true},
    {"confounded", "", "",
     "Over its budget by an error before it or by one of its own: which of the two cannot be told.",
     "An op that was not recorded leads to it and to the finding before it. Whether it is wrong "
     "by itself shows when that finding is put right, or when the op between is recorded.",
     true},
    {"bitwise", "", "", "Every element has the bits of the exact result, rounded.", "", true},
    {"rounding", "", "", "Other bits than the exact result's, within the budget: a right op.", "",
     true},
    {"structural", "", "",
     "A tensor is missing, has another shape, dtype or rows, or is not what its reader read.",
     "Tokens that were fed or chosen against what the request says are of this kind too.", true},
    {"nonfinite", "", "", "NaN or Inf where the exact result is a finite number, or the reverse.",
     "Where an input already was NaN or Inf the node is propagated, and where the exact result "
     "overflows the dtype too it is no finding.",
     true},
    {"inconclusive", "", "",
     "Something that the judgement needs was not kept: neither right nor "
     "wrong.",
     "A run with such nodes and no finding exits with 2, and its reason says what was missing "
     "(often tensors: --keep full).",
     true},
    {"contract", "", "", "Where an op rounds inside, as its trace or engine declares it.",
     "fused: once, at the store; hf: as the modules of Hugging Face; eager: attention's scores and "
     "probabilities too; --schema and --rounding set it. It is no tolerance: the oracle rounds "
     "there, and the op is held to one "
     "rounding of that. Where nothing is declared the contract is found by trying; where one fits "
     "all layers and a stricter one most of them, the run is inconclusive, for the wider may "
     "excuse a wrong layer. As a statistic: "
     "a place that rounds otherwise than the other layers of its point.",
     true},
    {"untested", "", "",
     "Bugs that this run could not have shown, whatever its verdict, with what it lacked.",
     "A clean verdict says nothing of them. Longer prompts, several requests, --chunk, "
     "--page-order and --prefix-cache make them fewer; `lockstep selftest` measures the rest. "
     "Results list it as `blind`.",
     true},
    {"margin", "", "ulp of the run's dtype",
     "How much the fp64 model prefers its own token to the one that the engine chose.",
     "A token that differs within what rounding may do to the two logits is explained: a near tie, "
     "no bug.",
     true},
    {"bits", "T0", "elements", "How many elements have other bits than they must have; limit 0.",
     "It is for ops that only copy or add: embeddings, the K/V cache, residual sums, tokens."},
    {"max_error", "T1", "budgets", "The largest error of one element; limit 1.",
     "It finds one wrong element among millions."},
    {"rms_error", "T2", "units of its limit",
     "The root mean square of a node's errors, each in units of what rounding makes of it.",
     "It finds a loss of precision that is spread over all elements and breaks no single budget. "
     "Its limit follows the chi-square distribution: the fewer elements, the wider."},
    {"misrounds", "T3", "shares of the elements",
     "The share of elements that are not the exact result rounded to the dtype.",
     "It finds accumulators that are too narrow and an eps that is slightly off. Its limit is what "
     "the op's own arithmetic makes of these elements, 0.02 of them in bf16 and 0.10 in fp16 at "
     "most, and what chance adds; none in fp32. Sums whose products nearly cancel may be such more "
     "often, and count in their columns and heads alone."},
    {"worst_slice", "T4", "units of its limit",
     "The rms_error of the row, column, head or page of the tensor that scatters most.",
     "It finds errors of one head, one page or the last token that the whole tensor would dilute."},
    {"gain", "T5", "fractions of 1",
     "The factor by which all elements are too large or too small together.",
     "It finds a wrong scale, an eps, a factor left out, long before any element leaves its "
     "budget."},
    {"offset", "T6", "standard deviations",
     "How far all elements are off in the same direction on average, as by truncation.",
     "It is a notice from 8 on, and no limit minds it."},
    {"flips", "", "tokens", "Tokens of the engine that differ from those of the fp64 model.",
     "A flip is explained by a near tie (see margin) or by a finding before it."},
    {"KL", "", "nats",
     "The Kullback-Leibler divergence of the engine's choices from those of the fp64 model.",
     "It stands beside that of the same model in the run's dtype, which is what rounding costs."},
    {"of row", "", "rms of the row", "The error of the worst element beside the size of its row.",
     "The root mean square of the row's exact results is 1. It tells an error that matters from "
     "one of an element that is nearly 0."},
    {"total rms", "", "fractions of the exact rms",
     "How far a place is from the fp64 model that ran from the start, over all elements.",
     "Introduced error of the op and of all before it, together."},
    {"ulp", "", "",
     "The distance between two neighbouring numbers of a dtype at the size of the number in "
     "question.",
     "One correct rounding is off by half of it at most."},
    {"limits", "", "",
     "What each statistic may be: those of theory, or tighter ones that were learnt from clean "
     "runs.",
     "`lockstep calibrate` learns them; they are never wider than those of theory."},
    {"pass", "", "", "One step of the engine: some tokens of some requests at once.",
     "A prompt is prefilled in one pass or in chunks; after that each pass decodes one token of "
     "each request."},
    {"digest", "", "", "What is kept of a tensor in a trace in the place of its numbers.",
     "A hash of each row, the rms, the extremes, how many are NaN or Inf: enough to compare two "
     "traces, too little to judge one."},
    {"poison", "", "", "The NaN that new pages of the K/V cache are filled with.",
     "An op that reads a slot which nobody wrote shows it at once."},
    {"audit", "", "", "What the engine reads from its K/V cache, held to what it had written.",
     "By hashes of each row, through the page table: it finds stale pages, wrong slots, and pages "
     "of another request."},
});

// Capitals, blanks, hyphens and underscores are no matter.
std::string plain(std::string_view name) {
  std::string out;
  for (const char c : name)
    out += c == ' ' || c == '-' ? '_' : static_cast<char>(std::tolower(byte_of(c)));
  return out;
}

}  // namespace

std::span<const Word> glossary() { return kWords; }

std::string Word::title() const {
  std::string title(name);
  if (!number.empty()) title += fmt::format(" ({})", number);
  if (!unit.empty()) title += fmt::format(", in {}", unit);
  return title;
}

std::string Word::text() const {
  return more.empty() ? std::string(brief) : fmt::format("{} {}", brief, more);
}

const Word* find_word(std::string_view name) {
  const std::string wanted = plain(name);
  const auto found = std::ranges::find_if(kWords, [&](const Word& word) {
    return plain(word.name) == wanted || (!word.number.empty() && plain(word.number) == wanted);
  });
  return found == kWords.end() ? nullptr : &*found;
}

std::string explanation_of(std::string_view name, size_t width) {
  if (const Word* word = find_word(name))
    return fmt::format("{}\n  {}\n", word->title(), indented(word->text(), 2, width));
  std::vector<std::string_view> names;
  for (const Word& word : kWords) names.push_back(word.name);
  const std::string near = did_you_mean(plain(name), names);
  fail("\"{}\" is no word of the screens{}", name,
       near.empty() ? fmt::format("; they are {}", fmt::join(names, ", ")) : near);
}

}  // namespace lockstep
