// One call of attention, saved from another program (.npz, .safetensors, a folder of .npy), as a
// trace of a model that does nothing else: arrays are found by the names that kernels' interfaces
// have for them, and turned into rows, pages and K/V of requests.
//
//   q, k, v, cu_seqlens, block_tables, seqused_k, .. -> Parts -> AttentionCall -> Pass, Manifest
//
// Lengths of contexts come from whichever array tells them (seqused_k, cu_seqlens_k, or the slot of
// a request's last query). A call that computes something else than this attention (another scale,
// a cap of the scores, slopes, no causal mask) is refused here: it would be judged as what it is
// not.
#include "src/replay/bundle.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <optional>
#include <set>
#include <tuple>

#include "kernels/base/check.h"
#include "src/replay/bundle_arrays.h"
#include "src/replay/passes_reader.h"
#include "src/replay/small_model.h"

namespace lockstep {
namespace {

constexpr int64_t kMostLength = 1 << 22;

// The arrays of a bundle by the meaning of their names.
class Parts {
 public:
  explicit Parts(const std::string& path) : path_(path), arrays_(arrays_of(path)) {}

  const TensorView* find(std::initializer_list<const char*> names) const {
    for (const char* name : names)
      if (const auto found = arrays_.find(name); found != arrays_.end()) {
        read_.insert(name);
        return &found->second.view();
      }
    return nullptr;
  }
  const TensorView& at(std::initializer_list<const char*> names) const {
    const TensorView* found = find(names);
    check(found != nullptr, "{} has no array {}: q, k, v and cu_seqlens are wanted at least", path_,
          *names.begin());
    return *found;
  }
  // Whole numbers of any width.
  std::vector<int64_t> integers(const TensorView& array, const char* name, int64_t count) const {
    check(array.dtype == DType::i32 || array.dtype == DType::i64,
          "{}: {} holds {}, int32 or int64 were wanted", path_, name, name_of(array.dtype));
    check(array.count() == count, "{}: {} has {} numbers, {} were wanted", path_, name,
          array.count(), count);
    std::vector<int64_t> all;
    for (int64_t i = 0; i < count; ++i) all.push_back(static_cast<int64_t>(value_at(array, i)));
    return all;
  }
  const std::string& path() const { return path_; }
  // Arrays that nobody found by their names.
  std::vector<std::string> unread() const {
    std::vector<std::string> names;
    for (const auto& [name, array] : arrays_)
      if (!read_.contains(name)) names.push_back(name);
    return names;
  }

 private:
  std::string path_;
  Arrays arrays_;
  mutable std::set<std::string, std::less<>> read_;
};

// One call, checked.
struct AttentionCall {
  TensorView q, k, v;
  std::vector<int64_t> starts, lengths;  // of queries by request, and one more; keys by request
  std::vector<int64_t> first_keys;       // where those of a request begin, of K and V that are flat
  std::vector<std::vector<int32_t>> tables;  // of pages
  std::vector<int64_t> slots;                // of the queries' own keys; empty: not given
  int64_t page_size = 0;                     // 0: K and V are flat
  int64_t window = 0;
  int64_t requests() const { return std::ssize(starts) - 1; }
  int64_t queries(int64_t r) const { return starts[r + 1] - starts[r]; }
};

// Prefix sums that rise from 0 to `end`.
std::vector<int64_t> edges_of(const Parts& parts, const TensorView& array, const char* name,
                              int64_t end) {
  std::vector<int64_t> edges = parts.integers(array, name, array.count());
  check(edges.size() > 1 && edges.front() == 0 && edges.back() == end &&
            std::ranges::is_sorted(edges),
        "{}: {} should rise from 0 to the {} rows that there are", parts.path(), name, end);
  return edges;
}

void read_tables(const Parts& parts, AttentionCall& call) {
  const TensorView& table = parts.at({"block_tables", "block_table", "page_table"});
  const int64_t requests = call.requests();
  check(table.shape.rank() == 2 && table.shape[0] == requests,
        "{}: block_tables is {}, a row for each of {} requests was wanted", parts.path(),
        table.shape.text(), requests);
  const std::vector<int64_t> all = parts.integers(table, "block_tables", table.count());
  const size_t width = table.shape[1];
  for (size_t r = 0; r < static_cast<size_t>(requests); ++r) {
    auto& pages = call.tables.emplace_back();
    for (size_t i = 0; i < width; ++i) pages.push_back(static_cast<int32_t>(all[r * width + i]));
  }
}

// Keys of each request by the slot of its last query.
void lengths_by_slots(const Parts& parts, AttentionCall& call) {
  for (int64_t r = 0; r < call.requests(); ++r) {
    if (call.queries(r) == 0) {
      call.lengths.push_back(0);
      continue;
    }
    const int64_t slot =
        call.slots[static_cast<size_t>(call.starts[static_cast<size_t>(r) + 1] - 1)];
    const auto& table = call.tables[r];
    const auto page = std::ranges::find(table, static_cast<int32_t>(slot / call.page_size));
    check(slot >= 0 && page != table.end(),
          "{}: slot_mapping puts the last query of request {} into slot {}, which none of its "
          "block_tables has",
          parts.path(), r, slot);
    call.lengths.push_back((page - table.begin()) * call.page_size + slot % call.page_size + 1);
  }
}

// How many keys each request has, from the first array that says so.
void read_lengths(const Parts& parts, AttentionCall& call) {
  const int64_t requests = call.requests();
  const bool flat = call.page_size == 0;
  const TensorView* used = parts.find({"seqused_k", "seq_lens", "context_lens", "cache_seqlens"});
  if (used != nullptr && !flat) {
    call.lengths = parts.integers(*used, "seqused_k", requests);
  } else if (const TensorView* edges = parts.find({"cu_seqlens_k"}); edges != nullptr || flat) {
    const std::vector<int64_t> all =
        edges == nullptr
            ? call.starts
            : edges_of(parts, *edges, "cu_seqlens_k",
                       flat ? call.k.rows()
                            : static_cast<int64_t>(value_at(*edges, edges->count() - 1)));
    check(std::ssize(all) == requests + 1, "{}: cu_seqlens_k has {} requests, cu_seqlens {}",
          parts.path(), all.size() - 1, requests);
    check(!flat || all.back() == call.k.rows(), "{}: k has {} rows, cu_seqlens says {}",
          parts.path(), call.k.rows(), all.back());
    for (size_t r = 0; r < static_cast<size_t>(requests); ++r) {
      call.lengths.push_back(all[r + 1] - all[r]);
      call.first_keys.push_back(all[r]);
    }
  } else {
    check(!call.slots.empty(),
          "{} does not say how many keys each request has: give seqused_k, cu_seqlens_k or "
          "slot_mapping",
          parts.path());
    lengths_by_slots(parts, call);
  }
  check(!flat || used == nullptr || parts.integers(*used, "seqused_k", requests) == call.lengths,
        "{}: seqused_k says that not all keys of k are used: leave out those that are not",
        parts.path());
  for (int64_t r = 0; r < requests; ++r)
    check(call.lengths[r] >= call.queries(r) && call.lengths[r] <= kMostLength,
          "{}: request {} has {} queries and {} keys: a query sees itself, so that there are no "
          "fewer keys",
          parts.path(), r, call.queries(r), call.lengths[r]);
}

// Refuses shapes that are no attention over grouped heads.
void check_shapes(const Parts& parts, const AttentionCall& call) {
  const auto& [q, k, v] = std::tie(call.q, call.k, call.v);
  check(q.shape.rank() == 3 && is_float(q.dtype), "{}: q is {} {}, [tokens, heads, dim] was wanted",
        parts.path(), name_of(q.dtype), q.shape.text());
  check((k.shape.rank() == 3 || k.shape.rank() == 4) && k.shape == v.shape && k.dtype == q.dtype &&
            v.dtype == q.dtype,
        "{}: k and v are {} {} and {} {}: two of one shape, [tokens, kv heads, dim] or [blocks, "
        "block size, kv heads, dim], and of q's {} were wanted",
        parts.path(), name_of(k.dtype), k.shape.text(), name_of(v.dtype), v.shape.text(),
        name_of(q.dtype));
  const int64_t kv_heads = k.shape[k.shape.rank() - 2], dim = k.shape.last();
  check(kv_heads > 0 && q.shape[1] % kv_heads == 0 && dim == q.shape[2] && dim % 2 == 0 && dim > 0,
        "{}: q has {} heads of {}, k and v {} of {}: groups of heads of one even width were wanted",
        parts.path(), q.shape[1], q.shape[2], kv_heads, dim);
}

// Refuses what the call would compute otherwise than the model does that it is judged as.
void check_formula(const Parts& parts, int64_t dim) {
  const auto one = [&](std::initializer_list<const char*> names) -> std::optional<double> {
    const TensorView* found = parts.find(names);
    if (found == nullptr) return {};
    check(found->count() == 1, "{}: {} has {} numbers, one was wanted", parts.path(),
          *names.begin(), found->count());
    return value_at(*found, 0);
  };
  if (const auto scale = one({"softmax_scale", "sm_scale", "scale"})) {
    const double usual = 1 / std::sqrt(dim);
    check(std::fabs(*scale - usual) <= 1e-3 * usual,
          "{}: scores are scaled by {}: attention with the scale {} of heads of {} is what can be "
          "judged",
          parts.path(), *scale, usual, dim);
  }
  if (const auto cap = one({"softcap", "logits_soft_cap"}))
    check(*cap == 0, "{}: its scores have a cap of {}: attention without one is what can be judged",
          parts.path(), *cap);
  if (const auto causal = one({"causal", "is_causal"}))
    check(*causal != 0, "{}: it is not causal: causal attention is what can be judged",
          parts.path());
  check(parts.find({"alibi_slopes"}) == nullptr,
        "{}: it has alibi_slopes: attention without them is what can be judged", parts.path());
}

AttentionCall call_of(const Parts& parts) {
  AttentionCall call{.q = parts.at({"q"}),
                     .k = parts.at({"k", "key_cache", "k_cache"}),
                     .v = parts.at({"v", "value_cache", "v_cache"})};
  check_shapes(parts, call);
  check_formula(parts, call.k.shape.last());
  call.starts = edges_of(parts, parts.at({"cu_seqlens", "cu_seqlens_q", "query_start"}),
                         "cu_seqlens", call.q.rows());
  call.page_size = call.k.shape.rank() == 4 ? call.k.shape[1] : 0;
  if (const TensorView* slots = parts.find({"slot_mapping"}))
    call.slots = parts.integers(*slots, "slot_mapping", call.q.rows());
  if (call.page_size > 0) read_tables(parts, call);
  read_lengths(parts, call);
  if (const TensorView* window = parts.find({"window"})) {
    const int64_t keys = parts.integers(*window, "window", 1)[0];
    check(keys >= -1, "{}: window is {}: a number of keys was wanted, or -1 or 0 for all",
          parts.path(), keys);
    call.window = std::clamp<int64_t>(keys, 0, kMostLength);  // which all keys fit in
  }
  return call;
}

// K and V of a request by position. Throws Error where a table leads out of the cache.
RecordedTensor cache_of(const Parts& parts, const AttentionCall& call, int64_t r) {
  const int64_t length = call.lengths[r];
  const TensorView& k = call.k;
  RecordedTensor kv{.point = &point("attn.kv"),
                    .layer = 0,
                    .dtype = k.dtype,
                    .shape = {length, 2, k.shape[k.shape.rank() - 2], k.shape.last()}};
  kv.data = Tensor(kv.shape, kv.dtype);
  const auto bytes = static_cast<size_t>(kv.data.view().row_size() * size_of(kv.dtype)) / 2;
  char* to = kv.data.as<char>();
  for (int64_t p = 0; p < length; ++p) {
    kv.rows.push_back({static_cast<int32_t>(r), static_cast<int32_t>(p)});
    int64_t slot = 0;
    if (call.page_size == 0) {
      slot = call.first_keys[r] + p;
    } else {
      const auto& table = call.tables[r];
      const size_t column = p / call.page_size;
      const int64_t page = column < table.size() ? table[column] : -1;
      check(page >= 0 && page < k.shape[0],
            "{}: block_tables has no block of the cache's {} for position {} of request {}",
            parts.path(), k.shape[0], p, r);
      slot = page * call.page_size + p % call.page_size;
    }
    for (const TensorView* half : {&call.k, &call.v})
      to = std::copy_n(half->as<const char>() + static_cast<size_t>(slot) * bytes, bytes, to);
  }
  return kv;
}

RecordedTensor recorded(const char* name, const TensorView& tensor, const std::vector<Row>& rows) {
  return {.point = find_point(name),
          .layer = 0,
          .rows = rows,
          .dtype = tensor.dtype,
          .shape = tensor.shape,
          .data = copy_on(Device::cpu, tensor)};
}

Pass pass_of(const Parts& parts, const AttentionCall& call) {
  Pass pass;
  std::vector<Row> rows;
  for (int64_t r = 0; r < call.requests(); ++r) {
    const auto request = static_cast<int32_t>(r);
    const int64_t first = call.lengths[r] - call.queries(r);
    if (call.queries(r) == 0) continue;
    RecordedTensor cache = cache_of(parts, call, r);  // first, as it checks the page table
    for (int64_t i = 0; i < call.queries(r); ++i) {
      const Row row{request, static_cast<int32_t>(first + i)};
      rows.push_back(row);
      int64_t slot = -1;
      if (call.page_size > 0)
        slot =
            call.tables[r].at(static_cast<size_t>(row.position / call.page_size)) * call.page_size +
            row.position % call.page_size;
      if (!call.slots.empty() && slot >= 0)
        check(call.slots[rows.size() - 1] == slot,
              "{}: slot_mapping puts query {} into slot {}, block_tables and lengths into {}",
              parts.path(), rows.size() - 1, call.slots[rows.size() - 1], slot);
      pass.info.rows.push_back({.row = row, .token = 1, .slot = slot});
    }
    if (first > 0)
      pass.info.inherited.push_back({request, std::vector<int32_t>(static_cast<size_t>(first), 1)});
    if (call.page_size > 0) {
      std::vector<int32_t> pages = call.tables[r];
      pages.resize(
          std::min(pages.size(), static_cast<size_t>((call.lengths[r] - 1) / call.page_size + 1)));
      pass.info.pages.push_back({request, std::move(pages)});
    }
    pass.tensors.push_back(std::move(cache));
  }
  check(!rows.empty(), "{} has no query", parts.path());
  pass.tensors.insert(pass.tensors.begin(), recorded("attn.q_rope", call.q, rows));
  if (const TensorView* out = parts.find({"out", "o"})) {
    check(out->shape == call.q.shape && out->dtype == call.q.dtype,
          "{}: out is {} {}, q's {} {} was wanted", parts.path(), name_of(out->dtype),
          out->shape.text(), name_of(call.q.dtype), call.q.shape.text());
    pass.tensors.push_back(recorded("attn.out", *out, rows));
  }
  return pass;
}

// A model of one layer whose attention is the call's.
SmallModel model_of(const AttentionCall& call) {
  return {.heads = call.q.shape[1],
          .kv_heads = call.k.shape[call.k.shape.rank() - 2],
          .head_dim = call.q.shape[2],
          .window = call.window};
}

}  // namespace

Bundle open_bundle(const std::string& path) {
  const Parts parts(path);
  const AttentionCall call = call_of(parts);
  const SmallModel model = model_of(call);
  Bundle bundle{checkpoint_of(model, call.q.dtype), nullptr, false, {}};
  Manifest manifest{.graph = graph_of(model), .dtype = call.q.dtype};
  manifest.selection = "--points attn.out";
  if (call.page_size > 0) {
    manifest.provenance["page_size"] = fmt::format("{}", call.page_size);
    manifest.provenance["pages"] = fmt::format("{}", call.k.shape[0]);
  }
  Pass pass = pass_of(parts, call);
  bundle.has_out = pass.find(point("attn.out"), 0) != nullptr;
  bundle.unread = parts.unread();
  bundle.reader = reader_of(std::move(manifest), {std::move(pass)});
  return bundle;
}

}  // namespace lockstep
