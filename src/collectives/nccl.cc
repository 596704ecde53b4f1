// The door of the shared library for ranks on GPUs: c10d's NCCL beside its Gloo, which carries what
// is in host memory. A call is queued on the engine's stream, or captured in its graph, so that
// nobody on the host waits; before LibTorch 2.8 on a stream of NCCL's own, which that one waits
// for.
#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "kernels/base/check.h"
#include "src/collectives/gloo.h"

namespace lockstep {
namespace {

// Options of a call that is queued on the engine's stream itself.
template <typename Options>
Options on_this_stream() {
  Options options;
  if constexpr (requires { options.asyncOp; }) options.asyncOp = false;
  return options;
}

// Nothing is returned of a call that was queued so.
void join(const c10::intrusive_ptr<c10d::Work>& work) {
  if (work) work->wait();
}

// The ranks' group, one card each. It borrows the engine's stream, which outlives it.
class Nccl final : public GpuCollectives {
 public:
  Nccl(const Meeting& meeting, int port)
      : gpu_(static_cast<c10::DeviceIndex>(meeting.gpu)), stream_(meeting.stream) {
    const c10::cuda::CUDAGuard here(gpu_);
    c10d::TCPStoreOptions options;
    options.port = static_cast<uint16_t>(port);
    auto store = c10::make_intrusive<c10d::PrefixStore>(
        meeting.name + "/nccl", c10::make_intrusive<c10d::TCPStore>(meeting.host, options));
    auto nccl = c10d::ProcessGroupNCCL::Options::create();
    nccl->timeout = kCallPatience;
    group_ = c10::make_intrusive<c10d::ProcessGroupNCCL>(store, meeting.rank, meeting.ranks, nccl);
  }

  void all_reduce(const TensorView& tensor) override {
    on_stream("an all-reduce", [&] {
      std::vector<at::Tensor> tensors = {numbers(tensor)};
      join(group_->allreduce(tensors, on_this_stream<c10d::AllreduceOptions>()));
    });
  }

  void reduce_scatter(const TensorView& parts, const TensorView& part) override {
    on_stream("a reduce-scatter", [&] {
      at::Tensor from = numbers(parts), to = numbers(part);
      join(group_->_reduce_scatter_base(to, from, on_this_stream<c10d::ReduceScatterOptions>()));
    });
  }

  void all_gather(const TensorView& parts, const TensorView& part) override {
    on_stream("an all-gather", [&] {
      // The parts go as bytes, since nothing is added, whatever the dtype.
      at::Tensor to = on_gpu(parts, at::kByte, parts.bytes());
      at::Tensor from = on_gpu(part, at::kByte, part.bytes());
      join(group_->_allgather_base(to, from, on_this_stream<c10d::AllgatherOptions>()));
    });
  }

 private:
  // A view of the engine's memory, which LibTorch neither owns nor frees.
  at::Tensor on_gpu(const TensorView& view, at::ScalarType type, int64_t count) const {
    return at::from_blob(view.data, {count},
                         at::TensorOptions(type).device(at::Device(at::kCUDA, gpu_)));
  }

  at::Tensor numbers(const TensorView& view) const {
    return on_gpu(view, static_cast<at::ScalarType>(scalar_type_of(view.dtype)), view.count());
  }

  // With the engine's stream as LibTorch's: wait() then has it wait, and not the host.
  void on_stream(const char* doing, const auto& body) {
    try {
      const c10::cuda::CUDAStreamGuard stream(c10::cuda::getStreamFromExternal(stream_, gpu_));
      body();
    } catch (const c10::Error& error) {
      fail("{} by NCCL failed ({}): a rank is gone", doing, error.what_without_backtrace());
    } catch (const std::exception& error) {
      fail("{} by NCCL failed ({}): a rank is gone", doing, error.what());
    }
  }

  c10::DeviceIndex gpu_;
  CUstream_st* stream_;
  c10::intrusive_ptr<c10d::ProcessGroupNCCL> group_;
};

}  // namespace

extern "C" CollectivesLibrary* lockstep_collectives() {
  return &library_of("NCCL and Gloo", [](const Meeting& meeting, int port) {
    return std::make_unique<Nccl>(meeting, port);
  });
}

}  // namespace lockstep
