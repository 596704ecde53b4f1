/* The C interface of a user's kernels: a shared library that `lockstep run --ops LIB.so` puts in
 * the place of Lockstep's own ops. Plain C; C++ and CUDA may include it. It needs nothing of
 * Lockstep's but this file, and <dlpack/dlpack.h> (Debian: libdlpack-dev).
 *
 * A library exports `lockstep_ops_abi`, and one function or more of those declared below; ops that
 * it does not export stay Lockstep's. What an op must compute - shapes, dtypes, where it rounds -
 * is said in the header of its name beside this one (of lockstep_rms_norm: rms_norm.h), in the
 * order of its arguments here.
 *
 * Tensors are row-major and dense, and `strides` is NULL. The first element lies at (char*)data +
 * byte_offset, which is 0 (readers of DLPack such as torch.from_dlpack want it so). The device is
 * that of the CPU, or the current CUDA device, by its number; it is the same for all tensors of a
 * call, and a library that has no kernels for it must say so. A tensor that an op may lack (a bias)
 * is NULL. Tensors are borrowed for the call, outputs come first, and inputs must not be written:
 * one that was ends the run, and the op is named. So does a rounding mode or a flushing of
 * subnormals that an op leaves behind.
 *
 * An output is not the memory that the engine goes on with: it is surrounded by guard bytes and
 * filled with a pattern, so that elements that were written beside it or not at all are found. It
 * never is the memory of an input. `lockstep_kv_write`, and the fused ops that do its work, alone
 * write where the cache is.
 *
 * On a CUDA device a kernel is queued on `stream` and not waited for. On the CPU it is done when
 * the function returns; it may use threads of its own.
 *
 * Ops round as IEEE 754 does: a result that overflows its dtype is Inf, and not the largest number.
 *
 * A function returns NULL, or one sentence that says what went wrong, which ends the run; the
 * library owns its memory. One that crashes or calls exit, or whose kernels crash, ends the run
 * too, and is named; _exit and _Exit end it unseen, with the status that they are given: a library
 * must not call them. */
#pragma once

#include <dlpack/dlpack.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Changes when a library that was built before would be called otherwise than it expects: an op
 * that is added changes nothing for it. */
enum { LOCKSTEP_OPS_ABI = 2 };

/* Must return LOCKSTEP_OPS_ABI. */
int32_t lockstep_ops_abi(void);

typedef struct LockstepCall {
  const char* point; /* that shows the op's output, e.g. "attn.q" */
  int32_t layer;     /* -1: of no layer */
  void* stream;      /* cudaStream_t on a CUDA device, NULL on the CPU */
} LockstepCall;

/* The paged cache of one layer, each [pages, page_size, kv_heads, head_dim]. */
typedef struct LockstepCache {
  const DLTensor* k;
  const DLTensor* v;
} LockstepCache;

typedef struct LockstepBatch {
  const DLTensor* query_start;    /* [requests + 1]         int32 */
  const DLTensor* context_length; /* [requests]             int32 */
  const DLTensor* page_table;     /* [requests, most pages] int32 */
} LockstepBatch;

const char* lockstep_gather_rows(const LockstepCall* call, const DLTensor* out,
                                 const DLTensor* index, const DLTensor* table);
const char* lockstep_rms_norm(const LockstepCall* call, const DLTensor* out, const DLTensor* x,
                              const DLTensor* weight, float eps);
const char* lockstep_matmul(const LockstepCall* call, const DLTensor* out, const DLTensor* x,
                            const DLTensor* weight, const DLTensor* bias);
const char* lockstep_rope(const LockstepCall* call, const DLTensor* out, const DLTensor* x,
                          const DLTensor* cos, const DLTensor* sin, const DLTensor* positions);
const char* lockstep_kv_write(const LockstepCall* call, const LockstepCache* cache,
                              const DLTensor* k, const DLTensor* v, const DLTensor* slots);
const char* lockstep_kv_gather(const LockstepCall* call, const DLTensor* out,
                               const LockstepCache* cache, const DLTensor* page_table);
const char* lockstep_paged_attention(const LockstepCall* call, const DLTensor* out,
                                     const DLTensor* q, const LockstepCache* cache,
                                     const LockstepBatch* batch, float scale, int64_t window);
const char* lockstep_silu_mul(const LockstepCall* call, const DLTensor* out, const DLTensor* gate,
                              const DLTensor* up);
const char* lockstep_add(const LockstepCall* call, const DLTensor* out, const DLTensor* a,
                         const DLTensor* b);
const char* lockstep_argmax(const LockstepCall* call, const DLTensor* out, const DLTensor* logits);
const char* lockstep_top_k(const LockstepCall* call, const DLTensor* out, const DLTensor* logits);
const char* lockstep_softmax_of(const LockstepCall* call, const DLTensor* out,
                                const DLTensor* logits, const DLTensor* index, int32_t normalised);
const char* lockstep_expert_matmul(const LockstepCall* call, const DLTensor* out, const DLTensor* x,
                                   const DLTensor* index, const DLTensor* const* weights,
                                   int64_t experts);
const char* lockstep_weighted_sum(const LockstepCall* call, const DLTensor* out, const DLTensor* x,
                                  const DLTensor* weights);

/* Fused ops: several of those above in one kernel, each in the place of its pieces, whether these
 * are exported too or not. What lies between the pieces is stored nowhere and need not be rounded:
 * Lockstep judges the fused op from its inputs to its outputs, within what its pieces may be off
 * together, and names it by the point of its output. */

/* out = rms_norm(sum), sum = add(a, b): both are outputs. A norm that reads the sum before it is
 * rounded is right with `--rounding POINT=unrounded_sum`. */
const char* lockstep_add_rms_norm(const LockstepCall* call, const DLTensor* out,
                                  const DLTensor* sum, const DLTensor* a, const DLTensor* b,
                                  const DLTensor* weight, float eps);
/* q, k, v = matmul(x, weight, bias), of weights and biases in this order. A bias may be NULL. */
const char* lockstep_qkv_matmul(const LockstepCall* call, const DLTensor* q, const DLTensor* k,
                                const DLTensor* v, const DLTensor* x,
                                const DLTensor* const weights[3], const DLTensor* const biases[3]);
/* q_rope = rope(rms_norm(q)), and into the cache at `slots` k = rope(rms_norm(k)) and v. The
 * weights of the norms are NULL in a model without QK-norm: nothing is normed then. */
const char* lockstep_qk_norm_rope_kv_write(const LockstepCall* call, const DLTensor* q_rope,
                                           const LockstepCache* cache, const DLTensor* q,
                                           const DLTensor* k, const DLTensor* v,
                                           const DLTensor* q_weight, const DLTensor* k_weight,
                                           float eps, const DLTensor* cos, const DLTensor* sin,
                                           const DLTensor* positions, const DLTensor* slots);
/* out = silu_mul(matmul(x, gate_weight), matmul(x, up_weight)) */
const char* lockstep_gate_up_silu(const LockstepCall* call, const DLTensor* out, const DLTensor* x,
                                  const DLTensor* gate_weight, const DLTensor* up_weight);

/* The weights of a layer. A bias, and the norms of heads, are NULL in a model without them. */
typedef struct LockstepLayerWeights {
  const DLTensor* attn_norm; /* [hidden] */
  const DLTensor* q;         /* [heads * head_dim, hidden] */
  const DLTensor* k;         /* [kv_heads * head_dim, hidden] */
  const DLTensor* v;         /* the same */
  const DLTensor* q_bias;    /* [heads * head_dim] */
  const DLTensor* k_bias;    /* [kv_heads * head_dim] */
  const DLTensor* v_bias;    /* the same */
  const DLTensor* q_norm;    /* [head_dim] */
  const DLTensor* k_norm;    /* the same */
  const DLTensor* o;         /* [hidden, heads * head_dim] */
  const DLTensor* o_bias;    /* [hidden] */
  const DLTensor* mlp_norm;  /* [hidden] */
  const DLTensor* gate;      /* [intermediate, hidden] */
  const DLTensor* up;        /* the same */
  const DLTensor* down;      /* [hidden, intermediate] */
} LockstepLayerWeights;

/* A whole layer: x and out, [tokens, hidden], are the residual stream before and after it.
 *     n = rms_norm(x, attn_norm), q, k, v = matmul(n), K = rope(rms_norm(k)), to the cache with v
 *     h = x + matmul(paged_attention(rope(rms_norm(q)), cache), o)
 *     out = h + matmul(silu_mul(matmul(m, gate), matmul(m, up)), down), m = rms_norm(h, mlp_norm)
 * Row t of K and v goes into slots[t] of the cache; queries see what is stored there, of this pass
 * too, up to their own position, as paged_attention.h says of `batch`, `scale` and `window`.
 * kv_heads and head_dim are extents of the cache. positions are [tokens], int32, rows of cos and
 * sin, [entries, head_dim / 2] in fp32; slots are [tokens], int64, and a negative one writes
 * nowhere. Nothing but K, v and out is stored, or need be rounded. call->point is "mlp.residual".
 *
 * It stands for all other ops within a layer, exported or not. Lockstep reads K and v from the
 * cache and judges these and `out`, each from x and what the cache holds; it names the layer and
 * what it may be of it. Layers with experts are not for it. */
const char* lockstep_decoder_layer(const LockstepCall* call, const DLTensor* out,
                                   const LockstepCache* cache, const DLTensor* x,
                                   const LockstepLayerWeights* weights, float eps,
                                   const DLTensor* cos, const DLTensor* sin,
                                   const DLTensor* positions, const DLTensor* slots,
                                   const LockstepBatch* batch, float scale, int64_t window);

#ifdef __cplusplus
}
#endif
