// What wrong cases have in common.
#include "src/opcheck/common_traits.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

TriedCase one(int64_t width, const std::string& dtype, const std::string& values, bool wrong) {
  return {{{"width", width}, {"dtype", dtype}, {"values", values}}, wrong};
}

TEST(CommonTraits, AreOneThatNoOtherHas) {
  EXPECT_EQ(common_to({one(8, "bf16", "usual", true), one(9, "bf16", "large", true),
                       one(8, "fp16", "usual", false)}),
            "all 2 with bf16, and no other");
}

TEST(CommonTraits, AreNumbersFromOneOn) {
  EXPECT_EQ(common_to({one(8, "bf16", "usual", false), one(64, "bf16", "usual", true),
                       one(96, "fp16", "usual", true), one(33, "fp16", "large", false)}),
            "all 2 with width from 64 on, and no other");
}

TEST(CommonTraits, AreTwoTogether) {
  EXPECT_EQ(common_to({one(8, "fp16", "large", true), one(96, "fp16", "large", true),
                       one(33, "fp16", "usual", false), one(9, "bf16", "large", false)}),
            "all 2 with fp16 and values large, and no other");
}

TEST(CommonTraits, MayBeOneThatRightCasesHaveToo) {
  EXPECT_EQ(common_to({one(8, "fp16", "large", true), one(96, "fp16", "usual", true),
                       one(33, "fp16", "usual", false), one(9, "bf16", "large", false)}),
            "all among the 3 with fp16");
}

TEST(CommonTraits, AreNothingWhereAllAreWrongOrOne) {
  EXPECT_EQ(common_to({one(8, "fp16", "large", true), one(9, "fp16", "large", true)}), "");
  EXPECT_EQ(common_to({one(8, "fp16", "large", true), one(9, "fp16", "large", false)}), "");
  EXPECT_EQ(common_to({}), "");
}

}  // namespace
}  // namespace lockstep
