/* A whole engine in C that writes a trace of itself by lockstep_trace.h: a small Qwen3 of one
 * safetensors file of bf16 weights with tied embeddings, in fp32, on one thread, one request.
 *
 *   tiny_qwen3 MODEL OUT.h5 TOKEN...        feeds the tokens, then two that it chooses itself
 *   lockstep judge OUT.h5 --model MODEL     judges every op of it
 *
 * Its sizes are those of the checkpoint in tests/data/tiny/qwen3-default. All that a trace takes is
 * in show(), in pass() and in main(). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "traces/lockstep_trace.h"

enum { HIDDEN = 64, LAYERS = 3, HEADS = 4, KV_HEADS = 2, DIM = 32, INNER = 160, VOCAB = 320 };
enum { QUERIES = HEADS * DIM, KEYS = KV_HEADS * DIM, MOST = 128 };
static const float kEpsilon = 1e-6f, kTheta = 10000.0f;

static char* header;        /* JSON of the safetensors file */
static const uint16_t* raw; /* its numbers, as bits of bf16 */
static float key_cache[LAYERS][MOST][KEYS], value_cache[LAYERS][MOST][KEYS];
static LockstepTrace* trace;

static void fail(const char* what) {
  fprintf(stderr, "tiny_qwen3: %s\n", what);
  exit(2);
}

/* Shows a tensor of count rows of the pass, [count, width] or [count, heads, width]. */
static void show(const char* point, int layer, const float* x, int64_t count, int64_t heads,
                 int64_t width) {
  int64_t shape[3] = {count, heads > 0 ? heads : width, width};
  DLTensor tensor = {.data = (void*)x,
                     .device = {kDLCPU, 0},
                     .ndim = heads > 0 ? 3 : 2,
                     .dtype = {kDLFloat, 32, 1},
                     .shape = shape};
  if (lockstep_trace_show(trace, point, layer, &tensor, NULL) != 0)
    fail(lockstep_trace_error(trace));
}

static void load(const char* model) {
  char path[4096];
  snprintf(path, sizeof path, "%s/model.safetensors", model);
  FILE* file = fopen(path, "rb");
  uint64_t size = 0;
  if (!file || fread(&size, 8, 1, file) != 1) fail("MODEL has no model.safetensors");
  header = calloc(size + 1, 1);
  const size_t most = (size_t)1 << 24;
  char* numbers = malloc(most);
  if (fread(header, 1, size, file) != size || fread(numbers, 1, most, file) == 0)
    fail("model.safetensors was cut");
  fclose(file);
  raw = (const uint16_t*)numbers;
}

/* The bf16 weights of that name, of a layer unless it is -1. */
static const uint16_t* weight(int layer, const char* name) {
  char key[256];
  if (layer < 0)
    snprintf(key, sizeof key, "\"model.%s.weight\"", name);
  else
    snprintf(key, sizeof key, "\"model.layers.%d.%s.weight\"", layer, name);
  const char* at = strstr(header, key);
  if (!at || !(at = strstr(at, "data_offsets"))) fail(key);
  return raw + strtoull(strchr(at, '[') + 1, NULL, 10) / 2;
}

static float widened(uint16_t bits) {
  const uint32_t wide = (uint32_t)bits << 16;
  float x;
  memcpy(&x, &wide, 4);
  return x;
}

static void linear(float* y, const float* x, const uint16_t* w, int outputs, int inputs) {
  for (int i = 0; i < outputs; ++i) {
    float sum = 0;
    for (int j = 0; j < inputs; ++j) sum += x[j] * widened(w[i * inputs + j]);
    y[i] = sum;
  }
}

static void norm(float* y, const float* x, const uint16_t* w, int width) {
  float squares = 0;
  for (int i = 0; i < width; ++i) squares += x[i] * x[i];
  const float scale = 1.0f / sqrtf(squares / (float)width + kEpsilon);
  for (int i = 0; i < width; ++i) y[i] = x[i] * scale * widened(w[i]);
}

static void rope(float* y, const float* x, int position) {
  for (int i = 0; i < DIM / 2; ++i) {
    const float angle = (float)position * (1.0f / powf(kTheta, 2.0f * (float)i / DIM));
    const float c = cosf(angle), s = sinf(angle);
    y[i] = x[i] * c - x[i + DIM / 2] * s;
    y[i + DIM / 2] = x[i + DIM / 2] * c + x[i] * s;
  }
}

static void attend(float* out, const float* q, int layer, int head, int position) {
  const int kv = head / (HEADS / KV_HEADS) * DIM;
  float weights[MOST], most = -INFINITY, sum = 0;
  for (int t = 0; t <= position; ++t) {
    float dot = 0;
    for (int i = 0; i < DIM; ++i) dot += q[i] * key_cache[layer][t][kv + i];
    weights[t] = dot / sqrtf(DIM);
    most = fmaxf(most, weights[t]);
  }
  for (int t = 0; t <= position; ++t) sum += weights[t] = expf(weights[t] - most);
  for (int i = 0; i < DIM; ++i) {
    float value = 0;
    for (int t = 0; t <= position; ++t) value += weights[t] * value_cache[layer][t][kv + i];
    out[i] = value / sum;
  }
}

/* All rows of a pass, one op after another, as an engine has them in its buffers. */
static float x[MOST][HIDDEN], normed[MOST][HIDDEN], made[MOST][HIDDEN], q[MOST][QUERIES],
    k[MOST][KEYS], v[MOST][KEYS], turned[MOST][QUERIES], gate[MOST][INNER], up[MOST][INNER];

static void attention(int layer, int begin, int n) {
  for (int t = 0; t < n; ++t) {
    norm(normed[t], x[t], weight(layer, "input_layernorm"), HIDDEN);
    linear(q[t], normed[t], weight(layer, "self_attn.q_proj"), QUERIES, HIDDEN);
    linear(k[t], normed[t], weight(layer, "self_attn.k_proj"), KEYS, HIDDEN);
    linear(v[t], normed[t], weight(layer, "self_attn.v_proj"), KEYS, HIDDEN);
  }
  show("attn.norm", layer, normed[0], n, 0, HIDDEN);
  show("attn.q", layer, q[0], n, HEADS, DIM);
  show("attn.k", layer, k[0], n, KV_HEADS, DIM);
  show("attn.v", layer, v[0], n, KV_HEADS, DIM);
  for (int t = 0; t < n; ++t) {
    for (int h = 0; h < QUERIES; h += DIM)
      norm(q[t] + h, q[t] + h, weight(layer, "self_attn.q_norm"), DIM);
    for (int h = 0; h < KEYS; h += DIM)
      norm(k[t] + h, k[t] + h, weight(layer, "self_attn.k_norm"), DIM);
  }
  show("attn.q_norm", layer, q[0], n, HEADS, DIM);
  show("attn.k_norm", layer, k[0], n, KV_HEADS, DIM);
  for (int t = 0; t < n; ++t) {
    for (int h = 0; h < QUERIES; h += DIM) rope(turned[t] + h, q[t] + h, begin + t);
    for (int h = 0; h < KEYS; h += DIM) rope(key_cache[layer][begin + t] + h, k[t] + h, begin + t);
    memcpy(value_cache[layer][begin + t], v[t], sizeof v[t]);
  }
  show("attn.q_rope", layer, turned[0], n, HEADS, DIM);
  show("attn.k_rope", layer, key_cache[layer][begin], n, KV_HEADS, DIM);
  for (int t = 0; t < n; ++t)
    for (int h = 0; h < HEADS; ++h)
      attend(q[t] + h * DIM, turned[t] + h * DIM, layer, h, begin + t);
  show("attn.out", layer, q[0], n, 0, QUERIES); /* heads and dims in one axis do, too */
  for (int t = 0; t < n; ++t)
    linear(made[t], q[t], weight(layer, "self_attn.o_proj"), HIDDEN, QUERIES);
  show("attn.o", layer, made[0], n, 0, HIDDEN);
}

static void add(const char* point, int layer, int n) {
  for (int t = 0; t < n; ++t)
    for (int i = 0; i < HIDDEN; ++i) x[t][i] += made[t][i];
  show(point, layer, x[0], n, 0, HIDDEN);
}

static void mlp(int layer, int n) {
  for (int t = 0; t < n; ++t) {
    norm(normed[t], x[t], weight(layer, "post_attention_layernorm"), HIDDEN);
    linear(gate[t], normed[t], weight(layer, "mlp.gate_proj"), INNER, HIDDEN);
    linear(up[t], normed[t], weight(layer, "mlp.up_proj"), INNER, HIDDEN);
  }
  show("mlp.norm", layer, normed[0], n, 0, HIDDEN);
  show("mlp.gate", layer, gate[0], n, 0, INNER);
  show("mlp.up", layer, up[0], n, 0, INNER);
  for (int t = 0; t < n; ++t) {
    for (int i = 0; i < INNER; ++i) gate[t][i] = gate[t][i] / (1 + expf(-gate[t][i])) * up[t][i];
    linear(made[t], gate[t], weight(layer, "mlp.down_proj"), HIDDEN, INNER);
  }
  show("mlp.act", layer, gate[0], n, 0, INNER);
  show("mlp.down", layer, made[0], n, 0, HIDDEN);
}

/* Feeds tokens from position `begin` on, and returns the likeliest next one. */
static int32_t pass(const int32_t* tokens, int begin, int n) {
  LockstepRow rows[MOST];
  for (int t = 0; t < n; ++t) rows[t] = (LockstepRow){0, begin + t, tokens[t]};
  if (lockstep_trace_begin_pass(trace, rows, n) != 0) fail(lockstep_trace_error(trace));
  const uint16_t* table = weight(-1, "embed_tokens");
  for (int t = 0; t < n; ++t)
    for (int i = 0; i < HIDDEN; ++i) x[t][i] = widened(table[tokens[t] * HIDDEN + i]);
  show("embed", -1, x[0], n, 0, HIDDEN);
  for (int layer = 0; layer < LAYERS; ++layer) {
    attention(layer, begin, n);
    add("attn.residual", layer, n);
    mlp(layer, n);
    add("mlp.residual", layer, n);
  }
  for (int t = 0; t < n; ++t) norm(normed[t], x[t], weight(-1, "norm"), HIDDEN);
  show("final.norm", -1, normed[0], n, 0, HIDDEN);
  float logits[VOCAB];
  linear(logits, normed[n - 1], table, VOCAB, HIDDEN); /* of the last row alone */
  show("logits", -1, logits, 1, 0, VOCAB);
  int32_t best = 0;
  for (int32_t i = 1; i < VOCAB; ++i)
    if (logits[i] > logits[best]) best = i;
  int64_t one = 1;
  const DLTensor token = {
      .data = &best, .device = {kDLCPU, 0}, .ndim = 1, .dtype = {kDLInt, 32, 1}, .shape = &one};
  if (lockstep_trace_show(trace, "token", -1, &token, NULL) != 0) fail(lockstep_trace_error(trace));
  return best;
}

int main(int count, char** words) {
  if (count < 4) fail("MODEL OUT.h5 TOKEN... was wanted");
  load(words[1]);
  const LockstepTraceOptions options = {.path = words[2],
                                        .model = words[1],
                                        .dtype = "fp32",
                                        .schema = "fused",
                                        .engine = "tiny_qwen3"};
  trace = lockstep_trace_open(&options);
  if (trace == NULL) fail(lockstep_trace_error(NULL));
  int32_t tokens[MOST];
  int n = 0;
  for (int i = 3; i < count && n < MOST - 2; ++i) tokens[n++] = atoi(words[i]);
  int32_t next = pass(tokens, 0, n);
  for (int step = 0; step < 2; ++step) next = pass(&next, n + step, 1);
  if (lockstep_trace_close(trace) != 0) fail(lockstep_trace_error(NULL));
  return 0;
}
