// How other engines round, each line with the source that says so. A preset is a list of lines, by
// kind of op and, where one kind rounds in two ways, by point; what no line names is fused. A
// declaration is judged as it stands: where a line is wrong, a right engine alarms, and a reader
// must be able to check the source.
#include "src/judge/presets.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "kernels/base/check.h"
#include "kernels/base/nearest.h"
#include "probes/points.h"
#include "probes/selection.h"
#include "src/judge/contracts.h"
#include "traces/manifest.h"

namespace lockstep {
namespace {

using enum RoundingContract;

constexpr std::string_view kStreamNorms = "attn.norm,mlp.norm,final.norm";

constexpr Preset::Line kHf[] = {
    {OpKind::norm, "", hf,
     "modeling_qwen3.py, Qwen3RMSNorm: weight * hidden_states.to(input_dtype)"},
    {OpKind::rope, "", hf,
     "modeling_qwen3.py, Qwen3RotaryEmbedding: cos.to(dtype); apply_rotary_pos_emb"},
    {OpKind::silu_mul, "", hf, "modeling_qwen3.py, Qwen3MLP: act_fn(gate_proj(x)) * up_proj(x)"},
    {OpKind::attention, "", hf,
     "integrations/sdpa_attention.py; PyTorch's flash kernels round each weight before P V"},
    {OpKind::weighted_sum, "", hf,
     "modeling_qwen3_moe.py, Qwen3MoeExperts: index_add_, expert by expert"},
};

constexpr Preset::Line kHfEager[] = {
    kHf[0],
    kHf[1],
    kHf[2],
    kHf[4],
    {OpKind::attention, "", eager,
     "modeling_qwen3.py, eager_attention_forward: matmul, "
     "softmax(dtype=float32).to(query.dtype), matmul"},
};

// CUDA kernels were read, and not run here: vLLM's main of August 2026, FlashInfer fb28d72,
// SGLang's and TensorRT-LLM's main. TensorRT-LLM's FMHA was not read, and is taken for what its XQA
// is. FlashInfer stores the parts of keys that it splits in the dtype, which no contract has.
constexpr Preset::Line kVllm[] = {
    {OpKind::norm, "", fused,
     "csrc/libtorch_stable/layernorm_kernels.cu: (scalar_t)(x * s_variance * w), of the rounded "
     "sum, since 0.20.0"},
    {OpKind::rope, "", tables_rounded,
     "rotary_embedding/base.py: cos_sin_cache.to(dtype); csrc/pos_encoding_kernels.cu: x_f * cos_f "
     "- y_f * sin_f, cast once"},
    {OpKind::silu_mul, "", hf,
     "csrc/libtorch_stable/activation_kernels.cu: packed_silu_kernel casts, and then u multiplies"},
    {OpKind::attention, "", hf, "vllm-flash-attn: P is rounded to the dtype before P V"},
    {OpKind::weighted_sum, "", products_rounded,
     "fused_moe.py: accumulator * moe_weight is stored in the dtype; moe_sum adds by at::sum_out "
     "(but for 3 or 4 experts a token: in the dtype)"},
};

constexpr Preset::Line kVllm19[] = {
    kVllm[1],
    kVllm[2],
    kVllm[3],
    kVllm[4],
    {OpKind::norm, "", hf,
     "csrc/layernorm_kernels.cu: ((scalar_t)(x * s_variance)) * weight, of the rounded sum, to "
     "0.19.1 and wherever #42379 is in"},
};

constexpr Preset::Line kSglang[] = {
    {OpKind::norm, "", fused, "FlashInfer, norm.cuh: RMSNormKernel, fp32 inside, one store"},
    {OpKind::norm, kStreamNorms, unrounded_sum,
     "FlashInfer, norm.cuh: FusedAddRMSNormKernel reads the sum in fp32, and stores it rounded"},
    {OpKind::attention, "", hf,
     "FlashInfer, prefill.cuh: s_frag is cast to DTypeQ before P V (decode.cuh: not even that)"},
    {OpKind::weighted_sum, "", products_rounded,
     "fused_moe_triton_kernels.py: accumulator * moe_weight is stored in the dtype; "
     "moe_sum_reduce adds in fp32"},
};

constexpr Preset::Line kTrtLlm[] = {
    {OpKind::norm, "", fused, "_torch/modules/rms_norm.py: flashinfer_rmsnorm"},
    {OpKind::norm, kStreamNorms, unrounded_sum,
     "_torch/modules/rms_norm.py: flashinfer_fused_add_rmsnorm, where FlashInfer is there"},
    {OpKind::attention, "", hf,
     "cpp/kernels/xqa/test/refAttention.cpp: tileX is cast to MathElem before it multiplies V"},
    {OpKind::weighted_sum, "", fused,
     "moe_kernels.cu, finalizeMoeRoutingKernel: row_scale * expert_result in fp32, one store"},
};

// Read in the llama.cpp that llama-cpp-python 0.3.36 has, and held to it by tests/engines/run.
constexpr Preset::Line kLlamaCppF32[] = {
    {OpKind::rope, "", angles_iterated,
     "ggml-cpu/ops.cpp, ggml_rope_cache_init: theta *= theta_scale, pair by pair"},
    {OpKind::attention, "", flash_fp16,
     "ggml-cpu/ops.cpp, flash_attn_ext_f16: a cache of fp16; of few rows Q and the sum too"},
};

constexpr Preset::Line kLlamaCpp[] = {
    kLlamaCppF32[0],
    kLlamaCppF32[1],
    {OpKind::linear, "", operands_bf16,
     "ggml-cpu.c, type_traits_cpu: vec_dot_type of BF16 is BF16; all else is fp32"},
    {OpKind::expert_linear, "", operands_bf16, "the same, in mul_mat_id"},
};

constexpr Preset::Line kLlamaCppF16[] = {
    kLlamaCppF32[0],
    kLlamaCppF32[1],
    {OpKind::linear, "", operands_fp16,
     "ggml-cpu.c, type_traits_cpu: vec_dot_type of F16 is F16; all else is fp32"},
    {OpKind::expert_linear, "", operands_fp16, "the same, in mul_mat_id"},
};

constexpr auto kPresets = std::to_array<Preset>({
    {"fused", "every op rounds once, at its store", {}},
    {"hf", "Hugging Face transformers, attention by sdpa or flash", kHf},
    {"hf-eager", "the same, with attn_implementation=\"eager\"", kHfEager},
    {"eager", "the same as hf-eager", kHfEager},
    {"vllm", "vLLM's CUDA kernels since 0.20.0 (--enforce-eager)", kVllm},
    {"vllm-0.19", "the same to 0.19.1, whose norms round before the weight too", kVllm19},
    {"sglang", "SGLang on FlashInfer's kernels", kSglang},
    {"trt-llm", "TensorRT-LLM's PyTorch backend", kTrtLlm},
    {"llama.cpp", "llama.cpp on a CPU: fp32, with weights in bf16", kLlamaCpp},
    {"llama.cpp-f16", "the same, with weights in fp16", kLlamaCppF16},
    {"llama.cpp-f32", "the same, with weights in fp32", kLlamaCppF32},
});

bool is_at(std::string_view globs, const Point& p) {
  return globs.empty() || Selection(std::string(globs), "", "", "").has(p, -1);
}

// Later lines overwrite earlier ones, so that a line for some points may follow one for all. The
// shares of an attention round as it does.
RoundingContract contract_at(const Preset& preset, const Point& p) {
  RoundingContract contract = fused;
  const OpKind op = p.is_of_shares() ? OpKind::attention : p.op;
  for (const Preset::Line& line : preset.lines)
    if (line.op == op && is_at(line.points, p)) contract = line.contract;
  return contract;
}

// All contracts that an op can have, whatever the run's dtype and the model's biases. A person's
// spelling is checked before the run is known; check_can_round() asks again when it is.
std::vector<RoundingContract> ever_had_by(OpKind op) {
  std::vector<RoundingContract> all = contracts_of(op, {DType::bf16, true});
  for (const RoundingContract more : contracts_of(op, {DType::f32, true}))
    if (std::ranges::count(all, more) == 0) all.push_back(more);
  return all;
}

std::vector<std::string_view> names_of(const std::vector<RoundingContract>& contracts) {
  std::vector<std::string_view> names;
  for (const RoundingContract contract : contracts) names.emplace_back(name_of(contract));
  return names;
}

// The contract of a text. Its Error names the nearest of all contracts.
RoundingContract contract_of(const std::string& name, const std::string& text) {
  std::vector<RoundingContract> all;
  for (int i = 0; i < kRoundingContracts; ++i) all.push_back(static_cast<RoundingContract>(i));
  const std::vector<std::string_view> names = names_of(all);
  const auto found = std::ranges::find(names, name);
  check(found != names.end(), "--rounding {}: '{}' is no rounding contract{} (they are {})", text,
        name, did_you_mean(name, names), fmt::join(names, ", "));
  return all[found - names.begin()];
}

}  // namespace

std::span<const Preset> presets() { return kPresets; }

std::map<std::string, RoundingContract> contracts_of_preset(std::string_view name) {
  const auto found = std::ranges::find(kPresets, name, &Preset::name);
  std::vector<std::string_view> names;
  for (const Preset& preset : kPresets) names.push_back(preset.name);
  check(found != kPresets.end(), "'{}' is no set of rounding contracts{} (they are {})", name,
        did_you_mean(name, names), fmt::join(names, ", "));
  std::map<std::string, RoundingContract> all;
  for (const Point& p : kPoints) all.emplace(p.name, contract_at(*found, p));
  return all;
}

PointRounding rounding_from(const std::string& text) {
  const size_t equals = text.find('=');
  check(equals != std::string::npos && equals > 0 && equals + 1 < text.size(),
        "--rounding wants POINT=CONTRACT, as attn.norm=hf, found '{}'", text);
  const Selection named(text.substr(0, equals), "", "", "");
  PointRounding rounding{.text = text, .contract = contract_of(text.substr(equals + 1), text)};
  std::vector<std::string> can;  // of those that cannot have it
  for (const Point& p : kPoints) {
    if (!named.has(p, -1)) continue;
    const std::vector<RoundingContract> had = ever_had_by(p.op);
    if (std::ranges::count(had, rounding.contract) > 0)
      rounding.points.push_back(&p);
    else
      can.push_back(fmt::format("{} can be {}", p.name, fmt::join(names_of(had), ", ")));
  }
  check(!rounding.points.empty(), "--rounding {}: no op there rounds so; {}", text,
        fmt::join(can, "; "));
  return rounding;
}

bool PointRounding::is_of(const Point& point) const {
  return std::ranges::any_of(points, [&](const Point* p) { return *p == point; });
}

void check_can_round(const PointRounding& asked, const Graph& graph,
                     const std::function<std::vector<RoundingContract>(const Place&)>& can_have) {
  std::vector<std::string> can;  // a line a point
  const Point* last = nullptr;
  for (const Place& place : graph.places()) {
    if (!asked.is_of(*place.point)) continue;
    const std::vector<RoundingContract> had = can_have(place);
    if (std::ranges::count(had, asked.contract) > 0) return;
    if (!(last && *place.point == *last) && can.size() < 3)
      can.push_back(fmt::format("{} can be {}", place.point->name, fmt::join(names_of(had), ", ")));
    last = place.point;
  }
  // Shares are in the graph where they are recorded, whatever the model.
  check(!can.empty() || !std::ranges::all_of(asked.points, &Point::is_of_shares),
        "--rounding {}: no pass shows such a tensor", asked.text);
  check(!can.empty(), "--rounding {}: the model has no such point (`lockstep points` lists them)",
        asked.text);
  fail("--rounding {}: no op of this run rounds so; {}", asked.text, fmt::join(can, "; "));
}

}  // namespace lockstep
