// The runs of a selftest, made of a plan alone: the same plan gives the same runs on every machine,
// so that a journal can say which of them are done.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "src/engine/engine.h"
#include "src/faults/faults.h"

namespace lockstep {

// The subject of a selftest, and how much of it is tried.
struct SelftestPlan {
  // One judged run of a selftest.
  struct Case {
    std::string name;  // says all of it, so that one plan has no name twice
    EngineOptions engine;
    std::vector<Request> requests;
    std::vector<FaultRequest> faults;  // none: the run must come out clean
    int ranks = 1;  // that share the model; of several, by rows of the stream too
    bool by_rows = false;
  };

  const ModelConfig& config;
  std::vector<std::vector<int32_t>> prompts;  // token ids to mix in; may be empty
  bool quick = false;
  Device device = Device::cpu;  // of the engine
  bool over_ranks = false;      // runs can be of several ranks, which are processes

  // Runs that must come out clean, of one dtype: prompts of 1, 15, 16, 17 and over 256 tokens,
  // repeated and special tokens, 1 to 8 requests, and page sizes, chunks, prefix caches, preemption
  // and thread counts by chance. quick: 12, else 300; and long ones, of one request of 100 tokens,
  // or of three with 400 each, where the model has as many positions.
  std::vector<Case> clean_cases(DType dtype) const;

  // Every fault that the model can have, of a seat that the runs can have, in a dtype: faults of a
  // layer in the first and the last one and, unless quick, in two between, where the layer can have
  // it; faults that have sizes in each.
  std::vector<Case> fault_cases(DType dtype) const;

  // The run that effects of known sizes are put in (detection.h): four requests, prompts and steps.
  Case detection_case(DType dtype) const;

  // Two or three of `faults` at once, each in a layer of its own. quick: 6 draws, else 100.
  std::vector<Case> several_cases(DType dtype, const std::vector<FaultRequest>& faults) const;

  // Whether runs can have faults of that seat; instructions are computed on the CPU alone,
  // and so are ranks here.
  bool can_have(Fault::Seat seat) const {
    return seat == Fault::Seat::host ||
           (device == Device::cpu &&
            (seat == Fault::Seat::instructions || (seat == Fault::Seat::ranks && over_ranks)));
  }

  // The layers in which faults are seeded, ascending.
  std::vector<int> fault_layers() const;
};

// The interpreter of a run in which a fault of instructions is seeded: of a schedule of four
// queues, with two shares of the pages to merge. Nothing where there is no such fault.
std::optional<InterpreterOptions> step_for(const ModelConfig& config,
                                           const std::vector<FaultRequest>& faults);

}  // namespace lockstep
