// Numbers in the order and with the layout of this machine: ranks are processes of one program.
#include "src/ranks/rank_pass.h"

#include <cstring>
#include <type_traits>

namespace lockstep {
namespace {

class Writer {
 public:
  template <typename T>
  void put(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    put_bytes(&value, sizeof value);
  }
  template <typename T>
  void put_all(const std::vector<T>& values) {
    put(std::ssize(values));
    put_bytes(values.data(), values.size() * sizeof(T));
  }
  void put_bytes(const void* data, size_t size) {
    const auto* first = static_cast<const std::byte*>(data);
    bytes.insert(bytes.end(), first, first + size);
  }

  std::vector<std::byte> bytes;
};

class Reader {
 public:
  explicit Reader(const std::vector<std::byte>& bytes) : bytes_(bytes) {}

  template <typename T>
  T get() {
    T value{};
    get_bytes(&value, sizeof value);
    return value;
  }
  template <typename T>
  std::vector<T> get_all() {
    std::vector<T> values(static_cast<size_t>(get<std::ptrdiff_t>()));
    get_bytes(values.data(), values.size() * sizeof(T));
    return values;
  }
  void get_bytes(void* to, size_t size) {
    check(size <= bytes_.size() - at_, "a message of another rank is cut off after {} bytes",
          bytes_.size());
    if (size > 0) std::memcpy(to, bytes_.data() + at_, size);
    at_ += size;
  }

 private:
  const std::vector<std::byte>& bytes_;
  size_t at_ = 0;
};

void put(Writer& to, const RankTensor& tensor) {
  const TensorView& data = tensor.data;
  to.put(tensor.point->order());
  to.put(tensor.layer);
  to.put_all(tensor.rows);
  to.put(tensor.shard.has_value());
  to.put(tensor.shard.value_or(Shard{}));
  to.put(data.dtype);
  to.put_all(std::vector<int64_t>(data.shape.extents().begin(), data.shape.extents().end()));
  to.put_bytes(data.data, static_cast<size_t>(data.bytes()));
}

RankTensor tensor_from(Reader& from) {
  RankTensor tensor;
  tensor.point = &kPoints.at(static_cast<size_t>(from.get<int>()));
  tensor.layer = from.get<int>();
  tensor.rows = from.get_all<Row>();
  const bool part = from.get<bool>();
  if (const auto shard = from.get<Shard>(); part) tensor.shard = shard;
  const auto dtype = from.get<DType>();
  tensor.data = Tensor(Shape(from.get_all<int64_t>()), dtype);
  from.get_bytes(tensor.data.as<char>(), static_cast<size_t>(tensor.data.view().bytes()));
  return tensor;
}

}  // namespace

std::vector<std::byte> bytes_of(const RankPass& pass) {
  Writer to;
  to.put(pass.info.pass);
  to.put_all(pass.info.rows);
  to.put(std::ssize(pass.info.pages));
  for (const RequestPages& pages : pass.info.pages) {
    to.put(pages.request);
    to.put_all(pages.pages);
  }
  to.put(std::ssize(pass.tensors));
  for (const RankTensor& tensor : pass.tensors) put(to, tensor);
  return std::move(to.bytes);
}

RankPass rank_pass_from(const std::vector<std::byte>& bytes) {
  Reader from(bytes);
  RankPass pass;
  pass.info.pass = from.get<int32_t>();
  pass.info.rows = from.get_all<PassRow>();
  for (auto n = from.get<std::ptrdiff_t>(); n > 0; --n) {
    RequestPages& pages = pass.info.pages.emplace_back();
    pages.request = from.get<int32_t>();
    pages.pages = from.get_all<int32_t>();
  }
  for (auto n = from.get<std::ptrdiff_t>(); n > 0; --n) pass.tensors.push_back(tensor_from(from));
  return pass;
}

void RankRecorder::begin(const PassInfo& pass) {
  pass_ = {};
  pass_.info = pass;
}

// A tensor of a stream that is shared by rows has room for all of them, and numbers in this rank's
// own: these alone are sent to rank 0, with where they belong.
void RankRecorder::record(const Record& record) {
  std::optional<Shard> shard = plan_.shard_of(*record.point);
  TensorView tensor = record.tensor;
  if (plan_.by_rows && is_of_stream(*record.point)) {
    const int64_t tokens = std::ssize(record.rows);
    const Part own = plan_.rows_of(tokens);
    shard = Shard{.axis = 0, .offset = own.first, .extent = tokens};
    tensor = tensor.slice(own.first, own.count);
  }
  pass_.tensors.push_back({.point = record.point,
                           .layer = record.layer,
                           .rows = {record.rows.begin(), record.rows.end()},
                           .shard = shard,
                           .data = copy_on(Device::cpu, tensor)});
}

}  // namespace lockstep
