// No model computes here: exact results are drawn from a normal distribution, the kernel's are
// these plus an error of known kind and size, rounded to the dtype. The judge runs as ever, over a
// graph of one or more layers, with an oracle that knows what was drawn.
//
//   MadeUp: point, shape, S, passes, error(spot) -> MadeUpOracle + tensors -> Judge -> statistic
//
// Each case says which statistic must find it (`wanted`); finding it by another one is a failure
// too, for then two statistics would be one.
#include "src/selftest/statistic_cases.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numbers>
#include <random>

#include "probes/qwen_graph.h"
#include "src/judge/judge.h"
#include "src/session/store.h"

namespace lockstep {
namespace {

constexpr int64_t kTerms = 256;
const double kWalk = std::sqrt(kTerms) / 3 * 0x1p-24;  // in units of S

// Draws that are the same on every machine.
class Draws {
 public:
  Draws(uint64_t stream, const Row& row, int layer)
      : random_((stream << 48) ^ (static_cast<uint64_t>(layer + 1) << 40) ^
                (static_cast<uint64_t>(row.request) << 20) ^ static_cast<uint64_t>(row.position)) {}
  // Above 0 and below 1.
  double uniform() { return (static_cast<double>(random_() >> 12) + 0.5) * 0x1p-52; }
  double sign() { return random_() % 2 == 0 ? -1 : 1; }
  // Box and Muller 1958.
  double normal() {
    const double radius = std::sqrt(-2 * std::log(uniform()));
    return radius * std::cos(2 * std::numbers::pi * uniform());
  }

 private:
  std::mt19937_64 random_;
};

// An element of what the op makes.
struct Spot {
  Row row;
  int layer;
  int64_t column;
  double want;
};

struct MadeUp {
  const char* name;
  const char* wanted;
  DType dtype;
  const Point* point;
  Shape row_shape;
  double magnitude;                      // S of every element; the exact results are about 1
  std::vector<std::vector<Row>> passes;  // their rows
  // The error of the kernel before it rounds its result to the dtype.
  std::function<double(const Spot&, Draws&)> error;
  int layers = 1;
};

std::vector<double> exact_row(const MadeUp& c, const Row& row, int layer) {
  Draws draws(1, row, layer);
  std::vector<double> want(c.row_shape.count());
  for (double& x : want) x = draws.normal();
  return want;
}

Shape with_rows(int64_t rows, const Shape& row_shape) {
  std::vector<int64_t> extents = {rows};
  extents.insert(extents.end(), row_shape.extents().begin(), row_shape.extents().end());
  return Shape(extents);
}

class MadeUpOracle final : public Oracle {
 public:
  explicit MadeUpOracle(const MadeUp& made_up) : case_(made_up) {}
  Graph graph() const override { return qwen_graph({.layers = case_.layers}); }
  bool has_bias(const Place&) const override { return false; }
  int64_t chosen_experts() const override { return 0; }
  Exact evaluate(const OracleCall& call) override {
    std::vector<double> want;
    for (const Row& row : call.rows)
      std::ranges::copy(exact_row(case_, row, call.place.layer), std::back_inserter(want));
    Exact exact{.shape = with_rows(std::ssize(call.rows), case_.row_shape), .terms = kTerms};
    exact.magnitude = std::vector<double>(want.size(), case_.magnitude);
    exact.want = std::move(want);
    return exact;
  }

 private:
  const MadeUp& case_;
};

RecordedTensor kept(const Place& place, const std::vector<Row>& rows, DType dtype,
                    const Shape& shape) {
  RecordedTensor tensor{
      .point = place.point, .layer = place.layer, .rows = rows, .dtype = dtype, .shape = shape};
  tensor.data = Tensor(shape, dtype);
  std::fill_n(tensor.data.as<char>(), tensor.data.view().bytes(), '\0');
  return tensor;
}

// Adds the inputs of the op, which nobody looks at, and its result.
void show(const MadeUp& c, int layer, const std::vector<Row>& rows, Pass& pass) {
  const Place place{c.point, layer};
  const Graph graph = qwen_graph({.layers = c.layers});
  for (const Place& input : graph.inputs_of(place))
    pass.tensors.push_back(kept(input, rows, c.dtype, {std::ssize(rows), 1}));
  RecordedTensor made = kept(place, rows, c.dtype, with_rows(std::ssize(rows), c.row_shape));
  int64_t i = 0;
  for (const Row& row : rows) {
    Draws draws(2, row, layer);
    const std::vector<double> want = exact_row(c, row, layer);
    for (int64_t column = 0; column < std::ssize(want); ++column) {
      const double exact = want[column];
      store(made.data, i++, exact + c.error({row, layer, column, exact}, draws));
    }
  }
  pass.tensors.push_back(std::move(made));
}

// The statistic of the first finding, or what else came out.
std::string found_in(const MadeUp& c, const Result& result) {
  if (!result.first) return name_of(result.verdict);
  const Finding& first = *result.first;
  if (!(first.node.place == Place{c.point, c.layers > 1 ? first.node.place.layer : 0}))
    return "a finding at " + std::string(first.node.place.point->name);
  return statistic_of(first);
}

// Shows a case to a judge and says what it saw.
StatisticCase judged(const MadeUp& c) {
  Manifest manifest{.graph = qwen_graph({.layers = c.layers}), .dtype = c.dtype};
  for (const Point& p : kPoints) manifest.contracts[std::string(p.name)] = RoundingContract::fused;
  MadeUpOracle oracle(c);
  Judge judge(manifest, oracle, nullptr, nullptr,
              {.selection = Selection(std::string(c.point->name), "", "", ""), .threads = 1});
  std::map<int32_t, int32_t> lengths;
  for (int32_t number = 0; const std::vector<Row>& rows : c.passes) {
    Pass pass;
    pass.info.pass = number++;
    for (const Row& row : rows) {
      pass.info.rows.push_back({.row = row});
      lengths[row.request] = std::max(lengths[row.request], row.position + 1);
    }
    for (int layer = 0; layer < c.layers; ++layer) show(c, layer, rows, pass);
    judge.judge(pass);
  }
  std::vector<RequestInfo> requests;
  for (const auto& [id, length] : lengths)
    requests.push_back({.id = id, .prompt = std::vector<int32_t>(length)});
  return {c.name, c.wanted, found_in(c, judge.finish(requests, true))};
}

// One pass of that many rows of one request, and that many passes of one row more.
std::vector<std::vector<Row>> prompt_and_steps(int32_t rows, int32_t steps) {
  std::vector<std::vector<Row>> passes;
  if (rows > 0) passes.emplace_back();
  for (int32_t p = 0; p < rows; ++p) passes[0].push_back({0, p});
  for (int32_t p = rows; p < rows + steps; ++p) passes.push_back({{0, p}});
  return passes;
}

// Steps of many requests, each a node.
std::vector<std::vector<Row>> steps_of_many(int32_t requests, int32_t steps) {
  std::vector<std::vector<Row>> passes(steps);
  for (int32_t p = 0; p < steps; ++p)
    for (int32_t r = 0; r < requests; ++r) passes[p].push_back({r, p});
  return passes;
}

using Error = std::function<double(const Spot&, Draws&)>;

// An error of either sign by chance, of that size, where `where` says so.
Error either_way(double size, const std::function<bool(const Spot&)>& where = {}) {
  return [=](const Spot& spot, Draws& draws) {
    const double sign = draws.sign();
    return !where || where(spot) ? size * sign : 0;
  };
}

// Off before the store by that many ulp of the result, which misrounds as large a share of them.
Error before_store(double ulps) {
  return [=](const Spot& spot, Draws& draws) {
    return ulps * ulp(spot.want, DType::bf16) * draws.sign();
  };
}

Error gain(double by) {
  return [=](const Spot& spot, Draws&) { return by * spot.want; };
}

// At their worst: S walks off where all products are of one sign, which the sum of their sizes
// stands for in fp32; what they sum up to where they are of either sign, for a 16-bit result.
std::vector<MadeUp> right_kernels() {
  const auto of = [&](const char* name, DType dtype, int32_t steps, double size) -> MadeUp {
    const auto walk = [=](const Spot&, Draws& draws) { return size * kWalk * draws.normal(); };
    return {name, "clean", dtype, &point("attn.q"), {4, 16}, 10, steps_of_many(40, steps), walk};
  };
  return {of("4000 right nodes of fp32 at their worst", DType::f32, 100, 10),
          of("1000 right nodes of bf16 at their worst", DType::bf16, 25, 1),
          of("1000 right nodes of fp16 at their worst", DType::f16, 25, 1)};
}

// Products of either sign, K of which sum up to 1, have S = 10; results that are small for what was
// summed up more.
std::vector<MadeUp> wrong_kernels() {
  std::vector<MadeUp> cases;
  const double walk = 10 * kWalk;
  const auto add = [&](const char* name, const char* wanted, DType dtype, double magnitude,
                       std::vector<std::vector<Row>> passes, Error error) -> MadeUp& {
    return cases.emplace_back(MadeUp{name,
                                     wanted,
                                     dtype,
                                     &point("attn.o"),
                                     {256},
                                     magnitude,
                                     std::move(passes),
                                     std::move(error)});
  };
  const auto wide = [&](const char* name, const char* wanted, std::vector<std::vector<Row>> passes,
                        Error error) -> MadeUp& {
    return add(name, wanted, DType::f32, 10, std::move(passes), std::move(error));
  };
  const auto narrow = [&](const char* name, const char* wanted, double magnitude,
                          std::vector<std::vector<Row>> passes, Error error) {
    add(name, wanted, DType::bf16, magnitude, std::move(passes), std::move(error));
  };
  const auto prompt = prompt_and_steps(128, 0), steps = prompt_and_steps(0, 64);
  const auto one = [](const Spot& s) { return s.row.position == 2 && s.column == 77; };
  const auto row = [](const Spot& s) { return s.row.position == 100; };
  const auto head = [](const Spot& s) { return s.column / 64 == 2; };
  const auto column = [](const Spot& s) { return s.column == 7; };
  wide("one element off by 30 walks", "T1", prompt_and_steps(4, 0), either_way(30 * walk, one))
      .row_shape = {2048};
  wide("all elements off by 1.15 walks", "T2", prompt, either_way(1.15 * walk));
  wide("all elements of decode steps off by 1.2 walks", "T2 of all passes", steps,
       either_way(1.2 * walk));
  wide("all elements of one step of 32 layers off by 1.2 walks", "T2 of all layers",
       prompt_and_steps(0, 1), either_way(1.2 * walk))
      .layers = 32;
  narrow("2 of 100 elements misrounded", "T3", 60, prompt, before_store(0.02));
  narrow("2 of 100 elements of decode steps misrounded", "T3 of all passes", 60, steps,
         before_store(0.02));
  wide("one row off by 1.6 walks", "T4", prompt, either_way(1.6 * walk, row));
  MadeUp& heads = wide("one head off by 1.3 walks", "T4", prompt, either_way(1.3 * walk, head));
  heads.point = &point("attn.q");
  heads.row_shape = {4, 64};
  wide("one column off by 2 walks", "T4", prompt, either_way(2 * walk, column));
  wide("one column of decode steps off by 1.8 walks", "T4 of all passes", steps,
       either_way(1.8 * walk, column));
  narrow("all elements 2e-5 too large", "T5", 100, prompt, gain(2e-5));
  narrow("all elements of decode steps 4e-5 too large", "T5 of all passes", 100, steps, gain(4e-5));
  wide("all elements of fp32 2.4e-6 too large", "T5", prompt_and_steps(256, 0), gain(2.4e-6));
  return cases;
}

}  // namespace

std::string statistic_of(const Finding& finding) {
  if (!finding.statistic) return name_of(finding.verdict);
  const bool of_passes = finding.rule.starts_with("all passes together");
  const bool of_layers = finding.rule.starts_with("all layers and passes together");
  return std::string(name_of(*finding.statistic)) + (of_passes   ? " of all passes"
                                                     : of_layers ? " of all layers"
                                                                 : "");
}

std::vector<StatisticCase> statistic_cases() {
  std::vector<StatisticCase> cases;
  for (const MadeUp& made_up : right_kernels()) cases.push_back(judged(made_up));
  for (const MadeUp& made_up : wrong_kernels()) cases.push_back(judged(made_up));
  return cases;
}

}  // namespace lockstep
