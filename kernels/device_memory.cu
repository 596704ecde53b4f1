#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <utility>

#include "kernels/device_memory.cuh"

namespace lockstep {
namespace {

using BySize = std::multimap<int64_t, void*>;  // by bytes

// Keeps what is released, by size, for the next who wants that much.
class Arena {
 public:
  void* allocate(int64_t bytes);
  void release(void* memory);
  int64_t available();

  // From the first call to the second, what the calling thread releases is handed out to it again,
  // but then belongs to whoever called: a graph writes there whenever it is replayed. take_back
  // ends that. What other threads release meanwhile no graph has seen.
  void begin_apart();
  BySize end_apart();
  void take_back(const BySize& apart);

 private:
  bool keeps_apart() const { return apart_for_ == std::this_thread::get_id(); }
  static void* take(BySize& from, int64_t bytes);
  void* ask_device(int64_t bytes);
  void give_back_all();

  std::mutex mutex_;
  BySize free_, apart_;
  std::thread::id apart_for_;                    // none: nobody
  std::unordered_map<void*, int64_t> bytes_of_;  // of everything that the device gave
};

// The smallest that is large enough, unless it is twice that: so passes of any length share what
// the longest took, and what is in use takes less than twice what was asked for.
void* Arena::take(BySize& from, int64_t bytes) {
  const auto kept = from.lower_bound(bytes);
  if (kept == from.end() || kept->first >= 2 * bytes) return nullptr;
  void* memory = kept->second;
  from.erase(kept);
  return memory;
}

void* Arena::allocate(int64_t bytes) {
  const std::lock_guard lock(mutex_);
  if (keeps_apart())
    if (void* kept = take(apart_, bytes)) return kept;
  if (void* kept = take(free_, bytes)) return kept;
  void* memory = ask_device(bytes);
  if (memory == nullptr && !free_.empty()) {
    give_back_all();
    memory = ask_device(bytes);
  }
  if (memory != nullptr) bytes_of_[memory] = bytes;
  return memory;
}

// Null when the device has not that much left. Other trouble throws.
void* Arena::ask_device(int64_t bytes) {
  void* memory = nullptr;
  const cudaError_t status = cudaMalloc(&memory, static_cast<size_t>(bytes));
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // else the next launch would report this
    return nullptr;
  }
  cuda_check(status, "memory");
  return memory;
}

// Called by destructors, also after the driver has gone: there is nobody to tell.
void Arena::release(void* memory) {
  const std::lock_guard lock(mutex_);
  (keeps_apart() ? apart_ : free_).emplace(bytes_of_.at(memory), memory);
}

void Arena::begin_apart() {
  const std::lock_guard lock(mutex_);
  apart_for_ = std::this_thread::get_id();
}

BySize Arena::end_apart() {
  const std::lock_guard lock(mutex_);
  apart_for_ = {};
  return std::exchange(apart_, {});
}

void Arena::take_back(const BySize& apart) {
  const std::lock_guard lock(mutex_);
  free_.insert(apart.begin(), apart.end());
}

void Arena::give_back_all() {
  for (const auto& [bytes, memory] : free_) {
    cuda_check(cudaFree(memory), "to take memory back");
    bytes_of_.erase(memory);
  }
  free_.clear();
}

int64_t Arena::available() {
  const std::lock_guard lock(mutex_);
  size_t free_bytes = 0, total = 0;
  cuda_check(cudaMemGetInfo(&free_bytes, &total), "how much memory is free");
  auto bytes = static_cast<int64_t>(free_bytes);
  for (const auto& kept : free_) bytes += kept.first;
  return bytes;
}

// Never destroyed: tensors of static storage may be released after it.
Arena& arena() {
  static auto* the_arena = new Arena;
  return *the_arena;
}

void* pin(int64_t bytes) {
  void* memory = nullptr;
  cuda_check(cudaMallocHost(&memory, static_cast<size_t>(bytes)), "pinned memory of the host");
  return memory;
}

// Called by destructors, also after the driver has gone: there is nobody to tell.
void unpin(void* memory) { cudaFreeHost(memory); }

void copy(void* to, const void* from, int64_t bytes, CUstream_st* stream) {
  cuda_check(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault, stream),
             "a copy");
}

void wait(CUstream_st* stream) {
  cuda_check(cudaStreamSynchronize(stream), "the end of the work of a stream");
  // A user's library may have left one unread, for which the next kernel would be blamed.
  cuda_check(cudaGetLastError(), "a launch");
  BadIndex* seen = bad_index_report();
  if (seen->of == BadIndex::Of::none) return;
  refuse(std::exchange(*seen, {}));
}

struct Graph {
  cudaGraphExec_t work = nullptr;
  BySize memory;  // in which its ops work
};

void begin_graph(CUstream_st* stream) {
  // Relaxed: ops may ask the device for memory on the way.
  cuda_check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed), "to begin a graph");
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
  if (wanted) cuda_check(status, "a graph of what was queued");
  cudaGetLastError();  // of a graph that nobody wants any more
  return nullptr;
}

void replay(void* graph, CUstream_st* stream) {
  cuda_check(cudaGraphLaunch(static_cast<Graph*>(graph)->work, stream), "the launch of a graph");
}

// Called by destructors, as Arena::release. What is queued of it is still done.
void forget(void* graph) {
  const std::unique_ptr<Graph> gone(static_cast<Graph*>(graph));
  cudaGraphExecDestroy(gone->work);
  arena().take_back(gone->memory);
}

}  // namespace

// In the host's memory, to which kernels write what they seldom have to say, so that nobody has to
// copy it.
BadIndex* bad_index_report() {
  static auto* place = new (pin(sizeof(BadIndex))) BadIndex;
  return place;
}

DeviceMemory device_memory() {
  // One that waits for the default stream, and it for this one; what works beside it comes second.
  static CUstream_st* stream = [] {
    CUstream_st* made = nullptr;
    int least = 0, greatest = 0;
    cuda_check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "the priorities of streams");
    cuda_check(cudaStreamCreateWithPriority(&made, cudaStreamDefault, greatest), "a stream");
    return made;
  }();
  return {.number = current_device(),
          .stream = stream,
          .allocate = [](int64_t bytes) { return arena().allocate(bytes); },
          .release = [](void* memory) { arena().release(memory); },
          .available = [] { return arena().available(); },
          .pin = pin,
          .unpin = unpin,
          .copy = copy,
          .wait = wait,
          .sample = sample_on_device,
          .begin_graph = begin_graph,
          .end_graph = end_graph,
          .replay = replay,
          .forget = forget};
}

}  // namespace lockstep
