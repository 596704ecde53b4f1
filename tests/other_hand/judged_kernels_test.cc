// What the judge says of a part of the other hand's kernels: other_hand_table takes all of them.
#include "tests/other_hand/judged_kernels.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>

namespace lockstep {
namespace {

// Of what all runs came to, every so manyth is run here.
constexpr size_t kEvery = 199;

// Wrong kernels that these runs cannot show, and why: each computes what a right one does here, or
// so nearly that no 16-bit result of one layer tells.
const std::map<std::string, const char*> kNotShown = {
    {"attention-clamped-at-11", "no score of these models is over 11"},
    {"attention-scale-in-bf16", "head_dim is a power of 4, whose scale bf16 holds"},
    {"argmax-last-of-equals", "no row has its largest logit twice, and any of them is right"},
    {"argmax-in-bf16", "the two largest logits are further apart"},
    {"argmax-last-block-lost", "the largest logit is never among the last 256"},
    {"embed-id-in-15-bits", "the vocabulary has fewer ids"},
    {"kv-as-fp16", "all keys and values are within fp16"},
    {"norm-tiles-of-32", "the widths are multiples of 32"},
    {"norm-eps-outside-root", "it moves 1 of 1500 elements by an ulp in fp16"},
    {"rope-positions-within-2048", "no request is as long"},
    {"router-normalised", "the model normalises too"},
    {"silu-clamped-at-7", "few gates of these models are over 7"},
    {"topk-in-order-of-number", "the sum over experts is the same in any order"},
    {"topk-smallest-first", "the sum over experts is the same in any order"}};

std::vector<KernelRun> some_runs() {
  std::vector<KernelRun> all, some;
  for (const other_hand::OtherKernel& kernel : other_hand::other_kernels())
    for (const KernelRun& run : runs_of(kernel)) all.push_back(run);
  for (size_t i = 0; i < all.size(); i += kEvery) some.push_back(all[i]);
  return some;
}

class JudgedKernels : public testing::TestWithParam<KernelRun> {};

TEST_P(JudgedKernels, AreToldApart) {
  const KernelRun& run = GetParam();
  const KernelOutcome outcome = judge_kernel(run);
  SCOPED_TRACE(text_of(run) + ": " + outcome.story);
  if (outcome.seen == Seen::missed || outcome.seen == Seen::no_effect)
    EXPECT_TRUE(kNotShown.contains(run.kernel->name))
        << name_of(outcome.seen) << ": off by " << outcome.largest_ulp << " ulp in "
        << outcome.different << " of " << outcome.elements;
  else
    EXPECT_EQ(outcome.seen, Seen::right) << "expected first at " << run.kernel->first_point;
}

INSTANTIATE_TEST_SUITE_P(Some, JudgedKernels, testing::ValuesIn(some_runs()));

TEST(JudgedKernelsOfTheTable, AreThereRightAndWrongInAllDtypes) {
  std::set<DType> dtypes;
  size_t right = 0, wrong = 0;
  for (const KernelRun& run : some_runs()) {
    dtypes.insert(run.dtype);
    ++(run.kernel->right ? right : wrong);
  }
  EXPECT_EQ(dtypes.size(), 3u);
  EXPECT_GE(right, 5u);
  EXPECT_GE(wrong, 12u);
}

}  // namespace
}  // namespace lockstep
