#include "kernels/base/bad_index.h"

#include "kernels/base/check.h"

namespace lockstep {
namespace {

[[noreturn]] void refuse_page(const char* op, const BadIndex& bad) {
  fail("{} wants pages below the {} of the pool, found page {} at entry {} of a page table", op,
       bad.limit, bad.found, bad.at);
}

[[noreturn]] void refuse_table(const char* op, const BadIndex& bad) {
  fail("{} wants a page table of at least {} pages of {} positions, found {}", op, bad.limit,
       bad.at, bad.found);
}

}  // namespace

void refuse(const BadIndex& bad) {
  using Of = BadIndex::Of;
  const auto& [of, limit, found, at] = bad;
  switch (of) {
    case Of::table_row:
      fail(
          "gather_rows wants indices below the {} rows of its table, found {} at {}: is that token "
          "of this vocabulary?",
          limit, found, at);
    case Of::position:
      fail(
          "rope wants positions below the {} rows of cos and sin, found {} for token {}: make the "
          "tables longer",
          limit, found, at);
    case Of::slot:
      fail("kv_write wants slots below {}, all that the pool has, found {} for token {}", limit,
           found, at);
    case Of::gathered_page:
      refuse_page("kv_gather", bad);
    case Of::gathered_table:
      refuse_table("kv_gather", bad);
    case Of::attended_page:
      refuse_page("paged_attention", bad);
    case Of::attended_table:
      refuse_table("paged_attention", bad);
    case Of::query_start:
      fail("paged_attention wants query_start to run from 0 to the {} queries, found {} to {}",
           limit, found, at);
    case Of::query_order:
      fail("paged_attention wants query_start not to fall, found {} after {} for request {}", found,
           limit, at);
    case Of::context_length:
      fail("paged_attention wants context lengths of 0 or more, found {} for request {}", found,
           at);
    case Of::routed_expert:
      fail(
          "routing_weights wants indices below the {} logits of a row, found {} at {}: take them "
          "from "
          "top_k",
          limit, found, at);
    case Of::used_expert:
      fail("expert_matmul wants indices below its {} experts, found {} at {}: take them from top_k",
           limit, found, at);
    case Of::none:
      break;
  }
  fail("an op on a device says that it met a bad index, but not of what: its report is damaged");
}

}  // namespace lockstep
