// Random schedules of a few instructions with opcodes of their own: most of them made right, then
// spoiled in a place or two.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "src/schedule/schedule.h"

namespace lockstep {

inline ScheduledModel model_of_ones() {
  return {.layers = 1,
          .hidden = 1,
          .heads = 1,
          .kv_heads = 1,
          .head_dim = 1,
          .intermediate = 1,
          .vocab = 1};
}

class TinySchedules {
 public:
  explicit TinySchedules(uint64_t seed) : random_(seed) {}

  Schedule made() {
    made_ = {.model = model_of_ones(), .queues = 1 + below(3)};
    lately_.clear();
    uses_.clear();
    const int tensors = 1 + below(4), memories = 1 + below(tensors);
    for (int i = 0; i < tensors; ++i) add_tensor(below(memories));
    for (int i = 0; i < tensors; ++i)
      if (!made_.tensors[i].given) add_writers(i);
    if (chance(30)) add_instruction({});
    if (made_.instructions.empty()) add_instruction({});
    const int edits = below(4) - 1;
    for (int i = 0; i < edits; ++i) spoil();
    return made_;
  }

 private:
  int below(int64_t end) { return static_cast<int>(random_() % static_cast<uint64_t>(end)); }
  bool chance(int percent) { return below(100) < percent; }

  // Two counters each: how many have written it, how many have read it.
  void add_tensor(int memory) {
    const auto place = static_cast<int>(made_.tensors.size());
    const bool is_first = std::ranges::none_of(made_.tensors, [&](const ScheduledTensor& tensor) {
      return tensor.memory == std::to_string(memory);
    });
    made_.tensors.push_back({.point = fmt::format("t{}", place),
                             .width = 1 + below(3),
                             .shares = chance(60) ? 0 : 1 + below(3),
                             .given = is_first && chance(20),
                             .memory = std::to_string(memory)});
    for (const char* use : {"written", "read"})
      made_.counters.push_back(fmt::format("t{} {}", place, use));
    uses_.resize(made_.counters.size());
    lately_.resize(made_.tensors.size(), made_.tensors.back().given);
  }

  void add_writers(int tensor) {
    const ScheduledTensor& t = made_.tensors[tensor];
    const int64_t cut = t.width > 1 && chance(50) ? 1 + below(t.width - 1) : t.width;
    const bool at_once = chance(50);  // all of the writers read what lived before the first one
    const std::vector<bool> before = lately_;
    for (int64_t share = 0; share < std::max<int64_t>(t.shares, 1); ++share)
      for (const auto& [begin, end] : {std::pair{int64_t{0}, cut}, std::pair{cut, t.width}}) {
        if (begin == end || made_.instructions.size() >= 11) continue;
        if (at_once) lately_ = before;
        add_instruction({{tensor, begin, end}});
      }
  }

  // Reads what lives, mostly, and waits for the writers of that and the users of what it destroys.
  void add_instruction(const std::vector<Span>& writes) {
    Instruction in{.id = static_cast<int>(made_.instructions.size()),
                   .queue = below(made_.queues),
                   .name = "other",
                   .writes = writes};
    std::vector<std::pair<int, int>> raised;
    for (int i = below(3); i > 0; --i) {
      const int tensor = below(std::ssize(made_.tensors));
      const bool is_own = !writes.empty() && writes[0].tensor == tensor;
      if ((!lately_[tensor] || is_own) && !chance(4)) continue;
      const int64_t width = made_.tensors[tensor].width, begin = below(width);
      in.reads.push_back({tensor, begin, begin + 1 + below(width - begin)});
      in.waits.push_back({2 * tensor, uses_[2 * tensor]});
      raised.emplace_back(2 * tensor + 1, 1);
    }
    for (const Span& span : writes) {
      for (int other = 0; other < span.tensor; ++other)
        if (made_.tensors[other].memory == made_.tensors[span.tensor].memory) {
          for (const int counter : {2 * other, 2 * other + 1})
            in.waits.push_back({counter, uses_[counter]});
          lately_[other] = false;
        }
      lately_[span.tensor] = true;
      raised.emplace_back(2 * span.tensor, 1);
    }
    std::erase_if(in.waits, [&](const Instruction::CounterUse& wait) {
      return wait.value == 0 && chance(80);
    });
    for (const auto& [counter, by] : raised) {
      in.raises.push_back({counter, by});
      uses_[counter] += by;
    }
    made_.instructions.push_back(std::move(in));
  }

  void spoil() {
    std::vector<Instruction>& all = made_.instructions;
    Instruction& in = all[below(std::ssize(all))];
    std::vector<Instruction::CounterUse>& uses = chance(60) ? in.waits : in.raises;
    std::vector<Span>& spans = chance(50) ? in.reads : in.writes;
    Instruction::CounterUse* use = uses.empty() ? nullptr : &uses[below(std::ssize(uses))];
    Span* span = spans.empty() ? nullptr : &spans[below(std::ssize(spans))];
    switch (below(10)) {
      case 0:
      case 1:
        if (use != nullptr) uses.erase(uses.begin() + (use - uses.data()));
        break;
      case 2:
      case 3:
        if (use != nullptr) use->value = std::max<int64_t>(0, use->value + (chance(50) ? 1 : -1));
        break;
      case 4:
        if (use != nullptr) use->counter = below(std::ssize(made_.counters));
        break;
      case 5:
        in.queue = below(made_.queues);
        break;
      case 6:
        std::swap(in, all[below(std::ssize(all))]);
        break;
      case 7:
        if (span != nullptr) span->tensor = below(std::ssize(made_.tensors));
        break;
      case 8:
        if (span != nullptr) span->end += chance(50) || span->end == span->begin + 1 ? 1 : -1;
        break;
      default:
        add_or_remove(static_cast<int>(&in - all.data()));
    }
  }

  void add_or_remove(int place) {
    std::vector<Instruction>& all = made_.instructions;
    if (chance(50) && all.size() > 1) {
      all.erase(all.begin() + place);
    } else if (all.size() < 12) {
      Instruction copy = all[place];
      copy.queue = below(made_.queues);
      all.push_back(std::move(copy));
    }
  }

  std::mt19937_64 random_;
  Schedule made_;
  std::vector<bool> lately_;   // by tensor: it is the last one that was written into its memory
  std::vector<int64_t> uses_;  // by counter: all raises so far
};

}  // namespace lockstep
