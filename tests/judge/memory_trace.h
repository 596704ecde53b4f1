#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tests/judge/fake_model.h"

namespace lockstep {

// A trace that was never on a disk.
class MemoryTrace : public TraceReader {
 public:
  explicit MemoryTrace(FakeRun run, bool complete = true)
      : run_(std::move(run)), complete_(complete) {}
  const Manifest& manifest() const override { return run_.manifest; }
  int passes() const override { return static_cast<int>(run_.passes.size()); }
  Pass read(int i, bool data) override {
    Pass pass = run_.passes.at(static_cast<size_t>(i));
    if (!data)
      for (RecordedTensor& t : pass.tensors) t.data = {};
    return pass;
  }
  bool complete() const override { return complete_; }
  const std::vector<std::string>& problems() const override { return problems_; }

 private:
  FakeRun run_;
  bool complete_;
  std::vector<std::string> problems_;
};

}  // namespace lockstep
