// Tensors are converted when a hypothesis first reads them, and kept for the next ones: of an op
// that was found wrong dozens are asked, and most read the same inputs.
#include "reference/hypotheses/asked.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/tensor.h>

#include <map>
#include <set>
#include <utility>

#include "reference/bridge.h"
#include "reference/hypotheses/values.h"
#include "reference/rounding.h"

namespace lockstep {

// Bytes that what is made once may take in all: an attention of long requests has scores of several
// GiB, which are rather computed anew.
constexpr size_t kMostKept = size_t{256} << 20;

struct Asked::Tensors {
  std::vector<at::Tensor> inputs;
  at::Tensor got;
  std::map<std::pair<std::string, size_t>, at::Tensor> once;
  size_t bytes = 0;  // of `once`
};

Asked::Asked(const OpInPass& op, const HeldModel& model)
    : op_(op), model_(model), tensors_(std::make_unique<Tensors>()) {
  tensors_->inputs.resize(op.call.inputs.size());
}
Asked::~Asked() = default;

at::Tensor Asked::widened(const TensorView& view) const {
  return as_dtype(to_torch(view).to(model_.weights.device()), DType::f64);
}

at::Tensor Asked::once(const std::string& name, size_t number,
                       const std::function<at::Tensor()>& make) const {
  const auto kept = tensors_->once.find({name, number});
  if (kept != tensors_->once.end()) return kept->second;
  const at::Tensor made = make();
  if (tensors_->bytes + made.nbytes() <= kMostKept) {
    tensors_->bytes += made.nbytes();
    tensors_->once[{name, number}] = made;
  }
  return made;
}

// Widened when the first hypothesis wants it: most ask for one input, and are many.
const at::Tensor& Asked::input(size_t i) const {
  at::Tensor& kept = tensors_->inputs.at(i);
  if (!kept.defined()) kept = widened(op_.call.inputs[i]);
  return kept;
}

const at::Tensor& Asked::got() const {
  if (!tensors_->got.defined()) tensors_->got = widened(op_.got);
  return tensors_->got;
}

at::Tensor Asked::right() const {
  const Numbers& right = op_.right;
  return at::tensor(at::ArrayRef<double>(right.begin(), right.size()), at::kDouble)
      .to(model_.weights.device())
      .view_as(got());
}

at::Tensor Asked::other(const Place& place) const {
  const TensorView view = op_.other ? op_.other(place) : TensorView{};
  return view.empty() ? at::Tensor() : widened(view);
}

at::Tensor Asked::other(std::string_view name) const {
  const Point* of = find_point(name);
  return of == nullptr ? at::Tensor() : other({of, of->per_layer ? place().layer : -1});
}

at::Tensor Asked::tensor(const std::vector<double>& values) const {
  return at::tensor(values, at::kDouble).to(model_.weights.device());
}

// Intermediate numbers in the dtype where the contract says that they are stored in it, and exact
// otherwise: a hypothesis rounds where the run does, or it would fit nothing.
at::Tensor Asked::kept(const at::Tensor& inner) const {
  const RoundingContract contract = op_.call.contract;
  const bool rounds =
      contract == RoundingContract::hf || contract == RoundingContract::hf_unrounded_sum;
  return rounds ? Grid::of(model_.run).rounded(inner) : inner;
}

at::Tensor Asked::in_dtype(const at::Tensor& x, DType dtype) const {
  return Grid::of(dtype).rounded(x);
}

int64_t Asked::requests() const {
  std::set<int32_t> all;
  for (const Row& row : op_.call.rows) all.insert(row.request);
  return std::ssize(all);
}

std::vector<double> Asked::neighbours_among(int64_t count) {
  if (count < 2) return {};
  return count == 2 ? std::vector<double>{0} : std::vector<double>{1, -1};
}

at::Tensor Asked::of_neighbours(const at::Tensor& x, double by) const {
  if (rows() < 2 || (by == 0 && rows() != 2)) return {};
  return x.roll(by == 0 ? 1 : -as_count(by), 0);
}

std::vector<int64_t> Asked::positions() const {
  std::vector<int64_t> all;
  for (const Row& row : op_.call.rows) all.push_back(row.position);
  return all;
}

}  // namespace lockstep
