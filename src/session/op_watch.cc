// The exact result of a watched op is asked of the oracle when the op is called, from the tensors
// that the engine showed before: the watch is also a sink and keeps those of the places that its
// own ones read. The order of rows differs between the two, as a tensor's rows may be of several
// requests, so each request is asked alone and its rows are put where the op has them.
#include "src/session/op_watch.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <map>

#include "kernels/base/check.h"
#include "src/judge/cache_read.h"
#include "src/judge/ledger.h"
#include "src/judge/pass_view.h"
#include "src/model/op_names.h"
#include "src/session/store.h"
#include "src/stats/moments.h"

namespace lockstep {
namespace {

using RowIndex = std::map<std::pair<int32_t, int32_t>, int64_t>;  // (request, position) to row

// Where each row of the place lies in its op's output.
RowIndex index_of_rows(const PassInfo& info, const Point& point) {
  RowIndex index;
  const auto put = [&](const Row& row) {
    index.try_emplace({row.request, row.position}, std::ssize(index));
  };
  if (point == lockstep::point("logits"))
    for (int32_t row : info.logit_rows) put(info.rows[row].row);
  else
    for (const PassRow& row : info.rows) put(row.row);
  return index;
}

// Arguments of an op with every float tensor as a copy in fp32, which lives as long as this.
class Wide {
 public:
  TensorView operator()(const TensorView& from) {
    if (from.empty() || (from.dtype != DType::bf16 && from.dtype != DType::f16)) return from;
    Tensor& to = copies_.emplace_back(from.shape, DType::f32);
    for (int64_t i = 0; i < from.count(); ++i)
      to.as<float>()[i] = static_cast<float>(value_at(from, i));
    return to;
  }
  WeightView operator()(const WeightView& weight) {
    return (*this)(plain_codes("a watch of ops", weight));
  }
  KvCache operator()(const KvCache& cache) { return {(*this)(cache.k), (*this)(cache.v)}; }
  std::vector<TensorView> operator()(const std::vector<TensorView>& all) {
    std::vector<TensorView> wide;
    for (const TensorView& one : all) wide.push_back((*this)(one));
    return wide;
  }
  template <typename Other>
  const Other& operator()(const Other& other) {
    return other;
  }

 private:
  std::deque<Tensor> copies_;
};

}  // namespace

OpWatch::OpWatch(Oracle& oracle, DType dtype, std::vector<Place> places)
    : oracle_(oracle), dtype_(dtype), places_(std::move(places)), graph_(oracle.graph()) {
  for (const Place& place : places_)
    check(possible(place), "{} was to be watched, but no op computes it: name another place",
          text_of(place));
}

bool OpWatch::possible(const Place& place) {
  const OpKind op = place.point->op;
  return op != OpKind::cache && op != OpKind::angles && !row_of(op).makes_indices;
}

template <typename... Inputs>
void OpWatch::wrap(std::string_view name,
                   std::function<void(const OpContext&, TensorView, Inputs...)>& op,
                   std::function<void(const OpContext&, TensorView, Inputs...)> right) {
  op = [this, name, op, right = std::move(right)](const OpContext& context, TensorView out,
                                                  Inputs... inputs) {
    const Place place{find_point(context.point), context.layer};
    if (!makes(name, context.point) || std::ranges::count(places_, place) == 0)
      return op(context, out, inputs...);
    const auto widened = [&](const auto& run) {
      return [&](const TensorView& to) {
        Wide wide;
        run(context, to, wide(inputs)...);
      };
    };
    call(place, out, {[&] { op(context, out, inputs...); }, widened(op), widened(right)});
  };
}

// Ops know their place by the name of the point and the layer that the model hands them.
void OpWatch::wrap(Ops& ops, const Ops& right) {
  for_each_op([&](const auto& row) { wrap(row.name, ops.*row.entry, right.*row.entry); });
}

bool OpWatch::wants(const Point& point, int layer) const {
  const Place place{&point, layer};
  return std::ranges::any_of(places_, [&](const Place& watched) {
    return std::ranges::count(graph_.inputs_of(watched), place) > 0;
  });
}

void OpWatch::begin(const PassInfo& pass) {
  pass_ = {};
  pass_.info = pass;
}

void OpWatch::record(const Record& record) {
  RecordedTensor& kept = pass_.tensors.emplace_back(
      RecordedTensor{.point = record.point,
                     .layer = record.layer,
                     .rows = {record.rows.begin(), record.rows.end()},
                     .dtype = record.tensor.dtype,
                     .shape = record.tensor.shape,
                     .data = Tensor(record.tensor.shape, record.tensor.dtype)});
  std::copy_n(record.tensor.as<const char>(), record.tensor.bytes(), kept.data.as<char>());
}

void OpWatch::each_exact(
    const Place& place,
    const std::function<void(const Exact&, const std::vector<int64_t>&)>& visit) const {
  const Selection all;
  const PassView seen(pass_, all);
  const KvHistory nothing_written{/*keep_bytes=*/false};
  const RowIndex index = index_of_rows(pass_.info, *place.point);
  // One request at a time: attention wants it, and no op minds.
  for (const NodeRows& node : seen.nodes_of(place)) {
    OracleCall call{.place = place, .dtype = dtype_, .rows = node.rows, .tokens = node.tokens};
    const std::vector<int64_t> lengths(node.rows.size(), seen.length_of(node.request));
    call.lengths = lengths;
    std::vector<SelectedRows> picked;
    CacheRead cache;
    for (const Place& input : graph_.inputs_of(place)) {
      const RecordedTensor* tensor = seen.tensor(input, node.request);
      if (input.point->is_cache())
        cache = CacheRead(tensor, nothing_written);
      else
        picked.emplace_back(tensor, node.rows);
    }
    call.keys_values = cache.keys_values();
    for (const SelectedRows& input : picked) call.inputs.push_back(input.view());
    std::vector<int64_t> rows;
    for (const Row& row : node.rows) rows.push_back(index.at({row.request, row.position}));
    visit(oracle_.evaluate(call), rows);
  }
}

// The op runs first, for what it does beside its result; the exact result, rounded once, replaces
// it.
void Substitution::call(const Place& place, const TensorView& out, const Runs& runs) {
  runs.op();
  const size_t width = out.row_size();
  each_exact(place, [&](const Exact& exact, const std::vector<int64_t>& rows) {
    check(exact.want.size() == width * rows.size(),
          "{} cannot be put right: the exact result has the shape {}, the engine's rows have {} "
          "numbers",
          text_of(place), exact.shape.text(), width);
    for (size_t i = 0; i < exact.want.size(); ++i)
      store(out, rows[i / width] * out.row_size() + (i % width), exact.want[i]);
  });
}

// Both ops once more with outputs in fp32, on the same inputs: an effect below half an ulp of the
// dtype is measured as well. Its unit is the ulp at the larger of the element and its row's rms, so
// that elements near zero do not count as huge.
void EffectMeter::call(const Place&, const TensorView& out, const Runs& runs) {
  const Tensor seen(out.shape, DType::f32), right(out.shape, DType::f32);
  runs.wide(seen);
  runs.wide_right(right);
  runs.op();
  const int64_t width = out.row_size();
  std::vector<double> wanted(width);
  for (int64_t first = 0; first < out.count(); first += width) {
    widen(right, first, wanted);
    double squares = 0;
    for (const double x : wanted) squares += x * x;
    const double size = root_mean(squares, width);
    for (int64_t i = 0; i < width; ++i) {
      const double y = value_at(seen, first + i), x = wanted[i];
      if (y == x || (std::isnan(y) && std::isnan(x))) continue;
      const double e = std::fabs(y - x) / ulp(std::max(std::fabs(x), size), out.dtype);
      effect_ = std::max(effect_, std::isfinite(e) ? e : std::numeric_limits<double>::infinity());
    }
  }
}

}  // namespace lockstep
