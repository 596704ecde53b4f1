// The bound that diff_scores.h derives, row by row of attention, from K and V as they were written.
#include "src/diff/diff_scores.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "src/stats/moments.h"

namespace lockstep {

ScoreRounding::ScoreRounding(const Manifest& a, const Manifest& b) {
  for (const Manifest* manifest : {&a, &b}) {
    const auto declared = manifest->contracts.find(std::string(point("attn.out").name));
    if (declared == manifest->contracts.end()) continue;
    const double u = unit_roundoff(manifest->dtype);
    // Two roundings on the way to a score: of the product and of that scaled, or of the query and
    // of the product.
    if (declared->second == RoundingContract::eager ||
        declared->second == RoundingContract::eager_query_rounded)
      scores_ += 2 * u, probabilities_ += u;
    if (declared->second == RoundingContract::scores_rounded) scores_ += 2 * u;
    if (declared->second == RoundingContract::query_rounded) scores_ += u;
  }
}

void ScoreRounding::add(DiffSide& side, int pass, const std::vector<Place>& places,
                        size_t attention) {
  const int layer = places[attention].layer;
  const auto numbers = [&](const Point& of, const PassRow& r, size_t i) -> std::vector<double> {
    const auto place = std::ranges::find(places, Place{&of, layer}) - places.begin();
    const auto shown = side.find(pass, place, r.row, i);
    return shown ? shown->numbers() : std::vector<double>{};
  };
  const Pass& of = side.pass(pass);
  const std::vector<PassRow>& rows = of.info.rows;
  const RecordedTensor* out = of.find(*places[attention].point, layer);
  for (size_t i = 0; i < rows.size(); ++i)
    write(layer, side.prefix(rows[i].row), numbers(point("attn.k_rope"), rows[i], i),
          numbers(point("attn.v"), rows[i], i));
  for (size_t i = 0; i < rows.size(); ++i) {
    const Row& row = rows[i].row;
    std::vector<uint64_t> tokens;
    for (int32_t p = 0; p <= row.position; ++p) tokens.push_back(side.prefix({row.request, p}));
    add(layer, row.request, numbers(point("attn.q_rope"), rows[i], i),
        numbers(*places[attention].point, rows[i], i),
        out && out->shape.rank() == 3 ? out->shape[2] : 0, tokens);
  }
}

void ScoreRounding::write(int layer, uint64_t tokens, std::vector<double> k,
                          std::vector<double> v) {
  written_[{layer, tokens}] = {std::move(k), std::move(v)};
}

std::vector<double> ScoreRounding::head_bound(std::span<const double> q,
                                              std::span<const double> out,
                                              const std::vector<const KeyValue*>& rows,
                                              size_t kv_head) const {
  const size_t dim = q.size();
  std::vector<double> scores, bound(dim);
  for (const KeyValue* row : rows) {
    double product = 0;
    for (size_t d = 0; d < dim; ++d) product += q[d] * row->k[kv_head * dim + d];
    scores.push_back(product / std::sqrt(dim));
  }
  const double top = *std::ranges::max_element(scores);
  double sum = 0, largest = 0;
  for (const double s : scores) {
    sum += std::exp(s - top);
    largest = std::max(largest, std::fabs(s));
  }
  const double beyond = std::exp(2 * scores_ * largest);
  for (size_t j = 0; j < rows.size(); ++j) {
    const double p = std::exp(scores[j] - top) / sum;
    const double off = beyond * scores_ * std::fabs(scores[j]);
    for (size_t d = 0; d < dim; ++d) {
      const double v = rows[j]->v[kv_head * dim + d];
      bound[d] += p * (off * std::fabs(v - out[d]) + probabilities_ * std::fabs(v));
    }
  }
  return bound;
}

void ScoreRounding::add(int layer, int32_t request, std::span<const double> q,
                        std::span<const double> out, int64_t dim,
                        std::span<const uint64_t> tokens) {
  Sums& sums = sums_[request];
  std::vector<const KeyValue*> rows;
  for (const uint64_t one : tokens) {
    const auto found = written_.find({layer, one});
    if (found != written_.end()) rows.push_back(&found->second);
  }
  const size_t width = dim;
  const size_t keys = rows.empty() ? 0 : rows[0]->k.size();
  const bool fit = rows.size() == tokens.size() && q.size() == out.size() && width > 0 &&
                   keys >= width && q.size() % keys == 0 && keys % width == 0 &&
                   std::ranges::all_of(rows, [&](const KeyValue* row) {
                     return row->k.size() == keys && row->v.size() == keys;
                   });
  sums.unknown = sums.unknown || !fit;
  if (sums.unknown) return;
  double size = 0;
  for (const double o : out) size += o * o;
  const double rms = root_mean(size, std::ssize(out));
  sums.size += size;
  const size_t heads = q.size() / width, group = heads / (keys / width);
  for (size_t h = 0; h < heads; ++h) {
    const std::span of_head = out.subspan(h * width, width);
    const std::vector<double> bound =
        head_bound(q.subspan(h * width, width), of_head, rows, h / group);
    for (size_t d = 0; d < width; ++d) {
      sums.off += bound[d] * bound[d];
      const double unit = std::max(std::fabs(of_head[d]), rms);
      sums.worst = std::max(sums.worst, unit > 0 ? bound[d] / unit : 0);
    }
  }
}

RelativeDifference ScoreRounding::take(int32_t request) {
  // Not infinite: what is no number, or of another shape, is more than that.
  constexpr double kAny = std::numeric_limits<double>::max() / 2;
  const Sums sums = std::exchange(sums_[request], {});
  if (sums.unknown || !std::isfinite(sums.off)) return {kAny, kAny};
  return {sums.size > 0 ? std::sqrt(sums.off / sums.size) : 0, sums.worst};
}

}  // namespace lockstep
