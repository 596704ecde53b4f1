// The most that memory and CPU give, measured in the same minute as the figures that are held
// against it. Each is the best of many tries, as other processes can only make one slower.
//
//   read   the sum of a buffer that no cache holds, in 1 to 16 streams a thread, with prefetch
//   dot    chains of multiply-adds in registers: AMX, AVX-512 bf16, or fp32 FMA, the widest there
//
// Sums go to an atomic that nobody reads, so that a compiler can leave out nothing.
#include "kernels/bench/roofs.h"

#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>

#include "kernels/base/thread_pool.h"
#include "kernels/cpu/simd.h"

namespace lockstep {
namespace {

constexpr int kTries = 32;
constexpr int64_t kLine = 64;

// Wall-clock seconds.
double seconds_of(const auto& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double best_of(const auto& work) {
  double best = seconds_of(work);
  for (int i = 1; i < kTries; ++i) best = std::min(best, seconds_of(work));
  return best;
}

// Adds up lines [begin, end) over `Streams` streams that lie apart; the sum goes to `sink`, so that
// no load can be left out.
template <int Streams>
struct ReadKernel {
  const char* data;
  int64_t lines;  // of the whole piece: a multiple of Streams
  std::atomic<uint32_t>* sink;

  template <int N>
  [[gnu::always_inline]] void operator()() const {
    constexpr int64_t kAhead = 1024;  // bytes
    const int64_t apart = lines / Streams * kLine;
    simd::U<N> sums[Streams] = {};
    for (int64_t at = 0; at < apart; at += kLine) {
      for (int s = 0; s < Streams; ++s) {
        const char* line = data + s * apart + at;
        __builtin_prefetch(line + kAhead);
        for (int64_t i = 0; i < kLine; i += N * 4) {
          simd::U<N> words;
          __builtin_memcpy(&words, line + i, sizeof words);
          sums[s] += words;
        }
      }
    }
    for (int s = 1; s < Streams; ++s) sums[0] += sums[s];
    uint32_t total = 0;
    for (int i = 0; i < N; ++i) total += sums[0][i];
    *sink += total;
  }
};

// The best rate over stretches of the buffer that take turns, each as short as a scheduler's slice.
template <int Streams>
double read_rate(ThreadPool& threads, const void* buffer, int64_t bytes) {
  constexpr int64_t kPiece = 1 << 20, kStretch = 32 * kPiece;
  std::atomic<uint32_t> sink = 0;
  int64_t at = 0;
  const double best = best_of([&] {
    const char* stretch = static_cast<const char*>(buffer) + at;
    parallel_for(&threads, kStretch / kPiece, 1, [&](int64_t begin, int64_t end) {
      on_best_isa(
          ReadKernel<Streams>{stretch + begin * kPiece, (end - begin) * (kPiece / kLine), &sink});
    });
    at = at + 2 * kStretch <= bytes ? at + kStretch : 0;
  });
  return static_cast<double>(kStretch) / best;
}

constexpr int64_t kRounds = 1 << 19;  // of a chain of sums: some milliseconds

// Sixteen chains of sums, more than the latency of any CPU needs.
struct FmaKernel {
  std::atomic<float>* sink;

  static int64_t flops(int lanes) { return kRounds * 16 * 2 * lanes; }

  template <int N>
  [[gnu::always_inline]] void operator()() const {
    simd::F<N> sums[16], a = simd::all<N>(1.0f), b = simd::all<N>(0x1p-30f);
    for (int s = 0; s < 16; ++s) sums[s] = simd::all<N>(static_cast<float>(s));
    for (int64_t i = 0; i < kRounds; ++i) {
      // The compiler must not know the factors, or that chains are alike: it would compute less.
      asm volatile("" : "+x"(a), "+x"(b));
      for (simd::F<N>& sum : sums) sum += a * b;
    }
    float total = 0;
    for (const simd::F<N>& sum : sums) total += sum[0];
    *sink = total;
  }
};

[[gnu::target("avx512f,avx512bf16")]] void bf16_dots(std::atomic<float>* sink) {
  __m512 sums[16];
  for (int s = 0; s < 16; ++s) sums[s] = _mm512_set1_ps(static_cast<float>(s));
  __m512i a = _mm512_set1_epi32(0x3f803f80), b = a;  // pairs of 1.0
  for (int64_t i = 0; i < kRounds; ++i) {
    asm volatile("" : "+v"(a), "+v"(b));
    for (__m512& sum : sums)
      sum = _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
  }
  float total = 0;
  for (const __m512& sum : sums) total += sum[0];
  *sink = total;
}

constexpr int64_t kTileFlops = 2 * 16 * 16 * 32;  // of one product of full tiles
constexpr int64_t kTileRounds = kRounds / 16;

// Layout of the operand of LDTILECFG. Source: Intel SDM, "LDTILECFG".
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16};
};

// Four sums in tiles 0 to 3, factors in 4 and 5.
[[gnu::target("amx-tile,amx-bf16")]] void tile_dots(std::atomic<float>* sink) {
  const TileConfig config;
  alignas(64) float zeros[16 * 16] = {};
  _tile_loadconfig(&config);
  _tile_loadd(4, zeros, 64);
  _tile_loadd(5, zeros, 64);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int64_t i = 0; i < kTileRounds; ++i) {
    _tile_dpbf16ps(0, 4, 5);
    _tile_dpbf16ps(1, 4, 5);
    _tile_dpbf16ps(2, 4, 5);
    _tile_dpbf16ps(3, 4, 5);
  }
  _tile_stored(0, zeros, 64);
  _tile_release();
  *sink = zeros[0];
}

// Whether the CPU has AMX bf16 and the system lets this process use its tiles.
bool may_use_tiles() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
  const bool has_bf16 = (d >> 22 & 1) != 0, has_tiles = (d >> 24 & 1) != 0;
  // Tile registers are large, so that Linux saves them for processes alone that ask.
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // Linux: asm/prctl.h
  return has_bf16 && has_tiles && syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

// The rate when every thread of the pool runs `work` of so many operations.
double rate_of(ThreadPool& threads, int64_t operations, const auto& work) {
  const int64_t count = threads.size();
  const double best = best_of([&] {
    threads.run(count, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) work();
    });
  });
  return static_cast<double>(operations * count) / best;
}

}  // namespace

int64_t uncached_bytes() {
  constexpr int64_t kLeast = 256 << 20;
  // 0 or -1 where the system does not say.
  return std::max<int64_t>(kLeast, sysconf(_SC_LEVEL3_CACHE_SIZE) * 9 / 2);
}

double read_roof(ThreadPool& threads, const void* buffer, int64_t bytes) {
  return std::max({read_rate<1>(threads, buffer, bytes), read_rate<4>(threads, buffer, bytes),
                   read_rate<8>(threads, buffer, bytes), read_rate<16>(threads, buffer, bytes)});
}

DotRoof dot_roof(ThreadPool& threads) {
  std::atomic<float> sink = 0;
  if (may_use_tiles())
    return {"AMX bf16", rate_of(threads, kTileRounds * 4 * kTileFlops, [&] { tile_dots(&sink); })};
  if (best_isa() == Isa::avx512 && __builtin_cpu_supports("avx512bf16"))
    return {"AVX-512 bf16 dot", rate_of(threads, kRounds * 16 * 2 * 32, [&] { bf16_dots(&sink); })};
  const int lanes = best_isa() == Isa::avx512 ? 16 : best_isa() == Isa::avx2 ? 8 : 4;
  return {"fp32 FMA",
          rate_of(threads, FmaKernel::flops(lanes), [&] { on_best_isa(FmaKernel{&sink}); })};
}

}  // namespace lockstep
