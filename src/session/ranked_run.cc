#include "src/session/ranked_run.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>
#include <cstdlib>

#include "kernels/base/check.h"
#include "kernels/base/printable.h"
#include "src/session/collectives_library.h"
#include "src/session/device.h"
#include "src/session/judged_run.h"
#include "src/session/modes.h"
#include "src/session/provenance.h"
#include "src/session/ranked.h"
#include "src/session/session.h"

namespace lockstep {

void check_can_share(const RunOptions& options) {
  constexpr int64_t kMostRanks = 64;
  check(options.ranks <= kMostRanks, "--tp is at most {}, found {}", kMostRanks, options.ranks);
  const auto refuse = [](bool found, const char* option) {
    check(!found, "--tp was found with {}, which is not built for several ranks: leave one out",
          option);
  };
  check(options.model.device == "cpu" || options.model.device == "cuda",
        "--tp puts rank 0 on CUDA device 0, rank 1 on 1, and so on, found --device {}: give "
        "--device cuda",
        options.model.device);
  refuse(!options.model.instructions.executor.empty(), "--executor");
  refuse(options.determinism > 0, "--determinism");
  refuse(options.confirm, "--confirm");
  refuse(options.error_budget, "--error-budget");
  refuse(!options.observe.record_before.empty(), "--record-before");
  check(options.modes.empty() || asks_for_ranks(options.modes),
        "--modes {} compares ways to serve a model over no ranks, found --tp {}: add the mode tp, "
        "or leave --tp out",
        options.modes, options.ranks);
  for (const FaultRequest& fault : parse_faults(options.faults))
    check(fault.rank < options.ranks,
          "--fault {} names rank {}, but the ranks are 0..{}: name one of those", fault.name,
          fault.rank, options.ranks - 1);
  const ModelConfig config = read_config(options.model.model);
  for (int rank = 0; rank < options.ranks; ++rank)
    plan_of(config, rank, static_cast<int>(options.ranks));
}

std::string device_of_rank(const std::string& device, const RankSeat& seat) {
  if (device == "cpu") return device;
  const Rendezvous* elsewhere = seat.elsewhere();
  const int devices = cuda_devices(), card = elsewhere ? elsewhere->gpu : seat.rank();
  check(devices > (elsewhere ? card : seat.ranks() - 1),
        "{} ranks need as many CUDA devices, and this machine has {}: give a lower --tp, or "
        "--device cpu",
        seat.ranks(), devices);
  return Device{DeviceKind::cuda, card}.text();
}

namespace {

// A number from text; `whose` begins the Error on anything else.
int64_t number_from(const std::string& text, int64_t most, const std::string& whose) {
  int64_t number = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  check(error == std::errc() && end == text.data() + text.size() && number >= 0 && number <= most,
        "{} is '{}': a number from 0 to {} was wanted", whose, shown(text), most);
  return number;
}

Rendezvous meeting_at(const std::string& place, const std::string& whose) {
  const size_t colon = place.rfind(':');
  check(colon != std::string::npos && colon > 0, "{} is '{}': HOST:PORT was wanted", whose,
        shown(place));
  const int64_t port = number_from(place.substr(colon + 1), 65535, "the port of " + whose);
  check(port > 0, "the port of {} is 0: one that all ranks know was wanted", whose);
  return {.host = place.substr(0, colon), .port = static_cast<int>(port)};
}

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

// All that torchrun tells a rank; nothing where it did not start this process.
std::optional<Rendezvous> from_torchrun(RunOptions& options) {
  const std::string rank = variable("RANK"), world = variable("WORLD_SIZE"),
                    host = variable("MASTER_ADDR"), port = variable("MASTER_PORT");
  if (rank.empty() || world.empty() || host.empty() || port.empty()) return {};
  check(number_from(world, 1 << 20, "WORLD_SIZE") == options.ranks,
        "torchrun started {} ranks (WORLD_SIZE), found --tp {}: give the same number twice", world,
        options.ranks);
  options.rank = number_from(rank, options.ranks - 1, "RANK");
  Rendezvous there = meeting_at(host + ":" + port, "MASTER_ADDR:MASTER_PORT");
  there.hosted = variable("TORCHELASTIC_USE_AGENT_STORE") == "True";
  there.name += "/" + variable("TORCHELASTIC_RESTART_COUNT");
  const std::string local = variable("LOCAL_RANK");
  there.gpu =
      static_cast<int>(local.empty() ? options.rank : number_from(local, 1 << 20, "LOCAL_RANK"));
  return there;
}

}  // namespace

std::optional<Rendezvous> rendezvous_of(RunOptions& options) {
  if (options.rank < 0 && options.rendezvous.empty())
    return options.ranks > 1 ? from_torchrun(options) : std::nullopt;
  check(options.rank >= 0 && !options.rendezvous.empty(),
        "--rank and --rendezvous belong together, found one of them: add the other");
  check(options.ranks > 1, "--rank is one of several, found no --tp: add --tp 2, or more");
  check(options.rank < options.ranks, "--rank is {}, but the ranks are 0..{}: name one of those",
        options.rank, options.ranks - 1);
  Rendezvous there = meeting_at(options.rendezvous, "--rendezvous");
  there.gpu = static_cast<int>(options.rank);
  return there;
}

// The provenance has most of it. Of the machine, and of where files lie, ranks need not be alike.
Ranked::Brings brings_of(const RunOptions& options, const Session& session) {
  const bool by_rows = options.sequence_parallel;
  if (options.rank < 0)  // forks of one process
    return {.device = session.engine.device, .by_rows = by_rows};
  std::map<std::string, std::string> facts = provenance_of(session, {});
  for (const char* own : {"created_utc", "command_line", "model", "cpu", "gpu", "gpu_driver"})
    facts.erase(own);
  facts["ranks"] = std::to_string(options.ranks);
  facts["sequence_parallel"] = by_rows ? "1" : "0";
  facts["faults"] = fmt::format("{}", fmt::join(options.faults, " "));
  facts["modes"] = options.modes;
  facts["points"] = options.observe.points;
  facts["layers"] = options.observe.layers;
  facts["positions"] = options.observe.positions;
  for (const Request& request : session.requests) {
    const Sampling& s = request.sampling;
    facts["max_new"] += fmt::format("{} ", request.max_new);
    if (!request.forced.empty())
      facts["forced"] += fmt::format("{} ", fmt::join(request.forced, ","));
    for (const std::vector<int32_t>& sample : request.forced_samples)
      facts["forced"] += fmt::format("{} ", fmt::join(sample, ","));
    facts["samples"] += fmt::format("{} ", request.samples);
    facts["sampling"] += fmt::format("{}/{}/{}/{}/{}/{} ", s.temperature, s.top_k, s.top_p, s.min_p,
                                     s.repetition_penalty, s.seed);
  }
  const auto patience = std::chrono::duration<double>(options.rank_patience);
  return {.device = session.engine.device,
          .by_rows = by_rows,
          .patience = std::chrono::duration_cast<std::chrono::milliseconds>(patience),
          .facts = std::move(facts)};
}

void serve_as_rank(Ranked& ranked, const Ops& ops, const EngineOptions& engine,
                   const std::vector<Request>& requests, const std::vector<FaultRequest>& faults,
                   const Selection& selection) {
  EngineOptions own = engine_of_rank(engine, ranked.ranks(), faults);
  RankSeams seams = ranked.seams(own);
  Seeded seeded(ops, faults_in_rank(faults, ranked.rank()), ranked.config(), own.device, nullptr,
                &seams);
  const auto made = ranked.engine(seeded.ops, own, seeded.hooks);
  for (const Request& request : requests) made->submit(request);
  ranked.serve(*made, selection);
}

namespace {

// One rank's share of run(): rank 0 judges and returns the result; the others serve it, and return
// nothing.
std::optional<Result> run_rank(const RunOptions& asked,
                               const std::vector<std::string>& command_line, RankSeat& seat) {
  RunOptions options = asked;
  options.model.device = device_of_rank(options.model.device, seat);
  if (seat.rank() == 0) return run(options, command_line, &seat);
  seat.does(RankDoes::loads);
  Session session = open_session(options.model);
  Ranked ranked(session.checkpoint, seat, brings_of(options, session));
  if (!options.modes.empty()) {
    serve_modes(modes_run(options, session), ranked);
    return {};
  }
  serve_as_rank(ranked, session.ops, session.engine, session.requests, parse_faults(options.faults),
                options.observe.selection());
  return {};
}

}  // namespace

int run_over_ranks(const RunOptions& options, const std::optional<Rendezvous>& elsewhere,
                   const std::vector<std::string>& command_line,
                   const std::function<int(const Result&)>& show) {
  using std::chrono::milliseconds, std::chrono::duration_cast;
  const auto patience =
      duration_cast<milliseconds>(std::chrono::duration<double>(options.rank_patience));
  const int ranks = static_cast<int>(options.ranks);
  const auto body = [&](RankSeat& seat) {
    const std::optional<Result> result = run_rank(options, command_line, seat);
    return result ? show(*result) : 0;
  };
  // Half of a short run is the opening of LibTorch, which starts no thread: ranks on CPUs are forks
  // of a process that has done it once. That of a GPU is each rank's own.
  if (!elsewhere && options.model.device == "cpu") open_collectives(DeviceKind::cpu);
  if (!elsewhere) return run_ranks(ranks, patience, body);
  const milliseconds later = patience + milliseconds(5000);  // first it says itself what it misses
  return join_ranks(static_cast<int>(options.rank), ranks, *elsewhere, later, body);
}

}  // namespace lockstep
