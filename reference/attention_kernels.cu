// softmax_kernel: a block of threads a row, which goes over its scores three times: for the
// largest, for the sum of exponentials, and for the weights. The row stays in the second-level
// cache meanwhile.
//
// spread_kernel: sum p |v - o| is no product of matrices, and is computed as one would be without
// tensor cores. A block of threads has kRows rows of one K/V head and kDims dims. Tiles of kKeys
// keys of p and v pass through shared memory, the next one through registers meanwhile; a warp has
// four rows, a lane of it the same dims of each, whose sums and o stay in registers. Per key, row
// and dim that is an addition and a multiply-add of fp64, of which a device has a fixed number a
// cycle: the bound. What else the budget needs of a row and dim is put in place on the way out.
#include <cmath>

#include "kernels/base/check.h"
#include "reference/attention_kernels.h"

namespace lockstep {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;

void check_cuda(const char* doing, cudaError_t status) {
  check(status == cudaSuccess, "CUDA error in {} of the reference: {}", doing,
        cudaGetErrorString(status));
}

// The value of all threads of the block, which all get.
template <typename Join>
__device__ double join_block(double x, Join join) {
  __shared__ double parts[kWarps];
  for (int lane = 16; lane > 0; lane /= 2) x = join(x, __shfl_xor_sync(0xffffffff, x, lane));
  __syncthreads();  // the parts of the last call have been read
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = x;
  __syncthreads();
  x = parts[0];
  for (int warp = 1; warp < kWarps; ++warp) x = join(x, parts[warp]);
  return x;
}

struct Larger {
  __device__ double operator()(double a, double b) const { return fmax(a, b); }
};
struct Sum {
  __device__ double operator()(double a, double b) const { return a + b; }
};

__global__ void __launch_bounds__(kThreads) softmax_kernel(SoftmaxRows block) {
  const int64_t row = blockIdx.x, query = row % block.queries;
  const int64_t begin = block.seen[2 * query] - block.first_key;
  const int64_t end = block.seen[2 * query + 1] - block.first_key;
  double* const p = block.scores + row * block.keys;
  double* const squared = block.sizes + row * block.keys;
  // A thread writes what it alone reads.
  double most = -INFINITY, largest = 0;
  for (int64_t key = begin + threadIdx.x; key < end; key += kThreads) {
    most = fmax(most, p[key]);
    largest = fmax(largest, squared[key]);
  }
  most = __dmul_rn(join_block(most, Larger()), block.scale);
  largest = join_block(largest, Larger());
  double sum = 0;
  for (int64_t key = begin + threadIdx.x; key < end; key += kThreads) {
    p[key] = exp(__dmul_rn(p[key], block.scale) - most);
    sum += p[key];
  }
  sum = join_block(sum, Sum());
  double squares = 0;
  for (int64_t key = threadIdx.x; key < block.keys; key += kThreads) {
    const bool is_seen = begin <= key && key < end;
    p[key] = is_seen ? p[key] / sum : 0;
    squared[key] = p[key] * p[key];
    squares += squared[key];
  }
  squares = join_block(squares, Sum());
  if (threadIdx.x > 0) return;
  block.squares[row] = squares;
  // Maxima leave NaN out, sums do not.
  block.score[query * block.heads + row / block.queries] = isnan(sum) ? sum : largest * block.scale;
}

constexpr int kRowsEach = 4, kRows = kWarps * kRowsEach, kKeys = 8;

// Some keys of some rows and dims, of the block of threads.
template <int kPairs>
struct Tile {
  static constexpr int kDims = 64 * kPairs;
  static constexpr int kEachV = kKeys * kDims / kThreads, kEachP = kKeys * kRows / kThreads;

  double v[kKeys][kDims];
  double p[kKeys][kRows + 2];  // so that what is read as pairs is aligned, and stores spread
};

template <int kPairs>
struct InRegisters {
  using T = Tile<kPairs>;
  double v[T::kEachV], p[T::kEachP];

  // Beyond `end`, and beyond the rows and dims that there are, all is 0.
  __device__ void load(const SpreadRows& block, int64_t key, int64_t end, int64_t first_row,
                       int64_t first_dim) {
    const double* const of_head = block.v + blockIdx.y * block.v_head + first_dim;
    for (int i = 0; i < T::kEachV; ++i) {
      const int at = i * kThreads + threadIdx.x, k = at / T::kDims, dim = at % T::kDims;
      const bool is_there = key + k < end && first_dim + dim < block.dim;
      v[i] = is_there ? of_head[(key + k) * block.v_key + dim] : 0;
    }
    const int64_t rows = block.group * block.queries;
    const int64_t row = first_row + threadIdx.x / (kThreads / kRows);
    const double* const weights = block.p + (blockIdx.y * rows + row) * block.keys;
    for (int i = 0; i < T::kEachP; ++i) {
      const int64_t at = key + threadIdx.x % (kThreads / kRows) * T::kEachP + i;
      p[i] = row < rows && at < end ? weights[at] : 0;
    }
  }
  __device__ void store(Tile<kPairs>& tile) const {
    for (int i = 0; i < T::kEachV; ++i) {
      const int at = i * kThreads + threadIdx.x;
      tile.v[at / T::kDims][at % T::kDims] = v[i];
    }
    for (int i = 0; i < T::kEachP; ++i)
      tile.p[threadIdx.x % (kThreads / kRows) * T::kEachP + i][threadIdx.x / (kThreads / kRows)] =
          p[i];
  }
};

// The first key that one of the block's rows sees, and the one after the last: hidden ones have no
// weight.
struct Keys {
  int64_t begin, end;

  __device__ Keys(const SpreadRows& block, int64_t first_row) {
    const int64_t rows = block.group * block.queries;
    const int64_t row = min(first_row + threadIdx.x % 32, rows - 1);  // of 32, which each warp asks
    begin = block.seen[2 * (row % block.queries)] - block.first_key;
    end = block.seen[2 * (row % block.queries) + 1] - block.first_key;
    for (int lane = 16; lane > 0; lane /= 2) {
      begin = min(begin, __shfl_xor_sync(0xffffffff, begin, lane));
      end = max(end, __shfl_xor_sync(0xffffffff, end, lane));
    }
  }
};
static_assert(kRows == 32);

// The lane's part of a tile: what its dims add up to, of its warp's rows.
template <int kPairs>
__device__ void add_tile(const Tile<kPairs>& tile, const double (&o)[kRowsEach][2 * kPairs],
                         double (&sums)[kRowsEach][2 * kPairs]) {
  const int first = threadIdx.x / 32 * kRowsEach, lane = threadIdx.x % 32;
#pragma unroll
  for (int key = 0; key < kKeys; ++key) {
    double p[kRowsEach];
#pragma unroll
    for (int r = 0; r < kRowsEach; r += 2) {
      const double2 two = *reinterpret_cast<const double2*>(&tile.p[key][first + r]);
      p[r] = two.x, p[r + 1] = two.y;
    }
#pragma unroll
    for (int j = 0; j < kPairs; ++j) {
      const double2 v = *reinterpret_cast<const double2*>(&tile.v[key][64 * j + 2 * lane]);
#pragma unroll
      for (int r = 0; r < kRowsEach; ++r) {
        sums[r][2 * j] += p[r] * fabs(v.x - o[r][2 * j]);
        sums[r][2 * j + 1] += p[r] * fabs(v.y - o[r][2 * j + 1]);
      }
    }
  }
}

// Puts one row and dim where they belong in the result.
__device__ void put(const SpreadRows& block, int64_t row, int64_t dim, double o, double spread) {
  const double* const weighted = block.weighted + row * 2 * block.dim + dim;
  const double* const of_squares = block.of_squares + row * 2 * block.dim + dim;
  const int64_t heads = block.kv_heads * block.group;
  const int64_t at = (row % block.queries * heads + row / block.queries) * block.dim + dim;
  // sum p^2 (v - o)^2 by its expansion, which may come out just below 0 where all v are equal.
  const double squares = of_squares[block.dim] - 2 * o * of_squares[0] + o * o * block.squares[row];
  block.out[at] = o;
  block.magnitude[at] = weighted[0];
  block.spread[at] = spread;
  block.spread_squares[at] = squares < 0 ? 0 : squares;
  block.weighted_squares[at] = of_squares[block.dim];
}

template <int kPairs>
__global__ void __launch_bounds__(kThreads, 2) spread_kernel(SpreadRows block) {
  __shared__ __align__(16) Tile<kPairs> tile;
  const int64_t rows = block.group * block.queries;  // of a K/V head
  const int64_t first_row = int64_t{blockIdx.x} * kRows;
  const int64_t first_dim = int64_t{blockIdx.z} * Tile<kPairs>::kDims;
  const int64_t own_row = first_row + threadIdx.x / 32 * kRowsEach;
  const int64_t own_dim = first_dim + threadIdx.x % 32 * 2;
  const auto for_each = [&](auto visit) {
#pragma unroll
    for (int r = 0; r < kRowsEach; ++r)
#pragma unroll
      for (int d = 0; d < 2 * kPairs; ++d) {
        const int64_t row = own_row + r, dim = own_dim + d / 2 * 64 + d % 2;
        if (row < rows && dim < block.dim) visit(r, d, blockIdx.y * rows + row, dim);
      }
  };
  double o[kRowsEach][2 * kPairs] = {}, sums[kRowsEach][2 * kPairs] = {};
  for_each([&](int r, int d, int64_t row, int64_t dim) {
    o[r][d] = block.weighted[row * 2 * block.dim + block.dim + dim];
  });
  const Keys keys(block, first_row);
  InRegisters<kPairs> next;
  next.load(block, keys.begin, keys.end, first_row, first_dim);
  for (int64_t key = keys.begin; key < keys.end; key += kKeys) {
    next.store(tile);
    __syncthreads();
    if (key + kKeys < keys.end) next.load(block, key + kKeys, keys.end, first_row, first_dim);
    add_tile<kPairs>(tile, o, sums);
    __syncthreads();
  }
  for_each(
      [&](int r, int d, int64_t row, int64_t dim) { put(block, row, dim, o[r][d], sums[r][d]); });
}

}  // namespace

bool has_attention_kernels() { return true; }

void softmax_rows(const KernelQueue& queue, const SoftmaxRows& block) {
  check_cuda("softmax", cudaSetDevice(queue.gpu));
  softmax_kernel<<<static_cast<unsigned>(block.heads * block.queries), kThreads, 0,
                   static_cast<cudaStream_t>(queue.stream)>>>(block);
  check_cuda("softmax", cudaGetLastError());
}

void spread_rows(const KernelQueue& queue, const SpreadRows& block) {
  check_cuda("the spread of attention", cudaSetDevice(queue.gpu));
  const auto stream = static_cast<cudaStream_t>(queue.stream);
  const bool narrow = block.dim <= 64;
  const int64_t dims = narrow ? 64 : 128, rows = block.group * block.queries;
  const dim3 grid(static_cast<unsigned>((rows + kRows - 1) / kRows),
                  static_cast<unsigned>(block.kv_heads),
                  static_cast<unsigned>((block.dim + dims - 1) / dims));
  if (narrow)
    spread_kernel<1><<<grid, kThreads, 0, stream>>>(block);
  else
    spread_kernel<2><<<grid, kThreads, 0, stream>>>(block);
  check_cuda("the spread of attention", cudaGetLastError());
}

}  // namespace lockstep
