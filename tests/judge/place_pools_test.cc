#include "src/judge/place_pools.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <functional>
#include <random>
#include <stdexcept>
#include <thread>

#include "src/stats/distant_rows.h"
#include "src/stats/roundoff.h"

namespace lockstep {
namespace {

constexpr int kWidth = 64;
const PlacePools::Key kKey{{3, 1}, RoundingContract::fused};

// Rows that were measured elsewhere, whose columns are made when `made` returns.
class Distant final : public DistantRows {
 public:
  explicit Distant(std::function<void()> made, std::atomic<int>* gone = nullptr)
      : made_(std::move(made)), gone_(gone) {}
  ~Distant() override {
    if (gone_) ++*gone_;
  }
  void put_row(size_t, DistantRow&) const override { FAIL() << "rows are measured"; }
  std::shared_ptr<const DistantColumns> columns(std::span<const int64_t>) const override {
    made_();
    auto columns = std::make_shared<DistantColumns>();
    for (auto* of : {&columns->elements, &columns->squares, &columns->due, &columns->misrounded,
                     &columns->may_misround})
      of->assign(kWidth, 0);
    return columns;
  }

 private:
  std::function<void()> made_;
  std::atomic<int>* gone_;
};

// Two rows that no other seed has.
std::vector<Meter::Row> rows_of(int seed) {
  const Meter meter({.dtype = DType::bf16, .row_shape = {kWidth}}, 2);
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  std::vector<Meter::Row> rows;
  for (int64_t r = 0; r < 2; ++r) {
    std::vector<double> want, got, limit, variance;
    for (int i = 0; i < kWidth; ++i) {
      want.push_back(1 + std::fabs(normal(random)));
      const double unit = ulp(want.back(), DType::bf16);
      got.push_back(round_to(want.back() + 0.3 * unit * normal(random), DType::bf16));
      limit.push_back(unit);
      variance.push_back(unit * unit / 12);
    }
    rows.push_back(
        meter.measure(r, {got, want, limit, variance, {}, std::vector<double>(kWidth, 1e-3)}));
  }
  return rows;
}

// Sums in floating point tell in which order they were made.
TEST(PlacePools, AddRowsInTheirOrderWhoeverAddsThem) {
  const auto slow = [] { std::this_thread::sleep_for(std::chrono::milliseconds(1)); };
  PlacePool one_by_one;
  PlacePools pools;
  const PlacePools::Key other{{4, 1}, RoundingContract::fused};
  for (int seed = 0; seed < 40; ++seed) {
    const std::vector<Meter::Row> rows = rows_of(seed);
    const bool here = seed % 7 == 6;  // among others of the same pool that were measured elsewhere
    const Distant columns([] {});
    one_by_one.add_whole(rows, here ? nullptr : &columns);
    pools.add(kKey, rows, rows.size(), here ? nullptr : std::make_shared<Distant>(slow));
    pools.add(other, rows_of(100 + seed), 2, std::make_shared<Distant>([] {}));
  }
  pools.wait();
  const Moments &want = one_by_one.sum(), &got = pools.all().at(kKey).sum();
  EXPECT_EQ(got.rows, 80);
  EXPECT_EQ(pools.all().at(other).sum().rows, 80);
  EXPECT_EQ(std::tuple(got.elements, got.squares, got.due, got.power, got.misrounded),
            std::tuple(want.elements, want.squares, want.due, want.power, want.misrounded));
}

TEST(PlacePools, LetGoOfWhatWasMeasuredElsewhereAndHandOutItsMemory) {
  std::atomic<int> gone = 0;
  PlacePools pools;
  EXPECT_TRUE(pools.room().empty());
  pools.add(kKey, rows_of(1), 2, std::make_shared<Distant>([] {}, &gone));
  pools.add(kKey, rows_of(2), 1, nullptr);
  EXPECT_EQ(gone, 1);
  EXPECT_EQ(pools.room().size(), 2u);
  EXPECT_EQ(pools.room().size(), 2u);
  EXPECT_TRUE(pools.room().empty());
  EXPECT_EQ(pools.all().at(kKey).sum().rows, 3);
}

// Rows that were not added are missed, whenever it is asked for what they came to.
TEST(PlacePools, SayWhatStoodInTheWay) {
  PlacePools pools;
  const auto fails = [] { throw std::runtime_error("no memory for columns"); };
  pools.add(kKey, rows_of(1), 2, std::make_shared<Distant>(fails));
  EXPECT_NO_THROW(pools.let_end());
  EXPECT_THROW(pools.wait(), std::runtime_error);
  EXPECT_THROW(pools.add(kKey, rows_of(2), 2, nullptr), std::runtime_error);
  EXPECT_THROW(pools.wait(), std::runtime_error);
}

}  // namespace
}  // namespace lockstep
