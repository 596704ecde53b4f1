// The model once more, as one causal pass over all tokens of a request, into which errors are put
// and which is differentiated. It goes backwards a layer at a time, each computed again with
// gradients, so that no more than one layer's tensors are held. The left column is the model, see()
// is where an op's error goes in.
//
// Let E = got - exact be the error of the logits, e_i that which op i introduced, W the last
// matrix, and h(s) the last norm of the model with s e_i put into each op. Then
//
//     <E, E> = <E, got - W h(1)> + <W^T E, h(1) - h(0)>
//
// The first term is the part of the logits' own op. The second is the integral over s from 0 to 1
// of <W^T E, dh/ds>, and dh/ds is a sum over ops, since each error enters as s e_i: term i is the
// part of op i. These are integrated gradients (Sundararajan, Taly and Yan, 2017) with the model
// without errors for a baseline; they add up to <E, E>, and one of them is negative where an op's
// error cancels others.
#include "reference/error_sharer.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "reference/bridge.h"
#include "reference/gradient.h"
#include "reference/held_weights.h"
#include "reference/recipe.h"
#include "reference/rotary.h"
#include "src/weights/qwen_graph.h"

namespace lockstep {
namespace {

struct PointName {
  consteval PointName(const char* name) : point(lockstep::point(name)) {}
  const Point& point;
};

using Key = RecordedText::Key;

// Elements of logits that are made at a time: 128 MiB in fp64.
constexpr int64_t kLogits = 1 << 24;
constexpr double kClose = 0.01;  // how near the parts must come to the whole
constexpr int kMostPanels = 8;

// An error that was put into an op, as a leaf of what is differentiated. The error itself is what
// the derivative by the leaf is multiplied by: the leaf is s times it.
struct Entry {
  Key key;
  at::Tensor leaf, error;
};

class QwenSharer final : public ErrorSharer {
 public:
  QwenSharer(const Checkpoint& checkpoint, const ReferenceOptions& options)
      : config_(checkpoint.config()),
        threads_(options.threads),
        weights_(checkpoint, options, DType::f64),
        recipe_(read_recipe(checkpoint.config_text(), checkpoint.dir() + "/config.json")),
        rotary_(recipe_, /*in_fp32=*/false) {
    for (const Place& place : qwen_graph_of(config_).places())
      if (!place.point->is_cache() && !row_of(place.point->op).makes_indices)
        places_.push_back(place);
  }

  const std::vector<Place>& places() const override { return places_; }
  SharedError share_out(const RecordedText& text) override;
  std::vector<double> alone(const RecordedText& text, const std::vector<Place>& ops) override;

 private:
  // The tensors that a layer begins with. The residual stream [tokens, hidden], and the rotary
  // tables [tokens, head_dim / 2].
  struct Start {
    at::Tensor stream, cos, sin;
  };

  void begin(const RecordedText& text);
  void share_logits(const at::Tensor& recorded, const at::Tensor& exact, SharedError& shared);
  at::Tensor forward(std::vector<Start>* starts);
  Start begin_pass();
  at::Tensor layer(const Start& start);
  at::Tensor attention(const at::Tensor& h, const Start& start);
  at::Tensor mlp(const at::Tensor& h);
  at::Tensor experts(const at::Tensor& h);
  at::Tensor final_norm(const at::Tensor& stream);
  void backward(std::vector<Start>& starts, double weight);
  void add_parts(const at::Tensor& y, const std::vector<at::Tensor*>& inputs, at::Tensor& gradient,
                 double weight);
  at::Tensor see(PointName name, const at::Tensor& y);
  at::Tensor recorded(PointName name, const at::Tensor& y);

  at::Tensor rms_norm(PointName name, const at::Tensor& x) const;
  at::Tensor linear(PointName name, const at::Tensor& x) const;
  at::Tensor by_head(const at::Tensor& x) const {
    return x.view({x.size(0), -1, recipe_.head_dim});
  }
  static at::Tensor rope(const at::Tensor& x, const Start& start);
  at::Tensor sdpa(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) const;
  at::Tensor choose(const at::Tensor& router);
  at::Tensor expert(PointName name, const at::Tensor& x, const at::Tensor& chosen) const;

  const ModelConfig& config_;
  int threads_;
  HeldWeights weights_;
  Recipe recipe_;
  Rotary rotary_;
  std::vector<Place> places_;

  // These belong to the text that is shared out.
  const RecordedText* text_ = nullptr;
  at::Tensor cos_, sin_, embedding_, rows_;  // rows_: those of logits
  std::map<Key, at::Tensor> errors_;         // introduced, in fp32
  std::map<int, at::Tensor> chosen_;         // experts, by layer
  at::Tensor gradient_;                      // of <E, logits> by the last norm: [tokens, hidden]
  std::map<Key, double> parts_;
  std::string trouble_;

  // And these to a pass over it. as_recorded: an op reads what the run stored and not what was
  // computed here, so that its error is its own. with_errors: ops read what was computed here, with
  // errors put in.
  enum class Way : uint8_t { as_recorded, with_errors };
  Way way_ = Way::as_recorded;
  double scale_ = 0;             // of the errors that are put in
  const Place* only_ = nullptr;  // the one op that gets its error; null: all
  bool differentiates_ = false;
  std::vector<Entry> entries_;  // since the last step backwards
  int layer_ = -1;
};

Key key_of(const Place& place) { return {place.point->order(), place.layer}; }

double dot(const at::Tensor& a, const at::Tensor& b) { return (a * b).sum().item<double>(); }

// The result as it was stored, where it was; its error is kept.
at::Tensor QwenSharer::recorded(PointName name, const at::Tensor& y) {
  const Place place{&name.point, layer_};
  const RecordedRows* rows = text_->find(place);
  if (!rows || rows->data.view().count() != y.numel() || y.numel() == 0) return y;
  const at::Tensor kept =
      as_dtype(to_torch(rows->data.view()), DType::f64).to(y.device()).view_as(y);
  std::vector<int64_t> shape(y.dim(), 1);
  shape[0] = y.size(0);
  // Rows that were not recorded have no error of their own: what was computed here stands for them.
  const at::Tensor there = at::from_blob(const_cast<uint8_t*>(rows->there.data()), shape, at::kByte)
                               .to(at::kBool)
                               .to(y.device());
  if (trouble_.empty() && !at::isfinite(at::where(there, kept, y)).all().item<bool>())
    trouble_ = fmt::format("{}{} is the first op whose result is not finite",
                           layer_ < 0 ? "" : fmt::format("layer {} ", layer_), name.point.name);
  const at::Tensor error = at::where(there, kept - y, at::zeros_like(y));
  // In fp32, for there is one of each op of all layers: a relative 2^-24 is nothing to its part.
  errors_[key_of(place)] = as_dtype(error, DType::f32);
  return at::where(there, kept, y);
}

at::Tensor QwenSharer::see(PointName name, const at::Tensor& y) {
  if (way_ == Way::as_recorded) return recorded(name, y);
  const Place place{&name.point, layer_};
  const auto error = errors_.find(key_of(place));
  if (error == errors_.end() || (only_ && !(place == *only_))) return y;
  const at::Tensor wide = as_dtype(error->second, DType::f64);
  at::Tensor leaf = (wide * scale_).detach();
  if (differentiates_) {
    leaf.requires_grad_(true);
    entries_.push_back({key_of(place), leaf, wide});
  }
  return y + leaf;
}

at::Tensor QwenSharer::rms_norm(PointName name, const at::Tensor& x) const {
  const at::Tensor mean_square = x.square().mean(-1, /*keepdim=*/true);
  // LibTorch differentiates this itself: nothing in it is widened by block.
  return x * (mean_square + recipe_.norm_eps).rsqrt() * weights_.norm({&name.point, layer_});
}

at::Tensor QwenSharer::linear(PointName name, const at::Tensor& x) const {
  const Place place{&name.point, layer_};
  const at::Tensor rows = x.flatten(1);
  return with_gradient(
      rows, weights_.linear(place, rows.detach()),
      [this, place](const at::Tensor& g) { return weights_.back(place, g.contiguous()); });
}

at::Tensor QwenSharer::expert(PointName name, const at::Tensor& x, const at::Tensor& chosen) const {
  const Place place{&name.point, layer_};
  const bool of_token = x.dim() == 2;
  return with_gradient(x, weights_.experts(place, x.detach(), chosen, nullptr, nullptr),
                       [this, place, chosen, of_token](const at::Tensor& g) {
                         const at::Tensor each =
                             weights_.experts_back(place, g.contiguous(), chosen);
                         // A token's row was read by each of its experts, so their derivatives add
                         // up.
                         return of_token ? each.sum(1) : each;
                       });
}

at::Tensor QwenSharer::rope(const at::Tensor& x, const Start& start) {
  const at::Tensor cos = start.cos.unsqueeze(1), sin = start.sin.unsqueeze(1);
  const auto halves = x.chunk(2, -1);
  return at::cat({halves[0] * cos - halves[1] * sin, halves[1] * cos + halves[0] * sin}, -1);
}

at::Tensor QwenSharer::sdpa(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) const {
  const auto turned = [](const at::Tensor& x) { return x.transpose(0, 1).unsqueeze(0); };
  const int64_t window = recipe_.window.at(layer_);
  std::optional<at::Tensor> mask;
  if (window > 0) {
    const at::Tensor key = at::arange(q.size(0), q.device()), query = key.unsqueeze(1);
    // A window of n keys counts the query's own: n - 1 before it.
    mask = (key <= query) & (key > query - window);
  }
  const Threads threads(q.is_cpu() ? 2.0 * static_cast<double>(q.numel() * q.size(0)) : 0,
                        threads_);
  return at::scaled_dot_product_attention(turned(q), turned(k), turned(v), mask, /*dropout_p=*/0.0,
                                          /*is_causal=*/!mask, /*scale=*/std::nullopt,
                                          /*enable_gqa=*/true)
      .squeeze(0)
      .transpose(0, 1);
}

// The experts that were taken, or that the logits which were recorded say: a choice has no
// derivative, so it is the same in every model between.
at::Tensor QwenSharer::choose(const at::Tensor& router) {
  if (way_ == Way::with_errors) return chosen_.at(layer_);
  at::Tensor chosen = std::get<1>(at::topk(router, config_.experts.chosen)).to(at::kInt);
  // A choice outside the experts would index past the weights: there the model's own stands for it.
  const RecordedRows* rows = text_->find({&point("mlp.experts"), layer_});
  if (rows && rows->data.view().dtype == DType::i32 &&
      rows->data.view().count() == chosen.numel()) {
    const at::Tensor kept = to_torch(rows->data.view()).to(router.device()).view_as(chosen);
    const at::Tensor there =
        at::from_blob(const_cast<uint8_t*>(rows->there.data()), {chosen.size(0), 1}, at::kByte)
            .to(at::kBool)
            .to(router.device());
    chosen = at::where(there & (kept >= 0) & (kept < config_.experts.count), kept, chosen);
  }
  chosen_[layer_] = chosen.clone();
  return chosen;
}

// clang-format off
at::Tensor QwenSharer::attention(const at::Tensor& h, const Start& start) {
  at::Tensor q = see("attn.q", by_head(linear("attn.q", h)));
  at::Tensor k = see("attn.k", by_head(linear("attn.k", h)));
  at::Tensor v = see("attn.v", by_head(linear("attn.v", h)));
  if (config_.qk_norm) {
    q = see("attn.q_norm", rms_norm("attn.q_norm", q));
    k = see("attn.k_norm", rms_norm("attn.k_norm", k));
  }
  q = see("attn.q_rope", rope(q, start));
  k = see("attn.k_rope", rope(k, start));
  at::Tensor out = see("attn.out", sdpa(q, k, v));
  return see("attn.o", linear("attn.o", out));
}

at::Tensor QwenSharer::mlp(const at::Tensor& h) {
  if (config_.experts.in(layer_)) return experts(h);
  at::Tensor gate = see("mlp.gate", linear("mlp.gate", h));
  at::Tensor up = see("mlp.up", linear("mlp.up", h));
  at::Tensor act = see("mlp.act", at::silu(gate) * up);
  return see("mlp.down", linear("mlp.down", act));
}

at::Tensor QwenSharer::experts(const at::Tensor& h) {
  at::Tensor router = see("mlp.router", linear("mlp.router", h));
  at::Tensor chosen = choose(router), index = chosen.to(at::kLong);
  at::Tensor weights = see("mlp.weights", recipe_.normalises_experts
                                              ? at::softmax(router.gather(-1, index), -1)
                                              : at::softmax(router, -1).gather(-1, index));
  at::Tensor gate = see("mlp.expert_gate", expert("mlp.expert_gate", h, chosen));
  at::Tensor up = see("mlp.expert_up", expert("mlp.expert_up", h, chosen));
  at::Tensor act = see("mlp.expert_act", at::silu(gate) * up);
  at::Tensor down = see("mlp.expert_down", expert("mlp.expert_down", act, chosen));
  return see("mlp.combine", (down * weights.unsqueeze(-1)).sum(1));
}

at::Tensor QwenSharer::layer(const Start& start) {
  at::Tensor h = see("attn.norm", rms_norm("attn.norm", start.stream));
  at::Tensor stream = see("attn.residual", start.stream + attention(h, start));
  h = see("mlp.norm", rms_norm("mlp.norm", stream));
  return see("mlp.residual", stream + mlp(h));
}

QwenSharer::Start QwenSharer::begin_pass() {
  layer_ = -1;
  return {see("embed", embedding_), see("rope.cos", cos_), see("rope.sin", sin_)};
}

at::Tensor QwenSharer::final_norm(const at::Tensor& stream) {
  layer_ = -1;
  return see("final.norm", rms_norm("final.norm", stream));
}
// clang-format on

// Returns the last norm, of all tokens; with `starts`, what each layer and the norm began with.
at::Tensor QwenSharer::forward(std::vector<Start>* starts) {
  const at::NoGradGuard forward_alone;
  Start start = begin_pass();
  for (int i = 0; i < config_.layers; ++i) {
    if (starts) starts->push_back(start);
    layer_ = i;
    start.stream = layer(start);
  }
  if (starts) starts->push_back(start);
  return final_norm(start.stream);
}

// A step backwards: the derivatives by the inputs of what y was made of, and by the errors that
// were put in since. `gradient` is that by y, and becomes that by the first input.
void QwenSharer::add_parts(const at::Tensor& y, const std::vector<at::Tensor*>& inputs,
                           at::Tensor& gradient, double weight) {
  std::vector<at::Tensor> leaves;
  for (const at::Tensor* input : inputs) leaves.push_back(*input);
  for (const Entry& entry : entries_) leaves.push_back(entry.leaf);
  const auto gradients =
      torch::autograd::grad({y}, leaves, {gradient}, /*retain_graph=*/std::nullopt,
                            /*create_graph=*/false, /*allow_unused=*/true);
  for (size_t i = 0; i < entries_.size(); ++i)
    if (const at::Tensor& g = gradients[inputs.size() + i]; g.defined())
      parts_[entries_[i].key] += weight * dot(g, entries_[i].error);
  for (size_t i = 0; i < inputs.size(); ++i)
    // An input that y does not depend on has no gradient, which is zero and not an error.
    *inputs[i] = gradients[i].defined() ? gradients[i] : at::zeros_like(*inputs[i]);
  gradient = *inputs[0];
  entries_.clear();
}

void QwenSharer::backward(std::vector<Start>& starts, double weight) {
  // The tables are read by every layer: their derivatives are added up over all.
  at::Tensor gradient = gradient_, by_cos = at::zeros_like(cos_), by_sin = at::zeros_like(sin_);
  differentiates_ = true;
  entries_.clear();
  const auto leaf = [](const at::Tensor& x) { return x.detach().clone().requires_grad_(true); };
  at::Tensor last = leaf(starts.back().stream);
  add_parts(final_norm(last), {&last}, gradient, weight);
  for (int i = static_cast<int>(config_.layers) - 1; i >= 0; --i) {
    layer_ = i;
    // Leaves of their own cut the graph between layers, which frees each layer's tensors once it is
    // done.
    Start start{leaf(starts[i].stream), leaf(starts[i].cos), leaf(starts[i].sin)};
    add_parts(layer(start), {&start.stream, &start.cos, &start.sin}, gradient, weight);
    by_cos += start.cos;
    by_sin += start.sin;
  }
  differentiates_ = false;
  const auto add = [&](PointName name, const at::Tensor& by) {
    if (const auto error = errors_.find(key_of({&name.point, -1})); error != errors_.end())
      parts_[error->first] += weight * dot(by, as_dtype(error->second, DType::f64));
  };
  add("embed", gradient);
  add("rope.cos", by_cos);
  add("rope.sin", by_sin);
}

// The error of the logits, the part of their own op, and what the last norm moves them by.
void QwenSharer::share_logits(const at::Tensor& recorded, const at::Tensor& exact,
                              SharedError& shared) {
  const RecordedRows* stored = text_->find({&point("logits"), -1});
  const int64_t count = std::ssize(text_->logit_rows), vocab = config_.vocab;
  gradient_ = at::zeros_like(exact);
  double own = 0;
  for (int64_t first = 0, block = kLogits / vocab + 1; first < count; first += block) {
    const int64_t rows = std::min(block, count - first);
    const at::Tensor index = rows_.narrow(0, first, rows);
    const auto logits = [&](const at::Tensor& h) {
      return linear("logits", h.index_select(0, index));
    };
    const at::Tensor got =
        as_dtype(to_torch(stored->data.view()).narrow(0, first, rows), DType::f64)
            .to(exact.device());
    if (!at::isfinite(got).all().item<bool>()) {
      if (trouble_.empty()) trouble_ = "logits is the first op whose result is not finite";
      return;
    }
    // Rows of logits are made again for each block: all of them, in fp64, would take vocab times
    // rows.
    const at::Tensor error = got - logits(exact);
    own += dot(error, got - logits(recorded));
    shared.squares += dot(error, error);
    shared.elements += error.numel();
    gradient_.index_add_(0, index, weights_.back({&point("logits"), -1}, error));
  }
  parts_[key_of({&point("logits"), -1})] = own;
}

void QwenSharer::begin(const RecordedText& text) {
  text_ = &text;
  errors_.clear();
  chosen_.clear();
  parts_.clear();
  trouble_.clear();
  only_ = nullptr;
  differentiates_ = false;
  Angles angles;
  for (size_t i = 0; i < text.tokens.size(); ++i) rotary_.append(angles, i, text.lengths[i]);
  const std::vector<int64_t> shape = {std::ssize(text.tokens), recipe_.head_dim / 2};
  const auto made = [&](std::vector<double>& of) {
    return at::from_blob(of.data(), shape, at::TensorOptions().dtype(at::kDouble))
        .clone()
        .to(weights_.device());
  };
  cos_ = made(angles.cos);
  sin_ = made(angles.sin);
  embedding_ = weights_.embedding(text.tokens);
  rows_ = at::tensor(text.logit_rows).to(at::kLong).to(weights_.device());
}

SharedError QwenSharer::share_out(const RecordedText& text) {
  SharedError shared{.parts = std::vector<double>(places_.size())};
  in_torch([&] {
    begin(text);
    way_ = Way::as_recorded;
    const at::Tensor recorded = forward(nullptr);
    way_ = Way::with_errors;
    scale_ = 0;
    if (trouble_.empty()) share_logits(recorded, forward(nullptr), shared);
    shared.trouble = trouble_;
    if (shared.squares == 0 || !trouble_.empty()) return;
    // Each number of panels begins anew: no point of the coarser rule is one of the finer.
    const std::map<Key, double> own = parts_;
    // Gauss's rule of two points on each panel.
    for (int panels = 1; panels <= kMostPanels; panels *= 2) {
      parts_ = own;
      for (int panel = 0; panel < panels; ++panel)
        for (const double side : {-1.0, 1.0}) {
          // Nodes lie at 1 / sqrt(12) of a panel on both sides of its middle, with half the weight
          // each: exact where <W^T E, dh/ds> is a cubic of s.
          scale_ = (panel + 0.5 + side / std::sqrt(12.0)) / panels;
          std::vector<Start> starts;
          forward(&starts);
          backward(starts, 0.5 / panels);
        }
      shared.steps = 2 * panels;
      double sum = 0;
      for (const auto& [key, part] : parts_) sum += part;
      // The sum is known, so that the rule checks itself: it is refined until the parts come to
      // within 1 % of the whole.
      if (std::fabs(sum - shared.squares) <= kClose * shared.squares) break;
    }
    for (size_t i = 0; i < places_.size(); ++i)
      if (const auto part = parts_.find(key_of(places_[i])); part != parts_.end())
        shared.parts[i] = part->second;
  });
  return shared;
}

std::vector<double> QwenSharer::alone(const RecordedText& text, const std::vector<Place>& ops) {
  std::vector<double> parts;
  in_torch([&] {
    begin(text);
    way_ = Way::as_recorded;
    const at::Tensor recorded = forward(nullptr);
    way_ = Way::with_errors;
    scale_ = 0;
    const at::Tensor exact = forward(nullptr);
    SharedError shared;
    share_logits(recorded, exact, shared);
    scale_ = 1;
    for (const Place& op : ops) {
      only_ = &op;
      // One op's error at full size moves the logits by what the last norm moved, seen along E.
      parts.push_back(op.point->is_of_logits() ? parts_.at(key_of(op))
                                               : dot(gradient_, forward(nullptr) - exact));
    }
    only_ = nullptr;
  });
  return parts;
}

}  // namespace

std::unique_ptr<ErrorSharer> qwen_error_sharer(const Checkpoint& checkpoint,
                                               const ReferenceOptions& options) {
  return std::make_unique<QwenSharer>(checkpoint, options);
}

}  // namespace lockstep
