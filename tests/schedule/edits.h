// One edit by chance of a schedule of Lockstep's opcodes: what a hand or a compiler gets wrong.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <random>
#include <string>
#include <utility>

#include "tests/schedule/made_schedules.h"

namespace lockstep {

class ScheduleEdits {
 public:
  explicit ScheduleEdits(uint64_t seed) : random_(seed) {}

  // What it did, in words; "" where there was nothing to edit.
  std::string edit(Schedule& schedule) {
    made_ = &schedule;
    in_ = &some(schedule.instructions);
    switch (random_() % 6) {
      case 0:
        return edit_uses(in_->waits, "wait");
      case 1:
        return edit_uses(in_->raises, "raise");
      case 2:
        return edit_list();
      case 3:
        return edit_part();
      case 4:
        return edit_span(random_() % 2 == 0 ? in_->reads : in_->writes);
      default:
        return edit_tables();
    }
  }

  std::mt19937_64& random() { return random_; }

 private:
  template <typename T>
  T& some(std::vector<T>& of) {
    return of[random_() % of.size()];
  }

  std::string edit_uses(std::vector<Instruction::CounterUse>& uses, const char* kind) {
    if (uses.empty()) return "";
    Instruction::CounterUse& use = some(uses);
    switch (random_() % 5) {
      case 0:
        ++use.value;
        return fmt::format("{} one more", kind);
      case 1:
        use.value = std::max<int64_t>(use.value - 1, 0);
        return fmt::format("{} one less", kind);
      case 2:
        uses.erase(uses.begin() + (&use - uses.data()));
        return fmt::format("{} left out", kind);
      case 3:
        uses.push_back(Instruction::CounterUse(use));
        return fmt::format("{} doubled", kind);
      default:
        use.counter = (use.counter + 1) % static_cast<int>(made_->counters.size());
        return fmt::format("{} of the next counter", kind);
    }
  }

  std::string edit_list() {
    std::vector<Instruction>& all = made_->instructions;
    const auto place = in_ - all.data();
    switch (random_() % 5) {
      case 0:
        if (all.size() == 1) return "";
        all.erase(all.begin() + place);
        return "instruction removed";
      case 1:
        all.push_back(Instruction(*in_));
        all.back().queue = static_cast<int>(random_() % static_cast<uint64_t>(made_->queues));
        return "instruction doubled";
      case 2:
        in_->queue = static_cast<int>(random_() % static_cast<uint64_t>(made_->queues));
        return "instruction in another queue";
      case 3: {
        Instruction moved = std::move(*in_);
        all.erase(all.begin() + place);
        const auto to = static_cast<std::ptrdiff_t>(random_() % (all.size() + 1));
        all.insert(all.begin() + to, std::move(moved));
        return "instruction moved";
      }
      default:
        if (place + 1 == std::ssize(all)) return "";
        std::swap(all[place], all[place + 1]);
        std::swap(all[place].queue, all[place + 1].queue);
        return "instruction swapped with its neighbour";
    }
  }

  // Its layer, rows or share, and with them what it reads and writes.
  std::string edit_part() {
    Instruction part = *in_;
    std::string said;
    const int64_t step = random_() % 2 == 0 ? 1 : -1, held = part.end - part.begin;
    switch (random_() % 5) {
      case 0:
        part.layer += static_cast<int>(step);
        said = "layer changed";
        break;
      case 1:
        part.begin += step * held;
        part.end += step * held;
        said = "neighbour's rows";
        break;
      case 2:
        part.end += step;
        said = "last row changed";
        break;
      case 3:
        part.begin += step;
        said = "first row changed";
        break;
      default:
        part.share += step;
        said = "share changed";
    }
    if (!misfit_of(*made_, part).empty()) return "";
    Effects effects = effects_of(*made_, part);
    part.reads = std::move(effects.reads);
    part.writes = std::move(effects.writes);
    *in_ = std::move(part);
    return said;
  }

  std::string edit_span(std::vector<Span>& spans) {
    if (spans.empty()) return "";
    Span& span = some(spans);
    switch (random_() % 4) {
      case 0:
        spans.erase(spans.begin() + (&span - spans.data()));
        return "span left out";
      case 1:
        span.tensor = static_cast<int>(random_() % made_->tensors.size());
        return "span of another tensor";
      case 2:
        ++span.end;
        return "span too long";
      default:
        if (span.end == span.begin + 1) return "";
        ++span.begin;
        return "span too short";
    }
  }

  // The memory of a tensor, or a counter of all who use it.
  std::string edit_tables() {
    if (random_() % 2 == 0) {
      some(made_->tensors).memory = std::string(some(made_->tensors).memory);
      return "memory of another tensor";
    }
    const auto counter = static_cast<int>(random_() % made_->counters.size());
    const int next = (counter + 1) % static_cast<int>(made_->counters.size());
    for (Instruction& in : made_->instructions)
      for (Instruction::CounterUse& use : random_() % 2 == 0 ? in.waits : in.raises)
        if (use.counter == counter) use.counter = next;
    return "counters mixed up";
  }

  std::mt19937_64 random_;
  Schedule* made_ = nullptr;
  Instruction* in_ = nullptr;
};

}  // namespace lockstep
