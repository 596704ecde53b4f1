#pragma once

#include <functional>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/memory.h"
#include "probes/graph.h"
#include "probes/recorder.h"
#include "probes/selection.h"

namespace lockstep {

// The rows of one request among the rows of a place.
struct NodeRows {
  int32_t request = 0;
  std::vector<Row> rows;        // expected, in the order of their positions
  std::vector<int32_t> tokens;  // the ids that were fed there
};

inline constexpr const char* kMissingTensor = "the tensor is missing";

// The reason why a tensor cannot be judged, in a sentence's words. Empty: there is none.
struct Trouble {
  std::string text;
  bool absent = false;  // the tensor or some of its rows are not there
};

// Whether rows of those tokens are nearly the same in all layers, and with them what each of their
// inputs is off by: a few tokens again and again. Text seldom has one in four.
bool repeats_tokens(std::span<const int32_t> tokens);

// Whether it holds the cosines or sines of rotary angles.
bool is_table(const Point& point);

// Points that engines of 16 bits may keep in fp32: the stream, the logits, and what a router makes.
bool may_be_wider(const Point& point);

// Whether rotary tables, which are of fp32, may be of the run's dtype: rounded to it, as Hugging
// Face's are.
enum class RotaryTables : uint8_t { fp32, may_be_rounded };

// The pass, where tensors that may be wider than the run's dtype and hold nothing but its numbers
// are of that dtype: an engine that computes logits in bf16 hands them on as fp32.
Pass narrowed(Pass pass, DType run, RotaryTables tables = RotaryTables::fp32);
// Whether a tensor of the pass may be one that narrowed() changes.
bool holds_narrower(const Pass& pass, DType run, RotaryTables tables = RotaryTables::fp32);

// The tensors that a pass should have shown and those that it did, by place.
class PassView {
 public:
  // All are borrowed. Rows outside `selection` are not expected. Engines compute what comes after
  // the last cache for the rows with logits alone, if they like: the graph tells where that is.
  // Null: nowhere. All that it returns points into the pass, which must outlive it, and into
  // itself.
  PassView(const Pass& pass, const Selection& selection, const Graph* graph = nullptr);

  const PassInfo& info() const { return pass_.info; }
  // One entry per request that the place has rows of: all of the pass, or those with logits.
  const std::vector<NodeRows>& nodes_of(const Place& place) const;
  // Whether a place has the rows with logits alone; it outlives this.
  std::function<bool(const Place&)> is_of_logits() const;
  // Positions of the request up to the last one that the pass computes.
  int64_t length_of(int32_t request) const { return lengths_.at(request); }

  // The only tensor of that place (of attn.kv: of that request). Null when there is none.
  const RecordedTensor* tensor(const Place& place, int32_t request) const;
  // Whether there is a tensor of that point, of whatever layer.
  bool shows(const Point& point) const;
  // The layers of which there is one.
  std::vector<int> layers_of(const Point& point) const;
  // Whether that tensor is there once, is of `dtype`, and has the rows of the pass.
  Trouble trouble(const Place& place, DType dtype, const NodeRows& node) const;

 private:
  using Key = std::pair<int, int>;  // order of the point, layer
  const std::vector<const RecordedTensor*>& all(const Place& place) const;
  void find_short_places(const Graph& graph);

  const Pass& pass_;
  const Selection& selection_;
  std::vector<NodeRows> token_nodes_, logit_nodes_;
  std::set<Key> short_;  // places whose tensor has the rows with logits alone, as it may
  std::map<int32_t, int64_t> lengths_;
  std::map<Key, std::vector<const RecordedTensor*>> tensors_;
};

// Rows of a CPU tensor by name. Where they lie together nothing is copied.
class SelectedRows {
 public:
  // An empty view when the tensor is null, was kept without data, or lacks one of the rows. The
  // view is of the tensor, which must outlive this, or of a copy that this owns, where the rows do
  // not follow each other.
  SelectedRows(const RecordedTensor* tensor, std::span<const Row> rows);
  const TensorView& view() const { return view_; }
  // Points to the view's numbers and keeps them, where nothing was copied; else null.
  const std::shared_ptr<const void>& owner() const { return owner_; }

 private:
  std::shared_ptr<const void> owner_;
  Tensor copy_;
  TensorView view_;
};

}  // namespace lockstep
