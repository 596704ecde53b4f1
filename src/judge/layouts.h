// Orders in which an engine may hold the numbers of a row: a right op whose dims are elsewhere is
// told from a wrong one.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "kernels/base/tensor.h"

namespace lockstep {

// The orders that are known, of a row [heads, dim] or [dim].
enum class Order : uint8_t {
  interleaved,    // dims i and i + dim / 2 of the model lie beside each other
  deinterleaved,  // dims 2 i and 2 i + 1 of the model lie half a head apart
  halves,         // the halves of each head have changed places
  dims_first,     // [dim, heads]
  heads,          // [groups, heads of a group] lies as [heads of a group, groups]
};
// A sentence for people: "pairs are interleaved".
std::string text_of(Order order);

// The order under which every element of `got` is within the budget of the element of `want` that
// belongs there. Nothing where none is, or where it is so as they stand. All have one length, the
// product of row_shape.
std::optional<Order> order_of_row(std::span<const double> want, std::span<const double> got,
                                  std::span<const double> limit, const Shape& row_shape);

// Counts what the wrong rows of a node have in common.
struct RowOrders {
  int64_t rows = 0, ordered = 0;  // wrong ones, and those of them that are right in `order`
  std::optional<Order> order;

  void add(bool wrong, std::optional<Order> found);
  // Where all wrong rows are right in one order.
  std::optional<Order> of_all() const { return rows > 0 && rows == ordered ? order : std::nullopt; }
};

}  // namespace lockstep
