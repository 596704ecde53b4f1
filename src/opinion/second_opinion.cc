// One element of one op, computed from its definition in numbers of 64 bits of precision, by code
// that shares nothing with the oracle, the engine or the hypotheses: not the formulas, not the
// rounding, not the reader of config.json. A finding that both the oracle and this agree on is no
// mistake of the judge's.
//
//   Place, row, index -> Call: the recorded inputs of that row
//                     -> the op's definition, an element at a time, in long double
//                     -> rounded where the contract rounds -> Opinion {exact, stored}
//
// Weights are rounded to the run's dtype first, as an engine holds them. Cost does not matter here:
// a confirmation asks for a handful of elements. What cannot be answered, since a tensor was not
// kept, comes back as `lacking` and never as agreement.
#include "src/opinion/second_opinion.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/base/check.h"
#include "kernels/files/json.h"

namespace lockstep {
namespace {

using enum RoundingContract;
using Numbers = std::vector<long double>;

// The input that an element needs and the pass does not show.
struct Lacking {
  std::string what;
};

// To a dtype, halves to even. Its own, as all here. Scaling by powers of two is exact, so that
// rint() alone rounds, in the current mode: to nearest even.
long double rounded(long double x, DType dtype) {
  if (!std::isfinite(x) || x == 0) return x;
  const FloatFormat format = format_of(dtype);
  int exponent = 0;
  std::frexp(x, &exponent);  // |x| in [2^(exponent - 1), 2^exponent)
  const int last = std::max(exponent - 1, format.min_exponent) - (format.precision - 1);
  const long double y = std::ldexp(std::rint(std::ldexp(x, -last)), last);
  return std::fabs(y) > static_cast<long double>(format.max)
             ? std::copysign(std::numeric_limits<long double>::infinity(), x)
             : y;
}

bool is_hf(RoundingContract contract) { return contract == hf || contract == hf_unrounded_sum; }
bool reads_sum(RoundingContract contract) {
  return contract == unrounded_sum || contract == hf_unrounded_sum;
}

std::string layer_prefix(const Place& place) {
  return place.layer < 0 ? "" : fmt::format("model.layers.{}.", place.layer);
}
std::string name_of_part(const Place& place, const char* part) {
  return layer_prefix(place) + std::string(place.point->weight) + part;
}

}  // namespace

// The few numbers of config.json that an op's definition has, read anew.
struct SecondOpinion::Config {
  long double eps = 1e-6L;
  bool normalises_experts = false;
  std::vector<int64_t> window;  // by layer; 0: all

  explicit Config(const JsonValue& config) {
    if (const JsonValue value = config["rms_norm_eps"]) eps = value.number();
    if (const JsonValue value = config["norm_topk_prob"]) normalises_experts = value.flag();
    window.assign(config["num_hidden_layers"].whole<size_t>(), 0);
    if (!config["use_sliding_window"] || !config["use_sliding_window"].flag()) return;
    const JsonValue types = config["layer_types"], from = config["max_window_layers"];
    const size_t first = from ? from.whole<size_t>() : 0;
    for (size_t i = 0; i < window.size(); ++i)
      if (types ? types[i].is("sliding_attention") : i >= first)
        window[i] = config["sliding_window"].whole<int64_t>();
  }
};

// One element that is asked for, and the tensors that it is made of.
struct SecondOpinion::Call {
  Place place;
  RoundingContract contract;
  const Pass& pass;
  Row row;
  std::span<const int64_t> index;
  std::vector<Place> inputs;
  DType dtype;

  const RecordedTensor& tensor(const Place& of) const {
    // The tensor of this request, where a point has one for each, as the cache.
    const RecordedTensor* found = pass.find(*of.point, of.layer, row.request);
    if (!found || found->data.view().empty())
      throw Lacking{fmt::format("{} was not kept", of.point->name)};
    return *found;
  }
  // The row of that tensor.
  Numbers numbers(const Place& of) const {
    const RecordedTensor& kept = tensor(of);
    const auto at = std::ranges::find(kept.rows, row) - kept.rows.begin();
    if (at == std::ssize(kept.rows))
      throw Lacking{fmt::format("a row of {} is missing", of.point->name)};
    const TensorView data = kept.data;
    Numbers all;
    for (int64_t i = 0; i < data.row_size(); ++i)
      all.push_back(value_at(data, at * data.row_size() + i));
    return all;
  }
  Numbers input(size_t i) const { return numbers(inputs.at(i)); }
  long double kept(long double x) const { return rounded(x, dtype); }
  // Keeps the inner value of a chain that only Hugging Face's rounds.
  long double kept_by_hf(long double x) const { return is_hf(contract) ? kept(x) : x; }
};

SecondOpinion::SecondOpinion(const Checkpoint& checkpoint, const Graph& graph, DType dtype)
    : checkpoint_(checkpoint),
      graph_(graph),
      dtype_(dtype),
      config_(std::make_unique<Config>(
          JsonDocument(checkpoint.config_text(), {checkpoint.dir() + "/config.json", ""}).root())) {
}
SecondOpinion::~SecondOpinion() = default;

long double SecondOpinion::weight_at(const std::string& name, int64_t i) const {
  return rounded(value_at(checkpoint_.tensor(name), i), dtype_);
}

// n w, n = x / sqrt(mean x^2 + eps), over the last axis.
long double SecondOpinion::norm(const Call& call) const {
  Numbers x = call.input(0);
  if (reads_sum(call.contract) && call.inputs[0].point->op == OpKind::add) {
    const std::vector<Place> terms = graph_.inputs_of(call.inputs[0]);
    const Numbers a = call.numbers(terms.at(0)), b = call.numbers(terms.at(1));
    // Under these contracts the norm reads the sum before it is stored, which nobody recorded.
    for (size_t i = 0; i < x.size(); ++i) x[i] = a[i] + b[i];
  }
  const std::string weight = name_of_part(call.place, ".weight");
  const int64_t width = checkpoint_.tensor(weight).count(), column = call.index.back();
  // Where there are heads, each is normed by itself.
  const auto first = call.index.size() > 1 ? call.index[0] * width : 0;
  long double squares = 0;
  for (int64_t i = 0; i < width; ++i) squares += x[first + i] * x[first + i];
  const long double root = std::sqrt(squares / static_cast<long double>(width) + config_->eps);
  const long double n = x.at(first + column) / root;
  return call.kept_by_hf(n) * weight_at(weight, column);
}

// The sum over k of x[k] w[row, k], with operands rounded where the contract says so.
long double SecondOpinion::product(const Call& call, const std::string& weight, int64_t row,
                                   const Numbers& x) const {
  const TensorView w = checkpoint_.tensor(weight);
  long double sum = 0;
  for (int64_t k = 0; k < w.shape[1]; ++k) {
    long double operand = x.at(k);
    if (call.contract == operands_bf16) operand = rounded(operand, DType::bf16);
    if (call.contract == operands_fp16) operand = rounded(operand, DType::f16);
    // A product of two numbers of fp32 has 48 bits at most, and is exact in 64.
    sum += operand * rounded(value_at(w, row * w.shape[1] + k), dtype_);
  }
  return sum;
}

// x W^T + b
long double SecondOpinion::linear(const Call& call) const {
  int64_t output = call.index[0];  // [head, dim] is one axis of the weight
  if (call.index.size() > 1) output = output * call.tensor(call.place).shape.last() + call.index[1];
  const long double sum = product(call, name_of_part(call.place, ".weight"), output, call.input(0));
  const std::string bias = name_of_part(call.place, ".bias");
  if (!checkpoint_.has(bias)) return sum;
  return (call.contract == bias_after_store ? call.kept(sum) : sum) + weight_at(bias, output);
}

// Each pair (x[j], x[j + half]) turned by its angle, as the recorded tables have it.
long double SecondOpinion::rope(const Call& call) const {
  if (call.inputs.size() < 3) throw Lacking{"the rotary tables were not shown"};
  const Numbers x = call.input(0), cosines = call.input(1), sines = call.input(2);
  const auto half = cosines.size(), head = call.index[0] * 2 * half;
  const size_t dim = call.index[1], pair = dim % half;
  const long double low = x.at(head + pair), high = x.at(head + half + pair);
  const bool tables = is_hf(call.contract) || call.contract == tables_rounded;
  const long double c = tables ? call.kept(cosines[pair]) : cosines[pair];
  const long double s = tables ? call.kept(sines[pair]) : sines[pair];
  return dim < half ? call.kept_by_hf(low * c) - call.kept_by_hf(high * s)
                    : call.kept_by_hf(high * c) + call.kept_by_hf(low * s);
}

// sum p v, p = softmax(q k / sqrt(dim)) over the keys up to the query's own.
long double SecondOpinion::attention(const Call& call) const {
  const Numbers q = call.input(0);
  const RecordedTensor& kv = call.tensor(call.inputs.at(1));
  const TensorView data = kv.data;
  const int64_t kv_heads = data.shape[2], dim = data.shape[3];
  const int64_t heads = std::ssize(q) / dim, head = call.index[0];
  const int64_t kv_head = head / (heads / kv_heads);
  const bool reads_fp16 = call.contract == operands_fp16 || call.contract == flash_fp16;
  // attn.kv shows K and V of a position side by side, [positions, 2, kv heads, dim].
  const auto cached = [&](int64_t position, int64_t half, int64_t d) -> long double {
    const long double x = value_at(data, ((position * 2 + half) * kv_heads + kv_head) * dim + d);
    return reads_fp16 || call.contract == cache_fp16 ? rounded(x, DType::f16) : x;
  };
  const int64_t window = config_->window.at(call.place.layer);
  const int64_t end = call.row.position + 1,
                begin = window == 0 ? 0 : std::max<int64_t>(0, end - window);
  if (end > data.rows()) throw Lacking{"keys of attn.kv are missing"};
  const bool stores_weights = call.contract == eager || call.contract == eager_query_rounded;
  const bool rounds = stores_weights || call.contract == scores_rounded;
  // The factor is a number of fp64 wherever it is named in code.
  const double scale = 1 / std::sqrt(dim);
  const auto of_query = [&](int64_t d) {
    const long double x = q.at(head * dim + d);
    return reads_fp16 ? rounded(x, DType::f16) : x;
  };
  const bool scales_query = call.contract == query_rounded || call.contract == eager_query_rounded;
  Numbers weights;
  for (int64_t key = begin; key < end; ++key) {
    long double score = 0;
    for (int64_t d = 0; d < dim; ++d)
      score += (scales_query ? call.kept(of_query(d) * scale) : of_query(d)) * cached(key, 0, d);
    if (rounds) score = call.kept(score);
    if (!scales_query) score *= scale;
    weights.push_back(rounds ? call.kept(score) : score);
  }
  // Shifted by the largest, so that no exponential overflows.
  const long double largest = *std::ranges::max_element(weights);
  long double sum = 0, result = 0;
  for (long double& w : weights) sum += w = std::exp(w - largest);
  for (int64_t key = begin; key < end; ++key) {
    long double p = weights[key - begin] / sum;
    if (stores_weights) p = call.kept(p);
    if (call.contract == operands_fp16) p = rounded(p, DType::f16);
    result += p * cached(key, 1, call.index[1]);
  }
  return result;
}

// g / (1 + e^-g) times u.
long double SecondOpinion::silu_mul(const Call& call) const {
  int64_t at = call.index[0];  // of an expert's: [choice, intermediate]
  if (call.index.size() > 1) at = at * call.tensor(call.place).shape.last() + call.index[1];
  const long double gate = call.input(0).at(at);
  const long double up = call.input(1).at(at);
  return call.kept_by_hf(gate / (1 + std::exp(-gate))) * up;
}

// The weight of a chosen expert: of all experts' softmax, or of that of the chosen ones.
long double SecondOpinion::softmax(const Call& call) const {
  const Numbers logits = call.input(0), chosen = call.input(1);
  Numbers summed = logits;
  if (config_->normalises_experts) {
    summed.clear();
    for (const long double expert : chosen)
      summed.push_back(logits.at(static_cast<size_t>(expert)));
  }
  const long double largest = *std::ranges::max_element(logits);
  long double sum = 0;
  for (const long double x : summed) sum += std::exp(x - largest);
  const auto expert = static_cast<size_t>(chosen.at(call.index[0]));
  return std::exp(logits.at(expert) - largest) / sum;
}

// x W^T of the expert that the row chose: of gate and up x is the row, of down it is one row a
// choice.
long double SecondOpinion::expert_linear(const Call& call) const {
  const size_t choice = call.index[0];
  const Numbers chosen = call.input(1);
  Numbers x = call.input(0);
  const std::string weight = fmt::format("{}mlp.experts.{}.{}.weight", layer_prefix(call.place),
                                         chosen.at(choice), call.place.point->weight);
  const int64_t width = checkpoint_.tensor(weight).shape[1];
  if (std::ssize(x) > width) {  // a row for each choice
    const auto first = x.begin() + choice * width;
    x = Numbers(first, first + width);
  }
  return product(call, weight, call.index[1], x);
}

// Sums the results of the chosen experts, each times its weight.
long double SecondOpinion::weighted_sum(const Call& call) const {
  const Numbers y = call.input(0), weights = call.input(1), chosen = call.input(2);
  const size_t width = y.size() / weights.size();
  std::vector<std::pair<long double, long double>> terms;  // by expert
  for (size_t c = 0; c < weights.size(); ++c)
    terms.emplace_back(chosen[c], weights[c] * y[c * width + call.index[0]]);
  // By expert, the order in which Hugging Face adds them; where nothing is rounded on the way the
  // order hardly matters.
  std::ranges::sort(terms);
  long double sum = 0;
  for (size_t c = 0; c < terms.size(); ++c) {
    const long double term = call.contract == fused ? terms[c].second : call.kept(terms[c].second);
    sum = (call.contract == hf ? call.kept(sum) : sum) + term;
  }
  return sum;
}

// The definition by kind of op. Kinds that are exact or no arithmetic of one element (caches,
// choices, angles) are not asked here: they are compared by their bits.
long double SecondOpinion::evaluate(const Call& call) const {
  switch (call.place.point->op) {
    case OpKind::gather:
      for (const PassRow& r : call.pass.info.rows)
        // The token that was fed is not a tensor: the pass has it.
        if (r.row == call.row) {
          const std::string table = name_of_part(call.place, ".weight");
          return weight_at(table, r.token * checkpoint_.tensor(table).shape[1] + call.index[0]);
        }
      throw Lacking{"the row is none of the pass"};
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
      return call.input(0).at(call.index[0]) + call.input(1).at(call.index[0]);
    case OpKind::softmax:
      return softmax(call);
    case OpKind::expert_linear:
      return expert_linear(call);
    case OpKind::weighted_sum:
      return weighted_sum(call);
    case OpKind::angles:
    case OpKind::partial_attention:
    case OpKind::log_sum_exp:
    case OpKind::cache:
    case OpKind::argmax:
    case OpKind::top_k:
      break;
  }
  throw Lacking{fmt::format("{} is not among the ops that are computed a second time",
                            call.place.point->name)};
}

std::vector<Place> SecondOpinion::reads(const Place& place) const {
  std::vector<Place> all = graph_.inputs_of(place);
  if (place.point->op == OpKind::norm && all.at(0).point->op == OpKind::add)
    for (const Place& term : graph_.inputs_of(all[0])) all.push_back(term);
  return all;
}

SecondOpinion::Opinion SecondOpinion::of(const Place& place, RoundingContract contract,
                                         const Pass& pass, const Row& row,
                                         std::span<const int64_t> index) const {
  if (contract == tf32)
    return {.lacking = "operands that lie halfway are rounded to tf32 either way"};
  try {
    const Call call{place, contract, pass, row, index, graph_.inputs_of(place), dtype_};
    const Shape& shape = call.tensor(place).shape;
    bool inside = shape.rank() == static_cast<int>(index.size()) + 1 && !index.empty();
    for (size_t i = 0; inside && i < index.size(); ++i)
      inside = index[i] >= 0 && index[i] < shape[static_cast<int>(i) + 1];
    if (!inside) return {.lacking = "no element of the tensor was named"};
    const long double exact = evaluate(call);
    return {exact, static_cast<double>(rounded(exact, dtype_)), ""};
  } catch (const Lacking& lacking) {
    return {.lacking = lacking.what};
  }
}

}  // namespace lockstep
