#include "src/selftest/controls.h"

#include <gtest/gtest.h>

#include "tests/judged.h"

namespace lockstep {
namespace {

TEST(Controls, NoneComesOutClean) {
  for (const char* model : {"bard-qwen3", "bard-qwen2.5", "tiny/qwen3-moe", "tiny/qwen3-dynamic"})
    for (DType dtype : {DType::f32, DType::bf16, DType::f16}) {
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
