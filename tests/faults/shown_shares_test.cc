// Traces of an attention that was merged of shares, in which something that it shows of them is
// missing, or not as the model has it.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <numbers>
#include <random>
#include <set>
#include <string>

#include "src/causes/causes.h"
#include "src/faults/seeds.h"
#include "src/judge/row_sample.h"
#include "src/judge/shares.h"
#include "src/judge/story.h"
#include "src/schedule/make_schedule.h"
#include "src/weights/qwen_graph.h"
#include "tests/judged.h"

namespace lockstep {
namespace {

const Checkpoint& bard() {
  static const Checkpoint open = Checkpoint::open(data_path("bard-qwen3"));
  return open;
}

JudgedRun run_in(int64_t shares) {
  std::vector<Request> requests = {
      {.prompt = some_tokens(21, bard().config().vocab, 1), .max_new = 2},
      {.prompt = some_tokens(38, bard().config().vocab, 2), .max_new = 2}};
  EngineOptions engine{.dtype = DType::bf16, .page_size = 8, .page_order_seed = 3};
  engine.pages = pages_for(requests, engine.page_size);
  return {.checkpoint = bard(),
          .reference = open_reference(),
          .engine = engine,
          .step = InterpreterOptions{make_schedule(scheduled_model(bard().config()),
                                                   {.queues = 2, .kv_shares = shares})},
          .requests = requests,
          .audit = false};
}

// The passes of a right run in so many shares.
const std::vector<Pass>& right_passes(int64_t shares) {
  static std::map<int64_t, std::vector<Pass>> kept;
  const auto [passes, fresh] = kept.try_emplace(shares);
  if (fresh) {
    JudgedRun run = run_in(shares);
    run.seen = [&](const Pass& pass, const std::vector<NodeId>&) {
      passes->second.push_back(pass);
    };
    run.causes = false;
    judge_run(run);
  }
  return passes->second;
}

const Place kPartial{&point("attn.partial"), 1}, kLse{&point("attn.lse"), 1},
    kOut{&point("attn.out"), 1};

bool is_at(const RecordedTensor& tensor, const Place& place) {
  return *tensor.point == *place.point && tensor.layer == place.layer;
}

// How a trace of the attention of layer 1 is otherwise than it was recorded.
struct Changes {
  std::function<void(RecordedTensor&)> change = [](RecordedTensor&) {};
  std::set<std::string_view> never_shown = {};
  int64_t shares = 3;
  const char* page_size = "8";  // null: it is not declared
  RowsToJudge rows = {};
  const char* rounding = nullptr;  // that is declared of all three; null: none is
  bool graph_known = true;         // false: the trace has none of its own
  const char* layers = "1";        // that are judged
  // Of the first pass, where it is given: no other one is judged then.
  std::function<void(Pass&)> rework = {};
};

Result judged_after(const Changes& changes) {
  const ReferenceOptions options{.dtype = DType::bf16};
  const auto oracle = open_reference().oracle(bard(), options);
  const auto hypotheses = open_reference().hypotheses(bard(), options);
  const auto is_shown = [&](std::string_view name) { return !changes.never_shown.contains(name); };
  std::map<std::string, std::string> provenance;
  if (changes.page_size != nullptr) provenance.emplace("page_size", changes.page_size);
  const Manifest manifest{.provenance = provenance,
                          .graph = qwen_graph_of(bard().config(), false, /*in_shares=*/true),
                          .graph_known = changes.graph_known,
                          .dtype = DType::bf16,
                          .level = TraceLevel::full};
  const char* points = "attn.lse,attn.partial,attn.out";
  JudgeOptions judging{.selection = Selection(points, changes.layers, "", ""),
                       .rows = changes.rows,
                       .recorded = [&](const Place& at) { return is_shown(at.point->name); }};
  if (changes.rounding != nullptr)
    judging.rounding = {
        rounding_from(std::string("attn.lse,attn.partial,attn.out=") + changes.rounding)};
  Judge judge(manifest, *oracle, nullptr, nullptr, std::move(judging));
  Causes causes(manifest, judge, *oracle, *hypotheses);
  for (Pass pass : right_passes(changes.shares)) {
    std::erase_if(pass.tensors, [&](const RecordedTensor& t) { return !is_shown(t.point->name); });
    if (changes.rework && pass.info.pass > 0) break;
    if (changes.rework) changes.rework(pass);
    for (RecordedTensor& tensor : pass.tensors) changes.change(tensor);
    std::erase_if(pass.tensors, [](const RecordedTensor& t) { return t.point == nullptr; });
    causes.add(pass, judge.judge(pass));
  }
  Result result = judge.finish({}, true);
  causes.put_into(result);
  return result;
}

// What is said first of the place, where anything is.
std::string looks_of(const Result& result, const Place& at) {
  const auto found = std::ranges::find(result.places, at, &PlaceSummary::place);
  if (found == result.places.end() || found->looks_like.empty()) return "";
  return found->looks_like.front().says;
}

std::set<std::string_view> wrong_points(const Result& result) {
  std::set<std::string_view> wrong;
  for (const Finding& finding : result.findings) wrong.insert(finding.node.place.point->name);
  return wrong;
}

using Points = std::set<std::string_view>;

// The passes share their memory with who kept them.
void halve(RecordedTensor& tensor, const Place& place) {
  if (!is_at(tensor, place)) return;
  Tensor halves(tensor.shape, DType::bf16);
  for (int64_t i = 0; i < tensor.shape.count(); ++i) {
    const uint16_t bits = tensor.data.as<uint16_t>()[i];
    halves.as<uint16_t>()[i] = (bits & 0x7F80) == 0 ? bits : bits - 0x0080;  // an exponent less
  }
  tensor.data = halves;
}

// Gives each element of fp32 another number, in memory of its own.
void change_each(RecordedTensor& tensor, const std::function<float(int64_t at)>& make) {
  Tensor changed(tensor.shape, DType::f32);
  for (int64_t i = 0; i < tensor.shape.count(); ++i) changed.as<float>()[i] = make(i);
  tensor.data = changed;
}

TEST(ShownShares, AreRightAsTheyAre) {
  const Result result = judged_after({});
  EXPECT_TRUE(result.findings.empty()) << result.story;
  EXPECT_EQ(result.judged, result.expected);
}

TEST(ShownShares, AreOfAnAttentionThatMayBeMissing) {
  const Result result = judged_after({[](RecordedTensor& tensor) {
    if (is_at(tensor, kOut)) tensor.point = nullptr;
  }});
  EXPECT_EQ(wrong_points(result), (Points{"attn.out"})) << result.story;
  for (const Finding& finding : result.findings)
    EXPECT_EQ(finding.verdict, Verdict::structural) << finding.rule;
}

// Multiplies a head by two, of all rows or of one, so that each number stays as exact as it was.
void double_head(RecordedTensor& tensor, const Place& place, int64_t head,
                 const Row* only = nullptr) {
  if (!is_at(tensor, place)) return;
  const int64_t dim = tensor.shape.last(), heads = tensor.shape[tensor.shape.rank() - 2];
  Tensor doubled(tensor.shape, tensor.dtype);
  for (int64_t i = 0; i < tensor.shape.count(); ++i) {
    const bool is_wrong = i / dim % heads == head &&
                          (!only || tensor.rows[i / tensor.data.view().row_size()] == *only);
    put(doubled, i, get(tensor.data, i) * (is_wrong ? 2.0F : 1.0F));
  }
  tensor.data = doubled;
}

bool is_of_prompt(const RecordedTensor& tensor) { return tensor.rows.front().position == 0; }

// As of an engine whose decode steps alone share out their attention.
TEST(ShownShares, AreOfThePassesThatShowAny) {
  const auto hide = [](RecordedTensor& tensor) {
    if (tensor.point->is_of_shares() && is_of_prompt(tensor)) tensor.point = nullptr;
  };
  const Result right = judged_after({hide});
  EXPECT_TRUE(right.findings.empty()) << right.story;
  EXPECT_EQ(std::ranges::count_if(right.notes,
                                  [](const std::string& note) {
                                    return note.starts_with("attention is in shares in");
                                  }),
            1);
  // Its own attention is judged as that of an engine without shares.
  const Result wrong = judged_after({[&](RecordedTensor& tensor) {
    hide(tensor);
    if (tensor.point && is_of_prompt(tensor)) double_head(tensor, kOut, 1);
  }});
  EXPECT_EQ(wrong_points(wrong), (Points{"attn.out"})) << wrong.story;
  ASSERT_TRUE(wrong.first);
  EXPECT_EQ(wrong.first->rule.find("merged wrong"), std::string::npos) << wrong.first->rule;
}

// Where a pass shows others, one that it does not show is missing.
TEST(ShownShares, AreMissedAmongOthers) {
  for (const Place& at : {kPartial, kLse}) {
    const Result result = judged_after({[&](RecordedTensor& tensor) {
      if (is_at(tensor, at) && is_of_prompt(tensor)) tensor.point = nullptr;
    }});
    EXPECT_EQ(wrong_points(result), (Points{at.point->name})) << result.story;
    for (const Finding& finding : result.findings)
      EXPECT_EQ(finding.verdict, Verdict::structural) << finding.rule;
  }
}

// The shares of head 1 are wrong, and merged right; those of head 4 are right, and merged wrong.
TEST(ShownShares, OfOneHeadAreNoErrorOfTheMergeOfAnother) {
  const Result result = judged_after({[](RecordedTensor& tensor) {
    double_head(tensor, kPartial, 1);
    double_head(tensor, kOut, 1);
    double_head(tensor, kOut, 4);
  }});
  EXPECT_EQ(wrong_points(result), (Points{"attn.partial", "attn.out"})) << result.story;
  for (const Finding& finding : result.findings) {
    const bool of_merge = finding.node.place == kOut;
    EXPECT_EQ(finding.rule.find("merged wrong") != std::string::npos, of_merge) << finding.rule;
    ASSERT_TRUE(finding.shape);
    EXPECT_EQ(finding.shape->where, of_merge ? "head 4" : "head 1");
    ASSERT_EQ(finding.index.size(), of_merge ? 3U : 4U);
    EXPECT_EQ(finding.index[finding.index.size() - 2], of_merge ? 4 : 1);
  }
}

TEST(ShownShares, AreNotMergedWhereTheResultIsOfAnotherShape) {
  const Result result = judged_after({[](RecordedTensor& tensor) {
    if (!is_at(tensor, kOut)) return;
    tensor.shape = {tensor.shape[0], tensor.shape[1] / 2, tensor.shape[2]};
    tensor.data = Tensor(tensor.shape, DType::bf16);
  }});
  EXPECT_EQ(wrong_points(result), (Points{"attn.out"})) << result.story;
  for (const Finding& finding : result.findings) {
    EXPECT_EQ(finding.verdict, Verdict::structural) << finding.rule;
    EXPECT_EQ(finding.rule.find("merged"), std::string::npos) << finding.rule;
  }
}

// Of one share fewer than the partial results have.
TEST(ShownShares, AreAsManyAsThereArePartialResults) {
  const Result result = judged_after({[](RecordedTensor& tensor) {
    if (!is_at(tensor, kLse)) return;
    tensor.shape = {tensor.shape[0], 2, tensor.shape[2]};
    tensor.data = Tensor(tensor.shape, DType::f32);
  }});
  EXPECT_EQ(wrong_points(result), (Points{"attn.lse"})) << result.story;
  ASSERT_TRUE(result.first);
  EXPECT_EQ(result.first->verdict, Verdict::structural);
  EXPECT_EQ(result.first->rule, "shape [59, 3, 6] was wanted, found [59, 2, 6]");
}

TEST(ShownShares, AreOfNoNumberThatIsWantedWhereTheirHeadsAreWrong) {
  const Result result = judged_after({[](RecordedTensor& tensor) {
    if (!is_at(tensor, kPartial)) return;
    tensor.shape = {tensor.shape[0], 3, 5, tensor.shape[3]};
    tensor.data = Tensor(tensor.shape, DType::f32);
  }});
  ASSERT_TRUE(result.first);
  EXPECT_EQ(result.first->rule, "shape [59, 1 or more, 6, 64] was wanted, found [59, 3, 5, 64]");
}

// A share in which a query sees no key: the second one of a prompt of less than three pages, say.
TEST(ShownShares, AreOfALogarithmOfNothing) {
  using Limits = std::numeric_limits<float>;
  for (const float shown : {0.0F, Limits::lowest(), Limits::quiet_NaN()}) {
    const Result result = judged_after({[&](RecordedTensor& tensor) {
      if (!is_at(tensor, kLse)) return;
      change_each(tensor, [&](int64_t i) {
        const float lse = tensor.data.as<float>()[i];
        return std::isinf(lse) ? shown : lse;
      });
    }});
    EXPECT_EQ(wrong_points(result), (Points{"attn.lse"})) << result.story;
    ASSERT_TRUE(result.first);
    EXPECT_EQ(result.first->verdict, Verdict::nonfinite);
    EXPECT_TRUE(result.first->rule.starts_with("introduced: the exact result is -Inf ("))
        << result.first->rule;
    const std::string begins = where_it_begins(*result.first);
    EXPECT_EQ(begins, std::isnan(shown)
                          ? "layer 1 attn.lse is the first to make NaN or Inf"
                          : "layer 1 attn.lse is the first to have a number where -Inf was wanted");
  }
}

// By less than the sum of rounded weights may be off: these were not rounded, as their partial
// results show.
TEST(ShownShares, OfUnroundedWeightsHaveNoLogarithmOfRoundedOnes) {
  for (const int64_t share : {0, 2})
    for (const int64_t head : {1, 4}) {
      const Result result = judged_after({[&](RecordedTensor& tensor) {
        if (!is_at(tensor, kLse)) return;
        const int64_t heads = tensor.shape.last(), shares = tensor.shape[1];
        change_each(tensor, [&](int64_t i) {
          const bool is_wrong = i % heads == head && i / heads % shares == share;
          return tensor.data.as<float>()[i] + (is_wrong ? 0.001F : 0.0F);
        });
      }});
      EXPECT_EQ(wrong_points(result), (Points{"attn.lse"})) << result.story;
      ASSERT_TRUE(result.first && result.first->shape);
      EXPECT_EQ(result.scope.contracts.at("attn.lse"), "fused");
    }
}

TEST(ShownShares, TellNoMergeWhereOneOfTheTwoIsNeverShown) {
  for (const char* hidden : {"attn.lse", "attn.partial"}) {
    SCOPED_TRACE(hidden);
    const Result right = judged_after({.never_shown = {hidden}});
    EXPECT_TRUE(right.findings.empty()) << right.story;
    const std::string note = std::string("no pass has ") + hidden;
    const auto says_so = [&](const std::string& text) { return text.starts_with(note); };
    EXPECT_EQ(std::ranges::count_if(right.notes, says_so), 1);
    const Result bare = judged_after({.never_shown = {hidden}, .graph_known = false});
    EXPECT_TRUE(std::ranges::none_of(bare.notes, says_so)) << "of a graph that promised nothing";
    const Result wrong = judged_after(
        {.change = [](RecordedTensor& tensor) { halve(tensor, kOut); }, .never_shown = {hidden}});
    EXPECT_EQ(wrong_points(wrong), (Points{"attn.out"})) << wrong.story;
    for (const Finding& finding : wrong.findings)
      EXPECT_EQ(finding.rule.find("merged"), std::string::npos) << finding.rule;
  }
}

// So little, of one element, is what rounded weights may make of an attention; their shares have it
// then, and its merge rounds once.
TEST(ShownShares, AreMergedWithOneRoundingHoweverTheirWeightsAreRounded) {
  const auto change = [](RecordedTensor& tensor) {
    if (!is_at(tensor, kOut) || !is_of_prompt(tensor)) return;
    Tensor changed(tensor.shape, DType::bf16);
    std::ranges::copy_n(tensor.data.as<uint16_t>(), tensor.shape.count(), changed.as<uint16_t>());
    changed.as<uint16_t>()[700] += 2;
    tensor.data = changed;
  };
  EXPECT_TRUE(judged_after({.rounding = "hf"}).findings.empty());
  const Result wrong = judged_after({.change = change, .rounding = "hf"});
  EXPECT_EQ(wrong_points(wrong), (Points{"attn.out"})) << wrong.story;
  ASSERT_TRUE(wrong.first);
  EXPECT_NE(wrong.first->rule.find("merged wrong"), std::string::npos) << wrong.first->rule;
  // They fit a wider contract than they might, so that they may be what is wrong.
  EXPECT_EQ(wrong.first->region, (std::vector<Place>{kPartial, kLse}));
  // In fp32 too: found so, they are not.
  const Result found = judged_after({.change = change});
  ASSERT_TRUE(found.first);
  EXPECT_TRUE(found.first->region.empty()) << found.story;
}

// What was merged was right, or the attention would be wrong: it is not what they show.
TEST(ShownShares, AreDoubtedWhereTheyAreNotWhatWasMerged) {
  const Result wrong =
      judged_after({.change =
                        [](RecordedTensor& tensor) {
                          if (!is_at(tensor, kPartial)) return;
                          const auto* partial = tensor.data.as<float>();
                          change_each(tensor, [&](int64_t i) { return partial[i] * 1.001F; });
                        },
                    .rounding = "hf"});
  EXPECT_EQ(wrong_points(wrong), (Points{"attn.out"})) << wrong.story;
  ASSERT_TRUE(wrong.first);
  EXPECT_EQ(wrong.first->region, (std::vector<Place>{kPartial, kLse}));
}

// Which keys a share holds is not known: it may be wrong, or else what was made of it.
TEST(ShownShares, OfUnknownPagesAreNamedWithWhatIsWrongByThem) {
  const Changes wrong{.change =
                          [](RecordedTensor& tensor) {
                            double_head(tensor, kPartial, 1);
                            double_head(tensor, kOut, 1);
                          },
                      .page_size = nullptr};
  const Result result = judged_after(wrong);
  EXPECT_EQ(wrong_points(result), (Points{"attn.out"})) << result.story;
  ASSERT_TRUE(result.first && result.first->shape);
  EXPECT_EQ(result.first->region, (std::vector<Place>{kPartial, kLse}));
  EXPECT_EQ(result.first->shape->where, "head 1");
  EXPECT_TRUE(where_it_begins(*result.first).starts_with("layer 1 attn.partial .. attn.out"));
  EXPECT_EQ(result.first->rule.find("merged wrong"), std::string::npos) << result.first->rule;
  // The merge is told even so.
  const Result merged =
      judged_after({.change = [](RecordedTensor& tensor) { double_head(tensor, kOut, 1); },
                    .page_size = nullptr});
  ASSERT_TRUE(merged.first);
  EXPECT_TRUE(merged.first->region.empty()) << merged.story;
  EXPECT_NE(merged.first->rule.find("merged wrong"), std::string::npos) << merged.first->rule;
  EXPECT_TRUE(judged_after({.page_size = nullptr}).findings.empty());
}

// Other rows are drawn of the shares than of what is merged of them.
TEST(ShownShares, OfRowsThatWereNotDrawnClearNothing) {
  const RowsToJudge asked{.most = 8};
  const auto drawn = [&](const Place& at) { return drawn_rows(asked, at, 0, 1, 38); };
  const std::vector<size_t> of_shares = drawn(kPartial);
  size_t position = 0;  // of request 1, among those of its attention alone
  for (const size_t row : drawn(kOut))
    if (std::ranges::count(of_shares, row) == 0) position = row;
  ASSERT_GT(position, 0U);
  const Result result = judged_after({.change =
                                          [&](RecordedTensor& tensor) {
                                            const Row row{1, static_cast<int32_t>(position)};
                                            double_head(tensor, kPartial, 1, &row);
                                            double_head(tensor, kOut, 1, &row);
                                          },
                                      .rows = asked});
  EXPECT_EQ(wrong_points(result), (Points{"attn.out"})) << result.story;
  ASSERT_TRUE(result.first);
  EXPECT_EQ(result.first->region, (std::vector<Place>{kPartial, kLse}));
}

TEST(ShownShares, LookLikeLogarithmsToAnotherBase) {
  const Result result = judged_after({[](RecordedTensor& tensor) {
    if (is_at(tensor, kLse))
      change_each(tensor, [&](int64_t i) {
        return tensor.data.as<float>()[i] * std::numbers::log2e_v<float>;
      });
  }});
  EXPECT_EQ(wrong_points(result), (Points{"attn.lse"})) << result.story;
  EXPECT_EQ(looks_of(result, kLse), "to the base 2");
}

// Where K and V are hidden, a wrong logarithm beside a wrong partial result may come of them too:
// all logarithms together say no more.
TEST(ShownShares, ThatAreExcusedOneByOneAreNotWrongTogether) {
  for (const size_t wrong_pass : {size_t{0}, right_passes(3).size() - 1}) {
    size_t partials = 0, lses = 0;  // so far
    const Result result = judged_after(
        {.change =
             [&](RecordedTensor& t) {
               const RecordedTensor was = t;
               if (is_at(t, kPartial) && partials++ == wrong_pass)
                 change_each(t, [&](int64_t i) { return was.data.as<float>()[i] * 1.01f; });
               if (is_at(t, kLse) && lses++ == wrong_pass)
                 change_each(t, [&](int64_t i) { return was.data.as<float>()[i] + 0.01f; });
             },
         .never_shown = {"attn.kv"}});
    EXPECT_EQ(wrong_points(result), Points({"attn.partial"})) << result.story;
    EXPECT_NE(result.story.find("attn.partial introduces the first"), std::string::npos)
        << result.story;
  }
}

// Gives a tensor of layer 1 numbers of its own.
template <typename Make>
void remake(Pass& pass, std::string_view name, const Make& make) {
  auto& tensor = const_cast<RecordedTensor&>(*pass.find(*find_point(name), 1));
  Tensor made(tensor.shape, tensor.dtype);
  const int64_t width = tensor.shape.count() / tensor.shape[0];
  for (int64_t i = 0; i < made.view().count(); ++i) {
    const auto x = static_cast<float>(make(tensor.rows[static_cast<size_t>(i / width)], i));
    if (tensor.dtype == DType::bf16)
      made.as<BFloat16>()[i] = from_float<BFloat16>(x);
    else
      made.as<float>()[i] = x;
  }
  tensor.data = made;
}

constexpr int64_t kCancelling = 3;  // shares

// The first position of each share of a request, and the one past the last.
std::map<int32_t, std::vector<int64_t>> begins_in(const Pass& pass) {
  std::map<int32_t, std::vector<int64_t>> begins;
  for (const auto& [request, position] : pass.find(point("attn.v"), 1)->rows)
    begins[request] = share_begins(position + 1, 8, kCancelling);
  return begins;
}

TensorView of_layer(const Pass& pass, std::string_view name) {
  return pass.find(*find_point(name), 1)->data.view();
}

// Scores that are all the same to a query, 60 and more, and values that in the first two shares
// come to nothing together, so that a query in the third one has little left.
void make_inputs_cancel(Pass& pass) {
  const int64_t dim = bard().config().head_dim;
  const float most = std::sqrt(60 * std::sqrt(static_cast<float>(dim)));
  remake(pass, "attn.k_rope", [&](const Row&, int64_t i) { return i % dim == 0 ? most : 0; });
  remake(pass, "attn.q_rope", [&](const Row& row, int64_t i) {
    return i % dim == 0 ? most * (1 + static_cast<float>(row.position) / 64) : 0;
  });
  std::mt19937 random(3);
  std::normal_distribution<double> normal;
  auto begins = begins_in(pass);
  remake(pass, "attn.v", [&](const Row& row, int64_t) {
    const auto& begin = begins[row.request];
    const double second =
        -8.0 * static_cast<double>(begin[1]) / static_cast<double>(begin[2] - begin[1]);
    const double share = row.position < begin[1] ? 8 : row.position < begin[2] ? second : 0;
    return share + normal(random) / 64;
  });
}

// The attention of layer 1 over them, whose shares nearly cancel, merged in fp32 by logarithms to
// the base 2.
void make_cancel(Pass& pass) {
  make_inputs_cancel(pass);
  const ModelConfig& c = bard().config();
  const int64_t dim = c.head_dim, group = c.heads / c.kv_heads;
  auto begins = begins_in(pass);
  const TensorView q = of_layer(pass, "attn.q_rope"), k = of_layer(pass, "attn.k_rope");
  const TensorView v = of_layer(pass, "attn.v");
  const std::vector<Row>& rows = pass.find(point("attn.v"), 1)->rows;
  const auto row_of = [&](const Row& row) { return std::ranges::find(rows, row) - rows.begin(); };
  // The sums of a share: of the powers of its scores, and of these times V.
  const auto sums = [&](const Row& row, int64_t head, int64_t share, int64_t d) {
    std::pair<double, double> sums;
    const auto& begin = begins[row.request];
    const auto end = std::min<int64_t>(begin[share + 1], row.position + 1);
    for (int64_t at = begin[share]; at < end; ++at) {
      const int64_t key = row_of({row.request, static_cast<int32_t>(at)});
      const int64_t from = (key * c.kv_heads + head / group) * dim;
      double score = 0;
      for (int64_t i = 0; i < dim; ++i)
        score += value_at(q, (row_of(row) * c.heads + head) * dim + i) * value_at(k, from + i);
      const double power = std::exp(score / std::sqrt(static_cast<double>(dim)));
      sums.first += power, sums.second += power * value_at(v, from + d);
    }
    return sums;
  };
  remake(pass, "attn.lse", [&](const Row& row, int64_t i) {
    return std::log(sums(row, i % c.heads, i / c.heads % kCancelling, 0).first);
  });
  remake(pass, "attn.partial", [&](const Row& row, int64_t i) {
    const auto [all, of_v] = sums(row, i / dim % c.heads, i / dim / c.heads % kCancelling, i % dim);
    return all > 0 ? of_v / all : 0;
  });
  const TensorView partial = of_layer(pass, "attn.partial"), lse = of_layer(pass, "attn.lse");
  remake(pass, "attn.out", [&](const Row& row, int64_t i) {
    const int64_t head = i / dim % c.heads;
    float sum = 0, all = 0;
    for (int64_t s = 0; s < kCancelling; ++s) {
      const int64_t at = (row_of(row) * kCancelling + s) * c.heads + head;
      const auto to_base_2 = static_cast<float>(value_at(lse, at)) * std::numbers::log2e_v<float>;
      const float weight = std::exp2(to_base_2 - 110);
      all += weight;
      sum += weight * static_cast<float>(value_at(partial, at * dim + i % dim));
    }
    return sum / all;
  });
}

TEST(ShownShares, ThatCancelMayBeMergedToAnyBase) {
  const Result result =
      judged_after({.never_shown = {"attn.kv"}, .rounding = "fused", .rework = make_cancel});
  EXPECT_TRUE(wrong_points(result).empty()) << result.story;
}

TEST(ShownShares, AreWithoutAWordOfRegionsThatNobodyJudged) {
  const Result result = judged_after({.never_shown = {"attn.norm", "attn.kv"}});
  const auto said_of = [&](std::string_view name) {
    return std::ranges::count_if(result.notes, [&](const std::string& note) {
      return note.starts_with(std::string(name) + " is judged together with");
    });
  };
  EXPECT_EQ(said_of("attn.lse"), 1);
  EXPECT_EQ(said_of("attn.v"), 0) << "it is not among what was asked for";
}

// A layer has too few rows for a gain of its own, all layers together have enough.
TEST(ShownShares, HaveAGainInTheLayersThatHaveIt) {
  const auto first_with = [](std::set<int> larger) {
    const Result result = judged_after(
        {.change =
             [&](RecordedTensor& t) {
               if (*t.point != *kPartial.point || !larger.contains(t.layer)) return;
               const RecordedTensor was = t;
               change_each(t, [&](int64_t i) { return was.data.as<float>()[i] * 1.001f; });
             },
         .never_shown = {"attn.out"},
         .rounding = "hf",
         .layers = ""});
    std::set<int> found;
    for (const Finding& finding : result.findings) {
      EXPECT_EQ(finding.statistic, StatisticKind::gain) << result.story;
      EXPECT_TRUE(finding.rule.starts_with("all layers and passes together")) << finding.rule;
      EXPECT_EQ(finding.rule.ends_with(", and only those named here show it"), larger.size() < 6)
          << finding.rule;
      found.insert(finding.node.place.layer);
    }
    return found;
  };
  EXPECT_EQ(first_with({2}), std::set<int>({2}));
  EXPECT_EQ(first_with({1, 3}), std::set<int>({1, 3}));
  EXPECT_EQ(first_with({0, 1, 2, 3, 4, 5}), std::set<int>({0, 1, 2, 3, 4, 5}));
  EXPECT_TRUE(first_with({}).empty());
}

TEST(ShownShares, LookLikeThoseOfAnotherShare) {
  const Result result = judged_after({[](RecordedTensor& tensor) {
    if (!is_at(tensor, kPartial)) return;
    const int64_t shares = tensor.shape[1], size = tensor.shape[2] * tensor.shape[3];
    change_each(tensor, [&](int64_t i) {
      const int64_t row = i / size / shares, share = (i / size + 1) % shares;
      return tensor.data.as<float>()[(row * shares + share) * size + i % size];
    });
  }});
  EXPECT_EQ(looks_of(result, kPartial), "the result of the share +1");
}

// Half of its pages, rounded down, are another number of positions where pages are half as large.
TEST(ShownShares, LookLikeThoseOfOtherBorders) {
  const Result result = judged_after({.shares = 2, .page_size = "4"});
  EXPECT_EQ(wrong_points(result), (Points{"attn.lse", "attn.partial"})) << result.story;
  for (const Place& at : {kPartial, kLse})
    EXPECT_EQ(looks_of(result, at), "the borders between its shares -1 page further on");
}

// Of 21 and 22 positions pages of 4 have the borders of pages of 8, of 38 and 39 all but the first.
TEST(ShownShares, LookLikeThoseOfOneOtherBorder) {
  const Result result = judged_after({.page_size = "4"});
  EXPECT_EQ(wrong_points(result), (Points{"attn.lse", "attn.partial"})) << result.story;
  for (const Place& at : {kPartial, kLse})
    EXPECT_EQ(looks_of(result, at), "the border before share 1 -1 page further on");
}

TEST(ShownShares, LookLikeTheirFaults) {
  struct Looks {
    const char* fault;
    Place at;
    const char* says;
  };
  const Looks all[] = {
      {"step-lse-without-most@layer=1", kLse,
       "the logarithm of its sum without the largest score, which its terms are beside"},
      {"step-other-kv-head@layer=1", kPartial,
       "every query head reads the K/V head after its own, in heads 0 to 2 alone"}};
  for (const Looks& looks : all) {
    JudgedRun run = run_in(3);
    run.faults = {parse_fault(looks.fault)};
    EXPECT_EQ(looks_of(judge_run(run), looks.at), looks.says) << looks.fault;
  }
}

// An attention that reads its shares alone, as a trace's graph may have it.
TEST(ShownShares, AreReadBesideWhatTheModelsAttentionReads) {
  const Graph shown = qwen_graph_of(bard().config(), false, /*in_shares=*/true);
  Graph changed;
  for (size_t node = 0; node < shown.places().size(); ++node) {
    const std::span<const int> all = shown.inputs(static_cast<int64_t>(node));
    std::vector<int> inputs(all.begin(), all.end());
    if (shown.places()[node] == kOut) inputs.erase(inputs.begin(), inputs.begin() + 2);
    changed.add(shown.places()[node], std::move(inputs));
  }
  const auto oracle = open_reference().oracle(bard(), {.dtype = DType::bf16});
  try {
    Judge judge({.graph = changed, .dtype = DType::bf16}, *oracle, nullptr, nullptr, {});
    FAIL() << "it was judged";
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()),
              "the graph of the trace is not that of the checkpoint's model: its layer 1 attn.out "
              "reads attn.partial, attn.lse, where that of the model reads attn.q_rope, attn.kv, "
              "attn.partial, attn.lse: have it written anew");
  }
}

}  // namespace
}  // namespace lockstep
