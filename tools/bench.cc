// lockstep bench: what this machine can do, and how much of it the engine uses.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <fstream>
#include <limits>
#include <thread>

#include "kernels/check.h"
#include "kernels/roofs.h"
#include "probes/recorder.h"
#include "src/engine/engine.h"
#include "tools/device.h"
#include "tools/device_bench.h"
#include "tools/device_roofs.h"
#include "tools/figures.h"
#include "tools/judging_bench.h"
#include "tools/meter.h"
#include "tools/options.h"
#include "tools/output.h"
#include "tools/peak_memory.h"
#include "tools/synthetic.h"

namespace lockstep {
namespace {

// A published model whose shape is measured. To add one: its name and what of its config.json says
// how much there is to compute.
struct BenchShape {
  const char* name;
  const char* config;
  bool large = false;  // measured only when it is asked for by name
};
constexpr auto kShapes = std::to_array<BenchShape>({
    {"qwen3-0.6b", R"({"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3",
      "hidden_size": 1024, "num_hidden_layers": 28, "num_attention_heads": 16,
      "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 3072, "vocab_size": 151936,
      "max_position_embeddings": 40960, "rms_norm_eps": 1e-06, "rope_theta": 1000000,
      "tie_word_embeddings": true, "hidden_act": "silu", "attention_bias": false,
      "eos_token_id": 151645, "torch_dtype": "bfloat16"})"},
    {"qwen2.5-0.5b", R"({"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2",
      "hidden_size": 896, "num_hidden_layers": 24, "num_attention_heads": 14,
      "num_key_value_heads": 2, "intermediate_size": 4864, "vocab_size": 151936,
      "max_position_embeddings": 32768, "rms_norm_eps": 1e-06, "rope_theta": 1000000,
      "tie_word_embeddings": true, "hidden_act": "silu", "use_sliding_window": false,
      "eos_token_id": 151645, "torch_dtype": "bfloat16"})"},
    {"qwen3-8b", R"({"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3",
      "hidden_size": 4096, "num_hidden_layers": 36, "num_attention_heads": 32,
      "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 12288, "vocab_size": 151936,
      "max_position_embeddings": 40960, "rms_norm_eps": 1e-06, "rope_theta": 1000000,
      "tie_word_embeddings": false, "hidden_act": "silu", "attention_bias": false,
      "eos_token_id": 151645, "torch_dtype": "bfloat16"})",
     true},
});

constexpr int64_t kPrompt = 512;
constexpr int64_t kContexts[] = {128, 1024};
constexpr int kPrefills = 5;
constexpr int64_t kDecodes = 22;  // passes a run; the first kWarmUp of them do not count
constexpr int64_t kWarmUp = 2;
constexpr int kRuns = 2;
constexpr double kSpare = 200e6;       // bytes beside weights and K/V that the engine may take
constexpr double kJudgingLimit = 2e9;  // bytes that judging a pass may take

double seconds_of(const auto& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// The machine, measured before and after each figure, because it drifts: what it gives can change
// by half within a minute when others share it.
class Roofs {
 public:
  explicit Roofs(int threads) : all_(threads), buffer_({uncached_bytes()}, DType::u8) {
    std::memset(buffer_.view().data, 1, static_cast<size_t>(buffer_.view().bytes()));
    sample();
  }

  // Measures again; from here on `read` and `dot` are the better of this time and the last.
  void sample() {
    read_one_.push_back(read_roof(one_, buffer_.view().data, buffer_.view().bytes()));
    read_all_.push_back(read_roof(all_, buffer_.view().data, buffer_.view().bytes()));
    dot_one_.push_back(dot_roof(one_).flops);
    dot_all_.push_back(dot_roof(all_).flops);
  }
  double read() const { return better_of_last(read_all_); }
  double dot() const { return better_of_last(dot_all_); }
  double bytes() const { return static_cast<double>(buffer_.view().bytes()); }  // resident

  std::vector<Figure> figures() {
    const auto name = [](const std::string& what, int threads) {
      return fmt::format("{}, {} thread{}", what, threads, threads == 1 ? "" : "s");
    };
    const std::string path(dot_roof(one_).path);
    std::vector<Figure> list = {{"machine", name("read", 1), "GB/s", 1e-9, read_one_},
                                {"machine", name(path, 1), "GFLOP/s", 1e-9, dot_one_}};
    if (all_.size() == 1) return list;
    list.push_back({"machine", name("read", all_.size()), "GB/s", 1e-9, read_all_});
    list.push_back({"machine", name(path, all_.size()), "GFLOP/s", 1e-9, dot_all_});
    return list;
  }

 private:
  static double better_of_last(const std::vector<double>& samples) {
    const size_t n = samples.size();
    return n > 1 ? std::max(samples[n - 1], samples[n - 2]) : samples.back();
  }

  ThreadPool one_{1}, all_;
  Tensor buffer_;
  std::vector<double> read_one_, read_all_, dot_one_, dot_all_;
};

// Where the time of some passes went, in seconds.
struct Times {
  std::vector<double> total, matmul, attention, rest;
  std::vector<double> observed;  // total of the passes with every point digested
};

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
      observed = after(seconds - meter_.pass().checking);
    }
    return hashes;
  }

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
double matrix_numbers(const ModelConfig& config) {
  double numbers = 0;
  for (const auto& [name, shape] : needed_tensors(config))
    if (shape.rank() == 2 && name.starts_with("model.layers."))
      numbers += static_cast<double>(shape.count());
  return numbers;
}

// Multiplications and additions of a prompt, whose last token alone gets logits.
double prefill_flops(const ModelConfig& c, int64_t tokens) {
  const auto pairs = 0.5 * static_cast<double>(tokens * (tokens + 1));  // of a query and a key
  return 2 * static_cast<double>(tokens) * matrix_numbers(c) +
         2 * static_cast<double>(c.vocab * c.hidden) +
         4 * pairs * static_cast<double>(c.layers * c.heads * c.head_dim);
}

// Bytes that the passes of decode() read: all weights once (of an untied embedding, nothing worth
// counting) and the K and V of every position before.
double decode_bytes(const Checkpoint& checkpoint, int64_t context) {
  const ModelConfig& c = checkpoint.config();
  const int64_t embedding = c.tied ? 0 : c.vocab * c.hidden * size_of(DType::bf16);
  const int64_t middle = context + (kDecodes + kWarmUp) / 2;
  return static_cast<double>(checkpoint.bytes() - embedding +
                             middle * c.kv_bytes_per_token(DType::bf16));
}

void add_times(std::vector<Figure>& list, const std::string& shape, const std::string& what,
               const Times& times, Whole whole, double best) {
  const double step = median_of(times.total);
  list.push_back({shape, what, "ms", 1e3, times.total, whole, best});
  list.push_back({shape, "  matrix products", "ms", 1e3, times.matmul, Whole::step, step});
  list.push_back({shape, "  attention", "ms", 1e3, times.attention, Whole::step, step});
  list.push_back({shape, "  rest", "ms", 1e3, times.rest, Whole::step, step});
}

// What judging costs: on a checkpoint of its own, because it reads the weights in other ways.
std::vector<Figure> measure_judging(const BenchShape& shape, Device device, int threads,
                                    Progress& progress) {
  progress.show(fmt::format("{}: judging", shape.name));
  const JudgingTimes times = time_judging(synthetic_checkpoint(shape.config), device, threads);
  std::vector<Figure> list;
  const auto add = [&](const std::string& pass, const JudgingTimes::Pass& of) {
    const double model = median_of(of.model);
    const auto row = [&](const char* what, const std::vector<double>& samples, Whole whole) {
      list.push_back({shape.name, what + pass, "ms", 1e3, samples, whole, model});
    };
    row("the fp64 model, ", of.model, Whole::least);
    row("judging the ops of ", of.ops, Whole::fp64_model);
    row("judging, with both models, ", of.whole, Whole::fp64_model);
  };
  add("a decode pass", times.decode);
  add(fmt::format("a prompt of {}", times.tokens), times.prompt);
  list.push_back({shape.name,
                  fmt::format("memory, judging {} rows of logits", times.rows),
                  "MB",
                  1e-6,
                  {times.extra_bytes},
                  Whole::judging_limit,
                  kJudgingLimit});
  return list;
}

std::vector<Figure> measure(const BenchShape& shape, int threads, Roofs& roofs,
                            Progress& progress) {
  const auto show = [&](const char* what) {
    progress.show(fmt::format("{}: {}", shape.name, what));
  };
  show("making weights");
  const Checkpoint checkpoint = synthetic_checkpoint(shape.config);
  PeakMemory::reset();
  ShapeBench bench(checkpoint, threads);
  std::vector<Figure> list;
  show("prefill");
  roofs.sample();
  const Times prefill = bench.prefill();
  roofs.sample();
  add_times(list, shape.name, fmt::format("prefill, {} tokens", kPrompt), prefill, Whole::dot_roof,
            prefill_flops(checkpoint.config(), kPrompt) / roofs.dot());
  for (const int64_t context : kContexts) {
    show("decode");
    const Times decode = bench.decode(context, false);
    roofs.sample();
    add_times(list, shape.name, fmt::format("decode, context {}", context), decode,
              Whole::read_roof, decode_bytes(checkpoint, context) / roofs.read());
  }
  const double limit = static_cast<double>(checkpoint.bytes()) + bench.kv_bytes() + kSpare;
  list.push_back({shape.name,
                  "peak memory",
                  "MB",
                  1e-6,
                  {PeakMemory::bytes() - roofs.bytes()},
                  Whole::limit,
                  limit});
  show("probes");
  const Times probed = bench.decode(kContexts[0], true);
  list.push_back({shape.name, "decode with every point digested", "ms", 1e3, probed.observed,
                  Whole::step, median_of(probed.total)});
  return list;
}

// The figures that `measure` returns of each shape of that name.
template <typename Measure>
std::vector<Figure> of_shapes(const std::string& name, Measure measure) {
  std::vector<Figure> figures;
  for (const BenchShape& shape : kShapes)
    if (name == shape.name || (name == "all" && !shape.large))
      std::ranges::move(measure(shape), std::back_inserter(figures));
  return figures;
}

std::vector<Figure> joined(std::vector<Figure> first, std::vector<Figure> second) {
  std::ranges::move(second, std::back_inserter(first));
  return first;
}

std::vector<Figure> measure_all_judging(const std::string& name, Device device, int threads) {
  Progress progress;
  return of_shapes(name, [&](const BenchShape& shape) {
    return measure_judging(shape, device, threads, progress);
  });
}

std::vector<Figure> measure_all(const std::string& name, int threads) {
  Roofs roofs(threads);
  Progress progress;
  std::vector<Figure> figures = of_shapes(
      name, [&](const BenchShape& shape) { return measure(shape, threads, roofs, progress); });
  return joined(roofs.figures(), std::move(figures));
}

std::vector<Figure> measure_all_on_device(const std::string& name) {
  DeviceRoofs roofs;
  Progress progress;
  std::vector<Figure> figures = of_shapes(name, [&](const BenchShape& shape) {
    progress.show(fmt::format("{}: making weights", shape.name));
    const Checkpoint checkpoint = synthetic_checkpoint(shape.config);
    return measure_device(shape.name, checkpoint, roofs, [&](const char* what) {
      progress.show(fmt::format("{}: {}", shape.name, what));
    });
  });
  return joined(roofs.figures(), std::move(figures));
}

}  // namespace

int bench_command(Args args) {
  CLI::App app{
      "Measure how fast the engine is on this machine, as shares of what memory and CPU can give.\n"
      "Weights are random, in the shape of a published model. Every figure is the minimum, median\n"
      "and maximum of repeats. A share is of the median, against what the machine gave just "
      "before\n"
      "and after; on a machine that does other work too, repeat until it holds still.",
      "lockstep bench"};
  std::string shape = "all", format = "table", device = "cpu";
  int threads = 0;
  bool judging = false;
  add_choice(app, "--shape", shape, {"all", kShapes[0].name, kShapes[1].name, kShapes[2].name},
             "which model's shape (all but the last one, whose weights take 16 GB of TMPDIR)");
  add_threads_option(app, threads);
  add_device_option(app, device);
  app.add_flag("--judging", judging, "measure what judging costs instead");
  add_format_option(app, format);
  if (!parse(app, args,
             "  lockstep bench\n"
             "  lockstep bench --device cuda --shape qwen3-0.6b\n"
             "  lockstep bench --judging --device cuda --shape qwen3-0.6b\n"
             "  lockstep bench --shape qwen3-0.6b --threads 1 --format json\n"))
    return 0;
  const Device opened = open_device(device);
  if (threads == 0) threads = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  const std::vector<Figure> figures = judging ? measure_all_judging(shape, opened, threads)
                                      : opened == Device::cpu ? measure_all(shape, threads)
                                                              : measure_all_on_device(shape);
  print(text_of(table_of(figures), format));
  return 0;
}

}  // namespace lockstep
