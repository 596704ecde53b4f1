// JSON is written by hand: names are ours, without a character that would have to be escaped, and
// a step of a large model has tens of thousands of events.
#include "src/model/timeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <set>

namespace lockstep {
namespace {

// Times of the format are microseconds; three digits keep the nanoseconds.
void add_slice(std::string& text, const TimedWork& work, const std::string& name, int64_t begin,
               int64_t end, int64_t zero) {
  fmt::format_to(std::back_inserter(text),
                 ",\n{{\"ph\": \"X\", \"pid\": 0, \"tid\": {}, \"name\": \"{}\", \"ts\": {}.{:03}, "
                 "\"dur\": {}.{:03}, \"args\": {{\"layer\": {}{}}}}}",
                 work.queue, name, (begin - zero) / 1000, (begin - zero) % 1000,
                 (end - begin) / 1000, (end - begin) % 1000, work.layer,
                 work.number < 0 ? "" : fmt::format(", \"instruction\": {}", work.number));
}

}  // namespace

// Rows are named first, in the order of the queues, then come the slices as they were given:
// readers of the format sort them by their times. A slice within another one of its row is shown
// below it.
std::string chrome_trace(std::span<const TimedWork> all) {
  std::string text =
      "{\"displayTimeUnit\": \"ns\", \"traceEvents\": [\n"
      "{\"ph\": \"M\", \"pid\": 0, \"name\": \"process_name\", \"args\": {\"name\": \"step\"}}";
  std::set<int> queues;
  int64_t zero = all.empty() ? 0 : all[0].begin;
  for (const TimedWork& work : all) {
    queues.insert(work.queue);
    zero = std::min(zero, work.begin);
  }
  for (const int queue : queues)
    fmt::format_to(std::back_inserter(text),
                   ",\n{{\"ph\": \"M\", \"pid\": 0, \"tid\": {0}, \"name\": \"thread_name\", "
                   "\"args\": {{\"name\": \"queue {0}\"}}}}",
                   queue);
  for (const TimedWork& work : all) {
    add_slice(text, work, work.name, work.begin, work.end, zero);
    if (work.waited > work.begin) add_slice(text, work, "wait", work.begin, work.waited, zero);
  }
  return text + "\n]}\n";
}

}  // namespace lockstep
