// A run with one fault is measured while it is judged: an EffectMeter around the broken op says how
// far its results are from the right op's on the same inputs. A fault whose op does nothing wrong
// may have had no occasion in this run; then two fingerprints of everything that the engine showed,
// with the fault and without, are equal and the size is 0.
#include "src/selftest/selftest_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <exception>
#include <filesystem>
#include <limits>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <thread>

#include "kernels/base/check.h"
#include "kernels/files/disk.h"
#include "kernels/files/json.h"
#include "kernels/files/text.h"
#include "probes/digest.h"
#include "src/selftest/outcomes.h"
#include "src/selftest/rank_cases.h"
#include "src/session/device.h"
#include "src/session/judged_run.h"

namespace lockstep {
namespace {

// Runs with an effect of a known size. With 150 of them, 92 % found are at least 86 % with the
// confidence of Clopper and Pearson; with 400, 99.5 % found are at least 98 %.
constexpr int kNear = 150, kFar = 400, kQuickNear = 40, kQuickFar = 40;

// Knows the runs of before, and takes those of now.
class Journal {
 public:
  // `subject`: what the runs are of.
  Journal(const std::string& path, const std::string& subject) : path_(path) {
    if (path.empty()) return;
    const std::string text =
        std::filesystem::exists(path) ? read_text(path, size_t{1} << 30) : std::string();
    read(text, subject);
    // Opened before any run, so that an hour's work does not end at a file that cannot be written.
    out_.emplace(path, /*may_exist=*/true);
    if (text.empty()) out_->append(nlohmann::ordered_json{{"subject", subject}}.dump() + "\n");
    // A writer that was killed in the middle of a line: the next one begins a new line.
    is_cut_ = !text.empty() && !text.ends_with('\n');
  }

  const Selftest::Outcome* find(const std::string& name) const {
    const auto found = known_.find(name);
    return found == known_.end() ? nullptr : &found->second;
  }
  void add(const Selftest::Outcome& outcome) {
    known_[outcome.name] = outcome;
    if (!out_) return;
    // A line a run, each written at once: whoever kills the selftest loses the run that is on.
    const std::string line = line_of(outcome) + "\n";
    out_->append(std::exchange(is_cut_, false) ? "\n" + line : line);
  }

 private:
  void read(const std::string& text, const std::string& subject) {
    std::istringstream lines(text);
    std::string line;
    for (int number = 1; std::getline(lines, line); ++number) {
      bool ours = true;
      try {
        const JsonDocument document(line, {fmt::format("{}, line {}", path_, number), ""});
        const JsonValue root = document.root();
        if (number > 1)
          known_[root["name"].text()] = outcome_from(root);
        else
          ours = root["subject"].is(subject);
      } catch (const Error&) {
        ours = number > 1;  // a line that was cut off when its writer was killed is run again
      }
      check(ours,
            "{} is no journal of a selftest of this model under these limits ({}): name another "
            "file",
            path_, subject);
    }
  }

  std::string path_;
  std::map<std::string, Selftest::Outcome> known_;
  std::optional<AppendFile> out_;
  bool is_cut_ = false;  // the last line of before has no end
};

// Stands for all that an engine shows. Each record is hashed together with the hash of all before
// it, so that the order counts too.
class Fingerprint final : public Sink {
 public:
  bool wants(const Point&, int) const override { return true; }
  void begin(const PassInfo&) override {}
  void record(const Record& record) override {
    const uint64_t link[] = {hash_, hash_of(record.tensor.data, record.tensor.bytes())};
    hash_ = hash_of(link, sizeof(link));
  }
  void end() override {}
  uint64_t hash() const { return hash_; }

 private:
  uint64_t hash_ = 0;
};

uint64_t fingerprint(const Checkpoint& checkpoint, const SelftestPlan::Case& c, bool with_faults) {
  const Device device = c.engine.device;
  const Seeded seeded(ops_of(device), with_faults ? c.faults : std::vector<FaultRequest>(),
                      checkpoint.config(), device);
  Engine engine(checkpoint, seeded.ops, c.engine, seeded.hooks);
  for (const Request& request : c.requests) engine.submit(request);
  Fingerprint sink;
  Probe probe(&sink);
  while (engine.step(probe)) check(probe.failure().empty(), "{}", probe.failure());
  return sink.hash();
}

// The subject of a journal: a model, limits, and the device of its engine.
std::string journal_of(const SelftestRun& run) {
  return run.checkpoint.fingerprint() + " " + run.limits.name() + " in ulp" +
         (run.plan.device == Device::cpu ? "" : " on cuda");
}

// Runs are independent of each other: each has an engine and a judge of its own, and workers share
// the journal and the counts alone, under one mutex.
class Runner {
 public:
  explicit Runner(const SelftestRun& run) : run_(run), journal_(run.journal, journal_of(run)) {}

  void expect(size_t cases) { total_ += cases; }
  // Those over ranks, which are processes: before any thread is there.
  void over_ranks(const std::vector<SelftestPlan::Case>& cases) {
    for (const SelftestPlan::Case& c : cases) {
      if (c.ranks == 1 || journal_.find(c.name)) continue;
      if (run_.progress) run_.progress(done_, total_, c.name);
      journal_.add(judged_over_ranks(run_, c));
    }
  }
  // In the order of the cases, whichever ends first.
  std::vector<Selftest::Outcome> all(const std::vector<SelftestPlan::Case>& cases) {
    std::vector<Selftest::Outcome> outcomes(cases.size());
    std::atomic<size_t> next = 0;
    // The first failure stops the others at their next case, and is thrown by the caller's thread.
    std::exception_ptr failure;
    const auto work = [&] {
      for (size_t i = next++; i < cases.size(); i = next++) try {
          outcomes[i] = known_or_new(cases[i]);
        } catch (...) {
          const std::lock_guard lock(mutex_);
          if (!failure) failure = std::current_exception();
          next = cases.size();
        }
    };
    {
      std::vector<std::jthread> workers;
      for (int t = 1; t < threads(); ++t) workers.emplace_back(work);
      work();
    }
    if (failure) std::rethrow_exception(failure);
    return outcomes;
  }

 private:
  int threads() const {
    if (run_.plan.device != Device::cpu) return 1;  // a device has one stream, and one user
    return run_.threads > 0 ? run_.threads : machine_threads();
  }

  Selftest::Outcome known_or_new(const SelftestPlan::Case& c) {
    {
      const std::lock_guard lock(mutex_);
      ++done_;
      if (run_.progress) run_.progress(done_, total_, c.name);
      if (const Selftest::Outcome* known = journal_.find(c.name)) return *known;
    }
    Selftest::Outcome outcome = one(c);
    const std::lock_guard lock(mutex_);
    journal_.add(outcome);
    return outcome;
  }

  Selftest::Outcome one(const SelftestPlan::Case& c) {
    JudgedRun judged{.checkpoint = run_.checkpoint,
                     .reference = run_.reference,
                     .engine = c.engine,
                     .step = step_for(run_.checkpoint.config(), c.faults),
                     .requests = c.requests,
                     .faults = c.faults,
                     .judge = {.limits = run_.limits},
                     .causes = false};  // which nobody reads here
    std::unique_ptr<Oracle> oracle;
    std::optional<EffectMeter> meter;
    // Instructions compute parts of rows, which nobody stands around.
    if (c.faults.size() == 1 && !judged.step && OpWatch::possible(first_place(c.faults[0]))) {
      oracle = run_.reference.oracle(run_.checkpoint, reference_options(run_.reference, c.engine));
      meter.emplace(*oracle, c.engine.dtype, std::vector{first_place(c.faults[0])});
      judged.watch = &*meter;
    }
    const Result result = judge_run(judged);
    Selftest::Outcome outcome = outcome_of(c, result);
    // An op that is right on what it was given may have been given the wrong thing: that takes two
    // more runs of the engine, which only a fault without a measured effect costs.
    if (meter && meter->effect() > 0)
      outcome.effect = meter->effect();
    else if (c.faults.size() == 1 && !judged.step &&
             fingerprint(run_.checkpoint, c, true) == fingerprint(run_.checkpoint, c, false))
      outcome.effect = 0;
    return outcome;
  }

  const SelftestRun& run_;
  Journal journal_;
  std::mutex mutex_;  // of what follows, the journal and the progress
  size_t done_ = 0, total_ = 0;
};

// Faults that were found alone, by a number that is too far off: one that makes NaN hides what
// comes after it.
std::vector<FaultRequest> for_several(const std::vector<SelftestPlan::Case>& cases,
                                      const std::vector<Selftest::Outcome>& outcomes) {
  std::vector<FaultRequest> known;
  for (size_t i = 0; i < cases.size(); ++i)
    if (outcomes[i].first_exact && !outcomes[i].nonfinite && cases[i].faults[0].layer >= 0 &&
        fault_of(cases[i].faults[0]).seat == Fault::Seat::host)
      known.push_back(cases[i].faults[0]);
  return known;
}

Selftest::Outcome outcome_in_place(const Result& result) {
  return {.name = "the reference in the engine's place",
          .verdict = result.verdict,
          .story = result.story,
          .limit_ratio = result.limit_ratio};
}

std::vector<std::string> left_out(const std::vector<SelftestPlan::Case>& cases) {
  std::vector<std::string> names;
  for (const Fault& fault : faults())
    if (std::ranges::none_of(
            cases, [&](const SelftestPlan::Case& c) { return c.faults[0].name == fault.name; }))
      names.push_back(fmt::format("{}: it needs {}", fault.name, fault.needs));
  return names;
}

Selftest::Outcome outcome_of_effect(const Detection::Run& run) {
  return {.name = run.name,
          .verdict = run.verdict,
          .story = run.story,
          .first_exact = run.exact,
          .effect = run.size,
          .limit = run.stated,
          .limit_ratio = run.limit_ratio};
}

// The size at which every judge must find a fault of one place: that of one element that is off, of
// that point or of another of its op.
double limit_of(const Selftest::Outcome& outcome, const std::vector<Detection::Limit>& limits) {
  const std::string name = outcome.seeded.at(0).substr(0, outcome.seeded[0].find('@'));
  const Point& point = *first_place({.name = name}).point;
  const Detection::Limit* best = nullptr;
  for (const Detection::Limit& limit : limits)
    if (limit.effect == Detection::Effect::element && limit.point->op == point.op &&
        (!best || *limit.point == point))
      best = &limit;
  return best ? best->stated : 1;
}

}  // namespace

void measure_judge(const SelftestRun& run, Selftest& test) {
  const SelftestPlan& plan = run.plan;
  const SelftestPlan::Case base = plan.clean_cases(test.dtype).at(1);
  test.controls = positive_controls(run.checkpoint, run.reference, base.engine, base.requests);
  test.statistics = statistic_cases();
  const SelftestPlan::Case seen = plan.detection_case(test.dtype);
  const Graph graph =
      run.reference.oracle(run.checkpoint, {.dtype = test.dtype, .threads = run.threads})->graph();
  Detection found = detection({.checkpoint = run.checkpoint,
                               .reference = run.reference,
                               .engine = seen.engine,
                               .requests = seen.requests,
                               .layers = plan.fault_layers(),
                               .points = detectable_points(graph, plan.quick),
                               .limits = run.limits,
                               .threads = run.threads,
                               .near = plan.quick ? kQuickNear : kNear,
                               .far = plan.quick ? kQuickFar : kFar});
  test.limits = std::move(found.limits);
  for (const Detection::Run& effect : found.runs) test.effects.push_back(outcome_of_effect(effect));
}

std::vector<Selftest> selftest(const SelftestRun& run) {
  const std::vector<DType> of_traces = dtypes_of_traces(run.traces, run.dtypes);
  Runner runner(run);
  std::vector<Selftest> tests;
  // Cases are made twice and not kept, for they are cheap; the number of all is wanted before the
  // first.
  for (DType dtype : run.dtypes)
    runner.expect(run.plan.clean_cases(dtype).size() + run.plan.fault_cases(dtype).size());
  for (DType dtype : run.dtypes) runner.over_ranks(run.plan.fault_cases(dtype));
  for (DType dtype : run.dtypes) {
    Selftest& test = tests.emplace_back(Selftest{.dtype = dtype, .quick = run.plan.quick});
    measure_judge(run, test);
    test.clean = runner.all(run.plan.clean_cases(dtype));
    const std::vector<SelftestPlan::Case> cases = run.plan.fault_cases(dtype);
    test.faults = runner.all(cases);
    for (Selftest::Outcome& outcome : test.faults) outcome.limit = limit_of(outcome, test.limits);
    const auto several = run.plan.several_cases(dtype, for_several(cases, test.faults));
    runner.expect(several.size());
    test.several = runner.all(several);
    SelftestPlan::Case base = run.plan.clean_cases(dtype).at(1);
    test.clean.push_back(outcome_in_place(
        reference_in_place(run.checkpoint, run.reference, base.engine, base.requests)));
    for (size_t i = 0; i < run.traces.size(); ++i)
      if (of_traces[i] == dtype)
        std::ranges::move(check_trace(run.traces[i], run.checkpoint, run.limits),
                          std::back_inserter(test.traces));
    test.left_out = left_out(cases);
  }
  return tests;
}

}  // namespace lockstep
