// The sentences for indices that are out of range, once for the CPU, which throws at once, and for
// devices, which report the first one and throw at the next wait.
#include "kernels/base/bad_index.h"

#include "kernels/base/check.h"

namespace lockstep {
namespace {

[[noreturn]] void refuse_page(const char* op, const BadIndex& bad) {
  fail("{}: page {} at entry {} of a page table is not below the {} of the pool", op, bad.found,
       bad.at, bad.limit);
}

[[noreturn]] void refuse_table(const char* op, const BadIndex& bad) {
  fail("{} needs a page table of at least {} pages of {} positions, found {}", op, bad.limit,
       bad.at, bad.found);
}

}  // namespace

// One sentence for the CPU and for a device: an op fails alike on both.
void refuse(const BadIndex& bad) {
  using Of = BadIndex::Of;
  const auto& [of, limit, found, at] = bad;
  switch (of) {
    case Of::table_row:
      fail(
          "gather_rows: index {} at {} is not below the {} rows of its table: is that token of "
          "this "
          "vocabulary?",
          found, at, limit);
    case Of::position:
      fail(
          "rope: position {} of token {} is not below the {} rows of cos and sin: make the tables "
          "longer",
          found, at, limit);
    case Of::slot:
      fail("kv_write: slot {} of token {} is not below {}, the slots of the pool", found, at,
           limit);
    case Of::gathered_page:
      refuse_page("kv_gather", bad);
    case Of::gathered_table:
      refuse_table("kv_gather", bad);
    case Of::attended_page:
      refuse_page("paged_attention", bad);
    case Of::attended_table:
      refuse_table("paged_attention", bad);
    case Of::query_start:
      fail("paged_attention: query_start runs from {} to {}, not from 0 to the {} queries", found,
           at, limit);
    case Of::query_order:
      fail("paged_attention: query_start falls from {} to {} at request {}", limit, found, at);
    case Of::context_length:
      fail("paged_attention: the context length {} of request {} is negative", found, at);
    case Of::routed_expert:
      fail(
          "routing_weights: index {} at {} is not below the {} logits of a row: take it from top_k",
          found, at, limit);
    case Of::used_expert:
      fail("expert_matmul: index {} at {} is not below its {} experts: take it from top_k", found,
           at, limit);
    case Of::step_wait:
      fail(
          "decode_step: block {} waited {} seconds for {}, and the step was given up: use "
          "--executor ops, or report it",
          at, limit, found < 0 ? "memory" : fmt::format("numbers of layer {}", found));
    case Of::digest_wait:
      fail(
          "a digest waited {} seconds for the decode step that makes its tensor, and went on "
          "without "
          "it: use --executor ops, or report it",
          limit);
    case Of::none:
      break;
  }
  fail("an op on a device says that it met a bad index, but not of what: its report is damaged");
}

}  // namespace lockstep
