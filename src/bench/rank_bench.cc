// All ranks serve the same requests step by step, and wait for each other in the collectives, so
// that rank 0's clock around a step has the slowest of them in it. One engine serves everything:
// cutting the weights again would take longer than what is measured.
#include "src/bench/rank_bench.h"

#include <fmt/format.h>

#include "kernels/base/check.h"
#include "probes/digest_recorder.h"
#include "src/bench/device_roofs.h"
#include "src/session/device.h"
#include "src/session/judged_run.h"
#include "src/session/ranked.h"

namespace lockstep {
namespace {

constexpr int64_t kLong = 512, kShort = 128;  // tokens of the two prompts
constexpr int kTimed = 5, kWarm = 2;          // prefills, and those before them
constexpr int64_t kSteps = 32, kWarmSteps = 8;
constexpr int kCalls = 200;

// A request's tokens are spread over the vocabulary, so that the lookups of all ranks have some.
Request request_of(int64_t prompt, int64_t choices, int64_t number, int64_t vocab) {
  Request request{.max_new = choices};
  for (int64_t i = 0; i < prompt; ++i)
    request.prompt.push_back(static_cast<int32_t>((i * 7919 + 13 + number * 104729) % vocab));
  return request;
}

// Seconds of the passes that served a request, and what it chose.
struct Served {
  std::vector<double> seconds;
  std::vector<int32_t> tokens;
};

// Serves requests one after another with an engine, and tells the watch over the ranks of each
// pass.
class Server {
 public:
  Server(Engine& engine, const ModelConfig& config, RankSeat& seat)
      : engine_(engine), vocab_(config.vocab), seat_(seat) {}

  std::vector<double> prefills() {
    std::vector<double> seconds;
    for (int i = 0; i < kWarm + kTimed; ++i) {
      const Served served = serve(request_of(kLong, 1, i, vocab_), nothing_);
      if (i >= kWarm) seconds.push_back(served.seconds.at(0));
    }
    return seconds;
  }

  // Passes of one token; the first of them do not count.
  Served decode(Probe& probe) {
    Served served =
        serve(request_of(kShort, kSteps + kWarmSteps + 1, kTimed + kWarm, vocab_), probe);
    served.seconds.erase(served.seconds.begin(), served.seconds.begin() + 1 + kWarmSteps);
    return served;
  }
  Served decode() { return decode(nothing_); }
  Served digested() {
    DigestRecorder recorder({}, false, [](const Pass&) {});
    Probe probe(&recorder);
    Served served = decode(probe);
    check(probe.failure().empty(), "{}", probe.failure());
    return served;
  }

 private:
  Served serve(const Request& request, Probe& probe) {
    const int32_t id = engine_.submit(request);
    Served served;
    for (bool more = true; more;) {
      const double seconds = seconds_of([&] { more = engine_.step(probe); });
      seat_.beat();
      if (more) served.seconds.push_back(seconds);
    }
    served.tokens = engine_.sequence(id).tokens;
    return served;
  }

  Engine& engine_;
  int64_t vocab_;
  RankSeat& seat_;
  Probe nothing_;
};

// One at a time is served: pages for the longer of the two, and the other's are taken again.
EngineOptions options_of(Device device, bool graph) {
  const std::vector<Request> longest = {request_of(kLong, 1, 0, 1),
                                        request_of(kShort, kSteps + kWarmSteps + 1, 0, 1)};
  return {.device = device,
          .graph = graph,
          .dtype = DType::bf16,
          .pages = pages_for(longest, EngineOptions().page_size)};
}

// Seconds of all-reduces of a row of the stream, each with what ranks tell each other before it.
std::vector<double> call_seconds(const Exchange& exchange, int64_t hidden, Device device) {
  Tensor zeros({1, hidden}, DType::bf16);
  std::fill_n(zeros.as<char>(), zeros.view().bytes(), 0);
  const Tensor row = copy_on(device, zeros);
  std::vector<double> seconds;
  for (int i = 0; i < kCalls; ++i)
    seconds.push_back(seconds_of([&] {
      exchange.all_reduce({.stream = stream_of(device), .point = "attn.o"}, row);
      wait_for(device);
    }));
  seconds.erase(seconds.begin(), seconds.begin() + kCalls / 10);
  return seconds;
}

// Bytes that a decode pass of one request reads in the middle of the run.
double bytes_of_decode(const Checkpoint& checkpoint) {
  const ModelConfig& c = checkpoint.config();
  const int64_t embedding = c.tied ? 0 : c.vocab * c.hidden * size_of(DType::bf16);
  const int64_t middle = kShort + kWarmSteps + kSteps / 2;
  return static_cast<double>(checkpoint.bytes() - embedding +
                             middle * c.kv_bytes_per_token(DType::bf16));
}

// The figures of rank 0, in the order in which they are added. Its own device's roof stands for
// those of the others, which are of one kind: a pass that reads each weight once can be no faster
// than all of them together read.
class RankFigures {
 public:
  RankFigures(const std::string& shape, const Checkpoint& checkpoint, Device device)
      : shape_(shape), bytes_(bytes_of_decode(checkpoint)) {
    if (device != Device::cpu) roofs_.emplace(device);
  }

  void add_times(const std::string& who, int ranks, const std::string& what,
                 const std::vector<double>& seconds, bool reads) {
    Figure figure{
        shape_, fmt::format("{}, {}", what, who), "ms", 1e3, seconds, Figure::Whole::least};
    if (reads && roofs_) {
      roofs_->sample();
      figure.whole = Figure::Whole::read_roof;
      figure.best = bytes_ / (ranks * roofs_->read());
    }
    list_.push_back(std::move(figure));
  }
  void add_digested(const std::string& who, const Served& seen, const Served& plain) {
    check(seen.tokens == plain.tokens,
          "bench wants the same tokens whether passes are digested or not, found others: "
          "`lockstep run --tp` judges them");
    list_.push_back({shape_, fmt::format("decode, 1 x {}, {}, every point digested", kShort, who),
                     "ms", 1e3, seen.seconds, Figure::Whole::step, median_of(plain.seconds)});
  }
  void add_calls(std::vector<double> seconds) {
    list_.push_back({shape_, "all-reduce of a row, agreed on", "us", 1e6, std::move(seconds),
                     Figure::Whole::least});
  }
  std::vector<Figure> take() {
    std::vector<Figure> all = roofs_ ? roofs_->figures() : std::vector<Figure>();
    std::ranges::move(list_, std::back_inserter(all));
    return all;
  }

 private:
  std::string shape_;
  double bytes_;
  std::optional<DeviceRoofs> roofs_;
  std::vector<Figure> list_;
};

std::string decode_text() { return fmt::format("decode, 1 x {}", kShort); }
std::string prefill_text() { return fmt::format("prefill, {} tokens", kLong); }

// One device gives this, by the same clock and the same requests.
void measure_alone(const Checkpoint& checkpoint, Device device, RankSeat& seat,
                   RankFigures& figures) {
  seat.does(RankDoes::judges);  // the others wait for as long as it computes alone
  for (const bool graph : {false, true}) {
    if (graph && device == Device::cpu) continue;
    Engine engine(checkpoint, ops_of(device), options_of(device, graph));
    Server server(engine, checkpoint.config(), seat);
    const std::string who = graph ? "one rank, graphs" : "one rank";
    if (!graph) figures.add_times(who, 1, prefill_text(), server.prefills(), false);
    const Served plain = server.decode();
    figures.add_times(who, 1, decode_text(), plain.seconds, true);
    figures.add_digested(who, server.digested(), plain);
  }
}

}  // namespace

std::vector<Figure> measure_rank(const std::string& shape, const Checkpoint& checkpoint,
                                 Device device, RankSeat& seat) {
  std::optional<RankFigures> figures;
  if (seat.rank() == 0) figures.emplace(shape, checkpoint, device);
  if (figures) measure_alone(checkpoint, device, seat, *figures);
  Ranked ranked(checkpoint, seat, {.device = device});
  EngineOptions options;
  for (const bool graph : {false, true}) {
    if (graph && device == Device::cpu) continue;
    options = engine_of_rank(options_of(device, graph), seat.ranks());
    const auto engine = ranked.engine(ops_of(device), options, {});
    Server server(*engine, checkpoint.config(), seat);
    const std::vector<double> prefills = graph ? std::vector<double>() : server.prefills();
    const Served plain = server.decode(), seen = server.digested();
    if (!figures) continue;
    const std::string who = fmt::format("{} ranks{}", seat.ranks(), graph ? ", graphs" : "");
    if (!graph) figures->add_times(who, seat.ranks(), prefill_text(), prefills, false);
    figures->add_times(who, seat.ranks(), decode_text(), plain.seconds, true);
    figures->add_digested(who, seen, plain);
  }
  const std::vector<double> calls =
      call_seconds(ranked.seams(options).parts.exchange, checkpoint.config().hidden, device);
  if (!figures) return {};
  figures->add_calls(calls);
  return figures->take();
}

}  // namespace lockstep
