// The door of the shared library: the one symbol that a command opens it by. The reference is a
// library of its own so that commands that judge nothing start without LibTorch, and so that a
// build without it has all of them. What the judge takes for exact depends on settings of LibTorch
// that environment variables can change; they are set here, once.
#include <ATen/Context.h>
#include <dlfcn.h>
#include <torch/cuda.h>
#include <torch/version.h>

#include <algorithm>
#include <cstdlib>

#include "kernels/base/check.h"
#include "reference/attention_kernels.h"
#include "reference/bridge.h"
#include "reference/families.h"
#include "reference/hypotheses/hypotheses.h"
#include "reference/kernel_queue.h"
#include "reference/oracle.h"

namespace lockstep {
namespace {

// Makes oracles, models and hypotheses, after the options were found to make sense.
class Library final : public ReferenceLibrary {
 public:
  Library() {
    // LibTorch's fused attention on the CPU has an exp of 20 ulp, which is more than the judge
    // allows an engine: leave the plain one. On a device too, where the others may use TF32.
    at::globalContext().setSDPUseFlash(false);
    at::globalContext().setSDPUseMemEfficient(false);
    at::globalContext().setSDPUseCuDNN(false);
    // This is the default, kept whatever the environment says.
    at::globalContext().setFloat32MatmulPrecision("highest");
  }

  std::string version() const override { return TORCH_VERSION; }

  // Not linked, because a run on the CPU should not wait for it, and a LibTorch may have none.
  bool has_gpu(int number) const override {
    static const bool loaded = dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_LOCAL) != nullptr;
    return loaded && number >= 0 && number < torch::cuda::device_count();
  }

  // LibTorch reads it from the environment, once, when its CUDA libraries are loaded.
  void bound_memory(int number, int64_t bytes) override {
    constexpr bool knows = TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 11;
    check(
        knows && has_attention_kernels(),
        "--judge-memory needs a reference with CUDA and LibTorch 2.11 or later, found {}: leave it "
        "out, or build it so",
        TORCH_VERSION);
    check(dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_NOLOAD) == nullptr,
          "LibTorch was to be told how much memory it may take, and has been loaded before: leave "
          "--judge-memory out");
    constexpr const char* kSettings = "PYTORCH_CUDA_ALLOC_CONF";
    const char* before = std::getenv(kSettings);  // before those of any device, as LibTorch has it
    if (before == nullptr) before = std::getenv("PYTORCH_ALLOC_CONF");
    const double share = static_cast<double>(bytes) / static_cast<double>(total_memory(number));
    const std::string settings =
        fmt::format("{}{}per_process_memory_fraction:{:.9f}", before ? before : "",
                    before ? "," : "", std::min(1.0, share));
    setenv(kSettings, settings.c_str(), /*overwrite=*/1);
  }

  void free_unused(int number) override {
    if (has_gpu(number)) lockstep::free_unused({c10::kCUDA, static_cast<c10::DeviceIndex>(number)});
  }

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

  std::unique_ptr<ErrorSharer> error_sharer(const Checkpoint& checkpoint,
                                            const ReferenceOptions& options) override {
    check_options(options);
    return family_of(checkpoint.config()).make_sharer(checkpoint, options);
  }

  std::unique_ptr<Hypotheses> hypotheses(const Checkpoint& checkpoint,
                                         const ReferenceOptions& options) override {
    check_options(options);
    return make_hypotheses(checkpoint, options);
  }

 private:
  void check_options(const ReferenceOptions& options) const {
    check(is_float(options.dtype),
          "weights in fp32, fp16 or bf16 were wanted, found {}: use a "
          "float --dtype",
          name_of(options.dtype));
    check(options.threads >= 0, "a number of threads was wanted, found {}: use 0 for all cores",
          options.threads);
    check(options.gpu < 0 || has_gpu(options.gpu),
          "LibTorch was to compute on CUDA device {}, which it does not have: let it use the CPU",
          options.gpu);
  }
};

}  // namespace

extern "C" ReferenceLibrary* lockstep_reference() {
  static Library library;
  return &library;
}

}  // namespace lockstep
