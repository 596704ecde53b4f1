// The engine runs once. Its recorded passes are then judged again and again, with one error put
// into what it showed at one point, of sizes that are powers of two, so that each question costs a
// judgement and no forward pass.
#include "src/selftest/detection.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <span>

#include "kernels/base/check.h"
#include "src/judge/judge.h"
#include "src/judge/ledger.h"
#include "src/selftest/controls.h"
#include "src/selftest/stated_limit.h"
#include "src/selftest/statistic_cases.h"
#include "src/session/device.h"
#include "src/session/judged_run.h"
#include "src/session/op_watch.h"
#include "src/session/store.h"
#include "src/stats/moments.h"

namespace lockstep {
namespace {

using Effect = Detection::Effect;

constexpr int kLeastPower = kLeastStatedPower, kMostPower = 14;  // of two: the sizes

// Points whose op can be called apart and whose results are not decided bit by bit.
bool rounds(const Point& point) {
  return OpWatch::possible({&point, 0}) && point.node_class != NodeClass::exact;
}

using PlaceKey = std::pair<int, int>;  // order of the point, layer
PlaceKey key_of(const Place& place) { return {place.point->order(), place.layer}; }

// Keeps what ops make before it is rounded to the dtype: in fp32, of the inputs widened. Once an
// effect is in, a result must be rounded as an engine's is: so effects go into what it was before.
class WideResults final : public OpWatch {
 public:
  using OpWatch::OpWatch;
  bool wants(const Point&, int) const override { return false; }
  // One a call, in their order.
  const std::vector<Tensor>& of(const Place& place) const { return results_.at(key_of(place)); }

 protected:
  void call(const Place& place, const TensorView& out, const Runs& runs) override {
    Tensor& wide = results_[key_of(place)].emplace_back(out.shape, DType::f32);
    runs.wide(wide);
    runs.op();
  }

 private:
  std::map<PlaceKey, std::vector<Tensor>> results_;
};

// An oracle that is asked the same again and again. Rows tell calls apart, since the run and its
// tensors stay the same.
class RememberingOracle final : public Oracle {
 public:
  explicit RememberingOracle(Oracle& oracle) : oracle_(oracle) {}
  Graph graph() const override { return oracle_.graph(); }
  bool has_bias(const Place& place) const override { return oracle_.has_bias(place); }
  int64_t chosen_experts() const override { return oracle_.chosen_experts(); }
  Exact evaluate(const OracleCall& call) override {
    std::vector<std::pair<int32_t, int32_t>> rows;
    for (const Row& row : call.rows) rows.emplace_back(row.request, row.position);
    const auto found = known_.find({key_of(call.place), call.contract, rows});
    if (found != known_.end()) return found->second;
    const Key key{key_of(call.place), call.contract, std::move(rows)};
    return known_.emplace(key, oracle_.evaluate(call)).first->second;
  }
  void forget() { known_.clear(); }

 private:
  using Key = std::tuple<PlaceKey, RoundingContract, std::vector<std::pair<int32_t, int32_t>>>;
  Oracle& oracle_;
  std::map<Key, Exact> known_;
};

// One row of a result, before it is rounded.
struct WideRow {
  std::vector<double> values;
  double unit;  // ulp(r)
  bool chosen;  // of all rows of the run, the one that Effect::row and element are put in
};

double root_mean_square(const std::vector<double>& values) {
  double squares = 0;
  for (const double x : values) squares += x * x;
  return root_mean(squares, std::ssize(values));
}

// Where Effect::element is put: the largest of the last 8 that is not above the row's r. One that
// is not above r has an ulp that is no larger than ulp(r), so that the effect is at least its size
// in its own ulp.
size_t element_of(const std::vector<double>& values) {
  const double r = root_mean_square(values);
  size_t at = values.size() - 1;
  for (size_t i = values.size() - std::min<size_t>(8, values.size()); i < values.size(); ++i) {
    const double size = std::fabs(values[i]), most = std::fabs(values[at]);
    if (size <= r && (most > r || size > most)) at = i;
  }
  return at;
}

void put(Effect effect, double size, DType dtype, std::mt19937_64& random, WideRow& row) {
  std::vector<double>& values = row.values;
  const double factor = 1 + size * unit_roundoff(dtype), step = size * row.unit;
  switch (effect) {
    case Effect::gain:
      for (double& x : values) x *= factor;
      return;
    case Effect::offset:
      for (double& x : values) x += step;
      return;
    case Effect::noise:
      for (double& x : values) x += random() % 2 == 0 ? step : -step;
      return;
    case Effect::row:
      for (double& x : values) x *= row.chosen ? factor : 1;
      return;
    case Effect::column:
      values.back() *= factor;
      return;
    case Effect::element:
      if (row.chosen) values[element_of(values)] += step;
  }
}

int64_t chosen_of(int64_t rows) { return rows / 2; }

// max |q| . |k| / sqrt(head_dim), of rows and keys of the same request. The later keys of a prompt
// are counted too, which a query does not see: a bound may be too large.
double largest_score(const RecordedTensor& q, const RecordedTensor& k) {
  const size_t heads = q.shape[1], kv_heads = k.shape[1], dim = q.shape[2];
  std::vector<double> queries(q.rows.size() * heads * dim), keys(k.rows.size() * kv_heads * dim);
  widen(q.data, 0, queries);
  widen(k.data, 0, keys);
  double most = 0;
  for (size_t i = 0; i < q.rows.size() * heads; ++i)
    for (size_t j = 0; j < k.rows.size(); ++j) {
      if (q.rows[i / heads].request != k.rows[j].request) continue;
      const double* a = &queries[i * dim];
      const double* b = &keys[(j * kv_heads + i % heads * kv_heads / heads) * dim];
      double sum = 0;
      for (size_t d = 0; d < dim; ++d) sum += std::fabs(a[d] * b[d]);
      most = std::max(most, sum);
    }
  return most / std::sqrt(dim);
}

// The run of a right engine that effects are put into. For one thread. Results before the rounding
// take twice the memory of the tensors in 16 bits.
class ShownRun {
 public:
  // `plan` is borrowed; `right` is asked for results before they are rounded.
  ShownRun(const Detection::Plan& plan, Oracle& right)
      : plan_(plan),
        wide_(right, plan.engine.dtype, places()),
        seen_(serve_clean(plan.checkpoint, plan.engine, plan.requests, &wide_)) {}

  const Seen& seen() const { return seen_; }
  std::vector<int> layers_of(const Point& point) const {
    return point.per_layer ? plan_.layers : std::vector{-1};
  }

  // Copies what was seen of the op's inputs and result at the place, and puts the effect into it.
  void show(const Place& place, Effect effect, double size, std::vector<Pass>& passes) const {
    size_t number = 0;
    const size_t longest = longest_pass(place);
    for (size_t p = 0; p < seen_.passes.size(); ++p) {
      for (const Place& input : seen_.manifest.graph.inputs_of(place))
        for (const RecordedTensor& tensor : seen_.passes[p].tensors)
          if (Place{tensor.point, tensor.layer} == input) passes[p].tensors.push_back(tensor);
      const RecordedTensor* tensor = seen_.passes[p].find(*place.point, place.layer);
      if (!tensor) continue;
      // Calls and recorded tensors of a place come in the same order.
      const Tensor& wide = wide_.of(place).at(number++);
      check(wide.view().count() == tensor->shape.count(),
            "{} elements of {} were wanted before they are rounded, found {}",
            tensor->shape.count(), text_of(place), wide.view().count());
      RecordedTensor changed = *tensor;
      changed.data = Tensor(tensor->shape, tensor->dtype);
      change(wide, effect, size, p == longest, changed);
      passes[p].tensors.push_back(std::move(changed));
    }
  }

  // The facts of an effect at the last of some layers that decide how small it may be seen.
  Seeable seeable(const Point& point, const std::vector<int>& layers, Effect effect) const {
    const Place place{&point, layers.back()};
    const RecordedTensor& made = tensor_of(place);
    const RecordedTensor& read = tensor_of(seen_.manifest.graph.inputs_of(place).at(0));
    const OpKind op = point.op;
    Seeable s{.op = op, .dtype = plan_.engine.dtype};
    int64_t terms = read.shape.last();
    if (op == OpKind::linear) terms = read.data.view().row_size();
    if (op == OpKind::weighted_sum) terms = read.shape[1];
    if (op == OpKind::attention) {
      s.sizes.head_dim = static_cast<double>(terms);
      terms = 1;
      for (const Request& request : plan_.requests)
        terms = std::max<int64_t>(terms, request.max_positions());
      for (const int layer : layers) s.sizes.scores = std::max(s.sizes.scores, scores(layer));
    }
    s.sizes.terms = static_cast<double>(terms);
    if (op == OpKind::rope && effect == Effect::element) {
      s.sizes.pair = 0;
      for (const int layer : layers) s.sizes.pair = std::max(s.sizes.pair, pair({&point, layer}));
    }
    if (op == OpKind::silu_mul)
      s.sizes.gates =
          gates({&point, layers.front()}, effect == Effect::row || effect == Effect::element);
    double rows = 0;
    for (const Pass& pass : seen_.passes)
      if (const RecordedTensor* tensor = pass.find(point, place.layer))
        rows += static_cast<double>(tensor->rows.size());
    const auto width = static_cast<double>(made.data.view().row_size());
    const bool of_row = effect == Effect::row, of_column = effect == Effect::column;
    s.elements = effect == Effect::element ? 1 : of_row ? width : of_column ? rows : rows * width;
    s.errors = s.elements;
    // A norm and a softmax are off by a factor that a row has in common, an attention by one a
    // head.
    if (op == OpKind::norm || op == OpKind::softmax)
      s.errors = of_row ? 1 : std::min(s.errors, rows);
    if (op == OpKind::attention && of_row) s.errors = static_cast<double>(made.shape[1]);
    s.beside_small = effect == Effect::offset || effect == Effect::noise;
    // The slow dims of a head turn by so little that what was a number of the dtype stays close.
    s.by_chance = s.elements > 1 && !(op == OpKind::rope && of_column);
    return s;
  }

 private:
  std::vector<Place> places() const {
    std::vector<Place> all;
    for (const Point* point : plan_.points)
      for (const int layer : layers_of(*point)) all.push_back({point, layer});
    return all;
  }

  size_t longest_pass(const Place& place) const {
    size_t longest = 0;
    int64_t most = 0;
    for (size_t p = 0; p < seen_.passes.size(); ++p) {
      const RecordedTensor* tensor = seen_.passes[p].find(*place.point, place.layer);
      if (tensor && std::ssize(tensor->rows) > most) most = std::ssize(tensor->rows), longest = p;
    }
    return longest;
  }

  void change(const TensorView& wide, Effect effect, double size, bool longest,
              RecordedTensor& changed) const {
    const auto rows = std::ssize(changed.rows), width = changed.data.view().row_size();
    // The same signs in every judgement of a layer: sizes are compared, and not luck.
    std::mt19937_64 random(1000 + changed.layer);
    WideRow row{.values = std::vector<double>(width)};
    for (int64_t r = 0; r < rows; ++r) {
      widen(wide, r * width, row.values);
      row.unit = ulp(root_mean_square(row.values), plan_.engine.dtype);
      row.chosen = longest && r == chosen_of(rows);
      put(effect, size, plan_.engine.dtype, random, row);
      for (int64_t i = 0; i < width; ++i) store(changed.data, r * width + i, row.values[i]);
    }
  }

  const RecordedTensor& tensor_of(const Place& place) const {
    for (const Pass& pass : seen_.passes)
      for (const RecordedTensor& tensor : pass.tensors)
        if (Place{tensor.point, tensor.layer} == place) return tensor;
    fail("a tensor of {} was wanted, but the engine did not show it", text_of(place));
  }

  double scores(int layer) const {
    double most = 0;
    for (const Pass& pass : seen_.passes) {
      const RecordedTensor* q = pass.find(point("attn.q_rope"), layer);
      const RecordedTensor* k = pass.find(point("attn.k_rope"), layer);
      if (q && k) most = std::max(most, largest_score(*q, *k));
    }
    return most;
  }

  // The gates of a SiLU: of the row that Effect::row is put in alone, or of all.
  std::vector<double> gates(const Place& place, bool chosen_row) const {
    const Place gate = seen_.manifest.graph.inputs_of(place).at(0);
    const size_t longest = longest_pass(place);
    std::vector<double> all;
    for (size_t p = 0; p < seen_.passes.size(); ++p) {
      const RecordedTensor* read = seen_.passes[p].find(*gate.point, gate.layer);
      if (!read || (chosen_row && p != longest)) continue;
      const TensorView data = read->data;
      const int64_t rows = data.rows(), first = chosen_row ? chosen_of(rows) : 0;
      std::vector<double> some((chosen_row ? 1 : rows) * data.row_size());
      widen(data, first * data.row_size(), some);
      all.insert(all.end(), some.begin(), some.end());
    }
    return all;
  }

  // (|x1| + |x2|) / r of what Effect::element is put in of a rope.
  double pair(const Place& place) const {
    const size_t longest = longest_pass(place);
    size_t number = 0;
    for (size_t p = 0; p < longest; ++p)
      if (seen_.passes[p].find(*place.point, place.layer)) ++number;
    const Place input = seen_.manifest.graph.inputs_of(place).at(0);
    const RecordedTensor* read = seen_.passes[longest].find(*input.point, input.layer);
    const RecordedTensor* made = seen_.passes[longest].find(*place.point, place.layer);
    check(read && made, "{} and what it reads were wanted in one pass", text_of(place));
    const int64_t width = made->data.view().row_size(), dim = made->shape.last(),
                  start = chosen_of(std::ssize(made->rows)) * width;
    std::vector<double> turned(width), x(turned.size());
    widen(wide_.of(place).at(number), start, turned);
    widen(read->data, start, x);
    const int64_t at = element_of(turned);
    const int64_t other = at % dim < dim / 2 ? at + dim / 2 : at - dim / 2;
    return (std::fabs(x[at]) + std::fabs(x[other])) / root_mean_square(turned);
  }

  const Detection::Plan& plan_;
  WideResults wide_;
  Seen seen_;
};

// The sizes at which the judge finds an effect, by bisection over powers of two.
class Ladder {
 public:
  explicit Ladder(const Detection::Plan& plan)
      : plan_(plan),
        right_(
            plan.reference.oracle(plan.checkpoint, reference_options(plan.reference, plan.engine))),
        oracle_(*right_),
        shown_(plan, *right_) {}

  std::vector<Detection::Limit> limits() {
    std::vector<Detection::Limit> limits;
    for (const Point* point : plan_.points) {
      oracle_.forget();
      const std::vector<int> layers = shown_.layers_of(*point);
      // Size 0: the right results once more, through the same rounding.
      const Result clean = judged(*point, layers, Effect::gain, 0);
      for (const Effect effect : values_of<Effect>()) {
        limits.push_back(least(*point, {layers.back()}, effect, clean));
        if (layers.size() > 1) limits.push_back(least(*point, layers, effect, clean));
      }
    }
    return limits;
  }

  // The sizes are spread evenly by their logarithm.
  std::vector<Detection::Run> runs() {
    std::vector<Detection::Run> runs;
    std::mt19937_64 random(7);
    size_t last = 0;
    const auto one_of = [&](size_t n) { return random() % n; };
    const int total = plan_.near + plan_.far;
    for (int i = 0; i < total; ++i) {
      // The two kinds take turns in proportion to their numbers.
      const bool is_near = i * plan_.near / total != (i + 1) * plan_.near / total;
      // All of a point after each other, so that its exact results are computed once.
      const size_t at = i * plan_.points.size() / total;
      const Point& point = *plan_.points[at];
      if (runs.empty() || at != last) oracle_.forget();
      last = at;
      const Effect effect = values_of<Effect>()[one_of(values_of<Effect>().size())];
      std::vector<int> layers = shown_.layers_of(point);
      if (one_of(2) == 0) layers = {layers[one_of(layers.size())]};
      // 53 bits, uniform in [0, 1), the same on every machine.
      const double chance = static_cast<double>(random() >> 11) * 0x1p-53;
      const double times = is_near ? std::exp2(2 * chance - 1) : std::exp2(3 * chance + 1);
      const double stated = stated_limit(shown_.seeable(point, layers, effect));
      const Result result = judged(point, layers, effect, times * stated);
      runs.push_back({.name = fmt::format("{} of {} in layer {}, {:.3g} ulp", name_of(effect),
                                          point.name, fmt::join(layers, ","), times * stated),
                      .size = times * stated,
                      .stated = stated,
                      .verdict = result.verdict,
                      .story = result.story,
                      .limit_ratio = result.limit_ratio,
                      .exact = names(result, point, layers)});
    }
    return runs;
  }

 private:
  static bool names(const Result& result, const Point& point, const std::vector<int>& layers) {
    return result.verdict == RunVerdict::diverged && result.first &&
           result.first->node.place == Place{&point, layers.front()};
  }

  // The judge gets the tensors of this place alone, which costs an op and no model.
  Result judged(const Point& point, const std::vector<int>& layers, Effect effect, double size) {
    std::vector<Pass> passes(shown_.seen().passes.size());
    for (size_t p = 0; p < passes.size(); ++p) passes[p].info = shown_.seen().passes[p].info;
    for (const int layer : layers) shown_.show({&point, layer}, effect, size, passes);
    for (Pass& pass : passes)
      if (const RecordedTensor* logits = pass.find(lockstep::point("logits"), -1))
        pass.logits = top_logits_of(logits->data, logits->rows);
    const std::string named = point.per_layer ? fmt::format("{}", fmt::join(layers, ",")) : "";
    Judge judge(shown_.seen().manifest, oracle_, nullptr, nullptr,
                {.selection = Selection(std::string(point.name), named, "", ""),
                 .threads = plan_.threads,
                 .limits = plan_.limits});
    for (const Pass& pass : passes) judge.judge(pass);
    return judge.finish(shown_.seen().manifest.requests, true);
  }

  Detection::Limit least(const Point& point, const std::vector<int>& layers, Effect effect,
                         const Result& clean) {
    Detection::Limit limit{.point = &point,
                           .effect = effect,
                           .layers = static_cast<int>(layers.size()),
                           .size = std::numeric_limits<double>::infinity(),
                           .statistic = "nothing"};
    limit.stated = stated_limit(shown_.seeable(point, layers, effect));
    if (clean.verdict != RunVerdict::clean) {
      limit.statistic = std::string("nothing, for right results are ") + name_of(clean.verdict);
      return limit;
    }
    // A larger effect is taken to be found where a smaller one is.
    int low = kLeastPower - 1, high = kMostPower + 1;  // not found, found
    while (high - low > 1) {
      const int power = (low + high) / 2;
      const Result result = judged(point, layers, effect, std::ldexp(1, power));
      const bool found = names(result, point, layers);
      if (found) {
        limit.size = std::ldexp(1, power);
        limit.statistic = statistic_of(*result.first);
        limit.kind = result.first->statistic;
      }
      (found ? high : low) = power;
    }
    return limit;
  }

  const Detection::Plan& plan_;
  std::unique_ptr<Oracle> right_;
  RememberingOracle oracle_;
  ShownRun shown_;
};

}  // namespace

std::vector<const Point*> detectable_points(const Graph& graph, bool one_an_op) {
  std::vector<const Point*> points;
  for (const Place& place : graph.places()) {
    const Point& point = *place.point;
    const auto is_it = [&](const Point* p) { return *p == point; };
    const auto same_op = [&](const Point* p) { return p->op == point.op; };
    if (!rounds(point) || std::ranges::any_of(points, is_it)) continue;
    if (!one_an_op || std::ranges::none_of(points, same_op)) points.push_back(&point);
  }
  return points;
}

Detection detection(const Detection::Plan& plan) {
  Ladder ladder(plan);
  Detection detection{.limits = ladder.limits(), .runs = ladder.runs()};
  return detection;
}

}  // namespace lockstep
