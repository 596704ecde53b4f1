// Schedules of a very small model, computed by the interpreter: a prompt and a step after it.
#pragma once

#include <cmath>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "src/instructions/interpreter.h"
#include "src/schedule/make_schedule.h"
#include "tests/fixtures.h"
#include "tests/golden.h"

namespace lockstep {

// Where the first number stands that is not the same in both; "" where all bits are equal.
inline std::string other_bits(const std::vector<Pass>& want, const std::vector<Pass>& got) {
  if (want.size() != got.size()) return "another number of passes";
  for (size_t pass = 0; pass < want.size(); ++pass) {
    if (want[pass].tensors.size() != got[pass].tensors.size()) return "other tensors";
    for (size_t i = 0; i < want[pass].tensors.size(); ++i) {
      const RecordedTensor &a = want[pass].tensors[i], &b = got[pass].tensors[i];
      if (a.point != b.point || a.layer != b.layer || a.shape != b.shape) return "another tensor";
      const TensorView x = a.data.view(), y = b.data.view();
      if (std::memcmp(x.data, y.data, static_cast<size_t>(x.bytes())) != 0)
        return fmt::format("{} of layer {} in pass {}", a.point->name, a.layer, pass);
    }
  }
  return "";
}

class TinySteps {
 public:
  explicit TinySteps(const std::string& model)
      : checkpoint_(Checkpoint::open(data_path("tiny/" + model))),
        sizes_(scheduled_model(config())) {}

  const ModelConfig& config() const { return checkpoint_.config(); }
  const ScheduledModel& sizes() const { return sizes_; }

  // All points of both passes. Throws what interpreter_of() and the run of a step throw.
  std::vector<Pass> computed(const Schedule& schedule, const Interleaving& order) {
    executors_ = interpreter_of(config(), {schedule, order});
    return passes(engine_of(schedule.kv_shares));
  }

  // The same by the model's own executor.
  std::vector<Pass> own() const { return serve(checkpoint_, options(), {request()}).passes; }

  // What right schedules of so many shares compute: that of one queue, held to the model's own
  // executor, which sums up attention in another order.
  const std::vector<Pass>& right(int64_t shares) {
    std::vector<Pass>& right = right_[shares];
    if (right.empty()) {
      right = computed(make_schedule(sizes_, {.kv_shares = shares}), {.seed = 1});
      expect_close(own(), right);
    }
    return right;
  }

 private:
  // A position a page, so that each of up to four shares holds one.
  EngineOptions options() const {
    return {.dtype = DType::f32, .page_size = 1, .pages = 12, .page_order_seed = 3, .threads = 1};
  }
  Request request() const { return {.prompt = some_tokens(4, config().vocab, 9), .max_new = 2}; }

  Engine& engine_of(int64_t shares) {
    // Engines keep all requests that they have had.
    std::optional<Engine>& engine = engines_[shares > 1];
    if (engine && engine->requests() >= 200) engine.reset();
    if (!engine) {
      EngineOptions with = options();
      with.make_executor = [this](const PassParts& pass) { return executors_(pass); };
      with.in_shares = shares > 1;
      engine.emplace(checkpoint_, cpu_ops(), with);
    }
    return *engine;
  }

  std::vector<Pass> passes(Engine& engine) {
    engine.submit(request());
    std::vector<Pass> seen;
    Recorder recorder({}, /*digests=*/false, [&](Pass pass) { seen.push_back(std::move(pass)); });
    Probe probe(&recorder);
    try {
      while (engine.step(probe)) {
      }
    } catch (...) {
      engines_[0].reset();  // they are of no further use
      engines_[1].reset();
      throw;
    }
    EXPECT_EQ(probe.failure(), "");
    return seen;
  }

  // Those that the model's own executor shows: shares are of the interpreter alone.
  static void expect_close(const std::vector<Pass>& own, const std::vector<Pass>& other) {
    ASSERT_EQ(own.size(), 2U);
    ASSERT_EQ(other.size(), 2U);
    for (size_t pass = 0; pass < own.size(); ++pass)
      for (const RecordedTensor& want : own[pass].tensors) {
        const RecordedTensor* got = other[pass].find(*want.point, want.layer);
        ASSERT_NE(got, nullptr) << want.point->name;
        ASSERT_EQ(want.shape, got->shape) << want.point->name;
        const int64_t count = want.data.view().count();
        const double limit = kGoldenLimit * rms_of(want.data);
        for (int64_t i = 0; i < count; ++i)
          ASSERT_LE(std::fabs(value_at(want.data, i) - value_at(got->data, i)), limit)
              << want.point->name << " of layer " << want.layer << " in pass " << pass;
      }
  }

  Checkpoint checkpoint_;
  ScheduledModel sizes_;
  MakeExecutor executors_;
  std::optional<Engine> engines_[2];  // whose shares are shown, or are not
  std::map<int64_t, std::vector<Pass>> right_;
};

}  // namespace lockstep
