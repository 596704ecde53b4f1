#include "reference/families.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

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
  // Named from the table, so that a new row is in the sentence too.
  std::array<std::string_view, std::size(kFamilies)> known;
  std::ranges::transform(kFamilies, known.begin(), &Family::architecture);
  fail("the architecture {} has no reference, and {} have one: use a checkpoint of one of these",
       config.architecture, fmt::join(known, ", "));
}

}  // namespace lockstep
