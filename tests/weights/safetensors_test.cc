#include "src/weights/safetensors.h"

#include <fmt/format.h>

#include <vector>

#include "tests/helpers.h"
#include "tests/weights/safetensors_file.h"

namespace lockstep {
namespace {

// A tensor's entry in a header.
std::string entry(const std::string& name, const std::string& dtype, const std::string& shape,
                  const std::string& offsets) {
  return fmt::format(R"("{}":{{"dtype":"{}","shape":{},"data_offsets":{}}})", name, dtype, shape,
                     offsets);
}

std::string header_of(const std::vector<std::string>& entries) {
  return fmt::format("{{{}}}", fmt::join(entries, ","));
}

SafeTensors read(const std::string& bytes) {
  const TempFolder folder;
  return SafeTensors(folder.write("x.safetensors", bytes));
}

TEST(SafeTensors, reads_values_shapes_and_metadata) {
  // 1.5 and -2 as fp32, 3 as int32, 1 as bf16, nothing at all, and a scalar byte.
  const std::string data("\x00\x00\xC0\x3F\x00\x00\x00\xC0\x03\x00\x00\x00\x80\x3F\x07", 15);
  const std::string header =
      "{\"__metadata__\":{\"format\":\"pt\"}," + entry("a", "F32", "[2,1]", "[0,8]") + "," +
      entry("b", "I32", "[1]", "[8,12]") + "," + entry("c", "BF16", "[1]", "[12,14]") + "," +
      entry("d", "F32", "[0,4]", "[12,12]") + "," + entry("e", "U8", "[]", "[14,15]") + "}";
  const SafeTensors file = read(safetensors_file(padded(header), data));
  ASSERT_EQ(file.tensors().size(), 5u);
  const TensorView a = file.tensors().at("a");
  EXPECT_EQ(a.shape, Shape({2, 1}));
  EXPECT_EQ(a.dtype, DType::f32);
  EXPECT_EQ(value_at(a, 0), 1.5);
  EXPECT_EQ(value_at(a, 1), -2);
  EXPECT_EQ(value_at(file.tensors().at("b"), 0), 3);
  EXPECT_EQ(value_at(file.tensors().at("c"), 0), 1);
  EXPECT_EQ(file.tensors().at("d").count(), 0);
  EXPECT_EQ(file.tensors().at("e").shape.rank(), 0);
  EXPECT_EQ(value_at(file.tensors().at("e"), 0), 7);
  EXPECT_EQ(file.metadata().at("format"), "pt");
}

TEST(SafeTensors, reads_a_file_of_no_tensors) {
  EXPECT_TRUE(read(safetensors_file("{}", "")).tensors().empty());
}

struct Malformed {
  std::string what;
  std::string header;
  size_t data;
  std::string phrase;
};

const std::vector<Malformed>& malformed() {
  static const std::vector<Malformed> kCases = {
      {"hole at the front", header_of({entry("a", "U8", "[4]", "[1,5]")}), 5,
       "belong to no tensor"},
      {"hole between",
       header_of({entry("a", "U8", "[2]", "[0,2]"), entry("b", "U8", "[2]", "[3,5]")}), 5,
       "bytes 2 to 3"},
      {"left over at the end", header_of({entry("a", "U8", "[4]", "[0,4]")}), 5,
       "end at byte 4 of 5"},
      {"overlap", header_of({entry("a", "U8", "[3]", "[0,3]"), entry("b", "U8", "[2]", "[2,4]")}),
       4, "overlaps"},
      {"twice the same bytes",
       header_of({entry("a", "U8", "[4]", "[0,4]"), entry("b", "U8", "[4]", "[0,4]")}), 4,
       "overlaps"},
      {"past the end", header_of({entry("a", "U8", "[9]", "[0,9]")}), 8,
       "lies at bytes 0 to 9 of 8"},
      {"begin after end", header_of({entry("a", "U8", "[1]", "[4,3]")}), 4, "lies at bytes 4 to 3"},
      {"too few bytes", header_of({entry("a", "F32", "[3]", "[0,8]")}), 8, "needs 12"},
      {"too many bytes", header_of({entry("a", "F32", "[1]", "[0,8]")}), 8, "needs 4"},
      {"product overflows to 0", header_of({entry("a", "F32", "[4611686018427387904,4]", "[0,0]")}),
       0, "more than 2^64 bytes"},
      {"extent beyond 64 bits", header_of({entry("a", "U8", "[18446744073709551616]", "[0,0]")}), 0,
       "a.shape[0] is"},
      {"extent beyond 63 bits", header_of({entry("a", "U8", "[9223372036854775808]", "[0,0]")}), 0,
       "a.shape[0] is"},
      {"negative extent", header_of({entry("a", "U8", "[-1]", "[0,0]")}), 0, "a.shape[0] is -1"},
      {"fractional extent", header_of({entry("a", "U8", "[1.0]", "[0,1]")}), 1,
       "a.shape[0] is 1.0"},
      {"six axes", header_of({entry("a", "U8", "[1,1,1,1,1,1]", "[0,1]")}), 1,
       "at most five extents"},
      {"unknown dtype", header_of({entry("a", "F8_E4M3", "[1]", "[0,1]")}), 1,
       "a.dtype is \"F8_E4M3\", one of F64"},
      {"negative offset", header_of({entry("a", "U8", "[1]", "[-1,0]")}), 1,
       "data_offsets[0] is -1"},
      {"one offset", header_of({entry("a", "U8", "[1]", "[1]")}), 1, "two whole numbers"},
      {"a.dtype is missing", "{\"a\":{\"shape\":[1],\"data_offsets\":[0,1]}}", 1,
       "a.dtype is missing"},
      {"no shape", "{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,1]}}", 1, "a.shape is missing"},
      {"no offsets", "{\"a\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1, "a.data_offsets is missing"},
      {"entry is no object", "{\"a\":[0,1]}", 1, "a is a list of 2, an object was wanted"},
      {"tensor twice",
       header_of({entry("a", "U8", "[1]", "[0,1]"), entry("a", "U8", "[1]", "[1,2]")}), 2,
       "the key \"a\" twice"},
      {"field twice",
       "{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1,
       "the key \"dtype\" twice"},
      {"metadata is no map", "{\"__metadata__\":[]}", 0,
       "__metadata__ is a list of 0, an object was wanted"},
      {"metadata is no text", "{\"__metadata__\":{\"a\":1}}", 0,
       "__metadata__.a is 1, a text was wanted"},
      {"not JSON", "{\"a\":", 0, "is no JSON"},
      {"a list", "[]", 0, "not a JSON object"},
      {"no header at all", "", 0, "not a JSON object"},
      {"blanks before", " {}", 0, "not a JSON object"},
      {"two objects", "{}{}", 0, "is no JSON"},
      {"not UTF-8", "{\"a\xFF\":1}", 0, "is no JSON"},
  };
  return kCases;
}

TEST(SafeTensors, refuses_what_is_malformed) {
  for (const Malformed& bad : malformed()) {
    SCOPED_TRACE(bad.what);
    expect_trouble(bad.phrase, [&] {
      read(safetensors_file(padded(bad.header), std::string(bad.data, '\0')));
    });
  }
}

TEST(SafeTensors, refuses_a_wrong_length_of_the_header) {
  const std::string good = safetensors_file("{}", "");
  std::string odd = good, huge = good, beyond = good;
  odd[0] = 1;
  beyond[0] = 3;
  huge[7] = '\x7F';
  expect_trouble("is no JSON", [&] { read(odd); });
  expect_trouble("claims 3 bytes and 2 follow", [&] { read(beyond); });
  expect_trouble("100000000 are allowed", [&] { read(huge); });
  expect_trouble("at least 8", [&] { read("1234567"); });
  expect_trouble("is empty", [&] { read(""); });
}

TEST(SafeTensors, refuses_data_that_is_not_aligned) {
  std::string header = padded(header_of({entry("a", "F32", "[1]", "[0,4]")}));
  const std::string data(4, '\0');
  EXPECT_EQ(read(safetensors_file(header, data)).tensors().size(), 1u);
  expect_trouble("not aligned", [&] { read(safetensors_file(header + " ", data)); });
}

TEST(SafeTensors, refuses_every_cut_of_a_file) {
  const std::string whole = safetensors_file(padded(header_of({entry("a", "F32", "[2]", "[0,8]")})),
                                             std::string(8, '\1'));
  for (size_t length = 0; length < whole.size(); ++length) {
    SCOPED_TRACE(length);
    expect_trouble("", [&] { read(whole.substr(0, length)); });
  }
}

TEST(SafeTensors, refuses_what_is_no_file) {
  const TempFolder folder;
  expect_trouble("No such file", [&] { SafeTensors(folder.path() + "/missing"); });
  expect_trouble("regular file", [&] { SafeTensors(folder.path()); });
}

TEST(SafeTensors, lives_as_long_as_a_copy) {
  TensorView a;
  const auto copy = [&] {
    const SafeTensors first =
        read(safetensors_file(padded(header_of({entry("a", "U8", "[1]", "[0,1]")})), "\x05"));
    a = first.tensors().at("a");
    return first;
  }();
  EXPECT_EQ(value_at(a, 0), 5);
}

}  // namespace
}  // namespace lockstep
