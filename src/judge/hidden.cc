// The chain of a region is computed in graph order, some rows at a time, and never held for longer
// than an op may read it. Each hidden element has a value in fp64, a deviation and 16 samples of
// its error:
//
//     deviation^2 = what its own op may be off before the store
//                 + what the store changes, or that it is not made (a fused kernel needs none)
//                 + what the errors of its inputs bring (carried.h)
//
// Where the inputs are exact and the op copies or adds, the stored number itself is known and
// nothing is added.
#include "src/judge/hidden.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "src/judge/budget.h"
#include "src/judge/ledger.h"

namespace lockstep {
namespace {

// The oracle is asked for so many rows at once.
constexpr size_t kRowsAtOnce = 256;

bool is_table(const Place& place) { return is_table(*place.point); }

// Whether what is stored follows from exact inputs bit for bit.
bool stores_exactly(OpKind op) { return op == OpKind::gather || op == OpKind::add; }

// The variance of what a right kernel made of an element before it stored it, but for what its
// inputs carry.
struct Unstored {
  double variance = 0;
  bool known =
      true;  // it is so near that what is stored is known but near the border of two numbers
};

Unstored unstored(const Exact& exact, const Budget& budget, size_t i, double carried, DType dtype) {
  const double spacing = ulp(exact.want[i], dtype);
  double most = std::max(0.0, budget.limit[i] - spacing / 2);
  double variance = std::min(budget.variance[i], budget.limit[i] * budget.limit[i]);
  variance = std::max(0.0, variance - spacing * spacing / 12);
  if (carried > 0) {
    const Turned turned = turned_by_inputs(exact, i, dtype);
    most += kCarriedDeviations * std::sqrt(kCarriedVariance * carried) + turned.most;
    variance += turned.variance;
  }
  return {variance, 2 * most < spacing};
}

// The squares of how far from the result of the first contract a kernel's element may be because it
// was stored, or not (a kernel that is fused with the next has no need to), and rounded as one of
// the others on the way. Where the result is known, so is what storing it changes: numbers that
// are alike in all rows, as those of a bias, are then not taken for errors of all rows.
class Stores {
 public:
  Stores(const Exact& first, DType dtype)
      : first_(first), dtype_(dtype), known_(first.want.size()), unknown_(first.want.size()) {
    add(first);
  }
  void add(const Exact& other) {
    for (size_t i = 0; i < known_.size(); ++i) {
      const double want = first_.want[i], apart = other.want[i] - want;
      const double stored = round_to(other.want[i], dtype_) - want;
      known_[i] = std::max({known_[i], apart * apart, stored * stored});
      unknown_[i] = std::max(unknown_[i], apart * apart);
    }
  }
  double squares(size_t i, bool known) const {
    const double spacing = ulp(first_.want[i], dtype_);
    return known ? known_[i] : std::max(known_[i], unknown_[i] + spacing * spacing / 12);
  }

 private:
  const Exact& first_;
  DType dtype_;
  std::vector<double> known_, unknown_;
};

void reserve(RecordedTensor& tensor, const Place& place, std::span<const Row> rows,
             const Shape& row_shape, DType dtype) {
  if (!tensor.data.view().empty()) return;
  std::vector<int64_t> extents{std::ssize(rows)};
  extents.insert(extents.end(), row_shape.extents().begin(), row_shape.extents().end());
  tensor.point = place.point;
  tensor.layer = place.layer;
  tensor.rows.assign(rows.begin(), rows.end());
  tensor.dtype = dtype;
  tensor.shape = Shape(extents);
  tensor.data = Tensor(tensor.shape, dtype);
  std::memset(tensor.data.as<char>(), 0, tensor.data.view().bytes());
}

std::vector<double> row_in(const TensorView& view, int64_t row) {
  std::vector<double> values(view.row_size());
  widen(view, row * view.row_size(), values);
  return values;
}

// The errors of a place's own are drawn anew in each pass.
uint64_t seed_of(const Place& place, int32_t pass, size_t first) {
  return static_cast<uint64_t>(place.point->order()) << 48 ^
         static_cast<uint64_t>(place.layer + 1) << 40 ^ static_cast<uint64_t>(pass) << 20 ^ first;
}

// Samples of all rows of a tensor.
void put_samples(RecordedTensor& to, const RecordedTensor& of, const std::vector<float>& samples) {
  const TensorView view = of.data;
  to.point = of.point;
  to.layer = of.layer;
  to.rows = of.rows;
  to.dtype = DType::f32;
  to.shape = Shape{view.rows(), kErrorSamples, view.row_size()};
  to.data = Tensor(to.shape, DType::f32);
  std::ranges::copy(samples, to.data.as<float>());
}

}  // namespace

// The inputs of a hidden op: recorded tensors, or hidden ones with their deviations.
struct HiddenTensors::Inputs {
  std::vector<const RecordedTensor*> values, deviations, samples;  // null: exact
  std::vector<SelectedRows> picked, moved, drawn;
  std::vector<TensorView> views;
  InputErrors errors;

  // False when a tensor lacks some of the rows.
  bool pick(std::span<const Row> rows) {
    picked.clear(), moved.clear(), drawn.clear(), views.clear();
    errors = {};
    for (size_t i = 0; i < values.size(); ++i) {
      picked.emplace_back(values[i], rows);
      moved.emplace_back(deviations[i], rows);
      drawn.emplace_back(samples[i], rows);
    }
    for (size_t i = 0; i < values.size(); ++i) {
      if (picked[i].view().empty()) return false;
      views.push_back(picked[i].view());
      errors.deviations.push_back(moved[i].view());
      errors.samples.push_back(drawn[i].view());
    }
    return true;
  }
  bool exact() const {
    return std::ranges::none_of(deviations, [](const RecordedTensor* d) { return d != nullptr; });
  }
  // The input is read before it was rounded.
  void unround(size_t input, DType dtype, uint64_t seed) {
    const RecordedTensor& of = *values[input];
    unrounded.point = of.point;
    unrounded.layer = of.layer;
    unrounded.rows = of.rows;
    unrounded.dtype = DType::f64;
    unrounded.shape = of.shape;
    unrounded.data = deviation_of_rounding(of.data, dtype);
    deviations[input] = &unrounded;
    const TensorView deviation = unrounded.data;
    put_samples(unrounded_samples, unrounded,
                samples_of({deviation.as<const double>(), static_cast<size_t>(deviation.count())},
                           deviation.row_size(), seed));
    samples[input] = &unrounded_samples;
  }
  RecordedTensor unrounded, unrounded_samples;
};

HiddenTensors::HiddenTensors(Oracle& oracle, const Graph& graph, Options options)
    : oracle_(oracle), graph_(graph), options_(std::move(options)) {
  if (!options_.recorded) return;
  mark_covered();
  find_last_reads();
}

// Whether the trace has what a judge needs of the place. A cache is kept as hashes of what was
// written, which say nothing where that was not recorded.
bool HiddenTensors::is_recorded(const Place& place) const {
  const auto has = [&](const Place& input) { return options_.recorded(input); };
  return options_.recorded(place) &&
         (!place.point->is_cache() || std::ranges::all_of(graph_.inputs_of(place), has));
}

// From the last op to the first: what a recorded or a covered op reads and nobody recorded is
// covered. Choices by hidden numbers are not: a near tie may go either way.
void HiddenTensors::mark_covered() {
  const std::vector<Place>& places = graph_.places();
  for (size_t i = places.size(); i-- > 0;) {
    const bool hidden = covers(places[i]);
    if (!hidden && !is_recorded(places[i])) continue;
    const bool chooses = row_of(places[i].point->op).makes_indices;
    for (const int input : graph_.inputs(i)) {
      const Place& read = places[input];
      if (!is_recorded(read) && !chooses) covered_.emplace(key_of(read), read);
      if (read.point->is_cache() && hidden) derived_.insert(key_of(read));
    }
  }
}

// Backwards along the graph, through all places that were not recorded, up to those that were.
std::vector<Place> HiddenTensors::region_of(const Place& place) const {
  std::vector<int> open = {graph_.index_of(place)}, found;
  if (open.front() < 0 || covered_.empty()) return {};
  while (!open.empty()) {
    const int node = open.back();
    open.pop_back();
    for (const int input : graph_.inputs(node)) {
      const Place& read = graph_.places()[input];
      if (!covers(read) || is_table(read) || std::ranges::count(found, input) > 0) continue;
      found.push_back(input);
      open.push_back(input);
    }
  }
  std::ranges::sort(found);
  std::vector<Place> region;
  for (const int node : found) region.push_back(graph_.places()[node]);
  return region;
}

bool HiddenTensors::rows_alike(const Place& place) const {
  std::vector<Place> ops = region_of(place);
  ops.push_back(place);
  return std::ranges::any_of(ops, [&](const Place& op) {
    if (!row_of(op.point->op).attends) return false;
    const std::vector<Place> written = graph_.inputs_of(graph_.inputs_of(op).at(1));
    return !std::ranges::all_of(written, [&](const Place& k) { return is_recorded(k); });
  });
}

// Tokens of all passes are kept: keys of earlier ones may have to be computed.
void HiddenTensors::begin_pass(const PassView& pass) {
  pass_ = &pass;
  made_.clear();
  if (covered_.empty()) return;
  rows_.clear(), tokens_.clear(), lengths_.clear();
  for (const PassRow& r : pass.info().rows) {
    rows_.push_back(r.row);
    tokens_.push_back(r.token);
    lengths_.push_back(pass.length_of(r.row.request));
  }
  for (const Inherited& inherited : pass.info().inherited) inherit(inherited);
  for (const PassRow& r : pass.info().rows) {
    std::vector<int32_t>& tokens = fed_[r.row.request];
    tokens.resize(r.row.position);
    tokens.push_back(r.token);
  }
}

void HiddenTensors::reach(const Place& place) {
  if (covered_.empty()) return;
  const int now = graph_.index_of(place);
  std::erase_if(made_, [&](const auto& made) { return last_read_.at(made.first) < now; });
  if ((covers(place) && !is_table(place)) || derived_.contains(key_of(place))) make(place);
}

// The last op that may ask for a tensor: one that reads it, an attention whose cache it is written
// to, or a norm of a sum that it is added to.
void HiddenTensors::find_last_reads() {
  for (int node = 0; node < std::ssize(graph_.places()); ++node) {
    last_read_[key_of(graph_.places()[node])] = node;
    for (const int input : graph_.inputs(node)) {
      const Place& read = graph_.places()[input];
      last_read_[key_of(read)] = node;
      if (read.point->is_cache() || read.point->op == OpKind::add)
        for (const Place& before : graph_.inputs_of(read))
          last_read_[key_of(before)] = std::max(last_read_[key_of(before)], node);
    }
  }
}

// The K and V of tokens that another request was fed before are that one's.
void HiddenTensors::inherit(const Inherited& inherited) {
  const std::vector<int32_t>& tokens = inherited.tokens;
  const auto begins_so = [&](const auto& fed) {
    return fed.first != inherited.request && fed.second.size() >= tokens.size() &&
           std::equal(tokens.begin(), tokens.end(), fed.second.begin());
  };
  const auto from = std::ranges::find_if(fed_, begins_so);
  if (from == fed_.end()) return;
  fed_[inherited.request] = tokens;
  for (int layer = 0; layer < graph_.layers(); ++layer) {
    const auto cache = caches_.find({layer, from->first});
    if (cache == caches_.end()) continue;
    const auto known = std::min(tokens.size(), cache->second.size());
    caches_[{layer, inherited.request}].assign(cache->second.begin(),
                                               cache->second.begin() + static_cast<long>(known));
  }
}

const HiddenTensor* HiddenTensors::find(const Place& place) const {
  const auto found = made_.find(key_of(place));
  return found == made_.end() ? nullptr : &found->second;
}

// Inputs of the place: computed ones with their errors, recorded ones as they are.
bool HiddenTensors::gather(const Place& place, Inputs& inputs, std::string& trouble) const {
  for (const Place& read : graph_.inputs_of(place)) {
    if (read.point->is_cache() || (is_table(read) && covers(read))) continue;
    if (const HiddenTensor* hidden = find(read)) {
      trouble = hidden->trouble;
      inputs.values.push_back(&hidden->value);
      const bool exact = hidden->deviation.data.view().empty();
      inputs.deviations.push_back(exact ? nullptr : &hidden->deviation);
      inputs.samples.push_back(exact ? nullptr : &hidden->samples);
    } else {
      const RecordedTensor* tensor = pass_->tensor(read, rows_.front().request);
      if (!tensor || tensor->data.view().empty())
        trouble = fmt::format("{} was not captured in this pass", text_of(read));
      inputs.values.push_back(tensor);
      inputs.deviations.push_back(nullptr);
      inputs.samples.push_back(nullptr);
    }
    if (!trouble.empty()) return false;
    if (may_read_unrounded(place, read) && !inputs.deviations.back())
      inputs.unround(inputs.values.size() - 1,
                     find(read) ? options_.stored_as(read) : inputs.values.back()->dtype,
                     seed_of(read, pass_->info().pass, 1));
  }
  return true;
}

// Whether a kernel of the op may take the sum as it was before it was rounded and stored.
bool HiddenTensors::may_read_unrounded(const Place& place, const Place& read) const {
  if (place.point->op != OpKind::norm || read.point->op != OpKind::add) return false;
  return std::ranges::any_of(options_.contracts(place), is_of_sum);
}

void HiddenTensors::make(const Place& place) {
  HiddenTensor& made = made_[key_of(place)];
  const OpKind op = place.point->op;
  if (op == OpKind::cache)
    write_cache(place, made);
  else if (row_of(op).makes_indices)
    made.trouble = fmt::format("{} was not recorded", text_of(place));
  else if (op == OpKind::attention)
    make_attention(place, made);
  else
    make_by_oracle(place, made);
}

// Puts rows of a hidden tensor: what the oracle makes of them, and how far a right kernel's may be.
void HiddenTensors::store(const Place& place, const OracleCall& call, const Inputs& inputs,
                          const DerivedKeysValues& of_cache, size_t first, HiddenTensor& made) {
  const DType dtype = options_.stored_as(place);
  const Exact exact = oracle_.evaluate(call);
  const Shape row_shape(exact.shape.extents().subspan(1));
  reserve(made.value, place, rows_, row_shape, DType::f64);
  const size_t size = made.value.data.view().row_size();
  double* value = made.value.data.as<double>() + first * size;
  const bool known = inputs.exact() && of_cache.exact();
  if (known && stores_exactly(place.point->op)) {
    for (size_t i = 0; i < exact.want.size(); ++i) value[i] = round_to(exact.want[i], dtype);
    return;
  }
  std::copy(exact.want.begin(), exact.want.end(), value);
  const Budget budget = budget_of(place.point->op, exact, dtype);
  CarriedErrors carried;
  InputErrors errors = inputs.errors;
  of_cache.put_into(errors);
  if (!known) carried = carried_errors(oracle_, call, errors, exact);
  Stores stores(exact, dtype);
  OracleCall other = call;
  for (const RoundingContract contract : options_.contracts(place)) {
    other.contract = contract;
    // A sum that is read unrounded has a deviation of its own.
    if (contract != call.contract && !is_of_sum(contract)) stores.add(oracle_.evaluate(other));
  }
  reserve(made.deviation, place, rows_, row_shape, DType::f64);
  double* deviation = made.deviation.data.as<double>() + first * size;
  std::vector<double> own(exact.want.size());
  for (size_t i = 0; i < own.size(); ++i) {
    const double of_inputs = known ? 0 : carried.variance[i];
    const Unstored before = unstored(exact, budget, i, of_inputs, dtype);
    own[i] = std::sqrt(before.variance + stores.squares(i, before.known));
    deviation[i] = std::sqrt(own[i] * own[i] + of_inputs);
  }
  std::vector<float> samples = samples_of(own, size, seed_of(place, pass_->info().pass, first));
  for (size_t i = 0; i < carried.samples.size(); ++i) samples[i] += carried.samples[i];
  if (made.samples.data.view().empty()) put_samples(made.samples, made.deviation, {});
  std::ranges::copy(samples, made.samples.data.as<float>() + first * size * kErrorSamples);
}

void HiddenTensors::make_by_oracle(const Place& place, HiddenTensor& made) {
  Inputs inputs;
  if (!gather(place, inputs, made.trouble)) return;
  for (size_t first = 0; first < rows_.size(); first += kRowsAtOnce) {
    const size_t count = std::min(kRowsAtOnce, rows_.size() - first);
    const auto rows = std::span(rows_).subspan(first, count);
    if (!inputs.pick(rows)) {
      made.trouble = fmt::format("what {} reads lacks rows of this pass", text_of(place));
      return;
    }
    const OracleCall call{.place = place,
                          .dtype = options_.dtype,
                          .contract = options_.contracts(place).front(),
                          .inputs = inputs.views,
                          .rows = rows,
                          .tokens = std::span(tokens_).subspan(first, count),
                          .lengths = std::span(lengths_).subspan(first, count)};
    store(place, call, inputs, {}, first, made);
  }
}

// One request after the other, each with its own K and V.
void HiddenTensors::make_attention(const Place& place, HiddenTensor& made) {
  Inputs inputs;
  if (!gather(place, inputs, made.trouble)) return;
  const Place cache = graph_.inputs_of(place).at(1);
  for (size_t first = 0, end = 0; first < rows_.size(); first = end) {
    const int32_t request = rows_[first].request;
    while (end < rows_.size() && rows_[end].request == request) ++end;
    const auto rows = std::span(rows_).subspan(first, end - first);
    const DerivedKeysValues read = keys_values(cache, request, pass_->length_of(request));
    made.trouble = read.trouble;
    if (made.trouble.empty() && !inputs.pick(rows))
      made.trouble = fmt::format("what {} reads lacks rows of this pass", text_of(place));
    if (!made.trouble.empty()) return;
    const OracleCall call{.place = place,
                          .dtype = options_.dtype,
                          .contract = options_.contracts(place).front(),
                          .inputs = inputs.views,
                          .rows = rows,
                          .keys_values = read.values()};
    store(place, call, inputs, read, first, made);
  }
}

// A cache that was not recorded is kept row by row, with values, deviations and samples, as K and V
// come by.
void HiddenTensors::write_cache(const Place& place, HiddenTensor& made) {
  Inputs inputs;
  if (!gather(place, inputs, made.trouble)) return;
  if (!inputs.pick(rows_)) {
    made.trouble = fmt::format("what {} holds was not captured in this pass", text_of(place));
    return;
  }
  const auto deviation_of = [&](size_t input, int64_t row) {
    const TensorView& view = inputs.errors.deviations[input];
    return view.empty() ? std::vector<double>() : row_in(view, row);
  };
  const auto samples_in = [&](size_t input, int64_t row) {
    const TensorView& view = inputs.errors.samples[input];
    if (view.empty()) return std::vector<float>();
    const float* first = view.as<const float>() + row * view.row_size();
    return std::vector<float>(first, first + view.row_size());
  };
  for (size_t i = 0; i < rows_.size(); ++i) {
    const int64_t row = i;
    std::vector<Written>& cache = caches_[{place.layer, rows_[i].request}];
    const size_t position = rows_[i].position;
    if (cache.size() <= position) cache.resize(position + 1);
    cache[position] = {row_in(inputs.views[0], row), row_in(inputs.views[1], row),
                       deviation_of(0, row),         deviation_of(1, row),
                       samples_in(0, row),           samples_in(1, row)};
  }
}

DerivedKeysValues HiddenTensors::keys_values(const Place& place, int32_t request,
                                             int64_t length) const {
  DerivedKeysValues derived;
  if (const HiddenTensor* made = find(place); made && !made->trouble.empty()) {
    derived.trouble = made->trouble;
    return derived;
  }
  const auto found = caches_.find({place.layer, request});
  const auto known = found == caches_.end() ? int64_t{0} : std::ssize(found->second);
  for (int64_t p = 0; p < length; ++p)
    if (p >= known || found->second[p].k.empty()) {
      derived.trouble = fmt::format(
          "attn.kv was not recorded, and no pass of the trace computes position {} of request {}",
          p, request);
      return derived;
    }
  const std::vector<Written>& cache = found->second;
  const HiddenTensor* k_hidden = find(graph_.inputs_of(place).at(0));
  const RecordedTensor* k =
      k_hidden ? &k_hidden->value : pass_->tensor(graph_.inputs_of(place).at(0), request);
  const Shape shape{length, k->shape[1], k->shape[2]};
  const Shape of_samples{length, kErrorSamples, k->shape[1] * k->shape[2]};
  const auto put = [&]<typename T>(Tensor& to, const Shape& as, DType dtype,
                                   std::vector<T> Written::*of) {
    const auto has = [&](const Written& w) { return !(w.*of).empty(); };
    if (std::ranges::none_of(cache, has)) return;
    to = Tensor(as, dtype);
    const size_t size = to.view().row_size();
    std::fill_n(to.as<T>(), length * size, T{0});
    for (int64_t p = 0; p < length; ++p) std::ranges::copy(cache[p].*of, to.as<T>() + p * size);
  };
  put(derived.k, shape, DType::f64, &Written::k);
  put(derived.v, shape, DType::f64, &Written::v);
  put(derived.k_deviation, shape, DType::f64, &Written::k_deviation);
  put(derived.v_deviation, shape, DType::f64, &Written::v_deviation);
  put(derived.k_samples, of_samples, DType::f32, &Written::k_samples);
  put(derived.v_samples, of_samples, DType::f32, &Written::v_samples);
  return derived;
}

}  // namespace lockstep
