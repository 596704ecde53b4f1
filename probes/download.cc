#include "probes/download.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

namespace lockstep {
namespace {

constexpr int64_t kPiece = int64_t{1} << 20;  // bytes that are worth a thread

// The pieces that one half was filled with, and the event that says when.
struct Filled {
  std::vector<Download::Part> pieces;  // `from` is in the half
  void* event = nullptr;
};

}  // namespace

Download::Download(Device device) : device_(device) {
  for (Tensor& half : halves_) half = Tensor::pinned({kHalf}, DType::u8, device);
}

void Download::run(std::span<const Part> parts, ThreadPool& pool) {
  const DeviceRuntime& runtime = runtime_of(device_);
  size_t part = 0;
  int64_t done = 0;  // bytes of that part
  const auto fill = [&](const Tensor& half) {
    Filled filled;
    int64_t used = 0;
    while (part < parts.size() && used < kHalf) {
      const Part& next = parts[part];
      const int64_t bytes = std::min(next.bytes - done, kHalf - used);
      char* const there = half.as<char>() + used;
      if (bytes > 0) runtime.copy(there, next.from + done, bytes, runtime.digests.download_stream);
      for (int64_t begin = 0; begin < bytes; begin += kPiece)
        filled.pieces.push_back(
            {next.to + done + begin, there + begin, std::min(kPiece, bytes - begin)});
      used += bytes, done += bytes;
      if (done == next.bytes) ++part, done = 0;
    }
    if (used > 0) filled.event = runtime.digests.record_event(runtime.digests.download_stream);
    return filled;
  };
  Filled filled = fill(halves_[0]);
  for (int turn = 1; !filled.pieces.empty(); turn = 1 - turn) {
    Filled next = fill(halves_[turn]);
    runtime.digests.wait_event(filled.event);
    const std::vector<Part>& pieces = filled.pieces;
    pool.run(std::ssize(pieces), 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        std::memcpy(pieces[i].to, pieces[i].from, pieces[i].bytes);
    });
    filled = std::move(next);
  }
}

}  // namespace lockstep
