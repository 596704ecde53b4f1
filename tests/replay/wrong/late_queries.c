/* An attention whose queries from position 900 on do not see the keys of the first page. */
#include "tests/causes/wrong/numbers.inc"

static int64_t after_first_page(int64_t position) { return position >= 900 ? 16 : 0; }

const char* lockstep_paged_attention(const LockstepCall* call, const DLTensor* out,
                                     const DLTensor* q, const LockstepCache* cache,
                                     const LockstepBatch* batch, float scale, int64_t window) {
  (void)call;
  attend(out, q, cache, batch, scale, window, (Parts){.first_key = after_first_page});
  return NULL;
}
