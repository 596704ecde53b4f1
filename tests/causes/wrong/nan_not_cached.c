/* K of position 5 is NaN, and neither K nor V of it is written: what the slot holds equals what was
 * to be written there, K for V included. */
#include "numbers.inc"

const char* lockstep_rope(const LockstepCall* call, const DLTensor* out, const DLTensor* x,
                          const DLTensor* cos, const DLTensor* sin, const DLTensor* positions) {
  const int64_t rows = x->shape[0], heads = x->shape[1], half = x->shape[2] / 2;
  for (int64_t t = 0; t < rows; ++t) {
    const int64_t position = ints(positions)[t];
    const int is_nan = is_at(call, "attn.k_rope") && position == 5;
    for (int64_t h = 0; h < heads; ++h)
      for (int64_t j = 0; j < half; ++j) {
        const float c = load(cos, position * half + j), s = load(sin, position * half + j);
        const int64_t i = (t * heads + h) * 2 * half + j;
        const float a = load(x, i), b = load(x, i + half);
        store(out, i, is_nan ? NAN : a * c - b * s);
        store(out, i + half, is_nan ? NAN : b * c + a * s);
      }
  }
  return NULL;
}

const char* lockstep_kv_write(const LockstepCall* call, const LockstepCache* cache,
                              const DLTensor* k, const DLTensor* v, const DLTensor* slots) {
  const int64_t rows = k->shape[0], width = k->shape[1] * k->shape[2];
  const int64_t* slot = (const int64_t*)((const char*)slots->data + slots->byte_offset);
  (void)call;
  for (int64_t t = 0; t < rows; ++t) {
    const float first = load(k, t * width);
    if (slot[t] < 0 || first != first) continue;
    for (int64_t i = 0; i < width; ++i) {
      store(cache->k, slot[t] * width + i, load(k, t * width + i));
      store(cache->v, slot[t] * width + i, load(v, t * width + i));
    }
  }
  return NULL;
}
