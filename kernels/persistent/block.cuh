// The memory that the computing warps of a block share, and how they gather, normalise and
// multiply.
#pragma once

#include "kernels/cuda/rms_norm.cuh"
#include "kernels/cuda/silu_mul.cuh"
#include "kernels/cuda/tensor_cores.cuh"
#include "kernels/persistent/ring.cuh"

namespace lockstep::persistent {

constexpr int kTileRows = 2 * kOctet;         // of a matrix: what one mma takes
constexpr int kSums = kTileRows * kMostRows;  // of a tile, of one warp

// Where everything lies in shared memory, in bytes.
struct Room {
  int input, weights, sums, heads, fresh, scales, squares, layers, cuts, barriers, bytes, pitch;

  __host__ __device__ Room(const Step& a, int dim, int group) {
    const int ring_slots = a.ring_slots, rows = a.rows, hidden = a.hidden;
    pitch = 2 * a.input_columns + 64;  // rows of the input lie in different banks
    int at = ring_slots * kSlotBytes;
    const auto take = [&at](int bytes) {
      const int begin = at;
      at += (bytes + 127) / 128 * 128;
      return begin;
    };
    input = take(rows * pitch);
    weights = take(2 * hidden * 2);
    const int products = 2 * kWarps * kSums * 4, heads_bytes = kWarps * group * dim * 4;
    sums = take(products > heads_bytes ? products : heads_bytes);
    heads = take(kOctet * (2 * dim + 64));
    fresh = take(2 * dim * 2);
    scales = take(kWarps * kOctet * 2 * 4);
    squares = take(kWarps * 4);
    layers = take(a.layers * static_cast<int>(sizeof(Layer)));
    cuts = take(static_cast<int>(sizeof(Cuts)));
    barriers = take(2 * ring_slots * 8);
    bytes = at;
  }
};

__device__ inline void sync_computing() {
  asm volatile("bar.sync 1, %0;" ::"n"(kThreads) : "memory");
}

__device__ inline uint4 load_shared(uint32_t address) {
  uint4 words;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
               : "r"(address)
               : "memory");
  return words;
}

// 16 rows by 64 columns of a matrix whose rows lie a multiple of 128 bytes apart, as two halves of
// the columns. A lane has pieces of 16 bytes of rows `lane / 4` and eight further; which columns of
// a step a piece stands for is the same in all rows and in the input. Odd rows read their halves
// the other way round, so that eight lanes read all banks.
struct Fragment {
  uint4 half[2];
  __device__ void read(uint32_t row, int lane) {
    const uint32_t swap = lane & 4 ? 64 : 0, piece = row + lane % 4 * 16;
    const uint4 x = load_shared(piece + swap), y = load_shared(piece + (swap ^ 64));
    half[0] = swap ? y : x;
    half[1] = swap ? x : y;
  }
  __device__ void clear() { half[0] = half[1] = make_uint4(0, 0, 0, 0); }
};

// sum += rows times the input over 64 columns.
__device__ inline void multiply(float (&sum)[2][4], const Fragment& low, const Fragment& high,
                                const uint4 (&input)[2]) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const uint32_t first[4] = {low.half[h].x, high.half[h].x, low.half[h].y, high.half[h].y};
    const uint32_t second[4] = {low.half[h].z, high.half[h].z, low.half[h].w, high.half[h].w};
    const uint32_t b[2] = {input[h].x, input[h].y}, c[2] = {input[h].z, input[h].w};
    mma_m16n8k16<bf16>(sum[0], first, b);
    mma_m16n8k16<bf16>(sum[1], second, c);
  }
}

// The computing warps of a block.
struct Block {
  const Step& a;
  const Room& room;
  char* shared;
  const Layer* layers;  // in shared memory: as arguments they would come late
  const Cuts& cuts;
  Ring ring;
  const Watch& watch;
  Tags tags;
  Exchange places;
  int thread, warp, lane;
  int norms = 0;  // so far
  int tiles = 0;

  // Marks are of the first warp.
  __device__ void mark(int layer, int part, int mark) const {
    if (a.timeline == nullptr || thread != 0 || layer >= a.layers) return;
    const int64_t at = (int64_t{blockIdx.x} * a.layers + layer) * kParts + part;
    a.timeline[at * kMarks + mark] = nanoseconds();
  }
  __device__ uint32_t* word(int row, int at) const {
    return a.exchange + int64_t{row} * places.words + at;
  }
  __device__ bf16* input(int row) const {
    return reinterpret_cast<bf16*>(shared + room.input + row * room.pitch);
  }
  __device__ bf16* norm_weights(int norm) const {
    return reinterpret_cast<bf16*>(shared + room.weights) + norm % 2 * a.hidden;
  }

  // Copies the weights of norm number `norm` ahead; each thread a part. A block without units in
  // two lists reads neither norm, so that the copy into this half from two norms ago may still be
  // on its way: it must not end after this one.
  __device__ void fetch_norm(const bf16* weights, int norm) const {
    cp_async_wait_group<1>();
#pragma unroll 1
    for (int i = thread * 8; weights != nullptr && i < a.hidden; i += kThreads * 8)
      cp_async(norm_weights(norm) + i, weights + i);
    cp_async_commit_group();
  }

  // The warps of a block share the rows; this thread has `share.count` of those of its row.
  struct Share {
    int row, first, stride;
  };
  __device__ Share share() const {
    const int warps = kWarps / a.rows;
    return {warp / warps, (warp % warps * kWarp + lane) * 4, warps * kWarp * 4};
  }

  // A vector of each row into the input of products; returns the sum of squares of this thread's.
  __device__ float gather(int at, int width, uint32_t tag, int layer) const;

  // The same of the embedding's rows.
  __device__ float gather_embedding() const {
    const Share s = share();
    const bf16* from = a.embed + int64_t{token_of(s.row)} * a.hidden;
    bf16* to = input(s.row);
    float squares = 0;
#pragma unroll 1
    for (int i = s.first; i < a.hidden; i += s.stride) {
      const uint2 packed = *reinterpret_cast<const uint2*>(from + i);
      *reinterpret_cast<uint2*>(to + i) = packed;
      if (blockIdx.x == 0 && a.embed_out != nullptr)
        *reinterpret_cast<uint2*>(a.embed_out + int64_t{s.row} * a.hidden + i) = packed;
      for (const uint32_t two : {packed.x, packed.y}) {
        const float low = __uint_as_float(two << 16), high = __uint_as_float(two & 0xffff0000u);
        squares = __fmaf_rn(low, low, squares);
        squares = __fmaf_rn(high, high, squares);
      }
    }
    return squares;
  }
  __device__ int token_of(int row) const {
    const int token = a.tokens[row];
    if (token >= 0 && token < a.vocab) return token;
    report(a.bad, BadIndex::Of::table_row, a.vocab, token, row);
    return 0;
  }

  // Normalises the gathered rows in place. The last thing before products: others may read then.
  __device__ void normalise(float squares, bf16* tap) {
    float* parts = reinterpret_cast<float*>(shared + room.squares);
    squares = warp_sum(squares);
    if (lane == 0) parts[warp] = squares;
    cp_async_wait_group<0>();
    sync_computing();
    const int warps = kWarps / a.rows;
    float sum = 0;
    for (int i = 0; i < warps; ++i) sum = __fadd_rn(sum, parts[warp / warps * warps + i]);
    const float scale = norm_scale(sum, a.hidden, a.eps);
    const Share s = share();
    bf16* x = input(s.row);
    const bf16* weights = norm_weights(norms);
#pragma unroll 1
    for (int i = s.first; i < a.hidden; i += s.stride) {
      const auto w = *reinterpret_cast<const Elements<bf16, 4>*>(weights + i);
      auto e = *reinterpret_cast<const Elements<bf16, 4>*>(x + i);
#pragma unroll
      for (int c = 0; c < 4; ++c) e.e[c] = normalised(e.e[c], scale, w.e[c]);
      *reinterpret_cast<Elements<bf16, 4>*>(x + i) = e;
      if (tap != nullptr)
        *reinterpret_cast<Elements<bf16, 4>*>(tap + int64_t{s.row} * a.hidden + i) = e;
    }
    sync_computing();
  }

  // The input of products as this lane has it: of row `lane / 4`, from column `begin` on.
  __device__ void read_input(uint4 (&in)[2], int begin) const {
    const uint32_t x = shared_address(shared + room.input) + lane / 4 * room.pitch + lane % 4 * 16;
    const bool has_row = lane / 4 < a.rows;
    in[0] = has_row ? load_shared(x + begin * 2) : make_uint4(0, 0, 0, 0);
    in[1] = has_row ? load_shared(x + begin * 2 + 64) : make_uint4(0, 0, 0, 0);
  }

  // This warp's columns of a tile that one slot an octet holds, in registers: its weights are there
  // before its input is, and the slots are free.
  static constexpr int kHeld = kSlotColumns / 64 / kWarps;
  struct Held {
    Fragment low[kHeld], high[kHeld];
  };
  __device__ void hold(Held& held, int octets, int width) {
    ring.await_full(octets, watch);
    const uint32_t row = lane / 4 * width * 2;
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const int step = warp + i * kWarps;
      held.low[i].clear();
      held.high[i].clear();
      if (step >= width / 64) continue;
      held.low[i].read(ring.slot(0) + row + step * 128, lane);
      if (octets == 2) held.high[i].read(ring.slot(1) + row + step * 128, lane);
    }
    ring.release(octets);
  }
  __device__ void add_held(float (&sum)[2][4], const Held& held, int width) const {
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const int step = warp + i * kWarps;
      if (step >= width / 64) continue;
      uint4 in[2];
      read_input(in, step * 64);
      multiply(sum, held.low[i], held.high[i], in);
    }
  }

  // This warp's share of the sums of a tile over the `width` columns that the input has of it, the
  // first of which begins a slot. The ring has the octets slot by slot.
  __device__ void add_tile(float (&sum)[2][4], int octets, int width) {
#pragma unroll 1
    for (int begin = 0; begin < width; begin += kSlotColumns) {
      const int columns = min(kSlotColumns, width - begin);
      ring.await_full(octets, watch);
      const uint32_t row = lane / 4 * columns * 2;
      const uint32_t low_row = ring.slot(0) + row, high_row = ring.slot(1) + row;
#pragma unroll 1
      for (int step = warp; step < columns / 64; step += kWarps) {
        Fragment low, high;
        low.read(low_row + step * 128, lane);
        if (octets == 2)
          high.read(high_row + step * 128, lane);
        else
          high.clear();
        uint4 in[2];
        read_input(in, begin + step * 64);
        multiply(sum, low, high, in);
      }
      ring.release(octets);
    }
  }

  // The sums of a tile in shared memory, by warp, row of the pass and row of the tile. The warps
  // that add them up take turns from tile to tile.
  __device__ float* tile_sums() const {
    return reinterpret_cast<float*>(shared + room.sums) + tiles % 2 * kWarps * kSums;
  }
  __device__ void put_sums(const float (&sum)[2][4]) const {
    float* to = tile_sums() + warp * kSums;
    const int row = lane / 4, column = lane % 4 * 2;
#pragma unroll
    for (int c = 0; c < 4; ++c)
      if (column + c % 2 < a.rows)
        to[(column + c % 2) * kTileRows + row + c / 2 * kOctet] = __fadd_rn(sum[0][c], sum[1][c]);
  }
  __device__ float sum_at(int index) const {
    const float* from = tile_sums() + index;
    float sum = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sum = __fadd_rn(sum, from[w * kSums]);
    return sum;
  }
  // This thread's place among `count` sums of the tile; at least `count` where it has none.
  __device__ int turn(int count) const {
    const int warps = (count + kWarp - 1) / kWarp;
    return (warp + kWarps - tiles * warps % kWarps) % kWarps * kWarp + lane;
  }
};

inline __device__ float Block::gather(int at, int width, uint32_t tag, int layer) const {
  constexpr int kTogether = 4;
  const Share s = share();
  bf16* to = input(s.row);
  float squares = 0;
#pragma unroll 1
  for (int begin = s.first; begin < width; begin += kTogether * s.stride) {
    uint4 words[kTogether];
    const int count = min(kTogether, (width - begin + s.stride - 1) / s.stride);
    await_words(words, word(s.row, at) + begin, s.stride, count, tag, watch, layer);
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      if (i >= count) break;
      const uint4 w = words[i];
      const uint2 packed = {w.x >> 16 | (w.y & 0xffff0000u), w.z >> 16 | (w.w & 0xffff0000u)};
      *reinterpret_cast<uint2*>(to + begin + i * s.stride) = packed;
      for (const uint32_t one : {w.x, w.y, w.z, w.w})
        squares = __fmaf_rn(number_in(one), number_in(one), squares);
    }
  }
  return squares;
}

}  // namespace lockstep::persistent
