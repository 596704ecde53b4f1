// Blocks of rows: what the oracle makes of them, their budgets, and how far the engine's are.
//
// A block is as many rows as the oracle's fp64 tensors of them are small, about 100 bytes an
// element: its memory does not grow with the pass. Its budget is made row by row, next to the
// measurement that reads it. While a block is measured, the oracle is asked about the next one, so
// that the processors do not wait for the device on which it computes, nor that for them.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <thread>

#include "src/judge/carried.h"
#include "src/judge/model_pass.h"
#include "src/judge/op_judge_parts.h"
#include "src/judge/ops/judged_op.h"

namespace lockstep {
namespace {

// The oracle holds so much at once: more is asked for in blocks of rows. Small ones find the memory
// of the last one, where large ones get new pages, which cost more than what is computed there.
// Blocks of very few rows may be larger, as these read a large weight, of the head's say, for
// little.
constexpr int64_t kBlockBytes = 64 << 20, kMostBlockBytes = 512 << 20, kFewRows = 64;
// About twelve fp64 values an element: result, magnitudes, budget, the two models, temporaries.
constexpr int64_t kBytesPerElement = 100;

// One row of a tensor as fp64, or nothing.
std::span<const double> row_of(const TensorView& tensor, int64_t row, std::vector<double>& into) {
  if (tensor.empty()) return {};
  if (tensor.dtype == DType::f64)
    return {tensor.as<const double>() + row * tensor.row_size(),
            static_cast<size_t>(tensor.row_size())};
  into.resize(tensor.row_size());
  widen(tensor, row * tensor.row_size(), into);
  return into;
}

// The shape of a tensor of which another has some rows: a sentence tells of whole tensors.
Shape with_rows(const Shape& shape, int64_t rows) {
  std::vector<int64_t> extents(shape.extents().begin(), shape.extents().end());
  extents[0] = rows;
  return Shape(extents);
}

}  // namespace

size_t OpJudge::rows_at_once(const Group& group) const {
  const int64_t row_bytes = group.tensor->data.view().row_size() * kBytesPerElement;
  const auto rows_in = [&](int64_t bytes) {
    return std::max<int64_t>(1, bytes / std::max<int64_t>(1, row_bytes));
  };
  // A device is slow to begin what is small, and its oracle says what it has room for.
  const int64_t bytes = std::max(kBlockBytes, oracle_.block_bytes());
  const size_t block =
      std::clamp(kFewRows, rows_in(bytes), rows_in(std::max(bytes, kMostBlockBytes)));
  // Errors of hidden inputs are smoothed over a block, which no lack of memory may change: it stays
  // whole, and is asked about in parts.
  return group.blurred ? block : std::min(block, oracle_.most_rows(*group.tensor->point));
}

bool OpJudge::measure_under(RoundingContract contract, const Place& place,
                            const std::vector<Place>& inputs, const JudgedPass& pass,
                            Group& group) {
  const size_t count = group.rows.size();
  const auto asked_from = [&](size_t first) -> std::unique_ptr<Asked> {
    if (first >= count) return nullptr;
    const size_t some = std::min(rows_at_once(group), count - first);
    return std::make_unique<Asked>(
        oracle_, question_of(contract, place, inputs, pass, group, first, some), first);
  };
  std::unique_ptr<Asked> asked = or_asked_before(asked_from(0));
  while (asked) {
    // Most oracles are asked one question at a time.
    if (!asked->by && !oracle_.asked_by_several()) for_places_.idle().wait();
    const Exact exact = asked->answer();
    std::unique_ptr<Asked> next = asked_from(asked->first + asked->question.call.rows.size());
    // Where inputs are known but for an error, this thread asks more about the block.
    if (next && !group.blurred) next->begin(for_next_block());
    if (!next && !group.blurred) ask_before();
    if (!judge_block(asked->question, asked->first, exact, pass, group)) return false;
    asked = std::move(next);
  }
  group.compared = true;
  return true;
}

// A block is so many rows of one place, of one request or of several: the oracle answers for it in
// fp64, and memory holds one answer, and the next.
bool OpJudge::judge_block(const Question& question, size_t first, const Exact& exact,
                          const JudgedPass& pass, Group& group) {
  const OracleCall& call = question.call;
  const Place& place = call.place;
  const std::span<const Row> rows = call.rows;
  const SelectedRows& got = question.got;
  // The ops that read it cannot be asked about either: a tensor of a wrong shape is no input.
  if (exact.shape != got.view().shape) {
    const Shape found = group.tensor->data.view().shape;
    const Shape wanted = with_rows(exact.shape, found[0]);
    for (Group::Member& member : group.members)
      *member.outcomes = {structural(fmt::format("shape {} was wanted, found {}",
                                                 wanted_text(place, wanted, found), found.text()),
                                     member.node->rows.front().position)};
    misshapen_.insert(key_of(place));
    return false;
  }
  if (take_measured(question, exact, group)) return true;
  // The two models are read under the first contract alone: what they have does not depend on it.
  // Where the oracle measured they were compared with it there, if they were there.
  const auto reference = [&](const ModelPass* model) {
    const bool is_read = model && !group.compared && !(exact.measured && !call.measure.brings);
    return is_read ? model->with_rows(place, rows) : RecordedTensor{};
  };
  const RecordedTensor of_exact = reference(pass.exact), of_rounded = reference(pass.rounded);
  const SelectedRows exact_model(&of_exact, rows), rounded_model(&of_rounded, rows);
  Block block = block_of(question, first, exact, exact_model.view(), rounded_model.view());
  block.carried = carried(call, question.read, group, exact);
  block.threads = threads_for(got.view().count());
  if (!block.carried.empty() && !narrow_enough(block)) {
    group.refuse(inconclusive(
        "what is not recorded before them may be off by more than their own results are large"));
    return false;
  }
  if (group.has_scales(call.contract, question.read) && block.dtype != DType::f32)
    add_scales(question, block, group);
  if (group.pool) pools_.wait();
  measure_block(block, group, rows_);
  return true;
}

OpJudge::Block OpJudge::block_of(const Question& question, size_t first, const Exact& exact,
                                 const TensorView& exact_model,
                                 const TensorView& rounded_model) const {
  const Place& place = question.call.place;
  return {.place = place,
          .dtype = dtype_at(place),
          .inside = dtype_inside(place, dtype_at(place), options_.dtype),
          .first = first,
          .rows = question.call.rows,
          .exact = exact,
          .carried = {},
          .got = question.got.view(),
          .exact_model = exact_model,
          .rounded_model = rounded_model,
          .threads = nullptr,
          .gain = exact.measured ? gain_of(place.point->op, exact) : 0};
}

bool OpJudge::reads_unrounded(const OracleCall& call, const std::vector<Place>& read) const {
  if (!is_of_sum(call.contract) || read.size() != 1) return false;
  const HiddenTensor* hidden = hidden_.find(read[0]);
  return !hidden || hidden->deviation.data.view().empty();
}

// The chain of Hugging Face shows a row before it is weighed.
void OpJudge::add_scales(const Question& question, const Block& block, Group& group) {
  OracleCall call = question.call;
  call.contract = RoundingContract::hf;
  call.measure = {};
  const Exact chain = oracle_.evaluate(call);
  const size_t size = block.got.row_size();
  if (chain.steps.size() != 1 || chain.steps[0].slope.size() != size * block.rows.size()) return;
  const double gain = gain_of(block.place.point->op, chain);
  const HiddenTensor* hidden = hidden_.find(question.read[0]);
  const SelectedRows deviations(hidden ? &hidden->deviation : nullptr, call.rows);
  const SelectedRows samples(hidden ? &hidden->samples : nullptr, call.rows);
  if (group.blurred_inputs && (deviations.view().empty() || samples.view().empty())) return;
  std::vector<double> of_got, of_stored, of_deviation, of_samples;
  for (size_t i = 0; i < block.rows.size(); ++i) {
    const auto of_row = [&](const Numbers& all) { return std::span(all).subspan(i * size, size); };
    const auto optional_row = [i](const TensorView& all, std::vector<double>& room) {
      return all.empty() ? std::span<const double>() : row_of(all, static_cast<int64_t>(i), room);
    };
    const NormedRow row = {
        .got = row_of(block.got, static_cast<int64_t>(i), of_got),
        .normed = of_row(chain.steps[0].value),
        .weight = of_row(chain.steps[0].slope),
        .stored = row_of(call.inputs[0], static_cast<int64_t>(i), of_stored),
        .deviation = optional_row(deviations.view(), of_deviation),
        .samples = optional_row(samples.view(), of_samples),
        .dtype = block.dtype,
        .stored_dtype = dtype_at(question.read[0]),
        .rounds_inside = block.exact.contract == RoundingContract::hf ||
                         block.exact.contract == RoundingContract::hf_unrounded_sum,
        .gain = gain};
    group.members[group.owner[block.first + i]].scales.add(row);
    if (group.scales) group.scales->add(row);
  }
}

Numbers OpJudge::carried(const OracleCall& call, const std::vector<Place>& read, const Group& group,
                         const Exact& exact) {
  if (!group.blurred) return {};
  std::vector<SelectedRows> deviations, samples;
  for (const Place& input : read) {
    const HiddenTensor* hidden = hidden_.find(input);
    deviations.emplace_back(hidden ? &hidden->deviation : nullptr, call.rows);
    samples.emplace_back(hidden ? &hidden->samples : nullptr, call.rows);
  }
  InputErrors errors;
  for (const SelectedRows& rows : deviations) errors.deviations.push_back(rows.view());
  for (const SelectedRows& rows : samples) errors.samples.push_back(rows.view());
  group.derived.put_into(errors);
  Tensor rounding, drawn;
  // The rounding changed the sum, which is an error of the input then.
  if (reads_unrounded(call, read)) {
    const TensorView sum = call.inputs[0];
    rounding = deviation_of_rounding(sum, dtype_at(read[0]));
    errors.deviations[0] = rounding;
    const std::vector<float> signs =
        samples_of({rounding.as<const double>(), static_cast<size_t>(sum.count())}, sum.row_size(),
                   /*seed=*/1);
    drawn = Tensor(Shape{sum.rows(), kErrorSamples, sum.row_size()}, DType::f32);
    std::ranges::copy(signs, drawn.as<float>());
    errors.samples[0] = drawn;
  }
  return carried_errors(oracle_, call, errors, exact).variance;
}

bool OpJudge::narrow_enough(const Block& block) {
  const Budget own = budget_of(block.place.point->op, block.exact, block.dtype, {}, block.inside);
  double narrow = 0, wide = 0, size = 0, power = 0;
  for (size_t i = 0; i < own.limit.size(); ++i) {
    narrow += own.limit[i];
    wide += own.limit[i] + kCarriedDeviations * std::sqrt(kCarriedVariance * block.carried[i]);
    size += std::fabs(block.exact.want[i]);
    power += block.exact.want[i] * block.exact.want[i];
  }
  Width& widest = widened_by_[block.place.point->order()];
  // Rows that are not finite say nothing of how wide a budget is.
  const bool finite = std::isfinite(wide) && std::isfinite(power);
  if (finite && narrow > 0) widest.times = std::max(widest.times, wide / narrow);
  if (finite && power > 0)
    widest.of_row =
        std::max(widest.of_row, wide / std::sqrt(power * static_cast<double>(own.limit.size())));
  // Budgets that together are larger than the results would pass a tensor of zeros.
  return !(wide > size);
}

Budget OpJudge::budget_of_row(const Block& block, size_t row) const {
  const size_t size = block.got.row_size();
  const OpKind op = block.place.point->op;
  Budget budget =
      budget_of(op, block.exact, block.dtype, {.first = row * size, .count = size}, block.inside);
  if (!block.carried.empty()) {
    widen(budget, block.exact, row * size, {block.carried.begin() + row * size, size},
          block.inside);
    return budget;
  }
  // Limits are measured of kernels that round once.
  if (block.exact.contract == RoundingContract::fused)
    tighten(budget, std::span(block.exact.want).subspan(row * size, size), block.dtype,
            options_.limits.of(op, block.dtype));
  return budget;
}

ThreadPool* OpJudge::threads_for(int64_t elements) {
  if (elements < kSharedElements) return nullptr;
  if (!threads_) {
    const int all = machine_threads();
    threads_ = std::make_unique<ThreadPool>(options_.threads > 0 ? options_.threads : all);
  }
  return threads_.get();
}

OpJudge::Measured OpJudge::measure_row(const Block& block, const Group& group, size_t i,
                                       Meter::Row& into) const {
  const size_t size = block.got.row_size();
  const int64_t row = i;
  const Group::Member& member = group.members[group.owner[block.first + i]];
  thread_local std::vector<double> of_got, of_exact, of_rounded, of_empty;  // not cleared by row
  Measured measured;
  if (block.exact.measured) {
    thread_local DistantRow distant;
    block.exact.measured->put_row(i, distant);
    measured.sums = distant.compared;
    into =
        member.meter->measure(block.rows[i].position, distant, block.gain, std::move(into.heads));
    if (block.exact_model.empty()) return measured;
  }
  std::span<const double> want = std::span(block.exact.want).subspan(i * size, size);
  std::span<const double> seen = row_of(block.got, row, of_got);
  measured.sums.add_row(seen, want, row_of(block.exact_model, row, of_exact),
                        row_of(block.rounded_model, row, of_rounded), block.dtype);
  if (block.exact.measured) return measured;
  Budget b = budget_of_row(block, i);
  if (judged_op(block.place.point->op).may_be_empty) pass_empty(want, seen, b, of_empty);
  if (options_.show && !group.merged && block.exact.contract == candidates(block.place).front())
    options_.show(block.place, block.rows[i], want, b.limit);
  into = member.meter->measure(block.rows[i].position,
                               {seen, want, b.limit, b.variance, b.shared, b.misround, b.gain,
                                b.carried, b.meets_borders, b.usual_misround, b.misround_in_gain},
                               std::move(into.elements));
  // Far below a budget no element is over it by another rounding of the quotient.
  const Measure& measure = into.measure;
  const bool sure = measure.excluded == 0 && measure.worst.budgets < 0.999;
  for (size_t e = 0; e < size && !sure && !measured.wrong; ++e)
    measured.wrong = std::fabs(seen[e] - want[e]) > b.limit[e];
  if (measured.wrong)
    measured.order = order_of_row(want, seen, b.limit, without_rows(block.got.shape));
  return measured;
}

// Rows are measured by all threads, some at a time, and added in their order, so that the result
// does not depend on how many threads there are. What a row came to is let go by the thread that
// measures another in its place.
void OpJudge::measure_block(const Block& block, Group& group,
                            std::vector<Meter::Row>& measured) const {
  const size_t size = block.got.row_size(), count = block.rows.size();
  // No elements are kept of what was measured elsewhere.
  const size_t times = block.exact.measured ? 1 : 1 + size * count / kAtATime;
  const size_t most = (count + times - 1) / times;
  for (size_t first = 0; first < count; first += most) {
    const size_t some = std::min(most, count - first);
    std::vector<Measured> all(some);
    if (measured.size() < some) measured.resize(some);
    parallel_for(block.threads, std::ssize(all), 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        all[i] = measure_row(block, group, first + i, measured[i]);
    });
    const auto owner_of = [&](size_t i) { return group.owner[block.first + first + i]; };
    std::vector<int64_t> pooled;  // of rows that were measured elsewhere
    for (size_t i = 0, end = 0; i < some; i = end) {
      while (end < some && owner_of(end) == owner_of(i)) ++end;
      Group::Member& member = group.members[owner_of(i)];
      for (size_t j = i; j < end; ++j) {
        member.sums.add(all[j].sums);
        member.orders.add(all[j].wrong, all[j].order);
      }
      const std::span<Meter::Row> of_member = std::span(measured).subspan(i, end - i);
      if (block.exact.measured)
        std::ranges::copy(
            member.meter->add(of_member, *block.exact.measured, first + i, block.threads),
            std::back_inserter(pooled));
      else
        member.meter->add(of_member, block.threads);
    }
    if (!pooled.empty()) group.pool->add_columns(*block.exact.measured->columns(pooled));
  }
}

}  // namespace lockstep
