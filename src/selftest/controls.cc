// An engine is served once and its passes are kept; each control changes a copy of what was seen,
// or of what the oracle says, and judges it anew. Only the first, which changes nothing, must be
// clean: without it the others would mean nothing.
#include "src/selftest/controls.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "kernels/base/check.h"
#include "src/judge/judge.h"
#include "src/session/device.h"
#include "src/session/judged_run.h"
#include "src/session/store.h"

namespace lockstep {
namespace {

// An oracle that halves the largest exact result of one place.
class HalvingOracle final : public Oracle {
 public:
  HalvingOracle(Oracle& right, Place place) : right_(right), place_(place) {}
  Graph graph() const override { return right_.graph(); }
  bool has_bias(const Place& place) const override { return right_.has_bias(place); }
  int64_t chosen_experts() const override { return right_.chosen_experts(); }
  Exact evaluate(const OracleCall& call) override {
    Exact exact = right_.evaluate(call);
    if (!(call.place == place_) || exact.want.empty()) return exact;
    std::vector<double> want(exact.want.begin(), exact.want.end());
    // Half of the largest element is far beyond any budget, so that a judge that looks at the place
    // must see it.
    *std::ranges::max_element(want, {}, [](double x) { return std::fabs(x); }) /= 2;
    exact.want = std::move(want);
    return exact;
  }

 private:
  Oracle& right_;
  Place place_;
};

// Judges changed copies of one run, and collects what came out.
class Controls {
 public:
  Controls(const Checkpoint& checkpoint, ReferenceLibrary& reference, Seen seen)
      : checkpoint_(checkpoint), reference_(reference), seen_(std::move(seen)) {}

  // Judges a changed copy of what was seen.
  void add(const std::string& name, const std::function<void(Seen&)>& change,
           const JudgeOptions& options = {}, bool complete = true) {
    // Copies share the memory of tensors: put() and the others give a changed tensor a memory of
    // its own.
    Seen seen = seen_;
    change(seen);
    // An oracle for the dtype that the changed manifest declares.
    const auto oracle = reference_.oracle(checkpoint_, {.dtype = seen.manifest.dtype});
    add(name, seen, *oracle, options, complete);
  }

  void add_wrong_oracle(const std::string& name, const Place& place) {
    const auto oracle = reference_.oracle(checkpoint_, {.dtype = seen_.manifest.dtype});
    HalvingOracle wrong(*oracle, place);
    add(name, seen_, wrong, {}, true);
  }

  const std::vector<Control>& all() const { return controls_; }

 private:
  void add(const std::string& name, const Seen& seen, Oracle& oracle, const JudgeOptions& options,
           bool complete) {
    // Without a model: what an error becomes further on is not asked here.
    Judge judge(seen.manifest, oracle, nullptr, nullptr, options);
    for (const Pass& pass : seen.passes) judge.judge(pass);
    const Result result = judge.finish(seen.manifest.requests, complete);
    controls_.push_back({name, result.verdict, exit_status(result) != 0});
  }

  const Checkpoint& checkpoint_;
  ReferenceLibrary& reference_;
  Seen seen_;
  std::vector<Control> controls_;
};

// The tensor of the first pass.
RecordedTensor& tensor_at(Seen& seen, const Point& point, int layer) {
  for (RecordedTensor& tensor : seen.passes.front().tensors)
    if (*tensor.point == point && tensor.layer == layer) return tensor;
  fail("a tensor of {} was wanted, but the engine did not show it", point.name);
}

void swap_layers(Seen& seen, int a, int b) {
  for (Pass& pass : seen.passes)
    for (RecordedTensor& tensor : pass.tensors) {
      if (tensor.layer == a)
        tensor.layer = b;
      else if (tensor.layer == b)
        tensor.layer = a;
    }
}

// Element i of what was seen at a point, another number.
void put(RecordedTensor& tensor, int64_t i, double value) {
  Tensor changed(tensor.shape, tensor.dtype);
  copy(changed, tensor.data);
  store(changed, i, value);
  tensor.data = std::move(changed);
}

// Rounds gate and up in layer 0 as Hugging Face's chain does: silu(gate) is rounded too.
void round_twice(Seen& seen) {
  for (Pass& pass : seen.passes)
    for (RecordedTensor& made : pass.tensors) {
      if (made.point->op != OpKind::silu_mul || made.layer != 0) continue;
      const std::vector<Place> inputs = seen.manifest.graph.inputs_of({made.point, 0});
      const RecordedTensor *gate = pass.find(*inputs.at(0).point, 0),
                           *up = pass.find(*inputs.at(1).point, 0);
      Tensor changed(made.shape, made.dtype);
      for (int64_t i = 0; i < made.shape.count(); ++i) {
        const double g = value_at(gate->data, i);
        store(changed, i, round_to(g / (1 + std::exp(-g)), made.dtype) * value_at(up->data, i));
      }
      made.data = std::move(changed);
    }
}

// Judged there alone, since what reads a wrong tensor made its own of the right one.
void add_to_one_place(Controls& controls, DType dtype) {
  const auto at = [](const char* points) {
    return JudgeOptions{.selection = Selection(points, "0", "", "")};
  };
  controls.add(
      "one NaN in layer 0 attn.norm",
      [](Seen& seen) {
        put(tensor_at(seen, point("attn.norm"), 0), 5, std::numeric_limits<double>::quiet_NaN());
      },
      at("attn.norm"));
  controls.add(
      "one ulp in layer 0 attn.residual",
      [](Seen& seen) {
        RecordedTensor& sum = tensor_at(seen, point("attn.residual"), 0);
        const double x = value_at(sum.data, 5);
        // An addition is exact but for its own rounding, so that a whole ulp is one too many.
        put(sum, 5, x + ulp(x, sum.dtype));
      },
      at("attn.residual"));
  // In fp32 two roundings are no more than what one op may be off.
  if (dtype != DType::f32)
    controls.add("two roundings in a silu_mul that declares one", round_twice,
                 at("mlp.act,mlp.expert_act"));
}

}  // namespace

Seen serve_clean(const Checkpoint& checkpoint, const EngineOptions& options,
                 const std::vector<Request>& requests, OpWatch* watch) {
  const Seeded seeded(ops_of(options.device), {}, checkpoint.config(), options.device, watch);
  EngineOptions own = options;
  // Ops that are wrapped, as a watch does it, run on the host: no graph can be captured of them.
  own.graph = options.graph && seeded.clean;
  Engine engine(checkpoint, seeded.ops, own, seeded.hooks);
  Seen seen{.manifest = {.graph = engine.model().graph(), .dtype = options.dtype}};
  // Declared, as a run declares it: a judge that may choose takes a wrong result for another
  // schema's.
  for (const Place& place : seen.manifest.graph.places())
    seen.manifest.contracts[std::string(place.point->name)] = RoundingContract::fused;
  for (const Request& request : requests) {
    const int32_t id = engine.submit(request);
    seen.manifest.requests.push_back({.id = id, .prompt = request.prompt});
  }
  Recorder recorder({}, false, [&](Pass pass) { seen.passes.push_back(std::move(pass)); });
  Probe probe(&recorder);
  while (engine.step(probe)) check(probe.failure().empty(), "{}", probe.failure());
  return seen;
}

std::vector<Control> positive_controls(const Checkpoint& checkpoint, ReferenceLibrary& reference,
                                       const EngineOptions& engine,
                                       const std::vector<Request>& requests) {
  check(checkpoint.config().layers > 1,
        "a model of two layers or more was wanted, because two are to be swapped, found {}",
        checkpoint.config().layers);
  Controls controls(checkpoint, reference, serve_clean(checkpoint, engine, requests));
  const auto unchanged = [](Seen&) {};
  controls.add("nothing wrong", unchanged);
  // Where a right run fails, every control fails, and proves nothing.
  if (controls.all().front().failed)
    return {{"a right run, to put something wrong in", controls.all().front().verdict, false}};
  controls.add("limits times 0", unchanged, {.limit_scale = 0});
  controls.add("another dtype declared", [](Seen& seen) {
    seen.manifest.dtype = seen.manifest.dtype == DType::f16 ? DType::bf16 : DType::f16;
  });
  controls.add(
      "the last pass missing", [](Seen& seen) { seen.passes.pop_back(); }, {}, false);
  controls.add("the last tensor missing",
               [](Seen& seen) { seen.passes.back().tensors.pop_back(); });
  controls.add("a point renamed", [](Seen& seen) {
    tensor_at(seen, point("attn.residual"), 0).point = &point("mlp.residual");
  });
  controls.add("two layers swapped", [](Seen& seen) { swap_layers(seen, 0, 1); });
  for (const Point* place : {&point("attn.norm"), &point("attn.q_rope"), &point("attn.out"),
                             &point("attn.o"), &point("attn.residual")})
    controls.add_wrong_oracle(
        "the largest exact result of layer 0 " + std::string(place->name) + " halved", {place, 0});
  add_to_one_place(controls, engine.dtype);
  return {controls.all().begin() + 1, controls.all().end()};
}

Result reference_in_place(const Checkpoint& checkpoint, ReferenceLibrary& reference,
                          const EngineOptions& engine, const std::vector<Request>& requests) {
  const Seen seen = serve_clean(checkpoint, engine, requests);
  const ReferenceOptions options{.dtype = engine.dtype, .threads = engine.threads};
  const auto oracle = reference.oracle(checkpoint, options);
  const auto model = reference.model(checkpoint, options, engine.dtype);
  Judge judge(seen.manifest, *oracle, nullptr, nullptr, {});
  Recorder recorder({}, false, [&](Pass pass) { judge.judge(pass); });
  Probe probe(&recorder);
  for (const Pass& pass : seen.passes) {
    // Pages and slots are those of the engine's passes: the judge holds the same manifest to both.
    model->run(pass.info, probe);
    check(probe.failure().empty(), "{}", probe.failure());
  }
  return judge.finish(seen.manifest.requests, true);
}

}  // namespace lockstep
