// Every metric that two numbers are compared by, on pairs that have fooled metrics elsewhere.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "src/diff/diff.h"
#include "src/judge/logits.h"
#include "src/judge/mode_comparer.h"
#include "src/judge/op_judge.h"
#include "src/weights/qwen_graph.h"
#include "tests/judge/memory_trace.h"

namespace lockstep {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr size_t kLength = 128;  // enough for every statistic

// Where the pair stands: the last of 128 elements, each of them, all there is, or nowhere.
enum class Where { last, all, alone, nowhere };

struct Pair {
  const char* name;
  DType dtype;
  double want, got;
  Where where;
  // What each metric must answer, in this order:
  //   a node of class exact, of another class    b bitwise, r rounding, i introduced, n nonfinite
  //                                              (o: expected), ? inconclusive
  //   T0, T1, T2, T4, T3, T5                     = within its limit, ! over it, . not made
  //   diff by numbers, by digests                = identical, ~ noise, ! different
  //   lineup: equal bits, sums in any order      as a node
  //   logits: largest difference, divergence     = none, ~ some, ! not finite, . not made
  //           and tokens that differ             = within their limits, ! over, . not made
  const char* answers;
};

struct Node {
  std::vector<double> want, got;
};

Node node_of(const Pair& pair) {
  Node node;
  if (pair.where == Where::nowhere) return node;
  const size_t length = pair.where == Where::alone ? 1 : kLength;
  for (size_t i = 0; i < length; ++i) {
    const bool here = pair.where != Where::last || i + 1 == length;
    const double other = 1 + static_cast<double>(i) / kLength;
    node.want.push_back(here ? pair.want : other);
    node.got.push_back(here ? pair.got : other);
  }
  return node;
}

char letter(const NodeOutcome& outcome) {
  constexpr char kLetters[] = "brpcins?";
  return outcome.overflows ? 'o' : kLetters[static_cast<size_t>(outcome.verdict)];
}

// The letter of the node, and the signs of its statistics in the order of `names`.
std::string judge_answers(const Pair& pair, NodeClass node_class,
                          const std::vector<std::string>& names) {
  const Node node = node_of(pair);
  std::vector<double> limit, variance;
  for (double x : node.want) {
    const double unit = ulp(x, pair.dtype);
    limit.push_back(unit / 2);
    variance.push_back(unit * unit / 12);
  }
  const auto size = std::ssize(node.want);
  const Shape row = size == kLength ? Shape{4, 32} : Shape{size};
  Meter meter({.dtype = pair.dtype, .node_class = node_class, .row_shape = row, .page_size = 16},
              1);
  const std::vector<double> misround(node.want.size(), 1e-3);
  meter.add(5, {node.got, node.want, limit, variance, {}, misround, 1.4e-6});
  const Measure measure = meter.finish();
  std::string text(1, letter(outcome_of(measure, row, 1)));
  for (const std::string& name : names) {
    char sign = '.';
    for (const Statistic& s : measure.statistics)
      if (name_of(s.kind) == name && sign != '!') sign = s.passes(1) ? '=' : '!';
    text += sign;
  }
  return text;
}

RecordedTensor kept(std::string_view name, const std::vector<double>& values, DType dtype) {
  RecordedTensor t{.point = find_point(name), .rows = {{0, 0}}, .dtype = dtype};
  t.shape = {1, std::ssize(values)};
  t.data = rounded_tensor(values, t.shape, dtype);
  t.digest = digest_of(t.data);
  t.row_hashes = row_hashes_of(t.data);
  return t;
}

char diff_answer(const Pair& pair, bool numbers) {
  const auto run = [&](const std::vector<double>& values) {
    FakeRun made;
    made.manifest.graph = qwen_graph({});
    made.manifest.dtype = pair.dtype;
    Pass& pass = made.passes.emplace_back();
    pass.info.rows = {{{0, 0}, 1, 0}};
    pass.tensors.push_back(kept("final.norm", values, pair.dtype));
    if (!numbers) pass.tensors[0].data = {};
    return MemoryTrace(made);
  };
  const Node node = node_of(pair);
  MemoryTrace a = run(node.want), b = run(node.got);
  const DiffResult::Verdict verdict = diff(a, b, {}).verdict;
  return verdict == DiffResult::Verdict::identical ? '='
         : verdict == DiffResult::Verdict::noise   ? '~'
                                                   : '!';
}

// The pair at a point whose bits must be equal, or at one whose sums may be taken in any order.
char lineup_answer(const Pair& pair, std::string_view name) {
  const Node node = node_of(pair);
  const auto show = [&](Sink& sink, const std::vector<double>& values) {
    Probe probe(&sink);
    PassInfo info;
    info.rows = {{{0, 0}, 1, 0}};
    info.logit_rows = {0};
    probe.begin(info);
    const bool logits = name == "logits";
    const Tensor norm = rounded_tensor(logits ? std::vector<double>(16, 1.0) : values,
                                       {1, logits ? 16 : std::ssize(values)}, pair.dtype);
    probe(point("final.norm"), -1, norm);
    if (logits)
      probe.logits(point("logits"), rounded_tensor(values, {1, std::ssize(values)}, pair.dtype));
    probe.end();
    EXPECT_EQ(probe.failure(), "");
  };
  const Graph graph = qwen_graph({});
  BaselineRows base(graph);
  Recorder recorder({}, false, [&](Pass pass) { base.add(std::move(pass)); });
  show(recorder, node.want);
  Ledger ledger(graph);
  ModeComparer lineup(base, {"one", "other", {0}}, ledger);
  show(lineup, node.got);
  for (const PlaceSummary& place : ledger.result().places)
    if (place.place.point->name == name) return letter({.verdict = place.verdict});
  return '-';
}

std::string logits_answers(const Pair& pair) {
  const Node node = node_of(pair);
  const RecordedTensor want = kept("logits", node.want, pair.dtype);
  const RecordedTensor got = kept("logits", node.got, pair.dtype);
  LogitsComparison comparison(pair.dtype);
  comparison.add(0, &got, &want, &want);
  if (!comparison.summary()) return "...";
  const auto sign = [](double x) { return !std::isfinite(x) ? '!' : x == 0 ? '=' : '~'; };
  const double divergence = comparison.summary()->kl_mean;
  const bool choices = std::ranges::all_of(
      comparison.doubts(), [](const LogitsComparison::Doubt& d) { return d.statistic.passes(1); });
  return {sign(comparison.summary()->max_abs), sign(std::fabs(divergence) < 1e-12 ? 0 : divergence),
          choices ? '=' : '!'};
}

std::string answers(const Pair& pair) {
  const std::string exact = judge_answers(pair, NodeClass::exact, {"T0"});
  const std::string other =
      judge_answers(pair, NodeClass::elementwise, {"T1", "T2", "T4", "T3", "T5"});
  return std::string{exact[0], other[0], ' ', exact[1]} + other.substr(1) + ' ' +
         diff_answer(pair, true) + diff_answer(pair, false) + ' ' +
         lineup_answer(pair, "final.norm") + lineup_answer(pair, "logits") + ' ' +
         logits_answers(pair);
}

using enum Where;
const DType bf16 = DType::bf16, f16 = DType::f16, f32 = DType::f32;
const double tiny = 0x1p-149;

const Pair kPairs[] = {
    {"equal", bf16, 1.5, 1.5, last, "bb ====== == bb ==="},
    {"both negative, equal", bf16, -1.5, -1.5, all, "bb ====== == bb ==="},
    {"both negative, one ulp", bf16, -1.5, -1.5 - 0x1p-7, last, "ii !!==== ~~ ir ~~="},
    {"one ulp, alone", bf16, 1.5, 1.5 + 0x1p-7, alone, "ii !!.... ~~ ir ~=="},
    {"one ulp everywhere", bf16, 1.5, 1.5 + 0x1p-7, all, "ii !!!!!! ~! ir ~=="},
    {"sign flip", bf16, 1.5, -1.5, last, "ii !!!!== !! ii ~~="},
    {"sign flip, alone", bf16, 1.5, -1.5, alone, "ii !!.... !! ii ~=="},
    {"sign flip everywhere", bf16, 1.5, -1.5, all, "ii !!!!!! !! ii ~=="},
    {"a huge gap", f32, 1e-40, 3e38, last, "ii !!!!.. !! ii ~~!"},
    {"opposite ends", f32, 3e38, -3e38, last, "ii !!!!.. !! ii ~~!"},
    {"NaN in the engine", bf16, 1.5, kNan, last, "nn !===== !! ii !!!"},
    {"NaN in the reference", bf16, kNan, 1.5, last, "nn !===== !! ii ..."},
    {"NaN in both", bf16, kNan, kNan, last, "nn ====== == bb ..."},
    {"NaN everywhere in the engine", bf16, 1.5, kNan, all, "nn !=.... !! ii !!!"},
    {"NaN in the engine, alone", bf16, 1.5, kNan, alone, "nn !=.... !! ii !!!"},
    {"NaN in both, alone", bf16, kNan, kNan, alone, "nn ==.... == bb ..."},
    {"Inf in the engine", bf16, 1.5, kInf, last, "nn !===== !! ii !!!"},
    {"-Inf in the engine", bf16, 1.5, -kInf, last, "nn !===== !! ii !!!"},
    {"Inf in the reference", bf16, kInf, 1.5, last, "nn !===== !! ii ..."},
    {"Inf in both", bf16, kInf, kInf, last, "nn ====== == bb ..."},
    {"Inf of other signs", bf16, kInf, -kInf, last, "nn !===== !! ii ..."},
    {"an overflow that is due", f16, 70000, kInf, last, "oo ====== == bb ..."},
    {"an overflow that saturates", f16, 70000, 65504, last, "oo ====== !! ii ..."},
    {"an overflow to the other side", f16, 70000, -kInf, last, "nn !===== !! ii ..."},
    {"an overflow that is not due", f16, 65504, kInf, last, "nn !===== !! ii !!!"},
    {"zero and zero", bf16, 0, 0, all, "bb =====. == bb ==="},
    {"zero and -0", bf16, 0, -0.0, last, "ib !===== ~~ ir ==="},
    {"zero and one", bf16, 0, 1, last, "ii !!!!== !! ii ~~="},
    {"one and zero", bf16, 1, 0, last, "ii !!!!== !! ii ~~="},
    {"zero and one, alone", bf16, 0, 1, alone, "ii !!.... !! ii ~=="},
    {"zero and the smallest", f32, 0, tiny, last, "ii !!==.. ~~ ir ~=="},
    {"a subnormal", f32, 5 * tiny, 5 * tiny, last, "bb ====.. == bb ==="},
    {"a subnormal flushed to zero", f32, 5 * tiny, 0, last, "ii !!!!.. ~~ ir ~=="},
    {"a subnormal flushed, fp16", f16, 0x1p-20, 0, last, "ii !!!!== ~~ ir ~=="},
    {"subnormals flushed everywhere", f16, 0x1p-20, 0, all, "ii !!!!!! !! ii ~=="},
    {"below half the smallest", f32, tiny / 4, 0, last, "bb ====.. == bb ==="},
    {"nothing at all", bf16, 0, 0, nowhere, "?? ==.... == bb ..."},
};

class Adversarial : public testing::TestWithParam<Pair> {};

TEST_P(Adversarial, EveryMetricAnswers) {
  EXPECT_EQ(answers(GetParam()), GetParam().answers) << GetParam().name;
}

INSTANTIATE_TEST_SUITE_P(Pairs, Adversarial, testing::ValuesIn(kPairs), [](const auto& info) {
  std::string name = info.param.name;
  for (char& c : name)
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  return name;
});

}  // namespace
}  // namespace lockstep
