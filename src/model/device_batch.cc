// The arguments of a pass as one block: filled on the host and copied to the device at once. Rows
// and tables beyond the batch are padded so that ops do nothing there: slots and pages of -1, empty
// requests.
#include "src/model/device_batch.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "kernels/base/check.h"

namespace lockstep {
namespace {

struct Field {
  Tensor Batch::*tensor;
  Shape shape;
  DType dtype;

  int64_t bytes() const { return aligned(shape.count() * size_of(dtype)); }
};

std::vector<Field> fields_of(const DeviceBatch::Room& room) {
  return {{&Batch::tokens, {room.tokens}, DType::i32},
          {&Batch::positions, {room.tokens}, DType::i32},
          {&Batch::slots, {room.tokens}, DType::i64},
          {&Batch::logit_rows, {room.logit_rows}, DType::i32},
          {&Batch::query_start, {room.requests + 1}, DType::i32},
          {&Batch::context_length, {room.requests}, DType::i32},
          {&Batch::page_table, {room.requests, room.pages}, DType::i32},
          {&Batch::counts, {2}, DType::i32},
          {&Batch::counters, {Batch::kCounters}, DType::i32}};
}

// `from`, and then what `padding` gives for 0, 1, ...
template <typename T, typename Padding>
void put(const TensorView& to, const TensorView& from, Padding padding) {
  std::copy_n(from.as<const T>(), from.count(), to.as<T>());
  for (int64_t i = from.count(); i < to.count(); ++i)
    to.as<T>()[i] = static_cast<T>(padding(i - from.count()));
}

}  // namespace

DeviceBatch::Room DeviceBatch::room_of(const Batch& batch) {
  return {.tokens = batch.size(),
          .requests = batch.context_length.view().count(),
          .logit_rows = batch.logit_rows.view().count(),
          .pages = batch.page_table.view().shape[1]};
}

DeviceBatch::DeviceBatch(const Room& room, Device device) : room_(room) {
  const std::vector<Field> fields = fields_of(room);
  int64_t bytes = 0;
  for (const Field& field : fields) bytes += field.bytes();
  host_block_ = Tensor({bytes}, DType::u8);
  device_block_ = Tensor({bytes}, DType::u8, device);
  int64_t offset = 0;
  for (const Field& field : fields) {
    host_.*field.tensor = host_block_.part(offset, field.shape, field.dtype);
    device_.*field.tensor = device_block_.part(offset, field.shape, field.dtype);
    offset += field.bytes();
  }
  std::fill_n(host_.counters.as<int32_t>(), Batch::kCounters, 0);
}

// The block, and then `tokens` in the place of those that it has: on a device at once, since the
// pass waits for it.
void DeviceBatch::copy_there(const TensorView& tokens, CUstream_st* stream) {
  const TensorView block = device_block_;
  const TensorView there =
      tokens.empty() ? TensorView{} : device_.tokens.view().slice(0, tokens.count());
  if (block.device == Device::cpu) {
    copy(block, host_block_);
    if (!tokens.empty()) copy(there, tokens);
    return;
  }
  const DeviceRuntime& device = runtime_of(block.device);
  device.fill(block.data, host_block_.view().data, block.bytes(),
              {there.data, tokens.data, tokens.empty() ? 0 : tokens.bytes()},
              stream == nullptr ? device.stream : stream);
}

void DeviceBatch::fill(Batch batch, RopeCache& tables, const TensorView& tokens,
                       CUstream_st* stream) {
  const Room taken = room_of(batch);
  check(taken.tokens <= room_.tokens && taken.requests <= room_.requests &&
            taken.logit_rows <= room_.logit_rows && taken.pages <= room_.pages,
        "a pass of {} tokens of {} requests with {} pages does not fit where {} of {} with {} do",
        taken.tokens, taken.requests, taken.pages, room_.tokens, room_.requests, room_.pages);
  const auto constant = [](int value) { return [value](int64_t) { return value; }; };
  put<int32_t>(host_.tokens, batch.tokens, constant(0));
  put<int32_t>(host_.positions, batch.positions, constant(0));
  put<int64_t>(host_.slots, batch.slots, constant(-1));
  // Padded rows of logits name padded tokens, and padded queries are of requests without a context,
  // which end one token further each.
  put<int32_t>(host_.logit_rows, batch.logit_rows, [&](int64_t i) { return taken.tokens + i; });
  put<int32_t>(host_.query_start, batch.query_start,
               [&](int64_t i) { return taken.tokens + 1 + i; });
  put<int32_t>(host_.context_length, batch.context_length, constant(0));
  const TensorView table = batch.page_table, nothing = table.slice(0, 0);
  for (int64_t r = 0; r < room_.requests; ++r)
    put<int32_t>(host_.page_table.view().slice(r, 1),
                 r < taken.requests ? table.slice(r, 1) : nothing, constant(-1));
  host_.counts.as<int32_t>()[0] = static_cast<int32_t>(taken.tokens);
  host_.counts.as<int32_t>()[1] = static_cast<int32_t>(taken.logit_rows);
  copy_there(tokens, stream);
  const RopeCache::Tables device_tables = tables.on_device(batch, stream);
  device_.cos = device_tables.cos;
  device_.sin = device_tables.sin;
  device_.info = std::move(batch.info);
}

}  // namespace lockstep
