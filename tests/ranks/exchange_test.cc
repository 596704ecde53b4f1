// Ranks that call different collectives say so before any of them is called.
#include "src/ranks/exchange.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <optional>

#include "kernels/base/memory.h"
#include "probes/points.h"

namespace lockstep {
namespace {

// A rank 0 of two whose peer tells what it is given, or the same as rank 0.
class Peer final : public Collectives {
 public:
  int rank() const override { return 0; }
  int ranks() const override { return 2; }
  void all_reduce(const TensorView&) override { ++reduced; }
  void all_gather(const TensorView& parts, const TensorView& part) override {
    const auto size = static_cast<size_t>(part.bytes());
    std::memcpy(told.data(), part.data, size);
    std::memcpy(parts.data, part.data, size);
    std::memcpy(parts.as<char>() + size, tells ? tells->data() : part.data, size);
  }
  void reduce_scatter(const TensorView&, const TensorView&) override { ++scattered; }
  void send(const std::vector<std::byte>&, int) override {}
  std::vector<std::byte> receive(int) override { return {}; }

  int reduced = 0, scattered = 0;
  std::optional<std::array<int64_t, 5>> tells;
  std::array<int64_t, 5> told;  // last by rank 0
};

class ExchangeTest : public testing::Test {
 protected:
  void reduce() { agreed_.table().all_reduce({.layer = 3, .point = "attn.o"}, sum_); }
  Peer peer_;
  AgreedCalls agreed_{peer_, told_by(peer_), {}};
  Tensor sum_{Shape{2, 4}, DType::bf16};
};

TEST_F(ExchangeTest, CallsWhatAllRanksCall) {
  reduce();
  reduce();
  EXPECT_EQ(peer_.reduced, 2);
  EXPECT_EQ(agreed_.calls(), 2);
  EXPECT_EQ(agreed_.bytes(), 2 * 16);
}

// What a rank is left with is counted, and a call of another kind is another call.
TEST_F(ExchangeTest, TellsAReduceScatterFromAnAllReduce) {
  const Tensor parts(Shape{4, 4}, DType::bf16);
  const OpContext context{.layer = 3, .point = "attn.o"};
  agreed_.table().reduce_scatter(context, parts, sum_);
  EXPECT_EQ(peer_.scattered, 1);
  EXPECT_EQ(agreed_.bytes(), 16);
  peer_.tells = {0, point("attn.o").order(), 3, 16, static_cast<int64_t>(DType::bf16)};
  EXPECT_THROW(agreed_.table().reduce_scatter(context, parts, sum_), RanksParted);
  EXPECT_EQ(peer_.scattered, 1);
}

TEST_F(ExchangeTest, SaysWhoPartsAndCallsNothing) {
  const auto order = static_cast<int64_t>(point("attn.o").order());
  const auto dtype = static_cast<int64_t>(DType::bf16);
  const std::array<int64_t, 5> same = {0, order, 3, 16, dtype};
  for (size_t field = 0; field < same.size(); ++field) {
    peer_.tells = same;
    (*peer_.tells)[field] += field == 4 ? -1 : 1;
    try {
      reduce();
      ADD_FAILURE() << "field " << field;
    } catch (const RanksParted& parted) {
      EXPECT_EQ(parted.rank, 1);
      EXPECT_EQ(parted.call.layer, 3);
      EXPECT_NE(std::string(parted.what()).find("all-reduce of layer 3 attn.o, 16 bytes of bf16"),
                std::string::npos)
          << parted.what();
    }
  }
  EXPECT_EQ(peer_.reduced, 0);
  peer_.tells = same;
  reduce();
  EXPECT_EQ(peer_.reduced, 1);
}

// The calls of a pass that is captured after it was computed are not made again; those of its graph
// are, at each replay, and nobody calls them.
TEST_F(ExchangeTest, CountsTheCallsOfAGraphOnceAReplay) {
  const DeviceBatch::Room room{.tokens = 2};
  for (int computed_then_captured = 0; computed_then_captured < 2; ++computed_then_captured) {
    agreed_.begin(0, room);
    reduce();
    reduce();
  }
  EXPECT_EQ(agreed_.calls(), 2);
  agreed_.replay(room);
  agreed_.replay(room);
  EXPECT_EQ(agreed_.calls(), 6);
  EXPECT_EQ(agreed_.bytes(), 6 * 16);
  EXPECT_EQ(agreed_.replays(), 2);
  EXPECT_EQ(peer_.reduced, 4);
}

TEST_F(ExchangeTest, SaysWhoReplaysAnotherGraph) {
  const Tensor parts(Shape{4, 4}, DType::bf16);
  const auto scatter = [&] {
    agreed_.table().reduce_scatter({.layer = 3, .point = "attn.o"}, parts, sum_);
  };
  const DeviceBatch::Room room{.tokens = 2}, other{.tokens = 4};
  agreed_.begin(0, room);
  reduce();
  scatter();
  agreed_.begin(1, other);
  scatter();
  reduce();
  agreed_.replay(other);
  peer_.tells = peer_.told;
  EXPECT_EQ((*peer_.tells)[1], 2) << "calls";
  agreed_.replay(other);
  try {
    agreed_.replay(room);
    ADD_FAILURE() << "the same calls in another order";
  } catch (const RanksParted& parted) {
    EXPECT_EQ(parted.call.kind, CollectiveCall::Kind::graph);
    EXPECT_NE(std::string(parted.what()).find("a graph of 2 collectives, 32 bytes in all"),
              std::string::npos)
        << parted.what();
  }
  peer_.tells.reset();
  reduce();
  peer_.tells = peer_.told;
  EXPECT_THROW(agreed_.replay(other), RanksParted) << "where another rank computes op by op";
}

}  // namespace
}  // namespace lockstep
