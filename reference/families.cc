#include "reference/families.h"

#include "kernels/base/check.h"
#include "reference/error_sharer.h"
#include "reference/qwen.h"
#include "src/weights/qwen_graph.h"

namespace lockstep {
namespace {

// To add a family: write its model beside qwen.cc and error_sharer.cc, its row here and in
// src/model/families.cc, and teach its config.json to both readers, src/weights/config.cc and
// recipe.cc here.
constexpr Family kFamilies[] = {
    {"Qwen2ForCausalLM", qwen_graph_of, qwen_reference, qwen_error_sharer},
    {"Qwen3ForCausalLM", qwen_graph_of, qwen_reference, qwen_error_sharer},
    {"Qwen3MoeForCausalLM", qwen_graph_of, qwen_reference, qwen_error_sharer},
};

}  // namespace

const Family& family_of(const ModelConfig& config) {
  for (const Family& family : kFamilies)
    if (family.architecture == config.architecture) return family;
  fail(
      "a reference is there for the families Qwen2, Qwen3 and Qwen3-MoE, found architecture {}: "
      "use a "
      "checkpoint of one of these",
      config.architecture);
}

}  // namespace lockstep
