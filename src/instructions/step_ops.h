#pragma once

#include "src/instructions/pass_tensors.h"
#include "src/schedule/schedule.h"

namespace lockstep {

// The opcodes, computed on the CPU: each call one instruction, on its own rows of all tokens of the
// pass, by the model's table of ops. Products, norms and RoPE round where one op a line rounds
// them; whoever holds row 0 stores the norm that it computed for itself. Several threads may
// compute different instructions of one pass. Borrows all for the pass. Rounds to the run's dtype
// where the ops do; attention alone is of this class's own, in fp64 to its stores: the softmax of a
// share is normalised and stored in fp32, beside the natural logarithm of its sum, and merged by
// that.
class StepOps {
 public:
  StepOps(const PassParts& pass, const Schedule& schedule, PassTensors& tensors)
      : pass_(pass), config_(pass.model.config()), schedule_(schedule), t_(tensors) {}

  // Throws what the ops throw. The instructions that it waits for must have ended: nothing here
  // looks whether they have.
  void compute(const Instruction& in) const;

 private:
  void norm_qkv_rope_append(const Instruction& in) const;
  void query_head(const PassTensors::Layer& layer, const TensorView& norm, int64_t head) const;
  void key_head(const PassTensors::Layer& layer, const TensorView& norm, int64_t head) const;
  void value_head(const PassTensors::Layer& layer, const TensorView& norm, int64_t head) const;
  void partial_attention(const Instruction& in) const;
  void attend(const Instruction& in, int64_t kv_head) const;
  void attention_reduction(const Instruction& in) const;
  void merge(const Instruction& in, int64_t kv_head) const;
  void o_residual(const Instruction& in) const;
  void norm_gate_up_silu(const Instruction& in) const;
  void down_residual(const Instruction& in) const;
  void norm_route(const Instruction& in) const;
  void expert_gate_up_silu(const Instruction& in) const;
  void expert_down(const Instruction& in) const;
  void combine_residual(const Instruction& in) const;
  void norm_head(const Instruction& in) const;

  OpContext at(PointName name, int layer) const {
    OpContext context = pass_.model.context(name.point, layer);
    context.threads = nullptr;  // the queue's own thread
    return context;
  }
  int layer_of(const PassTensors::Layer& layer) const {
    return static_cast<int>(&layer - t_.layers.data());
  }
  int64_t tokens() const { return pass_.batch.size(); }
  Tensor fresh(int64_t rows, int64_t width) const {
    return {{rows, width}, pass_.model.dtype(), Device::cpu};
  }
  // A norm of the whole stream, computed for one instruction; stored too where it holds row 0, but
  // in no empty tensor: of experts the router's instruction stores it.
  Tensor norm_for(const Instruction& in, const OpContext& context, const TensorView& stream,
                  const TensorView& weight, const TensorView& stored) const;
  // Rows [begin, end) of a linear op.
  Tensor product(const OpContext& context, const TensorView& x, const WeightView& weight,
                 const TensorView& bias, int64_t begin, int64_t end) const;
  // Rows [begin, end) of a linear op, of the expert that each token has for that choice.
  Tensor expert_product(const OpContext& context, const TensorView& x, const TensorView& experts,
                        int64_t choice, const std::vector<TensorView>& weights, int64_t begin,
                        int64_t end) const;
  // One head after its norm and RoPE, stored at each step.
  Tensor roped(const PassTensors::Layer& layer, const TensorView& head, bool of_q,
               int64_t place) const;
  void add_to_stream(PointName name, const Instruction& in, const TensorView& sum,
                     const TensorView& stream, const TensorView& branch) const;
  // The place of a query head in attn.lse, and so that of its first number in attn.partial.
  int64_t share_place(int64_t share, int64_t token, int64_t head) const {
    return (token * schedule_.kv_shares + share) * config_.heads + head;
  }

  const PassParts& pass_;
  const ModelConfig& config_;
  const Schedule& schedule_;
  PassTensors& t_;
};

}  // namespace lockstep
