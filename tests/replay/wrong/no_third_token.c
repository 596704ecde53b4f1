/* A write of K and V that leaves the third token of a pass out. */
#include "tests/causes/wrong/numbers.inc"

const char* lockstep_kv_write(const LockstepCall* call, const LockstepCache* cache,
                              const DLTensor* k, const DLTensor* v, const DLTensor* slots) {
  (void)call;
  const int64_t* to = (const int64_t*)((const char*)slots->data + slots->byte_offset);
  const int64_t width = k->shape[1] * k->shape[2];
  for (int64_t i = 0; i < k->shape[0] * width; ++i) {
    const int64_t slot = to[i / width];
    if (slot < 0 || i / width == 2) continue;
    store(cache->k, slot * width + i % width, load(k, i));
    store(cache->v, slot * width + i % width, load(v, i));
  }
  return NULL;
}
