// Each figure is a median over passes that were warmed up, and a PassMeter splits a pass into
// products, attention and the rest. The hashes of what two runs of the same tokens showed must be
// equal, so that nothing is timed that is not computed. The figures are shares of what the
// machine's memory and cores gave right before and after.
#include "src/bench/cpu_bench.h"

#include <fmt/format.h>

#include "kernels/base/check.h"
#include "probes/recorder.h"
#include "src/bench/meter.h"
#include "src/bench/peak_memory.h"
#include "src/engine/engine.h"

namespace lockstep {
namespace {

constexpr int64_t kPrompt = 512;
constexpr int64_t kContexts[] = {128, 1024};
constexpr int kPrefills = 5;
constexpr int64_t kDecodes = 22;  // passes a run; the first kWarmUp of them do not count
constexpr int64_t kWarmUp = 2;
constexpr int kRuns = 2;
constexpr double kSpare = 200e6;  // bytes beside weights and K/V that the engine may take

// Where the time of some passes went, in seconds.
struct Times {
  std::vector<double> total, matmul, attention, rest;
  std::vector<double> observed;  // total of the passes with every point digested
};

// Ids spread over the vocabulary, the same each time. 7919 is prime: unless it divides the size of
// the vocabulary, no id comes again before all others did.
std::vector<int32_t> some_tokens(int64_t count, int64_t vocab) {
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < count; ++i)
    tokens.push_back(static_cast<int32_t>((i * 7919 + 13) % vocab));
  return tokens;
}

// One shape in an engine.
class ShapeBench {
 public:
  ShapeBench(const Checkpoint& checkpoint, int threads)
      : config_(checkpoint.config()),
        pages_(pages_for({request(kContexts[1], kDecodes + 1)}, EngineOptions().page_size)),
        meter_(cpu_ops()),
        engine_(checkpoint, meter_.ops(),
                {.dtype = DType::bf16, .pages = pages_, .threads = threads},
                {.before_pass = [this](Batch&) { meter_.before_pass(); }}) {}

  // The memory of the pool of pages.
  double kv_bytes() const {
    return static_cast<double>(pages_ * EngineOptions().page_size *
                               config_.kv_bytes_per_token(DType::bf16));
  }

  // The first of them warms up: it maps the weights and makes the library's primitives.
  Times prefill() {
    Times times;
    for (int i = 0; i <= kPrefills; ++i) {
      const auto hashes = serve(kPrompt, 1, [&](double seconds) {
        if (i > 0) add(times, seconds);
        return false;
      });
      check_equal(hashes, i == 0);
    }
    return times;
  }

  // `observe`: every second pass shows all its points to a recorder that digests them.
  Times decode(int64_t context, bool observe) {
    Times times;
    for (int run = 0; run < kRuns; ++run) {
      int64_t pass = 0;
      bool observed = false;
      const auto hashes = serve(context, kDecodes + 1, [&](double seconds) {
        if (pass > kWarmUp && observed) times.observed.push_back(seconds);
        if (pass > kWarmUp && !observed) add(times, seconds);
        ++pass;
        // Passes that are observed and passes that are not take turns, so that both have contexts
        // of the same lengths over two runs.
        observed = observe && (pass + run) % 2 == 0;
        return observed;
      });
      check_equal(hashes, run == 0);
    }
    return times;
  }

 private:
  Request request(int64_t prompt, int64_t choices) const {
    return {.prompt = some_tokens(prompt, config_.vocab), .max_new = choices};
  }

  // Serves one request; `after` takes each pass's seconds and says whether the next is observed.
  // Returns the hashes of the logits.
  std::vector<uint64_t> serve(int64_t prompt, int64_t choices, const auto& after) {
    engine_.submit(request(prompt, choices));
    Recorder recorder({}, true, [](Pass) {});
    std::vector<uint64_t> hashes;
    for (bool more = true, observed = false; more;) {
      Probe probe = observed ? Probe(&recorder) : Probe();
      const double seconds = seconds_of([&] { more = engine_.step(probe); });
      if (!more) break;
      check(meter_.pass().finite,
            "bench wants finite logits, found NaN or infinity in a pass of a prompt of {} tokens: "
            "an op leaves output unwritten or overflows; `lockstep run` finds it",
            prompt);
      hashes.push_back(meter_.pass().logits);
      // The meter's own hashing is taken off.
      observed = after(seconds - meter_.pass().checking);
    }
    return hashes;
  }

  // Splits one pass's seconds by what the meter saw of it.
  void add(Times& times, double seconds) const {
    const PassMeter::Pass& pass = meter_.pass();
    times.total.push_back(seconds);
    times.matmul.push_back(pass.matmul);
    times.attention.push_back(pass.attention);
    times.rest.push_back(seconds - pass.matmul - pass.attention);
  }

  void check_equal(const std::vector<uint64_t>& hashes, bool first) {
    if (first) wanted_ = hashes;
    check(hashes == wanted_,
          "bench wants the same logits from the same request, found others the second time: an op "
          "depends on more than its inputs; `lockstep run` finds it");
  }

  const ModelConfig& config_;
  int64_t pages_;
  PassMeter meter_;
  Engine engine_;
  std::vector<uint64_t> wanted_;
};

// Numbers in the matrices of the layers: each is multiplied once a token.
int64_t matrix_numbers(const ModelConfig& config) {
  int64_t numbers = 0;
  for (const auto& [name, shape] : needed_tensors(config))
    if (shape.rank() == 2 && name.starts_with("model.layers.")) numbers += shape.count();
  return numbers;
}

// Multiplications and additions of a prompt, whose last token alone gets logits.
double prefill_flops(const ModelConfig& c, int64_t tokens) {
  const int64_t pairs = tokens * (tokens + 1) / 2;  // of a query and a key
  return static_cast<double>(2 * tokens * matrix_numbers(c) + 2 * c.vocab * c.hidden +
                             4 * pairs * c.layers * c.heads * c.head_dim);
}

// Bytes that the passes of decode() read: all weights once (of an untied embedding, nothing worth
// counting) and the K and V of every position before.
double decode_bytes(const Checkpoint& checkpoint, int64_t context) {
  const ModelConfig& c = checkpoint.config();
  const int64_t embedding = c.tied ? 0 : c.vocab * c.hidden * size_of(DType::bf16);
  // In the middle of the passes that count.
  const int64_t middle = context + (kDecodes + kWarmUp) / 2;
  return static_cast<double>(checkpoint.bytes() - embedding +
                             middle * c.kv_bytes_per_token(DType::bf16));
}

// Four figures of a kind of pass: the whole, as a share of its roof, and its parts, as shares of
// the whole.
void add_times(std::vector<Figure>& list, const std::string& shape, const std::string& what,
               const Times& times, Figure::Whole whole, double best) {
  const double step = median_of(times.total);
  list.push_back({shape, what, "ms", 1e3, times.total, whole, best});
  list.push_back({shape, "  matrix products", "ms", 1e3, times.matmul, Figure::Whole::step, step});
  list.push_back({shape, "  attention", "ms", 1e3, times.attention, Figure::Whole::step, step});
  list.push_back({shape, "  rest", "ms", 1e3, times.rest, Figure::Whole::step, step});
}

}  // namespace

std::vector<Figure> measure_cpu(const std::string& name, const Checkpoint& checkpoint, int threads,
                                CpuRoofs& roofs,
                                const std::function<void(const char* what)>& show) {
  PeakMemory::reset();
  ShapeBench bench(checkpoint, threads);
  std::vector<Figure> list;
  show("prefill");
  roofs.sample();
  const Times prefill = bench.prefill();
  roofs.sample();
  add_times(list, name, fmt::format("prefill, {} tokens", kPrompt), prefill,
            Figure::Whole::dot_roof, prefill_flops(checkpoint.config(), kPrompt) / roofs.dot());
  for (const int64_t context : kContexts) {
    show("decode");
    const Times decode = bench.decode(context, false);
    roofs.sample();
    add_times(list, name, fmt::format("decode, context {}", context), decode,
              Figure::Whole::read_roof, decode_bytes(checkpoint, context) / roofs.read());
  }
  const double limit = static_cast<double>(checkpoint.bytes()) + bench.kv_bytes() + kSpare;
  list.push_back({name,
                  "peak memory",
                  "MB",
                  1e-6,
                  // Without the buffer that the roofs are read of, which is the benchmark's own.
                  {PeakMemory::bytes() - roofs.bytes()},
                  Figure::Whole::limit,
                  limit});
  show("probes");
  const Times probed = bench.decode(kContexts[0], true);
  list.push_back({name, "decode with every point digested", "ms", 1e3, probed.observed,
                  Figure::Whole::step, median_of(probed.total)});
  return list;
}

}  // namespace lockstep
