// A judged bf16 run on the prompts of Hugging Face's bf16 activations: every node within its
// budget, and every token theirs, or one that they could have chosen as well.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "src/judge/verdict.h"
#include "tests/golden.h"
#include "tests/judged.h"

namespace lockstep {
namespace {

constexpr size_t kTop = 50;

std::vector<double> logits_of(const Golden& golden, int step) {
  const auto stored = golden.find(step, point("logits"), -1);
  if (!stored) return {};
  std::vector<double> values(static_cast<size_t>(stored->count()));
  widen(*stored, 0, values);
  return values;
}

// How far apart two tokens may be in fp64 for bf16 to choose either: 6 sqrt(2) of what bf16 moves
// the 50 largest logits by, which is taken from the two goldens alone.
double explained_margin(const std::vector<double>& fp64, const std::vector<double>& bf16) {
  std::vector<size_t> order(fp64.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::partial_sort(order, order.begin() + kTop,
                            [&](size_t a, size_t b) { return fp64[a] > fp64[b]; });
  double squares = 0;
  for (size_t i = 0; i < kTop; ++i) squares += std::pow(bf16[order[i]] - fp64[order[i]], 2);
  return 6 * std::sqrt(2 * squares / static_cast<double>(kTop));
}

class AgainstBf16 : public testing::TestWithParam<std::tuple<const char*, const char*>> {};

TEST_P(AgainstBf16, EveryNodeIsWithinItsBudgetAndEveryTokenIsExplained) {
  const auto& [model, prompt] = GetParam();
  const Golden bf16(model, std::string("bfloat16/") + prompt);
  const Golden fp64(model, std::string("float64/") + prompt);
  const std::vector<int32_t> theirs = bf16.ids("greedy_ids");
  ASSERT_FALSE(theirs.empty());
  // All goldens were fed what is greedy in fp64.
  Request request{.prompt = bf16.ids("prompt_ids"), .forced = fp64.ids("greedy_ids")};
  request.forced.resize(theirs.size() - 1);

  const Checkpoint checkpoint = Checkpoint::open(data_path(model));
  const Result result =
      judged({.checkpoint = checkpoint,
              .reference = open_reference(),
              .engine = {.dtype = DType::bf16, .page_size = 4, .page_order_seed = 3},
              .requests = {request}});
  EXPECT_EQ(result.verdict, RunVerdict::clean) << result.story;
  EXPECT_EQ(result.judged, result.expected);
  ASSERT_EQ(result.requests.size(), 1u);
  const std::vector<int32_t>& ours = result.requests[0].argmax;
  ASSERT_EQ(ours.size(), theirs.size());
  for (size_t step = 0; step < theirs.size(); ++step) {
    const std::vector<double> exact = logits_of(fp64, static_cast<int>(step));
    const std::vector<double> rounded = logits_of(bf16, static_cast<int>(step));
    ASSERT_GT(exact.size(), kTop);
    ASSERT_EQ(exact.size(), rounded.size());
    const double margin = std::fabs(exact.at(static_cast<size_t>(theirs[step])) -
                                    exact.at(static_cast<size_t>(ours[step])));
    EXPECT_LE(margin, ours[step] == theirs[step] ? 0 : explained_margin(exact, rounded))
        << "step " << step << ": " << ours[step] << " instead of " << theirs[step];
  }
}

INSTANTIATE_TEST_SUITE_P(Prompts, AgainstBf16,
                         testing::Combine(testing::Values("bard-qwen3", "bard-qwen2.5"),
                                          testing::Values("o", "romeo", "tobe")),
                         [](const auto& info) {
                           std::string name =
                               std::string(std::get<0>(info.param)) + "_" + std::get<1>(info.param);
                           std::ranges::replace_if(
                               name, [](char c) { return !std::isalnum(c); }, '_');
                           return name;
                         });

}  // namespace
}  // namespace lockstep
