// A block of 1024 threads draws one token, with the filters of Hugging Face's logits processors and
// without sorting the vocabulary. A cut (top-k, top-p) is the largest number down to which the
// weights add up to what is wanted: it is found digit by digit, two bits of a number's ordered 64
// bits in each of 32 rounds over the row. Probabilities relative to the largest are counted in
// whole units of 2^-44, so that their sums are exact in whatever order threads add them, and a draw
// is the same on every run.
#include <vector>

#include "kernels/base/memory.h"
#include "kernels/base/sample.h"
#include "kernels/cuda/device_runtime.cuh"

namespace lockstep {
namespace {

constexpr int kThreads = 1024;
constexpr double kUnits = 0x1p44;  // in which a probability relative to the largest is counted
constexpr int64_t kMostVocab = 1 << 18;  // times kUnits: less than 2^63
constexpr double kNone = -INFINITY;

// The reduction over the threads of a block, for all of them.
template <typename Value, typename Join>
__device__ Value block_join(Value mine, Join join) {
  __shared__ Value warps[kThreads / kWarp];
  __syncthreads();  // before what the last call left is overwritten
  for (int offset = kWarp / 2; offset > 0; offset /= 2)
    mine = join(mine, __shfl_xor_sync(~0u, mine, offset));
  if (threadIdx.x % kWarp == 0) warps[threadIdx.x / kWarp] = mine;
  __syncthreads();
  mine = warps[threadIdx.x % kWarp];
  for (int offset = kWarp / 2; offset > 0; offset /= 2)
    mine = join(mine, __shfl_xor_sync(~0u, mine, offset));
  return mine;
}

__device__ uint64_t block_sum(uint64_t mine) {
  return block_join(mine, [](uint64_t a, uint64_t b) { return a + b; });
}

// The first NaN of a row of numbers, else the first of the largest: as kernels/argmax.h.
struct First {
  double value;
  int64_t index;
};
template <typename Number>
__device__ First block_first(int64_t count, Number number) {
  First best = {kNone, INT64_MAX};
  const auto first = [](const First& a, const First& b) {
    if (isnan(a.value) != isnan(b.value)) return isnan(a.value) ? a : b;
    if (isnan(a.value) || a.value == b.value) return a.index < b.index ? a : b;
    return a.value > b.value ? a : b;
  };
  for (int64_t i = threadIdx.x; i < count; i += kThreads) best = first(best, {number(i), i});
  __shared__ First warps[kThreads / kWarp];
  const auto of_warp = [&] {
    for (int offset = kWarp / 2; offset > 0; offset /= 2)
      best = first(best, {__shfl_xor_sync(~0u, best.value, offset),
                          __shfl_xor_sync(~0u, best.index, offset)});
  };
  __syncthreads();
  of_warp();
  if (threadIdx.x % kWarp == 0) warps[threadIdx.x / kWarp] = best;
  __syncthreads();
  best = warps[threadIdx.x % kWarp];
  of_warp();
  return best;
}

// Numbers in the order of these; a NaN is not one.
__device__ uint64_t key_of(double x) {
  const uint64_t bits = __double_as_longlong(x);
  return bits >> 63 != 0 ? ~bits : bits | uint64_t{1} << 63;
}

// The largest key down to which the weights add up to `wanted`: to at most all of them.
template <typename Weight>
__device__ uint64_t key_that_reaches(const double* x, int64_t count, uint64_t wanted,
                                     Weight weight) {
  uint64_t key = 0;
  for (int shift = 62; shift >= 0; shift -= 2) {
    uint64_t sums[3] = {};  // down to the key with the next two bits 1, 2 and 3
    for (int64_t i = threadIdx.x; i < count; i += kThreads) {
      const uint64_t at = key_of(x[i]);
      if (at < key + (uint64_t{1} << shift)) continue;
      const uint64_t w = weight(x[i]);
#pragma unroll
      for (uint64_t d = 0; d < 3; ++d)
        if (at >= key + ((d + 1) << shift)) sums[d] += w;
    }
    uint64_t digit = 0;
#pragma unroll
    for (uint64_t d = 0; d < 3; ++d)
      if (block_sum(sums[d]) >= wanted) digit = d + 1;
    key += digit << shift;
  }
  return key;
}

// exp(x), of numbers whose largest is 0, counted.
__device__ uint64_t units_of(double x) { return llrint(exp(x) * kUnits); }

__device__ void keep_top_k(double* x, int64_t count, int64_t k) {
  if (k == 0 || k >= count) return;
  const uint64_t least =
      key_that_reaches(x, count, static_cast<uint64_t>(k), [](double) { return uint64_t{1}; });
  for (int64_t i = threadIdx.x; i < count; i += kThreads)
    if (key_of(x[i]) < least) x[i] = kNone;
}

// How many of the threads before this one say so.
__device__ int threads_before(bool yes) {
  __shared__ int warps[kThreads / kWarp];
  const unsigned lanes = __ballot_sync(~0u, yes);
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  __syncthreads();
  if (lane == 0) warps[warp] = __popc(lanes);
  __syncthreads();
  int before = __popc(lanes & ((1u << lane) - 1));
  for (int w = 0; w < warp; ++w) before += warps[w];
  return before;
}

// The fewest of the most likely that reach p; of equals the smaller id first.
__device__ void keep_top_p(double* x, int64_t count, double p) {
  if (p >= 1) return;
  uint64_t all = 0;
  for (int64_t i = threadIdx.x; i < count; i += kThreads) all += units_of(x[i]);
  const uint64_t wanted = ceil(p * static_cast<double>(block_sum(all)));
  const uint64_t least = key_that_reaches(x, count, wanted, units_of);
  uint64_t above = 0, one = 0;
  for (int64_t i = threadIdx.x; i < count; i += kThreads) {
    if (key_of(x[i]) > least) above += units_of(x[i]);
    if (key_of(x[i]) == least) one = units_of(x[i]);
  }
  above = block_sum(above);
  one = block_join(one, [](uint64_t a, uint64_t b) { return a > b ? a : b; });
  // The number kept of those that are as likely as the last one.
  const uint64_t equals = (wanted - above + one - 1) / one;
  uint64_t kept = 0;
  for (int64_t first = 0; first < count; first += kThreads) {
    const int64_t i = first + threadIdx.x;
    const bool equal = i < count && key_of(x[i]) == least;
    const uint64_t before = kept + static_cast<uint64_t>(threads_before(equal));
    if (i < count && (key_of(x[i]) < least || (equal && before >= equals))) x[i] = kNone;
    kept += block_sum(equal ? 1 : 0);
  }
}

// The first token at which the sum, by id, is over `uniform` times that of all.
__device__ int64_t pick(const double* x, int64_t count, double uniform) {
  __shared__ uint64_t sums[kThreads];
  __shared__ uint64_t all;
  __shared__ unsigned long long found;
  const int64_t share = (count + kThreads - 1) / kThreads;
  const int64_t begin = min(count, threadIdx.x * share), end = min(count, begin + share);
  uint64_t mine = 0;
  int64_t last = -1;  // that can be picked
  for (int64_t i = begin; i < end; ++i) {
    const uint64_t w = units_of(x[i]);
    mine += w;
    if (w > 0) last = i;
  }
  sums[threadIdx.x] = mine;
  last = block_join(last, [](int64_t a, int64_t b) { return a > b ? a : b; });
  __syncthreads();
  if (threadIdx.x == 0) {
    uint64_t sum = 0;
    for (uint64_t& part : sums) {
      const uint64_t of_thread = part;
      part = sum;
      sum += of_thread;
    }
    all = sum;
    found = static_cast<unsigned long long>(last);
  }
  __syncthreads();
  const double wanted = uniform * static_cast<double>(all);
  uint64_t sum = sums[threadIdx.x];
  for (int64_t i = begin; i < end; ++i) {
    const uint64_t w = units_of(x[i]);
    sum += w;
    if (w > 0 && static_cast<double>(sum) > wanted) {
      atomicMin(&found, static_cast<unsigned long long>(i));
      break;
    }
  }
  __syncthreads();
  return found;
}

template <typename T>
struct SampleArguments {
  int32_t* out;
  const T* logits;
  const DeviceDraw* draws;
  const int32_t* text;
  int64_t vocab;
  double* kept;    // [draws, vocab]
  uint32_t* seen;  // [draws, vocab / 32]: tokens of the text
};

// A block a draw.
template <typename T>
__global__ void __launch_bounds__(kThreads) sample(SampleArguments<T> a) {
  pdl_launch_dependents_and_wait();
  const DeviceDraw draw = a.draws[blockIdx.x];
  const T* logits = a.logits + draw.row * a.vocab;
  double* x = a.kept + blockIdx.x * a.vocab;
  const auto finish = [&](int64_t token) {
    if (threadIdx.x == 0) a.out[blockIdx.x] = static_cast<int32_t>(token);
  };
  const auto logit = [&](int64_t i) { return static_cast<double>(widen(logits[i])); };
  // A row whose largest logit is no number has no distribution.
  const First raw = block_first(a.vocab, logit);
  if (!isfinite(raw.value)) return finish(raw.index);
  const int64_t words = (a.vocab + 31) / 32;
  uint32_t* seen = a.seen + blockIdx.x * words;
  for (int64_t i = threadIdx.x; i < a.vocab; i += kThreads) x[i] = logit(i);
  for (int64_t i = threadIdx.x; i < words; i += kThreads) seen[i] = 0;
  __syncthreads();
  if (draw.penalty != 1) {
    for (int64_t i = draw.text_begin + threadIdx.x; i < draw.text_end; i += kThreads) {
      const int32_t token = a.text[i];
      const uint32_t bit = 1u << token % 32;
      if ((atomicOr(seen + token / 32, bit) & bit) != 0) continue;
      x[token] = x[token] > 0 ? x[token] / draw.penalty : x[token] * draw.penalty;
    }
    __syncthreads();
  }
  const First best = block_first(a.vocab, [&](int64_t i) { return x[i]; });
  if (draw.temperature == 0) return finish(best.index);
  // The temperature divides the distance to the largest, so that a tiny one cannot overflow.
  for (int64_t i = threadIdx.x; i < a.vocab; i += kThreads)
    x[i] = (x[i] - best.value) / draw.temperature;
  __syncthreads();
  keep_top_k(x, a.vocab, draw.top_k);
  __syncthreads();
  keep_top_p(x, a.vocab, draw.top_p);
  if (draw.min_p > 0)
    for (int64_t i = threadIdx.x; i < a.vocab; i += kThreads)
      if (exp(x[i]) < draw.min_p) x[i] = kNone;
  __syncthreads();
  finish(pick(x, a.vocab, draw.uniform));
}

// A copy on the device of what the host has.
template <typename Value>
Tensor sent(std::span<const Value> values, const DeviceRuntime& runtime) {
  Tensor there({std::max<int64_t>(1, std::ssize(values)) * int64_t{sizeof(Value)}}, DType::u8,
               {DeviceKind::cuda, runtime.index});
  if (!values.empty())
    runtime.copy(there.view().data, values.data(), values.size_bytes(), runtime.stream);
  return there;
}

}  // namespace

void sample_on_device(std::span<int32_t> out, const TensorView& logits,
                      std::span<const DeviceDraw> draws, std::span<const int32_t> text) {
  const int64_t count = std::ssize(draws), vocab = logits.shape.last();
  check(vocab <= kMostVocab,
        "a CUDA device draws from logits of at most {} tokens, found {}: use --device cpu",
        kMostVocab, vocab);
  if (count == 0) return;
  const DeviceRuntime& runtime = runtime_of(logits.device);
  use_device(runtime.index);
  const Tensor their_draws = sent(draws, runtime), their_text = sent(text, runtime);
  const Tensor tokens({count}, DType::i32, logits.device);
  const Tensor kept({count * vocab * int64_t{sizeof(double)}}, DType::u8, logits.device);
  const Tensor seen({count * ((vocab + 31) / 32)}, DType::i32, logits.device);
  dispatch_cuda(logits.dtype, [&]<typename T>(T*) {
    const SampleArguments<T> arguments = {tokens.as<int32_t>(),
                                          logits.as<const T>(),
                                          their_draws.as<const DeviceDraw>(),
                                          their_text.as<const int32_t>(),
                                          vocab,
                                          kept.as<double>(),
                                          seen.as<uint32_t>()};
    launch_pdl("sample", runtime.stream, count, kThreads, sample<T>, arguments);
  });
  runtime.copy(out.data(), tokens.view().data, tokens.view().bytes(), runtime.stream);
  runtime.wait(runtime.stream);
}

}  // namespace lockstep
