// What ranks that were started elsewhere bring, and the sentence where it is not alike.
#include <gtest/gtest.h>

#include "kernels/base/check.h"
#include "src/ranks/collectives.h"
#include "tests/helpers.h"

namespace lockstep {
namespace {

using Facts = std::map<std::string, std::string>;

TEST(Facts, AreReadAsTheyWereWritten) {
  for (const Facts& facts : {Facts{}, Facts{{"model_xxh3", "ab"}, {"modes", ""}, {"a b", "1\n2"}}})
    EXPECT_EQ(facts_from(text_of_facts(facts)), facts);
  EXPECT_THROW(facts_from("page_size"), Error);
  EXPECT_THROW(facts_from(std::string("page_size\0", 10)), Error);
}

TEST(Facts, NameWhatIsNotAlike) {
  const auto said = [](const Facts& second, const Facts& third) {
    const Facts first = {{"git_sha", "a1"}, {"page_size", "16"}};
    return error_of([&] {
      check_alike({text_of_facts(first), text_of_facts(second), text_of_facts(third)});
    });
  };
  const Facts same = {{"git_sha", "a1"}, {"page_size", "16"}};
  const std::string alike = text_of_facts(same);
  EXPECT_NO_THROW(check_alike({alike, alike, alike}));
  const std::string other = said(same, {{"git_sha", "a1"}, {"page_size", "8"}});
  EXPECT_NE(other.find("rank 2 was not started as rank 0 was: its page_size is '8', rank 0's is "
                       "'16'"),
            std::string::npos)
      << other;
  EXPECT_NE(said({{"git_sha", "b2"}, {"page_size", "16"}}, same).find("rank 1"), std::string::npos);
  EXPECT_NE(said({{"git_sha", "a1"}}, same).find("its page_size is none"), std::string::npos);
  EXPECT_NE(
      said(same, {{"git_sha", "a1"}, {"page_size", "16"}, {"new", "1"}}).find("its new is '1'"),
      std::string::npos);
}

}  // namespace
}  // namespace lockstep
