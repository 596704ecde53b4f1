#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "src/judge/judged_rows.h"
#include "src/judge/ledger.h"
#include "src/judge/pass_view.h"
#include "src/stats/shape_rule.h"

namespace lockstep {

// The name of one index of each axis of a row ("head", "dim"): those in the table of points, where
// all axes that are features of a token are channels.
std::vector<std::string> axis_names(const Point& point);

// Which elements of a run were wrong, by place, for what they have in common.
class ErrorMap {
 public:
  // page_size: 0: not known. rows: those that are judged of a node.
  explicit ErrorMap(int64_t page_size, const RowsToJudge& rows = {})
      : page_size_(page_size), drawn_(rows) {}

  // Returns the pass's number.
  size_t begin(const PassView& seen);
  // Takes over what the pass of that number has shown since: which places have rows with logits
  // alone, and the experts that were chosen.
  void see(size_t pass, const PassView& seen);
  // One node of the pass of that number: what is wrong in it, or that it was not judged. row_shape:
  // of its tensor, the axes after the rows.
  void add(size_t pass, const Place& place, const Shape& row_shape, const NodeOutcome& outcome);
  // Whether single elements of the finding's node are known to be wrong.
  bool has(const Finding& finding) const;
  // Over all passes and requests; of attn.kv a position counts as often as it is read. The passes
  // after kMostRows rows are left out, and those after kMostBits bits of masks of the place or
  // kMostOfAll of all places together: a wrong row takes as many as it has elements.
  std::optional<ShapeRule> rule_of(const Place& place) const;

  static constexpr int64_t kMostRows = 1 << 14;
  static constexpr int64_t kMostBits = 1 << 24;
  static constexpr int64_t kMostOfAll = 1 << 27;

 private:
  // That the engine chose, as mlp.experts shows them.
  struct Experts {
    int64_t chosen = 0;         // of a row
    std::vector<int32_t> rows;  // of each row of the pass in turn
  };
  struct SeenNodes {
    int32_t pass = 0;
    std::vector<NodeRows> tokens, logits;
    std::function<bool(const Place&)> is_of_logits;  // which of the two a place has
    std::set<int32_t> decodes;                       // requests
    std::vector<PassRow> rows;                       // all of the pass, selected or not
    std::vector<int32_t> logit_rows;                 // indices of these
    std::map<int, Experts> experts;                  // by layer
  };
  struct Node {
    bool judged = true;
    std::vector<WrongRow> wrong;
  };
  struct Errors {
    std::map<std::pair<int32_t, int32_t>, Node> nodes;  // by (pass, request), unless all is right
    Shape row_shape;
    bool whole_rows = false;  // of some it is not known which of their elements are wrong
    int64_t bits = 0;
    size_t passes = SIZE_MAX;  // how many of the first ones are kept
  };

  std::vector<WrongElements::PlacedRow> rows_of(const SeenNodes& pass, const NodeRows& node,
                                                const Place& place) const;
  // Those of them that were judged.
  std::vector<WrongElements::PlacedRow> judged_of(const SeenNodes& pass, const NodeRows& node,
                                                  const Place& place) const;
  // Makes rows of their own of the choices, at a place with a row for each choice of a token.
  static void split_choices(const SeenNodes& pass, const Place& place, int64_t choices,
                            std::vector<WrongElements::PlacedRow>& rows,
                            std::vector<WrongRow>& wrong);
  std::vector<WrongElements::Axis> axes_of(const Point& point, const Shape& row_shape) const;

  int64_t page_size_;
  RowsToJudge drawn_;
  int64_t kv_heads_ = 0;  // 0: not seen
  int64_t rows_ = 0, bits_ = 0;
  bool full_ = false;
  std::vector<SeenNodes> passes_;
  std::map<std::pair<int, int>, Errors> errors_;  // by order of the point and layer
};

}  // namespace lockstep
