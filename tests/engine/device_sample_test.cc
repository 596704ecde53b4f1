// Tokens drawn on a device are those that the CPU's sampler, which has tests of its own, draws from
// the same logits. Nothing of this runs on the CPU.
#include <limits>
#include <random>

#include "kernels/base/sample.h"
#include "src/engine/sampler.h"
#include "tests/fixtures.h"
#include "tests/kernels/cuda_samples.h"

namespace lockstep {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

class DeviceSample : public CudaTest {
 protected:
  // One token a sampling, of the rows in turn, with texts that differ.
  static void expect_as_on_cpu(const Tensor& logits, const std::vector<Sampling>& samplings) {
    const int64_t rows = logits.view().rows(), vocab = logits.view().shape[1];
    std::vector<int32_t> text, want, got(samplings.size());
    std::vector<DeviceDraw> draws;
    for (size_t i = 0; i < samplings.size(); ++i) {
      const Sampling& s = samplings[i];
      const std::vector<int32_t> own = some_tokens(1 + static_cast<int64_t>(i) % 50, vocab, i);
      const Draw draw{i, static_cast<uint32_t>(i % 3)};
      const int64_t row = static_cast<int64_t>(i) % rows, begin = std::ssize(text);
      want.push_back(choose(logits.view().slice(row, 1), s, own, draw));
      text.insert(text.end(), own.begin(), own.end());
      text.insert(text.end(), own.begin(), own.end());  // once is enough
      draws.push_back({.row = row,
                       .text_begin = begin,
                       .text_end = std::ssize(text),
                       .top_k = s.top_k,
                       .temperature = s.temperature,
                       .top_p = s.top_p,
                       .min_p = s.min_p,
                       .penalty = s.repetition_penalty,
                       .uniform = uniform(s.seed, draw)});
    }
    runtime_of(cuda_device()).sample(got, copy_on(cuda_device(), logits), draws, text);
    EXPECT_EQ(got, want);
    std::vector<int32_t> again(samplings.size());
    runtime_of(cuda_device()).sample(again, copy_on(cuda_device(), logits), draws, text);
    EXPECT_EQ(again, got);
  }

  static std::vector<Sampling> every_kind(uint64_t seed) {
    std::vector<Sampling> all;
    for (const double temperature : {0.0, 1e-9, 0.7, 1.0, 30.0})
      for (const int64_t top_k : {0, 1, 7, 100000})
        for (const double top_p : {1.0, 0.9, 0.3, 1e-9})
          for (const double min_p : {0.0, 0.05, 1.0})
            for (const double penalty : {1.0, 1.3, 0.5})
              all.push_back({temperature, top_k, top_p, min_p, penalty, seed++});
    return all;
  }
};

Tensor normal_logits(int64_t rows, int64_t vocab, DType dtype, double deviation) {
  std::mt19937_64 random(static_cast<uint64_t>(vocab));
  std::normal_distribution<float> normal(0, static_cast<float>(deviation));
  Tensor logits({rows, vocab}, dtype);
  for (int64_t i = 0; i < rows * vocab; ++i)
    if (dtype == DType::f32)
      logits.as<float>()[i] = normal(random);
    else
      logits.as<BFloat16>()[i] = from_float<BFloat16>(normal(random));
  return logits;
}

TEST_F(DeviceSample, DrawsAsTheCpuWhateverTheFilters) {
  for (const auto& [vocab, deviation] :
       {std::pair<int64_t, double>{1, 1}, {5, 1}, {1024, 3}, {1025, 0.01}, {40000, 4}}) {
    SCOPED_TRACE(fmt::format("{} tokens", vocab));
    expect_as_on_cpu(normal_logits(3, vocab, DType::f32, deviation), every_kind(7));
    // Logits of 16 bits have many equals.
    expect_as_on_cpu(normal_logits(3, vocab, DType::bf16, deviation), every_kind(8));
  }
}

TEST_F(DeviceSample, DrawsAsTheCpuFromAWholeVocabulary) {
  std::vector<Sampling> samplings;
  for (uint64_t seed = 0; seed < 24; ++seed) {
    samplings.push_back({.temperature = 1, .seed = seed});
    samplings.push_back({.temperature = 0.7, .top_k = 20, .top_p = 0.8, .seed = seed});
    samplings.push_back({.temperature = 1.5,
                         .top_p = 0.95,
                         .min_p = 0.01,
                         .repetition_penalty = 1.1,
                         .seed = seed});
  }
  expect_as_on_cpu(normal_logits(4, 151936, DType::bf16, 3), samplings);
}

TEST_F(DeviceSample, GivesARowWithoutADistributionItsArgmax) {
  const std::vector<float> rows[] = {
      {1, kNan, 3, kInf}, {1, 5, kInf, kInf}, {-kInf, -kInf, -kInf, -kInf}, {-kInf, 2, 2, -kInf}};
  Tensor logits({4, 4}, DType::f32);
  for (size_t r = 0; r < 4; ++r) std::ranges::copy(rows[r], logits.as<float>() + r * 4);
  expect_as_on_cpu(logits, every_kind(1));
}

TEST_F(DeviceSample, RefusesMoreTokensThanItCanCount) {
  const Tensor logits({1, (1 << 18) + 1}, DType::f32, cuda_device());
  std::vector<int32_t> out(1);
  expect_refused(
      [&] { runtime_of(cuda_device()).sample(out, logits, std::vector<DeviceDraw>(1), {}); },
      {"262144", "262145", "--device cpu"});
}

// Requests that sample beside one that does not, with forks: what was chosen is what the CPU's
// sampler draws from the logits that were seen.
TEST_F(DeviceSample, ServesWhatTheLogitsSay) {
  const Checkpoint checkpoint = Checkpoint::open(data_path("bard-qwen3"));
  const int64_t vocab = checkpoint.config().vocab;
  std::vector<Request> requests(3);
  for (size_t r = 0; r < 3; ++r) {
    requests[r].prompt = some_tokens(5 + static_cast<int64_t>(r), vocab, r);
    requests[r].max_new = 12;
  }
  requests[0].sampling = {.temperature = 0.8, .top_p = 0.9, .repetition_penalty = 1.2, .seed = 3};
  requests[0].samples = 3;
  requests[2].sampling = {.temperature = 1.2, .top_k = 30, .seed = 4};
  EngineOptions options{.device = cuda_device(), .graph = true, .dtype = DType::bf16};
  options.pages = 64;
  Engine engine(checkpoint, *ops_, options);
  for (const Request& request : requests) engine.submit(request);
  std::vector<Pass> passes;
  Recorder recorder(Selection("logits", "", "", ""), true,
                    [&](Pass pass) { passes.push_back(std::move(pass)); });
  Probe probe(&recorder);
  while (engine.step(probe)) {
  }
  ASSERT_EQ(probe.failure(), "");
  ASSERT_EQ(engine.requests(), 5);
  int64_t chosen = 0, sampled = 0;
  for (int32_t id = 0; id < 5; ++id) {
    const Sequence& s = engine.sequence(id);
    const Sampling& sampling = s.request.sampling;
    for (const Pass& pass : passes) {
      for (size_t row = 0; row < pass.info.logit_rows.size(); ++row) {
        const auto& of = pass.info.rows[static_cast<size_t>(pass.info.logit_rows[row])].row;
        // The first choice of a fork is made of its parent's row.
        const bool first =
            of.position + 1 == std::ssize(requests[static_cast<size_t>(s.root_request)].prompt);
        if (of.request != id && !(first && of.request == s.root_request)) continue;
        const std::span text(s.tokens.data(), static_cast<size_t>(of.position) + 1);
        const uint64_t made =
            text.size() - requests[static_cast<size_t>(s.root_request)].prompt.size();
        const int32_t want = choose(pass.tensors[0].data.view().slice(static_cast<int64_t>(row), 1),
                                    sampling, text, {made, static_cast<uint32_t>(s.sample)});
        EXPECT_EQ(s.tokens[text.size()], want) << "request " << id << " choice " << made;
        ++chosen;
        sampled += want == s.argmax[made] ? 0 : 1;
      }
    }
  }
  EXPECT_EQ(chosen, 5 * 12);
  EXPECT_GT(sampled, 5) << "that differ from the argmax";
}

}  // namespace
}  // namespace lockstep
