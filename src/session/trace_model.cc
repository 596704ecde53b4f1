// A bare trace names no model, so that its shapes are all that tells whose it is. A wrong --model
// is said before anything is computed by it, in the words of the first tensor that does not fit.
#include "src/session/trace_model.h"

#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <vector>

#include "kernels/base/check.h"
#include "src/judge/ledger.h"

namespace lockstep {
namespace {

// The extent that the model has along that axis; nothing: it follows from no size of the model. K
// and V may have been stored for each head, and logits for a padded vocabulary, by an engine of the
// right model.
std::optional<int64_t> extent_of(std::string_view axis, const Point& point,
                                 const ModelConfig& config) {
  if (axis == "hidden") return config.hidden;
  if (axis == "head") return config.heads;
  if (axis == "dim") return config.head_dim;
  if (axis != "intermediate") return {};
  return point.name.starts_with("mlp.expert_") ? config.experts.intermediate : config.intermediate;
}

std::vector<std::string_view> axes_of(const Point& point) {
  std::vector<std::string_view> axes;
  std::string_view rest = point.shape;
  for (size_t comma = rest.find(", "); comma != rest.npos; comma = rest.find(", ")) {
    axes.push_back(rest.substr(0, comma));
    rest.remove_prefix(comma + 2);
  }
  axes.push_back(rest);
  return axes;
}

// The shape that the model makes of so many rows, as far as its sizes say.
Shape shape_in(const RecordedTensor& tensor, const ModelConfig& config) {
  std::vector<int64_t> extents(tensor.shape.extents().begin(), tensor.shape.extents().end());
  const std::vector<std::string_view> axes = axes_of(*tensor.point);
  for (size_t i = 0; i < axes.size() && i < extents.size(); ++i)
    extents[i] = extent_of(axes[i], *tensor.point, config).value_or(extents[i]);
  return Shape(extents);
}

std::optional<Pass> first_with_tensors(TraceReader& trace) {
  for (int i = 0; i < trace.passes(); ++i)
    if (Pass pass = trace.read(i, /*data=*/false); !pass.tensors.empty()) return pass;
  return {};
}

}  // namespace

void check_model_of(TraceReader& trace, const std::string& path, const Checkpoint& checkpoint) {
  const ModelConfig& config = checkpoint.config();
  const std::optional<Pass> pass = first_with_tensors(trace);
  if (!pass) return;
  // By axis, whether any tensor has the model's extent.
  std::map<std::string_view, bool> fits;
  const auto for_each_axis = [&](const RecordedTensor& tensor, auto visit) {
    const std::vector<std::string_view> axes = axes_of(*tensor.point);
    for (size_t i = 0; i < axes.size() && static_cast<int>(i) < tensor.shape.rank(); ++i)
      if (const auto extent = extent_of(axes[i], *tensor.point, config))
        visit(axes[i], tensor.shape[static_cast<int>(i)] == *extent);
  };
  for (const RecordedTensor& tensor : pass->tensors)
    for_each_axis(tensor, [&](std::string_view axis, bool same) { fits[axis] |= same; });
  std::set<std::string_view> points, others;
  const RecordedTensor* first = nullptr;
  for (const RecordedTensor& tensor : pass->tensors)
    for_each_axis(tensor, [&](std::string_view axis, bool) {
      points.insert(tensor.point->name);
      if (fits[axis]) return;
      others.insert(tensor.point->name);
      if (first == nullptr) first = &tensor;
    });
  if (first == nullptr || (others.size() < 2 && points.size() > 1)) return;
  fail(
      "{} has {} of the shape {} ({}), and the model of {} makes it {}: give the --model that the "
      "trace was made with",
      path, text_of(Place{first->point, first->layer}), first->shape.text(), first->point->shape,
      checkpoint.dir(), shape_in(*first, config).text());
}

}  // namespace lockstep
