// Ways in which rotary embedding takes other positions than its rows have: those of other rows and
// requests, counted from elsewhere, off by some, or what the result itself tells.
//
// A row's result tells the position that it was turned by, as one number explains all of its pairs
// and heads. Where these positions are the right ones moved by one number, that is the cause; an
// order that has a name of its own is asked by that name; and what is left is said to be another.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/outer.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <set>

#include "reference/hypotheses/rotary.h"

namespace lockstep {
namespace {

using at::Tensor;

// By which each row seems to be turned. With the pairs as complex numbers, y = x e^(i p f_j): the p
// that has the largest sum over pairs of Re(conj(x e^(i p f_j)) y).
std::vector<double> told_positions(const Asked& a) {
  constexpr int64_t kMostRows = 64, kMostPositions = 8192;
  if (a.rows() > kMostRows || RightRotation::recipe_of(a).magnitude() != 1) return {};
  const std::vector<double> f = RightRotation::recipe_of(a).frequencies(
      a.model().recipe.head_dim, RightRotation::length_of(a));
  std::vector<double> tried;
  for (int64_t p = -64; p < std::min(2 * RightRotation::length_of(a) + 64, kMostPositions); ++p)
    tried.push_back(as_fp64(p));
  const Tensor angle = at::outer(a.tensor(tried), a.tensor(f));
  const auto x = a.input(0).chunk(2, -1), y = a.got().view(a.input(0).sizes()).chunk(2, -1);
  const Tensor with = (x[0] * y[0] + x[1] * y[1]).sum(1),
               across = (x[0] * y[1] - x[1] * y[0]).sum(1);
  const Tensor best = (at::matmul(with.nan_to_num(0), angle.cos().t()) +
                       at::matmul(across.nan_to_num(0), angle.sin().t()))
                          .argmax(-1);
  std::vector<double> positions;
  for (int64_t i = 0; i < a.rows(); ++i)
    positions.push_back(tried[static_cast<size_t>(best[i].item<int64_t>())]);
  return positions;
}
// Positions of others than the row's own: off by some, counted from the pass's first row, of a
// neighbour in the pass or in the batch.
std::vector<double> offsets(const Asked& a) {
  std::vector<double> all = {-1, 1, -2, 2};
  const std::vector<double> told = told_positions(a), right = RightRotation::right_positions(a);
  std::map<double, size_t> times;
  for (size_t i = 0; i < told.size(); ++i) ++times[told[i] - right[i]];
  for (const auto& [by, count] : times)
    if (by != 0 && 2 * count > told.size() && std::ranges::count(all, by) == 0) all.push_back(by);
  return all;
}
Tensor position_off(const Asked& a, double by) {
  std::vector<double> positions = RightRotation::right_positions(a);
  for (double& p : positions) p += by;
  return RightRotation::at_positions(a, positions);
}
// The first position that each row's request has in this pass.
std::vector<double> starts(const Asked& a) {
  std::vector<double> starts;
  std::map<int32_t, double> first;
  for (size_t i = 0; i < a.op().call.rows.size(); ++i) {
    const Row& row = a.op().call.rows[i];
    starts.push_back(first.try_emplace(row.request, row.position).first->second);
  }
  return starts;
}
// A prompt in one chunk begins at 0 either way: later chunks and generated tokens tell.
Tensor restarted(const Asked& a, double) {
  std::vector<double> positions = RightRotation::right_positions(a);
  const std::vector<double> first = starts(a);
  for (size_t i = 0; i < positions.size(); ++i) positions[i] -= first[i];
  return RightRotation::at_positions(a, positions);
}
// Positions made of the row's index: right for one prompt alone in its pass.
Tensor by_row_number(const Asked& a, double) {
  std::vector<double> positions = RightRotation::right_positions(a);
  for (size_t i = 0; i < positions.size(); ++i) positions[i] = as_fp64(i);
  return RightRotation::at_positions(a, positions);
}
// One number of the request, its length, taken for a number of each row.
Tensor last_position(const Asked& a, double) {
  std::vector<double> positions;
  for (const int64_t length : a.op().call.lengths) positions.push_back(as_fp64(length - 1));
  return RightRotation::at_positions(a, positions);
}
Tensor first_position(const Asked& a, double) { return RightRotation::at_positions(a, starts(a)); }
std::vector<double> positions_beside(const Asked& a) { return Asked::neighbours_among(a.rows()); }
std::vector<double> other_requests(const Asked& a) { return Asked::neighbours_among(a.requests()); }
Tensor of_other_row(const Asked& a, double by) {
  std::vector<double> positions = RightRotation::right_positions(a);
  const auto n = std::ssize(positions);
  if (n < 2 || (by == 0 && n != 2)) return {};
  if (by == 0) by = 1;
  std::rotate(positions.begin(), positions.begin() + (n + static_cast<int64_t>(by)) % n,
              positions.end());
  return RightRotation::at_positions(a, positions);
}
// Position i of the request before it in the pass, for row i of each.
Tensor of_other_request(const Asked& a, double by) {
  std::vector<std::vector<double>> all;
  std::map<int32_t, size_t> number;
  for (const Row& row : a.op().call.rows) {
    const auto [at, is_new] = number.try_emplace(row.request, all.size());
    if (is_new) all.emplace_back();
    all[at->second].push_back(row.position);
  }
  if (all.size() < 2 || (by == 0 && all.size() != 2)) return {};
  if (by == 0) by = 1;
  std::vector<double> positions;
  for (size_t r = 0; r < all.size(); ++r) {
    const auto n = std::ssize(all);
    const auto other = static_cast<size_t>(
        (std::ssize(all) + static_cast<int64_t>(r) + static_cast<int64_t>(by)) % n);
    for (size_t i = 0; i < all[r].size(); ++i) positions.push_back(all[other][0] + as_fp64(i));
  }
  return RightRotation::at_positions(a, positions);
}
Tensor changed_positions(const Asked& a, auto change) {
  std::vector<double> positions = RightRotation::right_positions(a);
  for (size_t i = 0; i < positions.size(); ++i) positions[i] = change(i, positions[i]);
  return RightRotation::at_positions(a, positions);
}
std::vector<double> position_factors(const Asked&) { return {0.5, 2, 0.25, 4, 0.125, 8}; }
// Interpolation of positions, as for a longer context, or of a scaling that was inverted.
Tensor positions_times(const Asked& a, double factor) {
  return changed_positions(a, [=](size_t, double p) { return p * factor; });
}
std::vector<double> position_counts(const Asked& a) {
  std::vector<double> all;
  for (int64_t count = 2; count < RightRotation::length_of(a); count *= 2)
    all.push_back(as_fp64(count));
  const auto page = as_fp64(a.op().page_size);
  if (page > 1 && page < as_fp64(RightRotation::length_of(a)) && std::ranges::count(all, page) == 0)
    all.push_back(page);
  return all;
}
// A counter that starts again, and a table that ends.
Tensor positions_modulo(const Asked& a, double count) {
  return changed_positions(a, [=](size_t, double p) { return std::fmod(p, count); });
}
// A table of so many positions, whose last one is taken for all beyond it.
Tensor positions_clamped(const Asked& a, double count) {
  return changed_positions(a, [=](size_t, double p) { return std::min(p, count - 1); });
}
// One position a page or a tile.
Tensor positions_of_blocks(const Asked& a, double count) {
  return changed_positions(a, [=](size_t, double p) { return std::floor(p / count) * count; });
}
// Left padding, counted the wrong way.
Tensor positions_from_end(const Asked& a, double) {
  return changed_positions(
      a, [&](size_t i, double p) { return as_fp64(a.op().call.lengths[i]) - 1 - p; });
}
// The result tells positions of some order that none above has. Rows that are all moved by one
// number are said so above, whichever rows of the pass they are.
Tensor told_positions_tried(const Asked& a, double) {
  const std::vector<double> told = told_positions(a), right = RightRotation::right_positions(a);
  std::set<double> moved_by;
  for (size_t i = 0; i < told.size(); ++i)
    if (told[i] != right[i]) moved_by.insert(told[i] - right[i]);
  return moved_by.size() < 2 ? Tensor() : RightRotation::at_positions(a, told);
}
// Positions held in a float of few bits: bf16 has 8, and 257 is 256 in it.
std::vector<double> position_bits(const Asked&) { return {4, 5, 6, 7, 8, 9, 10, 11}; }
Tensor positions_rounded(const Asked& a, double bits) {
  std::vector<double> positions = RightRotation::right_positions(a);
  for (double& p : positions) {
    const int extra =
        static_cast<int>(std::bit_width(static_cast<uint64_t>(p))) - static_cast<int>(bits);
    if (extra > 0) p = std::ldexp(std::nearbyint(std::ldexp(p, -extra)), extra);
  }
  return RightRotation::at_positions(a, positions);
}

constexpr Hypothesis kPositions[] = {
    {"RoPE by positions off by {:+g}", position_off, offsets},
    {"RoPE at positions that start anew in each pass", restarted},
    {"RoPE at the row's number in the pass for its position", by_row_number},
    {"RoPE at the last position of the request for every row", last_position},
    {"RoPE at the pass's first position of the request for every row", first_position},
    {"RoPE by the position of the row {:+g} away in the pass", of_other_row, positions_beside,
     nullptr, Scope::op, "RoPE by the position of the other row in the pass"},
    {"RoPE by the positions of the request {:+g} away in the pass", of_other_request,
     other_requests, nullptr, Scope::op, "RoPE by the positions of the other request in the pass"},
    {"RoPE at positions times {:g}", positions_times, position_factors},
    {"RoPE at positions modulo {:g}", positions_modulo, position_counts},
    {"RoPE at the position of the last of {:g} for all further ones", positions_clamped,
     position_counts},
    {"RoPE at the first position of each block of {:g}", positions_of_blocks, position_counts},
    {"RoPE at positions counted from the end of the context", positions_from_end},
    {"RoPE at positions rounded to {:g} bits", positions_rounded, position_bits},
    {"RoPE at other positions than those of its rows", told_positions_tried, nullptr, nullptr,
     Scope::told},
};

}  // namespace

std::span<const Hypothesis> rope_position_hypotheses() { return kPositions; }

}  // namespace lockstep
