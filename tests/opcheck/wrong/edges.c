/* Ops that are right but for one rare input, which the environment variable EDGE names. */
#include "tests/causes/wrong/numbers.inc"

static int edge_is(const char* name) {
  const char* edge = getenv("EDGE");
  return edge != NULL && strcmp(edge, name) == 0;
}

/* The first of the largest of `count` logits, from `begin` on. NaN is the largest, if seen. */
static int32_t largest(const DLTensor* logits, int64_t begin, int64_t count, float least,
                       int in_half, int sees_nan) {
  int32_t best = 0;
  float most = least;
  for (int64_t i = 0; i < count; ++i) {
    float x = load(logits, begin + i);
    if (in_half) x = (float)(_Float16)x;
    if (isnan(most)) break;
    if ((isnan(x) && !sees_nan) || x <= most) continue;
    most = x;
    best = (int32_t)i;
  }
  return best;
}

const char* lockstep_argmax(const LockstepCall* call, const DLTensor* out, const DLTensor* logits) {
  (void)call;
  const int64_t rows = logits->shape[0], vocab = logits->shape[1];
  int64_t count = vocab;
  if (edge_is("last")) count = vocab - 1;
  if (edge_is("tail of 32") && vocab > 32) count = vocab / 32 * 32;
  if (edge_is("tail of 1024") && vocab > 1024) count = vocab / 1024 * 1024;
  const float least = edge_is("low") ? -1e4f : -INFINITY;
  const int in_half = edge_is("half") && logits->dtype.bits == 32;
  for (int64_t row = 0; row < rows; ++row) {
    int32_t best = largest(logits, row * vocab, count, least, in_half, !edge_is("nan"));
    if (edge_is("mask") && load(logits, row * vocab + best) == -INFINITY) best = -1;
    ((int32_t*)out->data)[row] = best;
  }
  return NULL;
}

/* Of the experts that are left the first of the largest, as often as wanted. */
const char* lockstep_top_k(const LockstepCall* call, const DLTensor* out, const DLTensor* logits) {
  (void)call;
  const int64_t rows = logits->shape[0], experts = logits->shape[1], k = out->shape[1];
  char taken[4096];
  for (int64_t row = 0; row < rows; ++row) {
    memset(taken, 0, sizeof taken);
    for (int64_t c = 0; c < k; ++c) {
      int64_t best = -1;
      for (int64_t i = 0; i < experts; ++i) {
        const float x = load(logits, row * experts + i);
        const float most = best < 0 ? 0 : load(logits, row * experts + best);
        const int larger = best < 0 || x > most || (isnan(x) && !isnan(most));
        const int hidden = (isnan(x) && edge_is("nan")) || (x == -INFINITY && edge_is("mask"));
        if (!taken[i] && !hidden && larger) best = i;
      }
      if (best < 0) best = 0;
      taken[best] = 1;
      ((int32_t*)out->data)[row * k + c] = (int32_t)best;
    }
  }
  return NULL;
}

const char* lockstep_silu_mul(const LockstepCall* call, const DLTensor* out, const DLTensor* gate,
                              const DLTensor* up) {
  (void)call;
  const int nan_is_0 = edge_is("nan"), low_is_0 = edge_is("low"), small_is_half = edge_is("small");
  const int flushes = edge_is("flush");
  for (int64_t i = 0; i < count_of(out); ++i) {
    const float g = load(gate, i);
    const int is_0 =
        (nan_is_0 && isnan(g)) || (low_is_0 && g < -80) || (flushes && fabsf(g) < 0x1p-20f);
    const float sigmoid = small_is_half && fabsf(g) < 0x1p-8f ? 0.5f : 1 / (1 + expf(-g));
    store(out, i, is_0 ? 0 : g * sigmoid * load(up, i));
  }
  return NULL;
}

const char* lockstep_add(const LockstepCall* call, const DLTensor* out, const DLTensor* a,
                         const DLTensor* b) {
  (void)call;
  const int nan_is_0 = edge_is("nan");
  for (int64_t i = 0; i < count_of(out); ++i) {
    const float sum = load(a, i) + load(b, i);
    store(out, i, nan_is_0 && isnan(sum) ? 0 : sum);
  }
  return NULL;
}

const char* lockstep_gather_rows(const LockstepCall* call, const DLTensor* out,
                                 const DLTensor* index, const DLTensor* table) {
  (void)call;
  const int64_t width = table->shape[1];
  for (int64_t row = 0; row < out->shape[0]; ++row) {
    int64_t id = ints(index)[row];
    if (id == 0 && edge_is("first")) id = 1;
    for (int64_t i = 0; i < width; ++i) store(out, row * width + i, load(table, id * width + i));
  }
  return NULL;
}

const char* lockstep_kv_write(const LockstepCall* call, const LockstepCache* cache,
                              const DLTensor* k, const DLTensor* v, const DLTensor* slots) {
  (void)call;
  const int64_t width = count_of(k) / k->shape[0];
  for (int64_t row = 0; row < k->shape[0]; ++row) {
    int64_t slot = ((const int64_t*)slots->data)[row];
    if (slot < 0 && edge_is("padding ends")) break;
    if (slot < 0 && edge_is("padding at 0")) slot = 0;
    if ((slot < 0 && !edge_is("padding before")) || (slot == 0 && edge_is("first"))) continue;
    for (int64_t i = 0; i < width; ++i) {
      store(cache->k, slot * width + i, load(k, row * width + i));
      store(cache->v, slot * width + i, load(v, row * width + i));
    }
  }
  return NULL;
}

/* What a kernel reads that takes NaN for 0. */
static float number(const DLTensor* x, int64_t i) {
  const float value = load(x, i);
  return isnan(value) && edge_is("nan") ? 0 : value;
}

const char* lockstep_rms_norm(const LockstepCall* call, const DLTensor* out, const DLTensor* x,
                              const DLTensor* weight, float eps) {
  (void)call;
  const int64_t width = weight->shape[0];
  for (int64_t row = 0; row < count_of(out) / width; ++row) {
    double squares = 0;
    for (int64_t i = 0; i < width; ++i)
      squares += (double)number(x, row * width + i) * number(x, row * width + i);
    const double scale = 1 / sqrt(squares / (double)width + eps);
    for (int64_t i = 0; i < width; ++i)
      store(out, row * width + i, (float)(number(x, row * width + i) * scale * load(weight, i)));
  }
  return NULL;
}

const char* lockstep_rope(const LockstepCall* call, const DLTensor* out, const DLTensor* x,
                          const DLTensor* cos, const DLTensor* sin, const DLTensor* positions) {
  (void)call;
  const int64_t heads = x->shape[1], dim = x->shape[2], half = dim / 2;
  for (int64_t i = 0; i < count_of(out) / dim; ++i) {
    int64_t at = ints(positions)[i / heads];
    if (at > 131071 && edge_is("far")) at = 131071;
    for (int64_t j = 0; j < half; ++j) {
      const float c = load(cos, at * half + j), s = load(sin, at * half + j);
      const float a = number(x, i * dim + j), b = number(x, i * dim + j + half);
      store(out, i * dim + j, a * c - b * s);
      store(out, i * dim + j + half, b * c + a * s);
    }
  }
  return NULL;
}
