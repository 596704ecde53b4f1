#include "src/schedule/checker.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "src/schedule/execution.h"

namespace lockstep {
namespace {

constexpr size_t kMostFindings = 200;  // that are kept, of one kind

struct Use {
  int64_t begin, end;
  int place;  // in Schedule::instructions
};

bool overlap(const Use& a, const Use& b) { return a.begin < b.end && b.begin < a.end; }

std::string numbers_of(const Schedule& schedule, const Span& span) {
  const ScheduledTensor& tensor = schedule.tensors[span.tensor];
  std::string text =
      span.end == span.begin + 1
          ? fmt::format("number {} of {}", span.begin, tensor.point)
          : fmt::format("numbers {}..{} of {}", span.begin, span.end - 1, tensor.point);
  return tensor.layer < 0 ? text : fmt::format("{} in layer {}", text, tensor.layer);
}

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

// The checks of one schedule, and what they share: who uses which tensor.
//
//   spans -> each number is written once
//   waits -> everything runs                                     -> findings
//   both  -> all but one run: nobody who must wait for it does
class Checker {
 public:
  explicit Checker(const Schedule& schedule)
      : schedule_(schedule),
        lists_(lists_of(schedule)),
        readers_(schedule.tensors.size()),
        writers_(schedule.tensors.size()),
        follows_(schedule.tensors.size(), -1) {
    checked_.instructions = std::ssize(schedule.instructions);
    std::map<std::string, int> last;  // tensor in a memory
    for (size_t t = 0; t < schedule.tensors.size(); ++t) {
      const auto [before, is_first] =
          last.try_emplace(schedule.tensors[t].memory, static_cast<int>(t));
      if (!is_first)
        follows_[std::exchange(before->second, static_cast<int>(t))] = static_cast<int>(t);
    }
  }

  ScheduleCheck checked() {
    collect_uses();
    for (size_t t = 0; t < schedule_.tensors.size(); ++t) check_written_once(static_cast<int>(t));
    check_runs();
    check_orders();
    return std::move(checked_);
  }

 private:
  const Instruction& at(int place) const { return schedule_.instructions[place]; }
  std::string said_of(int place) const { return said(at(place)); }

  // Whether another finding of that kind is kept; counts it where not.
  bool is_kept(ScheduleFault fault) {
    const bool few = kept_[fault] < kMostFindings;
    if (few) return true;
    ++checked_.not_kept;
    return false;
  }

  void add(ScheduleFinding finding) {
    if (!is_kept(finding.fault)) return;
    ++kept_[finding.fault];
    checked_.findings.push_back(std::move(finding));
  }

  void collect_uses() {
    for (size_t i = 0; i < schedule_.instructions.size(); ++i) {
      const int place = static_cast<int>(i);
      check_spans(place);
      for (const Span& span : at(place).reads)
        readers_[span.tensor].push_back({span.begin, span.end, place});
      for (const Span& span : at(place).writes)
        writers_[span.tensor].push_back({span.begin, span.end, place});
    }
  }

  void check_spans(int place) {
    const Instruction& in = at(place);
    for (const auto* spans : {&in.reads, &in.writes})
      for (const Span& span : *spans)
        if (span.end > schedule_.tensors[span.tensor].width)
          add({ScheduleFault::outside, -1, place, span,
               fmt::format("{} uses {}, which has {}", said_of(place), numbers_of(schedule_, span),
                           schedule_.tensors[span.tensor].width)});
    if (in.opcode == Opcode::other) return;
    const Effects due = effects_of(schedule_, in);
    check_due(place, "reads", merged(in.reads), merged(due.reads));
    check_due(place, "writes", merged(in.writes), merged(due.writes));
    check_heads(place, due.writes);
  }

  void check_due(int place, const char* verb, const std::vector<Span>& has,
                 const std::vector<Span>& due) {
    for (const Span& span : due)
      if (std::ranges::count(has, span) == 0)
        add({ScheduleFault::other_rows, -1, place, span,
             fmt::format("{} {} {} by its opcode and rows, and the list does not say so",
                         said_of(place), verb, numbers_of(schedule_, span))});
    for (const Span& span : has)
      if (std::ranges::count(due, span) == 0)
        add({ScheduleFault::other_rows, -1, place, span,
             fmt::format(
                 "{} {} {}, as the list says, which is not what its opcode and rows are for",
                 said_of(place), verb, numbers_of(schedule_, span))});
  }

  // RMSNorm and RoPE are over a head, so that a part of one is computed of the wrong numbers.
  void check_heads(int place, const std::vector<Span>& writes) {
    const Instruction& in = at(place);
    const ScheduledModel& m = schedule_.model;
    if (in.opcode != Opcode::norm_qkv_rope_append) return;
    for (const int64_t edge : {in.begin, in.end}) {
      const bool of_v = edge > (m.heads + m.kv_heads) * m.head_dim;
      if (edge % m.head_dim == 0 || of_v) continue;
      const bool of_q = edge < m.heads * m.head_dim;
      add({ScheduleFault::split_head, -1, place, of_q ? writes.front() : writes.back(),
           fmt::format("{} splits head {} of q and k: its {} needs all {} numbers of the head",
                       said_of(place), edge / m.head_dim, m.qk_norm ? "norm" : "RoPE",
                       m.head_dim)});
      return;
    }
  }

  // Sweeps the tensor from its first number to its last and counts who writes there.
  void check_written_once(int t) {
    const ScheduledTensor& tensor = schedule_.tensors[t];
    std::vector<Use> uses = writers_[t];
    std::ranges::sort(uses, {}, [](const Use& u) { return std::pair(u.begin, u.place); });
    const int64_t due = tensor.given ? 0 : std::max<int64_t>(tensor.shares, 1);
    std::vector<int64_t> edges = {0, tensor.width};
    for (const Use& use : uses)
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
      for (; entered < uses.size() && uses[entered].begin <= part.begin; ++entered)
        open.push_back(uses[entered]);
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
    const auto reader = std::ranges::find_if(readers_[span.tensor], [&](const Use& use) {
      return use.begin < span.end && span.begin < use.end;
    });
    std::string says = shares > 1 ? fmt::format("{} lack one of {} shares or more",
                                                numbers_of(schedule_, span), shares)
                                  : fmt::format("nobody writes {}", numbers_of(schedule_, span));
    const int by = reader == readers_[span.tensor].end() ? -1 : reader->place;
    if (by >= 0) says += fmt::format("; {} reads them", said_of(by));
    add({ScheduleFault::missing, -1, by, span, std::move(says)});
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
    add({ScheduleFault::repeated, first, second, span, std::move(says)});
  }

  // A sum that gets as many shares as it has, one of them twice.
  void add_same_share(const Span& span, std::vector<Use> open) {
    const auto share_of = [&](const Use& use) { return at(use.place).share; };
    std::erase_if(open, [&](const Use& u) { return at(u.place).opcode != Opcode::down_residual; });
    std::ranges::sort(open, {}, [&](const Use& u) { return std::pair(share_of(u), u.place); });
    const auto twice = std::ranges::adjacent_find(open, {}, share_of);
    if (twice == open.end()) return;
    const int first = twice->place, second = (twice + 1)->place;
    add({ScheduleFault::repeated, first, second, span,
         fmt::format("{} get share {} twice, by {} and {}, and lack another",
                     numbers_of(schedule_, span), share_of(*twice), said_of(first),
                     said_of(second))});
  }

  // Lets all run. What is left over waits for what never comes.
  void check_runs() {
    Execution execution(schedule_, lists_);
    execution.run(-1, order_);
    if (order_.size() == schedule_.instructions.size()) return;
    std::vector<int64_t> raised(schedule_.counters.size());
    for (const Instruction& in : schedule_.instructions)
      for (const CounterUse& raise : in.raises) raised[raise.counter] += raise.value;

    std::vector<int> stuck;
    bool unreachable = false;
    for (int queue = 0; queue < schedule_.queues; ++queue) {
      const int place = execution.next(queue);
      if (place < 0) continue;
      stuck.push_back(place);
      for (const CounterUse& wait : at(place).waits) {
        if (wait.value <= raised[wait.counter]) continue;
        unreachable = true;
        add({ScheduleFault::unreachable, -1, place, std::nullopt,
             fmt::format("{} waits until counter {} ({}) is {}, and all its raises make {}",
                         said_of(place), wait.counter, schedule_.counters[wait.counter], wait.value,
                         raised[wait.counter]),
             order_});
      }
    }
    if (!unreachable) add_deadlock(execution, stuck);
  }

  void add_deadlock(const Execution& execution, const std::vector<int>& stuck) {
    std::vector<std::string> waits;
    for (const int place : stuck) {
      const auto& all = at(place).waits;
      const auto wait = std::ranges::find_if(
          all, [&](const CounterUse& w) { return execution.value(w.counter) < w.value; });
      if (waits.size() < 4)
        waits.push_back(fmt::format(
            "{} until counter {} ({}), which stands at {}, is {}", said_of(place), wait->counter,
            schedule_.counters[wait->counter], execution.value(wait->counter), wait->value));
    }
    const size_t left = schedule_.instructions.size() - order_.size();
    add({ScheduleFault::deadlock, -1, stuck.front(), std::nullopt,
         fmt::format("{} of {} instructions never run: {} queues wait for each other, {}{}", left,
                     schedule_.instructions.size(), stuck.size(), fmt::join(waits, "; "),
                     stuck.size() > waits.size() ? "; ..." : ""),
         order_});
  }

  // For each instruction, lets all others run as far as they do without it, and looks whether
  // someone ran who reads what it writes, or takes the memory that it uses. They begin where the
  // execution of all stood just before it: what had run by then can run before it.
  void check_orders() {
    Execution before(schedule_, lists_);
    std::vector<int> turn(schedule_.instructions.size(), -1);  // in order_
    for (size_t i = 0; i < order_.size(); ++i) turn[order_[i]] = static_cast<int>(i);
    std::vector<int> also;                                      // that run without it
    std::vector<int> stamp(schedule_.instructions.size(), -1);  // the last one without which
    for (const int place : order_) {
      Execution without = before;
      also.clear();
      without.run(place, also);
      for (const int other : also) stamp[other] = place;
      const auto can_precede = [&](int other) {
        return stamp[other] == place || (turn[other] >= 0 && turn[other] < turn[place]);
      };
      check_after(place, can_precede, also, turn[place]);
      before.step(at(place).queue);
    }
    // Who comes too early lets others come too early: the first of them is said first.
    std::ranges::stable_sort(checked_.findings, {}, [&](const ScheduleFinding& f) {
      const bool is_order = f.first >= 0 && f.fault != ScheduleFault::repeated;
      return std::tuple(is_order, is_order ? turn[f.second] : -1, f.first);
    });
  }

  void check_after(int place, const auto& can_precede, const std::vector<int>& also, int turn) {
    const auto hold = [&](ScheduleFault fault, int tensor, const Use& mine,
                          const std::vector<Use>& others) {
      for (const Use& other : others) {
        if (other.place == place || !overlap(mine, other)) continue;
        if (!can_precede(other.place)) {
          ++checked_.ordered_pairs;
          continue;
        }
        const Span span = {tensor, std::max(mine.begin, other.begin),
                           std::min(mine.end, other.end)};
        add_order(fault, place, other.place, span, also, turn);
      }
    };
    for (const Span& span : at(place).writes) {
      const Use mine = {span.begin, span.end, place};
      for (const Span& read : at(place).reads)
        if (read.tensor == span.tensor && overlap(mine, {read.begin, read.end, place}))
          add_own(place,
                  {span.tensor, std::max(span.begin, read.begin), std::min(span.end, read.end)},
                  turn);
      hold(ScheduleFault::early_read, span.tensor, mine, readers_[span.tensor]);
      for_next(span, [&](int next, int64_t begin, int64_t end) {
        hold(ScheduleFault::unordered, span.tensor, {begin, end, place}, writers_[next]);
      });
    }
    for (const Span& span : at(place).reads)
      for_next(span, [&](int next, int64_t begin, int64_t end) {
        hold(ScheduleFault::overwritten, span.tensor, {begin, end, place}, writers_[next]);
      });
  }

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

  void add_own(int place, const Span& span, int turn) {
    if (!is_kept(ScheduleFault::early_read)) return;
    add({ScheduleFault::early_read,
         -1,
         place,
         span,
         fmt::format("{} reads {}, which it writes itself: it reads before it writes",
                     said_of(place), numbers_of(schedule_, span)),
         {order_.begin(), order_.begin() + turn + 1}});
  }

  void add_order(ScheduleFault fault, int first, int second, const Span& span,
                 const std::vector<int>& also, int turn) {
    if (!is_kept(fault)) return;
    const std::string numbers = numbers_of(schedule_, span);
    const std::string& memory = schedule_.tensors[span.tensor].memory;
    std::string says;
    if (fault == ScheduleFault::early_read)
      says = fmt::format("{} can read {} before {} has written them", said_of(second), numbers,
                         said_of(first));
    else if (fault == ScheduleFault::overwritten)
      says = fmt::format("{} can write to {} over {} before {} has read them", said_of(second),
                         memory, numbers, said_of(first));
    else
      says = fmt::format("{} can write to {} before {} writes {} there, which are left over them",
                         said_of(second), memory, said_of(first), numbers);
    ScheduleFinding finding{fault, first, second, span, std::move(says)};
    finding.order.assign(order_.begin(), order_.begin() + turn);
    const auto has = std::ranges::find(finding.order, second);
    if (has != finding.order.end()) {
      finding.order.erase(has + 1, finding.order.end());
    } else {
      finding.order.insert(finding.order.end(), also.begin(), std::ranges::find(also, second) + 1);
    }
    add(std::move(finding));
  }

  const Schedule& schedule_;
  std::vector<std::vector<int>> lists_;
  std::vector<std::vector<Use>> readers_, writers_;  // by tensor
  std::vector<int> follows_;  // by tensor, the next one in its memory; -1: there is none
  std::vector<int> order_;    // of an execution of all
  EnumArray<ScheduleFault, size_t> kept_;
  ScheduleCheck checked_;
};

}  // namespace

ScheduleCheck check_schedule(const Schedule& schedule) { return Checker(schedule).checked(); }

int exit_status(const ScheduleCheck& checked) { return checked.findings.empty() ? 0 : 1; }

}  // namespace lockstep
