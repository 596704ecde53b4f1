// Which elements of a tensor `inspect --slice` and `--head` mean, in the tensor's own axes.
#include "src/report/element_filter.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <string_view>

#include "kernels/base/check.h"

namespace lockstep {
namespace {

constexpr int64_t kMost = std::numeric_limits<int64_t>::max();

std::string_view trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(' ');
  return first == std::string_view::npos
             ? ""
             : text.substr(first, text.find_last_not_of(' ') + 1 - first);
}

// "3, 5:7" as its parts.
std::vector<std::string_view> parts_of(std::string_view text) {
  std::vector<std::string_view> parts;
  while (true) {
    const size_t comma = text.find(',');
    parts.push_back(trimmed(text.substr(0, comma)));
    if (comma == std::string_view::npos) return parts;
    text.remove_prefix(comma + 1);
  }
}

// The number, or `if_empty` where the text is. -1: it is no index.
int64_t index_from(std::string_view text, int64_t if_empty) {
  if (text.empty()) return if_empty;
  int64_t number = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc{} && end == text.data() + text.size() && number >= 0 ? number : -1;
}

// FIRST, the separator, LAST; or one index.
std::pair<int64_t, int64_t> range_from(std::string_view text, char separator) {
  const size_t at = text.find(separator);
  if (at == std::string_view::npos) {
    const int64_t index = index_from(text, -1);
    return {index, index};
  }
  return {index_from(trimmed(text.substr(0, at)), 0),
          index_from(trimmed(text.substr(at + 1)), kMost)};
}

}  // namespace

// Ranges are kept with both ends in: --head counts that way, --slice as Python does.
ElementFilter::ElementFilter(const std::string& heads, const std::string& slice) {
  if (!heads.empty())
    for (const std::string_view part : parts_of(heads)) {
      const auto range = range_from(part, '-');
      check(range.first >= 0 && range.second >= range.first && range.second != kMost,
            "--head is \"{}\": give heads as 3 or 0,2-4", heads);
      heads_.push_back(range);
    }
  if (slice.empty()) return;
  std::string_view inner = trimmed(slice);
  if (inner.starts_with('[') && inner.ends_with(']') && inner.size() >= 2)
    inner = inner.substr(1, inner.size() - 2);
  for (const std::string_view part : parts_of(inner)) {
    auto range = range_from(part, ':');
    const bool is_range = part.find(':') != std::string_view::npos;
    // An end of 0 becomes -1 here, and is refused below as an empty range.
    if (is_range && range.second != kMost) --range.second;
    check(range.first >= 0 && range.second >= range.first,
          "--slice is \"{}\": give an index or a range FIRST:END an axis, as in [16, 3, :8]; the "
          "first axis is the position",
          slice);
    slice_.push_back(range);
  }
}

bool ElementFilter::has(const Row& row) const {
  return slice_.empty() || (row.position >= slice_[0].first && row.position <= slice_[0].second);
}

// By axis but the first, which are positions and chosen elsewhere: the indices that all options
// leave.
std::vector<std::vector<int64_t>> ElementFilter::wanted(const RecordedTensor& tensor) const {
  const int head_axis = tensor.point->head_axis;
  check(heads_.empty() || head_axis > 0, "--head was given, but {} has no heads: use --slice",
        tensor.point->name);
  check(std::ssize(slice_) <= tensor.shape.rank(), "--slice has {} axes, but {} has {} ({})",
        slice_.size(), tensor.point->name, tensor.shape.rank(), tensor.point->shape);
  std::vector<std::vector<int64_t>> axes;
  for (int axis = 1; axis < tensor.shape.rank(); ++axis) {
    auto& indices = axes.emplace_back();
    const auto is_in = [](const Range& range, int64_t i) {
      return i >= range.first && i <= range.second;
    };
    for (int64_t i = 0; i < tensor.shape[axis]; ++i) {
      const bool sliced = axis >= std::ssize(slice_) || is_in(slice_[axis], i);
      const bool head = heads_.empty() || axis != head_axis ||
                        std::ranges::any_of(heads_, [&](const Range& r) { return is_in(r, i); });
      if (sliced && head) indices.push_back(i);
    }
    check(!indices.empty(), "--heads and --slice leave nothing of {}, whose shape is {} ({})",
          tensor.point->name, tensor.shape.text(), tensor.point->shape);
  }
  return axes;
}

// Offsets within one row, the last axis fastest, as the numbers lie.
std::vector<int64_t> ElementFilter::offsets(const RecordedTensor& tensor) const {
  std::vector<int64_t> offsets = {0};
  // Horner's rule over the axes, all combinations of them at once.
  const std::vector<std::vector<int64_t>> axes = wanted(tensor);
  for (int axis = 0; axis < std::ssize(axes); ++axis) {
    const int64_t extent = tensor.shape[axis + 1];
    std::vector<int64_t> next;
    next.reserve(offsets.size() * axes[axis].size());
    for (const int64_t offset : offsets)
      for (const int64_t i : axes[axis]) next.push_back(offset * extent + i);
    offsets = std::move(next);
  }
  return offsets;
}

std::vector<int64_t> ElementFilter::extents(const RecordedTensor& tensor) const {
  std::vector<int64_t> extents;
  for (const auto& axis : wanted(tensor)) extents.push_back(std::ssize(axis));
  return extents;
}

}  // namespace lockstep
