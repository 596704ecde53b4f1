// Digests of the tensors of a decode step, by one launch beside that of the step: each launch more
// would slow the step down. Its blocks take few of the multiprocessors that the step leaves free,
// and stay: the more there are, the slower is the step.
//
//   item    what a warp does at once: the warps take all items in turn, in the order in which the
//           step makes what they wait for, so that none waits for one behind it
//     tensor  all of a digest, hash and numbers, and the hashes of rows that are of whole blocks
//     row     the hash of one other row, where a tensor has several
//     part    of a tensor that is long: sums for its hash, numbers, exponents -> scratch
//     chain   the hash of a long tensor, following its parts
//     join    the numbers of a long tensor
//
// Memory answers late beside a step: so all that an item needs to know is read before it waits.
// The list of items is copied to the device in front of the launch, from memory of the caller.
#include <cuda_pipeline.h>

#include <algorithm>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/base/memory.h"
#include "kernels/cuda/digest_by_warp.cuh"

namespace lockstep {
namespace {

using namespace digests;
using namespace digests::by_warp;

constexpr int kBlockWarps = 12, kBlockThreads = kBlockWarps * kWarp;
constexpr int64_t kLong = 64 << 10;  // bytes, from which a tensor is cut into parts

enum class Kind : uint16_t { tensor, row, part, chain, join };
struct Item {
  Kind kind;
  uint16_t job;
  uint32_t part;  // or row
};

// The scratch of a long tensor; the first two begin as zeros.
struct LongScratch {
  uint32_t* exponents;  // [256]
  uint32_t* there;      // [parts], 1: the part is ready
  uint64_t* sums;       // [parts, kPartBlocks, 8]
  Part* parts;          // [parts]
  int64_t count;        // of a tensor that fills its room
};
struct TensorWork {
  DigestJob job;
  int64_t element;  // bytes of one
  LongScratch scratch;
};

// The lists that the device reads, all in one piece of scratch.
struct Table {
  const Item* items;
  int64_t count;
  const TensorWork* tensors;
};

// By one warp: returns when the elements up to `last` are there.
__device__ void await(const Ready& ready, int64_t last, int64_t columns, BadIndex* bad) {
  if (ready.words != nullptr) await_ready(ready, last, columns, lane(), kWarp, bad);
  __syncwarp();
}

// By one warp, of which the first lane has the hash.
__device__ void put_hash(const TensorWork& work, Input input, uint64_t hash) {
  if (lane() != 0) return;
  work.job.out->hash = hash;
  work.job.out->count = input.size() / work.element;
  if (input.rows() == 1 && work.job.row_hashes != nullptr) *work.job.row_hashes = hash;
}

__device__ void digest_tensor(const TensorWork& work, Input input, uint32_t* counts) {
  Hasher hasher(work.job, input);
  const Part all = found_in(work.job.dtype, input, 0, blocks_of(input.size()), counts, hasher);
  put_hash(work, input, hasher.end(input));
  Digest& out = *work.job.out;
  if (lane() == 0) {
    Part found = {};
    found.at = -1;
    add(found, all);  // leaves the range of what has no finite number
    put_numbers(out, found, mean_of(found), all.m2);
  }
  auto* exponents = reinterpret_cast<uint32_t*>(&out.exponents);
  each_count(counts, [&](int bin, uint32_t count) { exponents[bin] = count; });
}

__device__ void digest_part(const TensorWork& work, Input input, int64_t part, uint32_t* counts) {
  const LongScratch& to = work.scratch;
  Hasher hasher(to.sums);
  const int64_t end = min((part + 1) * kPartBlocks, blocks_of(input.size()));
  const Part all = found_in(work.job.dtype, input, part * kPartBlocks, end, counts, hasher);
  if (lane() == 0) to.parts[part] = all;
  each_count(counts, [&](int bin, uint32_t count) {
    if (count != 0) atomicAdd(&to.exponents[bin], count);
  });
  __threadfence();
  __syncwarp();
  if (lane() == 0)
    asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(&to.there[part]), "r"(1) : "memory");
}

// How many parts from `begin` on are there, up to kWarp.
__device__ int64_t parts_there(const LongScratch& scratch, int64_t begin, int64_t count) {
  uint32_t there = 0;
  if (begin + lane() < count)
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];"
                 : "=r"(there)
                 : "l"(&scratch.there[begin + lane()])
                 : "memory");
  const unsigned missing = ~__ballot_sync(~0u, there != 0);
  const int found = missing == 0 ? kWarp : __ffs(static_cast<int>(missing)) - 1;
  if (found > 0) asm volatile("fence.acq_rel.gpu;" ::: "memory");
  return found;
}

// Calls use(begin, end) for parts in turn, some at a time, once they are there.
template <typename Use>
__device__ void follow_parts(const LongScratch& scratch, int64_t count, BadIndex* bad, Use use) {
  constexpr unsigned kPause = 200;                   // ns
  constexpr int kSeconds = 10, kLooks = 20'000'000;  // that many last longer
  int looks = 0;
  for (int64_t done = 0; done < count;) {
    const int64_t more = parts_there(scratch, done, count);
    if (more == 0) {
      if (++looks == kLooks) return report(bad, BadIndex::Of::digest_wait, kSeconds, 0, blockIdx.x);
      __nanosleep(kPause);
      continue;
    }
    use(done, done + more);
    done += more;
  }
}

__device__ __noinline__ void chain_hash(const TensorWork& work, Input input, BadIndex* bad) {
  const int64_t size = input.size(), blocks = blocks_of(size);
  const xxh3::Warp warp;
  uint64_t accumulator = warp.start();
  uint64_t* const sums = room_of_warp().sums;
  follow_parts(work.scratch, parts_of(size), bad, [&](int64_t begin, int64_t end) {
    const int64_t first = begin * kPartBlocks, last = min(end * kPartBlocks, blocks);
    for (int64_t i = 2 * lane(); i < (last - first) * 8; i += 2 * kWarp)
      __pipeline_memcpy_async(&sums[i], &work.scratch.sums[first * 8 + i], 16);
    __pipeline_commit();
    __pipeline_wait_prior(0);
    __syncwarp();
    const uint64_t* own = sums + warp.own();
    if (first == 0) accumulator += *own;
    for (int64_t i = first == 0 ? 1 : 0; i < last - first; ++i)
      accumulator = warp.scrambled(accumulator, own[8 * i]);
    __syncwarp();
  });
  put_hash(work, input, Hasher(accumulator).end(input));
}

// The parts of a lane are every kWarp-th, whichever come first: sums are made in one order.
__device__ __noinline__ void join_parts(const TensorWork& work, Input input, BadIndex* bad) {
  const int64_t count = parts_of(input.size());
  auto* const kept = room_of_warp().parts;
  Part all = {};
  all.at = -1;
  follow_parts(work.scratch, count, bad, [&](int64_t begin, int64_t end) {
    const int64_t mine = begin + (lane() - begin % kWarp + kWarp) % kWarp;
    if (mine >= end) return;
    const Part part = fetched(&work.scratch.parts[mine]);
    add(all, part);
    if (mine < kJoined)
      kept[mine].finite = part.finite, kept[mine].sum = part.sum, kept[mine].m2 = part.m2;
  });
  all = warp_total(all);
  const double mean = __shfl_sync(~0u, mean_of(all), 0);
  double m2 = 0;
  for (int64_t i = lane(); i < count; i += kWarp) {
    const Part part = i < kJoined ? Part{.sum = kept[i].sum,
                                         .m2 = kept[i].m2,
                                         .finite = static_cast<uint32_t>(kept[i].finite)}
                                  : fetched(&work.scratch.parts[i]);
    m2 += deviation_of(part, mean);
  }
  m2 = warp_sum_64(m2);
  Digest& out = *work.job.out;
  if (lane() == 0) put_numbers(out, all, mean, m2);
  auto* exponents = reinterpret_cast<uint32_t*>(&out.exponents);
  for (int bin = lane(); bin < 256; bin += kWarp)
    exponents[bin] = __ldcg(&work.scratch.exponents[bin]);
}

__device__ __noinline__ void hash_row(const DigestJob& job, Input input, int64_t row) {
  const uint64_t hash = xxh3::hash(input, row * job.row_bytes, job.row_bytes);
  if (lane() == 0) job.row_hashes[row] = hash;
}

// The element before which all must be there that an item of a tensor reads; 0: there is nothing
// to do.
__device__ int64_t end_of(const TensorWork& work, const Item& item, Input input) {
  const int64_t elements = input.size() / work.element;
  const int64_t columns = work.job.row_bytes / work.element;
  if (item.kind == Kind::row)  // one row's is the tensor's
    return input.rows() == 1 || item.part >= input.rows() ? 0 : (item.part + 1) * columns;
  if (item.kind == Kind::part)
    return item.part >= parts_of(input.size())
               ? 0
               : min((item.part + 1) * kPartBytes / work.element, elements);
  return elements;
}

__device__ void do_item(const Table& table, const Item item, BadIndex* bad) {
  const TensorWork work = table.tensors[item.job];
  const Input input(work.job);
  if (item.kind == Kind::join) return join_parts(work, input, bad);
  if (item.kind == Kind::chain) return chain_hash(work, input, bad);
  uint32_t* const counts = cleared_counts();
  const int64_t end = end_of(work, item, input);
  if (end == 0 && item.kind != Kind::tensor && item.kind != Kind::part) return;
  await(work.job.ready, end - 1, work.job.row_bytes / work.element, bad);
  if (item.kind == Kind::row) return hash_row(work.job, input, item.part);
  if (item.kind == Kind::part)
    digest_part(work, input, item.part, counts);
  else
    digest_tensor(work, input, counts);
}

__global__ __launch_bounds__(kBlockThreads, 1) void digest_all(const Table table, BadIndex* bad) {
  const int64_t warps = int64_t{gridDim.x} * kBlockWarps;
  // Neighbours are on different multiprocessors.
  for (int64_t i = threadIdx.x / kWarp * gridDim.x + blockIdx.x; i < table.count; i += warps) {
    do_item(table, table.items[i], bad);
    __syncwarp();
  }
}

int64_t aligned(int64_t bytes) { return (bytes + 15) / 16 * 16; }

// The work of a launch. Its list is what the device has a copy of: zeros, then items, and tensors;
// what it writes besides lies behind.
class Plan {
 public:
  explicit Plan(std::span<const DigestJob> jobs) {
    for (const DigestJob& job : jobs) add(job);
    // Behind all parts, so that no warp has one to do yet while it follows others.
    for (size_t i = 0; i < tensors_.size(); ++i) {
      if (tensors_[i].scratch.count == 0) continue;
      for (const Kind kind : {Kind::chain, Kind::join})
        items_.push_back({kind, static_cast<uint16_t>(i), 0});
    }
    for (const TensorWork& work : tensors_) {
      zeros_ += work.scratch.count == 0 ? 0 : (256 + work.scratch.count) * int64_t{4};
      room_ += work.scratch.count * (kPartBlocks * 64 + int64_t{sizeof(Part)});
    }
    zeros_ = aligned(zeros_);
  }

  int64_t list_bytes() const { return zeros_ + aligned(bytes_of(items_)) + bytes_of(tensors_); }
  // Measured, beside the next step: of one or two rows 3 or 4 blocks are best, and with more of
  // them a step of two takes now 414 us, now 477; of four and eight rows 8 are.
  unsigned blocks() const {
    int64_t rows = 1;
    for (const TensorWork& work : tensors_) rows = std::max(rows, work.job.most_rows);
    return rows <= 2 ? 4 : 8;
  }

  int64_t scratch_bytes() const { return aligned(list_bytes()) + room_; }

  // Writes the list of which `scratch` is to have a copy, and says where everything is there.
  Table write(char* list, char* scratch) {
    place_long_tensors(scratch);
    std::fill_n(list, zeros_, 0);
    int64_t at = zeros_;
    const auto put = [&]<typename T>(const std::vector<T>& from) {
      std::copy_n(reinterpret_cast<const char*>(from.data()), bytes_of(from), list + at);
      return reinterpret_cast<const T*>(scratch + std::exchange(at, aligned(at + bytes_of(from))));
    };
    Table table{.items = put(items_), .count = std::ssize(items_)};
    table.tensors = put(tensors_);
    return table;
  }

 private:
  template <typename T>
  static int64_t bytes_of(const std::vector<T>& list) {
    static_assert(sizeof(T) % 8 == 0 && std::is_trivially_copyable_v<T>);
    return std::ssize(list) * int64_t{sizeof(T)};
  }

  void place_long_tensors(char* scratch) {
    char *zero = scratch, *room = scratch + aligned(list_bytes());
    const auto take = []<typename T>(char*& from, T*& to, int64_t count) {
      to = reinterpret_cast<T*>(std::exchange(from, from + count * int64_t{sizeof(T)}));
    };
    for (TensorWork& work : tensors_) {
      LongScratch& s = work.scratch;
      if (s.count == 0) continue;
      take(zero, s.exponents, 256);
      take(zero, s.there, s.count);
      take(room, s.sums, s.count * kPartBlocks * 8);  // 16 bytes at a time
    }
    for (TensorWork& work : tensors_) take(room, work.scratch.parts, work.scratch.count);
  }

  void add(const DigestJob& job) {
    check(tensors_.size() <= UINT16_MAX, "{} digests are too many for one launch", tensors_.size());
    const auto index = static_cast<uint16_t>(tensors_.size());
    const int64_t most = job.most_rows * job.row_bytes;
    TensorWork& work = tensors_.emplace_back(TensorWork{job, size_of(job.dtype), {}});
    const auto put = [&](Kind kind, int64_t count) {
      for (uint32_t i = 0; i < count; ++i) items_.push_back({kind, index, i});
    };
    if (most < kLong) {
      put(Kind::tensor, 1);
    } else {
      work.scratch.count = (most + kPartBytes - 1) / kPartBytes;
      put(Kind::part, work.scratch.count);
    }
    const bool on_the_way = most < kLong && has_whole_blocks(job);
    if (job.most_rows > 1 && job.row_hashes != nullptr && !on_the_way)
      put(Kind::row, job.most_rows);
  }

  std::vector<Item> items_;
  std::vector<TensorWork> tensors_;
  int64_t zeros_ = 0, room_ = 0;  // bytes that begin as zeros, and that are written
};

}  // namespace

void digest_meanwhile(std::span<const DigestJob> jobs, void* scratch, void* list,
                      CUstream_st* stream) {
  Plan plan(jobs);
  if (plan.list_bytes() == 0) return;
  const Table table = plan.write(static_cast<char*>(list), static_cast<char*>(scratch));
  cuda_check(cudaMemcpyAsync(scratch, list, plan.list_bytes(), cudaMemcpyHostToDevice, stream),
             "cudaMemcpyAsync");
  constexpr unsigned kShared = kBlockWarps * sizeof(Room);
  grant_shared<digest_all>(kShared);
  digest_all<<<plan.blocks(), kBlockThreads, kShared, stream>>>(table, bad_index_report());
  cuda_check(cudaGetLastError(), "the launch of digests beside a step");
}

MeanwhileRoom meanwhile_room(std::span<const DigestJob> jobs) {
  const Plan plan(jobs);
  return {plan.scratch_bytes(), plan.list_bytes()};
}

}  // namespace lockstep
