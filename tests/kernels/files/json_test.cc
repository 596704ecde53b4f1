#include "kernels/files/json.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "tests/helpers.h"
#include "traces/json_number.h"

namespace lockstep {
namespace {

JsonDocument parsed(const std::string& text) { return {text, {"f.json", "correct it"}}; }

std::string trouble_with(const std::string& text) {
  return error_of([&] { parsed(text); });
}

TEST(Json, FieldsAreReadWithAllTheirBits) {
  const JsonDocument document = parsed(
      "{\"a\": {\"b\": [1, -2, 9007199254740993], \"t\": \"x\\u0000y\"}, \"n\": null,"
      " \"u\": 18446744073709551615, \"f\": true, \"d\": 0.1}");
  const JsonValue root = document.root();
  EXPECT_EQ(root["a"]["b"].wholes<int64_t>(), (std::vector<int64_t>{1, -2, 9007199254740993}));
  EXPECT_EQ(root["a"]["t"].text(), std::string("x\0y", 3));
  EXPECT_EQ(root["u"].whole<uint64_t>(), UINT64_MAX);
  EXPECT_TRUE(root["f"].flag());
  EXPECT_EQ(root["d"].number(), 0.1);
  EXPECT_TRUE(root["n"].is_null());
  EXPECT_FALSE(root["n"]);
  EXPECT_FALSE(root["none"]);
  EXPECT_TRUE(root["none"].is_missing());
  EXPECT_FALSE(root["none"].is_null());
  EXPECT_EQ(root.fields().size(), 5u);
}

TEST(Json, AnErrorNamesTheFileAndTheFieldAndWhatWasWanted) {
  const JsonDocument document = parsed(
      "{\"rope\": {\"factor\": \"x\", \"list\": [1, {\"y\": 2.5}]}, \"n\": 4294967296, \"m\": -1}");
  const JsonValue root = document.root(), rope = root["rope"];
  const auto error = [](auto read) { return error_of(read); };
  EXPECT_EQ(error([&] { rope["factor"].number(); }),
            "f.json: rope.factor is \"x\", a number was wanted: correct it");
  EXPECT_EQ(error([&] { rope["list"][1]["y"].whole<int32_t>(); }),
            "f.json: rope.list[1].y is 2.5, a whole number from -2147483648 to 2147483647 was "
            "wanted: correct it");
  EXPECT_EQ(error([&] { rope["list"][7].flag(); }),
            "f.json: rope.list[7] is missing, true or false was wanted: correct it");
  EXPECT_EQ(error([&] { root["none"]["of"].text(); }),
            "f.json: none is missing, an object was wanted: correct it");
  EXPECT_EQ(error([&] { root.items(); }),
            "f.json is an object of 3, a list was wanted: correct it");
  EXPECT_EQ(error([&] { root["n"].whole<int32_t>(0); }),
            "f.json: n is 4294967296, a whole number from 0 to 2147483647 was wanted: correct it");
  EXPECT_EQ(error([&] { root["m"].whole<uint64_t>(); }),
            "f.json: m is -1, a whole number of at least 0 was wanted: correct it");
}

// Limits come from other fields of hostile files too.
TEST(Json, LimitsBelowZeroAndThoseThatNothingFitsAreLimits) {
  const JsonDocument document =
      parsed("[-9, -5, 0, 5, 18446744073709551615, -9223372036854775808]");
  const JsonValue root = document.root();
  const auto within = [&](size_t i, int64_t least, int64_t most) {
    return error_of([&] { root[i].whole<int64_t>(least, most); });
  };
  EXPECT_EQ(root[1].whole<int64_t>(-5, -5), -5);
  EXPECT_EQ(root[5].whole<int64_t>(INT64_MIN, -1), INT64_MIN);
  EXPECT_EQ(within(0, -8, -1),
            "f.json: [0] is -9, a whole number from -8 to -1 was wanted: correct it");
  EXPECT_EQ(within(2, INT64_MIN, -1),
            "f.json: [2] is 0, a whole number of at most -1 was wanted: correct it");
  EXPECT_EQ(within(4, -8, -1).substr(0, 38), "f.json: [4] is 18446744073709551615, a");
  for (size_t i = 0; i < root.size(); ++i) {
    EXPECT_NE(within(i, 0, -1).find("from 0 to -1, which none is, was wanted"), std::string::npos);
    EXPECT_NE(within(i, 5, 4).find("from 5 to 4, which none is, was wanted"), std::string::npos);
    EXPECT_NE(within(i, INT64_MAX, INT64_MIN), "");
    EXPECT_NE(error_of([&] { root[i].whole<uint64_t>(UINT64_MAX, 1); }), "");
  }
  EXPECT_EQ(root[4].whole<uint64_t>(UINT64_MAX), UINT64_MAX);
  EXPECT_EQ(parsed("-0").root().whole<uint32_t>(0, 0), 0u);
}

TEST(Json, ALongOrUnprintableValueStaysOneShortLine) {
  const JsonDocument document =
      parsed("{\"a\\nb\": \"" + std::string(100'000, 'x') + "\", \"e\": \"\\u001b[2J\\u0000\"}");
  const std::string longest = error_of([&] { document.root()["a\nb"].number(); });
  EXPECT_EQ(longest, "f.json: a\\nb is \"" + std::string(80, 'x') +
                         "...\", a number was wanted: correct it");
  EXPECT_EQ(error_of([&] { document.root()["e"].number(); }),
            "f.json: e is \"\\x1b[2J\\x00\", a number was wanted: correct it");
}

// Deeper, what copies or prints a value would run out of stack, which is no exception.
TEST(Json, NestingHasALimit) {
  const auto nested = [](size_t depth) {
    return std::string(depth, '[') + std::string(depth, ']');
  };
  EXPECT_TRUE(parsed(nested(64)).root().is_list());
  EXPECT_EQ(trouble_with(nested(65)), "f.json: is nested more than 64 deep: correct it");
  std::string objects;
  for (int i = 0; i < 100'000; ++i) objects += "{\"a\":";
  EXPECT_EQ(trouble_with(objects), "f.json: is nested more than 64 deep: correct it");
  EXPECT_EQ(trouble_with(std::string(1 << 20, '[')), trouble_with(nested(65)));
  EXPECT_EQ(trouble_with(std::string((1 << 20) + 1, '[')),
            "f.json: has 1048577 bytes, and at most 1048576 are read: correct it");
}

TEST(Json, OfTwoEqualKeysNeitherIsTaken) {
  EXPECT_EQ(trouble_with("{\"a\": {\"b\": 1, \"b\": 1}}"),
            "f.json: has the key \"b\" twice in one object: correct it");
  EXPECT_TRUE(parsed("{\"a\": {\"b\": 1}, \"b\": 1}").root().is_object());
}

TEST(Json, AnythingElseIsNone) {
  EXPECT_EQ(trouble_with("{\"a\": 1"), "f.json: is no JSON from byte 8 on: correct it");
  EXPECT_EQ(trouble_with("[1e999]"),
            "f.json: has the number 1e999, which no double holds: correct it");
  for (const std::string& text :
       {std::string(), std::string("{}{}"), std::string("nul"), std::string("\"\xff\""),
        std::string(3, '\0'), std::string("[1,]"), std::string("{\"a\"}"), std::string("\"\n\"")})
    EXPECT_NE(trouble_with(text).find("f.json: is no JSON from byte"), std::string::npos) << text;
}

TEST(Json, ManyFieldsAreReadInTheTimeOfTheirText) {
  std::string text = "{";
  for (int i = 0; i < 40'000; ++i) text += "\"" + std::to_string(i) + "\": {\"x\": [0, 1]},";
  text.back() = '}';
  const JsonDocument document(text, {"f.json", "", text.size()});
  int64_t sum = 0;
  for (const auto& [key, value] : document.root().fields()) sum += value["x"][1].whole<int64_t>();
  EXPECT_EQ(sum, 40'000);
}

// What is no number to JSON survives a report and a journal.
TEST(JsonNumber, ComesBackAsItWas) {
  const auto back = [](double x) {
    return parsed(json_number<nlohmann::json>(x).dump()).root().real();
  };
  for (const double x : {0.0, -0.0, 0.1, 1e308, -5e-324, HUGE_VAL, -HUGE_VAL}) {
    EXPECT_EQ(back(x), x);
    EXPECT_EQ(std::signbit(back(x)), std::signbit(x)) << x;
  }
  EXPECT_TRUE(std::isnan(back(std::nan(""))));
  for (const char* text : {"null", "\"nan\"", "\"1\"", "\"\"", "[1]", "true"})
    EXPECT_THROW(parsed(text).root().real(), Error) << text;
}

}  // namespace
}  // namespace lockstep
