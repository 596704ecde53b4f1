#include "kernels/base/shared_copy.h"

#include <algorithm>
#include <cstring>

namespace lockstep {
namespace {

constexpr int64_t kPiece = 1 << 20;      // bytes that are worth a thread
constexpr int64_t kShared = kPiece * 4;  // and that are worth waking some

}  // namespace

void SharedCopy::copy(void* to, const void* from, int64_t bytes) {
  if (bytes < kShared) {
    if (bytes > 0) std::memcpy(to, from, bytes);
    return;
  }
  if (!threads_)
    threads_ = std::make_unique<ThreadPool>(most_threads_ > 0 ? most_threads_ : machine_threads());
  threads_->run((bytes + kPiece - 1) / kPiece, 1, [&](int64_t begin, int64_t end) {
    const int64_t first = begin * kPiece, count = std::min(bytes, end * kPiece) - first;
    std::memcpy(static_cast<char*>(to) + first, static_cast<const char*>(from) + first, count);
  });
}

}  // namespace lockstep
