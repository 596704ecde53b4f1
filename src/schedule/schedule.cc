// The effects of an instruction follow from its opcode, layer, rows and share, so that a list which
// gives these alone can be checked. Norms need all of the stream; products need all of their
// input's row; each writes the rows that it holds.
#include "src/schedule/schedule.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/base/check.h"

namespace lockstep {
namespace {

// The numbers that an instruction may hold: of the rows of its weights, or its KV heads.
int64_t extent_of(const ScheduledModel& m, Opcode opcode) {
  switch (opcode) {
    case Opcode::norm_qkv_rope_append:
      return (m.heads + 2 * m.kv_heads) * m.head_dim;
    case Opcode::partial_attention:
    case Opcode::attention_reduction:
      return m.kv_heads;
    case Opcode::o_residual:
    case Opcode::down_residual:
      return m.hidden;
    case Opcode::combine_residual:
      return m.hidden;
    case Opcode::norm_gate_up_silu:
      return m.intermediate;
    case Opcode::norm_route:
      return m.experts;
    case Opcode::expert_gate_up_silu:
      return m.chosen * m.expert_intermediate;
    case Opcode::expert_down:
      return m.chosen * m.hidden;
    case Opcode::norm_head:
      return m.vocab;
    case Opcode::other:
      break;
  }
  return 0;
}

enum class Half : uint8_t { any, mlp, experts };

// Says what a layer must have in its second half for the opcode.
Half half_of(Opcode opcode) {
  switch (opcode) {
    case Opcode::norm_gate_up_silu:
    case Opcode::down_residual:
      return Half::mlp;
    case Opcode::norm_route:
    case Opcode::expert_gate_up_silu:
    case Opcode::expert_down:
    case Opcode::combine_residual:
      return Half::experts;
    default:
      return Half::any;
  }
}

// The effects of one instruction, collected.
class EffectsMaker {
 public:
  EffectsMaker(const Schedule& schedule, const Instruction& instruction)
      : schedule_(schedule), in_(instruction), m_(schedule.model) {}

  Effects made() {
    switch (in_.opcode) {
      case Opcode::norm_qkv_rope_append:
        qkv();
        break;
      case Opcode::partial_attention:
        partial_attention();
        break;
      case Opcode::attention_reduction:
        attention_reduction();
        break;
      case Opcode::o_residual:
        read("attn.out", 0, m_.heads * m_.head_dim);
        read_stream(in_.begin, in_.end);
        write("attn.residual", in_.begin, in_.end);
        break;
      case Opcode::norm_gate_up_silu:
        read("attn.residual", 0, m_.hidden);
        write("mlp.act", in_.begin, in_.end);
        break;
      case Opcode::down_residual:
        down();
        break;
      case Opcode::norm_route:
        read("attn.residual", 0, m_.hidden);
        write("mlp.experts", 0, m_.chosen);
        write("mlp.weights", 0, m_.chosen);
        break;
      case Opcode::expert_gate_up_silu:
        read("attn.residual", 0, m_.hidden);
        read_choices(m_.expert_intermediate);
        write("mlp.expert_act", in_.begin, in_.end);
        break;
      case Opcode::expert_down:
        expert_down();
        break;
      case Opcode::combine_residual:
        combine();
        break;
      case Opcode::norm_head:
        spans_.reads.push_back({last_stream(m_.layers), 0, m_.hidden});
        write("logits", in_.begin, in_.end);
        break;
      case Opcode::other:
        break;
    }
    return std::move(spans_);
  }

 private:
  int place(std::string_view point) const {
    return schedule_.tensor(point, point == "logits" ? -1 : in_.layer);
  }
  void read(std::string_view point, int64_t begin, int64_t end) {
    spans_.reads.push_back({place(point), begin, end});
  }
  void write(std::string_view point, int64_t begin, int64_t end) {
    spans_.writes.push_back({place(point), begin, end});
  }
  // The stream that enters a layer.
  int last_stream(int64_t layer) const {
    return layer == 0 ? schedule_.tensor("embed", -1)
                      : schedule_.tensor("mlp.residual", static_cast<int>(layer) - 1);
  }
  void read_stream(int64_t begin, int64_t end) {
    spans_.reads.push_back({last_stream(in_.layer), begin, end});
  }

  // The norm needs the whole row. Rows of the stacked q|k|v weights: those of q become attn.q_rope,
  // those of k and v are appended to the cache.
  void qkv() {
    read_stream(0, m_.hidden);
    const int64_t of_q = m_.heads * m_.head_dim;
    if (in_.begin < of_q) write("attn.q_rope", in_.begin, std::min(in_.end, of_q));
    if (in_.end > of_q) write("attn.kv", std::max(in_.begin, of_q) - of_q, in_.end - of_q);
  }

  // Each KV head's part of the partial results holds the shares one after another.
  void partial_attention() {
    const int64_t head = m_.head_dim, group = m_.group(), shares = schedule_.kv_shares;
    read("attn.q_rope", in_.begin * group * head, in_.end * group * head);
    read("attn.kv", in_.begin * head, in_.end * head);
    read("attn.kv", (m_.kv_heads + in_.begin) * head, (m_.kv_heads + in_.end) * head);
    for (int64_t h = in_.begin; h < in_.end; ++h) {
      const int64_t at = (h * shares + in_.share) * group;
      write("attn.partial", at * head, (at + group) * head);
      write("attn.lse", at, at + group);
    }
  }

  void attention_reduction() {
    const int64_t head = m_.head_dim, group = m_.group(), of_head = schedule_.kv_shares * group;
    read("attn.partial", in_.begin * of_head * head, in_.end * of_head * head);
    read("attn.lse", in_.begin * of_head, in_.end * of_head);
    write("attn.out", in_.begin * group * head, in_.end * group * head);
  }

  // Shares of a sum are added to the stream where it lies, and none of them reads it.
  void down() {
    const int64_t shares = schedule_.down_shares;
    read("mlp.act", m_.intermediate * in_.share / shares,
         m_.intermediate * (in_.share + 1) / shares);
    if (shares == 1) read("attn.residual", in_.begin, in_.end);
    write("mlp.residual", in_.begin, in_.end);
  }

  // Reads, and returns, the choices of whose rows it holds some, where each has so many.
  Span read_choices(int64_t rows) {
    read("mlp.experts", in_.begin / rows, (in_.end - 1) / rows + 1);
    return spans_.reads.back();
  }

  void expert_down() {
    const Span held = read_choices(m_.hidden);
    read("mlp.expert_act", held.begin * m_.expert_intermediate, held.end * m_.expert_intermediate);
    write("mlp.expert_down", in_.begin, in_.end);
  }

  void combine() {
    read("mlp.weights", 0, m_.chosen);
    for (int64_t choice = 0; choice < m_.chosen; ++choice)
      read("mlp.expert_down", choice * m_.hidden + in_.begin, choice * m_.hidden + in_.end);
    read("attn.residual", in_.begin, in_.end);
    write("mlp.residual", in_.begin, in_.end);
  }

  const Schedule& schedule_;
  const Instruction& in_;
  const ScheduledModel& m_;
  Effects spans_;
};

}  // namespace

int Schedule::tensor(std::string_view point, int layer) const {
  for (int i = 0; i < std::ssize(tensors); ++i)
    if (tensors[i].layer == layer && tensors[i].point == point) return i;
  fail("the schedule has no tensor {}{}", point,
       layer < 0 ? "" : fmt::format(" of layer {}", layer));
}

std::string said(const Instruction& i) {
  std::string text = fmt::format("instruction {} ({}", i.id, i.name);
  if (i.layer >= 0) text += fmt::format(", layer {}", i.layer);
  const bool of_heads =
      i.opcode == Opcode::partial_attention || i.opcode == Opcode::attention_reduction;
  if (i.end == i.begin + 1)
    text += fmt::format(", {} {}", of_heads ? "KV head" : "row", i.begin);
  else if (i.end > i.begin)
    text += fmt::format(", {} {}..{}", of_heads ? "KV heads" : "rows", i.begin, i.end - 1);
  if (i.opcode == Opcode::partial_attention || (i.opcode == Opcode::down_residual && i.share > 0))
    text += fmt::format(", share {}", i.share);
  return text + ")";
}

std::string misfit_of(const Schedule& schedule, const Instruction& in) {
  if (in.opcode == Opcode::other) return "";
  const ScheduledModel& m = schedule.model;
  const int64_t extent = extent_of(m, in.opcode);
  if (in.begin < 0 || in.begin >= in.end || in.end > extent)
    return fmt::format("instruction {} ({}) holds [{}, {}), the model has {} there", in.id, in.name,
                       in.begin, in.end, extent);
  if (in.opcode != Opcode::norm_head && (in.layer < 0 || in.layer >= m.layers))
    return fmt::format("instruction {} ({}) is of layer {}, the model has {}", in.id, in.name,
                       in.layer, m.layers);
  if (const Half half = half_of(in.opcode);
      half != Half::any && (half == Half::experts) != m.has_experts(in.layer))
    return fmt::format("instruction {} ({}) is of layer {}, which has {}", in.id, in.name, in.layer,
                       half == Half::mlp ? "experts in place of an MLP" : "no experts");
  if (in.opcode == Opcode::norm_route && in.end - in.begin != extent)
    return fmt::format("instruction {} ({}) holds [{}, {}) of {} experts: a choice is among all",
                       in.id, in.name, in.begin, in.end, extent);
  const int64_t shares = in.opcode == Opcode::partial_attention ? schedule.kv_shares
                         : in.opcode == Opcode::down_residual   ? schedule.down_shares
                                                                : 1;
  if (in.share < 0 || in.share >= shares)
    return fmt::format("instruction {} ({}) is of share {}, there are {}", in.id, in.name, in.share,
                       shares);
  return "";
}

Effects effects_of(const Schedule& schedule, const Instruction& in) {
  const std::string misfit = misfit_of(schedule, in);
  check(misfit.empty(), "{}", misfit);
  return EffectsMaker(schedule, in).made();
}

// Temporaries of the same kind share one memory over all layers, so that a layer that runs ahead
// overwrites one that is late, as it would on the device; each layer's cache is its own.
std::vector<ScheduledTensor> tensors_of(const ScheduledModel& m, int64_t kv_shares,
                                        int64_t down_shares) {
  std::vector<ScheduledTensor> all;
  all.push_back({"embed", -1, m.hidden, 0, /*given=*/true, "stream"});
  const int64_t heads = m.heads * m.head_dim;
  for (int i = 0; i < m.layers; ++i) {
    all.push_back({"attn.q_rope", i, heads, 0, false, "q"});
    all.push_back(
        {"attn.kv", i, 2 * m.kv_heads * m.head_dim, 0, false, fmt::format("cache {}", i)});
    all.push_back({"attn.partial", i, heads * kv_shares, 0, false, "partial"});
    all.push_back({"attn.lse", i, m.heads * kv_shares, 0, false, "lse"});
    all.push_back({"attn.out", i, heads, 0, false, "heads"});
    all.push_back({"attn.residual", i, m.hidden, 0, false, "stream"});
    if (m.has_experts(i)) {
      all.push_back({"mlp.experts", i, m.chosen, 0, false, "choices"});
      all.push_back({"mlp.weights", i, m.chosen, 0, false, "weights"});
      all.push_back(
          {"mlp.expert_act", i, m.chosen * m.expert_intermediate, 0, false, "expert act"});
      all.push_back({"mlp.expert_down", i, m.chosen * m.hidden, 0, false, "expert down"});
    } else {
      all.push_back({"mlp.act", i, m.intermediate, 0, false, "act"});
    }
    all.push_back(
        {"mlp.residual", i, m.hidden, m.has_experts(i) ? 0 : down_shares, false, "stream"});
  }
  all.push_back({"logits", -1, m.vocab, 0, false, "logits"});
  return all;
}

}  // namespace lockstep
