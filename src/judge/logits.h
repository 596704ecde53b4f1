#pragma once

#include <limits>
#include <map>
#include <optional>
#include <vector>

#include "probes/recorder.h"
#include "src/judge/verdict.h"
#include "src/stats/moments.h"

namespace lockstep {

// TopLogits::chosen where the op that chooses wrote -1, which there says that nobody knows.
inline constexpr int32_t kChoseMinusOne = std::numeric_limits<int32_t>::min();

// Compares the engine's logits with those of the model in fp64, row by row. A choice that differs
// is explained when the fp64 model prefers its own by no more than 6 sqrt(2) s, where s is the rms
// over its 50 best of (the model in the run's dtype - the model in fp64): both candidates then lie
// within what correct rounding moves them. One that is not the largest of its own row is not.
//
// Choices that differ are expected too: a candidate that is m below the best wins by rounding alone
// with a chance of Q(m / (sqrt(2) s)), Q the tail of a normal distribution. Their sum over the
// candidates and rows is the number that is expected at most.
class LogitsComparison {
 public:
  // A statistic of the choices of a run, which may be wrong though every op is within its budget,
  // and the row that shows it best.
  struct Doubt {
    Statistic statistic;
    Row row;
    int32_t pass = 0;
  };

  explicit LogitsComparison(DType dtype) : dtype_(dtype) {}

  // Rows that `exact` or `rounded` lack, that were kept as digests, or in which one of these two is
  // no number are left out. Where `got` is none, its choice is explained by nothing. Tensors are
  // [rows, vocab] on the CPU, of any float dtype; they are compared in fp64. The engine's choice is
  // what `best` says was chosen of a row, and where it says nothing the largest of `got`.
  void add(int32_t pass, const RecordedTensor* got, const RecordedTensor* exact,
           const RecordedTensor* rounded, std::span<const TopLogits> best = {});

  std::optional<LogitsSummary> summary() const;  // nothing when no row was compared
  std::vector<Flip> flips(int32_t request) const;
  std::vector<Margin> margins(int32_t request) const;  // in the order in which rows came
  // Says from which finding the request's choices at these rows that differ stem, of which nobody
  // has said so yet. Rounding does not explain those whose logits moved by more than it moves them,
  // however little the fp64 model preferred its own.
  void lead_back(int32_t request, const std::vector<Row>& rows, const std::string& finding);
  // Says that the op which chooses was found wrong at that row: rounding explains no choice there.
  void choose_wrongly(const Row& row);
  //   flips  choices that differ and are not explained (limit 0), or all of them, of which a sum of
  //          as many rare chances is over its limit with a chance of 1e-6 (Poisson's tail, which is
  //          the heavier one: Hoeffding 1956)
  //   KL     mean divergence of 100 rows or more; limit 3 times that of the model in the run's
  //          dtype
  std::vector<Doubt> doubts() const;

 private:
  struct Seen {
    Flip flip;
    bool moved = false;  // the two logits did, by more than rounding moves them
  };
  void say_unexplained(Flip& flip);
  void add_row(int32_t pass, const Row& row, int32_t engine, std::span<const double> got,
               std::span<const double> exact, std::span<const double> rounded);
  void add_no_numbers(int32_t pass, const Row& row, int32_t engine, std::span<const double> exact);

  DType dtype_;
  LogitsSummary summary_;
  int64_t numbers_ = 0;  // rows that were compared, and are numbers
  double kl_sum_ = 0, kl_reference_sum_ = 0;
  std::vector<double> divergences_;  // of which kl_sum_ is the sum
  double largest_kl_ = 0;
  Doubt unexplained_, first_flip_, divergent_;  // of which the statistics are made at the end
  std::map<int32_t, std::vector<Seen>> flips_;
  std::map<int32_t, std::vector<Margin>> margins_;
};

}  // namespace lockstep
