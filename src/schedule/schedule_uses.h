#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/base/names.h"
#include "src/schedule/checker.h"

namespace lockstep {

// Who reads and writes which numbers of each tensor, as the checks ask for it. Borrows the
// schedule. Numbers are as the lists say, in no order; a span past the end of its tensor is among
// them, as it stands.
class ScheduleUses {
 public:
  explicit ScheduleUses(const Schedule& schedule);

  struct Use {
    int64_t begin, end;
    int place;  // in Schedule::instructions

    bool overlaps(const Use& other) const { return begin < other.end && other.begin < end; }
  };
  const std::vector<Use>& readers(int tensor) const { return readers_[tensor]; }
  const std::vector<Use>& writers(int tensor) const { return writers_[tensor]; }

  // Calls body(tensor, begin, end) for the tensors that next lie where the span does. Where one is
  // narrower, the one after it is the next.
  void for_next(const Span& span, const auto& body) const {
    int64_t begin = span.begin;
    for (int next = follows_[span.tensor]; next >= 0 && begin < span.end; next = follows_[next]) {
      const int64_t width = schedule_.tensors[next].width;
      if (begin < width) body(next, begin, std::min(span.end, width));
      begin = std::max(begin, width);
    }
  }

 private:
  const Schedule& schedule_;
  std::vector<std::vector<Use>> readers_, writers_;  // by tensor
  std::vector<int> follows_;  // by tensor, the next one in its memory; -1: there is none
};

// The findings of a check as they come, so many of a kind. Borrows what it adds to.
class FindingLog {
 public:
  explicit FindingLog(ScheduleCheck& checked) : checked_(checked) {}

  // Whether another finding of that kind is kept; counts it where not.
  bool is_kept(ScheduleCheck::Fault fault);
  void add(ScheduleCheck::Finding finding);

 private:
  ScheduleCheck& checked_;
  EnumArray<ScheduleCheck::Fault, size_t> kept_;
};

// "numbers 0..63 of attn.q_rope in layer 1".
std::string numbers_of(const Schedule& schedule, const Span& span);

}  // namespace lockstep
