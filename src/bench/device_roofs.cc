// The roofs of a device are measured by kernels of kernels/bench/device_roofs.cu, through the CUDA
// library; sums of what was read are compared with the truth, since a kernel that skips memory
// would raise the roof.
#include "src/bench/device_roofs.h"

#include <algorithm>
#include <chrono>
#include <random>

#include "kernels/base/check.h"
#include "kernels/base/device_graph.h"
#include "src/session/device.h"

namespace lockstep {
namespace {

constexpr int64_t kBytes = int64_t{2} << 30, kPiece = 16 << 20;
constexpr int kReplays = 5;

// Seconds from when `queue` begins to queue until the device has done all of it.
double seconds_on(Device device, const auto& queue) {
  wait_for(device);
  const auto begin = std::chrono::steady_clock::now();
  queue();
  wait_for(device);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// The better of two tries of some launches each, which hide what it costs to begin and to wait.
double rate_of(int way, const TensorView& buffer, uint32_t truth) {
  constexpr int kLaunches = 8;
  const Tensor sum = copy_on(buffer.device, tensor_of<int32_t>(std::vector{0}, {1}, DType::i32));
  const auto read = [&] {
    roof_kernels().read(way, buffer.data, buffer.bytes(), sum.as<uint32_t>(),
                        stream_of(buffer.device));
  };
  const auto read_all = [&] {
    for (int n = 0; n < kLaunches; ++n) read();
  };
  const double best =
      std::min(seconds_on(buffer.device, read_all), seconds_on(buffer.device, read_all));
  const uint32_t found = *copy_on(Device::cpu, sum).as<uint32_t>();
  // Modulo 2^32, as the kernel adds.
  check(found == 2 * kLaunches * truth,
        "the read roof wants every word of a buffer added up once, found {:#x} instead of {:#x}: "
        "its rate would be wrong",
        found, 2 * kLaunches * truth);
  return static_cast<double>(buffer.bytes()) * kLaunches / best;
}

Figure empty_kernel(Device device) {
  constexpr int kKernels = 1000;
  const auto queue = [device] {
    for (int n = 0; n < kKernels; ++n) roof_kernels().nothing(stream_of(device));
  };
  wait_for(device);  // which makes it the current one
  queue();
  const DeviceGraph graph(device, queue);
  Figure figure{"machine", "an empty kernel in a graph", "us", 1e6, {}, Figure::Whole::least};
  for (int i = -1; i < kReplays; ++i) {
    const double seconds = seconds_on(device, [&] { graph.replay(stream_of(device)); });
    if (i >= 0) figure.samples.push_back(seconds / kKernels);
  }
  return figure;
}

Figure copy_to_host(const Tensor& buffer) {
  constexpr int64_t kCopied = 128 << 20;
  const Tensor to = Tensor::pinned({kCopied}, DType::u8, buffer.view().device),
               from = buffer.part(0, {kCopied}, DType::u8);
  Figure figure{"machine", "device memory, copied to the host", "GB/s", 1e-9};
  for (int i = -1; i < kReplays; ++i) {
    const double seconds = seconds_on(buffer.view().device, [&] { copy(to, from); });
    if (i >= 0) figure.samples.push_back(kCopied / seconds);
  }
  return figure;
}

}  // namespace

DeviceRoofs::DeviceRoofs(Device device) : buffer_({kBytes}, DType::u8, device) {
  // Random words in the first piece, others in each of the next: no part adds up to what another
  // one does.
  const Tensor piece({kPiece}, DType::u8);
  const std::span words(piece.as<uint32_t>(), kPiece / sizeof(uint32_t));
  std::mt19937 random(1);
  std::ranges::generate(words, [&] { return random(); });
  for (int64_t at = 0; at < kBytes; at += kPiece) {
    // A step of a linear congruential generator (Knuth; Numerical Recipes) makes the next piece of
    // the one before.
    for (uint32_t& word : words) truth_ += word = word * 1664525 + 1013904223;
    copy(buffer_.part(at, {kPiece}, DType::u8), piece);
  }
  sample();
}

void DeviceRoofs::sample() {
  double best = 0;
  for (int way = 0; way < RoofKernels::kWays; ++way)
    best = std::max(best, rate_of(way, buffer_, truth_));
  read_.push_back(best);
}

double DeviceRoofs::read() const {
  // The last two samples are those right before and after what is held against them.
  return *std::max_element(read_.end() - std::min<std::ptrdiff_t>(2, std::ssize(read_)),
                           read_.end());
}

std::vector<Figure> DeviceRoofs::figures() const {
  return {{"machine", "device memory, read", "GB/s", 1e-9, read_},
          copy_to_host(buffer_),
          empty_kernel(device())};
}

}  // namespace lockstep
