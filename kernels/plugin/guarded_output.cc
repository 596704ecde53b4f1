// An output between guard bytes, by which writes beyond its ends are seen, and filled with a
// pattern that no arithmetic makes, by which elements that nobody wrote are.
#include "kernels/plugin/guarded_output.h"

#include <algorithm>
#include <array>

#include "kernels/base/check.h"

namespace lockstep {
namespace {

constexpr uint8_t kGuard = 0xa5;

// The bytes of every element of an output that nobody wrote: a signalling NaN, which neither
// arithmetic nor a conversion makes, and of an index a negative one that nobody would choose.
std::array<uint8_t, 8> unwritten(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return {0xa5, 0xa5, 0xa5, 0x7f};
    case DType::bf16:
      return {0xa5, 0x7f};
    case DType::f16:
      return {0xa5, 0x7d};
    default:
      return {0xa5, 0xa5, 0xa5, 0x85, 0xa5, 0xa5, 0xa5, 0x85};
  }
}

}  // namespace

// Made on the host and copied, as no op of a device fills with bytes.
GuardedOutput::GuardedOutput(const TensorView& out) : out_(out), host_({bytes()}, DType::u8) {
  auto* begin = host_.as<uint8_t>();
  std::fill_n(begin, bytes(), kGuard);
  const auto fill = unwritten(out.dtype);
  for (int64_t i = 0; i < out.count(); ++i)
    std::copy_n(fill.data(), size_of(out.dtype), begin + kGuardBytes + i * size_of(out.dtype));
  there_ = copy_on(out.device, host_);
  view_ = out;
  view_.data = there_.as<uint8_t>() + kGuardBytes;
}

void GuardedOutput::take(std::string_view who) {
  // Waits for the device, after all that the call queued.
  copy(host_, there_);
  const auto* begin = host_.as<uint8_t>();
  const auto* end = begin + bytes();
  const auto guard = [](uint8_t byte) { return byte == kGuard; };
  check(
      std::all_of(begin, begin + kGuardBytes, guard) && std::all_of(end - kGuardBytes, end, guard),
      "{} wrote {} its output {}: mind the shape of the tensor", who,
      std::all_of(begin, begin + kGuardBytes, guard) ? "after" : "before", out_.shape.text());
  const int64_t size = size_of(out_.dtype);
  // A right result may have any other bits: the pattern is a NaN that no arithmetic makes.
  const auto fill = unwritten(out_.dtype);
  for (int64_t i = 0; i < out_.count(); ++i) {
    const auto* element = begin + kGuardBytes + i * size;
    if (std::equal(element, element + size, fill.data()))
      fail(
          "{} left row {}, element {} of its output {} unwritten: cover the last rows and the "
          "tails",
          who, i / out_.row_size(), i % out_.row_size(), out_.shape.text());
  }
  // Only now: what went wrong is not handed on.
  copy(out_, view_);
}

}  // namespace lockstep
