/* K and V written as [heads, positions, dim] in each page, where [positions, heads, dim] is read.
 */
#include "numbers.inc"

const char* lockstep_kv_write(const LockstepCall* call, const LockstepCache* cache,
                              const DLTensor* k, const DLTensor* v, const DLTensor* slots) {
  (void)call;
  const int64_t heads = k->shape[1], dim = k->shape[2], page_size = cache->k->shape[1];
  const int64_t* slot = (const int64_t*)((const char*)slots->data + slots->byte_offset);
  for (int64_t t = 0; t < k->shape[0]; ++t)
    for (int64_t h = 0; slot[t] >= 0 && h < heads; ++h)
      for (int64_t d = 0; d < dim; ++d) {
        const int64_t row = (slot[t] / page_size * heads + h) * page_size + slot[t] % page_size;
        store(cache->k, row * dim + d, load(k, (t * heads + h) * dim + d));
        store(cache->v, row * dim + d, load(v, (t * heads + h) * dim + d));
      }
  return NULL;
}
