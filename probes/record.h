#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kernels/base/tensor.h"
#include "probes/points.h"

namespace lockstep {

// The token that a row of a tensor belongs to. Never the step or the place in a batch: chunked
// prefill, batching and paging then line up with a reference that does none of them.
struct Row {
  int32_t request = 0;
  int32_t position = 0;  // of the token in its request, from 0
  bool operator==(const Row&) const = default;
};

enum class Phase : uint8_t { prefill = 0, decode = 1 };

// One token that a pass computes.
struct PassRow {
  Row row;
  int32_t token = 0;  // the id that was fed
  int64_t slot = -1;  // where its K and V went
  Phase phase = Phase::prefill;
};

// The K/V pages of one request as a pass reads them.
struct RequestPages {
  int32_t request = 0;
  std::vector<int32_t> pages;  // page i holds positions i * page_size ..
};

// A request that enters a pass with positions in the cache that no earlier pass computed for it:
// they were another request's with the same tokens (a shared prefix, a fork).
struct Inherited {
  int32_t request = 0;
  std::vector<int32_t> tokens;  // of positions 0, 1, ...
};

// One forward pass over the rows of one or more requests. Rows of a request are consecutive and in
// the order of their positions. A request's positions continue where its last pass or its inherited
// tokens end, or start again at an earlier one: then what came after has been computed again.
struct PassInfo {
  // How many requests hold a page, as the engine counts them.
  struct PageCount {
    int32_t page = 0;
    int32_t holders = 0;
  };

  int32_t pass = 0;  // counted from 0
  std::vector<PassRow> rows;
  std::vector<RequestPages> pages;  // in the order of the requests' rows
  std::vector<int32_t> logit_rows;  // indices into rows: those that get logits and a token
  std::vector<Inherited> inherited;
  bool inherited_known = true;  // false: a trace that does not say which those are
  // For who audits an engine while it runs; a trace does not keep them. The tables of requests that
  // hold pages but have no row in the pass, and the count of every page that anybody holds. No
  // counts: not known.
  std::vector<RequestPages> idle;
  std::vector<PageCount> page_counts;
};

// The part of a whole tensor that a device of several holds: `offset` .. of `extent` elements along
// an axis of the tensor of that place.
struct Shard {
  int axis = 0;
  int64_t offset = 0, extent = 0;
  bool operator==(const Shard&) const = default;
};

// One tensor as a model made it. Row i of `tensor` (outermost axis) belongs to rows[i]. For attn.kv
// there is one record per request, whose rows are all the positions that the pass can read.
// Everything is borrowed for the duration of the call.
struct Record {
  const Point* point = nullptr;
  int layer = -1;  // -1: not of a layer
  std::span<const Row> rows;
  TensorView tensor;
  std::optional<Shard> shard = {};  // none: the tensor is whole
  // The same on the device that made it, where `tensor` is a copy. Empty: it is none.
  TensorView on_device = {};
};

}  // namespace lockstep
