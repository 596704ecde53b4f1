#include "src/faults/faults.h"

#include <algorithm>
#include <charconv>

#include "kernels/check.h"
#include "kernels/nearest.h"
#include "src/faults/seeds.h"

namespace lockstep {
namespace {

bool always(const ModelConfig&) { return true; }
bool fixed_tables(const ModelConfig& c) { return !depends_on_length(c.rope); }
bool has_qk_norm(const ModelConfig& c) { return c.qk_norm; }
bool has_wide_qk_norm(const ModelConfig& c) {
  return c.qk_norm && c.head_dim > 16 && c.head_dim % 16 == 0;
}
bool has_experts(const ModelConfig& c) { return !c.experts.layers.empty(); }
bool mixes_experts(const ModelConfig& c) { return has_experts(c) && c.experts.chosen > 1; }
bool normalises_experts(const ModelConfig& c) {
  return has_experts(c) && c.experts.normalised && c.experts.chosen < c.experts.count;
}
bool has_groups(const ModelConfig& c) { return c.kv_heads > 1 && c.heads > c.kv_heads; }

constexpr Fault kFaults[] = {
    {"rope-interleaved", "attn.q_rope",
     "RoPE rotates the pairs (2j, 2j+1) instead of (j, j + head_dim/2)",
     "a position after the first", 0, always, seed_rope_interleaved},
    {"rope-position-off-by-one-in-decode", "attn.q_rope",
     "RoPE gets the position before the token's own, in decode passes only", "a decode pass", 0,
     fixed_tables, seed_rope_position_off_by_one_in_decode},
    {"qk-norm-missing", "attn.q_norm", "q and k are not normed", "QK-norm (Qwen3)", 0, has_qk_norm,
     seed_qk_norm_missing},
    {"qk-norm-over-16-wide-blocks", "attn.q_norm",
     "QK-norm takes the mean square of 16 elements instead of the whole head",
     "QK-norm over heads wider than 16", 0, has_wide_qk_norm, seed_qk_norm_over_16_wide_blocks},
    {"gqa-map-modulo", "attn.out", "query head h reads K/V head h % kv_heads instead of h / group",
     "grouped heads and more than one K/V head; two visible keys, or K/V heads that differ", 0,
     has_groups, seed_gqa_map_modulo},
    {"softmax-scale-missing", "attn.out", "scores are not scaled by head_dim^-0.5",
     "a query that sees two keys", 0, always, seed_softmax_scale_missing},
    {"causal-mask-off-by-one", "attn.out", "a query also sees the key after its own",
     "a pass with two queries of one request", 0, always, seed_causal_mask_off_by_one},
    {"last-page-tail-unmasked", "attn.out",
     "the unused slots of a request's last page are attended",
     "a length that is no multiple of the page size", 0, always, seed_last_page_tail_unmasked},
    {"wrong-page", "attn.kv",
     "the second request of a pass reads through the first one's page table",
     "two requests in one pass", 0, always, seed_wrong_page},
    {"moe-expert-order", "mlp.combine",
     "the weights of a token's experts are applied in the opposite order",
     "a mixture of two experts or more", 0, mixes_experts, seed_moe_expert_order},
    {"moe-router-not-normalised", "mlp.weights",
     "the weights of the chosen experts are not divided by their sum",
     "experts whose weights are normalised (norm_topk_prob)", 0, normalises_experts,
     seed_moe_router_not_normalised},
    {"rms-norm-eps", "attn.norm", "RMSNorm adds another eps (its size) to the mean square",
     "rows of small norm, as at the first layer, or fp32", 1e-5, always, seed_rms_norm_eps},
};

const Fault& find_fault(std::string_view name) {
  std::vector<std::string_view> names;
  for (const Fault& fault : kFaults) {
    if (fault.name == name) return fault;
    names.push_back(fault.name);
  }
  fail("no fault is called '{}': did you mean '{}'? 'lockstep faults' lists them all", name,
       nearest(name, names));
}

template <typename Number>
Number number_from(std::string_view text, std::string_view whole) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  check(error == std::errc() && end == text.data() + text.size(),
        "a number was wanted in --fault {}, found '{}': write NAME@layer=2 or "
        "NAME@layer=2,size=1e-4",
        whole, text);
  return value;
}

}  // namespace

std::span<const Fault> faults() { return kFaults; }

FaultRequest parse_fault(std::string_view text) {
  const size_t at = text.find('@');
  FaultRequest request{.name = std::string(text.substr(0, at))};
  find_fault(request.name);
  std::string_view rest = at == text.npos ? std::string_view() : text.substr(at + 1);
  check(at == text.npos || !rest.empty(),
        "--fault {} ends after '@': write NAME@layer=2 or NAME@layer=2,size=1e-4", text);
  while (!rest.empty()) {
    const std::string_view item = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), item.size() + 1));
    if (item.starts_with("layer="))
      request.layer = number_from<int>(item.substr(6), text);
    else if (item.starts_with("size="))
      request.size = number_from<double>(item.substr(5), text);
    else
      fail("--fault {} has '{}', which is not known: the keys are layer and size", text, item);
  }
  return request;
}

void seed_fault(const Seams& seams, const FaultRequest& request) {
  const Fault& fault = find_fault(request.name);
  check(request.layer >= -1 && request.layer < seams.config.layers,
        "--fault {} names layer {}, but the model's layers are 0..{}", request.name, request.layer,
        seams.config.layers - 1);
  check(fault.applies(seams.config), "fault {} cannot be seeded into this model: it needs {}",
        fault.name, fault.needs);
  check(request.size == 0 || fault.size != 0, "fault {} has no size: leave out size={}", fault.name,
        request.size);
  FaultRequest sized = request;
  if (sized.size == 0) sized.size = fault.size;
  fault.seed(seams, sized);
}

}  // namespace lockstep
