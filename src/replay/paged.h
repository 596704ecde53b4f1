// The K/V cache of one layer as an op finds it in a pass: pages filled with what a trace kept.
#pragma once

#include <map>
#include <vector>

#include "kernels/base/memory.h"
#include "kernels/kv_cache.h"
#include "probes/record.h"
#include "src/judge/oracle.h"

namespace lockstep {

// A pass as it is computed again: its rows, with the page table of each of its requests.
struct PagedPass {
  PassInfo info;
  int64_t page_size = 0;
  int64_t pages = 0;  // in the pool
};

// The pages and slots of the pass as they were, where they are known; else each request gets pages
// of its own, one after the other. page_size: of the run, 0: not known. position_bytes: of both
// K and V at one position; pools that would be too large are numbered anew, without gaps.
PagedPass paged(PassInfo info, int64_t page_size, int64_t position_bytes);

// A pool on the host in which every slot holds NaN (a pattern of set bits) but those of `held`: by
// request, positions from 0. `left_out`: rows whose slots stay so, as the pass writes them itself.
struct HostCache {
  Tensor k, v;  // [pages, page_size, kv_heads, head_dim]
};
// Positions beyond a request's page table are left out. Throws Error where nothing is held.
HostCache filled_cache(const PagedPass& pass, const std::map<int32_t, KeysValues>& held,
                       const std::vector<PassRow>& left_out);

}  // namespace lockstep
