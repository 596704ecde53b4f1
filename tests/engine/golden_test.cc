// The engine in fp32 against Hugging Face's fp32 activations: every stored op of every step.
#include "tests/golden.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "tests/fixtures.h"

namespace lockstep {
namespace {

struct Case {
  std::string model, file, prefix;
};

// fp32 against fp32 with another order of summation, of the rms of the op.
constexpr double kLimit = 2e-5;

double rms_of(const TensorView& tensor) {
  double sum = 0;
  for (int64_t i = 0; i < tensor.count(); ++i) sum += std::pow(value_at(tensor, i), 2);
  return std::sqrt(sum / static_cast<double>(tensor.count()));
}

// The tokens that the golden's decode steps were fed.
std::vector<int32_t> forced_ids(const Golden& golden, const Case& c) {
  const auto meta = nlohmann::json::parse(golden.metadata().at("meta"));
  const std::string case_name = c.prefix.substr(0, c.prefix.find('/'));
  return c.file == "tiny" ? meta.at("cases").at(case_name).at("forced_ids")
                          : meta.at("forced_ids").at(c.prefix.substr(c.prefix.find('/') + 1));
}

class AgainstGolden : public testing::TestWithParam<Case> {
 protected:
  // Compares the rows of one tensor with the goldens of the steps they belong to.
  void compare(const RecordedTensor& tensor) {
    for (size_t i = 0; i < tensor.rows.size(); ++i) {
      const int position = tensor.rows[i].position;
      const int step = std::max(0, position - prompt_ + 1);
      const auto golden = golden_.find(step, *tensor.point, tensor.layer);
      if (!golden) continue;
      const double limit = kLimit * rms_of(*golden);
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

TEST_P(AgainstGolden, EveryStoredOpAndEveryToken) {
  const Checkpoint checkpoint = Checkpoint::open(data_path(GetParam().model));
  Request request{.prompt = golden_.ids("prompt_ids")};
  ASSERT_FALSE(request.prompt.empty());
  prompt_ = static_cast<int>(request.prompt.size());
  const std::vector<int32_t> greedy = golden_.ids("greedy_ids");
  ASSERT_FALSE(greedy.empty());
  request.forced = forced_ids(golden_, GetParam());
  request.forced.resize(greedy.size() - 1);

  const Served served = serve(checkpoint, {.dtype = DType::f32, .page_order_seed = 5}, {request});
  for (const Pass& pass : served.passes)
    for (const RecordedTensor& tensor : pass.tensors)
      if (!Golden::name_in_golden(*tensor.point).empty()) compare(tensor);
  EXPECT_GE(compared_, std::ssize(greedy)) << "goldens were thinned to nothing";
  EXPECT_EQ(served.sequences[0].argmax, greedy);
}

std::string name_of_case(const testing::TestParamInfo<Case>& info) {
  std::string name = info.param.model + "_" + info.param.prefix;
  for (char& c : name)
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  return name;
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const char* model : {"bard-qwen3", "bard-qwen2.5"})
    for (const char* prompt : {"o", "romeo", "tobe"})
      cases.push_back({model, model, std::string("float32/") + prompt});
  for (const char* model : {"qwen2-default", "qwen2-mha", "qwen2-sliding", "qwen3-bias-mqa",
                            "qwen3-default", "qwen3-dynamic", "qwen3-linear", "qwen3-llama3",
                            "qwen3-moe", "qwen3-untied-sharded", "qwen3-yarn"})
    cases.push_back({std::string("tiny/") + model, "tiny", std::string(model) + "/float32/p"});
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Models, AgainstGolden, testing::ValuesIn(all_cases()), name_of_case);

}  // namespace
}  // namespace lockstep
