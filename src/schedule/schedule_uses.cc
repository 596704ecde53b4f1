// Readers and writers are grouped by tensor once, since each check asks for them once an
// instruction; a memory's tensors are linked in the order of the list.
#include "src/schedule/schedule_uses.h"

#include <fmt/format.h>

#include <map>
#include <utility>

namespace lockstep {
namespace {

constexpr size_t kMostFindings = 200;  // that are kept, of one kind

}  // namespace

ScheduleUses::ScheduleUses(const Schedule& schedule)
    : schedule_(schedule),
      readers_(schedule.tensors.size()),
      writers_(schedule.tensors.size()),
      follows_(schedule.tensors.size(), -1) {
  std::map<std::string, int> last;  // tensor in a memory
  for (int t = 0; t < std::ssize(schedule.tensors); ++t) {
    const auto [before, is_first] = last.try_emplace(schedule.tensors[t].memory, t);
    if (!is_first) follows_[std::exchange(before->second, t)] = t;
  }
  for (int place = 0; place < std::ssize(schedule.instructions); ++place) {
    for (const Span& span : schedule.instructions[place].reads)
      readers_[span.tensor].push_back({span.begin, span.end, place});
    for (const Span& span : schedule.instructions[place].writes)
      writers_[span.tensor].push_back({span.begin, span.end, place});
  }
}

// One fault tends to repeat in every layer, and a thousand alike say no more than the first ones.
bool FindingLog::is_kept(ScheduleCheck::Fault fault) {
  if (kept_[fault] < kMostFindings) return true;
  ++checked_.not_kept;
  return false;
}

void FindingLog::add(ScheduleCheck::Finding finding) {
  if (!is_kept(finding.fault)) return;
  ++kept_[finding.fault];
  checked_.findings.push_back(std::move(finding));
}

std::string numbers_of(const Schedule& schedule, const Span& span) {
  const ScheduledTensor& tensor = schedule.tensors[span.tensor];
  std::string text =
      span.end == span.begin + 1
          ? fmt::format("number {} of {}", span.begin, tensor.point)
          : fmt::format("numbers {}..{} of {}", span.begin, span.end - 1, tensor.point);
  return tensor.layer < 0 ? text : fmt::format("{} in layer {}", text, tensor.layer);
}

}  // namespace lockstep
