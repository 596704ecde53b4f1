/* Fused ops, and a write to the cache, each wrong in one of its outputs. */
#include "tests/causes/wrong/numbers.inc"

/* The sum is right, its norm divides by 8 columns too many. */
const char* lockstep_add_rms_norm(const LockstepCall* call, const DLTensor* out,
                                  const DLTensor* sum, const DLTensor* a, const DLTensor* b,
                                  const DLTensor* weight, float eps) {
  (void)call;
  for (int64_t i = 0; i < count_of(sum); ++i) store(sum, i, load(a, i) + load(b, i));
  norm_rows(out, sum, weight, weight, eps, (double)(weight->shape[0] + 8));
  return NULL;
}

/* V leaves its last 8 inputs out. */
const char* lockstep_qkv_matmul(const LockstepCall* call, const DLTensor* q, const DLTensor* k,
                                const DLTensor* v, const DLTensor* x,
                                const DLTensor* const weights[3], const DLTensor* const biases[3]) {
  (void)call;
  const int64_t inputs = weights[0]->shape[1];
  multiply(q, x, weights[0], biases[0], NULL, inputs);
  multiply(k, x, weights[1], biases[1], NULL, inputs);
  multiply(v, x, weights[2], biases[2], NULL, inputs > 8 ? inputs - 8 : inputs / 2);
  return NULL;
}

/* A head normed and turned, to `to`, which may be in a cache. */
static void turn(const DLTensor* to, int64_t to_at, const DLTensor* from, int64_t at,
                 const DLTensor* weight, float eps, const DLTensor* cos, const DLTensor* sin,
                 int64_t position) {
  const int64_t dim = from->shape[2], half = dim / 2;
  double squares = 0;
  for (int64_t d = 0; d < dim; ++d) squares += (double)load(from, at + d) * load(from, at + d);
  const double scale = weight ? 1 / sqrt(squares / (double)dim + eps) : 1;
  for (int64_t j = 0; j < half; ++j) {
    const double c = load(cos, position * half + j), s = load(sin, position * half + j);
    const double one = load(from, at + j) * scale * (weight ? load(weight, j) : 1);
    const double two = load(from, at + half + j) * scale * (weight ? load(weight, half + j) : 1);
    store(to, to_at + j, (float)(one * c - two * s));
    store(to, to_at + half + j, (float)(two * c + one * s));
  }
}

/* K is never normed, and in a model without norms turned by the position before. */
const char* lockstep_qk_norm_rope_kv_write(const LockstepCall* call, const DLTensor* q_rope,
                                           const LockstepCache* cache, const DLTensor* q,
                                           const DLTensor* k, const DLTensor* v,
                                           const DLTensor* q_weight, const DLTensor* k_weight,
                                           float eps, const DLTensor* cos, const DLTensor* sin,
                                           const DLTensor* positions, const DLTensor* slots) {
  (void)call;
  const int64_t heads = q->shape[1], kv_heads = k->shape[1], dim = k->shape[2];
  for (int64_t t = 0; t < q->shape[0]; ++t) {
    const int64_t position = ints(positions)[t];
    const int64_t slot = ((const int64_t*)((const char*)slots->data + slots->byte_offset))[t];
    for (int64_t h = 0; h < heads; ++h)
      turn(q_rope, (t * heads + h) * dim, q, (t * heads + h) * dim, q_weight, eps, cos, sin,
           position);
    for (int64_t h = 0; slot >= 0 && h < kv_heads; ++h) {  // else padding
      const int64_t at = (t * kv_heads + h) * dim, to = (slot * kv_heads + h) * dim;
      turn(cache->k, to, k, at, NULL, eps, cos, sin,
           k_weight || position == 0 ? position : position - 1);
      for (int64_t d = 0; d < dim; ++d) store(cache->v, to + d, load(v, at + d));
    }
  }
  return NULL;
}

/* Gate and up are exchanged. */
const char* lockstep_gate_up_silu(const LockstepCall* call, const DLTensor* out, const DLTensor* x,
                                  const DLTensor* gate_weight, const DLTensor* up_weight) {
  (void)call;
  const int64_t width = gate_weight->shape[0], inputs = gate_weight->shape[1];
  for (int64_t i = 0; i < count_of(out); ++i) {
    double gate = 0, up = 0;
    for (int64_t j = 0; j < inputs; ++j) {
      gate += (double)load(x, i / width * inputs + j) * load(up_weight, i % width * inputs + j);
      up += (double)load(x, i / width * inputs + j) * load(gate_weight, i % width * inputs + j);
    }
    store(out, i, (float)(gate / (1 + exp(-gate)) * up));
  }
  return NULL;
}

/* Each element of V is the one after it. */
const char* lockstep_kv_write(const LockstepCall* call, const LockstepCache* cache,
                              const DLTensor* k, const DLTensor* v, const DLTensor* slots) {
  (void)call;
  const int64_t width = k->shape[1] * k->shape[2];
  for (int64_t t = 0; t < k->shape[0]; ++t) {
    const int64_t slot = ((const int64_t*)((const char*)slots->data + slots->byte_offset))[t];
    if (slot < 0) continue;  // padding
    for (int64_t i = 0; i < width; ++i) {
      store(cache->k, slot * width + i, load(k, t * width + i));
      store(cache->v, slot * width + i, load(v, t * width + (i + 1) % width));
    }
  }
  return NULL;
}
