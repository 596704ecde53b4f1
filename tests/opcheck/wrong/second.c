/* Ops that are wrong otherwise. */
#include "tests/causes/wrong/numbers.inc"

/* Works in the place of its input. */
const char* lockstep_rms_norm(const LockstepCall* call, const DLTensor* out, const DLTensor* x,
                              const DLTensor* weight, float eps) {
  (void)call;
  norm_rows(out, x, weight, weight, eps, (double)weight->shape[0]);
  norm_rows(x, x, weight, weight, eps, (double)weight->shape[0]);
  return NULL;
}

/* Heads of 80 elements are taken for heads of 64 and a rest. */
const char* lockstep_rope(const LockstepCall* call, const DLTensor* out, const DLTensor* x,
                          const DLTensor* cos, const DLTensor* sin, const DLTensor* positions) {
  (void)call;
  const int64_t heads = x->shape[1], dim = x->shape[2], half = dim == 80 ? 32 : dim / 2;
  for (int64_t t = 0; t < x->shape[0]; ++t)
    for (int64_t h = 0; h < heads; ++h) {
      const int64_t row = (t * heads + h) * dim;
      for (int64_t j = 0; j < dim; ++j) store(out, row + j, load(x, row + j));
      for (int64_t j = 0; j < half; ++j) {
        const int64_t at = row + j, entry = (int64_t)ints(positions)[t] * (dim / 2) + j;
        const double c = load(cos, entry), s = load(sin, entry);
        store(out, at, (float)(load(x, at) * c - load(x, at + half) * s));
        store(out, at + half, (float)(load(x, at + half) * c + load(x, at) * s));
      }
    }
  return NULL;
}

/* The last page is attended to as a whole. */
const char* lockstep_paged_attention(const LockstepCall* call, const DLTensor* out,
                                     const DLTensor* q, const LockstepCache* cache,
                                     const LockstepBatch* batch, float scale, int64_t window) {
  (void)call;
  const int64_t requests = batch->context_length->shape[0], page = cache->k->shape[1];
  int32_t lengths[8], starts[9];
  if (requests > 8) return "it knows 8 requests";
  /* One query of each request is moved to the end of its last page. */
  for (int64_t r = 0; r < requests; ++r) {
    const int64_t length = ints(batch->context_length)[r];
    const int64_t count = ints(batch->query_start)[r + 1] - ints(batch->query_start)[r];
    lengths[r] = (int32_t)(count == 1 ? (length + page - 1) / page * page : length);
    starts[r] = ints(batch->query_start)[r];
  }
  starts[requests] = ints(batch->query_start)[requests];
  DLTensor moved = *batch->context_length, begins = *batch->query_start;
  moved.data = lengths;
  begins.data = starts;
  const LockstepBatch other = {&begins, &moved, batch->page_table};
  attend(out, q, cache, &other, scale, window, (Parts){0});
  return NULL;
}

/* Truncates to 16 bits instead of rounding. */
const char* lockstep_matmul(const LockstepCall* call, const DLTensor* out, const DLTensor* x,
                            const DLTensor* weight, const DLTensor* bias) {
  (void)call;
  multiply(out, x, weight, bias, NULL, weight->shape[1]);
  if (out->dtype.code != kDLBfloat) return NULL;
  const int64_t n = weight->shape[0], k = weight->shape[1];
  for (int64_t i = 0; i < count_of(out); ++i) {
    double sum = bias ? load(bias, i % n) : 0;
    for (int64_t j = 0; j < k; ++j)
      sum += (double)load(x, i / n * k + j) * load(weight, i % n * k + j);
    const float value = (float)sum;
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    ((uint16_t*)out->data)[i] = (uint16_t)(bits >> 16);
  }
  return NULL;
}

/* Leaves the last row as it was where there are more than 16. */
const char* lockstep_silu_mul(const LockstepCall* call, const DLTensor* out, const DLTensor* gate,
                              const DLTensor* up) {
  (void)call;
  const int64_t count = count_of(out), width = count / out->shape[0];
  for (int64_t i = 0; i < count - (out->shape[0] > 16 ? width : 0); ++i) {
    const double g = load(gate, i);
    store(out, i, (float)(g / (1 + exp(-g)) * load(up, i)));
  }
  return NULL;
}

/* Reads the norm's eps as that of another model. */
const char* lockstep_add_rms_norm(const LockstepCall* call, const DLTensor* out,
                                  const DLTensor* sum, const DLTensor* a, const DLTensor* b,
                                  const DLTensor* weight, float eps) {
  (void)call;
  (void)eps;
  for (int64_t i = 0; i < count_of(sum); ++i) store(sum, i, load(a, i) + load(b, i));
  norm_rows(out, sum, weight, weight, 1e-6F, (double)weight->shape[0]);
  return NULL;
}

/* SiLU of the other half. */
const char* lockstep_gate_up_silu(const LockstepCall* call, const DLTensor* out, const DLTensor* x,
                                  const DLTensor* gate_weight, const DLTensor* up_weight) {
  (void)call;
  const int64_t n = gate_weight->shape[0], k = gate_weight->shape[1];
  for (int64_t i = 0; i < count_of(out); ++i) {
    double gate = 0, up = 0;
    for (int64_t j = 0; j < k; ++j) {
      gate += (double)load(x, i / n * k + j) * load(gate_weight, i % n * k + j);
      up += (double)load(x, i / n * k + j) * load(up_weight, i % n * k + j);
    }
    store(out, i, (float)(up / (1 + exp(-up)) * gate));
  }
  return NULL;
}
