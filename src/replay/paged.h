// The K/V cache of one layer as an op finds it in a pass: pages filled with what a trace kept.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "kernels/base/memory.h"
#include "kernels/kv_cache.h"
#include "probes/record.h"
#include "src/judge/oracle.h"
#include "traces/manifest.h"

namespace lockstep {

// The pool of a run.
struct PoolFacts {
  int64_t page_size = 0;  // positions; 0: not known
  int64_t pages = 0;      // 0: not known
};
PoolFacts pool_of(const Manifest& manifest);

// A pass as it is computed again: its rows, with the page table of each of its requests.
struct PagedPass {
  PassInfo info;
  int64_t page_size = 0;
  int64_t pages = 0;  // in the pool
  // How pages, slots and pool are not those of the run, in a sentence's words; empty: they are.
  std::string unlike_run;
};

// The pages and slots of the pass as they were, in a pool as large as it was, where these are
// known; else each request gets pages of its own, one after the other. position_bytes: of both K
// and V at one position; a pool that would be too large is as small as the pages allow, and if
// that is too large they are numbered anew, without gaps.
PagedPass paged(PassInfo info, const PoolFacts& run, int64_t position_bytes);

// A pool on the host in which every slot holds NaN (a pattern of set bits) but those of `held`: by
// request, positions from 0. `left_out`: rows whose slots stay so, as the pass writes them itself.
struct HostCache {
  Tensor k, v;  // [pages, page_size, kv_heads, head_dim]
};
// Positions beyond a request's page table are left out. Throws Error where nothing is held.
HostCache filled_cache(const PagedPass& pass, const std::map<int32_t, KeysValues>& held,
                       const std::vector<PassRow>& left_out);

}  // namespace lockstep
