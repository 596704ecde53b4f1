#include "src/weights/rope_tables.h"

#include <bit>
#include <cmath>
#include <nlohmann/json.hpp>

#include "src/weights/safetensors.h"
#include "tests/helpers.h"

namespace lockstep {
namespace {

using nlohmann::json;

// One case of the tables that transformers made.
struct Case {
  std::string name;
  json config;
  int64_t length;
  double attention_factor;
};

class RopeTables : public testing::Test {
 protected:
  SafeTensors golden_{data_path("golden/rope-tables.safetensors")};
  json meta_ = json::parse(golden_.metadata().at("meta"));

  std::vector<Case> cases() const {
    std::vector<Case> cases;
    for (const auto& [name, entry] : meta_["cases"].items())
      cases.push_back({name, entry["config"],
                       entry["seq_len"].is_null() ? 1 : entry["seq_len"].get<int64_t>(),
                       entry["attention_scaling"].get<double>()});
    return cases;
  }
  std::vector<float> row(const std::string& name, int64_t row) const {
    const TensorView table = golden_.tensors().at(name);
    std::vector<float> values;
    const int64_t width = table.shape.last();
    for (int64_t j = 0; j < width; ++j)
      values.push_back(static_cast<float>(value_at(table, row * width + j)));
    return values;
  }
};

ModelConfig read(json config) {
  config.update({{"architectures", {"Qwen3ForCausalLM"}},
                 {"dtype", "bfloat16"},
                 {"intermediate_size", 64},
                 {"vocab_size", 64}});
  const TempFolder folder;
  folder.write("config.json", config.dump());
  return read_config(folder.path());
}

// Floats between a and b, both positive.
int64_t steps_between(float a, float b) {
  return std::abs(int64_t{std::bit_cast<int32_t>(a)} - std::bit_cast<int32_t>(b));
}

TEST_F(RopeTables, frequencies_are_those_of_transformers_within_2_ulp) {
  ASSERT_EQ(cases().size(), 15u);
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.name);
    const RopeFrequencies found = rope_frequencies(read(c.config), c.length);
    const std::vector<float> wanted = row(c.name + "/inv_freq", 0);
    ASSERT_EQ(found.inv_freq.size(), wanted.size());
    EXPECT_NEAR(found.attention_factor, c.attention_factor, 1e-12);
    for (size_t j = 0; j < wanted.size(); ++j)
      EXPECT_LE(steps_between(found.inv_freq[j], wanted[j]), 2) << j;
  }
}

TEST_F(RopeTables, rows_are_those_of_transformers_from_the_same_frequencies) {
  const auto positions = meta_["positions"].get<std::vector<int64_t>>();
  ASSERT_EQ(positions.back(), 32767);
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.name);
    RopeFrequencies frequencies;
    frequencies.inv_freq = row(c.name + "/inv_freq", 0);
    frequencies.attention_factor = rope_frequencies(read(c.config), c.length).attention_factor;
    std::vector<float> cos(frequencies.inv_freq.size()), sin(cos.size());
    for (size_t i = 0; i < positions.size(); ++i) {
      frequencies.put_row(positions[i], cos, sin);
      const auto wanted_cos = row(c.name + "/cos", static_cast<int64_t>(i));
      const auto wanted_sin = row(c.name + "/sin", static_cast<int64_t>(i));
      for (size_t j = 0; j < cos.size(); ++j) {
        EXPECT_LE(std::abs(cos[j] - wanted_cos[j]), 1e-6) << positions[i] << " " << j;
        EXPECT_LE(std::abs(sin[j] - wanted_sin[j]), 1e-6) << positions[i] << " " << j;
      }
    }
  }
}

TEST_F(RopeTables, the_old_spelling_gives_the_same_numbers) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.name);
    json old = c.config;
    json scaling = old["rope_parameters"];
    old.erase("rope_parameters");
    old["rope_theta"] = scaling["rope_theta"];
    scaling.erase("rope_theta");
    scaling["type"] = scaling["rope_type"];
    scaling.erase("rope_type");
    old["rope_scaling"] = scaling["type"] == "default" ? json() : scaling;
    EXPECT_EQ(rope_frequencies(read(old), c.length).inv_freq,
              rope_frequencies(read(c.config), c.length).inv_freq);
  }
}

TEST_F(RopeTables, only_dynamic_and_longrope_depend_on_the_length) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.name);
    const ModelConfig config = read(c.config);
    const bool differs =
        rope_frequencies(config, 1).inv_freq != rope_frequencies(config, int64_t{1} << 20).inv_freq;
    EXPECT_EQ(differs, config.rope.depends_on_length());
  }
}

TEST_F(RopeTables, refuses_rows_that_do_not_fit) {
  const RopeFrequencies found = rope_frequencies(read(cases()[0].config), 1);
  std::vector<float> right(found.inv_freq.size()), wrong(right.size() - 1);
  expect_trouble("wants 64 cosines", [&] { found.put_row(1, wrong, right); });
  expect_trouble("position -1", [&] { found.put_row(-1, right, right); });
  expect_trouble("at least one token", [&] { rope_frequencies(read(cases()[0].config), 0); });
}

}  // namespace
}  // namespace lockstep
