#include "traces/write_behind.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/sentence.h"
#include "kernels/base/thread_pool.h"

namespace lockstep {
namespace {

constexpr int64_t kWriteBytes = int64_t{4} << 20;  // bytes, so that threads share a tensor
constexpr int kMostWriters = 8;

}  // namespace

WriteBehind::WriteBehind(int threads, int64_t most_bytes)
    : threads_(threads > 0 ? threads : std::clamp(machine_threads(), 1, kMostWriters)),
      most_bytes_(most_bytes) {}

WriteBehind::~WriteBehind() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void WriteBehind::put(const std::shared_ptr<Writes>& into, int64_t offset, const Tensor& tensor) {
  const int64_t bytes = tensor.view().bytes();
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] {
    return !into->failure_.empty() || bytes_ == 0 || bytes_ + bytes <= most_bytes_;
  });
  check(into->failure_.empty(), "{}", into->failure_);
  if (workers_.empty())
    for (int i = 0; i < threads_; ++i) workers_.emplace_back([this] { serve(); });
  for (int64_t begin = 0; begin < bytes; begin += kWriteBytes) {
    const int64_t size = std::min(kWriteBytes, bytes - begin);
    pieces_.push_back({into, tensor, tensor.as<const char>() + begin, size, offset + begin});
    ++into->pieces_;
    bytes_ += size;
  }
  lock.unlock();
  changed_.notify_all();
}

void WriteBehind::wait(Writes& of) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return of.pieces_ == 0; });
  check(of.failure_.empty(), "{}", of.failure_);
}

void WriteBehind::drop(Writes& of) {
  std::unique_lock lock(mutex_);
  std::erase_if(pieces_, [&](const Piece& piece) {
    if (piece.into.get() != &of) return false;
    --of.pieces_;
    bytes_ -= piece.bytes;
    return true;
  });
  changed_.notify_all();
  changed_.wait(lock, [&] { return of.pieces_ == 0; });
}

// The first of whose file no more threads are writing than it gains by.
std::deque<WriteBehind::Piece>::iterator WriteBehind::next_piece() {
  return std::ranges::find_if(pieces_, [](const Piece& piece) {
    return piece.into->writing_ == 0 || piece.into->file_->gains_by_threads();
  });
}

// Pieces of a file into which a write failed are passed over.
void WriteBehind::serve() {
  std::unique_lock lock(mutex_);
  auto next = pieces_.end();
  const auto has_next = [&] { return (next = next_piece()) != pieces_.end(); };
  while (changed_.wait(lock, [&] { return has_next() || ends_; }), next != pieces_.end()) {
    Piece piece = std::move(*next);
    pieces_.erase(next);
    Writes& into = *piece.into;
    ++into.writing_;
    const bool wanted = into.failure_.empty();
    lock.unlock();
    std::string failure;
    try {
      if (wanted) into.file_->write(piece.from, piece.bytes, piece.at);
    } catch (const std::exception& error) {
      failure = sentence_of(error);
    }
    piece.tensor = {};
    lock.lock();
    if (into.failure_.empty()) into.failure_ = failure;
    --into.writing_;
    --into.pieces_;
    bytes_ -= piece.bytes;
    changed_.notify_all();
  }
}

}  // namespace lockstep
