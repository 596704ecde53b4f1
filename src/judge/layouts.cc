// Recognises a row that is right but in another order: RoPE's pairs interleaved, halves exchanged,
// heads regrouped, dims before heads. The order is accepted only where every element fits its own
// budget there, and a row is too short to be taken for one by chance.
#include "src/judge/layouts.h"

#include <array>
#include <cmath>
#include <cstddef>

namespace lockstep {
namespace {

constexpr size_t kLeast = 8;  // elements of a row that are no chance

struct Axes {
  size_t heads = 1, dim = 1;
  size_t group = 0;  // heads of a group, of the order `heads`
};

// Where the model has the element that lies at i.
size_t source_of(size_t i, Order order, const Axes& axes) {
  const size_t head = i / axes.dim, d = i % axes.dim, half = axes.dim / 2;
  const auto at = [&](size_t of) { return head * axes.dim + of; };
  switch (order) {
    case Order::interleaved:
      return at(d / 2 + (d % 2) * half);
    case Order::deinterleaved:
      return at(2 * (d % half) + d / half);
    case Order::halves:
      return at((d + half) % axes.dim);
    case Order::dims_first:
      return i % axes.heads * axes.dim + i / axes.heads;
    case Order::heads: {
      const size_t groups = axes.heads / axes.group;
      return (head % groups * axes.group + head / groups) * axes.dim + d;
    }
  }
  return i;
}

// Every element within the limit of the one it is said to be.
bool fits(std::span<const double> want, std::span<const double> got, std::span<const double> limit,
          Order order, const Axes& axes) {
  for (size_t i = 0; i < got.size(); ++i) {
    const size_t from = source_of(i, order, axes);
    if (!(std::fabs(got[i] - want[from]) <= limit[from])) return false;
  }
  return true;
}

}  // namespace

std::string text_of(Order order) {
  switch (order) {
    case Order::interleaved:
      return "pairs are interleaved";
    case Order::deinterleaved:
      return "pairs were taken apart once too often";
    case Order::halves:
      return "the halves of each head have changed places";
    case Order::dims_first:
      return "dims lie before heads";
    case Order::heads:
      return "heads are in another order";
  }
  return "";
}

// Orders are tried from the likeliest on; a short row fits too easily, and has none.
std::optional<Order> order_of_row(std::span<const double> want, std::span<const double> got,
                                  std::span<const double> limit, const Shape& row_shape) {
  if (got.size() < kLeast || row_shape.rank() < 1 || row_shape.rank() > 2) return {};
  Axes axes;
  axes.dim = row_shape.last();
  axes.heads = got.size() / axes.dim;
  if (axes.dim % 2 == 0)
    for (const Order order : {Order::interleaved, Order::deinterleaved, Order::halves})
      if (fits(want, got, limit, order, axes)) return order;
  if (axes.heads > 1 && fits(want, got, limit, Order::dims_first, axes)) return Order::dims_first;
  for (axes.group = 2; axes.group < axes.heads; ++axes.group)
    if (axes.heads % axes.group == 0 && fits(want, got, limit, Order::heads, axes))
      return Order::heads;
  return {};
}

void RowOrders::add(bool wrong, std::optional<Order> found) {
  if (!wrong) return;
  ++rows;
  if (!found || (order && *order != *found)) return;
  order = found;
  ++ordered;
}

}  // namespace lockstep
