// Decode is timed four ways over the same requests: op by op, where the host's launches show; as
// graphs, which is how it is served; as graphs that digest every point, which is what observing
// costs; and with those digests kept in a trace, which is what recording does. All must choose the
// same tokens, or the figures would be of different work. Few requests are served by steps of one
// launch too, whose sums are in another order: those must choose the same tokens whether they are
// observed or not. Attention of long contexts is timed by itself, over pages in random order, for
// it alone must keep pace with memory.
//
// Passes are timed on the host around Engine::step, which returns when the tokens are there. Where
// it queues the next pass meanwhile, that is the time from token to token.
#include "src/bench/device_bench.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <numeric>
#include <optional>
#include <random>

#include "kernels/base/check.h"
#include "kernels/files/disk.h"
#include "probes/digest.h"
#include "probes/digest_recorder.h"
#include "probes/digest_ring.h"
#include "src/engine/engine.h"
#include "src/model/persistent_executor.h"
#include "src/session/device.h"
#include "src/session/trace_capture.h"

namespace lockstep {
namespace {

constexpr int64_t kDevicePrompts[] = {512, 2048, 8192};
constexpr int64_t kDeviceDecodes = 44;  // passes of a run; the first of them do not count:
constexpr int64_t kDeviceWarmUp = 12;   // among them those that graphs are made of
constexpr int kDevicePrefills = 5;
// A pass waits for the trace only when the ring is full, of a long prompt too.
static_assert(kDeviceWarmUp > DigestRing::kSlots);

struct Load {
  int64_t requests, context;
};
constexpr Load kLoads[] = {{1, 128}, {1, 1024}, {1, 4096}, {2, 128},
                           {4, 128}, {8, 128},  {64, 1024}};
constexpr int64_t kOneLaunch = 8;  // requests at most of a step that is one launch

// Requests of one length, each with other tokens, so that no prefix is shared.
std::vector<Request> requests_of(int64_t count, int64_t prompt, int64_t choices, int64_t vocab) {
  std::vector<Request> requests(count);
  for (size_t r = 0; r < requests.size(); ++r) {
    requests[r].max_new = choices;
    for (int64_t i = 0; i < prompt; ++i)
      requests[r].prompt.push_back(static_cast<int32_t>((i * 7919 + 13 + r * 104729) % vocab));
  }
  return requests;
}

struct Timed {
  std::vector<double> seconds;  // of each pass
  std::vector<std::vector<int32_t>> tokens;
};

// A pass may be observed: every point is stored where somebody could look, or digested, and the
// digests may be kept in a trace.
enum class Seen : uint8_t { nothing, points, digests, trace };

// Whoever could look at the points on the device, and does not. What is read from a cache is stored
// for no step.
class Taps final : public Sink {
 public:
  bool on_device() const override { return true; }
  bool wants(const Point& point, int) const override { return !point.is_cache(); }
  void begin(const PassInfo&) override {}
  void record(const Record&) override {}
  void end() override {}
};

// A trace among the temporary files, as that of `generate --trace`.
class KeptTrace {
 public:
  explicit KeptTrace(const Engine& engine)
      : writer_(create_trace(folder_.path() + "/bench.trace",
                             manifest_of(engine, TraceLevel::digest, {}, {}))) {}
  void write(const Pass& pass) { writer_->write(pass); }
  void finish(const Engine& engine) { writer_->finish(infos_of(engine)); }

 private:
  ScratchFolder folder_;
  std::unique_ptr<TraceWriter> writer_;
};

// Serves all requests at once in an engine of its own.
Timed serve(Device device, const Checkpoint& checkpoint, const std::vector<Request>& requests,
            bool graph, Seen seen = Seen::nothing, MakeExecutor make_executor = {}) {
  const EngineOptions options{.device = device,
                              .graph = graph,
                              .dtype = DType::bf16,
                              .pages = pages_for(requests, EngineOptions().page_size),
                              .make_executor = std::move(make_executor)};
  Engine engine(checkpoint, ops_of(device), options);
  for (const Request& request : requests) engine.submit(request);
  Timed timed;
  std::optional<KeptTrace> trace;
  if (seen == Seen::trace) trace.emplace(engine);
  DigestRecorder recorder({}, false, [&](const Pass& pass) {
    if (trace) trace->write(pass);
  });
  Taps taps;
  Probe probe = seen == Seen::nothing  ? Probe()
                : seen == Seen::points ? Probe(&taps)
                                       : Probe(&recorder);
  for (bool more = true; more;) {
    const double seconds = seconds_of([&] { more = engine.step(probe); });
    if (more) timed.seconds.push_back(seconds);
  }
  probe.flush();
  check(probe.failure().empty(), "{}", probe.failure());
  if (trace) trace->finish(engine);
  for (int32_t id = 0; id < engine.requests(); ++id)
    timed.tokens.push_back(engine.sequence(id).tokens);
  return timed;
}

// Bytes that a decode pass reads in the middle of a run: all weights once (of an untied embedding,
// nothing worth counting) and the K and V of every position before.
double decode_bytes(const Checkpoint& checkpoint, const Load& load) {
  const ModelConfig& c = checkpoint.config();
  const int64_t embedding = c.tied ? 0 : c.vocab * c.hidden * size_of(DType::bf16);
  const int64_t middle = load.context + (kDeviceDecodes + kDeviceWarmUp) / 2;
  return static_cast<double>(checkpoint.bytes() - embedding +
                             load.requests * middle * c.kv_bytes_per_token(DType::bf16));
}

// The inputs of a decode pass of many long contexts: one layer's cache, its pages in no order.
struct Caches {
  static constexpr int64_t kRequests = 64, kContext = 4096, kPage = 16;

  Caches(const ModelConfig& c, Device device)
      : pool({kRequests * kContext / kPage, kPage, c.kv_heads, c.head_dim}),
        k(numbers(pool, 1, device)),
        v(numbers(pool, 2, device)),
        q(numbers({kRequests, c.heads, c.head_dim}, 3, device)) {
    std::vector<int32_t> start, length(kRequests, kContext), table(kRequests * kContext / kPage);
    for (int32_t r = 0; r <= kRequests; ++r) start.push_back(r);
    std::iota(table.begin(), table.end(), 0);
    std::shuffle(table.begin(), table.end(), std::mt19937_64(4));
    const auto on_device = [device](const std::vector<int32_t>& values, const Shape& shape) {
      return copy_on(device, tensor_of(std::span<const int32_t>(values), shape, DType::i32));
    };
    query_start = on_device(start, {kRequests + 1});
    context_length = on_device(length, {kRequests});
    page_table = on_device(table, {kRequests, kContext / kPage});
  }
  KvCache cache() const { return {k, v}; }
  AttentionBatch batch() const { return {query_start, context_length, page_table}; }
  double bytes() const { return static_cast<double>(k.view().bytes() + v.view().bytes()); }

  Shape pool;
  Tensor k, v, q;
  Tensor query_start, context_length, page_table;

 private:
  // Random numbers of about the size of a trained model's.
  static Tensor numbers(const Shape& shape, uint64_t seed, Device device) {
    std::mt19937_64 random(seed);
    Tensor numbers(shape, DType::bf16);
    // Signs and mantissas of any kind, exponents of 0.25 to 1.
    for (int64_t i = 0; i < shape.count(); ++i)
      numbers.as<uint16_t>()[i] = static_cast<uint16_t>((random() & 0x80ff) | 0x3e80);
    return copy_on(device, numbers);
  }
};

// One layer's attention, several launches in a row per sample. The output is filled with NaN before
// each and compared by its hash after, so that no launch is timed that did nothing.
Figure decode_attention(const std::string& shape, const ModelConfig& config, DeviceRoofs& roofs) {
  constexpr int kLaunches = 20;
  const Device device = roofs.device();
  const Caches caches(config, device);
  const Tensor out(caches.q.view().shape, DType::bf16, device);
  const Tensor poison({out.view().bytes()}, DType::u8);
  std::memset(poison.as<char>(), 0xff, poison.view().bytes());
  const Tensor nan = copy_on(device, poison);
  const Ops ops = ops_of(device);
  const auto scale = static_cast<float>(1 / std::sqrt(config.head_dim));
  const OpContext context{.stream = stream_of(device)};
  Figure figure{
      shape, fmt::format("attention of a layer, {} x {}", Caches::kRequests, Caches::kContext),
      "ms",  1e3,
      {},    Figure::Whole::read_roof};
  uint64_t wanted = 0;
  roofs.sample();
  // The first try, number -1, says what the others must come to.
  for (int i = -1; i < kDevicePrefills; ++i) {
    copy(out, nan);
    wait_for(device);
    const double seconds = seconds_of([&] {
      for (int n = 0; n < kLaunches; ++n)
        ops.paged_attention(context, out, caches.q, caches.cache(), caches.batch(), scale, 0);
      wait_for(device);
    });
    const Digest seen = digest_of(copy_on(Device::cpu, out));
    if (i < 0) wanted = seen.hash;
    check(seen.hash == wanted && seen.finite() == seen.count,
          "bench wants the same finite numbers of attention each time, found others");
    if (i >= 0) figure.samples.push_back(seconds / kLaunches);
  }
  roofs.sample();
  // K and V must be read once each; queries and output are nothing beside them.
  figure.best = caches.bytes() / roofs.read();
  return figure;
}

// Prompts one after another in one engine, a pass each.
Figure prefill(const std::string& shape, const Checkpoint& checkpoint, int64_t tokens,
               Device device) {
  Figure figure{
      shape, fmt::format("prefill, {} tokens", tokens), "ms", 1e3, {}, Figure::Whole::least};
  // One engine, whose first pass makes the library's plans for these shapes.
  std::vector<Request> requests =
      requests_of(kDevicePrefills + 1, tokens, 1, checkpoint.config().vocab);
  // Each arrives at a step of its own, when the one before it is done.
  for (size_t i = 0; i < requests.size(); ++i) requests[i].arrival = i;
  const Timed timed = serve(device, checkpoint, requests, false);
  figure.samples.assign(timed.seconds.begin() + 1, timed.seconds.end());
  return figure;
}

// Passes of a load, those of the warm-up left out.
Figure decode(const std::string& shape, const Load& load, const char* path, const Timed& timed,
              double best, Figure::Whole whole = Figure::Whole::read_roof) {
  return {shape, fmt::format("decode, {} x {}, {}", load.requests, load.context, path), "ms",
          1e3,   {timed.seconds.begin() + kDeviceWarmUp, timed.seconds.end()},          whole,
          best};
}

double median_pass(const Timed& timed) {
  return median_of({timed.seconds.begin() + kDeviceWarmUp, timed.seconds.end()});
}

// Decode passes of one launch each, and the same with every point stored, and digested.
void one_launch(const std::string& shape, const Checkpoint& checkpoint, const Load& load,
                const std::vector<Request>& requests, DeviceRoofs& roofs,
                std::vector<Figure>& list) {
  const auto served = [&](Seen seen) {
    return serve(roofs.device(), checkpoint, requests, true, seen,
                 persistent_executors(checkpoint.config(), DType::bf16, ops_of(roofs.device())));
  };
  const Timed timed = served(Seen::nothing);
  roofs.sample();
  const Timed stored = served(Seen::points);
  const Timed seen = served(Seen::digests);
  check(seen.tokens == timed.tokens && stored.tokens == timed.tokens,
        "bench wants the same tokens from a step of one launch whether it is observed or not, "
        "found others: `lockstep run --device cuda --executor persistent` judges it");
  list.push_back(
      decode(shape, load, "one launch", timed, decode_bytes(checkpoint, load) / roofs.read()));
  list.push_back(decode(shape, load, "one launch, every point stored", stored, median_pass(timed),
                        Figure::Whole::step));
  list.push_back(decode(shape, load, "one launch, every point digested", seen, median_pass(timed),
                        Figure::Whole::step));
}

}  // namespace

std::vector<Figure> measure_device(const std::string& shape, const Checkpoint& checkpoint,
                                   DeviceRoofs& roofs,
                                   const std::function<void(const char*)>& progress) {
  std::vector<Figure> list;
  progress("prefill");
  for (const int64_t tokens : kDevicePrompts)
    list.push_back(prefill(shape, checkpoint, tokens, roofs.device()));
  progress("attention");
  list.push_back(decode_attention(shape, checkpoint.config(), roofs));
  for (const Load& load : kLoads) {
    progress("decode");
    const auto requests =
        requests_of(load.requests, load.context, kDeviceDecodes + 1, checkpoint.config().vocab);
    const Timed eager = serve(roofs.device(), checkpoint, requests, false);
    roofs.sample();
    const Timed graph = serve(roofs.device(), checkpoint, requests, true);
    roofs.sample();
    const Timed seen = serve(roofs.device(), checkpoint, requests, true, Seen::digests);
    const Timed kept = serve(roofs.device(), checkpoint, requests, true, Seen::trace);
    check(
        graph.tokens == eager.tokens && seen.tokens == eager.tokens && kept.tokens == eager.tokens,
        "bench wants the same tokens from graphs as from ops, found others: `lockstep run "
        "--device cuda --modes graph` finds where they part");
    const double best = decode_bytes(checkpoint, load) / roofs.read();
    list.push_back(decode(shape, load, "op by op", eager, best));
    list.push_back(decode(shape, load, "graphs", graph, best));
    list.push_back(
        decode(shape, load, "every point digested", seen, median_pass(graph), Figure::Whole::step));
    list.push_back(decode(shape, load, "every point digested, kept in a trace", kept,
                          median_pass(seen), Figure::Whole::digested));
    if (load.requests <= kOneLaunch && ops_of(roofs.device()).fused.decode_step)
      one_launch(shape, checkpoint, load, requests, roofs, list);
  }
  return list;
}

}  // namespace lockstep
