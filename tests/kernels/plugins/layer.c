// A user's kernel of a whole layer, in plain loops and double, which stores K, V and its result
// alone. BUG, a number below, makes it a wrong one.
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/lockstep_ops.h"

enum { RIGHT, NO_EPS, LATE_ROPE, NO_RESIDUAL, WRONG_SCALE };
#ifndef BUG
#define BUG RIGHT
#endif

int32_t lockstep_ops_abi(void) { return LOCKSTEP_OPS_ABI; }

static double load(const DLTensor* t, int64_t i) {
  if (t->dtype.bits == 32) return ((const float*)t->data)[i];
  const uint32_t bits = (uint32_t)((const uint16_t*)t->data)[i] << 16;
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static void store(const DLTensor* t, int64_t i, double x) {
  const float value = (float)x;
  if (t->dtype.bits == 32) {
    ((float*)t->data)[i] = value;
    return;
  }
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  bits += 0x7fff + ((bits >> 16) & 1);  // to the nearest, halves to even
  ((uint16_t*)t->data)[i] = (uint16_t)(bits >> 16);
}

static double* numbers(int64_t count) { return malloc((size_t)count * sizeof(double)); }

// y = weight x + bias
static void product(double* y, const double* x, const DLTensor* weight, const DLTensor* bias) {
  const int64_t outs = weight->shape[0], width = weight->shape[1];
  for (int64_t n = 0; n < outs; ++n) {
    y[n] = bias == NULL ? 0 : load(bias, n);
    for (int64_t i = 0; i < width; ++i) y[n] += load(weight, n * width + i) * x[i];
  }
}

static void norm(double* y, const double* x, int64_t width, const DLTensor* weight, double eps) {
  double squares = 0;
  for (int64_t i = 0; i < width; ++i) squares += x[i] * x[i];
  const double scale = 1 / sqrt(squares / (double)width + (BUG == NO_EPS ? 0 : eps));
  for (int64_t i = 0; i < width; ++i) y[i] = x[i] * scale * load(weight, i);
}

// Norms and turns each head in place.
static void turn(double* x, int64_t heads, int64_t dim, const DLTensor* weight, double eps,
                 const DLTensor* cos, const DLTensor* sin, int64_t position) {
  const int64_t half = dim / 2, row = (position - (BUG == LATE_ROPE && position > 0)) * half;
  for (double* head = x; head < x + heads * dim; head += dim) {
    if (weight != NULL) norm(head, head, dim, weight, eps);
    for (int64_t i = 0; i < half; ++i) {
      const double c = load(cos, row + i), s = load(sin, row + i);
      const double low = head[i], high = head[half + i];
      head[i] = low * c - high * s;
      head[half + i] = high * c + low * s;
    }
  }
}

// The query of one head at `position` over the keys of its request.
static void attend(double* out, const double* q, const LockstepCache* cache, const int32_t* pages,
                   int64_t kv_head, int64_t position, double scale, int64_t window) {
  const int64_t page_size = cache->k->shape[1], heads = cache->k->shape[2];
  const int64_t dim = cache->k->shape[3];
  const int64_t first = window > 0 && position - window + 1 > 0 ? position - window + 1 : 0;
  double* p = numbers(position + 1);
  double most = -INFINITY, sum = 0;
  for (int64_t j = first; j <= position; ++j) {
    const int64_t slot = pages[j / page_size] * page_size + j % page_size;
    p[j] = 0;
    for (int64_t i = 0; i < dim; ++i)
      p[j] += q[i] * load(cache->k, (slot * heads + kv_head) * dim + i);
    p[j] *= scale;
    most = fmax(most, p[j]);
  }
  for (int64_t i = 0; i < dim; ++i) out[i] = 0;
  for (int64_t j = first; j <= position; ++j) {
    const int64_t slot = pages[j / page_size] * page_size + j % page_size;
    p[j] = exp(p[j] - most);
    sum += p[j];
    for (int64_t i = 0; i < dim; ++i)
      out[i] += p[j] * load(cache->v, (slot * heads + kv_head) * dim + i);
  }
  for (int64_t i = 0; i < dim; ++i) out[i] /= sum;
  free(p);
}

// Memory for the row of one token, on its way.
typedef struct Row {
  double *x, *n, *q, *k, *v, *attended, *branch, *gate, *up;
} Row;

static void write_row(const Row* r, const LockstepCache* cache, int64_t slot) {
  const int64_t size = cache->k->shape[2] * cache->k->shape[3];
  for (int64_t i = 0; slot >= 0 && i < size; ++i) {
    store(cache->k, slot * size + i, r->k[i]);
    store(cache->v, slot * size + i, r->v[i]);
  }
}

// Adds the MLP of the row's stream to it.
static void add_mlp(const Row* r, const LockstepLayerWeights* w, int64_t hidden, double eps) {
  norm(r->n, r->x, hidden, w->mlp_norm, eps);
  product(r->gate, r->n, w->gate, NULL);
  product(r->up, r->n, w->up, NULL);
  for (int64_t i = 0; i < w->gate->shape[0]; ++i)
    r->gate[i] = r->gate[i] / (1 + exp(-r->gate[i])) * r->up[i];
  product(r->branch, r->gate, w->down, NULL);
  for (int64_t i = 0; i < hidden; ++i) r->x[i] += r->branch[i];
}

const char* lockstep_decoder_layer(const LockstepCall* call, const DLTensor* out,
                                   const LockstepCache* cache, const DLTensor* x,
                                   const LockstepLayerWeights* w, float eps, const DLTensor* cos,
                                   const DLTensor* sin, const DLTensor* positions,
                                   const DLTensor* slots, const LockstepBatch* batch, float scale,
                                   int64_t window) {
  (void)call;
  if (x->device.device_type != kDLCPU) return "it runs on the CPU: leave out --device cuda";
  if (x->dtype.bits != 32 && x->dtype.code != kDLBfloat) return "it knows fp32 and bf16 only";
  const int64_t hidden = x->shape[1], dim = cache->k->shape[3], kv_heads = cache->k->shape[2];
  const int64_t heads = w->q->shape[0] / dim, tokens = x->shape[0],
                most = batch->page_table->shape[1];
  const int32_t* const position = positions->data;
  const int32_t *const start = batch->query_start->data, *const pages = batch->page_table->data;
  Row r = {numbers(hidden),           numbers(hidden),
           numbers(heads * dim),      numbers(kv_heads * dim),
           numbers(kv_heads * dim),   numbers(heads * dim),
           numbers(hidden),           numbers(w->gate->shape[0]),
           numbers(w->gate->shape[0])};
  double* queries = numbers(tokens * heads * dim);
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t i = 0; i < hidden; ++i) r.x[i] = load(x, t * hidden + i);
    norm(r.n, r.x, hidden, w->attn_norm, eps);
    double* q = queries + t * heads * dim;
    product(q, r.n, w->q, w->q_bias);
    product(r.k, r.n, w->k, w->k_bias);
    product(r.v, r.n, w->v, w->v_bias);
    turn(q, heads, dim, w->q_norm, eps, cos, sin, position[t]);
    turn(r.k, kv_heads, dim, w->k_norm, eps, cos, sin, position[t]);
    write_row(&r, cache, ((const int64_t*)slots->data)[t]);
  }
  for (int64_t t = 0, request = 0; t < tokens; ++t) {
    while (start[request + 1] <= t) ++request;
    // The queries of a request are the last ones of its context.
    const int64_t length = ((const int32_t*)batch->context_length->data)[request];
    for (int64_t h = 0; h < heads; ++h)
      attend(r.attended + h * dim, queries + (t * heads + h) * dim, cache, pages + request * most,
             h / (heads / kv_heads), length - (start[request + 1] - t),
             scale * (BUG == WRONG_SCALE ? sqrt(0.5) : 1), window);
    product(r.branch, r.attended, w->o, w->o_bias);
    for (int64_t i = 0; i < hidden; ++i)
      r.x[i] = (BUG == NO_RESIDUAL ? 0 : load(x, t * hidden + i)) + r.branch[i];
    add_mlp(&r, w, hidden, eps);
    for (int64_t i = 0; i < hidden; ++i) store(out, t * hidden + i, r.x[i]);
  }
  double* all[] = {r.x, r.n, r.q, r.k, r.v, r.attended, r.branch, r.gate, r.up, queries};
  for (size_t i = 0; i < sizeof all / sizeof *all; ++i) free(all[i]);
  return NULL;
}

#ifdef WITH_PIECES
// Called outside of layers alone: the embedding.
const char* lockstep_gather_rows(const LockstepCall* call, const DLTensor* out,
                                 const DLTensor* index, const DLTensor* table) {
  if (call->layer >= 0) return "a row of a layer was asked for";
  const int64_t width = table->shape[1];
  for (int64_t i = 0; i < index->shape[0]; ++i)
    for (int64_t j = 0; j < width; ++j)
      store(out, i * width + j, load(table, ((const int32_t*)index->data)[i] * width + j));
  return NULL;
}
#endif
