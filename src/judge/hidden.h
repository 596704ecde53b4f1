#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "probes/recorder.h"
#include "src/judge/carried.h"
#include "src/judge/oracle.h"
#include "src/judge/pass_view.h"

namespace lockstep {

// A tensor that a trace does not have, made by the oracle of tensors that it has.
struct HiddenTensor {
  RecordedTensor value;      // fp64
  RecordedTensor deviation;  // fp64: one standard deviation of a right kernel's; no data: exact
  RecordedTensor samples;    // fp32: samples of what it may be off (carried.h); the same
  std::string trouble;       // why it could not be made; empty: it was
};

// The K and V of one request that were never seen as attention read them.
struct DerivedKeysValues {
  Tensor k, v;                      // fp64 [length, kv_heads, head_dim]
  Tensor k_deviation, v_deviation;  // the same; no data: both are exact
  Tensor k_samples, v_samples;      // fp32 [length, samples, kv_heads * head_dim]; the same
  std::string trouble;

  KeysValues values() const { return {k, v}; }
  bool exact() const { return k_deviation.view().empty() && v_deviation.view().empty(); }
  // Puts them into what is not known of an attention's inputs.
  void put_into(InputErrors& errors) const {
    errors.of_cache = {k_deviation, v_deviation};
    errors.k_samples = k_samples;
    errors.v_samples = v_samples;
  }
};

// The places of a model that a trace holds no tensors of. What a recorded place is judged by then
// is its region: its own op and the hidden ones between it and the next recorded places, chained by
// the oracle.
//
//   attn.q (recorded) -> attn.q_norm -> attn.q_rope -> attn.out (recorded)
//                        \_______ hidden: its region ________/
//
// A hidden tensor is known but for the rounding of each hidden op and what that op's arithmetic may
// be off; the budget of the recorded place is widened by what these errors come to in it
// (carried.h). A hidden copy, and a hidden sum of tensors that are known bit for bit, are known bit
// for bit, and widen nothing.
class HiddenTensors {
 public:
  struct Options {
    DType dtype = DType::bf16;
    // Whether any pass has a tensor of the place. Empty: every place is recorded.
    std::function<bool(const Place&)> recorded;
    // The dtype that a hidden place would be stored in.
    std::function<DType(const Place&)> stored_as;
    // The contracts that an op may round by; several: it is not known which.
    std::function<std::vector<RoundingContract>(const Place&)> contracts;
  };
  HiddenTensors(Oracle& oracle, const Graph& graph, Options options);

  // Whether the place is hidden, and within a region: a recorded op that can be judged stands on
  // it. A hidden place that nothing recorded reads is no part of any.
  bool covers(const Place& place) const { return covered_.contains(key_of(place)); }
  // The hidden places of a recorded one's region, in graph order.
  std::vector<Place> region_of(const Place& place) const;
  // Whether the region holds K or V that are known but for an error, which all rows that read them
  // have in common.
  bool rows_alike(const Place& place) const;

  // The passes come in their order. `pass` must live until the next one.
  void begin_pass(const PassView& pass);
  // Makes the tensor of the place, where it is hidden, and forgets those that no place from here on
  // reads: a model has far too many to be held at once. The places of a pass come in graph order.
  void reach(const Place& place);
  // The tensor of this pass; null for a place that is not covered, or not reached.
  const HiddenTensor* find(const Place& place) const;
  // Up to that position, of a hidden attn.kv: as its attn.k_rope and attn.v were, in this and
  // earlier passes.
  DerivedKeysValues keys_values(const Place& cache, int32_t request, int64_t length) const;

 private:
  using Key = std::pair<int, int>;  // order of the point, layer
  struct Written {                  // a position of a request in a cache
    std::vector<double> k, v, k_deviation, v_deviation;
    std::vector<float> k_samples, v_samples;
  };
  struct Inputs;

  static Key key_of(const Place& place) { return {place.point->order(), place.layer}; }
  bool is_recorded(const Place& place) const;
  void mark_covered();
  void find_last_reads();
  void inherit(const Inherited& inherited);
  void make(const Place& place);
  void make_by_oracle(const Place& place, HiddenTensor& made);
  void make_attention(const Place& place, HiddenTensor& made);
  void write_cache(const Place& place, HiddenTensor& made);
  bool gather(const Place& place, Inputs& inputs, std::string& trouble) const;
  bool may_read_unrounded(const Place& place, const Place& read) const;
  void store(const Place& place, const OracleCall& call, const Inputs& inputs,
             const DerivedKeysValues& of_cache, size_t first, HiddenTensor& made);

  Oracle& oracle_;
  Graph graph_;
  Options options_;
  std::map<Key, Place> covered_;
  std::set<Key> derived_;  // caches that a hidden attention reads, recorded or not
  std::map<Key, int> last_read_;
  const PassView* pass_ = nullptr;
  std::vector<Row> rows_;  // of the pass
  std::vector<int32_t> tokens_;
  std::vector<int64_t> lengths_;
  std::map<Key, HiddenTensor> made_;
  std::map<int32_t, std::vector<int32_t>> fed_;                     // tokens, by request
  std::map<std::pair<int, int32_t>, std::vector<Written>> caches_;  // by layer and request
};

}  // namespace lockstep
