// The host's side of the persistent decode step: the shapes that its kernels are built for, and
// what a launch may be given. Whatever is not built is refused here, with the executor that does
// it.
#include "kernels/decode_step.h"

#include <algorithm>
#include <array>

#include "kernels/base/arguments.h"
#include "kernels/base/check.h"

namespace lockstep {
namespace {

struct Heads {
  int64_t dim, group;
};
constexpr std::array<Heads, 4> kBuilt = {{{128, 2}, {128, 4}, {64, 3}, {64, 7}}};
constexpr size_t kMostLayers = 64;

void check_tensor(const TensorView& tensor, std::string_view name, const Shape& shape) {
  if (tensor.empty() || tensor.dtype != DType::bf16 || tensor.shape != shape)
    fail("decode_step wants {} of {} in bf16, found {} in {}", name, shape.text(),
         tensor.empty() ? "none" : tensor.shape.text(), name_of(tensor.dtype));
}

void check_layer(const DecodeLayer& l, const DecodeStep& s) {
  const int64_t hidden = s.embed.shape[1], q = s.heads * s.head_dim, kv = s.kv_heads * s.head_dim;
  check_tensor(l.attn_norm, "attn_norm", {hidden});
  check_tensor(l.mlp_norm, "mlp_norm", {hidden});
  check_tensor(l.q, "q", {q, hidden});
  check_tensor(l.k, "k", {kv, hidden});
  check_tensor(l.v, "v", {kv, hidden});
  check_tensor(l.o, "o", {hidden, q});
  check_tensor(l.gate, "gate", {s.intermediate, hidden});
  check_tensor(l.up, "up", {s.intermediate, hidden});
  check_tensor(l.down, "down", {hidden, s.intermediate});
  for (const auto& [bias, n] : {std::pair(&l.q_bias, q), {&l.k_bias, kv}, {&l.v_bias, kv}})
    if (!bias->empty()) check_tensor(*bias, "a bias", {n});
  for (const TensorView* norm : {&l.q_norm, &l.k_norm})
    if (!norm->empty()) check_tensor(*norm, "a norm of heads", {s.head_dim});
  const Shape pool = {l.cache.pages(), l.cache.page_size(), s.kv_heads, s.head_dim};
  check_tensor(l.cache.k, "a cache of K", pool);
  check_tensor(l.cache.v, "a cache of V", pool);
}

}  // namespace

int64_t decode_step_packed(const DecodeStep& s) {
  // Each block of the cluster that shows the final norm has a tile of the logits.
  constexpr int64_t kTile = 16, kLeastVocab = 16 * kTile, kMostClusterLayers = 48;
  const DecodeLayer& l = s.layers[0];
  const int64_t page = l.cache.page_size(), table = s.attention.page_table.shape[1];
  const int64_t most_context = s.tokens.count() <= 4 ? 32768 : 16384;
  const bool fits = std::ssize(s.layers) <= kMostClusterLayers && s.embed.shape[1] == 1024 &&
                    s.heads == 16 && s.kv_heads == 8 && s.head_dim == 128 &&
                    s.intermediate == 3072 && s.lm_head.shape[0] % kTile == 0 &&
                    s.lm_head.shape[0] >= kLeastVocab && page % kTile == 0 &&
                    page * table <= most_context && !l.q_norm.empty() && !l.k_norm.empty() &&
                    l.q_bias.empty() && l.k_bias.empty() && l.v_bias.empty();
  if (!fits) return 0;
  int64_t bytes = s.lm_head.bytes();
  for (const DecodeLayer& layer : s.layers)
    for (const TensorView* weight :
         {&layer.q, &layer.k, &layer.v, &layer.o, &layer.gate, &layer.up, &layer.down})
      bytes += weight->bytes();
  return bytes;
}

// Words of 4 bytes for what blocks and clusters hand to each other, of 8 for the shares of a
// context, and some for what the launches leave to each other.
int64_t decode_step_workspace(const DecodeStep& s) {
  constexpr int64_t kOther = 1024, kMostShares = 64, kClusterSums = 22 * 4;
  const int64_t q = s.heads * s.head_dim, kv = s.kv_heads * s.head_dim, rows = s.tokens.count();
  const int64_t words = 2 * (q + kv) + 2 * s.embed.shape[1] + s.intermediate;
  return kOther + rows * (kClusterSums * s.embed.shape[1] + words * 4 +
                          s.heads * kMostShares * (s.head_dim + 2) * 8);
}

void check_decode_step(const DecodeStep& s) {
  const int64_t rows = s.tokens.count();
  check(rows == 1 || rows == 2 || rows == 4 || rows == 8,
        "decode_step takes 1, 2, 4 or 8 rows, found {}: use --executor ops", rows);
  check(!s.layers.empty() && s.layers.size() <= kMostLayers,
        "decode_step takes 1 to {} layers, found {}: use --executor ops", kMostLayers,
        s.layers.size());
  check(s.kv_heads > 0 && s.heads % s.kv_heads == 0 &&
            std::ranges::any_of(kBuilt,
                                [&](const Heads& built) {
                                  return built.dim == s.head_dim &&
                                         built.group == s.heads / s.kv_heads;
                                }),
        "decode_step is built for 2 or 4 heads of 128, or 3 or 7 of 64, to one of K and V, found "
        "{} heads of {} to {}: use --executor ops",
        s.heads, s.head_dim, s.kv_heads);
  const int64_t hidden = s.embed.shape[1], vocab = s.lm_head.shape[0];
  check(hidden % 64 == 0 && s.intermediate % 64 == 0 && vocab % 8 == 0,
        "decode_step wants widths of a multiple of 64 and a vocabulary of one of 8, found {}, {} "
        "and {}: use --executor ops",
        hidden, s.intermediate, vocab);
  check_tensor(s.embed, "embed", {s.embed.shape[0], hidden});
  check_tensor(s.lm_head, "lm_head", {vocab, hidden});
  check_tensor(s.final_norm, "final_norm", {hidden});
  check_tensor(s.logits, "logits", {rows, vocab});
  for (const DecodeLayer& layer : s.layers) check_layer(layer, s);
}

}  // namespace lockstep
