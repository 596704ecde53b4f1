// A model calls fused ops where its table has them, shows all that lies inside of them, and does
// without those of which a piece was replaced. The fused ops are made of the CPU's pieces here.
#include "kernels/fused.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <map>

#include "tests/fixtures.h"
#include "tests/model_label.h"

namespace lockstep {
namespace {

class Fused : public testing::TestWithParam<const char*> {
 protected:
  // The CPU's table with fused ops that count their calls and the taps that they are given.
  Ops table() {
    static const Ops pieces = cpu_ops();
    Ops ops = pieces;
    FusedOps& fused = ops.fused;
    fused.pieces = &pieces;
    fused.add_rms_norm = [this](const OpContext& context, TensorView out,
                                const AddNormInput& made) {
      ++calls_["add_rms_norm"];
      make(context, out, made);
    };
    fused.qkv_matmul = [this](const OpContext& context, std::span<const Linear> all, TensorView x,
                              const AddNormInput* made) {
      ++calls_["qkv_matmul"];
      defer_to_matmul(context, x, made);
      for (const Linear& one : all) matmul(context, one.out, x, one.weight, one.bias);
    };
    fused.qk_norm_rope_kv_write = [this](const OpContext& context, const QkNormRopeKvWrite& heads) {
      pass(context, heads);
    };
    fused.gate_up_silu = [this](const OpContext& context, TensorView out, TensorView x,
                                WeightView gate_weight, WeightView up_weight, TensorView gate,
                                TensorView up, const AddNormInput* made) {
      ++calls_["gate_up_silu"];
      defer_to_matmul(context, x, made);
      const Tensor own_gate(out.shape, out.dtype), own_up(out.shape, out.dtype);
      gate = tap(gate, own_gate);
      up = tap(up, own_up);
      matmul(context, gate, x, gate_weight, {});
      matmul(context, up, x, up_weight, {});
      silu_mul(context, out, gate, up);
    };
    return ops;
  }

  static void make(const OpContext& context, TensorView x, const AddNormInput& made) {
    add(context, made.sum, made.a, made.b);
    rms_norm(context, x, made.sum, made.weight, made.eps);
  }
  void defer_to_matmul(const OpContext& context, TensorView x, const AddNormInput* made) {
    if (made == nullptr) return;
    ++left_to_products_;
    // Their blocks read what is added while the first one writes the sum.
    EXPECT_NE(made->sum.data, made->a.data);
    EXPECT_NE(made->sum.data, made->b.data);
    make(context, x, *made);
  }

  void pass(const OpContext& context, const QkNormRopeKvWrite& h) {
    ++calls_["qk_norm_rope_kv_write"];
    const auto like = [](const TensorView& x) { return Tensor(x.shape, x.dtype); };
    const Tensor own_q = like(h.q), own_k = like(h.k), own_rope = like(h.k);
    TensorView q = h.q, k = h.k;
    if (!h.q_weight.empty()) {
      rms_norm(context, q = tap(h.q_norm, own_q), h.q, h.q_weight, h.eps);
      rms_norm(context, k = tap(h.k_norm, own_k), h.k, h.k_weight, h.eps);
    }
    const TensorView k_rope = tap(h.k_rope, own_rope);
    rope(context, h.q_rope, q, h.cos, h.sin, h.positions);
    rope(context, k_rope, k, h.cos, h.sin, h.positions);
    kv_write(context, h.cache, k_rope, h.v, h.slots);
  }
  const TensorView& tap(const TensorView& given, const TensorView& own) {
    if (!given.empty()) ++taps_;
    return given.empty() ? own : given;
  }

  int64_t dense_layers() const {  // those without experts
    int64_t dense = 0;
    for (int layer = 0; layer < checkpoint_.config().layers; ++layer)
      dense += checkpoint_.config().experts.in(layer) ? 0 : 1;
    return dense;
  }
  std::vector<Request> requests() const {
    return {{.prompt = some_tokens(9, checkpoint_.config().vocab), .max_new = 3},
            {.prompt = some_tokens(4, checkpoint_.config().vocab, 2), .max_new = 2}};
  }
  void expect_same(const Served& got) const {
    const Served want = serve(checkpoint_, {.dtype = DType::bf16}, requests());
    ASSERT_EQ(got.passes.size(), want.passes.size());
    for (size_t p = 0; p < want.passes.size(); ++p) {
      const auto &seen = got.passes[p].tensors, &wanted = want.passes[p].tensors;
      ASSERT_EQ(seen.size(), wanted.size());
      for (size_t i = 0; i < wanted.size(); ++i) {
        EXPECT_EQ(seen[i].point, wanted[i].point);
        EXPECT_EQ(seen[i].layer, wanted[i].layer);
        EXPECT_EQ(seen[i].digest.hash, wanted[i].digest.hash) << wanted[i].point->name;
      }
    }
  }

  Checkpoint checkpoint_ = Checkpoint::open(data_path(GetParam()));
  std::map<std::string, int64_t> calls_;
  int64_t taps_ = 0;
  int64_t left_to_products_ = 0;  // norms and their sums
};

TEST_P(Fused, ShowEveryPointInTheOrderOfThePieces) {
  expect_same(serve(checkpoint_, {.dtype = DType::bf16}, requests(), table()));
  const int64_t layers = 3 * checkpoint_.config().layers;  // of three passes
  // Products make what they take themselves, but for the first norm and those before experts and
  // the head.
  const int64_t experts = layers - 3 * dense_layers();
  EXPECT_EQ(calls_["add_rms_norm"], experts + 3);
  EXPECT_EQ(left_to_products_, 2 * layers - experts - 3);
  EXPECT_EQ(calls_["qkv_matmul"], layers);
  EXPECT_EQ(calls_["qk_norm_rope_kv_write"], layers);
  EXPECT_EQ(calls_["gate_up_silu"], 3 * dense_layers());
}

TEST_P(Fused, GetNoTapsThatNobodyWants) {
  Engine engine(checkpoint_, table(), {.dtype = DType::bf16, .pages = 4});
  engine.submit(requests()[0]);
  Recorder recorder(Selection("attn.k_rope", "", "", ""), true, [](const Pass&) {});
  Probe probe(&recorder);
  EXPECT_TRUE(engine.step(probe));
  EXPECT_EQ(taps_, checkpoint_.config().layers);
  Probe off;
  EXPECT_TRUE(engine.step(off));
  EXPECT_EQ(taps_, checkpoint_.config().layers);
}

// A seeded fault, a user's kernel and a substitution are each a function in the place of a piece.
TEST_P(Fused, GiveWayToWhatReplacesAPiece) {
  const auto calls_with = [&](const auto& change) {
    Ops ops = table();
    change(ops);
    calls_.clear();
    expect_same(serve(checkpoint_, {.dtype = DType::bf16}, requests(), ops));
    std::string left;
    for (const auto& [name, count] : calls_)
      if (count > 0) left += name + " ";
    return left;
  };
  const auto wrapped = [](auto member) {
    return [member](Ops& ops) {
      ops.*member = [inner = ops.*member](const auto&... in) { inner(in...); };
    };
  };
  const std::string gate_up_silu = dense_layers() == 0 ? "" : "gate_up_silu ";
  EXPECT_EQ(calls_with([](Ops&) {}),
            "add_rms_norm " + gate_up_silu + "qk_norm_rope_kv_write qkv_matmul ");
  EXPECT_EQ(calls_with(wrapped(&Ops::add)), gate_up_silu + "qk_norm_rope_kv_write qkv_matmul ");
  EXPECT_EQ(calls_with(wrapped(&Ops::rms_norm)), gate_up_silu + "qkv_matmul ");
  EXPECT_EQ(calls_with(wrapped(&Ops::rope)), "add_rms_norm " + gate_up_silu + "qkv_matmul ");
  EXPECT_EQ(calls_with(wrapped(&Ops::kv_write)), "add_rms_norm " + gate_up_silu + "qkv_matmul ");
  EXPECT_EQ(calls_with(wrapped(&Ops::matmul)), "add_rms_norm qk_norm_rope_kv_write ");
  EXPECT_EQ(calls_with(wrapped(&Ops::silu_mul)), "add_rms_norm qk_norm_rope_kv_write qkv_matmul ");
  EXPECT_EQ(calls_with(wrapped(&Ops::argmax)),
            "add_rms_norm " + gate_up_silu + "qk_norm_rope_kv_write qkv_matmul ");
}

// The next piece must be given what such a sink makes of a tensor.
TEST_P(Fused, GiveWayToASinkThatWrites) {
  struct Writer final : Sink {
    bool writes() const override { return true; }
    bool wants(const Point&, int) const override { return false; }
    void begin(const PassInfo&) override {}
    void record(const Record&) override {}
    void end() override {}
  } writer;
  Engine engine(checkpoint_, table(), {.pages = 4});
  engine.submit(requests()[0]);
  Probe probe(&writer);
  EXPECT_TRUE(engine.step(probe));
  EXPECT_TRUE(calls_.empty());
}

INSTANTIATE_TEST_SUITE_P(Models, Fused,
                         testing::Values("bard-qwen3", "bard-qwen2.5", "tiny/qwen3-moe"),
                         model_label);

}  // namespace
}  // namespace lockstep
