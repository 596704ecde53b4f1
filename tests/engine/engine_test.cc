#include "src/engine/engine.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <set>

#include "tests/fixtures.h"

namespace lockstep {
namespace {

class EngineTest : public testing::Test {
 protected:
  static const Checkpoint& bard() {
    static const Checkpoint checkpoint = Checkpoint::open(data_path("bard-qwen3"));
    return checkpoint;
  }
  static Request request(int64_t tokens, int64_t max_new, uint64_t seed = 1) {
    return {.prompt = some_tokens(tokens, bard().config().vocab, seed), .max_new = max_new};
  }
  static std::vector<int32_t> alone(const Request& r) {
    return serve_for_tokens(bard(), {.dtype = DType::f32}, {r}).sequences[0].argmax;
  }
};

// The hash of the logits of every pass, with other points on or off.
uint64_t logits_of_a_run(const Checkpoint& checkpoint, DType dtype, const std::string& points) {
  Engine engine(checkpoint, cpu_ops(), {.dtype = dtype, .pages = 8});
  engine.submit({.prompt = some_tokens(37, checkpoint.config().vocab), .max_new = 64});
  std::vector<uint64_t> hashes;
  Recorder recorder(Selection(points, "", "", ""), true, [&](Pass pass) {
    hashes.push_back(pass.find(point("logits"), -1)->digest.hash);
  });
  Probe probe(&recorder);
  while (engine.step(probe)) {
  }
  EXPECT_EQ(hashes.size(), 64u);
  return hash_of(hashes.data(), hashes.size() * sizeof(uint64_t));
}

TEST_F(EngineTest, ProbesDoNotChangeOneBitOfTheLogits) {
  for (DType dtype : {DType::bf16, DType::f16, DType::f32})
    EXPECT_EQ(logits_of_a_run(bard(), dtype, "logits"), logits_of_a_run(bard(), dtype, ""))
        << name_of(dtype);
}

TEST_F(EngineTest, AProbeThatIsOffSeesNothingAndTheTokensAreTheSame) {
  const Request r = request(20, 12);
  Engine engine(bard(), cpu_ops(), {.dtype = DType::bf16, .pages = 4});
  engine.submit(r);
  Probe off;
  while (engine.step(off)) {
  }
  EXPECT_EQ(engine.sequence(0).argmax, serve(bard(), {}, {r}).sequences[0].argmax);
}

// Who is told, in the order in which they ended.
TEST_F(EngineTest, ARequestThatEndsIsToldOnceWhereNobodyCanFindItsCacheAgain) {
  const auto ended = [](EngineOptions options) {
    options.dtype = DType::f32;
    Engine engine(bard(), cpu_ops(), options);
    engine.submit(request(9, 4));
    engine.submit(request(7, 2));
    Request sampled = request(5, 2);
    sampled.samples = 2;  // it is forked, and the fork is request 3
    engine.submit(sampled);
    std::vector<int32_t> all;
    Probe off;
    while (engine.step(off)) std::ranges::copy(engine.take_ended(), std::back_inserter(all));
    EXPECT_EQ(engine.requests(), 4);
    for (int32_t id = 0; id < engine.requests(); ++id)
      EXPECT_NE(engine.sequence(id).ending, Ending::none);
    EXPECT_EQ(engine.pool().available(), engine.pool().pages()) << "all are given back";
    return all;
  };
  EXPECT_EQ(ended({.pages = 12}), (std::vector<int32_t>{1, 0}));
  EXPECT_TRUE(ended({.pages = 12, .prefix_cache = true}).empty());
}

TEST_F(EngineTest, EveryPointOfTheTableIsShownInGraphOrder) {
  for (const char* model : {"bard-qwen3", "bard-qwen2.5"}) {
    const Checkpoint checkpoint = Checkpoint::open(data_path(model));
    const Served served = serve(checkpoint, {}, {{.prompt = {1, 2, 3}, .max_new = 2}});
    ASSERT_EQ(served.passes.size(), 2u);
    for (const Pass& pass : served.passes) {
      std::vector<Place> seen;
      for (const RecordedTensor& t : pass.tensors) seen.push_back({t.point, t.layer});
      EXPECT_EQ(seen, graph_of(checkpoint.config()).places());
    }
  }
}

TEST_F(EngineTest, NothingIsComputedTwiceAndTheLastTokenIsNeverFed) {
  const Served served = serve(bard(), {.page_size = 4}, {request(9, 5)});
  ASSERT_EQ(served.passes.size(), 5u);
  std::set<int32_t> positions;
  for (const Pass& pass : served.passes)
    for (const PassRow& row : pass.info.rows)
      EXPECT_TRUE(positions.insert(row.row.position).second) << "position computed twice";
  EXPECT_EQ(positions.size(), 9u + 4u);
  EXPECT_EQ(served.sequences[0].argmax.size(), 5u);
  EXPECT_EQ(served.passes[1].info.rows[0].token, served.sequences[0].argmax[0])
      << "the token chosen by prefill is the first one decoded";
}

TEST_F(EngineTest, ForcedTokensAreFedAndTheOwnChoicesAreKept) {
  const Request free = request(12, 4);
  Request forced = free;
  forced.forced = {5, 6, 7};
  const Served served = serve(bard(), {.dtype = DType::f32}, {forced});
  ASSERT_EQ(served.passes.size(), 4u);
  for (size_t i = 0; i < 3; ++i)
    EXPECT_EQ(served.passes[i + 1].info.rows[0].token, forced.forced[i]);
  EXPECT_EQ(served.sequences[0].argmax[0], alone(free)[0]);
}

TEST_F(EngineTest, ManyRequestsGiveTheTokensThatEachGivesAlone) {
  std::vector<Request> requests;
  for (uint64_t i = 0; i < 5; ++i)
    requests.push_back(request(1 + 17 * static_cast<int64_t>(i), 6 + static_cast<int64_t>(i), i));
  std::vector<std::vector<int32_t>> each_alone;
  for (const Request& one : requests) each_alone.push_back(alone(one));
  for (int64_t page_size : {1, 3, 16, 256})
    for (int64_t chunk : {0, 7})
      for (int64_t max_batch : {0, 2}) {
        const Served served = serve_for_tokens(bard(),
                                               {.dtype = DType::f32,
                                                .page_size = page_size,
                                                .page_order_seed = 11,
                                                .chunk = chunk,
                                                .max_batch = max_batch,
                                                .threads = 1 + static_cast<int>(chunk > 0)},
                                               requests);
        for (size_t i = 0; i < requests.size(); ++i)
          EXPECT_EQ(served.sequences[i].argmax, each_alone[i])
              << "request " << i << " page size " << page_size << " chunk " << chunk;
      }
}

TEST_F(EngineTest, ARequestThatDoesNotFitYetWaitsForPages) {
  // Each needs 2 pages and the pool has 3: they can only run one after the other.
  const std::vector<Request> requests = {request(20, 3, 1), request(20, 3, 2)};
  const Served served = serve(bard(), {.dtype = DType::f32, .pages = 3}, requests);
  for (const Pass& pass : served.passes) EXPECT_EQ(pass.info.pages.size(), 1u);
  for (size_t i = 0; i < 2; ++i) EXPECT_EQ(served.sequences[i].argmax, alone(requests[i]));
}

TEST_F(EngineTest, AnEndOfTextTokenEndsTheRequest) {
  Request r = request(10, 8);
  const std::vector<int32_t> all = alone(r);
  r.eos = {all[2]};
  const auto first = std::ranges::find(all, all[2]) - all.begin();
  EXPECT_EQ(alone(r).size(), static_cast<size_t>(first) + 1);
}

TEST_F(EngineTest, PagesAreHandedOutPoisoned) {
  // A fresh page that nobody wrote to reads as the poison; the tokens do not change with it.
  const Request r = request(18, 4);
  const auto tokens = [&](float poison) {
    return serve(bard(), {.poison = poison}, {r}).sequences[0].argmax;
  };
  EXPECT_EQ(tokens(std::numeric_limits<float>::quiet_NaN()), tokens(30000.0f));
}

TEST_F(EngineTest, TheEngineAgainstItselfIsEqualBitForBit) {
  const std::vector<Request> requests = {request(33, 5, 1), request(5, 5, 2)};
  const Served a = serve(bard(), {}, requests), b = serve(bard(), {}, requests);
  ASSERT_EQ(a.passes.size(), b.passes.size());
  for (size_t i = 0; i < a.passes.size(); ++i)
    for (size_t j = 0; j < a.passes[i].tensors.size(); ++j)
      EXPECT_EQ(a.passes[i].tensors[j].digest.hash, b.passes[i].tensors[j].digest.hash);
}

// The embedding, which would read it, is not to blame.
TEST_F(EngineTest, AChoiceThatIsNoTokenIsThatOfArgmax) {
  for (const int32_t wrong : {4101, -1}) {
    Ops ops = cpu_ops();
    ops.argmax = [wrong](const OpContext&, const TensorView& out, const TensorView&) {
      for (int64_t i = 0; i < out.count(); ++i) out.as<int32_t>()[i] = wrong;
    };
    Probe off(nullptr);
    Engine last(bard(), ops, {.pages = 2});
    last.submit({.prompt = {1}, .max_new = 1});
    EXPECT_NO_THROW(last.step(off)) << "nothing reads it";
    Engine engine(bard(), ops, {.pages = 2});
    engine.submit({.prompt = {1}, .max_new = 2});
    const std::string said = error_of([&] { engine.step(off); });
    EXPECT_TRUE(said.starts_with(fmt::format("argmax chose token {} for position 1", wrong)))
        << said;
  }
}

TEST_F(EngineTest, BadRequestsAreRefusedWithASentence) {
  Engine engine(bard(), cpu_ops(), {.pages = 2});
  EXPECT_NE(error_of([&] { engine.submit({}); }).find("empty prompt"), std::string::npos);
  EXPECT_NE(error_of([&] { engine.submit({.prompt = {4096}}); }).find("0..4095"),
            std::string::npos);
  EXPECT_NE(error_of([&] { engine.submit({.prompt = {1}, .forced = {-1}}); }).find("token -1"),
            std::string::npos);
  EXPECT_NE(error_of([&] { engine.submit({.prompt = {1}, .max_new = 0}); }).find("--max-new"),
            std::string::npos);
  EXPECT_NE(error_of([&] { engine.submit(request(40, 1)); }).find("raise --pages"),
            std::string::npos);
  EXPECT_NE(error_of([&] {
              Engine(bard(), cpu_ops(), {.page_size = 257, .pages = 1});
            }).find("--page-size"),
            std::string::npos);
}

}  // namespace
}  // namespace lockstep
