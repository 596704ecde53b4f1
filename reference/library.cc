#include <ATen/ATen.h>
#include <torch/version.h>

#include "kernels/check.h"
#include "reference/families.h"
#include "reference/oracle.h"

namespace lockstep {
namespace {

class Library final : public ReferenceLibrary {
 public:
  Library() {
    // LibTorch's fused attention on the CPU has an exp of 20 ulp, which is more than the judge
    // allows an engine: leave the plain one.
    at::globalContext().setSDPUseFlash(false);
  }

  std::string version() const override { return TORCH_VERSION; }

  std::unique_ptr<Oracle> oracle(const Checkpoint& checkpoint,
                                 const ReferenceOptions& options) override {
    check_options(options);
    return make_oracle(checkpoint, options);
  }

  std::unique_ptr<ReferenceModel> model(const Checkpoint& checkpoint,
                                        const ReferenceOptions& options, DType compute) override {
    check_options(options);
    check(is_float(compute),
          "a reference that computes in fp64, fp32, fp16 or bf16 was wanted, "
          "found {}",
          name_of(compute));
    return family_of(checkpoint.config()).make(checkpoint, options, compute);
  }

 private:
  static void check_options(const ReferenceOptions& options) {
    check(is_float(options.dtype),
          "weights in fp32, fp16 or bf16 were wanted, found {}: use a "
          "float --dtype",
          name_of(options.dtype));
    check(options.threads >= 0, "a number of threads was wanted, found {}: use 0 for all cores",
          options.threads);
  }
};

}  // namespace

extern "C" ReferenceLibrary* lockstep_reference() {
  static Library library;
  return &library;
}

}  // namespace lockstep
