// Rows that the reference measures where it computes come to what the judge makes of them element
// by element: on this machine's processors, and on its CUDA device where there is one.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
#include <set>
#include <thread>
#include <utility>

#include "src/judge/budget.h"
#include "src/judge/halving_oracle.h"
#include "src/judge/judge.h"
#include "src/judge/ledger.h"
#include "src/judge/no_memory.h"
#include "src/judge/ops/judged_op.h"
#include "src/stats/distant_rows.h"
#include "tests/reference/hf_passes.h"
#include "tests/whole.h"

namespace lockstep {
namespace {

// Rows of another, for which there is memory where that thread asks alone.
class Lacking final : public DistantRows {
 public:
  Lacking(std::shared_ptr<const DistantRows> of, std::thread::id has, std::atomic<int>& lacked)
      : of_(std::move(of)), has_(has), lacked_(lacked) {}
  void put_row(size_t i, DistantRow& into) const override {
    if (std::this_thread::get_id() != has_ && i > 0) {
      ++lacked_;
      throw NoMemory("no memory for a row");
    }
    of_->put_row(i, into);
  }
  std::shared_ptr<const DistantColumns> columns(std::span<const int64_t> rows) const override {
    return of_->columns(rows);
  }

 private:
  std::shared_ptr<const DistantRows> of_;
  std::thread::id has_;
  std::atomic<int>& lacked_;
};

// How several threads may ask at once: not at all, or what they measure has memory or lacks it.
enum class Several : uint8_t { no, yes, lacking };

// Answers as another does, which it takes for one on a device, and counts what was measured there.
// It has memory for `most` rows.
class Distant final : public Oracle {
 public:
  Distant(Oracle& of, bool measures, int64_t least, size_t most, Several several = Several::no)
      : of_(of), measures_(measures), least_(least), most_(most), several_(several) {}
  Graph graph() const override { return of_.graph(); }
  bool has_bias(const Place& place) const override { return of_.has_bias(place); }
  int64_t chosen_experts() const override { return of_.chosen_experts(); }
  bool on_device() const override { return measures_; }
  bool asked_by_several() const override { return several_ != Several::no; }
  int64_t least_measured() const override { return least_; }
  Exact evaluate(const OracleCall& call) override {
    const std::lock_guard lock(mutex_);  // the other one is asked by one thread at a time
    asked_beforehand += std::this_thread::get_id() == judge_ ? 0 : 1;
    if (call.rows.size() > most_) throw NoMemory("no memory for that many rows");
    Exact exact = of_.evaluate(call);
    ++(exact.measured ? measured : looked_at);
    if (exact.measured) ops.insert(call.place.point->op);
    if (exact.measured && several_ == Several::lacking)
      exact.measured = std::make_shared<const Lacking>(exact.measured, judge_, lacked);
    return exact;
  }
  int measured = 0, looked_at = 0;  // blocks
  int asked_beforehand = 0;
  std::atomic<int> lacked = 0;
  std::set<OpKind> ops;

 private:
  Oracle& of_;
  bool measures_;
  int64_t least_;
  size_t most_;
  Several several_;
  std::mutex mutex_;
  std::thread::id judge_ = std::this_thread::get_id();
};

// Shows what another model does as if it lay on a device, where nobody here may look.
class There final : public ReferenceModel, private Sink {
 public:
  explicit There(std::unique_ptr<ReferenceModel> of) : of_(std::move(of)) {}
  void run(const PassInfo& pass, Probe& probe) override {
    to_ = &probe;
    of_->run(pass, own_);
    EXPECT_EQ(own_.failure(), "");
  }
  std::shared_ptr<const void> held() const override { return of_->held(); }
  void bring(const std::shared_ptr<const void>& held, int64_t first,
             const TensorView& to) const override {
    of_->bring(held, first, to);
  }
  void follow(Routes routes) override { of_->follow(std::move(routes)); }
  void end(int32_t request) override { of_->end(request); }

 private:
  bool wants(const Point& point, int layer) const override { return to_->wants(point, layer); }
  void begin(const PassInfo&) override {}
  void record(const Record& record) override {
    TensorView shown = record.tensor;
    shown.device = Device::cuda;
    (*to_)(*record.point, record.layer, record.rows, shown);
  }
  void end() override {}

  std::unique_ptr<ReferenceModel> of_;
  Probe* to_ = nullptr;
  Probe own_{this};
};

using Passes = std::vector<Pass>;
RecordedTensor& tensor_in(Pass& pass, const Place& place) {
  return const_cast<RecordedTensor&>(*pass.find(*place.point, place.layer));
}

Tensor rounded(std::span<const double> values, const TensorView& like) {
  Tensor tensor(like.shape, like.dtype);
  for (size_t i = 0; i < values.size(); ++i)
    tensor.as<BFloat16>()[i] = from_float<BFloat16>(static_cast<float>(values[i]));
  return tensor;
}

// The same tensors as a probe sees them, with the hashes that go with their numbers.
Passes seen_again(const Passes& passes) {
  Passes again;
  Recorder recorder({}, /*digests=*/false, [&](Pass pass) { again.push_back(std::move(pass)); });
  Probe probe(&recorder);
  for (const Pass& pass : passes) {
    probe.begin(pass.info);
    for (const RecordedTensor& tensor : pass.tensors) {
      const Point& p = *tensor.point;
      if (p == point("logits"))
        probe.logits(p, tensor.data);
      else if (p.is_cache())
        probe(p, tensor.layer, tensor.rows, tensor.data);
      else
        probe(p, tensor.layer, tensor.data);
    }
    probe.end();
  }
  EXPECT_EQ(probe.failure(), "");
  return again;
}

// An engine that rounds once an op: the passes of another, each tensor replaced by what the oracle
// makes of the ones before it, and one element in 300 by a neighbour, if its budget has room.
class MeasuredRows : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if (GetParam() >= 0 && !open_reference().has_gpu(GetParam()))
      GTEST_SKIP() << "a CUDA device that LibTorch can compute on was wanted, there is none";
    oracle_ = open_reference().oracle(stored_.checkpoint(),
                                      {.dtype = DType::bf16, .gpu = GetParam(), .least = 0});
  }

  // visit(call, got) is told of each op that is asked about.
  Passes passes(const std::function<void(const OracleCall&, const TensorView& got)>& visit = {}) {
    Passes all = stored_.passes(/*digests=*/false);
    std::mt19937 random(5);
    for (Pass& pass : all)
      for (const Place& place : oracle_->graph().places()) {
        if (!pass.find(*place.point, place.layer)) continue;
        RecordedTensor& tensor = tensor_in(pass, place);
        const OpKind op = place.point->op;
        if (op == OpKind::cache) put_in_cache(all, pass, place.layer);
        if (op == OpKind::cache || row_of(op).makes_indices) continue;
        answer(pass, place, tensor, random, visit);
      }
    return all;
  }

  void answer(Pass& pass, const Place& place, RecordedTensor& tensor, std::mt19937& random,
              const std::function<void(const OracleCall&, const TensorView&)>& visit) {
    std::vector<int32_t> tokens;
    for (const PassRow& row : pass.info.rows) tokens.push_back(row.token);
    const std::vector<int64_t> lengths(tensor.rows.size(), pass.info.rows.back().row.position + 1);
    OracleCall call{.place = place,
                    .rows = tensor.rows,
                    .tokens = std::span(tokens).last(tensor.rows.size()),
                    .lengths = lengths};
    Tensor k, v;
    for (const Place& input : oracle_->graph().inputs_of(place)) {
      const RecordedTensor* from = pass.find(*input.point, input.layer);
      if (!from && input.point->op == OpKind::angles) continue;  // it makes its own
      if (!from) return;
      const TensorView x = from->data;
      if (input.point->is_cache()) {
        k = half_of(x, 0), v = half_of(x, 1);
        call.keys_values = {k, v};
      } else {
        call.inputs.push_back(x.slice(x.rows() - std::ssize(tensor.rows), std::ssize(tensor.rows)));
      }
    }
    const Exact exact = oracle_->evaluate(call);
    std::vector<double> got(exact.want.begin(), exact.want.end());
    const Budget budget = budget_of(place.point->op, exact, DType::bf16);
    for (size_t i = 0; i < got.size(); ++i) {
      const double next = round_to(got[i], DType::bf16) + ulp(got[i], DType::bf16);
      if (random() % 300 == 0 && std::fabs(next - got[i]) < 0.9 * budget.limit[i]) got[i] = next;
    }
    tensor.data = rounded(got, tensor.data);
    if (visit) visit(call, tensor.data);
  }

  // K (0) or V (1) of attn.kv.
  static Tensor half_of(const TensorView& kv, int64_t part) {
    Tensor tensor({kv.rows(), kv.shape[2], kv.shape[3]}, kv.dtype);
    for (int64_t i = 0; i < kv.rows(); ++i)
      copy(tensor.view().slice(i, 1),
           kv.slice(i, 1).reshaped({2, kv.shape[2], kv.shape[3]}).slice(part, 1));
    return tensor;
  }

  void put_in_cache(Passes& all, Pass& last, int layer) {
    TensorView kv = tensor_in(last, {&point("attn.kv"), layer}).data;
    int64_t at = 0;
    for (Pass& pass : all) {
      const TensorView k = tensor_in(pass, {&point("attn.k_rope"), layer}).data;
      const TensorView v = tensor_in(pass, {&point("attn.v"), layer}).data;
      for (int64_t i = 0; i < k.rows(); ++i, ++at) {
        const TensorView row = kv.slice(at, 1).reshaped({2, kv.shape[2], kv.shape[3]});
        copy(row.slice(0, 1), k.slice(i, 1));
        copy(row.slice(1, 1), v.slice(i, 1));
      }
      if (&pass == &last) return;
    }
  }

  // least: elements that are measured there. most: rows that it has memory for.
  // by: who answers; null: oracle_.
  Result judged(const Passes& passes, bool distant, int64_t least = 0,
                size_t most = std::numeric_limits<size_t>::max(), Oracle* by = nullptr,
                Several several = Several::no) {
    asked_ = std::make_unique<Distant>(by ? *by : *oracle_, distant, least, most, several);
    const auto model = [&](DType compute) {
      return open_reference().model(
          stored_.checkpoint(), {.dtype = DType::bf16, .gpu = distant ? GetParam() : -1}, compute);
    };
    std::unique_ptr<ReferenceModel> exact = model(DType::f64), rounded = model(DType::bf16);
    if (distant && GetParam() < 0) {
      exact = std::make_unique<There>(std::move(exact));
      rounded = std::make_unique<There>(std::move(rounded));
    }
    Judge judge(stored_.manifest(HuggingFacePasses::every(RoundingContract::fused)), *asked_,
                exact.get(), rounded.get(), {});
    for (const Pass& pass : seen_again(passes)) judge.judge(pass);
    return judge.finish({}, true);
  }

  HuggingFacePasses stored_{"bard-qwen3"};
  std::unique_ptr<Oracle> oracle_;
  std::unique_ptr<Distant> asked_;
};

// of: what both are a part of; 0: they are alone.
void expect_near(double got, double want, const std::string& where, double of = 0) {
  if (got != want) {
    EXPECT_LE(std::fabs(got - want), 1e-12 * std::max(of, std::fabs(want))) << where << ' ' << want;
  }
}

void expect_same(const Element& a, const Element& b, const std::string& where) {
  EXPECT_EQ(std::tuple(a.position, a.offset, a.want, a.got),
            std::tuple(b.position, b.offset, b.want, b.got))
      << where;
  expect_near(a.budgets, b.budgets, where);
  expect_near(a.of_row, b.of_row, where);
}

void expect_same(const std::vector<Statistic>& a, const std::vector<Statistic>& b,
                 const std::string& where) {
  ASSERT_EQ(a.size(), b.size()) << where;
  for (size_t i = 0; i < a.size(); ++i) {
    const std::string which = where + ' ' + name_of(a[i].kind) + ' ' + b[i].slice;
    EXPECT_EQ(a[i].kind, b[i].kind) << which;
    expect_near(a[i].value, b[i].value, which);
    expect_near(a[i].limit, b[i].limit, which);
    if (a[i].kind != StatisticKind::gain) {
      EXPECT_EQ(a[i].slice, b[i].slice) << which;
    }
  }
}

void expect_same(const Measure& a, const Measure& b, const std::string& where) {
  EXPECT_EQ(std::tuple(a.elements, a.different, a.over, a.excluded, a.largest),
            std::tuple(b.elements, b.different, b.over, b.excluded, b.largest))
      << where;
  expect_near(a.sum_squares, b.sum_squares, where);
  expect_near(a.inner, b.inner, where);
  expect_same(a.worst, b.worst, where + " worst");
  expect_same(a.worst_scattered, b.worst_scattered, where + " worst of a slice");
  ASSERT_EQ(a.misrounded.has_value(), b.misrounded.has_value()) << where;
  if (a.misrounded) expect_same(*a.misrounded, *b.misrounded, where + " misrounded");
  ASSERT_EQ(a.misrounded_in_slice.has_value(), b.misrounded_in_slice.has_value()) << where;
  if (a.misrounded_in_slice)
    expect_same(*a.misrounded_in_slice, *b.misrounded_in_slice, where + " misrounded in a slice");
  expect_same(a.statistics, b.statistics, where);
}

// Each op's rows by the judge's own loops and by the reference, as nodes and as pools; the last
// ones twice, which both must take for the same rows. The judge's own are returned.
Measure expect_measured_alike(Oracle& oracle, const OracleCall& asked, const TensorView& got) {
  const Point& p = *asked.place.point;
  const std::string where = std::string(p.name) + ' ' + std::to_string(asked.place.layer);
  const bool is_exact = p.node_class == NodeClass::exact;
  const Exact here = oracle.evaluate(asked);
  OracleCall call = asked;
  call.measure = {.got = got,
                  .dtype = DType::bf16,
                  .is_exact = is_exact,
                  .misrounds = misrounds_of(p.op, here.contract, DType::bf16),
                  .meets_borders = judged_op(p.op).meets_borders};
  const Exact there = oracle.evaluate(call);
  if (p.op == OpKind::angles) return {};
  EXPECT_TRUE(there.measured) << where;
  if (!there.measured) return {};
  EXPECT_TRUE(std::ranges::equal(here.want, there.want)) << where;
  EXPECT_EQ(gain_of(p.op, here), gain_of(p.op, there)) << where;

  const Meter::Options options{.node_class = p.node_class,
                               .row_shape = Shape(got.shape.extents().subspan(1)),
                               .page_size = 16,
                               .may_lose_weights = judged_op(p.op).may_lose_weights};
  const size_t rows = asked.rows.size(), size = static_cast<size_t>(got.row_size());
  PlacePool pool, distant_pool;
  Meter meter(options, 2 * std::ssize(asked.rows), &pool);
  Meter distant(options, 2 * std::ssize(asked.rows), &distant_pool);
  const std::vector<double> seen = values_of(got);
  for (const size_t first : {rows / 3, size_t{0}}) {
    std::vector<Meter::Row> measured;
    for (size_t i = first; i < rows; ++i) {
      const Budget b = budget_of(p.op, here, DType::bf16, {.first = i * size, .count = size});
      const auto row = [&](std::span<const double> x) { return x.subspan(i * size, size); };
      const int64_t position = asked.rows[i].position;
      meter.add(position,
                {row(seen), row(here.want), b.limit, b.variance, b.shared, b.misround, b.gain,
                 b.carried, b.meets_borders, b.usual_misround, b.misround_in_gain});
      DistantRow of_row;
      there.measured->put_row(i, of_row);
      // Rows that are measured here are known again by the same hash.
      if (!is_exact) {
        EXPECT_EQ(of_row.hash, hash_of_row(row(here.want), row(seen))) << where;
      }
      measured.push_back(distant.measure(position, of_row, gain_of(p.op, there)));
    }
    const std::vector<int64_t> pooled =
        distant.add(measured, *there.measured, first, /*threads=*/nullptr);
    if (!pooled.empty()) distant_pool.add_columns(*there.measured->columns(pooled));
  }
  const Measure measure = meter.finish();
  expect_same(distant.finish(), measure, where);
  if (!is_exact)
    expect_same(distant_pool.statistics(DType::bf16), pool.statistics(DType::bf16), where);
  return measure;
}

TEST_P(MeasuredRows, ComeToWhatTheirElementsDo) {
  std::set<OpKind> ops;
  int64_t misrounded = 0;
  passes([&](const OracleCall& asked, const TensorView& got) {
    misrounded += expect_measured_alike(*oracle_, asked, got).different;
    if (asked.place.point->op != OpKind::angles) ops.insert(asked.place.point->op);
  });
  EXPECT_EQ(ops, (std::set{OpKind::gather, OpKind::norm, OpKind::linear, OpKind::rope,
                           OpKind::attention, OpKind::silu_mul, OpKind::add}));
  EXPECT_GT(misrounded, 10);
}

// Queries of zeros make means of all values so far, of which many lie on the border of two numbers.
TEST_P(MeasuredRows, ComeToTheSameOnBorders) {
  int64_t on_borders = 0, elements = 0;
  passes([&](const OracleCall& asked, const TensorView& like) {
    if (asked.place.point->op != OpKind::attention) return;
    const Tensor zeros =
        rounded(std::vector<double>(values_of(asked.inputs.at(0)).size()), asked.inputs.at(0));
    OracleCall call = asked;
    call.inputs.at(0) = zeros;
    const Exact exact = oracle_->evaluate(call);
    std::vector<double> outer(exact.want.begin(), exact.want.end());
    for (double& x : outer) {
      const double unit = ulp(x, DType::bf16), steps = std::fabs(x) / unit;
      if (std::fabs(steps - std::floor(steps) - 0.5) > 0x1p-30) continue;
      x = std::copysign(std::ceil(steps) * unit, x);
      ++on_borders;
    }
    const Measure measure = expect_measured_alike(*oracle_, call, rounded(outer, like));
    EXPECT_EQ(measure.different, 0);
    elements += measure.elements;
  });
  EXPECT_GT(on_borders, 500) << "of " << elements;
}

// Silus of tiny gates are half the products of two stored numbers, of which many lie beside the
// border of two others.
TEST_P(MeasuredRows, ComeToTheSameForTinyGates) {
  int64_t turned = 0;
  passes([&](const OracleCall& asked, const TensorView& like) {
    if (asked.place.point->op != OpKind::silu_mul) return;
    std::vector<double> gates = values_of(asked.inputs.at(0)), ups = values_of(asked.inputs.at(1));
    std::vector<double> got;
    for (size_t i = 0; i < gates.size(); ++i) {
      gates[i] *= 0x1p-24;
      const auto gate = static_cast<float>(gates[i]), up = static_cast<float>(ups[i]);
      got.push_back(gate / (1 + std::exp(-gate)) * up);
    }
    const Tensor tiny = rounded(gates, asked.inputs.at(0));
    OracleCall call = asked;
    call.inputs.at(0) = tiny;
    const Measure measure = expect_measured_alike(*oracle_, call, rounded(got, like));
    turned += measure.different;
    for (const Statistic& statistic : measure.statistics)
      EXPECT_TRUE(statistic.passes(1)) << name_of(statistic.kind) << ' ' << statistic.slice;
  });
  EXPECT_GT(turned, 100);
}

void expect_same(const DistantColumns& a, const DistantColumns& b, const std::string& where) {
  for (const auto sums : {&DistantColumns::elements, &DistantColumns::squares, &DistantColumns::due,
                          &DistantColumns::misrounded, &DistantColumns::may_misround}) {
    ASSERT_EQ((a.*sums).size(), (b.*sums).size()) << where;
    for (size_t i = 0; i < (a.*sums).size(); ++i)
      EXPECT_NEAR((a.*sums)[i], (b.*sums)[i], 1e-9 * (1 + std::fabs((b.*sums)[i]))) << where;
  }
  for (const auto worst : {&DistantColumns::worst, &DistantColumns::worst_misrounded}) {
    ASSERT_EQ((a.*worst).size(), (b.*worst).size()) << where;
    for (size_t i = 0; i < (a.*worst).size(); ++i) {
      const DistantColumns::Worst &x = (a.*worst)[i], &y = (b.*worst)[i];
      EXPECT_EQ(std::tuple(x.row, x.got), std::tuple(y.row, y.got)) << where;
      EXPECT_NEAR(x.want, y.want, 1e-12 * (1 + std::fabs(y.want))) << where;
      EXPECT_NEAR(x.budgets, y.budgets, 1e-6) << where;
    }
  }
}

// Parts of a call that there is no memory for are measured one by one. If one of them has a row
// that could not be, the numbers of all are there as if nobody had asked.
TEST_P(MeasuredRows, ComeToTheSameByParts) {
  int calls = 0;
  passes([&](const OracleCall& asked, const TensorView& got) {
    constexpr size_t kMost = 3;
    if (asked.rows.size() < 2 * kMost) return;
    Distant narrow(*oracle_, true, 0, kMost);
    HalvingOracle parts(narrow);
    expect_measured_alike(parts, asked, got);
    const Point& p = *asked.place.point;
    if (p.node_class == NodeClass::exact || p.op == OpKind::angles) return;
    ++calls;
    OracleCall whole = asked;
    whole.measure = {.got = got, .dtype = DType::bf16};
    const Exact at_once = oracle_->evaluate(whole), joined = parts.evaluate(whole);
    std::vector<int64_t> rows(asked.rows.size());
    std::iota(rows.begin(), rows.end(), int64_t{0});
    const auto expect_same_columns = [&] {
      expect_same(*joined.measured->columns(rows), *at_once.measured->columns(rows),
                  std::string(p.name));
    };
    expect_same_columns();
    std::erase_if(rows, [](int64_t row) { return row < 4 || row == 7; });
    expect_same_columns();
    for (const int64_t wrong : {int64_t{0}, int64_t{2 * kMost - 1}}) {
      std::vector<double> values = values_of(got);
      values[static_cast<size_t>(wrong * got.row_size())] += 100;
      const Tensor spoilt = rounded(values, got);
      OracleCall call = asked;
      call.measure = {.got = spoilt, .dtype = DType::bf16};
      const Exact mixed = parts.evaluate(call), plain = parts.evaluate(asked);
      EXPECT_FALSE(mixed.measured) << p.name;
      EXPECT_TRUE(std::ranges::equal(mixed.want, plain.want)) << p.name;
      EXPECT_TRUE(std::ranges::equal(mixed.magnitude, plain.magnitude)) << p.name;
    }
  });
  EXPECT_GT(calls, 20);
}

// The rows so many times, one copy after the other.
Tensor repeated(const TensorView& rows, int64_t times) {
  std::vector<int64_t> extents(rows.shape.extents().begin(), rows.shape.extents().end());
  extents[0] *= times;
  const std::vector<double> once = values_of(rows);
  std::vector<double> all;
  for (int64_t i = 0; i < times; ++i) all.insert(all.end(), once.begin(), once.end());
  TensorView like = rows;
  like.shape = Shape(extents);
  return rounded(all, like);
}

// The columns of a node's rows, which are among those of other requests, are those that its rows
// have when they are asked about alone.
TEST_P(MeasuredRows, ComeToTheSameColumnsAmongOtherRequests) {
  int nodes = 0;
  passes([&](const OracleCall& asked, const TensorView& got) {
    const std::set measured = {OpKind::norm, OpKind::linear, OpKind::silu_mul};
    if (!measured.contains(asked.place.point->op)) return;
    const auto count = static_cast<int64_t>(asked.rows.size());
    const int64_t times = (kLeastSlice + count - 1) / count, of_node = times * count;
    const Tensor all = repeated(got, 3 * times);
    std::vector<Tensor> inputs;
    for (const TensorView& input : asked.inputs) inputs.push_back(repeated(input, 3 * times));
    std::vector<Row> rows;
    for (int64_t i = 0; i < 3 * of_node; ++i)
      rows.push_back({static_cast<int32_t>(i / of_node), static_cast<int32_t>(i % of_node)});
    OracleCall call{.place = asked.place, .rows = rows};
    call.inputs.assign(inputs.begin(), inputs.end());
    call.measure = {.got = all, .dtype = DType::bf16};
    const Exact together = oracle_->evaluate(call);
    ASSERT_TRUE(together.measured) << asked.place.point->name;
    for (int64_t node = 0; node < 3; ++node) {
      const Exact alone = oracle_->evaluate(rows_of_call(call, node * of_node, of_node));
      std::vector<int64_t> own(of_node), there(of_node);
      std::iota(own.begin(), own.end(), int64_t{0});
      std::iota(there.begin(), there.end(), node * of_node);
      DistantColumns expected = *alone.measured->columns(own);
      for (auto* worst : {&expected.worst, &expected.worst_misrounded})
        for (DistantColumns::Worst& of : *worst)
          if (of.row >= 0) of.row += node * of_node;
      expect_same(*together.measured->columns(there), expected,
                  std::string(asked.place.point->name));
      ++nodes;
    }
  });
  EXPECT_GT(nodes, 60);
}

// Spoils some elements of a row by row number, element and what stood there.
using Spoils = std::function<double(int64_t row, int64_t element, double x)>;
struct Seeded {
  const char* point;
  int layer;
  Spoils spoils;
};

void spoil(Passes& passes, const Seeded& seeded) {
  for (Pass& pass : passes) {
    RecordedTensor& tensor = tensor_in(pass, {find_point(seeded.point), seeded.layer});
    std::vector<double> values = values_of(tensor.data);
    const int64_t size = tensor.data.view().row_size();
    for (int64_t i = 0; i < std::ssize(values); ++i) {
      double& x = values[static_cast<size_t>(i)];
      x = seeded.spoils(tensor.rows[static_cast<size_t>(i / size)].position, i % size, x);
    }
    tensor.data = rounded(values, tensor.data);
  }
}

void expect_same(const Result& a, const Result& b, const std::string& where) {
  EXPECT_EQ(a.verdict, b.verdict) << where;
  EXPECT_EQ(a.story, b.story) << where;
  EXPECT_EQ(std::tuple(a.judged, a.excluded, a.scope.largest),
            std::tuple(b.judged, b.excluded, b.scope.largest))
      << where;
  ASSERT_EQ(a.findings.size(), b.findings.size()) << where;
  for (size_t i = 0; i < a.findings.size(); ++i) {
    const Finding &f = a.findings[i], &g = b.findings[i];
    EXPECT_EQ(std::tuple(text_of(f.node.place), f.node.pass, f.verdict, f.statistic, f.rule),
              std::tuple(text_of(g.node.place), g.node.pass, g.verdict, g.statistic, g.rule))
        << where;
    expect_near(f.value, g.value, where + ' ' + text_of(f.node.place));
  }
  ASSERT_EQ(a.places.size(), b.places.size()) << where;
  for (size_t i = 0; i < a.places.size(); ++i) {
    const PlaceSummary &p = a.places[i], &q = b.places[i];
    const std::string at = where + ' ' + text_of(p.place);
    EXPECT_EQ(std::tuple(p.verdict, p.judged, p.worst_position, p.worst_pass),
              std::tuple(q.verdict, q.judged, q.worst_position, q.worst_pass))
        << at;
    expect_near(p.worst_t1, q.worst_t1, at);
    expect_near(p.worst_t2, q.worst_t2, at);
    expect_near(p.worst_of_row, q.worst_of_row, at);
    expect_near(p.introduced_rms, q.introduced_rms, at);
    EXPECT_EQ(p.compared, q.compared) << at;
    // A part of the whole error. The first op of all that rounds reads what is exact, so that its
    // part is what fp64 itself makes of two orders of a sum: no digit of that is right, and the
    // model on a device has another order than the one here.
    expect_near(p.propagated_rms, q.propagated_rms, at, q.total_rms);
    expect_near(p.total_rms, q.total_rms, at);
  }
}

TEST_P(MeasuredRows, LeaveEveryVerdictAsItIs) {
  const std::unique_ptr<Oracle> by_itself =
      open_reference().oracle(stored_.checkpoint(), {.dtype = DType::bf16, .gpu = GetParam()});
  const Passes right = passes();
  const auto step = [](double x) { return ulp(x, DType::bf16); };
  const Seeded seeded[] = {
      {"mlp.act", 3, [](int64_t, int64_t, double x) { return x; }},
      {"attn.v", 0,
       [&](int64_t row, int64_t i, double x) { return row == 5 && i == 7 ? x + 3 * step(x) : x; }},
      {"mlp.act", 3, [](int64_t, int64_t, double x) { return 1.02 * x; }},
      {"attn.out", 3, [](int64_t row, int64_t, double x) { return row == 2 ? NAN : x; }},
      {"attn.residual", 0, [&](int64_t, int64_t i, double x) { return i == 9 ? x + step(x) : x; }},
      {"attn.q_norm", 5, [](int64_t, int64_t i, double x) { return i < 8 ? 0 : x; }},
      // Within every budget, and too often.
      {"mlp.down", 5, [&](int64_t, int64_t i, double x) { return i % 7 == 0 ? x + step(x) : x; }},
      {"attn.k_rope", 0, [&](int64_t row, int64_t, double x) { return row > 9 ? -x : x; }},
  };
  int64_t wrong = 0;
  for (const Seeded& fault : seeded) {
    Passes passes = right;
    spoil(passes, fault);
    const std::string where = std::string(fault.point) + ' ' + std::to_string(fault.layer);
    const Result distant = judged(passes, true);
    EXPECT_GT(asked_->measured, 50) << where;
    EXPECT_EQ(asked_->ops.size(), 7U) << where;
    const Result here = judged(passes, false);
    EXPECT_EQ(asked_->measured, 0);
    expect_same(distant, here, where);
    // Rows of a few are looked at here, and what the models have of them too.
    const Result few = judged(passes, true, int64_t{1} << 40);
    EXPECT_EQ(asked_->measured, 0);
    expect_same(few, here, where);
    // By parts, measured there or here, and by threads that measure ahead or lack memory, by turns.
    const bool is_odd = ((&fault - seeded) + GetParam()) % 2 != 0;
    for (const int64_t least : {int64_t{0}, int64_t{1} << 40}) {
      if (!whole() && is_odd == (least == 0)) continue;
      const Result parts = judged(passes, true, least, /*most=*/3);
      EXPECT_EQ(asked_->measured > 100, least == 0) << where;
      expect_same(parts, here, where + " by parts");
    }
    for (const Several several : {Several::yes, Several::lacking}) {
      if (!whole() && is_odd == (several == Several::lacking)) continue;
      const Result ahead =
          judged(passes, true, 0, std::numeric_limits<size_t>::max(), nullptr, several);
      EXPECT_GT(asked_->measured, 50) << where;
      EXPECT_GT(asked_->asked_beforehand, 50) << where;
      EXPECT_EQ(asked_->lacked > 0, several == Several::lacking) << where;
      expect_same(ahead, here, where + " by several");
    }
    // So few rows are answered on the processors but where they are measured.
    const Result few_there = judged(passes, true, 0, /*most=*/3, by_itself.get());
    EXPECT_GT(asked_->measured, 100) << where;
    expect_same(few_there, here, where + " by parts that are few");
    wrong += here.verdict == RunVerdict::diverged ? 1 : 0;
    if (&fault == seeded) {
      EXPECT_TRUE(here.findings.empty()) << here.story;
    }
  }
  EXPECT_EQ(wrong, std::ssize(seeded) - 1);
}

INSTANTIATE_TEST_SUITE_P(Where, MeasuredRows, testing::Values(-1, 0), [](const auto& info) {
  return std::string(info.param < 0 ? "processors" : "device");
});

}  // namespace
}  // namespace lockstep
