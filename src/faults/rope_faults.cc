#include <memory>
#include <vector>

#include "src/faults/seeds.h"

namespace lockstep {
namespace {

void rotate_interleaved(TensorView out, const TensorView& x, const TensorView& cos,
                        const TensorView& sin, const TensorView& positions) {
  const int64_t heads = x.shape[1], dim = x.shape[2];
  for (int64_t t = 0; t < x.rows(); ++t)
    for (int64_t h = 0; h < heads; ++h)
      for (int64_t j = 0; j < dim / 2; ++j) {
        const int64_t angle = positions.as<int32_t>()[t] * (dim / 2) + j;
        const float c = cos.as<float>()[angle], s = sin.as<float>()[angle];
        const int64_t i = (t * heads + h) * dim + 2 * j;
        const float x1 = get(x, i), x2 = get(x, i + 1);
        put(out, i, x1 * c - x2 * s);
        put(out, i + 1, x2 * c + x1 * s);
      }
}

}  // namespace

void seed_rope_interleaved(const Seams& seams, const FaultRequest& request) {
  seams.ops.rope = [inner = seams.ops.rope, request](const OpContext& context, TensorView out,
                                                     TensorView x, TensorView cos, TensorView sin,
                                                     TensorView positions) {
    if (!hits(request, context)) return inner(context, out, x, cos, sin, positions);
    rotate_interleaved(out, x, cos, sin, positions);
  };
}

void seed_rope_position_off_by_one_in_decode(const Seams& seams, const FaultRequest& request) {
  const auto decoding = std::make_shared<std::vector<bool>>();  // by row of the pass
  seams.before_pass.push_back([decoding](Batch& batch) {
    decoding->clear();
    for (const PassRow& row : batch.info.rows) decoding->push_back(row.phase == Phase::decode);
  });
  seams.ops.rope = [inner = seams.ops.rope, request, decoding](
                       const OpContext& context, TensorView out, TensorView x, TensorView cos,
                       TensorView sin, TensorView positions) {
    if (!hits(request, context)) return inner(context, out, x, cos, sin, positions);
    const auto* right = positions.as<const int32_t>();
    Tensor wrong =
        tensor_of<int32_t>({right, right + positions.count()}, positions.shape, DType::i32);
    for (size_t t = 0; t < decoding->size(); ++t)
      if ((*decoding)[t]) --wrong.as<int32_t>()[t];
    inner(context, out, x, cos, sin, wrong);
  };
}

}  // namespace lockstep
