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
bool has_window(const ModelConfig& c) {
  return std::ranges::any_of(c.window, [](int64_t keys) { return keys > 0; });
}
bool has_yarn(const ModelConfig& c) { return c.rope.type == RopeType::yarn && c.rope.factor > 1; }
bool has_own_theta(const ModelConfig& c) {
  return fixed_tables(c) && c.rope.theta != RopeConfig().theta;
}
bool has_groups(const ModelConfig& c) { return c.kv_heads > 1 && c.heads > c.kv_heads; }

constexpr Fault kFaults[] = {
    {"rope-interleaved",
     "attn.q_rope",
     "RoPE rotates the pairs (2j, 2j+1) instead of (j, j + head_dim/2)",
     "a position after the first",
     {},
     always,
     seed_rope_interleaved},
    {"rope-position-off-by-one-in-decode",
     "attn.q_rope",
     "RoPE gets the position before the token's own, in decode passes only",
     "a decode pass",
     {},
     fixed_tables,
     seed_rope_position_off_by_one_in_decode},
    {"rope-theta-ignored",
     "attn.q_rope",
     "RoPE turns by the base 10000 instead of the model's own",
     "a rope_theta other than 10000; a position after the first",
     {},
     has_own_theta,
     seed_rope_theta_ignored},
    {"yarn-factor-twice",
     "attn.q_rope",
     "positions are stretched by the factor of YaRN twice",
     "a model with YaRN; a position after the first",
     {},
     has_yarn,
     seed_yarn_factor_twice},
    {"qk-norm-missing",
     "attn.q_norm",
     "q and k are not normed",
     "QK-norm (Qwen3)",
     {},
     has_qk_norm,
     seed_qk_norm_missing},
    {"qk-norm-over-16-wide-blocks",
     "attn.q_norm",
     "QK-norm takes the mean square of 16 elements instead of the whole head",
     "QK-norm over heads wider than 16",
     {},
     has_wide_qk_norm,
     seed_qk_norm_over_16_wide_blocks},
    {"gqa-map-modulo",
     "attn.out",
     "query head h reads K/V head h % kv_heads instead of h / group",
     "grouped heads and more than one K/V head; two visible keys, or K/V heads that differ",
     {},
     has_groups,
     seed_gqa_map_modulo},
    {"softmax-scale-missing",
     "attn.out",
     "scores are not scaled by head_dim^-0.5",
     "a query that sees two keys",
     {},
     always,
     seed_softmax_scale_missing},
    {"causal-mask-off-by-one",
     "attn.out",
     "a query also sees the key after its own",
     "a pass with two queries of one request",
     {},
     always,
     seed_causal_mask_off_by_one},
    {"sliding-window-off-by-one",
     "attn.out",
     "a query sees a key more (size 1) or less (size -1) than its sliding window has",
     "a model with a sliding window, and a position past it",
     {1, -1},
     has_window,
     seed_sliding_window_off_by_one},
    {"chunk-lengths-of-another-row",
     "attn.out",
     "a request's context is as long as that of the request before it in the pass",
     "two requests of different lengths in one pass",
     {},
     always,
     seed_chunk_lengths_of_another_row},
    {"last-page-tail-unmasked",
     "attn.out",
     "the unused slots of a request's last page are attended",
     "a length that is no multiple of the page size",
     {},
     always,
     seed_last_page_tail_unmasked},
    {"wrong-page",
     "attn.kv",
     "the second request of a pass reads through the first one's page table",
     "two requests in one pass",
     {},
     always,
     seed_wrong_page},
    {"page-table-stride",
     "attn.kv",
     "rows of the page table are taken to be one page narrower than they are",
     "two requests in one pass",
     {},
     always,
     seed_page_table_stride},
    {"slot-offset-32-bit",
     "attn.kv",
     "K and V are written to an offset of which only the low bits (size: how many) are kept",
     "a pool of more than 2^size elements",
     {31, 12},
     always,
     seed_slot_offset_32_bit},
    {"token-cached-twice",
     "attn.kv",
     "in a decode pass the token before is cached once more in place of the new one",
     "a decode pass",
     {},
     always,
     seed_token_cached_twice},
    {"new-token-never-cached",
     "attn.kv",
     "in a decode pass the new token is not cached",
     "a decode pass",
     {},
     always,
     seed_new_token_never_cached},
    {"stale-prefix-page",
     "attn.kv",
     "the first page found for a prefix is one that holds an older request's tokens",
     "a prefix cache that is hit after another prompt of a page or more",
     {},
     always,
     seed_stale_prefix_page,
     false},
    {"page-freed-too-early",
     "attn.kv",
     "the first page of a request that still runs is handed to another one",
     "a request that needs a new page while another one runs",
     {},
     always,
     seed_page_freed_too_early,
     false},
    {"written-while-shared",
     "attn.kv",
     "a shared page is written without making a copy first",
     "samples of one prompt that part inside a page",
     {},
     always,
     seed_written_while_shared,
     false},
    {"swap-restores-another-page",
     "attn.kv",
     "pages that come back from host memory are each filled with what the page before held",
     "a request of two pages or more that is preempted by swap",
     {},
     always,
     seed_swap_restores_another_page,
     false},
    {"moe-expert-order",
     "mlp.combine",
     "the weights of a token's experts are applied in the opposite order",
     "a mixture of two experts or more",
     {},
     mixes_experts,
     seed_moe_expert_order},
    {"moe-router-not-normalised",
     "mlp.weights",
     "the weights of the chosen experts are not divided by their sum",
     "experts whose weights are normalised (norm_topk_prob)",
     {},
     normalises_experts,
     seed_moe_router_not_normalised},
    {"rms-norm-eps",
     "attn.norm",
     "RMSNorm adds another eps (its size) to the mean square",
     "rows of small norm, as at the first layer, or fp32",
     {1e-5, 1e-3, 1e-1},
     always,
     seed_rms_norm_eps},
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
  check(request.layer < 0 || fault.one_layer,
        "fault {} is one of pages, which are the same in every layer: leave out layer={}",
        fault.name, request.layer);
  check(fault.applies(seams.config), "fault {} cannot be seeded into this model: it needs {}",
        fault.name, fault.needs);
  check(request.size == 0 || fault.sizes[0] != 0, "fault {} has no size: leave out size={}",
        fault.name, request.size);
  FaultRequest sized = request;
  if (sized.size == 0) sized.size = fault.sizes[0];
  fault.seed(seams, sized);
}

}  // namespace lockstep
