// Tensors are copied as they are shown, since a model's are gone after the call, and freed place by
// place: a layer of a long prompt in fp64 takes gigabytes, which one thread alone copies more
// slowly than a processor computes them. Those on a device stay there, where the oracle reads them
// (OracleCall::measure), and only rows that are looked at here are copied.
#include "src/judge/model_pass.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "kernels/base/check.h"

namespace lockstep {
namespace {

std::pair<int, int> place_of(const Point& point, int layer) { return {point.order(), layer}; }

// Where those rows begin in the tensor, if they follow each other there; -1: they do not.
std::ptrdiff_t first_of(const RecordedTensor& tensor, std::span<const Row> rows) {
  if (rows.empty()) return -1;
  const auto first = std::ranges::find(tensor.rows, rows[0]);
  const bool follow =
      tensor.rows.end() - first >= std::ssize(rows) && std::equal(rows.begin(), rows.end(), first);
  return follow ? first - tensor.rows.begin() : -1;
}

// Whether rows are compared here, one by one, and not by the oracle.
bool is_read_here(const Point& p) { return p.is_of_logits() || p == point("mlp.router"); }

bool is_of_one_request(const PassInfo& pass) {
  const auto other = [&](const PassRow& r) {
    return r.row.request != pass.rows.front().row.request;
  };
  return std::ranges::none_of(pass.rows, other);
}

}  // namespace

ModelPass::ModelPass(ReferenceModel& model, const PassInfo& info, Only::Wanted wanted,
                     std::function<void(int layer)> says, int threads, int64_t few)
    : model_(model),
      wanted_(std::move(wanted)),
      copies_(threads),
      few_(few),
      pass_{.info = info},
      watched_(*this,
               [this, says = std::move(says)](int32_t, int64_t, int layer) {
                 if (says && by_ == nullptr) says(layer);
               }),
      probe_(&watched_) {}

// The model reads what its owner gave it for as long as it computes.
ModelPass::~ModelPass() {
  if (by_ != nullptr) by_->let_end();
}

void ModelPass::begin_advance(int through, Background& by) {
  by_ = &by;
  by.begin([this, through] { compute(through); });
}

void ModelPass::compute(int through) {
  if (!std::exchange(is_begun_, true)) model_.begin(pass_.info, probe_);
  model_.advance(through);
}

void ModelPass::advance(int through) {
  if (by_ != nullptr) by_->wait();
  by_ = nullptr;
  compute(through);
  take_what_came();
}

void ModelPass::take_what_came() {
  check_probe();
  std::ranges::move(coming_.tensors, std::back_inserter(pass_.tensors));
  there_.merge(coming_.there);
  coming_ = {};
}

void ModelPass::check_probe() const { check(probe_.failure().empty(), "{}", probe_.failure()); }

void ModelPass::record(const Record& record) {
  const TensorView& shown = record.tensor;
  const bool here = shown.device == Device::cpu;
  Tensor data;
  // A place has a cache for each request, and one tensor is kept where the model computed it.
  const bool several = record.point->is_cache() && !is_of_one_request(pass_.info);
  const bool is_small = shown.count() < few_;
  if (here || several || is_small || is_read_here(*record.point))
    data = Tensor(shown.shape, shown.dtype);
  if (here)
    copies_.copy(data.view().data, shown.data, shown.bytes());
  else if (data.view().empty())
    coming_.there[place_of(*record.point, record.layer)] = model_.held();
  else
    model_.bring(model_.held(), 0, data);
  coming_.tensors.push_back({.point = record.point,
                             .layer = record.layer,
                             .rows = {record.rows.begin(), record.rows.end()},
                             .dtype = shown.dtype,
                             .shape = shown.shape,
                             .data = std::move(data)});
}

RecordedTensor ModelPass::with_rows(const Place& place, std::span<const Row> rows) const {
  const RecordedTensor* tensor = pass_.find(*place.point, place.layer);
  if (!tensor) return {};
  const auto there = there_.find(place_of(*place.point, place.layer));
  if (there == there_.end()) return *tensor;
  RecordedTensor some = *tensor;
  const std::ptrdiff_t first = first_of(*tensor, rows);
  if (first >= 0) some.rows.assign(rows.begin(), rows.end());
  std::vector<int64_t> extents(tensor->shape.extents().begin(), tensor->shape.extents().end());
  extents[0] = std::ssize(some.rows);
  some.shape = Shape(extents);
  some.data = Tensor(some.shape, some.dtype);
  model_.bring(there->second, std::max<std::ptrdiff_t>(0, first), some.data);
  return some;
}

HeldRows ModelPass::held_rows(const Place& place, std::span<const Row> rows) const {
  const auto there = there_.find(place_of(*place.point, place.layer));
  if (there == there_.end()) return {};
  const std::ptrdiff_t first = first_of(*pass_.find(*place.point, place.layer), rows);
  return first < 0 ? HeldRows{} : HeldRows{there->second, first};
}

void ModelPass::drop(const Place& place) {
  there_.erase(place_of(*place.point, place.layer));
  std::erase_if(pass_.tensors, [&](const RecordedTensor& tensor) {
    return tensor.layer == place.layer && *tensor.point == *place.point;
  });
}

}  // namespace lockstep
