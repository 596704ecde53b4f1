// Lockstep's own ops as a user's library.
#include <span>
#include <string>
#include <vector>

#include "kernels/base/check.h"
#include "kernels/base/memory.h"
#include "kernels/lockstep_ops.h"
#include "kernels/ops.h"

namespace lockstep {
namespace {

DType dtype_of(const DLDataType& type) {
  if (type.code == kDLBfloat) return DType::bf16;
  if (type.code == kDLFloat) return type.bits == 32 ? DType::f32 : DType::f16;
  return type.bits == 32 ? DType::i32 : DType::i64;
}

TensorView view_of(const DLTensor* tensor) {
  if (tensor == nullptr) return {};
  TensorView view{.data = tensor->data, .dtype = dtype_of(tensor->dtype)};
  view.shape = Shape(std::span(tensor->shape, static_cast<size_t>(tensor->ndim)));
  return view;
}

KvCache cache_of(const LockstepCache* cache) { return {view_of(cache->k), view_of(cache->v)}; }

// A sentence of an Error lives until the next one.
template <typename Op>
const char* told(const LockstepCall* call, const Op& op) {
  static thread_local std::string sentence;
  try {
    op(OpContext{.layer = call->layer, .point = call->point});
    return nullptr;
  } catch (const Error& error) {
    sentence = error.what();
    return sentence.c_str();
  }
}

}  // namespace
}  // namespace lockstep

using lockstep::cache_of;
using lockstep::OpContext;
using lockstep::Tensor;
using lockstep::TensorView;
using lockstep::told;
using lockstep::view_of;

extern "C" {

int32_t lockstep_ops_abi(void) { return LOCKSTEP_OPS_ABI; }

const char* lockstep_gather_rows(const LockstepCall* call, const DLTensor* out,
                                 const DLTensor* index, const DLTensor* table) {
  return told(call, [&](const OpContext& context) {
    lockstep::gather_rows(context, view_of(out), view_of(index), view_of(table));
  });
}

const char* lockstep_rms_norm(const LockstepCall* call, const DLTensor* out, const DLTensor* x,
                              const DLTensor* weight, float eps) {
  return told(call, [&](const OpContext& context) {
    lockstep::rms_norm(context, view_of(out), view_of(x), view_of(weight), eps);
  });
}

const char* lockstep_matmul(const LockstepCall* call, const DLTensor* out, const DLTensor* x,
                            const DLTensor* weight, const DLTensor* bias) {
  return told(call, [&](const OpContext& context) {
    lockstep::matmul(context, view_of(out), view_of(x), view_of(weight), view_of(bias));
  });
}

const char* lockstep_rope(const LockstepCall* call, const DLTensor* out, const DLTensor* x,
                          const DLTensor* cos, const DLTensor* sin, const DLTensor* positions) {
  return told(call, [&](const OpContext& context) {
    lockstep::rope(context, view_of(out), view_of(x), view_of(cos), view_of(sin),
                   view_of(positions));
  });
}

const char* lockstep_kv_write(const LockstepCall* call, const LockstepCache* cache,
                              const DLTensor* k, const DLTensor* v, const DLTensor* slots) {
  return told(call, [&](const OpContext& context) {
    lockstep::kv_write(context, cache_of(cache), view_of(k), view_of(v), view_of(slots));
  });
}

const char* lockstep_kv_gather(const LockstepCall* call, const DLTensor* out,
                               const LockstepCache* cache, const DLTensor* page_table) {
  return told(call, [&](const OpContext& context) {
    lockstep::kv_gather(context, view_of(out), cache_of(cache), view_of(page_table));
  });
}

const char* lockstep_paged_attention(const LockstepCall* call, const DLTensor* out,
                                     const DLTensor* q, const LockstepCache* cache,
                                     const LockstepBatch* batch, float scale, int64_t window) {
  return told(call, [&](const OpContext& context) {
    lockstep::paged_attention(
        context, view_of(out), view_of(q), cache_of(cache),
        {view_of(batch->query_start), view_of(batch->context_length), view_of(batch->page_table)},
        scale, window);
  });
}

const char* lockstep_silu_mul(const LockstepCall* call, const DLTensor* out, const DLTensor* gate,
                              const DLTensor* up) {
  return told(call, [&](const OpContext& context) {
    lockstep::silu_mul(context, view_of(out), view_of(gate), view_of(up));
  });
}

const char* lockstep_add(const LockstepCall* call, const DLTensor* out, const DLTensor* a,
                         const DLTensor* b) {
  return told(call, [&](const OpContext& context) {
    lockstep::add(context, view_of(out), view_of(a), view_of(b));
  });
}

const char* lockstep_argmax(const LockstepCall* call, const DLTensor* out, const DLTensor* logits) {
  return told(call, [&](const OpContext& context) {
    lockstep::argmax(context, view_of(out), view_of(logits));
  });
}

const char* lockstep_top_k(const LockstepCall* call, const DLTensor* out, const DLTensor* logits) {
  return told(call, [&](const OpContext& context) {
    lockstep::top_k(context, view_of(out), view_of(logits));
  });
}

const char* lockstep_softmax_of(const LockstepCall* call, const DLTensor* out,
                                const DLTensor* logits, const DLTensor* index, int32_t normalised) {
  return told(call, [&](const OpContext& context) {
    lockstep::routing_weights(context, view_of(out), view_of(logits), view_of(index),
                              normalised != 0);
  });
}

const char* lockstep_expert_matmul(const LockstepCall* call, const DLTensor* out, const DLTensor* x,
                                   const DLTensor* index, const DLTensor* const* weights,
                                   int64_t experts) {
  return told(call, [&](const OpContext& context) {
    std::vector<TensorView> all;
    for (int64_t e = 0; e < experts; ++e) all.push_back(view_of(weights[e]));
    lockstep::expert_matmul(context, view_of(out), view_of(x), view_of(index), all);
  });
}

const char* lockstep_weighted_sum(const LockstepCall* call, const DLTensor* out, const DLTensor* x,
                                  const DLTensor* weights) {
  return told(call, [&](const OpContext& context) {
    lockstep::weighted_sum(context, view_of(out), view_of(x), view_of(weights));
  });
}

const char* lockstep_add_rms_norm(const LockstepCall* call, const DLTensor* out,
                                  const DLTensor* sum, const DLTensor* a, const DLTensor* b,
                                  const DLTensor* weight, float eps) {
  return told(call, [&](const OpContext& context) {
    lockstep::add(context, view_of(sum), view_of(a), view_of(b));
    lockstep::rms_norm(context, view_of(out), view_of(sum), view_of(weight), eps);
  });
}

const char* lockstep_qkv_matmul(const LockstepCall* call, const DLTensor* q, const DLTensor* k,
                                const DLTensor* v, const DLTensor* x,
                                const DLTensor* const weights[3], const DLTensor* const biases[3]) {
  const DLTensor* const outputs[] = {q, k, v};
  return told(call, [&](const OpContext& context) {
    for (int i = 0; i < 3; ++i)
      lockstep::matmul(context, view_of(outputs[i]), view_of(x), view_of(weights[i]),
                       view_of(biases[i]));
  });
}

const char* lockstep_qk_norm_rope_kv_write(const LockstepCall* call, const DLTensor* q_rope,
                                           const LockstepCache* cache, const DLTensor* q,
                                           const DLTensor* k, const DLTensor* v,
                                           const DLTensor* q_weight, const DLTensor* k_weight,
                                           float eps, const DLTensor* cos, const DLTensor* sin,
                                           const DLTensor* positions, const DLTensor* slots) {
  return told(call, [&](const OpContext& context) {
    const auto turned = [&](const TensorView& out, const DLTensor* in, const DLTensor* weight) {
      const Tensor normed(out.shape, out.dtype);
      TensorView x = view_of(in);
      if (weight != nullptr) {
        lockstep::rms_norm(context, normed, x, view_of(weight), eps);
        x = normed;
      }
      lockstep::rope(context, out, x, view_of(cos), view_of(sin), view_of(positions));
    };
    const TensorView keys = view_of(k);
    const Tensor k_rope(keys.shape, keys.dtype);
    turned(view_of(q_rope), q, q_weight);
    turned(k_rope, k, k_weight);
    lockstep::kv_write(context, cache_of(cache), k_rope, view_of(v), view_of(slots));
  });
}

const char* lockstep_gate_up_silu(const LockstepCall* call, const DLTensor* out, const DLTensor* x,
                                  const DLTensor* gate_weight, const DLTensor* up_weight) {
  return told(call, [&](const OpContext& context) {
    const TensorView act = view_of(out);
    const Tensor gate(act.shape, act.dtype), up(act.shape, act.dtype);
    lockstep::matmul(context, gate, view_of(x), view_of(gate_weight), {});
    lockstep::matmul(context, up, view_of(x), view_of(up_weight), {});
    lockstep::silu_mul(context, act, gate, up);
  });
}

}  // extern "C"
