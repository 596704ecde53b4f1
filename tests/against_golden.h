// An engine in fp32 against Hugging Face's fp32 activations: every stored op of every step, whoever
// computes the passes.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/fixtures.h"
#include "tests/golden.h"

namespace lockstep {

struct GoldenCase {
  std::string model, file, prefix;
};

// The tokens that the golden's decode steps were fed.
inline std::vector<int32_t> forced_ids(const Golden& golden, const GoldenCase& c) {
  const auto meta = nlohmann::json::parse(golden.metadata().at("meta"));
  const std::string case_name = c.prefix.substr(0, c.prefix.find('/'));
  return c.file == "tiny" ? meta.at("cases").at(case_name).at("forced_ids")
                          : meta.at("forced_ids").at(c.prefix.substr(c.prefix.find('/') + 1));
}

// Holds what an engine shows of a golden's prompt and forced tokens to that golden.
class AgainstGolden : public testing::TestWithParam<GoldenCase> {
 protected:
  // options: those of the engine; it computes in fp32 whatever they say.
  void hold(EngineOptions options) {
    options.dtype = DType::f32;
    options.page_order_seed = 5;
    Request request{.prompt = golden_.ids("prompt_ids")};
    ASSERT_FALSE(request.prompt.empty());
    prompt_ = static_cast<int>(request.prompt.size());
    const std::vector<int32_t> greedy = golden_.ids("greedy_ids");
    ASSERT_FALSE(greedy.empty());
    request.forced = forced_ids(golden_, GetParam());
    request.forced.resize(greedy.size() - 1);

    compared_ = 0;
    const Served served = serve(checkpoint_, options, {request});
    for (const Pass& pass : served.passes)
      for (const RecordedTensor& tensor : pass.tensors)
        if (!Golden::name_in_golden(*tensor.point).empty()) compare(tensor);
    EXPECT_GE(compared_, std::ssize(greedy)) << "goldens were thinned to nothing";
    EXPECT_EQ(served.sequences[0].argmax, greedy);
  }

  Checkpoint checkpoint_ = Checkpoint::open(data_path(GetParam().model));

 private:
  // Compares the rows of one tensor with the goldens of the steps they belong to.
  void compare(const RecordedTensor& tensor) {
    for (size_t i = 0; i < tensor.rows.size(); ++i) {
      const int position = tensor.rows[i].position;
      const int step = std::max(0, position - prompt_ + 1);
      const auto golden = golden_.find(step, *tensor.point, tensor.layer);
      if (!golden) continue;
      const double limit = kGoldenLimit * rms_of(*golden);
      const int64_t width = golden->row_size();
      ASSERT_EQ(width, tensor.data.view().row_size()) << tensor.point->name;
      const int64_t row = golden->rows() == 1 ? 0 : position;  // logits: of the last row alone
      for (int64_t j = 0; j < width; ++j) {
        const double want = value_at(*golden, row * width + j);
        const double got = value_at(tensor.data, static_cast<int64_t>(i) * width + j);
        ASSERT_LE(std::fabs(want - got), limit)
            << tensor.point->name << " layer " << tensor.layer << " position " << position
            << " element " << j << ": want " << want << " got " << got;
      }
      ++compared_;
    }
  }

  Golden golden_{GetParam().file, GetParam().prefix};
  int prompt_ = 0;
  int64_t compared_ = 0;
};

inline std::string name_of_golden(const testing::TestParamInfo<GoldenCase>& info) {
  std::string name = info.param.model + "_" + info.param.prefix;
  for (char& c : name)
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  return name;
}

inline std::vector<GoldenCase> all_goldens() {
  std::vector<GoldenCase> cases;
  for (const char* model : {"bard-qwen3", "bard-qwen2.5"})
    for (const char* prompt : {"o", "romeo", "tobe"})
      cases.push_back({model, model, std::string("float32/") + prompt});
  for (const char* model : {"qwen2-default", "qwen2-mha", "qwen2-sliding", "qwen3-bias-mqa",
                            "qwen3-default", "qwen3-dynamic", "qwen3-linear", "qwen3-llama3",
                            "qwen3-moe", "qwen3-untied-sharded", "qwen3-yarn"})
    cases.push_back({std::string("tiny/") + model, "tiny", std::string(model) + "/float32/p"});
  return cases;
}

}  // namespace lockstep
