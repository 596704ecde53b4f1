#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "probes/graph.h"
#include "probes/selection.h"
#include "src/diff/diff_digests.h"
#include "src/judge/kv_history.h"
#include "traces/trace.h"

namespace lockstep {

// One row of a tensor of a trace's pass.
struct ShownRow {
  int pass = 0;
  const RecordedTensor* tensor = nullptr;
  size_t index = 0;

  const Row& row() const { return tensor->rows[index]; }
  std::vector<double> numbers() const;   // its elements; none when they were not kept
  std::optional<uint64_t> hash() const;  // nothing: neither it nor the bytes were kept
  bool same_form(const ShownRow& other) const;
  bool same_bits(const ShownRow& other) const;
};

// Whether rows of that point are what a cache is written from.
bool is_written(const Point& p);

// The index of `row` in the tensor, looked for at `hint` first.
std::optional<size_t> index_of(const RecordedTensor& tensor, const Row& row, size_t hint);

// One of the two traces that are compared: who computed a row, and what is shown of it. For one
// thread. Passes that were loaded stay in memory until keep() leaves them out; pointers to their
// tensors live as long.
class DiffSide {
 public:
  // A time that a row was computed: a request that was preempted computes its rows again.
  struct Computed {
    int pass = 0;
    size_t index = 0;  // among the rows of the pass
    int32_t token = 0;
    bool last = false;  // of its request in the pass: what attn.kv shows is as that row reads it
  };

  // `trace` is borrowed. Places are numbered as in `places`, which may be another model's.
  DiffSide(TraceReader& trace, const std::vector<Place>& places);

  TraceReader& trace() const { return trace_; }
  const Pass& pass(int i);
  // Forgets all other passes that were loaded.
  void keep(const std::set<int>& passes);

  using Rows = std::map<std::pair<int32_t, int32_t>, std::vector<Computed>>;
  const Rows& rows() const { return rows_; }  // by request, position; in the order of the passes
  DigestComparison::Rows passes() const;      // that computed each of them
  const std::vector<Computed>& computed(const Row& row) const;
  bool computes(int32_t request) const;  // any row of it
  // Whether the request is there and begins later: it found that row in its cache.
  bool begins_after(const Row& row) const;
  bool shows(size_t place) const { return shown_.contains(place); }  // in any pass
  // The row as the pass shows it there; at attn.kv any row that the request reads.
  std::optional<ShownRow> find(int pass, size_t place, const Row& row, size_t hint);

  // Stands for all tokens of the request up to that position; 0: not known.
  uint64_t prefix(const Row& row) const { return history_.prefix(row); }
  // The hashes of K and of V that were written for those tokens. Nothing where they are not known,
  // or not always the same: then nobody can tell which of them a page should hold.
  std::optional<std::pair<uint64_t, uint64_t>> written(int layer, const Row& row) const;
  // The best of the logits that the row got, the last time that it was computed; of a row that the
  // request itself did not compute, those that another request got for the same tokens. Null: not
  // kept.
  const TopLogits* top_logits(const Row& row) const;
  // The request as the manifest has it; null: it has not.
  const RequestInfo* request(int32_t id) const;
  // How many rows are shown at selected places that have no number, since the compared graph lacks
  // them: of those that both computed, and that `counts` wants. None of what ranks add up, which a
  // model that is whole does not make.
  int64_t rows_elsewhere(const DiffSide& other, const Selection& selection,
                         const std::function<bool(const Row&)>& counts) const;
  // The digests of a pass at a place, summed up.
  const std::map<std::pair<int, size_t>, DigestSums>& digests() const { return digests_; }
  // The first tensor or row that no comparison can name, in a sentence's words; "": none.
  const std::string& trouble() const { return trouble_; }

 private:
  using Key = std::pair<int, int>;  // order of the point, layer
  struct Loaded {
    Pass pass;
    std::map<size_t, std::vector<const RecordedTensor*>> tensors;  // by place
  };
  const Loaded& loaded(int pass);
  void enter(int i, const Pass& pass);
  void begin_requests(const PassInfo& pass);
  void enter_written(const Pass& pass);
  void enter_digests(int i, const Pass& pass);
  std::optional<size_t> place_of(const RecordedTensor& tensor) const;
  std::string trouble_of(const Pass& pass) const;

  TraceReader& trace_;
  std::map<Key, size_t> places_;
  std::set<Key> own_places_;  // of its own model
  Rows rows_;
  std::set<size_t> shown_;                                     // places
  std::vector<std::pair<Place, std::vector<Row>>> elsewhere_;  // rows at places without a number
  std::map<int, Loaded> loaded_;
  std::map<std::pair<int32_t, int32_t>, TopLogits> top_logits_;  // by request, position
  std::map<uint64_t, std::pair<int32_t, int32_t>> logits_rows_;  // the last row, by its tokens
  std::map<std::pair<int, size_t>, DigestSums> digests_;         // by pass, place
  std::set<int32_t> begun_;                                      // requests
  KvHistory history_{false};
  std::map<std::pair<int, uint64_t>, std::pair<uint64_t, uint64_t>> written_;  // by layer, prefix
  std::string trouble_;
};

// Whether the traces are of one model, as far as they say. One engine may show what another one
// does not make, as RoPE's tables.
bool of_one_model(const Manifest& a, const Manifest& b);

// The graph whose places are compared: of a, if it is known; of a model over ranks and one that is
// not, that of the latter, which has no partial sums.
const Graph& compared_graph(const Manifest& a, const Manifest& b);
// By place, the numbers of those that its op reads.
std::vector<std::vector<size_t>> inputs_by_number(const Graph& graph,
                                                  const std::vector<Place>& places);
// Whether the place is the sum of what ranks add.
bool adds_ranks(const Graph& graph, const Place& place);

}  // namespace lockstep
