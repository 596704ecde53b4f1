/* Ops that are wrong in some shapes. */
#include "tests/causes/wrong/numbers.inc"

/* The table has 2^15 rows here. */
const char* lockstep_gather_rows(const LockstepCall* call, const DLTensor* out,
                                 const DLTensor* index, const DLTensor* table) {
  (void)call;
  const int64_t width = table->shape[1];
  for (int64_t t = 0; t < index->shape[0]; ++t)
    for (int64_t i = 0; i < width; ++i)
      store(out, t * width + i, load(table, (ints(index)[t] & 0x7fff) * width + i));
  return NULL;
}

/* The sum of squares is of the dtype: fp16 overflows. */
const char* lockstep_rms_norm(const LockstepCall* call, const DLTensor* out, const DLTensor* x,
                              const DLTensor* weight, float eps) {
  (void)call;
  const int64_t width = weight->shape[0], rows = count_of(x) / width;
  const int is_half = x->dtype.bits == 16 && x->dtype.code != kDLBfloat;
  for (int64_t row = 0; row < rows; ++row) {
    double squares = 0;
    for (int64_t i = row * width; i < (row + 1) * width; ++i)
      squares += (double)load(x, i) * load(x, i);
    if (is_half && squares > 65504) squares = INFINITY;
    const double scale = 1 / sqrt(squares / (double)width + eps);
    for (int64_t i = 0; i < width; ++i)
      store(out, row * width + i, (float)(load(x, row * width + i) * scale * load(weight, i)));
  }
  return NULL;
}

/* Blocks of 32 inputs: what is left over is left out. */
const char* lockstep_matmul(const LockstepCall* call, const DLTensor* out, const DLTensor* x,
                            const DLTensor* weight, const DLTensor* bias) {
  (void)call;
  multiply(out, x, weight, bias, NULL, weight->shape[1] / 32 * 32);
  return NULL;
}

/* Positions are of 16 bits. */
const char* lockstep_rope(const LockstepCall* call, const DLTensor* out, const DLTensor* x,
                          const DLTensor* cos, const DLTensor* sin, const DLTensor* positions) {
  (void)call;
  const int64_t heads = x->shape[1], dim = x->shape[2], half = dim / 2;
  for (int64_t t = 0; t < x->shape[0]; ++t)
    for (int64_t h = 0; h < heads; ++h)
      for (int64_t j = 0; j < half; ++j) {
        const int64_t at = (t * heads + h) * dim + j;
        const int64_t entry = (int64_t)(ints(positions)[t] & 0xffff) * half + j;
        const double c = load(cos, entry), s = load(sin, entry);
        store(out, at, (float)(load(x, at) * c - load(x, at + half) * s));
        store(out, at + half, (float)(load(x, at + half) * c + load(x, at) * s));
      }
  return NULL;
}

static int64_t modulo(int64_t head, int64_t heads, int64_t kv_heads) {
  (void)heads;
  return head % kv_heads;
}

const char* lockstep_paged_attention(const LockstepCall* call, const DLTensor* out,
                                     const DLTensor* q, const LockstepCache* cache,
                                     const LockstepBatch* batch, float scale, int64_t window) {
  (void)call;
  attend(out, q, cache, batch, scale, window, (Parts){.kv_head = modulo});
  return NULL;
}

/* exp(x) / (1 + exp(x)) is Infinity over Infinity. */
const char* lockstep_silu_mul(const LockstepCall* call, const DLTensor* out, const DLTensor* gate,
                              const DLTensor* up) {
  (void)call;
  for (int64_t i = 0; i < count_of(out); ++i) {
    const float g = load(gate, i), e = expf(g);
    store(out, i, g * (e / (1 + e)) * load(up, i));
  }
  return NULL;
}

/* Writes four elements at once. */
const char* lockstep_add(const LockstepCall* call, const DLTensor* out, const DLTensor* a,
                         const DLTensor* b) {
  (void)call;
  const int64_t count = count_of(out);
  for (int64_t i = 0; i < (count + 3) / 4 * 4; ++i)
    store(out, i, i < count ? load(a, i) + load(b, i) : 0);
  return NULL;
}

/* Clears the slot behind the last one. */
const char* lockstep_kv_write(const LockstepCall* call, const LockstepCache* cache,
                              const DLTensor* k, const DLTensor* v, const DLTensor* slots) {
  (void)call;
  const int64_t rows = k->shape[0], all = cache->k->shape[0] * cache->k->shape[1];
  const size_t bytes = (size_t)(count_of(k) / rows) * k->dtype.bits / 8;
  const int64_t* slot = (const int64_t*)slots->data;
  for (int64_t t = 0; t < rows; ++t) {
    memcpy((char*)cache->k->data + (size_t)slot[t] * bytes,
           (const char*)k->data + (size_t)t * bytes, bytes);
    memcpy((char*)cache->v->data + (size_t)slot[t] * bytes,
           (const char*)v->data + (size_t)t * bytes, bytes);
  }
  if (slot[rows - 1] + 1 < all)
    memset((char*)cache->k->data + (size_t)(slot[rows - 1] + 1) * bytes, 0, bytes);
  return NULL;
}

/* Exponentials without the largest logit taken off. */
const char* lockstep_softmax_of(const LockstepCall* call, const DLTensor* out,
                                const DLTensor* logits, const DLTensor* index, int32_t normalised) {
  (void)call;
  const int64_t experts = logits->shape[1], chosen = index->shape[1];
  for (int64_t t = 0; t < logits->shape[0]; ++t) {
    float sum = 0;
    if (normalised)
      for (int64_t c = 0; c < chosen; ++c)
        sum += expf(load(logits, t * experts + ints(index)[t * chosen + c]));
    else
      for (int64_t e = 0; e < experts; ++e) sum += expf(load(logits, t * experts + e));
    for (int64_t c = 0; c < chosen; ++c)
      store(out, t * chosen + c,
            expf(load(logits, t * experts + ints(index)[t * chosen + c])) / sum);
  }
  return NULL;
}
