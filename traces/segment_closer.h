#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "kernels/files/disk.h"
#include "traces/segment.h"

namespace lockstep {

// A segment and the file that it is written into, until that is published.
struct NewSegment {
  NewSegment(const std::string& path, int64_t seq, WriteBehind& behind)
      : part(path), writer(part.name(), seq, &behind) {}
  NewFile part;
  SegmentWriter writer;
};

// Publishes segments that were ended, each when its tensors are written and on the disk, by a
// thread of its own: meanwhile the next one is begun. They appear in the order in which they were
// handed over, so that a kill leaves no hole among them. After trouble none is published any more.
// For one thread.
class SegmentCloser {
 public:
  // Segments that were handed over and are not published: whoever hands over more waits.
  static constexpr size_t kMostSegments = 4;

  ~SegmentCloser();  // when all that was handed over is published or given up
  void take(std::unique_ptr<NewSegment> segment);
  // Returns when all are published. Throws Error when one could not be.
  void flush();
  // Throws the Error of the first segment that could not be published.
  void check_trouble();

 private:
  using Lock = std::unique_lock<std::mutex>;
  void wait_until_fewer(Lock& lock, size_t segments);
  void serve();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::unique_ptr<NewSegment>> segments_;  // guarded, as all below
  bool ends_ = false;
  std::string trouble_;
  std::thread thread_;  // made for the first segment
};

}  // namespace lockstep
