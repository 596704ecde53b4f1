// Fused ops have the bits of their pieces, which have tests of their own, in what they give and in
// every tap.
#include "tests/kernels/cuda_samples.h"

namespace lockstep {
namespace {

class CudaFused : public CudaTest {
 protected:
  const FusedOps& fused() const { return ops_->fused; }

  void expect_sum_and_norm(DType dtype, int64_t rows, int64_t width, int64_t offset) const {
    SCOPED_TRACE(fmt::format("{} {} x {}, {} off", name_of(dtype), rows, width, offset));
    const Shape shape = {rows, width};
    Sample a(shape, dtype), b(shape, dtype, offset), weight({width}, dtype);
    Sample sum(shape, dtype), out(shape, dtype), whole_sum(shape, dtype), whole(shape, dtype);
    a.fill_normal(1);
    b.fill_normal(2);
    weight.fill_normal(3, 1, 1);
    run(ops_->add, sum, a, b);
    run(ops_->rms_norm, out, sum, weight, 1e-6f);
    run(fused().add_rms_norm, whole, AddNormInput{whole_sum, a, b, weight, 1e-6f});
    EXPECT_EQ(whole_sum.bits(), sum.bits());
    EXPECT_EQ(whole.bits(), out.bits());
    run(fused().add_rms_norm, whole, AddNormInput{a, a, b, weight, 1e-6f});
    EXPECT_EQ(a.bits(), sum.bits()) << "in place";
    EXPECT_EQ(whole.bits(), out.bits()) << "in place";
  }

  void expect_products(DType dtype, int64_t tokens, int64_t k, bool bias, int64_t offset) const {
    SCOPED_TRACE(fmt::format("{} {} tokens, k {}, bias {}, {} off", name_of(dtype), tokens, k, bias,
                             offset));
    Sample x({tokens, k}, dtype);
    x.fill_normal(1);
    std::vector<std::unique_ptr<Sample>> weights, biases, pieces, outs;
    std::vector<Linear> all;
    for (const int64_t n : {37, 8, 21}) {
      weights.push_back(std::make_unique<Sample>(Shape{n, k}, dtype, n == 8 ? offset : 0));
      biases.push_back(std::make_unique<Sample>(Shape{n}, dtype));
      pieces.push_back(std::make_unique<Sample>(Shape{tokens, n}, dtype));
      outs.push_back(std::make_unique<Sample>(Shape{tokens, n}, dtype));
      weights.back()->fill_normal(static_cast<unsigned>(n), 0.1);
      biases.back()->fill_normal(static_cast<unsigned>(n) + 1);
      const TensorView added = bias ? biases.back()->view() : TensorView{};
      run(ops_->matmul, *pieces.back(), x, *weights.back(), added);
      all.push_back({*outs.back(), *weights.back(), added});
    }
    run(fused().qkv_matmul, all, x, nullptr);
    for (size_t i = 0; i < all.size(); ++i) EXPECT_EQ(outs[i]->bits(), pieces[i]->bits()) << i;
  }

  void expect_gated(DType dtype, int64_t tokens, int64_t n, int64_t k, int64_t offset) const {
    SCOPED_TRACE(
        fmt::format("{} {} tokens, n {}, k {}, {} off", name_of(dtype), tokens, n, k, offset));
    const Shape shape = {tokens, n};
    Sample x({tokens, k}, dtype), gate_weight({n, k}, dtype), up_weight({n, k}, dtype, offset);
    x.fill_normal(1);
    gate_weight.fill_normal(2, 0.2);
    up_weight.fill_normal(3, 0.2);
    Sample gate(shape, dtype), up(shape, dtype), out(shape, dtype);
    run(ops_->matmul, gate, x, gate_weight, TensorView{});
    run(ops_->matmul, up, x, up_weight, TensorView{});
    run(ops_->silu_mul, out, gate, up);
    for (const bool taps : {false, true}) {
      Sample gate_tap(shape, dtype), up_tap(shape, dtype), whole(shape, dtype);
      run(fused().gate_up_silu, whole, x, gate_weight, up_weight,
          taps ? gate_tap.view() : TensorView{}, taps ? up_tap.view() : TensorView{}, nullptr);
      EXPECT_EQ(whole.bits(), out.bits()) << "taps " << taps;
      if (!taps) continue;
      EXPECT_EQ(gate_tap.bits(), gate.bits());
      EXPECT_EQ(up_tap.bits(), up.bits());
    }
  }
};

// The tensors that x is made of, by its pieces and by a matmul.
struct MadeOf {
  MadeOf(DType dtype, int64_t tokens, int64_t k, int64_t offset)
      : a({tokens, k}, dtype),
        b({tokens, k}, dtype, offset),
        weight({k}, dtype),
        sum({tokens, k}, dtype),
        x({tokens, k}, dtype),
        own_sum({tokens, k}, dtype),
        own_x({tokens, k}, dtype) {
    a.fill_normal(11);
    b.fill_normal(12);
    weight.fill_normal(13, 1, 1);
  }
  AddNormInput input() const { return {own_sum, a, b, weight, 1e-6f}; }
  void expect_same() const {
    EXPECT_EQ(own_sum.bits(), sum.bits());
    EXPECT_EQ(own_x.bits(), x.bits());
  }

  Sample a, b, weight, sum, x, own_sum, own_x;
};

// The arguments of `heads`, with room for what its pieces give and for what it gives at once.
struct Ragged {
  Ragged(DType dtype, int64_t tokens, int64_t heads, int64_t kv_heads, int64_t dim, bool norms)
      : q({tokens, heads, dim}, dtype),
        k({tokens, kv_heads, dim}, dtype),
        v({tokens, kv_heads, dim}, dtype),
        q_weight({dim}, dtype),
        k_weight({dim}, dtype),
        cos({50, dim / 2}, DType::f32),
        sin({50, dim / 2}, DType::f32),
        positions({tokens}, DType::i32),
        slots({tokens}, DType::i64),
        with_norms(norms) {
    unsigned seed = 0;
    for (Sample* sample : {&q, &k, &v, &q_weight, &k_weight, &cos, &sin})
      sample->fill_normal(++seed);
    for (int64_t t = 0; t < tokens; ++t) {
      positions.set(t, static_cast<double>(t * 19 % 50));
      slots.set(t, t % 5 == 2 ? -1 : static_cast<double>((t * 7 + 3) % (8 * 6)));
    }
  }
  struct Outputs {
    explicit Outputs(const Ragged& in)
        : q_norm(in.q.view().shape, in.q.view().dtype),
          k_norm(in.k.view().shape, in.q.view().dtype),
          q_rope(in.q.view().shape, in.q.view().dtype),
          k_rope(in.k.view().shape, in.q.view().dtype),
          cache_k({8, 6, in.k.view().shape[1], in.k.view().shape[2]}, in.q.view().dtype),
          cache_v({8, 6, in.k.view().shape[1], in.k.view().shape[2]}, in.q.view().dtype) {}
    Sample q_norm, k_norm, q_rope, k_rope, cache_k, cache_v;
  };
  QkNormRopeKvWrite heads(const Outputs& out, bool taps) const {
    const auto given = [](bool wanted, const Sample& sample) {
      return wanted ? sample.view() : TensorView{};
    };
    return {.q = q,
            .k = k,
            .v = v,
            .q_weight = given(with_norms, q_weight),
            .k_weight = given(with_norms, k_weight),
            .eps = 1e-6f,
            .cos = cos,
            .sin = sin,
            .positions = positions,
            .slots = slots,
            .q_rope = out.q_rope,
            .cache = {out.cache_k, out.cache_v},
            .q_norm = given(taps && with_norms, out.q_norm),
            .k_norm = given(taps && with_norms, out.k_norm),
            .k_rope = given(taps, out.k_rope)};
  }

  Sample q, k, v, q_weight, k_weight, cos, sin, positions, slots;
  bool with_norms;
};

TEST_F(CudaFused, AddRmsNormHasTheBitsOfItsPieces) {
  for (const DType dtype : kFloats)
    for (const int64_t rows : {1, 7, 300})
      for (const int64_t width : {5, 64, 256, 264, 300, 896, 1024, 5000})
        for (const int64_t offset : {0, 1}) expect_sum_and_norm(dtype, rows, width, offset);
}

TEST_F(CudaFused, MatmulsHaveTheBitsOfEach) {
  for (const DType dtype : kFloats)
    for (const int64_t tokens : {1, 2, 3, 4, 5, 7, 8, 9, 20})
      for (const int64_t k : {7, 64, 896, 1024, 2048, 3072, 5000, 5024})
        for (const bool bias : {false, true})
          for (const int64_t offset : {0, 1}) expect_products(dtype, tokens, k, bias, offset);
}

TEST_F(CudaFused, GatedHasTheBitsOfItsPieces) {
  for (const DType dtype : kFloats)
    for (const int64_t tokens : {1, 3, 4, 5, 8, 40})
      for (const auto& [n, k] : {std::pair<int64_t, int64_t>{1, 8},
                                 {45, 83},
                                 {130, 1024},
                                 {40, 2560},
                                 {24, 3000},
                                 {24, 3008}})
        for (const int64_t offset : {0, 1}) expect_gated(dtype, tokens, n, k, offset);
}

// One launch computes some of these x, and the others are computed before: see
// matmul_computes_norm.
TEST_F(CudaFused, ProductsThatMakeTheirOwnXHaveTheBitsOfThePieces) {
  for (const DType dtype : kFloats) {
    for (const int64_t tokens : {1, 2}) {
      for (const auto& [n, k] : {std::pair<int64_t, int64_t>{40, 64},
                                 {1, 264},
                                 {1501, 896},
                                 {2000, 1024},
                                 {1100, 512},
                                 {61, 2000},
                                 {7000, 300},
                                 {21, 5000}}) {
        for (const int64_t offset : {0, 1}) {
          SCOPED_TRACE(fmt::format("{} {} tokens, n {}, k {}, {} off", name_of(dtype), tokens, n, k,
                                   offset));
          const MadeOf in(dtype, tokens, k, offset);
          Sample first({n, k}, dtype), second({n, k}, dtype), bias({n}, dtype);
          first.fill_normal(1, 0.1);
          second.fill_normal(2, 0.1);
          bias.fill_normal(3);
          const Shape shape = {tokens, n};
          Sample one(shape, dtype), other(shape, dtype), both(shape, dtype);
          run(ops_->add, in.sum, in.a, in.b);
          run(ops_->rms_norm, in.x, in.sum, in.weight, 1e-6f);
          run(ops_->matmul, one, in.x, first, bias);
          run(ops_->matmul, other, in.x, second, TensorView{});
          const AddNormInput input = in.input();
          const Sample own_one(shape, dtype), own_other(shape, dtype), own_both(shape, dtype);
          run(fused().qkv_matmul,
              std::vector<Linear>{{own_one, first, bias}, {own_other, second, {}}}, in.own_x,
              &input);
          in.expect_same();
          EXPECT_EQ(own_one.bits(), one.bits());
          EXPECT_EQ(own_other.bits(), other.bits());

          run(ops_->matmul, one, in.x, first, TensorView{});
          run(ops_->silu_mul, both, one, other);
          const MadeOf again(dtype, tokens, k, offset);
          const AddNormInput made_again = again.input();
          run(fused().gate_up_silu, own_both, again.own_x, first, second, own_one, TensorView{},
              &made_again);
          EXPECT_EQ(again.own_sum.bits(), in.sum.bits());
          EXPECT_EQ(again.own_x.bits(), in.x.bits());
          EXPECT_EQ(own_one.bits(), one.bits());
          EXPECT_EQ(own_both.bits(), both.bits());
        }
      }
    }
  }
}

TEST_F(CudaFused, HeadsHaveTheBitsOfTheirPieces) {
  for (const DType dtype : kFloats) {
    for (const auto& [heads, kv_heads, dim] : {std::array<int64_t, 3>{4, 2, 16},
                                               {14, 2, 64},
                                               {3, 3, 24},
                                               {2, 1, 80},
                                               {16, 8, 128},
                                               {1, 1, 256}}) {
      for (const int64_t tokens : {1, 6, 33}) {
        for (const bool norms : {false, true}) {
          SCOPED_TRACE(fmt::format("{} {}/{} x {}, {} tokens, norms {}", name_of(dtype), heads,
                                   kv_heads, dim, tokens, norms));
          const Ragged in(dtype, tokens, heads, kv_heads, dim, norms);
          const Ragged::Outputs want(in);
          if (norms) {
            run(ops_->rms_norm, want.q_norm, in.q, in.q_weight, 1e-6f);
            run(ops_->rms_norm, want.k_norm, in.k, in.k_weight, 1e-6f);
          }
          const Sample &q = norms ? want.q_norm : in.q, &k = norms ? want.k_norm : in.k;
          run(ops_->rope, want.q_rope, q, in.cos, in.sin, in.positions);
          run(ops_->rope, want.k_rope, k, in.cos, in.sin, in.positions);
          run(ops_->kv_write, KvCache{want.cache_k, want.cache_v}, want.k_rope, in.v, in.slots);
          for (const bool taps : {false, true}) {
            const Ragged::Outputs got(in);
            run(fused().qk_norm_rope_kv_write, in.heads(got, taps));
            EXPECT_EQ(got.q_rope.bits(), want.q_rope.bits());
            EXPECT_EQ(got.cache_k.bits(), want.cache_k.bits());
            EXPECT_EQ(got.cache_v.bits(), want.cache_v.bits());
            if (!taps) continue;
            EXPECT_EQ(got.q_norm.bits(), want.q_norm.bits());
            EXPECT_EQ(got.k_norm.bits(), want.k_norm.bits());
            EXPECT_EQ(got.k_rope.bits(), want.k_rope.bits());
          }
        }
      }
    }
  }
}

TEST_F(CudaFused, HeadsReportWhatIsOutsideTheTablesAndThePool) {
  Ragged in(DType::bf16, 3, 2, 1, 16, true);
  const Ragged::Outputs out(in);
  in.positions.set(1, 50);
  expect_refused([&] { run(fused().qk_norm_rope_kv_write, in.heads(out, true)); },
                 {"rope", "50 rows", "position 50 of token 1"});
  EXPECT_TRUE(std::isfinite(out.q_rope.values()[0]));
  EXPECT_TRUE(std::isnan(out.q_rope.values()[32]));
  in.positions.set(1, 0);
  in.slots.set(1, 48);
  expect_refused([&] { run(fused().qk_norm_rope_kv_write, in.heads(out, false)); }, {"48"});
}

TEST_F(CudaFused, OfNoTokensIsNothing) {
  const Ragged in(DType::f32, 0, 2, 1, 16, true);
  const Ragged::Outputs out(in);
  run(fused().qk_norm_rope_kv_write, in.heads(out, true));
  Sample x({0, 8}, DType::f32), weight({4, 8}, DType::f32), to({0, 4}, DType::f32);
  Sample gain({8}, DType::f32);
  run(fused().add_rms_norm, x, AddNormInput{x, x, x, gain, 1e-6f});
  run(fused().qkv_matmul, std::vector<Linear>{{to, weight, {}}}, x, nullptr);
  run(fused().qkv_matmul, std::vector<Linear>{}, x, nullptr);
  run(fused().gate_up_silu, to, x, weight, weight, TensorView{}, TensorView{}, nullptr);
}

TEST_F(CudaFused, RefuseWhatDoesNotFit) {
  Sample x({2, 8}, DType::f32), half({2, 8}, DType::bf16), weight({4, 8}, DType::f32);
  Sample to({2, 4}, DType::f32), wide({2, 5}, DType::f32), gain({8}, DType::f32);
  expect_refused(
      [&] {
        run(fused().add_rms_norm, x, AddNormInput{x, x, half, gain});
      },
      {"add", "bf16"});
  expect_refused(
      [&] {
        run(fused().add_rms_norm, x, AddNormInput{x, x, x, weight});
      },
      {"rms_norm"});
  expect_refused([&] { fused().add_rms_norm({}, x, {x, x, x, gain}); }, {"CUDA device", "CPU"});
  const AddNormInput in_place = {x, x, x, gain}, other_sum = {half, x, x, gain};
  for (const auto& [input, words] : {std::pair(&in_place, "apart"), {&other_sum, "add"}}) {
    expect_refused(
        [&] {
          run(fused().qkv_matmul, std::vector<Linear>{{to, weight, {}}}, x, input);
        },
        {words});
    expect_refused(
        [&] {
          run(fused().gate_up_silu, to, x, weight, weight, TensorView{}, TensorView{}, input);
        },
        {words});
  }
  expect_refused(
      [&] {
        run(fused().qkv_matmul, std::vector<Linear>{{wide, weight, {}}}, x, nullptr);
      },
      {"matmul", "out", "[2, 5]"});
  expect_refused(
      [&] { run(fused().gate_up_silu, to, x, weight, weight, wide, TensorView{}, nullptr); },
      {"matmul", "out", "[2, 5]"});
  expect_refused([&] { run(fused().gate_up_silu, wide, x, weight, weight, to, to, nullptr); },
                 {"[2, 5]"});
  const Ragged in(DType::f32, 2, 2, 1, 16, true), other(DType::f32, 3, 2, 1, 16, true);
  const Ragged::Outputs out(in), others(other);
  QkNormRopeKvWrite heads = in.heads(out, true);
  heads.k_norm = others.k_norm;
  expect_refused([&] { run(fused().qk_norm_rope_kv_write, heads); }, {"rms_norm"});
  heads = in.heads(out, true);
  heads.slots = other.slots;
  expect_refused([&] { run(fused().qk_norm_rope_kv_write, heads); }, {"kv_write"});
}

}  // namespace
}  // namespace lockstep
