#include "traces/segment_closer.h"

#include <exception>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/sentence.h"

namespace lockstep {

SegmentCloser::~SegmentCloser() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void SegmentCloser::wait_until_fewer(Lock& lock, size_t segments) {
  changed_.wait(lock, [&] { return segments_.size() < segments; });
  check(trouble_.empty(), "{}", trouble_);
}

void SegmentCloser::take(std::unique_ptr<NewSegment> segment) {
  Lock lock(mutex_);
  if (!thread_.joinable()) thread_ = std::thread([this] { serve(); });
  wait_until_fewer(lock, kMostSegments);
  segments_.push_back(std::move(segment));
  lock.unlock();
  changed_.notify_all();
}

void SegmentCloser::flush() {
  Lock lock(mutex_);
  wait_until_fewer(lock, 1);
}

void SegmentCloser::check_trouble() {
  const std::lock_guard lock(mutex_);
  check(trouble_.empty(), "{}", trouble_);
}

// A segment stays in the list while it is being published, so that whoever waits for fewer waits
// for it too.
void SegmentCloser::serve() {
  Lock lock(mutex_);
  while (changed_.wait(lock, [&] { return ends_ || !segments_.empty(); }), !segments_.empty()) {
    const bool wanted = trouble_.empty();
    NewSegment& segment = *segments_.front();
    lock.unlock();
    std::string trouble;
    try {
      if (wanted) segment.writer.settle();
      if (wanted) segment.part.publish(Durable::yes);
    } catch (const std::exception& error) {
      trouble = sentence_of(error);
    }
    lock.lock();
    if (trouble_.empty()) trouble_ = trouble;
    std::unique_ptr<NewSegment> done = std::move(segments_.front());
    lock.unlock();
    done.reset();  // its file too, unless it was published
    lock.lock();
    segments_.pop_front();
    changed_.notify_all();
  }
}

}  // namespace lockstep
