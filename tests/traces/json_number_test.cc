// What is no number to JSON survives a report and a journal.
#include "traces/json_number.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace lockstep {
namespace {

using nlohmann::json;

TEST(JsonNumber, ComesBackAsItWas) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const double x : {0.0, -0.0, 0.1, 1e308, -5e-324, kInfinity, -kInfinity}) {
    const json read = json::parse(json_number<json>(x).dump());
    EXPECT_EQ(double_from(read), x);
    EXPECT_EQ(std::signbit(double_from(read)), std::signbit(x)) << x;
  }
  EXPECT_TRUE(std::isnan(double_from(json::parse(json_number<json>(std::nan("")).dump()))));
}

TEST(JsonNumber, IsNothingElse) {
  for (const char* text : {"null", "\"nan\"", "\"1\"", "\"\"", "[1]", "true"})
    EXPECT_THROW(double_from(json::parse(text)), Error) << text;
}

}  // namespace
}  // namespace lockstep
