#pragma once

#include <cmath>
#include <map>
#include <optional>
#include <string>

#include "probes/record.h"
#include "src/weights/checkpoint.h"
#include "tests/helpers.h"

namespace lockstep {

// Activations of Hugging Face transformers: tests/data/README.md says how they were made.
class Golden {
 public:
  // file: "bard-qwen3"; prefix: "float32/romeo" or, in tiny, "qwen3-default/float32/p".
  Golden(const std::string& file, std::string prefix)
      : file_(data_path("golden/" + file + ".safetensors")), prefix_(std::move(prefix)) {}

  std::vector<int32_t> ids(const std::string& name) const {
    const auto found = file_.tensors().find(prefix_ + "/" + name);
    if (found == file_.tensors().end()) return {};
    std::vector<int32_t> ids;
    for (int64_t i = 0; i < found->second.count(); ++i)
      ids.push_back(static_cast<int32_t>(value_at(found->second, i)));
    return ids;
  }
  const std::map<std::string, std::string>& metadata() const { return file_.metadata(); }

  // The stored tensor of one step of a point, or nothing: not every op of every step is stored.
  std::optional<TensorView> find(int step, const Point& point, int layer) const {
    const std::string at = layer < 0 ? "" : "layers." + std::to_string(layer) + ".";
    const auto found = file_.tensors().find(prefix_ + "/step" + std::to_string(step) + "/" + at +
                                            name_in_golden(point));
    if (found == file_.tensors().end()) return {};
    return found->second;
  }

  static std::string name_in_golden(const Point& point) {
    static const std::map<std::string_view, std::string> kNames = {
        {"embed", "embed"},           {"attn.norm", "attn_norm"},
        {"attn.q", "q_proj"},         {"attn.k", "k_proj"},
        {"attn.v", "v_proj"},         {"attn.q_norm", "q_norm"},
        {"attn.k_norm", "k_norm"},    {"attn.q_rope", "q_rope"},
        {"attn.k_rope", "k_rope"},    {"attn.out", "attn_out"},
        {"attn.o", "o_proj"},         {"attn.residual", "attn_residual"},
        {"mlp.norm", "mlp_norm"},     {"mlp.gate", "gate_proj"},
        {"mlp.up", "up_proj"},        {"mlp.act", "mlp_act"},
        {"mlp.down", "down_proj"},    {"mlp.residual", "mlp_residual"},
        {"final.norm", "final_norm"}, {"logits", "logits"},
    };
    const auto found = kNames.find(point.name);
    return found == kNames.end() ? "" : found->second;
  }

 private:
  SafeTensors file_;
  std::string prefix_;
};

// fp32 against fp32 with another order of summation, of the rms of the op.
inline constexpr double kGoldenLimit = 2e-5;

inline double rms_of(const TensorView& tensor) {
  double sum = 0;
  for (int64_t i = 0; i < tensor.count(); ++i) sum += std::pow(value_at(tensor, i), 2);
  return std::sqrt(sum / static_cast<double>(tensor.count()));
}

}  // namespace lockstep
