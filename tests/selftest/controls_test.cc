#include "src/selftest/controls.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "tests/judged.h"
#include "tests/whole.h"

namespace lockstep {
namespace {

TEST(Controls, NoneComesOutClean) {
  const std::vector<std::pair<const char*, std::vector<DType>>> cases = {
      {"bard-qwen3", whole() ? std::vector{DType::f32, DType::bf16} : std::vector{DType::f32}},
      {"bard-qwen2.5", whole() ? std::vector{DType::bf16, DType::f16} : std::vector{DType::bf16}},
      {"tiny/qwen3-moe", {DType::f16}},
      {"tiny/qwen3-dynamic", {DType::f32}}};
  for (const auto& [model, dtypes] : cases)
    for (DType dtype : dtypes) {
      const Checkpoint checkpoint = Checkpoint::open(data_path(model));
      const std::vector<Request> requests = {
          {.prompt = some_tokens(19, checkpoint.config().vocab), .max_new = 2},
          {.prompt = some_tokens(6, checkpoint.config().vocab, 2), .max_new = 3}};
      const EngineOptions engine{
          .dtype = dtype, .page_size = 4, .pages = pages_for(requests, 4), .page_order_seed = 3};
      const auto controls = positive_controls(checkpoint, open_reference(), engine, requests);
      EXPECT_GE(controls.size(), 13u);
      for (const Control& control : controls)
        EXPECT_TRUE(control.failed)
            << model << ": " << control.name << ": " << name_of(control.verdict);
    }
}

}  // namespace
}  // namespace lockstep
