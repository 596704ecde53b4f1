// The streams and events of a device's digests, and the maker that is made of them.
#include "kernels/cuda/digest.cuh"

namespace lockstep {
namespace {

void* record_event(CUstream_st* stream) {
  cudaEvent_t event = nullptr;
  cuda_check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming | cudaEventBlockingSync),
             "cudaEventCreateWithFlags");
  cuda_check(cudaEventRecord(event, stream), "cudaEventRecord");
  return event;
}

void wait_event(void* recorded) {
  auto* event = static_cast<cudaEvent_t>(recorded);
  const cudaError_t status = cudaEventSynchronize(event);
  cudaEventDestroy(event);
  cuda_check(status, "cudaEventSynchronize");
}

cudaEvent_t new_event() {
  cudaEvent_t made = nullptr;
  cuda_check(cudaEventCreateWithFlags(&made, cudaEventDisableTiming), "cudaEventCreateWithFlags");
  return made;
}
// One event of a device serves all calls, because a wait refers to what the event recorded at that
// time.
struct StreamEvent {
  cudaEvent_t event = new_event();
};
struct BegunEvent {
  cudaEvent_t event = new_event();
};
struct OpsEvent {
  cudaEvent_t event = new_event();
};

void stream_wait(CUstream_st* later, CUstream_st* earlier) {
  cudaEvent_t event = of_current_device<StreamEvent>().event;
  cuda_check(cudaEventRecord(event, earlier), "cudaEventRecord");
  cuda_check(cudaStreamWaitEvent(later, event), "cudaStreamWaitEvent");
}

// Within a graph only a kernel can wait for another one to begin, and what follows it goes on.
__global__ void follow_begun() {}

void wait_begun(CUstream_st* later) {
  cuda_check(cudaStreamWaitEvent(later, step_begun()), "cudaStreamWaitEvent");
  follow_begun<<<1, 1, 0, later>>>();
  cuda_check(cudaGetLastError(), "the launch that follows a step");
}

void mark_ops(CUstream_st* ops) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  cuda_check(cudaStreamIsCapturing(ops, &status), "cudaStreamIsCapturing");
  const bool captures = status != cudaStreamCaptureStatusNone;
  cuda_check(cudaEventRecordWithFlags(of_current_device<OpsEvent>().event, ops,
                                      captures ? cudaEventRecordExternal : cudaEventRecordDefault),
             "cudaEventRecordWithFlags");
}

CUstream_st* new_stream(int priority = 0) {
  CUstream_st* made = nullptr;
  cuda_check(cudaStreamCreateWithPriority(&made, cudaStreamNonBlocking, priority),
             "cudaStreamCreateWithPriority");
  return made;
}
struct DigestStreams {
  // The launch beside a step wants whole multiprocessors, before caches take all of them.
  CUstream_st* digest_stream = new_stream(-1);
  CUstream_st* cache_digest_stream = new_stream();
  CUstream_st* result_stream = new_stream();
  CUstream_st* pass_streams[2] = {new_stream(-1), new_stream(-1)};
  CUstream_st* download_stream = new_stream();
};

void follow_ops(CUstream_st* later) {
  cuda_check(cudaStreamWaitEvent(later, of_current_device<OpsEvent>().event),
             "cudaStreamWaitEvent");
}

}  // namespace

cudaEvent_t step_begun() { return of_current_device<BegunEvent>().event; }

DigestMaker device_digests(int index) {
  use_device(index);
  const auto& streams = of_current_device<DigestStreams>();
  const auto here = [index](auto function) {
    return [index, function](auto... arguments) {
      // A thread works on device 0 until it says otherwise, and its first call takes memory there.
      use_device(index);
      return function(arguments...);
    };
  };
  return {.digest = here(make_digests),
          .scratch_bytes = digest_scratch_bytes,
          .hash_caches = here(hash_caches),
          .meanwhile = here(digest_meanwhile),
          .meanwhile_room = meanwhile_room,
          .digest_stream = streams.digest_stream,
          .cache_digest_stream = streams.cache_digest_stream,
          .stream_wait = here(stream_wait),
          .download_stream = streams.download_stream,
          .result_stream = streams.result_stream,
          .pass_streams = {streams.pass_streams[0], streams.pass_streams[1]},
          .mark_ops = here(mark_ops),
          .follow_ops = here(follow_ops),
          .wait_begun = here(wait_begun),
          .record_event = here(record_event),
          .wait_event = here(wait_event)};
}

}  // namespace lockstep
