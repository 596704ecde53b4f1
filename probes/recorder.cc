// A recorder copies what passes by: rows that are selected, their hashes and digests, the best
// logits of each choice. K and V on their way into the cache, and what comes out of it, are hashed
// whatever else is kept, because the judge compares a cache by hashes.
#include "probes/recorder.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/base/check.h"

namespace lockstep {
namespace {

// Threads that copy a large tensor: what one leaves of a machine's memory bandwidth some take.
constexpr int kCopiers = 8;
constexpr int64_t kShared = 4 << 20;  // bytes that are worth waking them

// Row hashes that the judge compares whatever is kept: what was written to the cache and what came
// out of it.
bool always_hashed(const Point& p) {
  return p.is_cache() || p == point("attn.k_rope") || p == point("attn.v");
}

Shape with_rows(const Shape& shape, int64_t rows) {
  std::vector<int64_t> extents(shape.extents().begin(), shape.extents().end());
  extents[0] = rows;
  return Shape(extents);
}

// A dense copy of some rows. hashes: room for the hash of each, which is made while the row is in a
// cache; empty: none is wanted.
Tensor copy_rows(const TensorView& from, std::span<const int64_t> rows, std::span<uint64_t> hashes,
                 ThreadPool* threads) {
  Tensor copy(with_rows(from.shape, rows.size()), from.dtype);
  const size_t size = from.row_size() * size_of(from.dtype);
  auto* const to = copy.as<char>();
  parallel_for(threads, std::ssize(rows), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      if (size > 0) std::memcpy(to + i * size, from.as<const char>() + rows[i] * size, size);
      if (!hashes.empty()) hashes[i] = hash_of(to + i * size, size);
    }
  });
  return copy;
}

// Whether any of some numbers is larger than `least`, or NaN, looked at many at a time: nearly no
// part of a vocabulary has one.
template <typename T>
bool any_larger(const T* from, int64_t count, double least) {
  const auto bound = static_cast<T>(least);
  bool any = false;
  for (int64_t i = 0; i < count; ++i) any |= !(from[i] <= bound);
  return any;
}
// Halves by whole numbers that are in their order; a NaN without a sign is above all.
int16_t order_of(uint16_t bits) {
  const auto whole = static_cast<int16_t>(bits);
  return static_cast<int16_t>(whole ^ ((whole >> 15) & 0x7fff));
}
template <typename T>
bool any_larger_half(const T* from, int64_t count, double least) {
  const int16_t bound = order_of(from_float<T>(static_cast<float>(least)).bits);
  int16_t largest = std::numeric_limits<int16_t>::min();
  for (int64_t i = 0; i < count; ++i) largest = std::max(largest, order_of(from[i].bits));
  return largest > bound;
}
bool any_larger(const TensorView& logits, int64_t first, int64_t count, double least) {
  switch (logits.dtype) {
    case DType::bf16:
      return any_larger_half(logits.as<const BFloat16>() + first, count, least);
    case DType::f16:
      return any_larger_half(logits.as<const Float16>() + first, count, least);
    case DType::f32:
      return any_larger(logits.as<const float>() + first, count, least);
    default:
      return true;
  }
}

}  // namespace

const RecordedTensor* Pass::find(const Point& point, int layer, int32_t request) const {
  for (const RecordedTensor& tensor : tensors) {
    if (tensor.layer != layer || !(*tensor.point == point)) continue;
    const bool of_one = point.is_cache() && request >= 0;
    if (!of_one || (!tensor.rows.empty() && tensor.rows[0].request == request)) return &tensor;
  }
  return nullptr;
}

double TopLogits::margin() const {
  return values.size() < 2 ? std::numeric_limits<double>::infinity() : values[0] - values[1];
}

// Eight are kept in order by insertion: nearly no element of a vocabulary gets past the first
// comparison.
std::vector<TopLogits> top_logits_of(const TensorView& logits, std::span<const Row> rows) {
  check(logits.shape.rank() == 2 && logits.rows() == std::ssize(rows),
        "logits of {} rows were wanted, found a tensor {}", rows.size(), logits.shape.text());
  struct Place {
    double value;
    int32_t id;
  };
  const auto before = [](const Place& a, const Place& b) {
    if (std::isnan(a.value) || std::isnan(b.value))
      return std::isnan(a.value) == std::isnan(b.value) ? a.id < b.id : !std::isnan(a.value);
    return a.value == b.value ? a.id < b.id : a.value > b.value;
  };
  const int64_t vocab = logits.shape[1];
  std::array<double, 256> block;
  std::vector<TopLogits> top;
  for (size_t i = 0; i < rows.size(); ++i) {
    std::vector<Place> best;  // in order
    for (int64_t begin = 0; begin < vocab; begin += std::ssize(block)) {
      const size_t size = std::min(std::ssize(block), vocab - begin);
      // The tensor has that value, so its dtype holds it.
      if (std::ssize(best) == kTopLogits && !std::isnan(best.back().value) &&
          !any_larger(logits, i * vocab + begin, size, best.back().value))
        continue;
      widen(logits, i * vocab + begin, std::span(block.data(), size));
      for (size_t at = 0; at < size; ++at) {
        // Most are not among them, and equal ones with a larger id neither.
        const bool full = std::ssize(best) == kTopLogits;
        if (full && !(block[at] > best.back().value) && !std::isnan(best.back().value)) continue;
        const Place place{block[at], static_cast<int32_t>(begin + at)};
        if (full && !before(place, best.back())) continue;
        if (full) best.pop_back();
        best.insert(std::ranges::upper_bound(best, place, before), place);
      }
    }
    TopLogits& row = top.emplace_back(TopLogits{.row = rows[i]});
    for (const Place& place : best) {
      row.ids.push_back(place.id);
      row.values.push_back(place.value);
    }
  }
  return top;
}

void put_chosen(std::vector<TopLogits>& logits, const TensorView& token,
                std::span<const Row> rows) {
  for (TopLogits& top : logits) {
    const auto i = std::distance(rows.begin(), std::ranges::find(rows, top.row));
    if (i < std::ssize(rows)) top.chosen = static_cast<int32_t>(value_at(token, i));
  }
}

void put_top_logits(Pass& pass) {
  if (const RecordedTensor* logits = pass.find(point("logits"), -1))
    pass.logits = top_logits_of(logits->data, logits->rows);
  if (const RecordedTensor* token = pass.find(point("token"), -1))
    put_chosen(pass.logits, token->data, token->rows);
}

Recorder::Recorder(Selection selection, bool digests, std::function<void(Pass)> finished,
                   Copied copied)
    : selection_(std::move(selection)),
      digests_(digests),
      finished_(std::move(finished)),
      copied_(std::move(copied)) {}

bool Recorder::wants(const Point& point, int layer) const { return selection_.has(point, layer); }

void Recorder::begin(const PassInfo& pass) {
  pass_ = {};
  pass_.info = pass;
}

void Recorder::record(const Record& record) {
  const TensorView& tensor = record.tensor;
  const Point& point = *record.point;
  check(tensor.shape.rank() > 0 && tensor.rows() == std::ssize(record.rows),
        "point {} was shown a tensor {} with the names of {} rows: it needs one for each",
        point.name, tensor.shape.text(), record.rows.size());
  check(!record.shard,
        "point {} shows a shard of its tensor, and a trace holds whole tensors: gather it first",
        point.name);
  check(tensor.device == Device::cpu,
        "point {} shows a tensor in device memory, and this recorder reads host memory",
        point.name);
  RecordedTensor kept{.point = &point, .layer = record.layer, .dtype = tensor.dtype};
  std::vector<int64_t> wanted;
  for (size_t i = 0; i < record.rows.size(); ++i) {
    const Row& row = record.rows[i];
    const bool has = point.is_cache() ? selection_.has_request(row.request) : selection_.has(row);
    if (!has) continue;
    wanted.push_back(i);
    kept.rows.push_back(row);
  }
  if (wanted.empty() && !record.rows.empty()) return;
  if (digests_ || always_hashed(point)) kept.row_hashes.resize(wanted.size());
  const bool shared = tensor.bytes() >= kShared;
  if (shared && !threads_)
    threads_ = std::make_unique<ThreadPool>(std::min(kCopiers, machine_threads()));
  kept.data = copy_rows(tensor, wanted, kept.row_hashes, shared ? threads_.get() : nullptr);
  kept.shape = kept.data.view().shape;
  const bool whole = wanted.size() == record.rows.size() && !point.is_cache();
  if (copied_ && whole && !record.on_device.empty()) copied_(kept.data, record.on_device);
  if (digests_)
    kept.digest = point.is_cache() ? digest_of_rows(kept.row_hashes, kept.shape.count())
                                   : digest_of(kept.data);
  pass_.tensors.push_back(std::move(kept));
}

void Recorder::end() {
  put_top_logits(pass_);
  finished_(std::move(pass_));
  pass_ = {};
}

}  // namespace lockstep
