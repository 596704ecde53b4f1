// Three models beside each other, row by row of logits: the engine, the fp64 model, and the same
// model in the run's dtype. The last says what rounding alone does along the whole way, so that a
// token that differs can be called explained or not without any tolerance of ours:
//
//   noise      rms of (reference in dtype - fp64) over the 50 largest logits of the row
//   explained  the fp64 model preferred its own token by no more than 6 sqrt(2) noise
//   expected   the sum over rows of the chance that noise alone flips the choice
//
// and over the run: no more flips than a Poisson law of that expectation allows, and, from 100 rows
// on, a mean KL divergence at most three times that of the reference in the dtype.
#include "src/judge/logits.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "src/judge/pass_view.h"
#include "src/stats/moments.h"
#include "src/stats/statistics.h"

namespace lockstep {
namespace {

constexpr size_t kBest = 50;
constexpr double kExplained = 6;  // standard deviations of the difference of two logits
constexpr int64_t kDivergenceRows = 100;
constexpr double kOverReference = 3;
// The error of the sums of a divergence in fp64; no expected one is less.
constexpr double kDivergenceFloor = 1e-12;

int32_t argmax(std::span<const double> logits) {
  return static_cast<int32_t>(std::ranges::max_element(logits) - logits.begin());
}

// log(sum(exp(logits))). The largest is taken out first, so that no exponential overflows.
double log_sum(std::span<const double> logits) {
  const double top = logits[argmax(logits)];
  double sum = 0;
  for (double x : logits) sum += std::exp(x - top);
  return top + std::log(sum);
}

// Kullback-Leibler divergence of softmax(got) from softmax(exact), in nats.
double divergence(std::span<const double> exact, std::span<const double> got) {
  const double exact_norm = log_sum(exact), got_norm = log_sum(got);
  double sum = 0;
  for (size_t i = 0; i < exact.size(); ++i) {
    const double log_p = exact[i] - exact_norm;
    sum += std::exp(log_p) * (log_p - (got[i] - got_norm));
  }
  return std::max(sum, 0.0);  // but for rounding it is never less
}

// rms of (rounded - exact) over the largest of exact.
double noise(std::span<const double> exact, std::span<const double> rounded) {
  std::vector<size_t> order(exact.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const size_t best = std::min(kBest, order.size());
  std::ranges::partial_sort(order, order.begin() + static_cast<std::ptrdiff_t>(best), {},
                            [&](size_t i) { return -exact[i]; });
  double sum = 0;
  for (size_t i = 0; i < best; ++i) {
    const double difference = rounded[order[i]] - exact[order[i]];
    sum += difference * difference;
  }
  return root_mean(sum, best);
}

// How many candidates are expected to win over the best one by noise alone; 1 at most.
double chance_of_a_flip(std::span<const double> exact, size_t best, double noise) {
  double sum = 0;
  for (size_t i = 0; i < exact.size(); ++i) {
    const double margin = exact[best] - exact[i];
    // Ten noises are seven standard deviations of a difference: a chance below 1e-12, and most of a
    // vocabulary is further away than that.
    if (i == best || margin > 10 * noise) continue;
    sum += noise > 0 ? std::erfc(margin / (2 * noise)) / 2 : 0;
  }
  return std::min(sum, 1.0);
}

double second_best(std::span<const double> logits, size_t best) {
  double second = -std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < logits.size(); ++i)
    if (i != best) second = std::max(second, logits[i]);
  return second;
}

// Nothing where fewer than one row is above it.
std::optional<double> percentile(const std::vector<double>& sorted, int64_t per_mille) {
  const auto rows = std::ssize(sorted);
  if (rows == 0 || rows * (1000 - per_mille) < 1000) return {};
  const int64_t rank = (rows * per_mille + 999) / 1000;  // from 1
  return sorted[std::max<int64_t>(rank, 1) - 1];
}

LogitsSummary::KlPercentiles percentiles_of(std::vector<double> divergences) {
  std::ranges::sort(divergences);
  LogitsSummary::KlPercentiles all{.median = percentile(divergences, 500),
                                   .p90 = percentile(divergences, 900),
                                   .p95 = percentile(divergences, 950),
                                   .p99 = percentile(divergences, 990),
                                   .p999 = percentile(divergences, 999)};
  if (!divergences.empty()) all.max = divergences.back();
  return all;
}

}  // namespace

void LogitsComparison::add(int32_t pass, const RecordedTensor* got, const RecordedTensor* exact,
                           const RecordedTensor* rounded, std::span<const TopLogits> best) {
  if (!got) return;
  const auto finite = [](double x) { return std::isfinite(x); };
  for (const Row& row : got->rows) {
    std::vector<double> values[3];
    const RecordedTensor* tensors[] = {got, exact, rounded};
    for (size_t i = 0; i < 3; ++i) {
      const SelectedRows picked(tensors[i], {&row, 1});
      if (picked.view().empty()) break;  // its values stay empty
      values[i].resize(picked.view().count());
      widen(picked.view(), 0, values[i]);
    }
    if (values[0].empty() || values[0].size() != values[1].size() ||
        values[0].size() != values[2].size())
      continue;
    if (!std::ranges::all_of(values[1], finite) || !std::ranges::all_of(values[2], finite))
      continue;
    const auto said = std::ranges::find(best, row, &TopLogits::row);
    const bool known = said != best.end() && said->chosen != -1;
    const int32_t engine =
        !known ? argmax(values[0]) : (said->chosen == kChoseMinusOne ? -1 : said->chosen);
    if (std::ranges::all_of(values[0], finite))
      add_row(pass, row, engine, values[0], values[1], values[2]);
    else
      add_no_numbers(pass, row, engine, values[1]);
  }
}

// Rounding explains no choice among what is no number.
void LogitsComparison::add_no_numbers(int32_t pass, const Row& row, int32_t engine,
                                      std::span<const double> exact) {
  summary_.max_abs = std::numeric_limits<double>::quiet_NaN();
  if (summary_.unexplained_flips++ == 0) unexplained_ = {.row = row, .pass = pass};
  if (summary_.compared++ == summary_.argmax_equal) first_flip_ = {.row = row, .pass = pass};
  flips_[row.request].push_back(
      {{row.position, engine, argmax(exact), std::numeric_limits<double>::infinity(), false, ""}});
}

// A flip is explained when the fp64 model preferred its token by less than rounding moves a
// difference of two logits: sqrt(2) times the noise, which is how far the rounded model lies from
// the exact one among the largest logits.
void LogitsComparison::add_row(int32_t pass, const Row& row, int32_t engine,
                               std::span<const double> got, std::span<const double> exact,
                               std::span<const double> rounded) {
  for (size_t i = 0; i < got.size(); ++i)
    if (!std::isnan(summary_.max_abs))
      summary_.max_abs = std::max(summary_.max_abs, std::fabs(got[i] - exact[i]));
  ++numbers_;
  const double kl = divergence(exact, got);
  kl_sum_ += kl;
  divergences_.push_back(kl);
  kl_reference_sum_ += divergence(exact, rounded);
  if (numbers_ == 1 || kl > largest_kl_) {
    largest_kl_ = kl;
    divergent_ = {.row = row, .pass = pass};
  }
  const int32_t reference = argmax(exact);
  const double unit = ulp(exact[reference], dtype_);
  const double margin = (exact[reference] - second_best(exact, reference)) / unit;
  summary_.least_margin_ulp = numbers_ == 1 ? margin : std::min(summary_.least_margin_ulp, margin);
  margins_[row.request].push_back({row.position, margin});
  ++summary_.compared;
  const double off = noise(exact, rounded);
  summary_.expected_flips += chance_of_a_flip(exact, reference, off);
  const bool beyond = engine < 0 || engine >= std::ssize(got);  // no token of the vocabulary
  const double preferred =
      beyond ? std::numeric_limits<double>::infinity() : exact[reference] - exact[engine];
  if (engine == reference || preferred == 0) {  // or a tie
    ++summary_.argmax_equal;
    return;
  }
  // Rounding moves logits, and does not choose among them.
  const double most = kExplained * std::sqrt(2.0) * off;
  const bool explained =
      !beyond && within(preferred, most) && got[engine] == *std::ranges::max_element(got);
  const bool moved = explained && !within(preferred + got[engine] - got[reference], most);
  // The first row of each kind is kept, as the place where somebody would look.
  if (summary_.compared - summary_.argmax_equal == 1) first_flip_ = {.row = row, .pass = pass};
  if (!explained && summary_.unexplained_flips == 0) unexplained_ = {.row = row, .pass = pass};
  ++(explained ? summary_.explained_flips : summary_.unexplained_flips);
  flips_[row.request].push_back(
      {{row.position, engine, reference, preferred / unit, explained, ""}, moved});
}

void LogitsComparison::lead_back(int32_t request, const std::vector<Row>& rows,
                                 const std::string& finding) {
  for (auto& [flip, moved] : flips_[request])
    if (flip.ancestor.empty() && std::ranges::count(rows, Row{request, flip.position}) > 0) {
      flip.ancestor = finding;
      if (moved) say_unexplained(flip);
    }
}

void LogitsComparison::choose_wrongly(const Row& row) {
  for (auto& [flip, moved] : flips_[row.request]) {
    if (flip.position != row.position) continue;
    if (flip.ancestor.empty()) flip.ancestor = "token";
    say_unexplained(flip);
  }
}

void LogitsComparison::say_unexplained(Flip& flip) {
  if (!std::exchange(flip.explained, false)) return;
  --summary_.explained_flips;
  ++summary_.unexplained_flips;
}

std::vector<LogitsComparison::Doubt> LogitsComparison::doubts() const {
  const int64_t flips = summary_.compared - summary_.argmax_equal;
  const int64_t unexplained = summary_.unexplained_flips;
  const auto rows = static_cast<double>(numbers_);
  std::vector<LogitsComparison::Doubt> all = {unexplained_, first_flip_};
  all[0].statistic = {
      StatisticKind::flips, static_cast<double>(unexplained), 0,
      fmt::format("{} of {} tokens differ from the fp64 model's by more than rounding explains",
                  unexplained, summary_.compared)};
  all[1].statistic = {
      StatisticKind::flips, static_cast<double>(flips),
      static_cast<double>(poisson_quantile(summary_.expected_flips, kPooledFalseAlarm)),
      fmt::format("{} of {} tokens differ from the fp64 model's where rounding explains {:.3g}",
                  flips, summary_.compared, summary_.expected_flips)};
  if (numbers_ < kDivergenceRows) return all;
  all.push_back(divergent_);
  all.back().statistic = {
      StatisticKind::divergence, kl_sum_ / rows,
      kOverReference * kl_reference_sum_ / rows + kDivergenceFloor,
      fmt::format(
          "the KL divergence from the fp64 model, mean over {} tokens, is past what rounding "
          "explains",
          numbers_)};
  return all;
}

std::optional<LogitsSummary> LogitsComparison::summary() const {
  if (summary_.compared == 0) return {};
  LogitsSummary summary = summary_;
  summary.kl_mean = kl_sum_ / static_cast<double>(numbers_);
  summary.kl_reference = kl_reference_sum_ / static_cast<double>(numbers_);
  summary.kl = percentiles_of(divergences_);
  return summary;
}

std::vector<Margin> LogitsComparison::margins(int32_t request) const {
  const auto found = margins_.find(request);
  return found == margins_.end() ? std::vector<Margin>{} : found->second;
}

std::vector<Flip> LogitsComparison::flips(int32_t request) const {
  std::vector<Flip> flips;
  if (const auto found = flips_.find(request); found != flips_.end())
    for (const Seen& seen : found->second) flips.push_back(seen.flip);
  return flips;
}

}  // namespace lockstep
