#include "src/session/text_stream.h"

#include <algorithm>
#include <string_view>
#include <utility>

namespace lockstep {
namespace {

// The length of the longest end of `text` that is a beginning of `stop`, and not all of it.
size_t overlap(std::string_view text, std::string_view stop) {
  for (size_t n = std::min(text.size(), stop.size() - 1); n > 0; --n)
    if (text.ends_with(stop.substr(0, n))) return n;
  return 0;
}

}  // namespace

// Text that may be the beginning of a stop is held back until it is decided. The first stop ends
// the text.
std::string TextStream::take_certain() {
  size_t first = std::string::npos, held = 0;
  for (const std::string& stop : stop_) {
    first = std::min(first, held_.find(stop));
    held = std::max(held, overlap(held_, stop));
  }
  stopped_ = first != std::string::npos;
  std::string certain = held_.substr(0, stopped_ ? first : held_.size() - held);
  held_.erase(0, stopped_ ? held_.size() : certain.size());
  return certain;
}

std::string TextStream::push(int32_t id) {
  if (stopped_) return "";
  held_ += decoder_.push(id);
  return take_certain();
}

std::string TextStream::finish() {
  if (stopped_) return "";
  held_ += decoder_.finish();
  const std::string certain = take_certain();
  return certain + std::exchange(held_, "");
}

}  // namespace lockstep
