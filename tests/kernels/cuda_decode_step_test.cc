// Every tensor of a decode step against fp64, each on the inputs that the step itself had.
#include <chrono>
#include <numeric>

#include "kernels/decode_step.h"
#include "tests/kernels/cuda_samples.h"

namespace lockstep {
namespace {

struct Sizes {
  const char* name;
  int64_t hidden, heads, kv_heads, dim, inner, layers, vocab;
  bool qwen3;  // norms of heads and no biases
  int64_t q() const { return heads * dim; }
  int64_t kv() const { return kv_heads * dim; }
};
constexpr Sizes kBard = {"bard", 192, 6, 2, 64, 576, 3, 512, true};
constexpr Sizes kBard25 = {"bard 2.5", 192, 6, 2, 64, 576, 3, 512, false};
constexpr Sizes k06B = {"Qwen3-0.6B", 1024, 16, 8, 128, 3072, 2, 4096, true};
constexpr Sizes k05B = {"Qwen2.5-0.5B", 896, 14, 2, 64, 4864, 2, 4096, false};
constexpr Sizes k17B = {"Qwen3-1.7B", 2048, 16, 8, 128, 6144, 1, 1024, true};
constexpr Sizes k4B = {"Qwen3-4B", 2560, 32, 8, 128, 9728, 1, 1024, true};
constexpr Sizes k8B = {"Qwen3-8B", 4096, 32, 8, 128, 12288, 1, 1024, true};

using Values = std::vector<double>;

// A tensor on the device, with what it was filled with as fp64.
struct Far {
  Tensor tensor;
  Values values;
  operator TensorView() const { return tensor.view(); }
  // What the device has now.
  Values now() const {
    const Tensor home = copy_on(Device::cpu, tensor);
    Values out(static_cast<size_t>(home.view().count()));
    widen(home.view(), 0, out);
    return out;
  }
};

Far far(const Shape& shape, DType dtype, const Values& values) {
  const Tensor home(shape, dtype);
  for (int64_t i = 0; i < shape.count(); ++i) {
    const double x = values[static_cast<size_t>(i)];
    if (dtype == DType::bf16)
      home.as<BFloat16>()[i] = from_float<BFloat16>(static_cast<float>(x));
    else if (dtype == DType::f32)
      home.as<float>()[i] = static_cast<float>(x);
    else if (dtype == DType::i64)
      home.as<int64_t>()[i] = static_cast<int64_t>(x);
    else
      home.as<int32_t>()[i] = static_cast<int32_t>(x);
  }
  Far made{copy_on(cuda_device(), home), Values(values.size())};
  widen(home.view(), 0, made.values);
  return made;
}

Far random_far(const Shape& shape, unsigned seed, double spread, double mean = 0) {
  std::minstd_rand random(seed + 1);
  std::vector<double> table(4096);
  std::normal_distribution<double> normal(mean, spread);
  for (double& x : table) x = normal(random);
  Values values(static_cast<size_t>(shape.count()));
  for (double& x : values) x = table[random() % table.size()];
  return far(shape, DType::bf16, values);
}

// Memory that nothing has been written to: NaN.
Far unwritten(const Shape& shape) {
  return far(shape, DType::bf16, Values(static_cast<size_t>(shape.count()), std::nan("")));
}

struct LayerData {
  LayerData(const Sizes& s, int64_t rows, int64_t pages, int64_t page, unsigned seed) {
    const auto matrix = [&](int64_t n, int64_t k) {
      return random_far({n, k}, seed += 7, 1 / std::sqrt(k));
    };
    q = matrix(s.q(), s.hidden), k = matrix(s.kv(), s.hidden), v = matrix(s.kv(), s.hidden);
    o = matrix(s.hidden, s.q()), down = matrix(s.hidden, s.inner);
    gate = matrix(s.inner, s.hidden), up = matrix(s.inner, s.hidden);
    attn_norm = random_far({s.hidden}, ++seed, 0.2, 1);
    mlp_norm = random_far({s.hidden}, ++seed, 0.2, 1);
    if (s.qwen3) {
      q_norm = random_far({s.dim}, ++seed, 0.2, 1), k_norm = random_far({s.dim}, ++seed, 0.2, 1);
    } else {
      q_bias = random_far({s.q()}, ++seed, 1), k_bias = random_far({s.kv()}, ++seed, 1);
      v_bias = random_far({s.kv()}, ++seed, 1);
    }
    const Shape pool = {pages, page, s.kv_heads, s.dim};
    cache_k = random_far(pool, ++seed, 1), cache_v = random_far(pool, ++seed, 1);
    for (auto& [out, width] : outs(s)) *out = unwritten({rows, width});
  }
  std::vector<std::pair<Far*, int64_t>> outs(const Sizes& s) {
    return {{&norm, s.hidden},    {&q_out, s.q()},     {&k_out, s.kv()},      {&v_out, s.kv()},
            {&q_normed, s.q()},   {&k_normed, s.kv()}, {&q_rope, s.q()},      {&k_rope, s.kv()},
            {&attention, s.q()},  {&o_out, s.hidden},  {&residual, s.hidden}, {&normed, s.hidden},
            {&gate_out, s.inner}, {&up_out, s.inner},  {&act, s.inner},       {&down_out, s.hidden},
            {&stream, s.hidden}};
  }
  DecodeLayer step() const {
    DecodeLayer l;
    l.attn_norm = attn_norm, l.mlp_norm = mlp_norm, l.q = q, l.k = k, l.v = v, l.o = o;
    l.q_bias = q_bias, l.k_bias = k_bias, l.v_bias = v_bias, l.q_norm = q_norm, l.k_norm = k_norm;
    l.gate = gate, l.up = up, l.down = down, l.cache = {cache_k, cache_v};
    l.norm_out = norm, l.q_out = q_out, l.k_out = k_out, l.v_out = v_out;
    if (!l.q_norm.empty()) l.q_norm_out = q_normed, l.k_norm_out = k_normed;
    l.q_rope_out = q_rope, l.k_rope_out = k_rope, l.attention_out = attention, l.o_out = o_out;
    l.attn_residual_out = residual, l.mlp_norm_out = normed, l.gate_out = gate_out;
    l.up_out = up_out, l.act_out = act, l.down_out = down_out, l.mlp_residual_out = stream;
    return l;
  }
  Far attn_norm, mlp_norm, q, k, v, o, q_bias, k_bias, v_bias, q_norm, k_norm, gate, up, down;
  Far cache_k, cache_v;
  Far norm, q_out, k_out, v_out, q_normed, k_normed, q_rope, k_rope, attention, o_out, residual;
  Far normed, gate_out, up_out, act, down_out, stream;
};

// A step of some rows over caches in pages of no order.
class StepCase {
 public:
  StepCase(const Sizes& sizes, std::vector<int64_t> contexts, int64_t page = 16,
           bool with_packed = true)
      : s_(sizes),
        contexts_(std::move(contexts)),
        rows_(std::ssize(contexts_)),
        page_(page),
        with_packed_(with_packed) {
    int64_t width = 0;
    for (const int64_t context : contexts_)
      width = std::max(width, (context + page - 1) / page + 1);
    const int64_t pages = rows_ * width + 3;
    std::vector<int> order(static_cast<size_t>(pages));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), std::mt19937(5));
    Values table(order.begin(), order.begin() + rows_ * width), slots, positions, tokens;
    for (int64_t r = 0; r < rows_; ++r) {
      const int64_t last = contexts_[r] - 1;
      positions.push_back(static_cast<double>(std::max<int64_t>(last, 0)));
      const double first =
          last < 0 ? -1 : table[r * width + last / page] * static_cast<double>(page);
      slots.push_back(last < 0 ? -1 : first + static_cast<double>(last % page));
      tokens.push_back(static_cast<double>((37 + 101 * r) % s_.vocab));
    }
    width_ = width;
    table_ = far({rows_, width}, DType::i32, table), slots_ = far({rows_}, DType::i64, slots);
    positions_ = far({rows_}, DType::i32, positions), tokens_ = far({rows_}, DType::i32, tokens);
    context_ = far({rows_}, DType::i32, Values(contexts_.begin(), contexts_.end()));
    make_angles();
    embed_ = random_far({s_.vocab, s_.hidden}, 1, 1),
    final_norm_ = random_far({s_.hidden}, 2, 0.2, 1);
    for (int64_t l = 0; l < s_.layers; ++l)
      layers_.emplace_back(s_, rows_, pages, page, static_cast<unsigned>(100 + 1000 * l));
    embed_out_ = unwritten({rows_, s_.hidden}), final_out_ = unwritten({rows_, s_.hidden});
    logits_ = unwritten({rows_, s_.vocab});
    token_ = far({rows_}, DType::i32, Values(static_cast<size_t>(rows_), -1));
  }

  static Tensor zeros(int64_t bytes) {
    const Tensor zero({bytes}, DType::u8);
    std::fill_n(zero.as<char>(), bytes, 0);
    return copy_on(cuda_device(), zero);
  }

  void run(const Ops& ops, int launches = 1) {
    prepare(ops);
    const DecodeProgress progress{s_.layers, s_.vocab};
    for (int i = 0; i < launches; ++i) {
      if (!step_.packed.empty()) progress_ = zeros(progress.bytes());
      if (!step_.packed.empty()) step_.progress = progress_;
      launch(ops);
    }
    wait_for(cuda_device());
  }

  // The longest of the launches, one after another, that so many seconds hold.
  double longest_launch(const Ops& ops, double seconds) {
    using Clock = std::chrono::steady_clock;
    const auto since = [](Clock::time_point begin) {
      return std::chrono::duration<double>(Clock::now() - begin).count();
    };
    prepare(ops);
    launch(ops);  // the first one is loaded, and packs weights
    wait_for(cuda_device());
    double longest = 0;
    for (const auto begin = Clock::now(); since(begin) < seconds;) {
      const auto launched = Clock::now();
      launch(ops);
      wait_for(cuda_device());
      longest = std::max(longest, since(launched));
    }
    return longest;
  }

  // Whether clusters can compute it, where the device has them.
  bool fits_clusters() const { return fits_clusters_; }

  // Makes every sum of o of the first layer more than fp32 holds.
  void make_o_overflow() {
    for (const auto& [of, scale] : {std::pair(&layers_[0].cache_v, 1e30), {&layers_[0].o, 1e10}}) {
      Values large;
      for (const double x : of->values) large.push_back((std::fabs(x) + 0.1) * scale);
      *of = far(of->tensor.view().shape, DType::bf16, large);
    }
  }
  Values o_out() const { return layers_[0].o_out.now(); }

  // What each word says that waits for a part of the step, of whichever launch was the last.
  void check_progress() const {
    if (progress_.view().empty()) return;
    const DecodeProgress progress{s_.layers, s_.vocab};
    const Tensor words = copy_on(Device::cpu, progress_);
    for (int64_t i = 0; i <= progress.token_word(); ++i)
      EXPECT_EQ(words.as<uint32_t>()[i], i < s_.layers               ? DecodeProgress::kOfLayer
                                         : i < progress.token_word() ? DecodeProgress::kOfColumns
                                                                     : 1u)
          << "word " << i;
  }

  // The angles that a step by clusters shows.
  void check_angles() const {
    if (progress_.view().empty()) return;
    for (const auto& [shown, table] : {std::pair(&rope_cos_, &cos_), {&rope_sin_, &sin_}}) {
      Values want;
      for (const double position : positions_.values)
        for (int64_t i = 0; i < s_.dim / 2; ++i)
          want.push_back(table->values[static_cast<int64_t>(position) * s_.dim / 2 + i]);
      EXPECT_EQ(shown->now(), want);
    }
  }

  void check_all() {
    SCOPED_TRACE(fmt::format("{}, {} rows, first context {}", s_.name, rows_, contexts_[0]));
    Values x = embed_out_.now();
    for (int64_t r = 0; r < rows_; ++r)
      for (int64_t i = 0; i < s_.hidden; ++i)
        ASSERT_EQ(x[r * s_.hidden + i],
                  embed_.values[static_cast<int64_t>(tokens_.values[r]) * s_.hidden + i]);
    for (size_t l = 0; l < layers_.size(); ++l) {
      SCOPED_TRACE(fmt::format("layer {}", l));
      check_layer(layers_[l], x);
      if (testing::Test::HasFailure()) return;
    }
    expect_norm("final.norm", final_out_, x, final_norm_.values, s_.hidden);
    expect_product("logits", logits_, final_out_.now(), embed_.values, {}, s_.hidden);
    check_tokens();
  }

 private:
  void prepare(const Ops& ops) {
    step_layers_.clear();
    for (const LayerData& layer : layers_) step_layers_.push_back(layer.step());
    step_ = {.layers = step_layers_, .embed = embed_, .final_norm = final_norm_, .lm_head = embed_};
    step_.heads = s_.heads, step_.kv_heads = s_.kv_heads, step_.head_dim = s_.dim;
    step_.intermediate = s_.inner, step_.eps = 1e-6f;
    step_.tokens = tokens_, step_.positions = positions_, step_.slots = slots_;
    step_.cos = cos_, step_.sin = sin_, step_.attention = {{}, context_, table_};
    step_.embed_out = embed_out_, step_.final_norm_out = final_out_;
    step_.logits = logits_, step_.token = token_;
    workspace_ = zeros(decode_step_workspace(step_));
    step_.workspace = workspace_;
    fits_clusters_ = decode_step_packed(step_) > 0;
    const int64_t packed = with_packed_ ? ops.fused.decode_step_packed(step_) : 0;
    if (packed == 0) return;
    packed_ = Tensor({packed}, DType::u8, cuda_device());
    step_.packed = packed_;
    step_.pack = true;
    rope_cos_ = far({rows_, s_.dim / 2}, DType::f32, Values(rows_ * s_.dim / 2, std::nan("")));
    rope_sin_ = far({rows_, s_.dim / 2}, DType::f32, Values(rows_ * s_.dim / 2, std::nan("")));
    step_.rope_cos_out = rope_cos_, step_.rope_sin_out = rope_sin_;
  }
  void launch(const Ops& ops) {
    ops.fused.decode_step({}, step_);
    step_.pack = false;
  }

  void make_angles() {
    const int64_t entries = *std::ranges::max_element(contexts_) + 1, half = s_.dim / 2;
    Values cos, sin;
    for (int64_t p = 0; p < entries; ++p)
      for (int64_t j = 0; j < half; ++j) {
        const double share = static_cast<double>(j) / static_cast<double>(half);
        const double angle = static_cast<double>(p) * std::pow(1e6, -share);
        cos.push_back(std::cos(angle)), sin.push_back(std::sin(angle));
      }
    cos_ = far({entries, half}, DType::f32, cos), sin_ = far({entries, half}, DType::f32, sin);
  }

  static void expect_near(const char* name, const Far& got, const Values& want,
                          const Values& slack) {
    const Values have = got.now();
    ASSERT_EQ(have.size(), want.size()) << name;
    for (size_t i = 0; i < want.size(); ++i) {
      const double limit =
          0.5 * ulp(std::max(std::fabs(want[i]), std::fabs(have[i])), DType::bf16) + slack[i];
      ASSERT_LE(std::fabs(have[i] - want[i]), limit)
          << name << " element " << i << " of " << want.size() << ": got " << have[i] << ", want "
          << want[i];
    }
  }
  static void expect_norm(const char* name, const Far& got, const Values& x, const Values& weight,
                          int64_t width) {
    Values want(x.size()), slack(x.size());
    for (size_t row = 0; row < x.size(); row += width) {
      double squares = 0;
      for (int64_t i = 0; i < width; ++i) squares += x[row + i] * x[row + i];
      const double scale = 1 / std::sqrt(squares / static_cast<double>(width) + 1e-6);
      for (int64_t i = 0; i < width; ++i) {
        want[row + i] = x[row + i] * scale * weight[i];
        slack[row + i] = std::fabs(want[row + i]) * 16 * kUnit;
      }
    }
    expect_near(name, got, want, slack);
  }
  static void expect_product(const char* name, const Far& got, const Values& x,
                             const Values& weight, const Values& bias, int64_t k) {
    const int64_t n = std::ssize(weight) / k, rows = std::ssize(x) / k;
    Values want, slack;
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t i = 0; i < n; ++i) {
        double sum = bias.empty() ? 0 : bias[i], size = std::fabs(sum);
        for (int64_t j = 0; j < k; ++j) {
          const double term = x[r * k + j] * weight[i * k + j];
          sum += term, size += std::fabs(term);
        }
        want.push_back(sum), slack.push_back(size * 8 * kUnit);
      }
    expect_near(name, got, want, slack);
  }
  static void expect_sum(const char* name, const Far& got, const Values& a, const Values& b) {
    Values want;
    for (size_t i = 0; i < a.size(); ++i) want.push_back(a[i] + b[i]);
    expect_near(name, got, want, Values(want.size(), 0));
  }
  void expect_rope(const char* name, const Far& got, const Values& x) const {
    const int64_t half = s_.dim / 2, heads = std::ssize(x) / rows_ / s_.dim;
    Values want(x.size()), slack(x.size());
    for (int64_t h = 0; h < rows_ * heads; ++h)
      for (int64_t j = 0; j < half; ++j) {
        const auto row = static_cast<int64_t>(positions_.values[h / heads]) * half + j;
        const double cos = cos_.values[row], sin = sin_.values[row];
        const int64_t low = h * s_.dim + j, high = low + half;
        want[low] = x[low] * cos - x[high] * sin, want[high] = x[high] * cos + x[low] * sin;
        slack[low] = slack[high] = (std::fabs(x[low]) + std::fabs(x[high])) * 4 * kUnit;
      }
    expect_near(name, got, want, slack);
  }

  // K or V of a position: in the cache, or new.
  double cached(const Far& cache, const Values& fresh, int64_t row, int64_t position, int64_t head,
                int64_t dim) const {
    if (position == contexts_[row] - 1) return fresh[(row * s_.kv_heads + head) * s_.dim + dim];
    const auto page = static_cast<int64_t>(table_.values[row * width_ + position / page_]);
    const int64_t slot = page * page_ + position % page_;
    return cache.values[(slot * s_.kv_heads + head) * s_.dim + dim];
  }
  void expect_attention(const LayerData& l) const {
    const Values q = l.q_rope.now(), k = l.k_rope.now(), v = l.v_out.now();
    Values want, slack;
    for (int64_t r = 0; r < rows_; ++r)
      for (int64_t h = 0; h < s_.heads; ++h) {
        const int64_t kv = h / (s_.heads / s_.kv_heads), at = (r * s_.heads + h) * s_.dim;
        Values scores, out(static_cast<size_t>(s_.dim)), size(out);
        double most = -INFINITY, weight = 0;
        for (int64_t p = 0; p < contexts_[r]; ++p) {
          double score = 0;
          for (int64_t d = 0; d < s_.dim; ++d)
            score += q[at + d] * cached(l.cache_k, k, r, p, kv, d);
          scores.push_back(score / std::sqrt(s_.dim)), most = std::max(most, scores.back());
        }
        for (int64_t p = 0; p < contexts_[r]; ++p) {
          const double e = std::exp(scores[p] - most);
          weight += e;
          for (int64_t d = 0; d < s_.dim; ++d) {
            const double term = e * cached(l.cache_v, v, r, p, kv, d);
            out[d] += term, size[d] += std::fabs(term);
          }
        }
        for (int64_t d = 0; d < s_.dim; ++d) {
          want.push_back(contexts_[r] == 0 ? 0 : out[d] / weight);
          slack.push_back(contexts_[r] == 0 ? 0 : size[d] / weight * 64 * kUnit);
        }
      }
    expect_near("attn.out", l.attention, want, slack);
  }
  void expect_appended(const LayerData& l) const {
    const Values k = l.k_rope.now(), v = l.v_out.now();
    for (const auto& [cache, fresh] : {std::pair(&l.cache_k, &k), {&l.cache_v, &v}}) {
      Values want = cache->values;
      for (int64_t r = 0; r < rows_; ++r)
        if (slots_.values[r] >= 0)
          std::copy_n(fresh->begin() + r * s_.kv(), s_.kv(),
                      want.begin() + static_cast<int64_t>(slots_.values[r]) * s_.kv());
      ASSERT_EQ(cache->now(), want) << "the cache";
    }
  }
  void expect_gated(const LayerData& l) const {
    const Values gate = l.gate_out.now(), up = l.up_out.now();
    Values want, slack;
    for (size_t i = 0; i < gate.size(); ++i) {
      want.push_back(gate[i] / (1 + std::exp(-gate[i])) * up[i]);
      slack.push_back(std::fabs(want.back()) * 32 * kUnit);
    }
    expect_near("mlp.act", l.act, want, slack);
  }

  void check_layer(const LayerData& l, Values& x) const {
    expect_norm("attn.norm", l.norm, x, l.attn_norm.values, s_.hidden);
    const Values in = l.norm.now();
    expect_product("attn.q", l.q_out, in, l.q.values, l.q_bias.values, s_.hidden);
    expect_product("attn.k", l.k_out, in, l.k.values, l.k_bias.values, s_.hidden);
    expect_product("attn.v", l.v_out, in, l.v.values, l.v_bias.values, s_.hidden);
    if (s_.qwen3) {
      expect_norm("attn.q_norm", l.q_normed, l.q_out.now(), l.q_norm.values, s_.dim);
      expect_norm("attn.k_norm", l.k_normed, l.k_out.now(), l.k_norm.values, s_.dim);
    }
    expect_rope("attn.q_rope", l.q_rope, (s_.qwen3 ? l.q_normed : l.q_out).now());
    expect_rope("attn.k_rope", l.k_rope, (s_.qwen3 ? l.k_normed : l.k_out).now());
    expect_attention(l);
    expect_appended(l);
    expect_product("attn.o", l.o_out, l.attention.now(), l.o.values, {}, s_.q());
    expect_sum("attn.residual", l.residual, x, l.o_out.now());
    expect_norm("mlp.norm", l.normed, l.residual.now(), l.mlp_norm.values, s_.hidden);
    const Values normed = l.normed.now();
    expect_product("mlp.gate", l.gate_out, normed, l.gate.values, {}, s_.hidden);
    expect_product("mlp.up", l.up_out, normed, l.up.values, {}, s_.hidden);
    expect_gated(l);
    expect_product("mlp.down", l.down_out, l.act.now(), l.down.values, {}, s_.inner);
    expect_sum("mlp.residual", l.stream, l.residual.now(), l.down_out.now());
    x = l.stream.now();
  }
  void check_tokens() const {
    const Values logits = logits_.now(), token = token_.now();
    for (int64_t r = 0; r < rows_; ++r) {
      const auto row = logits.begin() + r * s_.vocab;
      EXPECT_EQ(token[r], static_cast<double>(std::max_element(row, row + s_.vocab) - row));
    }
  }

  Sizes s_;
  std::vector<int64_t> contexts_;
  int64_t rows_, page_, width_ = 0;
  Far table_, slots_, positions_, tokens_, context_, cos_, sin_, embed_, final_norm_;
  std::vector<LayerData> layers_;
  Far embed_out_, final_out_, logits_, token_;
  Tensor workspace_, packed_, progress_;
  Far rope_cos_, rope_sin_;
  bool with_packed_, fits_clusters_ = false;
  std::vector<DecodeLayer> step_layers_;
  DecodeStep step_;
};

class CudaDecodeStep : public CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    if (ops_ != nullptr && ops_->fused.decode_step == nullptr)
      GTEST_SKIP() << "this device has no decode step: it is of a capability under 9.0";
  }
  // Returns whether clusters can compute it.
  bool expect_right(const Sizes& sizes, const std::vector<int64_t>& contexts, int launches = 1,
                    int64_t page = 16, bool with_packed = true) const {
    StepCase step(sizes, contexts, page, with_packed);
    step.run(*ops_, launches);
    step.check_all();
    step.check_progress();
    step.check_angles();
    return step.fits_clusters();
  }
};

TEST_F(CudaDecodeStep, ComputesOneRowOfSmallModels) {
  for (const Sizes& sizes : {kBard, kBard25})
    for (const int64_t context : {1, 2, 16, 17, 40}) expect_right(sizes, {context});
}

TEST_F(CudaDecodeStep, ComputesTheShapesThatItIsBuiltFor) {
  for (const Sizes& sizes : {k06B, k05B, k17B, k4B, k8B}) expect_right(sizes, {131});
}

// The act of eight rows of the larger models is more than the shared memory of a block.
TEST_F(CudaDecodeStep, ComputesAsManyRowsOfEachShape) {
  for (Sizes sizes : {k05B, k17B, k4B, k8B}) {
    sizes.layers = 2, sizes.vocab = 512;
    expect_right(sizes, {40, 7, 131, 1, 16, 17, 0, 0}, 2);
  }
}

// One row of this shape is computed by clusters, with weights packed for them.
TEST_F(CudaDecodeStep, ComputesByClusters) {
  for (const int64_t context : {1, 2, 15, 16, 17, 100, 128, 129, 300})
    EXPECT_TRUE(expect_right(k06B, {context}));
  Sizes odd = k06B;
  odd.layers = 3, odd.vocab = 1056;
  EXPECT_TRUE(expect_right(odd, {257}, 7));
  EXPECT_TRUE(expect_right(odd, {70}, 2, 64));
  odd.layers = 1;
  EXPECT_TRUE(expect_right(odd, {32752}));  // the most, with a page that is free
  EXPECT_FALSE(expect_right(odd, {32753}));
  expect_right(k06B, {131}, 1, 16, false);
}

// Sums that clusters hand to each other say in their last bit in which turn they were written.
TEST_F(CudaDecodeStep, OverflowsToInfinityInEveryTurn) {
  Sizes one = k06B;
  one.layers = 1, one.vocab = 1056;
  for (const int launches : {1, 2, 3}) {
    StepCase step(one, {40});
    step.make_o_overflow();
    step.run(*ops_, launches);
    EXPECT_TRUE(step.fits_clusters());
    EXPECT_EQ(step.o_out(), Values(static_cast<size_t>(one.hidden), HUGE_VAL)) << launches;
  }
}

TEST_F(CudaDecodeStep, ComputesRowsByClusters) {
  EXPECT_TRUE(expect_right(k06B, {128, 7}));
  EXPECT_TRUE(expect_right(k06B, {1, 300, 0, 0}));
  EXPECT_TRUE(expect_right(k06B, {1000, 65, 16, 17}, 3));
  EXPECT_TRUE(expect_right(k06B, {128, 7, 1000, 65, 16, 300, 0, 0}, 2));
  Sizes odd = k06B;
  odd.layers = 3, odd.vocab = 1056;
  EXPECT_TRUE(expect_right(odd, {1, 2, 9, 127, 128, 129, 255, 257}, 7));
  EXPECT_TRUE(expect_right(odd, {130, 31}, 2, 64));
}

// Copies are spaced by a counter of cycles, which begins anew every two seconds or so: a block that
// waits just then once waited for a whole turn of it, or for so many that the step was given up.
TEST_F(CudaDecodeStep, WaitsNoLongerWhereTheCounterOfCyclesBeginsAnew) {
  Sizes deep = k06B;
  deep.layers = 28, deep.vocab = 1056;
  StepCase one(deep, {300});
  const double longest = one.longest_launch(*ops_, 12);
  if (!one.fits_clusters())
    GTEST_SKIP() << "this device has no clusters for it, which alone wait so";
  EXPECT_LT(longest, 0.5);
  deep.layers = 4;
  EXPECT_LT(StepCase(deep, {40, 7, 131, 1, 16, 17, 100, 300}).longest_launch(*ops_, 8), 0.5);
}

TEST_F(CudaDecodeStep, ComputesLongContexts) {
  for (const int64_t context : {1000, 4096}) expect_right(k06B, {context});
  expect_right(kBard, {32768});
}

TEST_F(CudaDecodeStep, ComputesManyRowsAndPaddedOnes) {
  expect_right(kBard, {5, 70});
  expect_right(kBard25, {33, 1, 0, 0});
  expect_right(k06B, {128, 7, 1000, 65, 16, 300, 0, 0}, 1, 16, false);
}

TEST_F(CudaDecodeStep, GoesOnFromLaunchToLaunch) { expect_right(kBard, {50, 3}, 40); }

TEST_F(CudaDecodeStep, ReadsPagesOfAnySize) {
  for (const int64_t page : {1, 4, 64}) expect_right(kBard, {77}, 1, page);
}

TEST_F(CudaDecodeStep, RefusesWhatIsNotBuilt) {
  Sizes other = kBard;
  other.heads = 2;
  expect_refused([&] { StepCase(other, {5}).run(*ops_); },
                 {"decode_step is built for", "--executor ops"});
  expect_refused([&] { StepCase(kBard, {5, 5, 5}).run(*ops_); }, {"1, 2, 4 or 8 rows"});
}

}  // namespace
}  // namespace lockstep
