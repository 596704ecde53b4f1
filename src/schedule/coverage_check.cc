// Each tensor is swept once: its edges are all places where a writer begins or ends, and between
// two of them the same writers hold every number. So the cost grows with spans, whatever the
// widths.
#include "src/schedule/coverage_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace lockstep {
namespace {

using Use = ScheduleUses::Use;

// The same numbers in as few spans as they can be, in their order.
std::vector<Span> merged(std::vector<Span> spans) {
  std::ranges::sort(spans, {}, [](const Span& s) { return std::pair(s.tensor, s.begin); });
  std::vector<Span> all;
  for (const Span& span : spans) {
    if (!all.empty() && all.back().tensor == span.tensor && all.back().end >= span.begin)
      all.back().end = std::max(all.back().end, span.end);
    else
      all.push_back(span);
  }
  return all;
}

// Sweeps each tensor over its numbers, with the writers that hold the one it is at.
class CoverageCheck {
 public:
  CoverageCheck(const Schedule& schedule, const ScheduleUses& uses, FindingLog& findings,
                ScheduleCheck& checked)
      : schedule_(schedule), uses_(uses), findings_(findings), checked_(checked) {}

  void check_spans(int place) {
    const Instruction& in = at(place);
    for (const auto* spans : {&in.reads, &in.writes})
      for (const Span& span : *spans)
        if (span.end > schedule_.tensors[span.tensor].width)
          findings_.add(
              {ScheduleCheck::Fault::outside, -1, place, span,
               fmt::format("{} uses {}, which has {}", said_of(place), numbers_of(schedule_, span),
                           schedule_.tensors[span.tensor].width)});
    if (in.opcode == Opcode::other) return;
    const Effects due = effects_of(schedule_, in);
    check_due(place, "reads", merged(in.reads), merged(due.reads));
    check_due(place, "writes", merged(in.writes), merged(due.writes));
    check_heads(place, due.writes);
  }

  // Both sides are merged spans, so that a list may cut its reads as it likes.
  void check_due(int place, const char* verb, const std::vector<Span>& has,
                 const std::vector<Span>& due) {
    for (const Span& span : due)
      if (std::ranges::count(has, span) == 0)
        findings_.add({ScheduleCheck::Fault::other_rows, -1, place, span,
                       fmt::format("{} {} {} by its opcode and rows, and the list does not say so",
                                   said_of(place), verb, numbers_of(schedule_, span))});
    for (const Span& span : has)
      if (std::ranges::count(due, span) == 0)
        findings_.add(
            {ScheduleCheck::Fault::other_rows, -1, place, span,
             fmt::format(
                 "{} {} {}, as the list says, which is not what its opcode and rows are for",
                 said_of(place), verb, numbers_of(schedule_, span))});
  }

  // RMSNorm and RoPE are over a head, so that a part of one is computed of the wrong numbers. The
  // values of v are neither normed nor turned, so that an edge within a head of v is allowed.
  void check_heads(int place, const std::vector<Span>& writes) {
    const Instruction& in = at(place);
    const ScheduledModel& m = schedule_.model;
    if (in.opcode != Opcode::norm_qkv_rope_append) return;
    for (const int64_t edge : {in.begin, in.end}) {
      const bool of_v = edge > (m.heads + m.kv_heads) * m.head_dim;
      if (edge % m.head_dim == 0 || of_v) continue;
      const bool of_q = edge < m.heads * m.head_dim;
      findings_.add(
          {ScheduleCheck::Fault::split_head, -1, place, of_q ? writes.front() : writes.back(),
           fmt::format("{} splits head {} of q and k: its {} needs all {} numbers of the head",
                       said_of(place), edge / m.head_dim, m.qk_norm ? "norm" : "RoPE",
                       m.head_dim)});
      return;
    }
  }

  // Sweeps the tensor from its first number to its last and counts who writes there.
  void check_written_once(int t) {
    const ScheduledTensor& tensor = schedule_.tensors[t];
    std::vector<Use> writers = uses_.writers(t);
    std::ranges::sort(writers, {}, [](const Use& u) { return std::pair(u.begin, u.place); });
    // Tensors that are given need no writer, and must have none.
    const int64_t due = tensor.given ? 0 : std::max<int64_t>(tensor.shares, 1);
    std::vector<int64_t> edges = {0, tensor.width};
    for (const Use& use : writers)
      for (const int64_t edge : {use.begin, use.end})
        if (edge < tensor.width) edges.push_back(edge);
    std::ranges::sort(edges);
    edges.erase(std::unique(edges.begin(), edges.end()), edges.end());
    if (!tensor.given) checked_.numbers += tensor.width;

    size_t entered = 0;
    std::vector<Use> open;
    Span missing = {t, 0, 0};
    for (size_t e = 0; e + 1 < edges.size(); ++e) {
      const Span part = {t, edges[e], edges[e + 1]};
      std::erase_if(open, [&](const Use& use) { return use.end <= part.begin; });
      for (; entered < writers.size() && writers[entered].begin <= part.begin; ++entered)
        open.push_back(writers[entered]);
      const auto count = std::ssize(open);
      if (count < due) {
        if (missing.end == part.begin && missing.end > missing.begin)
          missing.end = part.end;
        else {
          add_missing(missing);
          missing = part;
        }
      } else if (count > due) {
        add_repeated(part, open);
      } else if (tensor.shares > 1) {
        add_same_share(part, open);
      }
    }
    add_missing(missing);
  }

  void add_missing(const Span& span) {
    if (span.end == span.begin) return;
    const int64_t shares = schedule_.tensors[span.tensor].shares;
    const auto reader = std::ranges::find_if(uses_.readers(span.tensor), [&](const Use& use) {
      return use.begin < span.end && span.begin < use.end;
    });
    std::string says = shares > 1 ? fmt::format("{} lack one of {} shares or more",
                                                numbers_of(schedule_, span), shares)
                                  : fmt::format("nobody writes {}", numbers_of(schedule_, span));
    const int by = reader == uses_.readers(span.tensor).end() ? -1 : reader->place;
    if (by >= 0) says += fmt::format("; {} reads them", said_of(by));
    findings_.add({ScheduleCheck::Fault::missing, -1, by, span, std::move(says)});
  }

  void add_repeated(const Span& span, const std::vector<Use>& open) {
    const ScheduledTensor& tensor = schedule_.tensors[span.tensor];
    const int first = open.size() > 1 ? open[0].place : -1, second = open.back().place;
    std::string says =
        tensor.given        ? fmt::format("{} writes {}, which is there before the step begins",
                                          said_of(second), numbers_of(schedule_, span))
        : tensor.shares > 1 ? fmt::format("{} get {} shares instead of {}, {} and {} among them",
                                          numbers_of(schedule_, span), open.size(), tensor.shares,
                                          said_of(first), said_of(second))
                            : fmt::format("{} and {} both write {}", said_of(first),
                                          said_of(second), numbers_of(schedule_, span));
    findings_.add({ScheduleCheck::Fault::repeated, first, second, span, std::move(says)});
  }

  // A sum that gets as many shares as it has, one of them twice.
  void add_same_share(const Span& span, std::vector<Use> open) {
    const auto share_of = [&](const Use& use) { return at(use.place).share; };
    std::erase_if(open, [&](const Use& u) { return at(u.place).opcode != Opcode::down_residual; });
    std::ranges::sort(open, {}, [&](const Use& u) { return std::pair(share_of(u), u.place); });
    const auto twice = std::ranges::adjacent_find(open, {}, share_of);
    if (twice == open.end()) return;
    const int first = twice->place, second = (twice + 1)->place;
    findings_.add({ScheduleCheck::Fault::repeated, first, second, span,
                   fmt::format("{} get share {} twice, by {} and {}, and lack another",
                               numbers_of(schedule_, span), share_of(*twice), said_of(first),
                               said_of(second))});
  }

 private:
  const Instruction& at(int place) const { return schedule_.instructions[place]; }
  std::string said_of(int place) const { return said(at(place)); }

  const Schedule& schedule_;
  const ScheduleUses& uses_;
  FindingLog& findings_;
  ScheduleCheck& checked_;
};

}  // namespace

void check_coverage(const Schedule& schedule, const ScheduleUses& uses, FindingLog& findings,
                    ScheduleCheck& checked) {
  CoverageCheck check(schedule, uses, findings, checked);
  for (int i = 0; i < std::ssize(schedule.instructions); ++i) check.check_spans(i);
  for (int t = 0; t < std::ssize(schedule.tensors); ++t) check.check_written_once(t);
}

}  // namespace lockstep
