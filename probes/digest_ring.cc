// Three parties share a slot of the ring: the engine queues a pass and pushes its layout; copies to
// the host run on a stream of their own that waits for the pass, so that the next pass is computed
// meanwhile; the ring's thread waits for them, makes a Pass and hands it to the taker. A slot is
// free again when the taker returns. The engine waits only where all slots, or the bytes that may
// be on their way, are taken. Large tensors that nobody writes over come last: the ring's thread
// fetches them through a little pinned memory, and not into as much of it as they have.
#include "probes/digest_ring.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <exception>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/sentence.h"

namespace lockstep {
namespace {

constexpr int64_t kLine = 64;  // bytes, to a multiple of which each tensor's copy is aligned
constexpr int64_t kMostStaged = int64_t{64} << 20;  // bytes of a slot on the device
constexpr unsigned kMostThreads = 8;

// Enough for a while: the rows of the caches grow with every pass.
int64_t with_room(int64_t bytes) { return bytes + std::min(bytes / 2, int64_t{64} << 20); }

int64_t length_of(const PassInfo& info, int32_t request) {
  int64_t length = 0;
  for (const PassRow& row : info.rows)
    if (row.row.request == request) length = row.row.position + 1;
  return length;
}

}  // namespace

// A place for one pass on its way: on the device, so that the next pass need not wait for the way
// to the host, and on the host.
struct DigestRing::Slot {
  ~Slot() {
    if (memory != nullptr) runtime_of(device).unpin(memory);
  }
  Device device;           // of the pass
  char* memory = nullptr;  // pinned
  int64_t capacity = 0;
  Tensor staged;
  DigestedPass pass;
  std::vector<int64_t> lengths;  // of the requests
  std::vector<Row> rows, logit_rows;
  bool late = false;        // large kept tensors are fetched when all else has arrived
  int64_t bytes = 0;        // of all that is copied
  int64_t in_memory = 0;    // of these, what comes to `memory`
  void* arrived = nullptr;  // event

  // The owner of each row of a tensor, and the rows that the pass has.
  const std::vector<Row>& rows_of(const DigestLayout::Tap& tap) const {
    return tap.point->is_of_logits() ? logit_rows : rows;
  }
  TensorView shown(const DigestLayout::Tap& tap) const {
    return tap.tensor.slice(0, std::min(tap.tensor.rows(), std::ssize(rows_of(tap))));
  }
  int64_t cache_rows() const {
    int64_t positions = 0;
    for (int64_t length : lengths) positions += length;
    return pass.layout->caches * positions;
  }
  int64_t digest_bytes() const {
    return pass.layout->cache_hashes + cache_rows() * int64_t{sizeof(uint64_t)};
  }
  bool comes_late(const DigestLayout::Tap& tap) const {
    return late && tap.keeps && !tap.point->is_cache() && !tap.point->is_of_logits();
  }
  // Calls use(tap, offset in memory, what is shown) for the tensors that are copied there, and
  // returns the bytes that all takes.
  template <typename Use>
  int64_t each_tensor(Use use) const {
    int64_t offset = (digest_bytes() + kLine - 1) / kLine * kLine;
    for (const DigestLayout::Tap& tap : pass.layout->taps) {
      if (tap.point->is_cache() || !(tap.keeps || tap.point->is_of_logits())) continue;
      if (comes_late(tap)) continue;
      const TensorView view = shown(tap);
      use(tap, offset, view);
      offset += (view.bytes() + kLine - 1) / kLine * kLine;
    }
    return offset;
  }
  void put(DigestedPass next);
  void arrive(Pass& to, ThreadPool& pool) const;
  std::vector<Download::Part> late_parts(Pass& of) const;
  void put_caches(const DigestLayout::Tap& tap, std::span<RecordedTensor> caches) const;
  void put_tensor(const DigestLayout::Tap& tap, RecordedTensor& kept) const;
};

void DigestRing::Slot::put(DigestedPass next) {
  pass = std::move(next);
  lengths.clear();
  for (const RequestPages& pages : pass.info.pages)
    lengths.push_back(length_of(pass.info, pages.request));
  rows.clear(), logit_rows.clear();
  for (const PassRow& row : pass.info.rows) rows.push_back(row.row);
  for (const int32_t index : pass.info.logit_rows) logit_rows.push_back(rows[index]);
  late = false;
  bytes = each_tensor([](const auto&...) {});
  late = pass.owns_kept && bytes > kMostStaged;
  in_memory = each_tensor([](const auto&...) {});
  late = in_memory < bytes;
}

void DigestRing::Slot::put_tensor(const DigestLayout::Tap& tap, RecordedTensor& kept) const {
  const TensorView view = shown(tap);
  kept.point = tap.point, kept.layer = tap.layer;
  kept.rows = rows_of(tap);
  kept.dtype = view.dtype, kept.shape = view.shape;
  kept.data = {};
  std::memcpy(&kept.digest, memory + tap.digest, sizeof(Digest));
  kept.row_hashes.resize(kept.rows.size());
  std::memcpy(kept.row_hashes.data(), memory + tap.hashes, kept.rows.size() * sizeof(uint64_t));
  check(kept.digest.count == view.count(),
        "a digest of {} elements of {} was wanted of the device, found one of {}: its arguments "
        "are not those of the host",
        view.count(), tap.point->name, kept.digest.count);
}

// One tensor a request.
void DigestRing::Slot::put_caches(const DigestLayout::Tap& tap,
                                  std::span<RecordedTensor> caches) const {
  int64_t all = 0;
  for (int64_t length : lengths) all += length;
  const char* hashes = memory + pass.layout->cache_hashes + tap.hashes * all * 8;
  for (size_t r = 0; r < lengths.size(); ++r) {
    const int32_t request = pass.info.pages[r].request;
    const int64_t length = lengths[r];
    int64_t hashed = 0;
    std::memcpy(&hashed, memory + tap.digest + r * sizeof(hashed), sizeof(hashed));
    check(
        hashed == length,
        "hashes of {} positions of attn.kv were wanted of the device, found {}: its arguments are "
        "not those of the host",
        length, hashed);
    const Shape& pool = tap.tensor.shape;
    RecordedTensor& kept = caches[r];
    kept.point = tap.point, kept.layer = tap.layer;
    kept.dtype = tap.tensor.dtype, kept.shape = {length, 2, pool[2], pool[3]};
    kept.data = {};
    kept.rows.resize(length);
    for (int32_t p = 0; p < length; ++p) kept.rows[p] = {request, p};
    kept.row_hashes.resize(length);
    std::memcpy(kept.row_hashes.data(), hashes, kept.row_hashes.size() * 8);
    hashes += length * 8;
    kept.digest = digest_of_rows(kept.row_hashes, kept.shape.count());
  }
}

// The best of each row, of logits that nobody keeps from where they arrived.
std::vector<TopLogits> top_of(const TensorView& logits, std::span<const Row> rows,
                              ThreadPool& pool) {
  std::vector<TopLogits> top(rows.size());
  pool.run(std::ssize(rows), 1, [&](int64_t begin, int64_t end) {
    const auto some = rows.subspan(begin, end - begin);
    std::ranges::move(top_logits_of(logits.slice(begin, end - begin), some), top.begin() + begin);
  });
  return top;
}

// Reads it out of the pinned memory, which is then free, into what is left of an earlier pass. A
// few threads take longer to wake than a small pass takes.
void DigestRing::Slot::arrive(Pass& to, ThreadPool& pool) const {
  constexpr int64_t kFew = 32768;  // rows of caches
  constexpr int64_t kFewBytes = 8 << 20;
  const std::vector<DigestLayout::Tap>& taps = pass.layout->taps;
  std::vector<size_t> first{0};  // tensor of each tap
  for (const DigestLayout::Tap& tap : taps)
    first.push_back(first.back() + (tap.point->is_cache() ? lengths.size() : 1));
  to.info = pass.info;
  to.logits.clear();
  to.tensors.resize(first.back());
  const auto put_some = [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const auto mine = std::span(to.tensors).subspan(first[i], first[i + 1] - first[i]);
      if (taps[i].point->is_cache())
        put_caches(taps[i], mine);
      else
        put_tensor(taps[i], mine[0]);
    }
  };
  if (cache_rows() <= kFew && rows.size() <= 64)
    put_some(0, std::ssize(taps));
  else
    pool.run(std::ssize(taps), 1, put_some);
  std::vector<std::pair<Tensor*, TensorView>> kept_tensors;
  int64_t kept_bytes = 0;
  each_tensor([&](const DigestLayout::Tap& tap, int64_t offset, const TensorView& view) {
    RecordedTensor& kept = to.tensors[first[&tap - taps.data()]];
    const TensorView there{memory + offset, view.dtype, Device::cpu, view.shape};
    if (tap.keeps) kept_tensors.emplace_back(&kept.data, there), kept_bytes += there.bytes();
    // Logits are shown before the tokens that were chosen.
    if (*tap.point == point("logits")) to.logits = top_of(there, kept.rows, pool);
    if (*tap.point == point("token")) put_chosen(to.logits, there, kept.rows);
  });
  // One thread alone fills fresh memory more slowly than a device or a disk does.
  const auto copy_some = [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      *kept_tensors[i].first = copy_on(Device::cpu, kept_tensors[i].second);
  };
  const int64_t kept = std::ssize(kept_tensors);
  kept_bytes < kFewBytes ? copy_some(0, kept) : pool.run(kept, 1, copy_some);
}

// Makes the tensors of an arrived pass that come late, and says what they are filled with.
std::vector<Download::Part> DigestRing::Slot::late_parts(Pass& of) const {
  std::vector<Download::Part> parts;
  size_t tensor = 0;
  for (const DigestLayout::Tap& tap : pass.layout->taps) {
    RecordedTensor& kept = of.tensors[tensor];
    tensor += tap.point->is_cache() ? lengths.size() : 1;
    if (!comes_late(tap)) continue;
    const TensorView view = shown(tap);
    kept.data = Tensor(view.shape, view.dtype);
    parts.push_back({kept.data.as<char>(), view.as<const char>(), view.bytes()});
  }
  return parts;
}

DigestRing::DigestRing(DigestSink& taker, int64_t most_bytes)
    : taker_(taker),
      most_bytes_(most_bytes),
      pool_(std::clamp(std::thread::hardware_concurrency() / 2, 1u, kMostThreads)) {
  static std::atomic<uint64_t> last_id = 0;
  id_ = ++last_id;
  for (size_t i = 0; i < kSlots; ++i)
    free_.push_back(slots_.emplace_back(std::make_unique<Slot>()).get());
  thread_ = std::thread([this] { serve(); });
}

DigestRing::~DigestRing() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void DigestRing::make_room(Slot& slot, int64_t bytes) const {
  if (bytes <= slot.capacity) return;
  if (slot.memory != nullptr) runtime_of(slot.device).unpin(std::exchange(slot.memory, nullptr));
  slot.capacity = 0;
  slot.memory = static_cast<char*>(runtime_of(slot.device).pin(with_room(bytes)));
  slot.capacity = with_room(bytes);
  // The padding between staged tensors is copied with them: no memory that nobody ever wrote.
  std::memset(slot.memory, 0, std::min(slot.capacity, with_room(kMostStaged)));
}

Download& DigestRing::download_from(Device device) {
  if (!download_ || download_->device() != device) download_ = std::make_unique<Download>(device);
  return *download_;
}

// Small passes are copied within the device first, so that the next pass of these buffers may write
// to them at once; large ones go straight to the host, and it waits for that.
void DigestRing::queue_copies(Slot& slot) const {
  slot.device = slot.pass.digests->view().device;
  const DeviceRuntime& device = runtime_of(slot.device);
  const DigestMaker& maker = device.digests;
  CUstream_st* const stream = slot.pass.stream;
  const int64_t bytes = slot.in_memory;
  make_room(slot, bytes);
  const auto parts_of = [&](char* to) {
    std::vector<CopyPart> parts = {{to, slot.pass.digests->view().data, slot.digest_bytes()}};
    slot.each_tensor([&](const DigestLayout::Tap&, int64_t offset, const TensorView& view) {
      if (view.bytes() > 0) parts.push_back({to + offset, view.data, view.bytes()});
    });
    return parts;
  };
  const bool staged = bytes <= kMostStaged;
  if (staged) {
    if (slot.staged.view().bytes() < bytes) {
      // Not all that the slot has on the host: that may be of a pass that was too large to stage.
      slot.staged = Tensor({std::min(slot.capacity, with_room(bytes))}, DType::u8, slot.device);
      device.copy(slot.staged.as<char>(), slot.memory, slot.staged.view().bytes(), device.stream);
      // Whoever had its memory before had it on that stream.
      maker.stream_wait(stream, device.stream);
    }
    const std::vector<CopyPart> parts = parts_of(slot.staged.as<char>());
    for (size_t i = 0; i < parts.size(); i += DeviceRuntime::kMostParts)
      device.copy_parts(
          std::span(parts).subspan(i, std::min(DeviceRuntime::kMostParts, parts.size() - i)),
          stream);
  }
  maker.stream_wait(maker.digest_stream, stream);
  if (staged) {
    device.copy(slot.memory, slot.staged.view().data, bytes, maker.digest_stream);
  } else {
    for (const CopyPart& part : parts_of(slot.memory))
      device.copy(part.to, part.from, part.bytes, maker.digest_stream);
    maker.stream_wait(stream, maker.digest_stream);  // a later pass writes there again
  }
  slot.arrived = maker.record_event(maker.digest_stream);
}

template <typename Ready>
void DigestRing::wait_until(Lock& lock, Ready ready) {
  using Clock = std::chrono::steady_clock;
  if (ready()) return;
  const auto begin = Clock::now();
  changed_.wait(lock, ready);
  waited_ = true;
  waits_.seconds += std::chrono::duration<double>(Clock::now() - begin).count();
}

void DigestRing::reserve(int64_t bytes) {
  Lock lock(mutex_);
  reserved_ += bytes;
  wait_until(lock, [&] { return has_room(reserved_); });
}

void DigestRing::push(DigestedPass pass) {
  Lock lock(mutex_);
  reserved_ = 0;
  if (!failure_.empty()) return;
  wait_until(lock, [&] { return !free_.empty(); });
  // The one that was free last: large passes that come one by one take the same memory each time.
  Slot& slot = *free_.back();
  free_.pop_back();
  slot.put(std::move(pass));
  wait_until(lock, [&] { return has_room(slot.bytes); });
  on_the_way_ += slot.bytes;
  ++waits_.passes;
  waits_.waited += std::exchange(waited_, false) ? 1 : 0;
  lock.unlock();
  try {
    queue_copies(slot);
  } catch (...) {
    lock.lock();
    release(slot);
    throw;
  }
  lock.lock();
  queued_.push_back(&slot);
  lock.unlock();
  changed_.notify_all();
}

void DigestRing::release(Slot& slot) {
  on_the_way_ -= slot.bytes;
  free_.push_back(&slot);
}

void DigestRing::flush() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return queued_.empty() && !busy_; });
}

std::string DigestRing::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

// A slot is free before its pass is handed on, since the Pass has copies of its own.
void DigestRing::serve() {
  Pass arrived;
  const auto hand_on = [this](Pass& pass) { taker_.take(std::move(pass)); };
  std::unique_lock lock(mutex_);
  while (changed_.wait(lock, [&] { return ends_ || !queued_.empty(); }), !queued_.empty()) {
    Slot& slot = *queued_.front();
    queued_.pop_front();
    busy_ = true;
    const bool wanted = failure_.empty();
    lock.unlock();
    std::string failure;
    bool freed = false;
    try {
      runtime_of(slot.device).digests.wait_event(std::exchange(slot.arrived, nullptr));
      if (wanted) slot.arrive(arrived, pool_);
      if (wanted && slot.late) download_from(slot.device).run(slot.late_parts(arrived), pool_);
      slot.pass = {};
      lock.lock();
      release(slot);
      freed = true;
      lock.unlock();
      changed_.notify_all();
      if (wanted) hand_on(arrived);
      // Numbers may be large: none are kept for the next pass.
      for (RecordedTensor& tensor : arrived.tensors) tensor.data = {};
    } catch (const std::exception& error) {
      failure = sentence_of(error);
    }
    lock.lock();
    busy_ = false;
    if (failure_.empty()) failure_ = failure;
    if (!freed) {
      slot.pass = {};
      release(slot);
    }
    changed_.notify_all();
  }
}

}  // namespace lockstep
