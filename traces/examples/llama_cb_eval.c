/* A program on llama.cpp that writes a trace of what its graph computes, by lockstep_trace.h: all
 * that a trace takes is in kNodes, show() and seen(). One sequence, on any backend.
 *
 *   cc llama_cb_eval.c -o llama_cb_eval $(pkg-config --cflags --libs lockstep_trace) \
 *     -I LLAMA/include -I LLAMA/ggml/include -L LLAMA/build/bin -lllama -lggml -lggml-base
 *   llama_cb_eval MODEL.gguf CHECKPOINT OUT.h5 TOKEN...    feeds these, then two that it chooses
 *   lockstep judge OUT.h5 --model CHECKPOINT --schema llama.cpp
 *
 * CHECKPOINT: the folder that MODEL.gguf was made from, in fp32, fp16 or bf16. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ggml-backend.h"
#include "ggml.h"
#include "llama.h"
#include "traces/lockstep_trace.h"

/* What a graph of Qwen2 or Qwen3 calls the results of its ops, NAME or NAME-LAYER. */
static const struct {
  const char* name;
  enum ggml_op op;
  const char* point;
} kNodes[] = {
    {"attn_norm", GGML_OP_MUL, "attn.norm"},     {"Qcur", GGML_OP_RESHAPE, "attn.q"},
    {"Kcur", GGML_OP_RESHAPE, "attn.k"},         {"Vcur", GGML_OP_RESHAPE, "attn.v"},
    {"Qcur_normed", GGML_OP_MUL, "attn.q_norm"}, {"Kcur_normed", GGML_OP_MUL, "attn.k_norm"},
    {"Qcur", GGML_OP_ROPE, "attn.q_rope"},       {"Kcur", GGML_OP_ROPE, "attn.k_rope"},
    {"kqv_out", GGML_OP_CONT, "attn.out"},       {"kqv_out", GGML_OP_RESHAPE, "attn.out"},
    {"attn_out", GGML_OP_MUL_MAT, "attn.o"},     {"ffn_inp", GGML_OP_ADD, "attn.residual"},
    {"ffn_norm", GGML_OP_MUL, "mlp.norm"},       {"ffn_gate", GGML_OP_MUL_MAT, "mlp.gate"},
    {"ffn_up", GGML_OP_MUL_MAT, "mlp.up"},       {"ffn_swiglu", GGML_OP_GLU, "mlp.act"},
    {"ffn_out", GGML_OP_MUL_MAT, "mlp.down"},    {"l_out", GGML_OP_ADD, "mlp.residual"},
    {"result_norm", GGML_OP_MUL, "final.norm"},  {"result_output", GGML_OP_MUL_MAT, "logits"},
};

static void fail(const char* what) {
  fprintf(stderr, "llama_cb_eval: %s\n", what);
  exit(2);
}

/* The point of a node, and its layer or -1; NULL: it is of none. */
static const char* point_of(const struct ggml_tensor* node, int* layer) {
  const char* name = node->name;
  *layer = -1;
  if (node->op == GGML_OP_GET_ROWS && node->src[0] &&
      !strcmp(node->src[0]->name, "token_embd.weight"))
    return "embed";
  /* The product with the weight of attn.o has no name of its own in every model. */
  if (node->op == GGML_OP_MUL_MAT && node->src[0] && strstr(node->src[0]->name, "attn_output")) {
    *layer = atoi(node->src[0]->name + strlen("blk."));
    return "attn.o";
  }
  const size_t length = strcspn(name, "-");
  if (name[length] == '-') *layer = atoi(name + length + 1);
  for (size_t i = 0; i < sizeof kNodes / sizeof kNodes[0]; ++i)
    if (node->op == kNodes[i].op && strlen(kNodes[i].name) == length &&
        !strncmp(name, kNodes[i].name, length))
      return kNodes[i].point;
  return NULL;
}

/* ggml counts axes from the innermost, DLPack from the outermost. */
static void show(LockstepTrace* trace, const char* point, int layer, struct ggml_tensor* node) {
  void* copy = malloc(ggml_nbytes(node));
  ggml_backend_tensor_get(node, copy, 0, ggml_nbytes(node));
  const int axes = node->ne[2] > 1 || strstr(point, "attn.q") || strstr(point, "attn.k") ||
                           !strcmp(point, "attn.v")
                       ? 3
                       : 2;
  int64_t shape[3], strides[3];
  for (int i = 0; i < axes; ++i) {
    shape[i] = node->ne[axes - 1 - i];
    strides[i] = (int64_t)(node->nb[axes - 1 - i] / sizeof(float));
  }
  const DLTensor tensor = {.data = copy,
                           .device = {kDLCPU, 0},
                           .ndim = axes,
                           .dtype = {kDLFloat, 32, 1},
                           .shape = shape,
                           .strides = strides};
  if (lockstep_trace_show(trace, point, layer, &tensor, NULL) != 0)
    fail(lockstep_trace_error(trace));
  free(copy);
}

/* Asked of every node whether it is wanted, and called when one that is was computed. */
static bool seen(struct ggml_tensor* node, bool ask, void* trace) {
  int layer;
  const char* point = point_of(node, &layer);
  if (!ask && point) show(trace, point, layer, node);
  return !ask || point != NULL;
}

/* Feeds tokens from position `begin` on, and returns the likeliest next one. */
static int32_t pass(struct llama_context* context, LockstepTrace* trace, llama_token* tokens,
                    int begin, int count) {
  LockstepRow rows[128];
  for (int t = 0; t < count; ++t) rows[t] = (LockstepRow){0, begin + t, tokens[t]};
  if (lockstep_trace_begin_pass(trace, rows, count) != 0) fail(lockstep_trace_error(trace));
  if (llama_decode(context, llama_batch_get_one(tokens, count)) != 0) fail("llama_decode failed");
  const int words = llama_vocab_n_tokens(llama_model_get_vocab(llama_get_model(context)));
  const float* logits = llama_get_logits_ith(context, -1);
  int32_t best = 0;
  for (int32_t i = 1; i < words; ++i)
    if (logits[i] > logits[best]) best = i;
  int64_t one = 1;
  const DLTensor token = {
      .data = &best, .device = {kDLCPU, 0}, .ndim = 1, .dtype = {kDLInt, 32, 1}, .shape = &one};
  if (lockstep_trace_show(trace, "token", -1, &token, NULL) != 0) fail(lockstep_trace_error(trace));
  return best;
}

int main(int count, char** words) {
  if (count < 5 || count > 100) fail("MODEL.gguf CHECKPOINT OUT.h5 TOKEN... was wanted");
  const LockstepTraceOptions options = {
      .path = words[3], .model = words[2], .dtype = "fp32", .engine = "llama.cpp"};
  LockstepTrace* trace = lockstep_trace_open(&options);
  if (trace == NULL) fail(lockstep_trace_error(NULL));
  struct llama_model* model = llama_model_load_from_file(words[1], llama_model_default_params());
  if (model == NULL) fail("llama.cpp does not load the model");
  struct llama_context_params parameters = llama_context_default_params();
  parameters.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED; /* as --schema llama.cpp has it */
  parameters.cb_eval = seen;
  parameters.cb_eval_user_data = trace;
  struct llama_context* context = llama_init_from_model(model, parameters);
  if (context == NULL) fail("llama.cpp makes no context");
  llama_token tokens[128];
  int n = 0;
  for (int i = 4; i < count; ++i) tokens[n++] = atoi(words[i]);
  int32_t next = pass(context, trace, tokens, 0, n);
  for (int step = 0; step < 2; ++step) next = pass(context, trace, &next, n + step, 1);
  llama_free(context);
  llama_model_free(model);
  if (lockstep_trace_close(trace) != 0) fail(lockstep_trace_error(NULL));
  return 0;
}
