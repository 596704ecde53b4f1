// A user's fused kernels that are right: what lies between the pieces stays in fp32 or double.
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/lockstep_ops.h"

int32_t lockstep_ops_abi(void) { return LOCKSTEP_OPS_ABI; }

static float load(const DLTensor* t, int64_t i) {
  if (t->dtype.bits == 32) return ((const float*)t->data)[i];
  const uint32_t bits = (uint32_t)((const uint16_t*)t->data)[i] << 16;
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static float rounded(const DLTensor* t, float value) {
  if (t->dtype.bits == 32) return value;
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  bits += 0x7fff + ((bits >> 16) & 1);  // to the nearest, halves to even
  bits &= 0xffff0000;
  memcpy(&value, &bits, sizeof bits);
  return value;
}

static void store(const DLTensor* t, int64_t i, float value) {
  if (t->dtype.bits == 32) {
    ((float*)t->data)[i] = value;
    return;
  }
  value = rounded(t, value);
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  ((uint16_t*)t->data)[i] = (uint16_t)(bits >> 16);
}

static const char* refusal(const DLTensor* t) {
  if (t->device.device_type != kDLCPU) return "it runs on the CPU: leave out --device cuda";
  if (t->dtype.bits != 32 && t->dtype.code != kDLBfloat) return "it knows fp32 and bf16 only";
  return NULL;
}

// Norms `width` values in place; without a weight it leaves them as they are.
static void norm(double* x, int64_t width, const DLTensor* weight, float eps) {
  if (weight == NULL) return;
  double squares = 0;
  for (int64_t i = 0; i < width; ++i) squares += x[i] * x[i];
  const double scale = 1 / sqrt(squares / (double)width + eps);
  for (int64_t i = 0; i < width; ++i) x[i] *= scale * load(weight, i);
}

const char* lockstep_add_rms_norm(const LockstepCall* call, const DLTensor* out,
                                  const DLTensor* sum, const DLTensor* a, const DLTensor* b,
                                  const DLTensor* weight, float eps) {
  (void)call;
  if (refusal(a) != NULL) return refusal(a);
  const int64_t width = a->shape[1];
  double* x = malloc((size_t)width * sizeof *x);
  for (int64_t row = 0; row < a->shape[0]; ++row) {
    for (int64_t i = 0; i < width; ++i) {
      x[i] = rounded(sum, load(a, row * width + i) + load(b, row * width + i));
      store(sum, row * width + i, (float)x[i]);
    }
    norm(x, width, weight, eps);
    for (int64_t i = 0; i < width; ++i) store(out, row * width + i, (float)x[i]);
  }
  free(x);
  return NULL;
}

// Row `row` of x times row `n` of the weight.
static double product(const DLTensor* x, int64_t row, const DLTensor* weight, int64_t n) {
  const int64_t width = weight->shape[1];
  double sum = 0;
  for (int64_t i = 0; i < width; ++i)
    sum += (double)load(x, row * width + i) * load(weight, n * width + i);
  return sum;
}

const char* lockstep_qkv_matmul(const LockstepCall* call, const DLTensor* q, const DLTensor* k,
                                const DLTensor* v, const DLTensor* x,
                                const DLTensor* const weights[3], const DLTensor* const biases[3]) {
  (void)call;
  if (refusal(x) != NULL) return refusal(x);
  const DLTensor* const outs[3] = {q, k, v};
  for (int part = 0; part < 3; ++part)
    for (int64_t row = 0; row < x->shape[0]; ++row)
      for (int64_t n = 0; n < weights[part]->shape[0]; ++n) {
        const double bias = biases[part] == NULL ? 0 : load(biases[part], n);
        store(outs[part], row * weights[part]->shape[0] + n,
              (float)(product(x, row, weights[part], n) + bias));
      }
  return NULL;
}

// Norms and turns the heads of a row of `from`, which go to row `to_row` of `to`.
static void turn(const DLTensor* from, int64_t row, const DLTensor* weight, float eps,
                 const DLTensor* cos, const DLTensor* sin, int64_t position, const DLTensor* to,
                 int64_t to_row) {
  const int64_t heads = from->shape[1], width = from->shape[2], half = width / 2;
  double* x = malloc((size_t)width * sizeof *x);
  for (int64_t head = 0; head < heads; ++head) {
    for (int64_t i = 0; i < width; ++i) x[i] = load(from, (row * heads + head) * width + i);
    norm(x, width, weight, eps);
    const int64_t first = (to_row * heads + head) * width;
    for (int64_t i = 0; i < half; ++i) {
      const double c = load(cos, position * half + i), s = load(sin, position * half + i);
      store(to, first + i, (float)(x[i] * c - x[i + half] * s));
      store(to, first + half + i, (float)(x[i + half] * c + x[i] * s));
    }
  }
  free(x);
}

const char* lockstep_qk_norm_rope_kv_write(const LockstepCall* call, const DLTensor* q_rope,
                                           const LockstepCache* cache, const DLTensor* q,
                                           const DLTensor* k, const DLTensor* v,
                                           const DLTensor* q_weight, const DLTensor* k_weight,
                                           float eps, const DLTensor* cos, const DLTensor* sin,
                                           const DLTensor* positions, const DLTensor* slots) {
  (void)call;
  if (refusal(q) != NULL) return refusal(q);
  const int64_t size = v->shape[1] * v->shape[2];
  for (int64_t row = 0; row < q->shape[0]; ++row) {
    const int64_t position = ((const int32_t*)positions->data)[row];
    const int64_t slot = ((const int64_t*)slots->data)[row];
    turn(q, row, q_weight, eps, cos, sin, position, q_rope, row);
    if (slot < 0) continue;
    turn(k, row, k_weight, eps, cos, sin, position, cache->k, slot);
    for (int64_t i = 0; i < size; ++i) store(cache->v, slot * size + i, load(v, row * size + i));
  }
  return NULL;
}

const char* lockstep_gate_up_silu(const LockstepCall* call, const DLTensor* out, const DLTensor* x,
                                  const DLTensor* gate_weight, const DLTensor* up_weight) {
  (void)call;
  if (refusal(x) != NULL) return refusal(x);
  const int64_t width = gate_weight->shape[0];
  for (int64_t row = 0; row < x->shape[0]; ++row)
    for (int64_t n = 0; n < width; ++n) {
      const double gate = product(x, row, gate_weight, n), up = product(x, row, up_weight, n);
      store(out, row * width + n, (float)(gate / (1 + exp(-gate)) * up));
    }
  return NULL;
}
