// The runtime behind kernels/base/memory.h for one CUDA device: memory, copies, graphs, digests,
// draws. Memory comes from an arena, since cudaMalloc waits for the device. A graph is captured on
// the stream of the ops, and the memory in which its ops work stays the graph's until it is
// forgotten.
#include <algorithm>
#include <memory>
#include <mutex>
#include <utility>

#include "kernels/base/arena.h"
#include "kernels/base/shared_copy.h"
#include "kernels/cuda/device_runtime.cuh"
#include "kernels/cuda/digest.cuh"

namespace lockstep {
namespace {

// Returns null when the device has not that much memory left. Other errors throw.
void* ask_device(int index, int64_t bytes) {
  use_device(index);
  void* memory = nullptr;
  const cudaError_t status = cudaMalloc(&memory, bytes);
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // else the next launch would report this
    return nullptr;
  }
  cuda_check(status, "cudaMalloc");
  return memory;
}

void give_device_back(void* memory) { cuda_check(cudaFree(memory), "cudaFree"); }

// The arena of the current device. of_current_device never destroys it: tensors of static storage
// may be released after it. What it keeps it hands out whichever device is current.
struct DeviceArena {
  Arena arena{
      {.allocate = [index = current_device()](int64_t bytes) { return ask_device(index, bytes); },
       .release = give_device_back}};
};
Arena& arena() { return of_current_device<DeviceArena>().arena; }

int64_t available() {
  size_t free_bytes = 0, total = 0;
  cuda_check(cudaMemGetInfo(&free_bytes, &total), "cudaMemGetInfo");
  return static_cast<int64_t>(free_bytes) + arena().kept();
}

void* pin(int64_t bytes) {
  void* memory = nullptr;
  cuda_check(cudaMallocHost(&memory, bytes), "cudaMallocHost");
  return memory;
}

// Destructors call this, also after the driver has gone: an error has nobody to be reported to.
void unpin(void* memory) { cudaFreeHost(memory); }

// The driver copies what is pageable, as a mapped file is, by one thread, at a tenth of what the
// way to a device takes. Some threads fill pinned memory instead, one half while the other is on
// its way. Never destroyed, as the arena.
class Upload {
 public:
  static constexpr int64_t kLeast = 4 << 20;  // bytes that are worth it

  void copy(void* to, const void* from, int64_t bytes, cudaStream_t stream) {
    const std::lock_guard lock(mutex_);
    for (int64_t first = 0; first < bytes; first += kHalf) {
      const int64_t count = std::min(kHalf, bytes - first);
      Half& half = halves_[next_];
      next_ = 1 - next_;
      cuda_check(cudaEventSynchronize(half.read), "cudaEventSynchronize");
      copies_.copy(half.memory, static_cast<const char*>(from) + first, count);
      cuda_check(cudaMemcpyAsync(static_cast<char*>(to) + first, half.memory, count,
                                 cudaMemcpyHostToDevice, stream),
                 "cudaMemcpyAsync");
      cuda_check(cudaEventRecord(half.read, stream), "cudaEventRecord");
    }
  }

 private:
  static constexpr int64_t kHalf = 16 << 20;
  static constexpr int kCopiers = 8;
  struct Half {
    void* memory = pin(kHalf);
    cudaEvent_t read = [] {
      cudaEvent_t made = nullptr;
      cuda_check(cudaEventCreateWithFlags(&made, cudaEventDisableTiming), "cudaEventCreate");
      return made;
    }();
  };

  std::mutex mutex_;
  Half halves_[2];
  int next_ = 0;
  SharedCopy copies_{kCopiers};
};

cudaMemoryType type_of(const void* memory) {
  cudaPointerAttributes attributes{};
  cuda_check(cudaPointerGetAttributes(&attributes, memory), "cudaPointerGetAttributes");
  return attributes.type;
}

void copy_bytes(void* to, const void* from, int64_t bytes, CUstream_st* stream) {
  if (bytes >= Upload::kLeast && type_of(from) == cudaMemoryTypeUnregistered &&
      type_of(to) == cudaMemoryTypeDevice)
    return of_current_device<Upload>().copy(to, from, bytes, stream);
  cuda_check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream), "cudaMemcpyAsync");
}

void wait(CUstream_st* stream) {
  const cudaError_t status = cudaStreamSynchronize(stream);
  BadIndex* seen = bad_index_report();
  // A launch that was given up may break on its way out, which says less than why it was.
  if (status != cudaSuccess && seen->of == BadIndex::Of::step_wait && seen->limit > 0)
    refuse(std::exchange(*seen, {}));
  cuda_check(status, "cudaStreamSynchronize");
  // A user's library may have left one unread, for which the next kernel would be blamed.
  cuda_check(cudaGetLastError(), "a kernel launch");
  if (seen->of == BadIndex::Of::none) return;
  // Work behind that of this stream may have found it, and says first of all what it is. Whatever
  // becomes of that work, the report says more.
  cudaDeviceSynchronize();
  refuse(std::exchange(*seen, {}));
}

struct Graph {
  cudaGraphExec_t work = nullptr;
  Arena::BySize memory;  // in which its ops work
};

void begin_graph(CUstream_st* stream) {
  // Relaxed: ops may ask the device for memory on the way.
  cuda_check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed),
             "cudaStreamBeginCapture");
  arena().begin_apart();
}

void* end_graph(CUstream_st* stream, bool wanted) {
  auto graph = std::make_unique<Graph>();
  graph->memory = arena().end_apart();
  cudaGraph_t recorded = nullptr;
  cudaError_t status = cudaStreamEndCapture(stream, &recorded);
  if (wanted && status == cudaSuccess)
    status = cudaGraphInstantiate(&graph->work, recorded, cudaGraphInstantiateFlagUseNodePriority);
  if (recorded != nullptr) cudaGraphDestroy(recorded);
  if (graph->work != nullptr) return graph.release();
  arena().take_back(graph->memory);
  if (wanted) cuda_check(status, "cudaGraphInstantiate");
  cudaGetLastError();  // of a graph that nobody wants any more
  return nullptr;
}

void replay(void* graph, CUstream_st* stream) {
  cuda_check(cudaGraphLaunch(static_cast<Graph*>(graph)->work, stream), "cudaGraphLaunch");
}

// Destructors call this, as unpin. Launches that are queued are still done.
void forget(void* graph, Arena& arena) {
  const std::unique_ptr<Graph> gone(static_cast<Graph*>(graph));
  cudaGraphExecDestroy(gone->work);
  arena.take_back(gone->memory);
}

// A report in the host's memory, to which kernels write what they seldom have to say, so that
// nobody has to copy it.
struct PinnedReport {
  BadIndex* place = new (pin(sizeof(BadIndex))) BadIndex;
};

// A blocking stream, which the default stream and it wait for, of the highest priority: digests on
// other streams come second.
struct OpStream {
  CUstream_st* stream = [] {
    CUstream_st* made = nullptr;
    int least = 0, greatest = 0;
    cuda_check(cudaDeviceGetStreamPriorityRange(&least, &greatest),
               "cudaDeviceGetStreamPriorityRange");
    cuda_check(cudaStreamCreateWithPriority(&made, cudaStreamDefault, greatest),
               "cudaStreamCreateWithPriority");
    return made;
  }();
};

// The same function, called with that device as the current one of the thread.
template <typename Function>
auto on_device(int index, Function function) {
  return [index, function](auto... arguments) {
    use_device(index);
    return function(arguments...);
  };
}

}  // namespace

BadIndex* bad_index_report() { return of_current_device<PinnedReport>().place; }

// Functions that destructors call, maybe after the driver has gone, set no current device.
DeviceRuntime cuda_runtime(int index) {
  use_device(index);
  bad_index_report();  // so that no step is the first to allocate it
  return {.index = index,
          .stream = of_current_device<OpStream>().stream,
          .allocate = [kept = &arena()](int64_t bytes) { return kept->allocate(bytes); },
          .release = [kept = &arena()](void* memory) { kept->release(memory); },
          .available = on_device(index, available),
          .pin = on_device(index, pin),
          .unpin = unpin,
          .copy = on_device(index, copy_bytes),
          .copy_parts = on_device(index, copy_parts_on_device),
          .fill = on_device(index, fill_on_device),
          .wait = on_device(index, wait),
          .sample = sample_on_device,
          .begin_graph = on_device(index, begin_graph),
          .end_graph = on_device(index, end_graph),
          .replay = on_device(index, replay),
          .forget = [kept = &arena()](void* graph) { forget(graph, *kept); },
          .digests = device_digests(index)};
}

}  // namespace lockstep
