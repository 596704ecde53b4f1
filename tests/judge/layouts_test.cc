// Rows whose numbers are right and lie elsewhere.
#include "src/judge/layouts.h"

#include <gtest/gtest.h>

#include <vector>

namespace lockstep {
namespace {

constexpr size_t kHeads = 4, kDim = 6;

std::vector<double> row() {
  std::vector<double> values;
  for (size_t i = 0; i < kHeads * kDim; ++i)
    values.push_back(static_cast<double>(i * i % 97) - 40.5);
  return values;
}

std::optional<Order> found(const std::vector<double>& got) {
  const std::vector<double> limit(got.size(), 0.25);
  return order_of_row(row(), got, limit, {kHeads, kDim});
}

TEST(Order, OfEachKindIsFound) {
  const std::vector<double> want = row();
  std::vector<double> interleaved, apart, halves, dims_first, heads;
  for (size_t h = 0; h < kHeads; ++h)
    for (size_t d = 0; d < kDim / 2; ++d)
      for (const size_t half : {size_t{0}, kDim / 2}) {
        interleaved.push_back(want[h * kDim + d + half] + 0.2);
        apart.push_back(0), halves.push_back(0);
      }
  for (size_t h = 0; h < kHeads; ++h)
    for (size_t d = 0; d < kDim; ++d) {
      apart[h * kDim + d / 2 + d % 2 * (kDim / 2)] = want[h * kDim + d];
      halves[h * kDim + (d + kDim / 2) % kDim] = want[h * kDim + d];
    }
  for (size_t d = 0; d < kDim; ++d)
    for (size_t h = 0; h < kHeads; ++h) dims_first.push_back(want[h * kDim + d]);
  for (const size_t h : {0, 2, 1, 3})
    for (size_t d = 0; d < kDim; ++d) heads.push_back(want[h * kDim + d]);
  EXPECT_EQ(found(interleaved), Order::interleaved);
  EXPECT_EQ(found(apart), Order::deinterleaved);
  EXPECT_EQ(found(halves), Order::halves);
  EXPECT_EQ(found(dims_first), Order::dims_first);
  EXPECT_EQ(found(heads), Order::heads);
  // One number that is off is no order.
  interleaved[7] += 0.2;
  EXPECT_FALSE(found(interleaved));
  EXPECT_FALSE(found(std::vector<double>(kHeads * kDim, 1e9)));
}

TEST(Order, IsOfAllWrongRowsOrOfNone) {
  RowOrders orders;
  EXPECT_FALSE(orders.of_all());
  orders.add(false, {});
  orders.add(true, Order::interleaved);
  orders.add(true, Order::interleaved);
  EXPECT_EQ(orders.of_all(), Order::interleaved);
  orders.add(true, Order::halves);
  EXPECT_FALSE(orders.of_all());
}

}  // namespace
}  // namespace lockstep
