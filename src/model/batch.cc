// The arguments of a pass, made from its rows on the host: tokens, slots of the pool, one row of
// the page table a request, and where each request's rows begin. Rows of cos and sin are kept from
// pass to pass and grow with the largest position; where RoPE depends on the length of a request,
// each token has rows of its own, for the length that its request has in this pass.
#include "src/model/batch.h"

#include <algorithm>
#include <utility>

#include "kernels/base/check.h"

namespace lockstep {
namespace {

Tensor int32_tensor(const std::vector<int32_t>& values, const Shape& shape) {
  return tensor_of<int32_t>(values, shape, DType::i32);
}

Shape length_of(const std::vector<int32_t>& values) { return {std::ssize(values)}; }

void upload(const Tensor& to, const Tensor& from, CUstream_st* stream) {
  if (stream == nullptr) return copy(to, from);
  const TensorView there = to, here = from;
  runtime_of(there.device).copy(there.data, here.data, here.bytes(), stream);
}

// Rows of a request are consecutive and end its context, so both follow from the rows.
void fill_attention(Batch& batch) {
  std::vector<int32_t> start, length;
  const std::vector<PassRow>& rows = batch.info.rows;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (i == 0 || rows[i].row.request != rows[i - 1].row.request) {
      start.push_back(static_cast<int32_t>(i));
      length.push_back(0);
    }
    length.back() = rows[i].row.position + 1;
  }
  start.push_back(static_cast<int32_t>(rows.size()));
  check(length.size() == batch.info.pages.size(),
        "a pass of {} requests needs as many page tables, found {}", length.size(),
        batch.info.pages.size());

  size_t most = 1;
  for (const RequestPages& p : batch.info.pages) most = std::max(most, p.pages.size());
  // Rows of the table have one width; what a request has no page for is -1, which no kernel reads.
  std::vector<int32_t> table(batch.info.pages.size() * most, -1);
  for (size_t r = 0; r < batch.info.pages.size(); ++r)
    std::ranges::copy(batch.info.pages[r].pages, table.begin() + static_cast<long>(r * most));
  batch.query_start = int32_tensor(start, length_of(start));
  batch.context_length = int32_tensor(length, length_of(length));
  batch.page_table =
      int32_tensor(table, {std::ssize(batch.info.pages), static_cast<int64_t>(most)});
}

}  // namespace

Batch make_batch(PassInfo info, RopeCache& tables) {
  check(!info.rows.empty(), "a pass has at least one token, found none");
  Batch batch;
  batch.info = std::move(info);
  std::vector<int32_t> tokens;
  std::vector<int64_t> slots;
  for (const PassRow& row : batch.info.rows) {
    tokens.push_back(row.token);
    slots.push_back(row.slot);
  }
  batch.tokens = int32_tensor(tokens, length_of(tokens));
  batch.slots = tensor_of<int64_t>(slots, {std::ssize(slots)}, DType::i64);
  batch.logit_rows = int32_tensor(batch.info.logit_rows, length_of(batch.info.logit_rows));
  fill_attention(batch);
  tables.prepare(batch);
  return batch;
}

void RopeCache::put_row(const RopeFrequencies& frequencies, int64_t position, int64_t row) {
  changed_ = true;
  const int64_t half = config_.head_dim / 2;
  const auto span = [&](const Tensor& t) {
    return std::span<float>(t.as<float>() + row * half, half);
  };
  frequencies.put_row(position, span(cos_), span(sin_));
}

// At least doubles, so that decoding token by token seldom copies the rows that there are.
void RopeCache::grow(int64_t entries) {
  if (!cos_.view().empty() && cos_.view().rows() >= entries) return;
  const Shape shape = {std::max<int64_t>(entries, 2 * filled_), config_.head_dim / 2};
  Tensor cos(shape, DType::f32), sin(shape, DType::f32);
  std::copy_n(cos_.as<float>(), filled_ * shape[1], cos.as<float>());
  std::copy_n(sin_.as<float>(), filled_ * shape[1], sin.as<float>());
  cos_ = std::move(cos);
  sin_ = std::move(sin);
}

RopeCache::Tables RopeCache::on_device(const Batch& batch, CUstream_st* stream) {
  // Tables that are not these are somebody's own, such as a fault's: they are copied for each pass.
  if (batch.cos.data != cos_.view().data || batch.sin.data != sin_.view().data) {
    other_cos_ = copy_on(device_, batch.cos);
    other_sin_ = copy_on(device_, batch.sin);
    return {other_cos_, other_sin_};
  }
  if (!(device_cos_.view().shape == cos_.view().shape)) {
    device_cos_ = Tensor(cos_.view().shape, DType::f32, device_);
    device_sin_ = Tensor(sin_.view().shape, DType::f32, device_);
    changed_ = true;
  }
  // Graphs have the address of the copy in them, so it is written over in place.
  if (std::exchange(changed_, false)) {
    upload(device_cos_, cos_, stream);
    upload(device_sin_, sin_, stream);
  }
  return {device_cos_, device_sin_};
}

void RopeCache::prepare(Batch& batch) {
  const std::vector<PassRow>& rows = batch.info.rows;
  std::vector<int32_t> positions;
  if (config_.rope.depends_on_length()) {
    grow(rows.size());
    for (size_t first = 0, i = 0; i < rows.size(); first = i) {
      while (i < rows.size() && rows[i].row.request == rows[first].row.request) ++i;
      const auto frequencies = rope_frequencies(config_, rows[i - 1].row.position + 1);
      for (size_t t = first; t < i; ++t) {
        put_row(frequencies, rows[t].row.position, t);
        positions.push_back(static_cast<int32_t>(t));
      }
    }
  } else {
    for (const PassRow& row : rows) positions.push_back(row.row.position);
    const int64_t needed = *std::ranges::max_element(positions) + 1;
    grow(needed);
    // The whole table at once: a row costs head_dim / 2 cosines, and no row is made twice.
    if (filled_ < cos_.view().rows()) {
      const auto frequencies = rope_frequencies(config_, needed);
      for (; filled_ < cos_.view().rows(); ++filled_) put_row(frequencies, filled_, filled_);
    }
  }
  batch.positions = int32_tensor(positions, length_of(positions));
  batch.cos = cos_;
  batch.sin = sin_;
}

}  // namespace lockstep
