// The left column is the model, the right column is what can be seen.
#include "reference/qwen.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/topk.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <span>

#include "kernels/base/check.h"
#include "reference/bridge.h"
#include "reference/causal_attention.h"
#include "reference/held_weights.h"
#include "reference/own_stream.h"
#include "reference/recipe.h"
#include "reference/request_pages.h"
#include "reference/rotary.h"
#include "src/judge/no_memory.h"

namespace lockstep {
namespace {

// A point by name; one that is not in the table does not compile.
struct Name {
  consteval Name(const char* name) : point(lockstep::point(name)) {}
  const Point& point;
};

// The tokens of one request in a pass.
struct Span {
  int32_t request = 0;
  int64_t first = 0, count = 0;  // rows of the pass
  int64_t start = 0;             // position of its first row
};

// The cache of a request, by layer: [length, kv heads, head_dim] in the dtype that is shown.
struct Cache {
  int64_t length = 0;
  std::vector<at::Tensor> k, v;
  std::vector<int32_t> tokens;
  std::vector<int32_t> pages;  // of the engine, when the request was last in a pass
  int64_t used = 0;            // the last pass of this model that it was in

  size_t bytes() const {
    size_t sum = 0;
    for (const at::Tensor& tensor : k) sum += tensor.defined() ? 2 * tensor.nbytes() : 0;  // and v
    return sum;
  }
  // Its tokens are left, by which it can be computed again.
  void forget() { k.clear(), v.clear(); }
  bool is_forgotten() const { return length > 0 && k.empty(); }
};

// Bytes that requests in no pass may take together, or else twice what those in the pass do.
constexpr size_t kMostIdle = size_t{64} << 20;

// Caches grow by concatenation, which costs a copy a pass and keeps a request's rows in one tensor.
class Qwen final : public ReferenceModel {
 public:
  Qwen(const Checkpoint& checkpoint, const ReferenceOptions& options, DType compute)
      : config_(checkpoint.config()),
        shown_(compute),
        threads_(options.threads),
        weights_(checkpoint, options, compute == DType::f64 ? DType::f64 : DType::f32),
        own_(weights_.device()),
        recipe_(read_recipe(checkpoint.config_text(), checkpoint.dir() + "/config.json")),
        rotary_(recipe_, /*in_fp32=*/compute != DType::f64) {}

  void follow(Routes routes) override { routes_ = std::move(routes); }

  void end(int32_t request) override { caches_.erase(request); }
  std::shared_ptr<const void> held() const override { return held_; }
  void bring(const std::shared_ptr<const void>& held, int64_t first,
             const TensorView& to) const override {
    const at::Tensor& from = *static_cast<const at::Tensor*>(held.get());
    run_by_thread(from.device(), [&] { to_torch(to).copy_(from.narrow(0, first, to.rows())); });
  }

  void run(const PassInfo& pass, Probe& probe) override {
    begin(pass, probe);
    advance(static_cast<int>(config_.layers));
  }
  void begin(const PassInfo& pass, Probe& probe) override {
    own_.run([&] {
      ++passes_;
      for (const Inherited& inherited : pass.inherited) inherit(inherited, pass);
      remember(pass);
      begin_in_torch(pass, probe);
    });
  }
  void advance(int through) override {
    own_.run([&] {
      if (forward(through)) end_in_torch(), forget_idle();
    });
  }

 private:
  const Cache* donor_of(const Inherited& inherited, const PassInfo& pass) const;
  void inherit(const Inherited& inherited, const PassInfo& pass);
  void compute_unseen(int32_t request, std::span<const int32_t> tokens);
  void remember(const PassInfo& pass);
  void forget_idle();
  void begin_in_torch(const PassInfo& pass, Probe& probe);
  void end_in_torch();
  void prepare(const PassInfo& pass);
  // Goes on through that layer. Whether the pass has ended by it.
  bool forward(int through);
  void before_layers();
  void after_layers();
  void attention();
  void mlp();
  at::Tensor experts(const at::Tensor& h);

  // Each reads and returns tensors in the dtype that is shown, and rounds once.
  at::Tensor rms_norm(Name name, const at::Tensor& x) const;
  at::Tensor linear(Name name, const at::Tensor& x) const;
  at::Tensor rope(const at::Tensor& x) const;
  at::Tensor silu_mul(const at::Tensor& gate, const at::Tensor& up) const {
    return rounded(at::silu(wide(gate)) * wide(up));
  }
  at::Tensor route(const at::Tensor& logits) const;  // int32
  at::Tensor softmax(const at::Tensor& logits, const at::Tensor& chosen) const;
  at::Tensor expert(Name name, const at::Tensor& x, const at::Tensor& chosen) const;
  at::Tensor weighted_sum(const at::Tensor& x, const at::Tensor& weights) const;
  at::Tensor sdpa(const at::Tensor& q);
  void cache(const at::Tensor& k, const at::Tensor& v);

  at::Tensor wide(const at::Tensor& x) const { return as_dtype(x, weights_.wide()); }
  at::Tensor rounded(const at::Tensor& x) const { return as_dtype(x, shown_).contiguous(); }
  size_t layer() const { return layer_; }
  // A sink that takes tensors where they lie may keep them.
  void show(Name name, const at::Tensor& x, bool last = false) {
    if (!probe_->wants(name.point, layer_)) return;
    const TensorView view = hold(x);
    last ? probe_->logits(name.point, view) : (*probe_)(name.point, layer_, view);
    held_.reset();
  }
  TensorView hold(const at::Tensor& x) {
    const bool here = x.is_cpu() || !probe_->on_device();
    held_ = std::make_shared<const at::Tensor>(here ? on_host(x) : x.contiguous());
    return to_view_there(*held_);
  }
  // In fp32 as engines have them, but for the model that has no roundings.
  void show_angles(Name name, const at::Tensor& x) { show(name, x.squeeze(1)); }
  void show_last(Name name, const at::Tensor& x) { show(name, x, /*last=*/true); }

  const ModelConfig& config_;
  DType shown_;
  int threads_;
  HeldWeights weights_;
  OwnStream own_;  // beside the oracle, another model and the engine
  Recipe recipe_;
  Rotary rotary_;
  std::map<int32_t, Cache> caches_;
  int64_t passes_ = 0;
  int64_t most_scores_ = 1 << 24;           // at a time, 128 MiB in fp64: fewer once memory lacked
  Routes routes_;                           // of experts, from outside
  std::shared_ptr<const at::Tensor> held_;  // what is being shown
  // These belong to the pass that runs.
  const PassInfo* pass_ = nullptr;  // null: none runs
  Probe* probe_ = nullptr;
  int next_ = -1;   // layer that comes next; -1: what is before them
  int layer_ = -1;  // that is computed
  std::vector<Span> spans_;
  at::Tensor cos_, sin_;  // [tokens, 1, head_dim / 2], wide
  at::Tensor stream_;     // [tokens, hidden]
};

// Everything that a pass may have wrong is found here, before a cache is touched.
void Qwen::prepare(const PassInfo& pass) {
  check(!pass.rows.empty(), "pass {} has no token to compute: leave it out", pass.pass);
  spans_.clear();
  for (size_t i = 0; i < pass.rows.size(); ++i) {
    const auto [request, position] = pass.rows[i].row;
    if (spans_.empty() || spans_.back().request != request) {
      for (const Span& span : spans_)
        check(span.request != request,
              "the rows of request {} should be consecutive in pass {} and are not: sort them",
              request, pass.pass);
      spans_.push_back({request, static_cast<int64_t>(i), 0, position});
      check(position <= caches_[request].length,
            "pass {} should go on at position {} of request {} or start again before it, found "
            "position {}: give every pass of a request, in order",
            pass.pass, caches_[request].length, request, position);
    }
    const int64_t expected = spans_.back().start + spans_.back().count++;
    check(position == expected,
          "pass {} should go on at position {} of request {}, found position {}: give every pass "
          "of a request, in order",
          pass.pass, expected, request, position);
  }
  for (int32_t row : pass.logit_rows)
    check(row >= 0 && row < std::ssize(pass.rows), "pass {} has {} rows and wants logits of row {}",
          pass.pass, pass.rows.size(), row);

  Angles angles;
  for (const Span& span : spans_)
    for (int64_t i = 0; i < span.count; ++i)
      rotary_.append(angles, span.start + i, span.start + span.count);
  const std::vector<int64_t> shape = {std::ssize(pass.rows), 1, recipe_.head_dim / 2};
  const auto fp64 = at::TensorOptions().dtype(at::kDouble);
  const at::Device device = weights_.device();
  cos_ = wide(at::from_blob(angles.cos.data(), shape, fp64)).clone().to(device);
  sin_ = wide(at::from_blob(angles.sin.data(), shape, fp64)).clone().to(device);
}

at::Tensor Qwen::rms_norm(Name name, const at::Tensor& x) const {
  const at::Tensor x_wide = wide(x);
  const at::Tensor mean_square = x_wide.square().mean(-1, /*keepdim=*/true);
  const at::Tensor weight = weights_.norm({&name.point, layer_});
  return rounded(x_wide * (mean_square + recipe_.norm_eps).rsqrt() * weight);
}

at::Tensor Qwen::linear(Name name, const at::Tensor& x) const {
  const at::Tensor y = weights_.linear({&name.point, layer_}, wide(x.flatten(1)));
  const bool q = name.point == point("attn.q");
  if (q || name.point == point("attn.k") || name.point == point("attn.v"))
    return rounded(y.view({-1, q ? recipe_.heads : recipe_.kv_heads, recipe_.head_dim}));
  return rounded(y);
}

at::Tensor Qwen::rope(const at::Tensor& x) const {
  const auto halves = wide(x).chunk(2, -1);
  const at::Tensor &x1 = halves[0], &x2 = halves[1];
  return rounded(at::cat({x1 * cos_ - x2 * sin_, x2 * cos_ + x1 * sin_}, -1));
}

at::Tensor Qwen::route(const at::Tensor& logits) const {
  const TensorView chosen = routes_ ? routes_(layer_) : TensorView{};
  // A choice from outside that cannot be followed is left for the model's own.
  if (!chosen.empty() && chosen.shape == Shape({logits.size(0), config_.experts.chosen})) {
    const std::span indices(chosen.as<const int32_t>(), chosen.count());
    const auto exists = [&](int32_t expert) { return expert >= 0 && expert < logits.size(1); };
    if (std::ranges::all_of(indices, exists)) return to_torch(chosen).to(logits.device());
  }
  return std::get<1>(at::topk(wide(logits), config_.experts.chosen)).to(at::kInt);
}

at::Tensor Qwen::softmax(const at::Tensor& logits, const at::Tensor& chosen) const {
  const at::Tensor x = wide(logits), index = chosen.to(at::kLong);
  // Dividing by the sum of the chosen is the same as a softmax over them.
  return rounded(recipe_.normalises_experts ? at::softmax(x.gather(-1, index), -1)
                                            : at::softmax(x, -1).gather(-1, index));
}

at::Tensor Qwen::expert(Name name, const at::Tensor& x, const at::Tensor& chosen) const {
  return rounded(weights_.experts({&name.point, layer_}, wide(x), chosen, nullptr, nullptr));
}

at::Tensor Qwen::weighted_sum(const at::Tensor& x, const at::Tensor& weights) const {
  return rounded((wide(x) * wide(weights).unsqueeze(-1)).sum(1));
}

// Adds the pass's K and V to what each request has, and shows all that its queries can read.
void Qwen::cache(const at::Tensor& k, const at::Tensor& v) {
  for (const Span& span : spans_) {
    Cache& cache = caches_.at(span.request);
    cache.k.resize(config_.layers);
    cache.v.resize(config_.layers);
    const auto append = [&](at::Tensor& to, const at::Tensor& from) {
      const at::Tensor rows = from.narrow(0, span.first, span.count);
      to = to.defined() ? at::cat({to.narrow(0, 0, cache.length), rows}) : rows.clone();
    };
    append(cache.k[layer()], k);
    append(cache.v[layer()], v);
    if (!probe_->wants(point("attn.kv"), layer_)) continue;
    const TensorView seen = hold(at::stack({cache.k[layer()], cache.v[layer()]}, 1));
    std::vector<Row> rows;
    for (int32_t p = 0; p < seen.rows(); ++p) rows.push_back({span.request, p});
    (*probe_)(point("attn.kv"), layer_, rows, seen);
    held_.reset();
  }
}

// In the wide dtype, so that neither scores nor probabilities are rounded to the one that is shown.
at::Tensor Qwen::sdpa(const at::Tensor& q) {
  const at::Tensor out = at::empty_like(q);
  for (const Span& span : spans_) {
    const Cache& cache = caches_.at(span.request);
    // Queries are taken in blocks, so that their scores, [heads, block, length], have a bound.
    const int64_t length = cache.k[layer()].size(0);
    const double products = 2.0 * static_cast<double>(span.count * length * q[0].numel());
    const auto attend = [&](int64_t first, int64_t count) {
      const Threads threads(q.is_cpu() ? products : 0, threads_);
      const int64_t keys = span.start + first + count;
      const auto seen = [&](const at::Tensor& x) { return wide(x.narrow(0, 0, keys)); };
      const auto rows = [&](const at::Tensor& x) { return x.narrow(0, span.first + first, count); };
      rows(out).copy_(
          rounded(causal_attention(wide(rows(q)), seen(cache.k[layer()]), seen(cache.v[layer()]),
                                   recipe_.window.at(layer()))));
    };
    int64_t block = queries_at_once(q, most_scores_ / (recipe_.heads * length) + 1);
    for (int64_t first = 0; first < span.count;) {
      const int64_t count = std::min(block, span.count - first);
      try {
        in_torch([&] { attend(first, count); });
        first += count;
      } catch (const NoMemory&) {
        if (count == 1) throw;
        block = (count + 1) / 2;
        most_scores_ = (block - 1) * recipe_.heads * length;
        free_unused(q.device());
      }
    }
  }
  return out;
}

// clang-format off
void Qwen::attention() {
  at::Tensor h = rms_norm("attn.norm", stream_);     show("attn.norm", h);
  at::Tensor q = linear("attn.q", h);                show("attn.q", q);
  at::Tensor k = linear("attn.k", h);                show("attn.k", k);
  at::Tensor v = linear("attn.v", h);                show("attn.v", v);
  if (config_.qk_norm) {
    q = rms_norm("attn.q_norm", q);                  show("attn.q_norm", q);
    k = rms_norm("attn.k_norm", k);                  show("attn.k_norm", k);
  }
  q = rope(q);                                       show("attn.q_rope", q);
  k = rope(k);                                       show("attn.k_rope", k);
  cache(k, v);
  at::Tensor out = sdpa(q);                          show("attn.out", out);
  at::Tensor o = linear("attn.o", out);              show("attn.o", o);
  stream_ = stream_ + o;                             show("attn.residual", stream_);
}

void Qwen::mlp() {
  at::Tensor h = rms_norm("mlp.norm", stream_);      show("mlp.norm", h);
  if (config_.experts.in(layer_)) {
    stream_ = stream_ + experts(h);
  } else {
    at::Tensor gate = linear("mlp.gate", h);         show("mlp.gate", gate);
    at::Tensor up = linear("mlp.up", h);             show("mlp.up", up);
    at::Tensor act = silu_mul(gate, up);             show("mlp.act", act);
    at::Tensor down = linear("mlp.down", act);       show("mlp.down", down);
    stream_ = stream_ + down;
  }
                                                     show("mlp.residual", stream_);
}

at::Tensor Qwen::experts(const at::Tensor& h) {
  at::Tensor router = linear("mlp.router", h);       show("mlp.router", router);
  at::Tensor chosen = route(router);                 show("mlp.experts", chosen);
  at::Tensor weights = softmax(router, chosen);      show("mlp.weights", weights);
  at::Tensor gate = expert("mlp.expert_gate", h, chosen);    show("mlp.expert_gate", gate);
  at::Tensor up = expert("mlp.expert_up", h, chosen);        show("mlp.expert_up", up);
  at::Tensor act = silu_mul(gate, up);                       show("mlp.expert_act", act);
  at::Tensor down = expert("mlp.expert_down", act, chosen);  show("mlp.expert_down", down);
  at::Tensor sum = weighted_sum(down, weights);      show("mlp.combine", sum);
  return sum;
}

void Qwen::before_layers() {
                                                     show("embed", stream_);
                                                     show_angles("rope.cos", cos_);
                                                     show_angles("rope.sin", sin_);
}

void Qwen::after_layers() {
  at::Tensor h = rms_norm("final.norm", stream_);    show("final.norm", h);
  if (pass_->logit_rows.empty()) return;
  const at::Tensor last = h.index_select(0, at::tensor(pass_->logit_rows).to(h.device()));
  at::Tensor logits = linear("logits", last);        show_last("logits", logits);
  at::Tensor token = logits.argmax(-1).to(at::kInt); show_last("token", token);
}
// clang-format on

// Who computed the tokens that a request inherits. Of several, who has more of its pages: where
// RoPE depends on the length, the same tokens have other keys when they came in other chunks.
const Cache* Qwen::donor_of(const Inherited& inherited, const PassInfo& pass) const {
  const std::vector<int32_t>& pages = pages_of(inherited.request, pass);
  const Cache* donor = nullptr;
  for (const auto& [request, cache] : caches_) {
    const bool has_them =
        !cache.is_forgotten() && cache.length >= std::ssize(inherited.tokens) &&
        std::ranges::mismatch(inherited.tokens, cache.tokens).in1 == inherited.tokens.end();
    if (has_them &&
        (!donor || common_pages(cache.pages, pages) > common_pages(donor->pages, pages)))
      donor = &cache;
  }
  return donor;
}

// The cache that another request computed with the same tokens; what none did, as of a trace that
// begins later, this model computes unseen.
void Qwen::inherit(const Inherited& inherited, const PassInfo& into) {
  if (const Cache* donor = donor_of(inherited, into)) {
    // Tensors are shared and never written to: append() makes new ones, of the rows up to `length`.
    Cache own = *donor;
    own.length = std::ssize(inherited.tokens);
    caches_[inherited.request] = std::move(own);
    return;
  }
  compute_unseen(inherited.request, inherited.tokens);
}

void Qwen::compute_unseen(int32_t request, std::span<const int32_t> tokens) {
  PassInfo pass;
  for (const int32_t token : tokens) {
    const auto position = static_cast<int32_t>(pass.rows.size());
    pass.rows.push_back({{request, position}, token});
  }
  // A probe without a sink, which wants nothing.
  Probe unseen;
  if (pass.rows.empty()) return;
  begin_in_torch(pass, unseen);
  forward(static_cast<int>(config_.layers));
  end_in_torch();
}

// Where a request goes on that was forgotten, as one that was swapped out for long.
void Qwen::remember(const PassInfo& pass) {
  std::map<int32_t, int32_t> starts;
  for (const PassRow& row : pass.rows) starts.try_emplace(row.row.request, row.row.position);
  for (const auto& [request, start] : starts) {
    const auto found = caches_.find(request);
    if (found == caches_.end() || !found->second.is_forgotten()) continue;
    const std::vector<int32_t> tokens = found->second.tokens;
    const auto count = std::clamp<int64_t>(start, 0, std::ssize(tokens));
    found->second.length = 0;
    compute_unseen(request, std::span(tokens).first(count));
  }
}

// Where RoPE depends on the length, keys depend on the chunks too, and where there are experts, on
// who chose them: such caches are not computed again.
void Qwen::forget_idle() {
  const RopeType rope = config_.rope.type;
  if (config_.experts.count > 0 || rope == RopeType::dynamic || rope == RopeType::longrope) return;
  size_t in_pass = 0, idle = 0;
  std::vector<Cache*> others;
  for (auto& [request, cache] : caches_) {
    (cache.used == passes_ ? in_pass : idle) += cache.bytes();
    if (cache.used != passes_ && !cache.k.empty()) others.push_back(&cache);
  }
  std::ranges::sort(others, {}, &Cache::used);
  for (Cache* cache : others) {
    if (idle <= std::max(kMostIdle, 2 * in_pass)) return;
    idle -= cache->bytes();
    cache->forget();
  }
}

bool Qwen::forward(int through) {
  if (pass_ == nullptr) return false;
  const auto layers = static_cast<int>(config_.layers);
  for (; next_ <= std::min(through, layers); ++next_) {
    layer_ = next_ < layers ? next_ : -1;
    if (layer_ >= 0) attention(), mlp();
    if (layer_ < 0) next_ < 0 ? before_layers() : after_layers();
  }
  return next_ > layers;
}

void Qwen::begin_in_torch(const PassInfo& pass, Probe& probe) {
  prepare(pass);
  std::vector<int32_t> tokens;
  for (const PassRow& row : pass.rows) tokens.push_back(row.token);
  stream_ = rounded(weights_.embedding(tokens));
  // A request forgets what it had beyond the position at which it starts again.
  for (const Span& span : spans_) caches_[span.request].length = span.start;
  pass_ = &pass, probe_ = &probe;
  next_ = layer_ = -1;
  probe.begin(pass);
}

void Qwen::end_in_torch() {
  probe_->end();
  for (const Span& span : spans_) {
    Cache& cache = caches_.at(span.request);
    cache.tokens.resize(span.start);
    for (const PassRow& row : std::span(pass_->rows).subspan(span.first, span.count))
      cache.tokens.push_back(row.token);
    cache.pages = pages_of(span.request, *pass_);
    cache.used = passes_;
    cache.length += span.count;
  }
  pass_ = nullptr;
  stream_ = at::Tensor();
}

}  // namespace

std::unique_ptr<ReferenceModel> qwen_reference(const Checkpoint& checkpoint,
                                               const ReferenceOptions& options, DType compute) {
  return std::make_unique<Qwen>(checkpoint, options, compute);
}

}  // namespace lockstep
