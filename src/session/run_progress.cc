#include "src/session/run_progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace lockstep {
namespace {

constexpr std::chrono::milliseconds kBetween{100};

// "41 s", "3 min 5 s", "2 h 10 min".
std::string duration_text(double seconds) {
  const auto s = static_cast<int64_t>(seconds + 0.5);
  if (s < 60) return fmt::format("{} s", s);
  if (s < 3600) return fmt::format("{} min {} s", s / 60, s % 60);
  return fmt::format("{} h {} min", s / 3600, s % 3600 / 60);
}

}  // namespace

std::string RunProgress::Moment::text() const {
  const std::string where = layer < 0 ? "" : fmt::format(" layer {} of {}", layer, layers);
  std::string text = fmt::format("pass {}, {} token{}: {}{}; {} of {} tokens", pass, rows,
                                 rows == 1 ? "" : "s", doing, where, std::min(done, total), total);
  if (done <= 0 || seconds <= 0) return text + ", " + duration_text(seconds);
  const double rate = static_cast<double>(done) / seconds;
  const auto left = static_cast<double>(std::max<int64_t>(total - done, 0));
  return text + fmt::format(", {:.2g} a second, about {} left", rate, duration_text(left / rate));
}

RunProgress::RunProgress(Show show, int layers, int64_t total) : show_(std::move(show)) {
  moment_.layers = layers;
  moment_.total = total;
}

void RunProgress::begin_pass(int32_t pass, int64_t rows) {
  const std::lock_guard lock(mutex_);
  moment_.pass = pass;
  moment_.rows = rows;
}

void RunProgress::end_pass() {
  const std::lock_guard lock(mutex_);
  moment_.done += moment_.rows;
}

// Called for every layer, shown ten times a second at most.
void RunProgress::at(std::string_view doing, int layer) {
  if (!show_) return;
  const std::lock_guard lock(mutex_);
  const Clock::time_point now = Clock::now();
  if (now - shown_ < kBetween) return;
  shown_ = now;
  moment_.doing = doing;
  moment_.layer = layer;
  moment_.seconds = std::chrono::duration<double>(now - begin_).count();
  show_(moment_.text());
}

}  // namespace lockstep
