// LibTorch's reference, but for its hypotheses, which a test makes of the right ones.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "src/session/reference_library.h"

namespace lockstep {

class OtherHypotheses final : public ReferenceLibrary {
 public:
  using Change = std::function<std::unique_ptr<Hypotheses>(std::unique_ptr<Hypotheses> right)>;
  explicit OtherHypotheses(Change change) : change_(std::move(change)) {}

  std::string version() const override { return whole_.version(); }
  bool has_gpu(int number) const override { return whole_.has_gpu(number); }
  void bound_memory(int number, int64_t bytes) override { whole_.bound_memory(number, bytes); }
  void free_unused(int number) override { whole_.free_unused(number); }
  std::unique_ptr<Oracle> oracle(const Checkpoint& checkpoint,
                                 const ReferenceOptions& options) override {
    return whole_.oracle(checkpoint, options);
  }
  std::unique_ptr<ReferenceModel> model(const Checkpoint& checkpoint,
                                        const ReferenceOptions& options, DType compute) override {
    return whole_.model(checkpoint, options, compute);
  }
  std::unique_ptr<ErrorSharer> error_sharer(const Checkpoint& checkpoint,
                                            const ReferenceOptions& options) override {
    return whole_.error_sharer(checkpoint, options);
  }
  std::unique_ptr<Hypotheses> hypotheses(const Checkpoint& checkpoint,
                                         const ReferenceOptions& options) override {
    return change_(whole_.hypotheses(checkpoint, options));
  }

 private:
  ReferenceLibrary& whole_ = open_reference();
  Change change_;
};

}  // namespace lockstep
