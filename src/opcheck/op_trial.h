// A case of an op's grid, computed by a user's op and judged as the nodes of a run are.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "reference/reference.h"
#include "src/causes/causes.h"
#include "src/opcheck/case_data.h"
#include "src/replay/op_runner.h"
#include "src/session/options.h"

namespace lockstep {

// Makes the numbers of its case when it is made and keeps them, so that judging and timing are on
// the same inputs. One thread at a time may use it.
class OpTrial {
 public:
  // The place in a case where an op was wrong.
  struct Failure {
    std::string shape;      // of the case
    std::string point;      // of the output; "": the op ended with a sentence
    std::string says;       // that sentence, or what is wrong where no element is known
    std::string statistic;  // "": none
    int32_t pass = 0, request = 0;
    std::vector<int64_t> index;  // as in Finding
    double want = 0, got = 0, budgets = 0;
    std::string rule;
    // Another contract that makes this case right. `rule` says nothing of it: other cases may be
    // wrong under it too.
    std::optional<RoundingContract> right_as;
    std::vector<Finding::LooksLike> looks_like;
  };

  // Who computes a case, and how it is judged. threads: of the op, the oracle and the judge; 0: one
  // a core.
  struct Options {
    Device device = Device::cpu;
    int threads = 0;
    RoundingOptions rounding;
  };

  // implementations: of Lockstep and of the user, who has that op alone. All is borrowed.
  OpTrial(std::string_view op, const GridCase& shape, DType dtype,
          const std::vector<Implementation>& implementations, const Options& options);

  struct Verdict {
    double budgets = 0;  // the most that an element is off
    std::optional<Failure> failure;
    std::string refusal;  // the op's own sentence, where it did not compute the case; "": it did
  };
  // The user's op held to the exact results. with_causes: looks for what a wrong one looks like.
  // Throws Error when the case cannot be judged, which would be this room's fault. The op runs on
  // `device`; what it stored is judged on the CPU. An OpError is a failure without a point, a
  // refusal no failure at all.
  Verdict judge(bool with_causes);
  // Seconds that one of the implementations takes for all passes. Caches are as the passes before
  // left them; copies to and from the device are not in it.
  double seconds(size_t which);

  const OpPlaces& places() const { return places_; }
  const CaseData& data() const { return data_; }

 private:
  Verdict judge_passes(bool with_causes);
  // The pass as the op finds it: with the caches as the passes before left them.
  Pass begun(size_t pass, const std::vector<RecordedTensor>& made) const;
  std::vector<RecordedTensor> compute(const Pass& pass, size_t which, bool timed, double* seconds);
  Verdict verdict_of(const Result& result, const Judge& judge) const;

  std::string op_;
  const GridCase& shape_;
  DType dtype_;
  Options options_;
  OpPlaces places_;
  CaseData data_;
  Manifest judged_;  // of the same, with the rotary tables
  ReferenceOptions reference_;
  std::unique_ptr<Oracle> oracle_;
  OpRunner runner_;
};

}  // namespace lockstep
