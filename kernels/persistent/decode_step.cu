// The persistent decode step: one block a multiprocessor, all of them for the whole step. Eight
// warps compute, one copies weights and pages ahead. Blocks meet nowhere: each waits for the
// numbers that it reads (exchange.cuh).
//
//   norm, q k v | attention by shares | their sums | o + stream | norm, gate, up, act
//   | down + stream | .. x layers | norm, logits, the best token
#include "kernels/cuda/cuda_ops.h"
#include "kernels/decode_step.h"
#include "kernels/persistent/attention.cuh"

namespace lockstep {
namespace persistent {
namespace {

// The numbers of units of the lists of a layer, and of the head.
struct Units {
  int q, kv, qkv, shares, o, pairs, down, head;
  __device__ Units(const Step& a, int dim)
      : q(a.heads * dim),
        kv(a.kv_heads * dim),
        qkv((q + 2 * kv) / kOctet),
        shares(shares_of_all(a)),
        o(a.hidden / kOctet),
        pairs(a.inner / kOctet),
        down(a.hidden / kOctet),
        head(a.vocab / kOctet) {}
};

template <typename Address, typename Copy>
__device__ void copy_octets(Copy& copy, int dealt, int units, int width, Address address) {
  const int stride = static_cast<int>(gridDim.x);
  for (int unit = first_unit(dealt); unit < units; unit += 2 * stride)
    copy.octets(address(unit), unit + stride < units ? address(unit + stride) : nullptr, width);
}

template <int kDim>
__device__ void copy_ahead(const Step& a, const Ring& ring, const Watch& watch) {
  const Units n(a, kDim);
  const int stride = static_cast<int>(gridDim.x);
  Copier<kDim> copy(a, ring, watch);
  const auto rows = [](const bf16* matrix, int width) {
    return [=](int unit) { return matrix + int64_t{unit} * kOctet * width; };
  };
  int dealt = 0;
  for (int l = 0; l < a.layers; ++l) {
    const Layer& w = a.layer[l];
    copy_octets(copy, dealt, n.qkv, a.hidden,
                [&](int unit) { return qkv_octet(a, w, n.q, n.kv, unit); });
    dealt += n.qkv;
    for (int i = first_unit(dealt); i < n.shares; i += stride) copy.share(w, share_at(a, i));
    dealt += n.shares;
    copy_octets(copy, dealt, n.o, n.q, rows(w.o, n.q));
    dealt += n.o;
    const auto gate = rows(w.gate, a.hidden), up = rows(w.up, a.hidden);
    for (int i = first_unit(dealt); i < n.pairs; i += stride) copy.octets(gate(i), up(i), a.hidden);
    dealt += n.pairs;
    copy_octets(copy, dealt, n.down, a.inner, rows(w.down, a.inner));
    dealt += n.down;
  }
  copy_octets(copy, dealt, n.head, a.hidden, rows(a.lm_head, a.hidden));
}

// The computing warps, through the lists.
template <int kDim, int kGroup>
class Computer {
 public:
  __device__ Computer(const Step& step, Block& block)
      : a(step), b(block), n(step, kDim), stride_(gridDim.x) {}

  __device__ void run() {
    b.fetch_norm(a.layer[0].attn_norm, 0);
    for (int l = 0; l < a.layers; ++l) {
      qkv(l);
      attend(l);
      project(l);
      gate_up(l);
      down(l);
    }
    head();
  }

 private:
  // Taps of what all blocks compute are one block's.
  __device__ bf16* own_tap(bf16* tap) const { return first_unit(dealt_) == 0 ? tap : nullptr; }
  __device__ static void keep(bf16* tap, int64_t at, bf16 value) {
    if (tap != nullptr) tap[at] = value;
  }

  // The normalised stream as the input of products.
  __device__ void norm(int source_layer, int at, bf16* tap) {
    const float squares = source_layer < 0
                              ? b.gather_embedding()
                              : b.gather(at, a.hidden, b.tags.of(source_layer), source_layer);
    b.normalise(squares, own_tap(tap));
  }
  // After the products of a norm's list.
  __device__ void end_list(int units, const bf16* next_weights) {
    dealt_ += units;
    b.fetch_norm(next_weights, ++b.norms);
  }

  __device__ void qkv(int l) {
    const Layer& w = a.layer[l];
    const auto make = [&] {
      norm(l - 1, b.places.mlp_residual, w.norm_out);
      b.mark(l, 0, 1);
    };
    b.mark(l, 0, 0);
    const auto bias_of = [&](int, int i) -> float {
      const bf16* bias = i < n.q ? w.q_bias : i < n.q + n.kv ? w.k_bias : w.v_bias;
      const int at = i < n.q ? i : i < n.q + n.kv ? i - n.q : i - n.q - n.kv;
      return bias == nullptr ? 0 : widen(load_early(bias + at));
    };
    const bool biased = w.q_bias != nullptr;
    b.multiply_octets(dealt_, n.qkv, a.hidden, make, bias_of,
                      [&](int row, int i, float sum, float bias) {
                        const bool is_q = i < n.q, is_k = !is_q && i < n.q + n.kv;
                        const int at = is_q ? i : is_k ? i - n.q : i - n.q - n.kv;
                        const bf16 y = narrow<bf16>(biased ? __fadd_rn(sum, bias) : sum);
                        store_word(b.word(row, b.places.qkv + i), tagged(y, b.tags.of(l)));
                        keep(is_q   ? w.q_out
                             : is_k ? w.k_out
                                    : w.v_out,
                             int64_t{row} * (is_q ? n.q : n.kv) + at, y);
                      });
    end_list(n.qkv, w.mlp_norm);
    b.mark(l, 0, 2);
  }

  __device__ void attend(int l) {
    Attention<kDim, kGroup> attention(b, l);
    b.mark(l, 1, 0);
    for (int i = first_unit(dealt_); i < n.shares; i += stride_) attention.share(share_at(a, i));
    b.mark(l, 1, 2);
    dealt_ += n.shares;
    b.mark(l, 2, 0);
    constexpr int kHeadParts = kDim / kWarp;  // a warp each
    for (int i = stride_ - 1 - static_cast<int>(blockIdx.x) + b.warp * stride_;
         i < a.rows * a.heads * kHeadParts; i += kWarps * stride_) {
      const int head = i / kHeadParts, row = head / a.heads,
                shares = shares_of(a, context_of(a, row));
      if (shares > 1) attention.reduce(row, head % a.heads, i % kHeadParts, shares);
    }
    b.mark(l, 2, 2);
  }

  __device__ float stream(int row, int i, int source_layer, int at) const {
    if (source_layer < 0) return widen(a.embed[int64_t{b.token_of(row)} * a.hidden + i]);
    return number_in(
        await_word(b.word(row, at + i), b.tags.of(source_layer), b.watch, source_layer));
  }

  // A product whose output is added to the stream.
  struct Added {
    int part, units, width, input, before, before_layer, after;
    bf16 *out, *sum;
  };
  __device__ void multiply_and_add(int l, const Added& m) {
    const auto make = [&] {
      b.gather(m.input, m.width, b.tags.of(l), l);
      sync_computing();
      b.mark(l, m.part, 1);
    };
    b.mark(l, m.part, 0);
    const auto before = [&](int row, int i) { return stream(row, i, m.before_layer, m.before); };
    b.multiply_octets(dealt_, m.units, m.width, make, before,
                      [&](int row, int i, float sum, float x) {
                        const bf16 y = narrow<bf16>(sum), s = narrow<bf16>(__fadd_rn(x, widen(y)));
                        store_word(b.word(row, m.after + i), tagged(s, b.tags.of(l)));
                        keep(m.out, int64_t{row} * a.hidden + i, y);
                        keep(m.sum, int64_t{row} * a.hidden + i, s);
                      });
    dealt_ += m.units;
    b.mark(l, m.part, 2);
  }
  __device__ void project(int l) {
    const Layer& w = a.layer[l];
    multiply_and_add(l, {3, n.o, n.q, b.places.attention, b.places.mlp_residual, l - 1,
                         b.places.attn_residual, w.o_out, w.attn_residual_out});
  }
  __device__ void down(int l) {
    const Layer& w = a.layer[l];
    multiply_and_add(l, {5, n.down, a.inner, b.places.act, b.places.attn_residual, l,
                         b.places.mlp_residual, w.down_out, w.mlp_residual_out});
  }

  __device__ void gate_up(int l) {
    const Layer& w = a.layer[l];
    const auto make = [&] {
      norm(l, b.places.attn_residual, w.mlp_norm_out);
      b.mark(l, 4, 1);
    };
    b.mark(l, 4, 0);
    b.multiply_pairs(dealt_, n.pairs, a.hidden, make, [&](int row, int i, float gate, float up) {
      const bf16 g = narrow<bf16>(gate), u = narrow<bf16>(up);
      const bf16 y = narrow<bf16>(SiluMul()(widen(g), widen(u)));
      store_word(b.word(row, b.places.act + i), tagged(y, b.tags.of(l)));
      const int64_t at = int64_t{row} * a.inner + i;
      keep(w.gate_out, at, g);
      keep(w.up_out, at, u);
      keep(w.act_out, at, y);
    });
    end_list(n.pairs, l + 1 < a.layers ? a.layer[l + 1].attn_norm : a.final_norm);
    b.mark(l, 4, 2);
  }

  // A number as bits in the order of argmax: a NaN is larger than any number, zeros are alike.
  __device__ static uint32_t ordered(float x) {
    if (isnan(x)) return ~0u;
    const uint32_t bits = __float_as_uint(x == 0 ? 0.0f : x);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
  }

  __device__ void head() {
    const auto make = [&] { norm(a.layers - 1, b.places.mlp_residual, a.final_norm_out); };
    const auto nothing = [](int, int) { return 0.0f; };
    unsigned long long best = 0;  // of this thread, whose sums are all of one row
    int best_row = 0;
    b.multiply_octets(
        dealt_, n.head, a.hidden, make, nothing, [&](int row, int i, float sum, float) {
          const bf16 y = narrow<bf16>(sum);
          a.logits[int64_t{row} * a.vocab + i] = y;
          const unsigned long long key =
              static_cast<unsigned long long>(ordered(widen(y))) << 32 | ~static_cast<uint32_t>(i);
          best = key > best ? key : best;
          best_row = row;
        });
    if (best != 0) atomicMax(&a.control->best[best_row], best);
    sync_computing();
    if (b.thread == 0) end();
  }

  // The last block to end says which tokens are best, and leaves all as the next step needs it.
  __device__ void end() {
    __threadfence();
    if (atomicAdd(&a.control->done, 1u) != gridDim.x - 1) return;
    __threadfence();
    for (int row = 0; row < a.rows; ++row)
      a.token[row] =
          static_cast<int32_t>(~static_cast<uint32_t>(atomicExch(&a.control->best[row], 0ull)));
    a.control->done = 0;
    a.control->aborted = 0;
    a.control->epoch = b.tags.epoch + a.layers;
  }

  const Step& a;
  Block& b;
  const Units n;
  const int stride_;
  int dealt_ = 0;
};

template <int kDim, int kGroup>
__global__ void __launch_bounds__(kBlock, 1) decode_step(const __grid_constant__ Step a) {
  extern __shared__ __align__(1024) char shared[];
  const Room room(a.ring_slots, a.rows, a.widest, a.hidden, kDim, kGroup);
  const uint32_t barriers = shared_address(shared + room.barriers);
  if (threadIdx.x < 2 * a.ring_slots)
    barrier_init(barriers + 8 * threadIdx.x, threadIdx.x < a.ring_slots ? 1 : kWarps);
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  __syncthreads();
  const Watch watch(a);
  const Ring ring(shared_address(shared), barriers, a.ring_slots);
  const int warp = static_cast<int>(threadIdx.x / kWarp);
  if (warp == kWarps) {
    copy_ahead<kDim>(a, ring, watch);
    return;
  }
  Block block{.a = a,
              .room = room,
              .shared = shared,
              .ring = ring,
              .watch = watch,
              .tags = {load_word(&a.control->epoch)},
              .places = Exchange(a.hidden, a.heads * kDim, a.kv_heads * kDim, a.inner),
              .thread = static_cast<int>(threadIdx.x),
              .warp = warp,
              .lane = static_cast<int>(threadIdx.x % kWarp)};
  Computer<kDim, kGroup>(a, block).run();
}

constexpr int64_t kControlBytes = 256;

Layer layer_of(const DecodeLayer& d) {
  const auto in = [](const TensorView& t) { return t.as<const bf16>(); };
  const auto out = [](const TensorView& t) { return t.as<bf16>(); };
  return {.attn_norm = in(d.attn_norm),
          .mlp_norm = in(d.mlp_norm),
          .q = in(d.q),
          .k = in(d.k),
          .v = in(d.v),
          .o = in(d.o),
          .gate = in(d.gate),
          .up = in(d.up),
          .down = in(d.down),
          .q_bias = in(d.q_bias),
          .k_bias = in(d.k_bias),
          .v_bias = in(d.v_bias),
          .q_norm = in(d.q_norm),
          .k_norm = in(d.k_norm),
          .cache_k = out(d.cache.k),
          .cache_v = out(d.cache.v),
          .norm_out = out(d.norm_out),
          .q_out = out(d.q_out),
          .k_out = out(d.k_out),
          .v_out = out(d.v_out),
          .q_norm_out = out(d.q_norm_out),
          .k_norm_out = out(d.k_norm_out),
          .q_rope_out = out(d.q_rope_out),
          .k_rope_out = out(d.k_rope_out),
          .attention_out = out(d.attention_out),
          .o_out = out(d.o_out),
          .attn_residual_out = out(d.attn_residual_out),
          .mlp_norm_out = out(d.mlp_norm_out),
          .gate_out = out(d.gate_out),
          .up_out = out(d.up_out),
          .act_out = out(d.act_out),
          .down_out = out(d.down_out),
          .mlp_residual_out = out(d.mlp_residual_out)};
}

int64_t exchange_bytes(const DecodeStep& d) {
  const Exchange places(static_cast<int>(d.embed.shape[1]), static_cast<int>(d.heads * d.head_dim),
                        static_cast<int>(d.kv_heads * d.head_dim),
                        static_cast<int>(d.intermediate));
  return (d.tokens.count() * places.words * 4 + 255) / 256 * 256;
}

void fill_sizes(Step& a, const DecodeStep& d) {
  const KvCache& cache = d.layers[0].cache;
  a.pool = cache.pages() * cache.page_size();
  a.rows = static_cast<int>(d.tokens.count());
  a.layers = static_cast<int>(d.layers.size());
  a.hidden = static_cast<int>(d.embed.shape[1]);
  a.heads = static_cast<int>(d.heads);
  a.kv_heads = static_cast<int>(d.kv_heads);
  a.inner = static_cast<int>(d.intermediate);
  a.vocab = static_cast<int>(d.lm_head.shape[0]);
  a.page_size = static_cast<int>(cache.page_size());
  a.table_width = static_cast<int>(d.attention.page_table.shape[1]);
  a.entries = static_cast<int>(d.cos.rows());
  a.widest = std::max({a.hidden, a.inner, static_cast<int>(d.heads * d.head_dim)});
  a.eps = d.eps;
  a.score_scale = static_cast<float>(1.4426950408889634 / std::sqrt(d.head_dim));
}

Step arguments_of(const DecodeStep& d) {
  Step a = {};
  for (size_t l = 0; l < d.layers.size(); ++l) a.layer[l] = layer_of(d.layers[l]);
  a.embed = d.embed.as<const bf16>();
  a.final_norm = d.final_norm.as<const bf16>();
  a.lm_head = d.lm_head.as<const bf16>();
  a.embed_out = d.embed_out.as<bf16>();
  a.final_norm_out = d.final_norm_out.as<bf16>();
  a.logits = d.logits.as<bf16>();
  a.token = d.token.as<int32_t>();
  a.tokens = d.tokens.as<const int32_t>();
  a.positions = d.positions.as<const int32_t>();
  a.context = d.attention.context_length.as<const int32_t>();
  a.table = d.attention.page_table.as<const int32_t>();
  a.slots = d.slots.as<const int64_t>();
  a.cos = d.cos.as<const float>();
  a.sin = d.sin.as<const float>();
  fill_sizes(a, d);
  char* memory = d.workspace.as<char>();
  a.control = reinterpret_cast<Control*>(memory);
  a.exchange = reinterpret_cast<uint32_t*>(memory + kControlBytes);
  a.partial = reinterpret_cast<unsigned long long*>(memory + kControlBytes + exchange_bytes(d));
  a.bad = bad_index_report();
  a.timeline = d.timeline.as<unsigned long long>();
  return a;
}

struct StepDevice {
  int blocks = number_of_device(cudaDevAttrMultiProcessorCount, "cudaDeviceGetAttribute");
  int shared = number_of_device(cudaDevAttrMaxSharedMemoryPerBlockOptin, "cudaDeviceGetAttribute");
};

template <int kDim, int kGroup>
void launch(CUstream_st* stream, Step& a) {
  constexpr int kLeastSlots = 4, kMostSlots = 13;
  const StepDevice& device = of_current_device<StepDevice>();
  const auto bytes = [&](int slots) {
    return Room(slots, a.rows, a.widest, a.hidden, kDim, kGroup).bytes;
  };
  a.ring_slots = kMostSlots;
  while (a.ring_slots > kLeastSlots && bytes(a.ring_slots) > device.shared) --a.ring_slots;
  check(bytes(a.ring_slots) <= device.shared,
        "decode_step takes {} bytes of shared memory for {} rows of {}, a block has {}: give it "
        "fewer rows, or use --executor ops",
        bytes(a.ring_slots), a.rows, a.widest, device.shared);
  grant_shared<decode_step<kDim, kGroup>>(bytes(a.ring_slots));
  cudaLaunchAttribute together = {};
  together.id = cudaLaunchAttributeCooperative;
  together.val.cooperative = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = device.blocks;
  config.blockDim = kBlock;
  config.dynamicSmemBytes = bytes(a.ring_slots);
  config.stream = stream;
  config.attrs = &together;
  config.numAttrs = 1;
  cuda_check(cudaLaunchKernelEx(&config, decode_step<kDim, kGroup>, a), "decode_step");
}

}  // namespace
}  // namespace persistent

int64_t decode_step_workspace(const DecodeStep& d) {
  return persistent::kControlBytes + persistent::exchange_bytes(d) +
         d.tokens.count() * d.heads * persistent::kMostShares * (d.head_dim + 2) * 8;
}

void decode_step_cuda(const OpContext& context, const DecodeStep& step) {
  check_decode_step(step);
  check(compute_capability() >= 90,
        "decode_step wants a CUDA device of capability 9.0 or later, found {}.{}: use --executor "
        "ops",
        compute_capability() / 10, compute_capability() % 10);
  persistent::Step a = persistent::arguments_of(step);
  const int64_t group = step.heads / step.kv_heads;
  if (step.head_dim == 128 && group == 2) return persistent::launch<128, 2>(context.stream, a);
  if (step.head_dim == 128 && group == 4) return persistent::launch<128, 4>(context.stream, a);
  if (step.head_dim == 64 && group == 3) return persistent::launch<64, 3>(context.stream, a);
  persistent::launch<64, 7>(context.stream, a);
}

}  // namespace lockstep
