// A small model in plain fp64 loops: the oracle that the judge is tested with, and passes whose
// every tensor is that oracle's answer, rounded, until a test spoils it.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "kernels/base/check.h"
#include "src/judge/oracle.h"
#include "src/weights/qwen_graph.h"
#include "traces/trace.h"

namespace lockstep {

inline constexpr int64_t kHidden = 32, kHeads = 4, kKvHeads = 2, kDim = 8, kInner = 48, kVocab = 40;

inline Tensor rounded_tensor(std::span<const double> values, const Shape& shape, DType dtype) {
  Tensor tensor(shape, dtype);
  for (size_t i = 0; i < values.size(); ++i) {
    const double x = is_float(dtype) ? round_to(values[i], dtype) : values[i];
    if (dtype == DType::f64) tensor.as<double>()[i] = x;
    if (dtype == DType::f32) tensor.as<float>()[i] = static_cast<float>(x);
    if (dtype == DType::f16) tensor.as<Float16>()[i] = from_float<Float16>(static_cast<float>(x));
    if (dtype == DType::bf16)
      tensor.as<BFloat16>()[i] = from_float<BFloat16>(static_cast<float>(x));
    if (dtype == DType::i32) tensor.as<int32_t>()[i] = static_cast<int32_t>(x);
  }
  return tensor;
}

inline std::vector<double> values_of(const TensorView& tensor) {
  std::vector<double> values(static_cast<size_t>(tensor.count()));
  widen(tensor, 0, values);
  return values;
}

class FakeOracle : public Oracle {
 public:
  Graph graph() const override { return qwen_graph({2, true}); }
  bool has_bias(const Place&) const override { return false; }
  int64_t chosen_experts() const override { return 0; }

  Exact evaluate(const OracleCall& call) override {
    ++calls;
    largest_call = std::max(largest_call, call.rows.size());
    switch (call.place.point->op) {
      case OpKind::gather:
        return gather(call);
      case OpKind::norm:
        return norm(call);
      case OpKind::linear:
        return linear(call);
      case OpKind::rope:
        return rope(call);
      case OpKind::attention:
        return attention(call);
      case OpKind::silu_mul:
        return silu_mul(call);
      case OpKind::add:
        return add(call);
      default:
        fail("the oracle was asked for an op that copies");
    }
  }

  int calls = 0;
  size_t largest_call = 0;  // rows

 private:
  // The number of the point among those of a model that is over no ranks and attends in no shares:
  // what tests were made with stays as it is when such points are added.
  static int number_of(const Point& p) {
    int number = 0;
    for (const Point& before : kPoints) {
      if (before == p) break;
      number += before.models.starts_with("over ranks") || before.is_of_shares() ? 0 : 1;
    }
    return number;
  }

  // `count` weights of a place or more: fixed, of either sign, in bf16 so that every dtype holds
  // them. They are remembered, as each call asks for the same; the judge's threads may ask at once.
  static const std::vector<double>& weights(const Place& place, size_t count, double scale) {
    const int first = 1 + number_of(*place.point) * 1009 + (place.layer + 1) * 104729;
    thread_local std::map<std::pair<int, double>, std::vector<double>> known;
    std::vector<double>& all = known[{first, scale}];
    while (all.size() < count) {
      std::minstd_rand random(static_cast<unsigned>(first + static_cast<int>(all.size()) * 31));
      random.discard(3);
      const double unit = static_cast<double>(random()) / static_cast<double>(random.max());
      all.push_back(round_to((2 * unit - 1) * scale, DType::bf16));
    }
    return all;
  }

  static Exact gather(const OracleCall& call) {
    std::vector<double> want;
    for (int32_t token : call.tokens) {
      const size_t begin = static_cast<size_t>(token) * kHidden;
      const auto row = weights(call.place, begin + kHidden, 1).begin() + static_cast<long>(begin);
      want.insert(want.end(), row, row + kHidden);
    }
    return {.shape = {std::ssize(call.rows), kHidden}, .want = std::move(want)};
  }

  // A value that the chain of a contract rounds on the way.
  static double step(double x, const OracleCall& call) {
    return call.contract == RoundingContract::hf ? round_to(x, call.dtype) : x;
  }
  static std::vector<Step> steps_of(std::vector<double> inner, std::vector<double> factor,
                                    const OracleCall& call) {
    if (call.contract != RoundingContract::hf) return {};
    return {{std::move(inner), std::move(factor), {}}};
  }

  static Exact norm(const OracleCall& call) {
    std::vector<double> x = values_of(call.inputs.at(0));
    if (call.inputs.size() == 2) {  // before their sum was rounded
      const std::vector<double> more = values_of(call.inputs[1]);
      for (size_t i = 0; i < x.size(); ++i) x[i] += more[i];
    }
    const auto width = static_cast<size_t>(call.inputs[0].shape.last());
    const std::vector<double>& gain = weights(call.place, width, 0.25);
    std::vector<double> want, inner, factor;
    for (size_t row = 0; row < x.size(); row += width) {
      double sum = 0;
      for (size_t i = 0; i < width; ++i) sum += x[row + i] * x[row + i];
      const double scale = 1 / std::sqrt(sum / static_cast<double>(width) + 1e-6);
      for (size_t i = 0; i < width; ++i) {
        inner.push_back(x[row + i] * scale);
        factor.push_back(1 + gain[i]);
        want.push_back(step(inner.back(), call) * factor.back());
      }
    }
    return {.contract = call.contract,
            .shape = call.inputs[0].shape,
            .want = std::move(want),
            .terms = static_cast<int64_t>(width),
            .steps = steps_of(std::move(inner), std::move(factor), call)};
  }

  static Shape row_shape(const Point& p) {
    if (p == point("attn.q")) return {kHeads, kDim};
    if (p == point("attn.k") || p == point("attn.v")) return {kKvHeads, kDim};
    if (p == point("mlp.gate") || p == point("mlp.up")) return {kInner};
    return {p == point("logits") ? kVocab : kHidden};
  }

  static Exact linear(const OracleCall& call) {
    const std::vector<double> x = values_of(call.inputs.at(0));
    const auto k = static_cast<size_t>(call.inputs[0].row_size());
    const Shape row = row_shape(*call.place.point);
    const auto n = static_cast<size_t>(row.count());
    std::vector<int64_t> extents{std::ssize(call.rows)};
    extents.insert(extents.end(), row.extents().begin(), row.extents().end());
    const std::vector<double>& w = weights(call.place, n * k, 0.5);
    std::vector<double> want, magnitude;
    for (size_t t = 0; t < call.rows.size(); ++t)
      for (size_t j = 0; j < n; ++j) {
        double sum = 0, size = 0;
        for (size_t i = 0; i < k; ++i) {
          sum += x[t * k + i] * w[j * k + i];
          size += std::fabs(x[t * k + i] * w[j * k + i]);
        }
        want.push_back(sum);
        magnitude.push_back(size);
      }
    return {.shape = Shape(extents),
            .want = std::move(want),
            .terms = static_cast<int64_t>(k),
            .magnitude = std::move(magnitude)};
  }

  static Exact rope(const OracleCall& call) {
    const std::vector<double> x = values_of(call.inputs.at(0));
    const auto heads = static_cast<size_t>(call.inputs[0].shape[1]);
    std::vector<double> want(x), magnitude(x), angles(x), x1c_x2s(x), turned(x), x2(x), cos(x),
        sin(x);
    const size_t half = kDim / 2;
    std::vector<double> inverse(half);
    for (size_t j = 0; j < half; ++j) inverse[j] = std::pow(100.0, -static_cast<double>(j) / half);
    for (size_t t = 0; t < call.rows.size(); ++t)
      for (size_t h = 0; h < heads; ++h)
        for (size_t i = 0; i < kDim; ++i) {
          const size_t at = (t * heads + h) * kDim, j = i % half;
          const double angle = call.rows[t].position * inverse[j];
          const double c = std::cos(angle), s = std::sin(angle);
          const double other = i < half ? -x[at + i + half] : x[at + i - half];
          want[at + i] = step(x[at + i] * step(c, call), call) + step(other * step(s, call), call);
          x2[at + i] = other, cos[at + i] = c, sin[at + i] = s;
          magnitude[at + i] = std::fabs(x[at + i]) + std::fabs(other);
          angles[at + i] = angle;
          x1c_x2s[at + i] = std::hypot(x[at + i] * c, other * s);
          turned[at + i] = std::fabs(other * c - x[at + i] * s);
        }
    Exact e{.contract = call.contract, .shape = call.inputs[0].shape, .want = want};
    e.magnitude = magnitude, e.angle = angles, e.x1c_x2s = x1c_x2s, e.turned = turned;
    if (call.contract == RoundingContract::hf) e.steps = {{cos, x, sin}, {sin, x2, cos}};
    return e;
  }

  static Exact attention(const OracleCall& call) {
    const std::vector<double> q = values_of(call.inputs.at(0)), k = values_of(call.keys_values.k),
                              v = values_of(call.keys_values.v);
    Attended e;
    std::vector<double> row_terms;
    for (size_t t = 0; t < call.rows.size(); ++t) {
      const auto keys = static_cast<size_t>(call.rows[t].position) + 1;
      check(static_cast<int64_t>(keys) <= call.keys_values.k.rows(), "too few keys for a test");
      row_terms.push_back(static_cast<double>(keys));
      for (size_t h = 0; h < kHeads; ++h) head(e, q, k, v, (t * kHeads + h) * kDim, h / 2, keys);
    }
    return {.contract = call.contract,
            .shape = call.inputs[0].shape,
            .want = e.want,
            .row_terms = row_terms,
            .magnitude = e.magnitude,
            .spread = e.spread,
            .spread_squares = e.spread_squares,
            .weighted_squares = e.weighted_squares,
            .score = e.score,
            .overlap = std::vector<double>(e.score.size())};
  }

  static double square(double x) { return x * x; }  // std::pow takes twenty times as long
  struct Attended {                                 // as in Exact
    std::vector<double> want, magnitude, spread, spread_squares, score, weighted_squares;
  };
  static void head(Attended& e, const std::vector<double>& q, const std::vector<double>& k,
                   const std::vector<double>& v, size_t at, size_t kv_head, size_t keys) {
    const double scale = 1 / std::sqrt(static_cast<double>(kDim));
    std::vector<double> p(keys);
    double total = 0, score = 0;
    for (size_t j = 0; j < keys; ++j) {
      double dot = 0, size = 0;
      for (size_t i = 0; i < kDim; ++i) {
        const double product = q[at + i] * k[(j * kKvHeads + kv_head) * kDim + i];
        dot += product;
        size += std::fabs(product);
      }
      score = std::max(score, scale * size);
      total += p[j] = std::exp(scale * dot);
    }
    e.score.push_back(score);
    for (size_t i = 0; i < kDim; ++i) {
      const auto value = [&](size_t j) { return v[(j * kKvHeads + kv_head) * kDim + i]; };
      double o = 0, size = 0, spread = 0, spread_squares = 0, squares = 0;
      for (size_t j = 0; j < keys; ++j) o += p[j] / total * value(j);
      for (size_t j = 0; j < keys; ++j) {
        size += p[j] / total * std::fabs(value(j));
        squares += square(p[j] / total * value(j));
        spread += p[j] / total * std::fabs(value(j) - o);
        spread_squares += square(p[j] / total * (value(j) - o));
      }
      e.want.push_back(o);
      e.magnitude.push_back(size);
      e.spread.push_back(spread);
      e.spread_squares.push_back(spread_squares);
      e.weighted_squares.push_back(squares);
    }
  }

  static Exact silu_mul(const OracleCall& call) {
    const std::vector<double> up = values_of(call.inputs.at(1));
    std::vector<double> want = values_of(call.inputs[0]), inner, gates, products;
    for (size_t i = 0; i < up.size(); ++i) {
      gates.push_back(std::fabs(want[i]));
      products.push_back(std::fabs(want[i] * up[i]));
      inner.push_back(want[i] / (1 + std::exp(-want[i])));
      want[i] = step(inner.back(), call) * up[i];
    }
    Exact exact{.contract = call.contract,
                .shape = call.inputs[0].shape,
                .want = want,
                .magnitude = products,
                .factor = up,
                .steps = steps_of(inner, up, call)};
    for (Step& step : exact.steps) step.other = gates;
    return exact;
  }

  static Exact add(const OracleCall& call) {
    const std::vector<double> b = values_of(call.inputs.at(1));
    std::vector<double> want = values_of(call.inputs[0]);
    for (size_t i = 0; i < b.size(); ++i) want[i] += b[i];
    return {.shape = call.inputs[0].shape, .want = std::move(want)};
  }
};

// What a test does to the tensor of a node before anyone sees it: [rows of the pass, ...].
using Spoil = std::function<void(const Place&, const PassInfo&, std::vector<double>&)>;

// The model made of the oracle: every op's exact result on what came before, rounded to `dtype`.
class FakeModel : public ReferenceModel {
 public:
  // contract: where the ops of a place round; none: fused, all of them.
  using ContractOf = std::function<RoundingContract(const Place&)>;
  explicit FakeModel(DType dtype, Spoil spoil = {}, ContractOf contract = {})
      : dtype_(dtype), spoil_(std::move(spoil)), contract_(std::move(contract)) {}

  void follow(Routes) override {}  // it has no experts
  void end(int32_t) override {}

  void run(const PassInfo& pass, Probe& probe) override {
    probe.begin(pass);
    std::map<std::pair<int, int>, Tensor> made;
    const auto key = [](const Place& p) { return std::pair(p.point->order(), p.layer); };
    std::vector<Row> rows;
    std::vector<int32_t> tokens;
    for (const PassRow& r : pass.rows) rows.push_back(r.row), tokens.push_back(r.token);
    for (const Place& place : oracle_.graph().places()) {
      const Point& p = *place.point;
      std::vector<Tensor> inputs;
      std::vector<Place> read = oracle_.graph().inputs_of(place);
      if (contract_of(place) == RoundingContract::unrounded_sum && read[0].point->op == OpKind::add)
        read = oracle_.graph().inputs_of(read[0]);
      for (const Place& input : read)
        if (!input.point->is_cache()) inputs.push_back(made.at(key(input)));
      if (p.is_cache()) {
        show_cache(place, inputs[0], inputs[1], rows, probe);
        continue;
      }
      std::vector<Row> own = rows;
      if (p == point("logits")) {
        own = logit_rows(pass, rows);
        inputs[0] = picked(inputs[0], pass.logit_rows);
      }
      if (p == point("logits") && own.empty()) break;
      if (p.op == OpKind::argmax) {
        made[key(place)] = argmax(inputs[0]);
        probe.logits(p, made[key(place)]);
        continue;
      }
      std::vector<double> values;
      Shape shape;
      evaluate(place, inputs, own, tokens, values, shape);
      if (spoil_) spoil_(place, pass, values);
      Tensor& tensor = made[key(place)] = rounded_tensor(values, shape, dtype_);
      if (p == point("logits"))
        probe.logits(p, tensor);
      else
        probe(p, place.layer, tensor);
    }
    probe.end();
  }

  // What lies in the cache, for tests that put something else there: [position][2 halves].
  using Lane = std::vector<std::array<std::vector<double>, 2>>;
  Lane& lane(int layer, int32_t request) { return cache_[{layer, request}]; }
  // Called after the pass's K and V are written and before they are read.
  std::function<void(FakeModel&, int layer)> before_reading;

 private:
  RoundingContract contract_of(const Place& place) const {
    return contract_ ? contract_(place) : RoundingContract::fused;
  }
  static std::vector<Row> logit_rows(const PassInfo& pass, const std::vector<Row>& rows) {
    std::vector<Row> own;
    for (int32_t i : pass.logit_rows) own.push_back(rows[static_cast<size_t>(i)]);
    return own;
  }
  Tensor picked(const TensorView& from, const std::vector<int32_t>& rows) const {
    std::vector<double> values;
    for (int32_t i : rows) {
      const std::vector<double> row = values_of(from.slice(i, 1));
      values.insert(values.end(), row.begin(), row.end());
    }
    return rounded_tensor(values, {std::ssize(rows), from.shape[1]}, dtype_);
  }
  static Tensor argmax(const TensorView& logits) {
    std::vector<double> best;
    for (int64_t i = 0; i < logits.rows(); ++i) {
      const std::vector<double> row = values_of(logits.slice(i, 1));
      best.push_back(static_cast<double>(std::ranges::max_element(row) - row.begin()));
    }
    return rounded_tensor(best, {logits.rows()}, DType::i32);
  }

  void evaluate(const Place& place, const std::vector<Tensor>& inputs, const std::vector<Row>& rows,
                const std::vector<int32_t>& tokens, std::vector<double>& values, Shape& shape) {
    OracleCall call{.place = place,
                    .dtype = dtype_,
                    .contract = contract_of(place),
                    .rows = rows,
                    .tokens = tokens};
    for (const Tensor& input : inputs) call.inputs.push_back(input);
    if (place.point->op != OpKind::attention) {
      const Exact e = oracle_.evaluate(call);
      values.assign(e.want.begin(), e.want.end()), shape = e.shape;
      return;
    }
    shape = inputs[0].view().shape;
    for (size_t first = 0; first < rows.size();) {
      size_t last = first;
      while (last < rows.size() && rows[last].request == rows[first].request) ++last;
      const auto count = static_cast<int64_t>(last - first);
      const Lane& kv = lane(place.layer, rows[first].request);
      const Tensor k = half(kv, 0), v = half(kv, 1);
      call.rows = std::span(rows).subspan(first, last - first);
      call.inputs = {inputs[0].view().slice(static_cast<int64_t>(first), count)};
      call.keys_values = {k, v};
      const Exact e = oracle_.evaluate(call);
      values.insert(values.end(), e.want.begin(), e.want.end());
      first = last;
    }
  }

  Tensor half(const Lane& kv, size_t which) const {
    std::vector<double> values;
    for (const auto& row : kv) values.insert(values.end(), row[which].begin(), row[which].end());
    return rounded_tensor(values, {std::ssize(kv), kKvHeads, kDim}, dtype_);
  }

  void show_cache(const Place& place, const TensorView& k, const TensorView& v,
                  const std::vector<Row>& rows, Probe& probe) {
    for (size_t i = 0; i < rows.size(); ++i) {
      Lane& kv = lane(place.layer, rows[i].request);
      kv.resize(static_cast<size_t>(rows[i].position) + 1);
      kv.back() = {values_of(k.slice(static_cast<int64_t>(i), 1)),
                   values_of(v.slice(static_cast<int64_t>(i), 1))};
    }
    if (before_reading) before_reading(*this, place.layer);
    for (size_t i = 0; i < rows.size(); ++i) {
      if (i + 1 < rows.size() && rows[i + 1].request == rows[i].request) continue;
      std::vector<double> values;
      std::vector<Row> positions;
      const Lane& kv = lane(place.layer, rows[i].request);
      for (const auto& row : kv) {
        positions.push_back({rows[i].request, static_cast<int32_t>(positions.size())});
        for (const auto& part : row) values.insert(values.end(), part.begin(), part.end());
      }
      const Shape shape{std::ssize(kv), 2, kKvHeads, kDim};
      probe(*place.point, place.layer, positions, rounded_tensor(values, shape, dtype_));
    }
  }

  FakeOracle oracle_;
  DType dtype_;
  Spoil spoil_;
  ContractOf contract_;
  std::map<std::pair<int, int32_t>, Lane> cache_;
};

inline Pass pass_of(ReferenceModel& model, const PassInfo& info) {
  Pass pass;
  Recorder recorder({}, true, [&](Pass seen) { pass = std::move(seen); });
  Probe probe(&recorder);
  model.run(info, probe);
  check(probe.failure().empty(), "{}", probe.failure());
  return pass;
}

// Two requests: a prompt each, then `steps` tokens that the model chooses.
struct FakeRun {
  Manifest manifest{.provenance = {{"page_size", "4"}}, .graph = qwen_graph({2, true})};
  std::vector<Pass> passes;
  std::vector<RequestInfo> requests;
};

inline FakeRun fake_run(ReferenceModel& model, DType dtype, int steps = 2,
                        std::vector<int> prompts = {13, 9}) {
  FakeRun run;
  run.manifest.dtype = dtype;
  for (const Point& p : kPoints)
    run.manifest.contracts[std::string(p.name)] = RoundingContract::fused;
  PassInfo info;
  for (int32_t r = 0; r < std::ssize(prompts); ++r) {
    RequestInfo request{.id = r};
    for (int32_t p = 0; p < prompts[static_cast<size_t>(r)]; ++p)
      request.prompt.push_back((p * 7 + r * 11 + 3) % static_cast<int32_t>(kVocab));
    run.requests.push_back(request);
  }
  for (int step = 0; step <= steps; ++step) {
    info = {.pass = step};
    for (RequestInfo& request : run.requests) {
      const auto length = static_cast<int32_t>(request.prompt.size() + request.tokens.size());
      const int32_t first = step == 0 ? 0 : length - 1;
      for (int32_t p = first; p < length; ++p) {
        const auto at = static_cast<size_t>(p);
        const int32_t token = at < request.prompt.size()
                                  ? request.prompt[at]
                                  : request.tokens[at - request.prompt.size()];
        info.rows.push_back({{request.id, p}, token, p, step ? Phase::decode : Phase::prefill});
      }
      info.logit_rows.push_back(static_cast<int32_t>(info.rows.size()) - 1);
    }
    run.passes.push_back(pass_of(model, info));
    const RecordedTensor* token = run.passes.back().find(point("token"), -1);
    for (size_t r = 0; r < run.requests.size(); ++r) {
      const auto id = static_cast<int32_t>(value_at(token->data, static_cast<int64_t>(r)));
      run.requests[r].tokens.push_back(id);
      run.requests[r].argmax.push_back(id);
    }
  }
  run.manifest.requests = run.requests;
  return run;
}

}  // namespace lockstep
