/* The embedding times sqrt(hidden), as Gemma's is. */
#include "numbers.inc"

const char* lockstep_gather_rows(const LockstepCall* call, const DLTensor* out,
                                 const DLTensor* index, const DLTensor* table) {
  const int64_t width = table->shape[1], rows = count_of(index);
  const float times = is_at(call, "embed") ? sqrtf((float)width) : 1;
  for (int64_t t = 0; t < rows; ++t)
    for (int64_t i = 0; i < width; ++i)
      store(out, t * width + i, times * load(table, ints(index)[t] * width + i));
  return NULL;
}
