// The persistent decode step: one block a multiprocessor, all of them for the whole step. Eight
// warps compute, one copies weights and pages ahead. Blocks meet nowhere: each waits for the
// numbers that it reads (exchange.cuh).
//
//   norm, q k v | attention by shares | their sums | o + stream | norm, gate, up, act
//   | down + stream | .. x layers | norm, logits, the best token
#include "kernels/cuda/cuda_ops.h"
#include "kernels/decode_step.h"
#include "kernels/persistent/attention.cuh"
#include "kernels/persistent/cluster_step.cuh"

namespace lockstep {
namespace persistent {
namespace {

template <int kDim>
__device__ void copy_ahead(const Step& a, const Layer* layers, const Cuts& cuts, const Ring& ring,
                           const Watch& watch) {
  const int q = a.heads * kDim, kv = a.kv_heads * kDim, stride = static_cast<int>(gridDim.x);
  Copier<kDim> copy(a, ring, watch);
  Dealt dealt;
  int l = 0;
#pragma unroll 1
  for (Part part = Part::qkv;; part = next_list(part)) {
    const List list = list_of(a, layers[l], l < a.layers ? part : Part::head, q, kv);
    copy.list(list, dealt.first());
    if (l == a.layers) return;
    dealt.add(list.units);
    if (part == Part::qkv) {
#pragma unroll 1
      for (int i = dealt.first(); i < cuts.all; i += stride)
        copy.share(layers[l], cuts.share(a, i));
      dealt.add(cuts.all);
    }
    l += part == Part::down;
  }
}

// The computing warps, through the lists. All lists pass through the same code, which must fit the
// caches of instructions.
template <int kDim, int kGroup>
class Computer {
 public:
  __device__ Computer(const Step& step, Block& block)
      : a(step), b(block), stride_(gridDim.x), q_(step.heads * kDim), kv_(step.kv_heads * kDim) {}

  __device__ void run() {
    b.fetch_norm(b.layers[0].attn_norm, 0);
#pragma unroll 1
    for (part_ = Part::qkv;; part_ = next_list(part_)) {
      if (layer_ == a.layers) part_ = Part::head;
      multiply(list_of(a, layer(), part_, q_, kv_));
      if (part_ == Part::head) break;
      if (part_ == Part::qkv) attend();
      layer_ += part_ == Part::down;
    }
    end();
  }

 private:
  // That after the last one is none, and is not looked into.
  __device__ const Layer& layer() const { return b.layers[layer_]; }
  __device__ bool has_norm() const { return part_ != Part::o && part_ != Part::down; }
  __device__ void mark(Part part, int mark) const { b.mark(layer_, static_cast<int>(part), mark); }

  // The tokens of a list's units, two octets at a time, once the input is there.
  __device__ void multiply(const List& list);
  __device__ const bf16* next_norm() const {
    if (part_ == Part::qkv) return layer().mlp_norm;
    if (part_ == Part::head) return nullptr;
    return layer_ + 1 < a.layers ? b.layers[layer_ + 1].attn_norm : a.final_norm;
  }

  // A sum of a tile that this thread finishes: of a row of the pass and a row of the list.
  struct Sum {
    bool mine;
    int row, at, place;
  };
  __device__ Sum sum_of(const List& list, int unit, int octets) const {
    const int rows = list.pairs ? kOctet : kTileRows, index = b.turn(rows * a.rows);
    const int octet = index % rows / kOctet;
    return {index < rows * a.rows && octet < octets, index / rows,
            (unit + octet * stride_) * kOctet + index % kOctet,
            index / rows * kTileRows + index % rows};
  }

  // A number that a sum is added to, fetched before the sum is there: a bias, or the stream.
  __device__ float early_of(const Sum& s) const {
    const Layer& w = layer();
    if (part_ == Part::qkv) {
      const int from = s.at < q_ ? 0 : s.at < q_ + kv_ ? q_ : q_ + kv_;
      const bf16* bias = from == 0 ? w.q_bias : from == q_ ? w.k_bias : w.v_bias;
      return bias == nullptr ? 0 : widen(load_early(bias + s.at - from));
    }
    if (has_norm()) return 0;
    const bool of_o = part_ == Part::o;
    const int source = of_o ? layer_ - 1 : layer_;
    if (source < 0) return widen(a.embed[int64_t{b.token_of(s.row)} * a.hidden + s.at]);
    const int place = (of_o ? b.places.mlp_residual : b.places.attn_residual) + s.at;
    return number_in(await_word(b.word(s.row, place), b.tags.of(source), b.watch, source));
  }

  // The input of the products of a list: its columns from `first` on.
  __device__ void make_input(int first, int columns) {
    const int source = part_ == Part::qkv || part_ == Part::head ? layer_ - 1 : layer_;
    const int place = part_ == Part::o         ? b.places.attention
                      : part_ == Part::gate_up ? b.places.attn_residual
                      : part_ == Part::down    ? b.places.act
                                               : b.places.mlp_residual;
    const float squares = source < 0 ? b.gather_embedding()
                                     : b.gather(place + first, columns, b.tags.of(source), source);
    if (has_norm())
      b.normalise(squares, dealt_.first() == 0 ? norm_tap() : nullptr);
    else
      sync_computing();
    if (first == 0) mark(part_, 1);
  }
  // Adds a tile's products over the input, which is made for the first tile and stays for the next
  // ones, unless a block can hold only some of its columns: then it is made anew for each tile,
  // piece by piece, each when all warps have read the one before.
  __device__ void add_tile(float (&sums)[2][4], const List& list, int octets, bool is_first) {
    const int piece = min(list.width, a.input_columns);
#pragma unroll 1
    for (int first = 0; first < list.width; first += piece) {
      if (first > 0) sync_computing();
      const int columns = min(piece, list.width - first);
      if (is_first || piece < list.width) make_input(first, columns);
      b.add_tile(sums, octets, columns);
    }
  }
  // Taps of what all blocks compute are one block's.
  __device__ bf16* norm_tap() const {
    return part_ == Part::qkv       ? layer().norm_out
           : part_ == Part::gate_up ? layer().mlp_norm_out
                                    : a.final_norm_out;
  }

  __device__ static void keep(bf16* tap, int64_t at, bf16 value) {
    if (tap != nullptr) tap[at] = value;
  }
  __device__ void give(int row, int place, bf16 value) const {
    store_word(b.word(row, place), tagged(value, b.tags.of(layer_)));
  }
  __device__ void finish(const Sum& s, float early) {
    const float sum = b.sum_at(s.place);
    if (part_ == Part::qkv)
      finish_qkv(s, sum, early);
    else if (part_ == Part::gate_up)
      finish_gate_up(s, sum, b.sum_at(s.place + kOctet));
    else if (part_ == Part::head)
      finish_head(s, sum);
    else
      finish_added(s, sum, early);
  }
  __device__ void finish_qkv(const Sum& s, float sum, float bias) const {
    const Layer& w = layer();
    const bf16 y = narrow<bf16>(w.q_bias == nullptr ? sum : __fadd_rn(sum, bias));
    give(s.row, b.places.qkv + s.at, y);
    const int64_t row = s.row;
    if (s.at < q_)
      keep(w.q_out, row * q_ + s.at, y);
    else if (s.at < q_ + kv_)
      keep(w.k_out, row * kv_ + s.at - q_, y);
    else
      keep(w.v_out, row * kv_ + s.at - q_ - kv_, y);
  }
  __device__ void finish_added(const Sum& s, float sum, float before) const {
    const bool of_o = part_ == Part::o;
    const bf16 y = narrow<bf16>(sum), x = narrow<bf16>(__fadd_rn(before, widen(y)));
    give(s.row, (of_o ? b.places.attn_residual : b.places.mlp_residual) + s.at, x);
    const int64_t at = int64_t{s.row} * a.hidden + s.at;
    keep(of_o ? layer().o_out : layer().down_out, at, y);
    keep(of_o ? layer().attn_residual_out : layer().mlp_residual_out, at, x);
  }
  __device__ void finish_gate_up(const Sum& s, float gate, float up) const {
    const bf16 g = narrow<bf16>(gate), u = narrow<bf16>(up);
    const bf16 y = narrow<bf16>(SiluMul()(widen(g), widen(u)));
    give(s.row, b.places.act + s.at, y);
    const int64_t at = int64_t{s.row} * a.inner + s.at;
    keep(layer().gate_out, at, g);
    keep(layer().up_out, at, u);
    keep(layer().act_out, at, y);
  }
  __device__ void finish_head(const Sum& s, float sum) {
    const bf16 y = narrow<bf16>(sum);
    a.logits[int64_t{s.row} * a.vocab + s.at] = y;
    const unsigned long long key = key_of(widen(y), s.at);
    best_ = key > best_ ? key : best_;
    best_row_ = s.row;
  }

  __device__ void attend() {
    Attention<kDim, kGroup> attention(b, layer_);
    mark(Part::attention, 0);
#pragma unroll 1
    for (int i = dealt_.first(); i < b.cuts.all; i += stride_) attention.share(b.cuts.share(a, i));
    mark(Part::attention, 2);
    dealt_.add(b.cuts.all);
    mark(Part::reduction, 0);
    constexpr int kHeadParts = kDim / kWarp;  // a warp each
#pragma unroll 1
    for (int i = stride_ - 1 - static_cast<int>(blockIdx.x) + b.warp * stride_;
         i < a.rows * a.heads * kHeadParts; i += kWarps * stride_) {
      const int head = i / kHeadParts, row = head / a.heads, shares = b.cuts.shares[row];
      if (shares > 1) attention.reduce(row, head % a.heads, i % kHeadParts, shares);
    }
    mark(Part::reduction, 2);
  }

  // The last block to end says which tokens are best, and leaves all as the next step needs it.
  __device__ void end() {
    if (best_ != 0) atomicMax(&a.control->best[best_row_], best_);
    sync_computing();
    if (b.thread != 0) return;
    __threadfence();
    if (atomicAdd(&a.control->done, 1u) != gridDim.x - 1) return;
    __threadfence();
    for (int row = 0; row < a.rows; ++row)
      a.token[row] =
          static_cast<int32_t>(~static_cast<uint32_t>(atomicExch(&a.control->best[row], 0ull)));
    report_abort(a);
    a.control->done = 0;
    a.control->aborted = 0;
    a.control->epoch = b.tags.epoch + a.layers;
  }

  const Step& a;
  Block& b;
  const int stride_, q_, kv_;
  Part part_ = Part::qkv;
  int layer_ = 0;
  Dealt dealt_;
  // The best token of those that this thread finished, whose sums are all of one row.
  unsigned long long best_ = 0;
  int best_row_ = 0;
};

template <int kDim, int kGroup>
inline __device__ void Computer<kDim, kGroup>::multiply(const List& list) {
  const int begin = dealt_.first();
  mark(part_, 0);
#pragma unroll 1
  for (int unit = begin; unit < list.units; unit += list.pairs ? stride_ : 2 * stride_) {
    const int octets = list.pairs || unit + stride_ < list.units ? 2 : 1;
    const Sum sum = sum_of(list, unit, octets);
    const float early = sum.mine ? early_of(sum) : 0;
    float sums[2][4] = {};
    if (list.width <= kSlotColumns) {
      Block::Held weights;
      b.hold(weights, octets, list.width);
      if (unit == begin) make_input(0, list.width);
      b.add_held(sums, weights, list.width);
    } else {
      b.ring.await_full(octets, b.watch);
      add_tile(sums, list, octets, unit == begin);
    }
    b.put_sums(sums);
    sync_computing();
    if (sum.mine) finish(sum, early);
    ++b.tiles;
  }
  mark(part_, 2);
  dealt_.add(list.units);
  if (has_norm()) b.fetch_norm(next_norm(), ++b.norms);
}

template <int kDim, int kGroup>
__global__ void __launch_bounds__(kBlock, 1) decode_step(const __grid_constant__ Step a) {
  extern __shared__ __align__(1024) char shared[];
  const Room room(a, kDim, kGroup);
  const uint32_t barriers = shared_address(shared + room.barriers);
  if (threadIdx.x < 2 * a.ring_slots)
    barrier_init(barriers + 8 * threadIdx.x, threadIdx.x < a.ring_slots ? 1 : kWarps);
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  auto* layers = reinterpret_cast<Layer*>(shared + room.layers);
  for (int i = static_cast<int>(threadIdx.x); i < a.layers; i += kBlock) layers[i] = a.layer[i];
  auto* cuts = reinterpret_cast<Cuts*>(shared + room.cuts);
  if (threadIdx.x == kThreads) cuts->fill(a);
  __syncthreads();
  const Watch watch(a);
  const Ring ring(shared_address(shared), barriers, a.ring_slots);
  const int warp = static_cast<int>(threadIdx.x / kWarp);
  if (warp == kWarps) {
    copy_ahead<kDim>(a, layers, *cuts, ring, watch);
    return;
  }
  Block block{.a = a,
              .room = room,
              .shared = shared,
              .layers = layers,
              .cuts = *cuts,
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

int64_t partial_bytes(const DecodeStep& d) {
  return d.tokens.count() * d.heads * kMostShares * (d.head_dim + 2) * 8;
}

// The sums of clusters come last.
int64_t workspace_bytes(const DecodeStep& d) {
  return kControlBytes + exchange_bytes(d) + partial_bytes(d) +
         cluster_sums_bytes(d.tokens.count() * d.embed.shape[1]);
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
  a.eps = d.eps;
  a.score_scale = static_cast<float>(1.4426950408889634 / std::sqrt(d.head_dim));
}

Step arguments_of(const DecodeStep& d) {
  Step a = {};
  for (size_t l = 0; l < d.layers.size(); ++l) a.layer[l] = layer_of(d.layers[l]);
  a.embed = d.embed.as<const bf16>();
  a.final_norm = d.final_norm.as<const bf16>();
  a.lm_head = d.lm_head.as<const bf16>();
  a.rope_cos_out = d.rope_cos_out.as<float>();
  a.rope_sin_out = d.rope_sin_out.as<float>();
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
  a.progress = d.progress.as<uint32_t>();
  a.timeline = d.timeline.as<unsigned long long>();
  return a;
}

struct StepDevice {
  int blocks = number_of_device(cudaDevAttrMultiProcessorCount, "cudaDeviceGetAttribute");
  int shared = number_of_device(cudaDevAttrMaxSharedMemoryPerBlockOptin, "cudaDeviceGetAttribute");
};

// Lets a block hold the whole input of each product where it has the shared memory, else as large a
// piece of the widest as it has, never less than what is normalised; then as many slots as fit.
template <int kDim, int kGroup>
void share_memory(Step& a, int shared) {
  constexpr int kLeastSlots = 4, kMostSlots = 13;
  const auto bytes = [&] { return Room(a, kDim, kGroup).bytes; };
  const int widest = std::max({a.hidden, a.inner, a.heads * kDim});
  a.ring_slots = kLeastSlots;
  a.input_columns = widest;
  for (int pieces = 2; bytes() > shared && widest / pieces >= a.hidden; ++pieces)
    a.input_columns = (widest + pieces * kSlotColumns - 1) / (pieces * kSlotColumns) * kSlotColumns;
  check(bytes() <= shared,
        "decode_step takes {} bytes of shared memory for {} rows of {}, a block has {}: give it "
        "fewer rows, or use --executor ops",
        bytes(), a.rows, a.hidden, shared);
  while (a.ring_slots < kMostSlots && bytes() <= shared) ++a.ring_slots;
  if (bytes() > shared) --a.ring_slots;
}

template <int kDim, int kGroup>
void launch(CUstream_st* stream, Step& a) {
  const StepDevice& device = of_current_device<StepDevice>();
  share_memory<kDim, kGroup>(a, device.shared);
  const int bytes = Room(a, kDim, kGroup).bytes;
  grant_shared<decode_step<kDim, kGroup>>(bytes);
  cudaLaunchAttribute together = {};
  together.id = cudaLaunchAttributeCooperative;
  together.val.cooperative = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = device.blocks;
  config.blockDim = kBlock;
  config.dynamicSmemBytes = bytes;
  config.stream = stream;
  config.attrs = &together;
  config.numAttrs = 1;
  cuda_check(cudaLaunchKernelEx(&config, decode_step<kDim, kGroup>, a), "decode_step");
}

void launch_by_clusters(CUstream_st* stream, const Step& a, const DecodeStep& d) {
  const int64_t wanted = decode_step_packed_cuda(d);
  check(wanted > 0 && d.packed.bytes() == wanted,
        "decode_step wants {} bytes of packed weights for this step, found {}: leave them out",
        wanted, d.packed.bytes());
  if (a.progress != nullptr) {
    const DecodeProgress progress{a.layers, a.vocab};
    check(d.progress.bytes() == progress.bytes(),
          "decode_step wants {} bytes for its progress, found {}", progress.bytes(),
          d.progress.bytes());
  }
  if (d.pack) pack_for_clusters(stream, a, d.packed);
  char* sums = reinterpret_cast<char*>(a.partial) + partial_bytes(d);
  launch_clusters(stream, a, d.packed, sums);
}

}  // namespace
}  // namespace persistent

int64_t decode_step_packed_cuda(const DecodeStep& step) {
  if (step.workspace.device.kind == DeviceKind::cuda) use_device(step.workspace.device.index);
  return persistent::device_fits_clusters() ? decode_step_packed(step) : 0;
}

void decode_step_cuda(const OpContext& context, const DecodeStep& step) {
  check_decode_step(step);
  check(compute_capability() >= 90,
        "decode_step wants a CUDA device of capability 9.0 or later, found {}.{}: use --executor "
        "ops",
        compute_capability() / 10, compute_capability() % 10);
  const int64_t wanted = persistent::workspace_bytes(step);
  check(step.workspace.bytes() >= wanted, "decode_step wants a workspace of {} bytes, found {}",
        wanted, step.workspace.bytes());
  persistent::Step a = persistent::arguments_of(step);
  if (!step.packed.empty()) return persistent::launch_by_clusters(context.stream, a, step);
  check(step.progress.empty() && step.rope_cos_out.empty() && step.rope_sin_out.empty(),
        "decode_step raises words and shows angles for a step by clusters alone");
  const int64_t group = step.heads / step.kv_heads;
  if (step.head_dim == 128 && group == 2) return persistent::launch<128, 2>(context.stream, a);
  if (step.head_dim == 128 && group == 4) return persistent::launch<128, 4>(context.stream, a);
  if (step.head_dim == 64 && group == 3) return persistent::launch<64, 3>(context.stream, a);
  persistent::launch<64, 7>(context.stream, a);
}

}  // namespace lockstep
