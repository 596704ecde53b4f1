#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "src/judge/ledger.h"
#include "src/judge/ops/judged_op.h"
#include "traces/trace.h"

namespace lockstep {

// The chains of roundings by kind of op; r() rounds to the dtype of the run, nearest even, and the
// rest is exact. A contract that an op does not have is the nearest one that it has (meant_by).
//
//   norm          fused             r(n w), n = x / rms(x)
//                 hf                r(r(n) w)
//                 unrounded_sum, hf_unrounded_sum: the same of x = a + b before r(a + b)
//   rope          fused             r(x1 c + x2 s)
//                 tables_rounded    r(x1 r(c) + x2 r(s))
//                 hf                r(r(x1 r(c)) + r(x2 r(s)))
//                 angles_iterated   in fp32 alone: c, s of angles a_0 = position, a_(j+1) = r(a_j
//                                   r(theta^(-2 / head_dim)))
//   silu_mul      fused             r(silu(g) u)
//                 hf                r(r(silu(g)) u)
//   attention     fused             r(sum p v)
//                 hf                the same, but each weight p has a rounding of its own: where it
//                                   is made is not known, as blocks differ
//                 eager             r(sum p v), p = r(softmax(r(r(q k) scale)))
//                 scores_rounded    the same, but p is not rounded
//                 query_rounded     hf, of r(q scale) k
//                 eager_query_rounded
//                                   r(sum p v), p = r(softmax(r(r(q scale) k)))
//                 in fp32 alone, h() rounds to fp16:
//                 operands_fp16     sum h(p) h(v), p = softmax(h(q) h(k) scale)
//                 cache_fp16        sum p h(v), p = softmax(q h(k) scale)
//                 flash_fp16        cache_fp16, or of h(q), where the sums over the keys so far
//                                   have roundings of their own to fp16
//   partial_attention, log_sum_exp
//                 those of attention, within each share of the keys: the dtype of the run is what
//                 is rounded to on the way, and fp32 what is stored. Under hf the logarithm may be
//                 of the rounded weights or not.
//   weighted_sum  fused             r(sum p y)
//                 hf                r(.. r(r(p y) + r(p' y')) ..) by ascending expert
//                 products_rounded  r(sum r(p y))
//   linear        fused             r(x W + b)
//                 bias_after_store  r(r(x W) + b)
//                 tf32, operands_bf16, operands_fp16: in fp32 alone, operands rounded to tf32 (x
//                 and W), bf16 or fp16 (x)
//
// The oracle computes the chain, and the node is held to one rounding of it (budget.h). In fp32 the
// roundings of a chain are no more than what its sums may be off: there fused is all of them.
// Sources: transformers, models/qwen3/modeling_qwen3.py; vLLM, model_executor/layers/layernorm.py;
// FlashInfer, norm.cuh (fused_add_rmsnorm);
// vLLM, model_executor/layers/rotary_embedding (cos_sin_cache).

// That are tried where none is declared, the strictest first.
std::vector<RoundingContract> candidates_of(OpKind op, const ContractTraits& traits);
// All that the op can have.
std::vector<RoundingContract> contracts_of(OpKind op, const ContractTraits& traits);
// The one of contracts_of() that a declared contract means for the op.
RoundingContract meant_by(RoundingContract declared, OpKind op, const ContractTraits& traits);

// Whether the node may be of an op that rounds as the contract that it was judged under.
bool may_round_so(const NodeOutcome& outcome);

// Under which contract each point is judged: the declared one, or, where a trace declares none, the
// one that most of its places fit. It is decided when the run has ended. A place fits a contract
// under which all of its nodes were judged and none of them, nor all together, is a finding. Places
// that fit none are bugs and have no say; of contracts that as many places fit the strictest is
// taken. A place that fits another contract than its point is inconsistent: one kernel rounds in
// one way.
//
// A norm's contract that reads a sum unrounded, of which the trace has what was stored alone, has
// room for what a rounding changed, and so for a wrong layer. One that reads what was stored has no
// such room, and no kernel fits it in most of those layers by chance: where one does, it is that of
// all.
//
// Shares of attention are fp32 in runs of 16 bits too, so that nothing hides how their kernel
// rounds on the way, and two rules keep the wider contract from excusing a wrong layer. The
// strictest that fits most layers is that of all of them. And where attn.partial shows how its
// weights are rounded, neither their sum in attn.lse nor the merge of the shares, attn.out, may be
// rounded in more ways, unless some nodes of it are of no shares.
class Contracts {
 public:
  // By point name.
  explicit Contracts(const std::map<std::string, RoundingContract>& declared)
      : declared_(declared) {}

  bool is_declared(const Point& point) const { return declared_.contains(std::string(point.name)); }
  // The contracts that a node of the place is to be judged under. One where it is declared.
  std::vector<RoundingContract> candidates(const Place& place, const ContractTraits& traits) const;

  // Whether the candidate of that number is only to be tried at nodes of the place that fit no
  // other: once it failed in most layers, three at least, while another had failed at no node. Not
  // where it has fitted every node of the place so far.
  bool is_out(const Place& place, size_t candidate) const;
  // The contract under which nodes of the place are judged first, as far as is known by now.
  RoundingContract first_tried(const Place& place, const ContractTraits& traits) const;
  // Enters the outcomes of a node under each of its candidates; one that was not tried says so.
  void add(const Place& place, std::span<const RoundingContract> candidates,
           std::span<const NodeOutcome> outcomes);
  // All nodes of the place together are a finding under the candidate of that number.
  void add_misfit(const Place& place, size_t candidate);
  // After the last node. Until then of() is the strictest candidate.
  void decide();

  // Number of the candidate whose outcome counts for the nodes of the place.
  size_t chosen(const Place& place) const;
  // The contract that most of the point is judged under.
  RoundingContract of(const Point& point) const;
  // The points that were tried, with what they were found to be, in the order of the table.
  std::vector<std::pair<const Point*, RoundingContract>> found() const;
  // Places that fit another contract than their point, with a sentence about it.
  std::vector<std::pair<Place, std::string>> inconsistent_layers() const;
  // Each point, with a sentence about it, whose own contract may be too wide, so that it excuses a
  // wrong layer: of shares where as many layers fit a stricter one as do not, since which one was
  // taken depends on the layers judged; of others but norms, which take what most layers fit, where
  // more do.
  std::vector<std::pair<const Point*, std::string>> divided() const;

 private:
  struct Fits {
    int64_t nodes = 0;
    std::vector<int64_t> fitting;  // nodes, by candidate
    std::vector<bool> misfit;      // together, by candidate
    std::vector<bool> unstored;    // a node has NodeOutcome::reads_unstored, by candidate
    bool fits(size_t candidate) const { return fitting[candidate] == nodes && !misfit[candidate]; }
  };
  struct OfPoint {
    const Point* point = nullptr;
    std::vector<RoundingContract> candidates;
    std::map<int, Fits> by_layer;
    std::vector<bool> out;  // by candidate
    size_t chosen = 0;
    size_t allowed = 0;  // that it may be, the strictest ones; all until it is decided

    void put_out();
    void decide();
    int64_t nodes() const;
    bool fits_any(const Fits& fits) const;
    bool reads_unstored(size_t candidate) const;  // in any layer
    // Whether it fits more than half of the layers in which `other` reads what was not stored.
    bool outdoes(size_t candidate, size_t other) const;
  };

  size_t allowed(const OfPoint& of) const;

  std::map<std::string, RoundingContract> declared_;
  std::map<int, OfPoint> points_;  // by order of the point
};

}  // namespace lockstep
