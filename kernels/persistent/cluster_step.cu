// The kernel of a decode step by clusters, and its launch.
#include <cudaTypedefs.h>

#include <algorithm>

#include "kernels/cuda/digest.cuh"
#include "kernels/persistent/cluster_computer.cuh"
#include "kernels/persistent/cluster_copies.cuh"
#include "kernels/persistent/cluster_helpers.cuh"
#include "kernels/persistent/cluster_pack.cuh"
#include "kernels/persistent/cluster_roles.cuh"
#include "kernels/persistent/cluster_step.cuh"

namespace lockstep::persistent {
namespace clustered {
namespace {

// The barriers and what does not depend on which cluster this is.
template <int kRequests>
__device__ void prepare(const ClusterStep& c, Shared<kRequests>& shared) {
  const Step& a = c.step;
  const int thread = static_cast<int>(threadIdx.x);
  // Word by word, since threads that read arguments far apart are served one after another.
  const auto* from = reinterpret_cast<const uint64_t*>(a.layer);
  auto* to = reinterpret_cast<uint64_t*>(shared.layers);
  const int words = a.layers * static_cast<int>(sizeof(Layer) / sizeof(uint64_t));
  for (int i = thread; i < words; i += kBlockThreads) to[i] = from[i];
  if (thread != 0) return;
  const int number = multiprocessor_number();
  shared.role = number < kMostMultiprocessors ? c.role[number] : ClusterStep::kNone;
  for (int i = 0; i < Shared<kRequests>::kSlots; ++i) {
    barrier_init(shared_address(shared.full + i), 1);
    barrier_init(shared_address(shared.empty + i), kWarps);
  }
  for (uint64_t* barrier : {&shared.stream_came, &shared.qkv_came, &shared.shares_came,
                            &shared.attention_came, &shared.act_came})
    barrier_init(shared_address(barrier), 1);
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  barrier_expect(shared_address(&shared.stream_came), kRequests * kStreamBytes);
  barrier_expect(shared_address(&shared.qkv_came), kRequests * kQkvBytes);
  barrier_expect(shared_address(&shared.shares_came),
                 kRequests * Sharing<kRequests>::kShares * kSharesBytes);
  barrier_expect(shared_address(&shared.attention_came), kRequests * kAttentionBytes);
}

// The cluster that its blocks play: what is known of one of their multiprocessors, all on one GPC.
template <int kRequests>
__device__ int cluster_of(const Shared<kRequests>& shared) {
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  uint32_t role;
  asm volatile("ld.shared::cluster.u32 %0, [%1];"
               : "=r"(role)
               : "r"(address_in(lane % kClusterBlocks, shared_address(&shared.role)))
               : "memory");
  const unsigned known = __ballot_sync(~0u, role < kClusters);
  if (known == 0) return static_cast<int>(blockIdx.x) / kClusterBlocks;
  return static_cast<int>(__shfl_sync(~0u, role, __ffs(static_cast<int>(known)) - 1));
}

// The rest of it: where this block's tiles of a request are, its slot, and its angles; kEach
// threads each.
template <int kRequests>
__device__ void prepare(const Step& a, Shared<kRequests>& shared, const Place& place) {
  constexpr int kEach = kBlockThreads / kRequests;
  const int request = static_cast<int>(threadIdx.x) / kEach;
  constexpr int kMost = Shared<kRequests>::kMostTiles;
  const int thread = static_cast<int>(threadIdx.x) % kEach;
  const Tiles tiles(a, request, place.member, place.attends, kMost);
  if (thread == 0) {
    shared.tiles_of(request) = tiles;
    const int64_t slot = a.slots[request];
    if (tiles.has_last && slot >= a.pool) report(a.bad, BadIndex::Of::slot, a.pool, slot, request);
    shared.slots[request] = slot < a.pool ? slot : -1;
  }
  const int64_t pages = a.pool / a.page_size;
  for (int i = thread; i < tiles.count; i += kEach) {
    const int position = (tiles.newest - kTeam * i) * kTile;
    const int entry = position / a.page_size, page = a.table[request * a.table_width + entry];
    const bool is_right = page >= 0 && page < pages;
    if (!is_right) report(a.bad, BadIndex::Of::attended_page, pages, page, entry);
    shared.tiles[request][i] = is_right ? page * a.page_size + position % a.page_size : -1;
  }
  if (!place.attends) return;
  for (int i = thread; i < kDim / 2; i += kEach) {
    const Rotation turn({a.cos, a.sin, a.positions, a.entries, kDim / 2, a.bad}, request, i);
    shared.angles[request][i] = {turn.cos, turn.sin};
    if (place.block() != 0 || a.rope_cos_out == nullptr) continue;
    a.rope_cos_out[request * (kDim / 2) + i] = turn.cos;
    a.rope_sin_out[request * (kDim / 2) + i] = turn.sin;
  }
}

// The last warp of all to end says which token is best, and leaves all as the next step needs it.
__device__ void end(const Step& a, uint32_t epoch) {
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  __threadfence();
  uint32_t done = 0;
  if (lane == 0) done = atomicAdd(&a.control->done, 1u);
  if (__shfl_sync(~0u, done, 0) != 2 * kBlocks - 1) return;
  __threadfence();
  if (lane < a.rows)
    a.token[lane] =
        static_cast<int32_t>(~static_cast<uint32_t>(atomicExch(&a.control->best[lane], 0ull)));
  __syncwarp();
  if (lane != 0) return;
  if (a.progress != nullptr) {
    __threadfence();
    store_word(a.progress + a.layers + columns_words(a), 1);
  }
  report_abort(a);
  a.control->done = 0;
  a.control->aborted = 0;
  a.control->cluster_epoch = epoch + a.layers;
}

template <bool kAttends, int kRequests>
__device__ void help(const ClusterStep& c, Shared<kRequests>& shared, const Place& place) {
  const int helper = static_cast<int>(threadIdx.x / kWarp) - kWarps;
  if (helper == 1) {
    if constexpr (Sharing<kRequests>::kByWarps)
      SumMaker<kAttends, 2, kRequests>(c, shared, place).run();
    else
      StreamKeeper(c, shared, place).run();
  } else if (helper == 2) {
    SumMaker<kAttends, 0, kRequests>(c, shared, place).run();
  } else {
    SumMaker<kAttends, 1, kRequests>(c, shared, place).run();
  }
  if (helper > 1) end(c.step, shared.epoch);
}

// The registers of a multiprocessor go to the warps that hold weights.
template <int kRequests>
__global__ void __launch_bounds__(kBlockThreads, 1)
    cluster_step(const __grid_constant__ ClusterStep c) {
  extern __shared__ __align__(1024) char memory[];
  Shared<kRequests>& shared = *reinterpret_cast<Shared<kRequests>*>(memory);
  prepare(c, shared);
  __syncthreads();
  sync_cluster();
  const Place place(c.step, cluster_of(shared));
  prepare(c.step, shared, place);
  if (threadIdx.x == 0) {
    barrier_expect(shared_address(&shared.act_came), kRequests * place.units() * kUnitBytes);
    shared.epoch = load_word(&c.step.control->cluster_epoch);
  }
  __syncthreads();
  const int warp = static_cast<int>(threadIdx.x / kWarp);
  if (warp >= kWarps) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 80;");
    if (warp > kWarps)
      place.attends ? help<true, kRequests>(c, shared, place)
                    : help<false, kRequests>(c, shared, place);
    else if (threadIdx.x == kThreads)
      CopyAhead<kRequests>(c, shared, place).run();
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 208;");
    if (place.attends)
      ClusterComputer<true, kRequests>(c, shared, place).run();
    else
      ClusterComputer<false, kRequests>(c, shared, place).run();
  }
  // Nobody stores into a block that has ended.
  __syncwarp();
  sync_cluster();
}

// A launch of all clusters, on a stream.
struct ClusterLaunch {
  cudaLaunchAttribute attributes[2] = {};
  cudaLaunchConfig_t config = {};
  ClusterLaunch(CUstream_st* stream, unsigned shared) {
    attributes[0].id = cudaLaunchAttributeClusterDimension;
    attributes[0].val.clusterDim = {kClusterBlocks, 1, 1};
    config.gridDim = kBlocks;
    config.blockDim = kBlockThreads;
    config.dynamicSmemBytes = shared;
    config.stream = stream;
    config.attrs = attributes;
    config.numAttrs = 1;
  }
  ClusterLaunch(const ClusterLaunch&) = delete;
  // The event is reached when all blocks have begun.
  void say_begun(cudaEvent_t event) {
    attributes[1].id = cudaLaunchAttributeLaunchCompletionEvent;
    attributes[1].val.launchCompletionEvent.event = event;
    config.numAttrs = 2;
  }
};

// A device, as it was found once.
struct ClusterDevice {
  bool fits = false;
  unsigned char role[kMostMultiprocessors];

  ClusterDevice() {
    std::fill_n(role, kMostMultiprocessors, ClusterStep::kNone);
    const int shared =
        number_of_device(cudaDevAttrMaxSharedMemoryPerBlockOptin, "cudaDeviceGetAttribute");
    if (compute_capability() != 90 || shared < static_cast<int>(sizeof(Shared<1>))) return;
    allow<cluster_step<1>>(sizeof(Shared<1>));
    allow<cluster_step<2>>(sizeof(Shared<2>));
    allow<cluster_step<4>>(sizeof(Shared<4>));
    allow<cluster_step<8>>(sizeof(Shared<8>));
    allow<find_blocks>(sizeof(Shared<1>));
    int most = 0;
    const ClusterLaunch launch(nullptr, sizeof(Shared<1>));
    cuda_check(cudaOccupancyMaxActiveClusters(&most, cluster_step<1>, &launch.config),
               "cudaOccupancyMaxActiveClusters");
    fits = most >= kClusters;
    // Where more fit, a cluster has no GPC of its own.
    if (most == kClusters) deal();
  }

 private:
  template <auto kKernel>
  static void allow(unsigned shared) {
    grant_shared<kKernel>(shared);
    cuda_check(cudaFuncSetAttribute(kKernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1),
               "cudaFuncSetAttribute(NonPortableClusterSizeAllowed)");
  }

  // Other work may keep clusters from being there at once; then it is tried again.
  void deal() {
    constexpr int kTries = 8;
    int* found = nullptr;
    cuda_check(cudaMallocHost(&found, kBlocks * sizeof(int)), "cudaMallocHost");
    const ClusterLaunch launch(cudaStreamPerThread, sizeof(Shared<1>));
    for (int i = 0; i < kTries; ++i) {
      cuda_check(cudaLaunchKernelEx(&launch.config, find_blocks, found), "find_blocks");
      cuda_check(cudaStreamSynchronize(cudaStreamPerThread), "find_blocks");
      if (deal_roles(found, role)) break;
    }
    cuda_check(cudaFreeHost(found), "cudaFreeHost");
  }
};

// The driver's function, which this library is not linked with.
struct EncodeMap {
  PFN_cuTensorMapEncodeTiled_v12000 encode = nullptr;
  EncodeMap() {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result = {};
    cuda_check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000,
                                                cudaEnableDefault, &result),
               "cudaGetDriverEntryPointByVersion(cuTensorMapEncodeTiled)");
    check(result == cudaDriverEntryPointSuccess,
          "the CUDA driver has no cuTensorMapEncodeTiled, which decode_step wants: use a driver of "
          "CUDA 12 or later, or --executor ops");
    encode = reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(found);
  }
};

CUtensorMap map_of(bf16* cache, int64_t pool) {
  const cuuint64_t sizes[3] = {kDim, kKvHeads, static_cast<cuuint64_t>(pool)};
  const cuuint64_t strides[2] = {kDim * 2, kKvHeads * kDim * 2};
  const cuuint32_t box[3] = {kDim, 1, kTile}, steps[3] = {1, 1, 1};
  CUtensorMap map;
  const CUresult status = of_current_device<EncodeMap>().encode(
      &map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, cache, sizes, strides, box, steps,
      CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  check(status == CUDA_SUCCESS, "CUDA error {} in cuTensorMapEncodeTiled",
        static_cast<int>(status));
  return map;
}

static_assert(2 * (kAttending + kClusters) == 22);  // of cluster_sums_bytes
ClusterStep arguments_of(const Step& step, const TensorView& packed, char* sums) {
  ClusterStep c;
  c.step = step;
  for (int l = 0; l < step.layers; ++l)
    c.cache[l][0] = map_of(step.layer[l].cache_k, step.pool),
    c.cache[l][1] = map_of(step.layer[l].cache_v, step.pool);
  c.packed = packed.as<const char>();
  c.o_sums = reinterpret_cast<uint32_t*>(sums);
  c.down_sums = c.o_sums + 2 * kAttending * step.rows * kHidden;
  std::copy_n(of_current_device<ClusterDevice>().role, kMostMultiprocessors, c.role);
  return c;
}

template <int kRequests>
void launch(CUstream_st* stream, const ClusterStep& arguments) {
  ClusterLaunch launched(stream, sizeof(Shared<kRequests>));
  if (arguments.step.progress != nullptr) launched.say_begun(step_begun());
  cuda_check(cudaLaunchKernelEx(&launched.config, cluster_step<kRequests>, arguments),
             "decode_step");
}

}  // namespace
}  // namespace clustered

bool device_fits_clusters() { return of_current_device<clustered::ClusterDevice>().fits; }

void pack_for_clusters(CUstream_st* stream, const Step& step, const TensorView& packed) {
  using namespace clustered;
  const auto slots = static_cast<unsigned>(packed.bytes() / kSlotBytes);
  pack_weights<<<slots, kSlotBytes / 16, 0, stream>>>(arguments_of(step, packed, nullptr),
                                                      packed.as<uint4>());
  cuda_check(cudaGetLastError(), "decode_step");
}

void launch_clusters(CUstream_st* stream, const Step& step, const TensorView& packed, char* sums) {
  using namespace clustered;
  const ClusterStep arguments = arguments_of(step, packed, sums);
  if (step.rows == 1)
    launch<1>(stream, arguments);
  else if (step.rows == 2)
    launch<2>(stream, arguments);
  else if (step.rows == 4)
    launch<4>(stream, arguments);
  else
    launch<8>(stream, arguments);
}

}  // namespace lockstep::persistent
