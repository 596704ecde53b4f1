// The exact ops: rows of the embedding, sums with the residual stream, and the greedy choice.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "tests/other_hand/families.h"
#include "tests/other_hand/numbers.h"

namespace lockstep::other_hand {
namespace {

// --- add ----------------------------------------------------------------------------------------

using Sum = double(float a, float b, Kind kind);

template <Sum* sum>
const char* add(const LockstepCall*, const DLTensor* out, const DLTensor* a, const DLTensor* b) {
  if (const char* why = refused({out, a, b})) return why;
  const Tensor to(out), left(a), right(b);
  for (int64_t i = 0; i < to.count(); ++i) to.put(i, sum(left.at(i), right.at(i), to.kind()));
  return nullptr;
}

double in_fp32(float a, float b, Kind) { return a + b; }
double in_fp64(float a, float b, Kind) { return static_cast<double>(b) + a; }

// From the last element to the first, in blocks as a grid of threads would have them.
const char* add_backward(const LockstepCall*, const DLTensor* out, const DLTensor* a,
                         const DLTensor* b) {
  if (const char* why = refused({out, a, b})) return why;
  const Tensor to(out), left(a), right(b);
  for (int64_t thread = 127; thread >= 0; --thread)
    for (int64_t i = thread; i < to.count(); i += 128) to.put(i, right.at(i) + left.at(i));
  return nullptr;
}

double second_twice(float a, float b, Kind) { return a + 2 * b; }
double first_alone(float a, float, Kind) { return a; }
double second_alone(float, float b, Kind) { return b; }
double difference(float a, float b, Kind) { return a - b; }
double in_fp16(float a, float b, Kind) {
  return nearest(nearest(a, Kind::fp16) + nearest(b, Kind::fp16), Kind::fp16);
}
double in_bf16(float a, float b, Kind) { return nearest(static_cast<double>(a) + b, Kind::bf16); }
double second_as_e4m3(float a, float b, Kind) { return a + e4m3(b); }
double cut_off(float a, float b, Kind kind) { return truncated(static_cast<double>(a) + b, kind); }

// Halves away from zero, as adding 0x8000 and shifting does: no farther from the exact sum than the
// other neighbour, but another number.
double halves_away(float a, float b, Kind kind) {
  const double exact = static_cast<double>(a) + b;
  return nearest(exact * (1 + 0x1p-40), kind);
}

// Up or down by chance, which training is said to like: an optimizer's kernel in a forward pass.
double rounded_by_chance(float a, float b, Kind kind) {
  const double exact = static_cast<double>(a) + b, below = truncated(exact, kind);
  const double hash = std::fabs(std::sin(exact * 12345.678) * 43758.5453);
  if (below == exact || hash - std::floor(hash) < 0.5) return below;
  return below + std::copysign(ulp(exact, kind), exact);
}

template <int by>
const char* add_of_row(const LockstepCall*, const DLTensor* out, const DLTensor* a,
                       const DLTensor* b) {
  if (const char* why = refused({out, a, b})) return why;
  const Tensor to(out), left(a), right(b);
  const int64_t width = to.last_axis(), rows = to.rows();
  for (int64_t i = 0; i < to.count(); ++i) {
    const int64_t row = std::clamp<int64_t>(i / width + by, 0, rows - 1);
    to.put(i, left.at(i) + right.at(row * width + i % width));
  }
  return nullptr;
}

// Columns beyond the last whole vector of 128 are copied alone.
const char* add_without_tail(const LockstepCall*, const DLTensor* out, const DLTensor* a,
                             const DLTensor* b) {
  if (const char* why = refused({out, a, b})) return why;
  const Tensor to(out), left(a), right(b);
  const int64_t width = to.last_axis(), whole = width / 128 * 128;
  for (int64_t i = 0; i < to.count(); ++i)
    to.put(i, left.at(i) + (i % width < whole ? right.at(i) : 0));
  return nullptr;
}

// --- gather_rows --------------------------------------------------------------------------------

// Which row of the table is read for an index; held within the table.
using Which = int64_t(const int32_t* index, int64_t row, int64_t entries);

int64_t own_index(const int32_t* index, int64_t row, int64_t) { return index[row]; }
int64_t next_index(const int32_t* index, int64_t row, int64_t) { return index[row] + 1; }
int64_t index_of_15_bits(const int32_t* index, int64_t row, int64_t) { return index[row] & 0x7fff; }
int64_t index_of_row_before(const int32_t* index, int64_t row, int64_t) {
  return index[std::max<int64_t>(row - 1, 0)];
}
// The second of two shards subtracts its offset and forgets to.
int64_t index_in_first_half(const int32_t* index, int64_t row, int64_t entries) {
  return index[row] < (entries + 1) / 2 ? index[row] : index[row] - (entries + 1) / 2;
}

template <Which* which>
const char* gather(const LockstepCall*, const DLTensor* out, const DLTensor* index,
                   const DLTensor* table) {
  if (const char* why = refused({out, table})) return why;
  const Tensor to(out), from(table);
  const int64_t width = from.axis(1), entries = from.axis(0);
  for (int64_t row = 0; row < index->shape[0]; ++row) {
    const int64_t entry = std::clamp<int64_t>(which(indices(index), row, entries), 0, entries - 1);
    std::memcpy(to.bytes(row * width), from.bytes(entry * width),
                static_cast<size_t>(width * from.element_size()));
  }
  return nullptr;
}

using Element = double(double value, int64_t column, int64_t row, int64_t width);

template <Element* element>
const char* gather_changed(const LockstepCall*, const DLTensor* out, const DLTensor* index,
                           const DLTensor* table) {
  if (const char* why = refused({out, table})) return why;
  const Tensor to(out), from(table);
  const int64_t width = from.axis(1);
  for (int64_t row = index->shape[0] - 1; row >= 0; --row)
    for (int64_t i = 0; i < width; ++i)
      to.put(row * width + i, element(from.at(indices(index)[row] * width + i), i, row, width));
  return nullptr;
}

double as_it_is(double value, int64_t, int64_t, int64_t) { return value; }
double times_root(double value, int64_t, int64_t, int64_t width) {
  return value * std::sqrt(to_double(width));  // Gemma
}
double as_e4m3(double value, int64_t, int64_t, int64_t) { return e4m3(value); }
double without_last_8(double value, int64_t column, int64_t, int64_t width) {
  return column < width - 8 ? value : 0;
}
double through_fp16(double value, int64_t, int64_t, int64_t) { return nearest(value, Kind::fp16); }

// --- argmax -------------------------------------------------------------------------------------

// NaN is larger than any number.
bool is_larger(float a, float b) { return std::isnan(a) ? !std::isnan(b) : a > b; }

using Choose = int64_t(const std::vector<float>& row);

template <Choose* choose>
const char* argmax(const LockstepCall*, const DLTensor* out, const DLTensor* logits) {
  if (const char* why = refused({logits})) return why;
  const Tensor from(logits);
  std::vector<float> row(static_cast<size_t>(from.axis(1)));
  auto* to = const_cast<int32_t*>(indices(out));
  for (int64_t token = 0; token < from.axis(0); ++token) {
    from.load(token * from.axis(1), from.axis(1), row.data());
    to[token] = static_cast<int32_t>(choose(row));
  }
  return nullptr;
}

int64_t first_largest(const std::vector<float>& row) {
  size_t best = 0;
  for (size_t i = 1; i < row.size(); ++i)
    if (is_larger(row[i], row[best])) best = i;
  return static_cast<int64_t>(best);
}

int64_t largest_from_behind(const std::vector<float>& row) {
  size_t best = row.size() - 1;
  for (size_t i = row.size() - 1; i-- > 0;)
    if (!is_larger(row[best], row[i])) best = i;
  return static_cast<int64_t>(best);
}

// 32 lanes, each with the best of its own, then the best of those: of equal ones the first.
int64_t largest_of_lanes(const std::vector<float>& row) {
  size_t best = 0;
  for (size_t lane = 0; lane < 32 && lane < row.size(); ++lane) {
    size_t own = lane;
    for (size_t i = lane; i < row.size(); i += 32)
      if (is_larger(row[i], row[own])) own = i;
    const bool is_tie = !is_larger(row[own], row[best]) && !is_larger(row[best], row[own]);
    if (is_larger(row[own], row[best]) || (is_tie && own < best)) best = own;
  }
  return static_cast<int64_t>(best);
}

int64_t last_largest(const std::vector<float>& row) {
  size_t best = 0;
  for (size_t i = 1; i < row.size(); ++i)
    if (!is_larger(row[best], row[i])) best = i;
  return static_cast<int64_t>(best);
}

int64_t runner_up(const std::vector<float>& row) {
  const auto best = static_cast<size_t>(first_largest(row));
  size_t second = best == 0 ? std::min<size_t>(1, row.size() - 1) : 0;
  for (size_t i = 0; i < row.size(); ++i)
    if (i != best && is_larger(row[i], row[second])) second = i;
  return static_cast<int64_t>(second);
}

int64_t largest_of_last_half(const std::vector<float>& row) {
  const std::vector<float> half(row.begin() + static_cast<std::ptrdiff_t>(row.size() / 2),
                                row.end());
  return first_largest(half) + static_cast<int64_t>(row.size() / 2);
}

int64_t largest_without_last_block(const std::vector<float>& row) {
  const size_t whole = std::max<size_t>((row.size() - 1) / 256 * 256, 1);
  return first_largest({row.begin(), row.begin() + static_cast<std::ptrdiff_t>(whole)});
}

int64_t largest_size(const std::vector<float>& row) {
  std::vector<float> sizes = row;
  for (float& value : sizes) value = std::fabs(value);
  return first_largest(sizes);
}

// Logits compared as bf16: near ties become ties.
int64_t largest_in_bf16(const std::vector<float>& row) {
  std::vector<float> narrow = row;
  for (float& value : narrow) value = rounded(value, Kind::bf16);
  return first_largest(narrow);
}

}  // namespace

std::vector<OtherKernel> additions() {
  Family<decltype(lockstep_add)> list("lockstep_add", "attn.residual");
  const Shows rows = {.needs = "a pass with several tokens"};
  list.right("add-fp32", add<in_fp32>, "fused", "in fp32, rounded once");
  list.right("add-fp64", add<in_fp64>, "fused", "in fp64, the second first");
  list.right("add-backward", add_backward, "fused", "strided and from behind");
  list.wrong("add-second-twice", add<second_twice>, 1e9, "the second is added twice");
  list.wrong("add-first-alone", add<first_alone>, 1e9, "the second is not added");
  list.wrong("add-second-alone", add<second_alone>, 1e9, "no residual");
  list.wrong("add-difference", add<difference>, 1e9, "the second is subtracted");
  list.wrong("add-in-fp16", add<in_fp16>, 1, "in fp16", {.dtypes = "bf16,fp32"});
  list.wrong("add-in-bf16", add<in_bf16>, 4, "the sum rounded to bf16 in a run of another dtype",
             {.dtypes = "fp16,fp32"});
  list.wrong("add-second-in-fp8", add<second_as_e4m3>, 1e9, "the second rounded to e4m3");
  list.wrong("add-truncated-store", add<cut_off>, 1,
             "the store cuts off instead of rounding (aiter#5151)", {.dtypes = "bf16,fp16"});
  list.wrong("add-halves-away", add<halves_away>, 1,
             "halves are rounded away from zero and not to even", {.dtypes = "bf16,fp16"});
  list.wrong("add-rounded-by-chance", add<rounded_by_chance>, 1, "stochastic rounding",
             {.dtypes = "bf16,fp16"});
  list.wrong("add-of-next-row", add_of_row<1>, 1e9, "the second is the next row's", rows);
  list.wrong("add-of-row-before", add_of_row<-1>, 1e9, "the second is the row before's", rows);
  list.wrong("add-tail-lost", add_without_tail, 14000,
             "columns beyond the last whole 128 are not added",
             {.needs = "a width that is no multiple of 128"});
  return list.rows();
}

std::vector<OtherKernel> embeddings() {
  Family<decltype(lockstep_gather_rows)> list("lockstep_gather_rows", "embed");
  const auto at_embed = [](const char* needs) {
    return Shows{.points = "embed", .first_point = "embed", .needs = needs};
  };
  list.right("gather-memcpy", gather<own_index>, "fused", "rows copied by memcpy");
  list.right("gather-elements", gather_changed<as_it_is>, "fused",
             "elements copied one by one, the last row first");
  list.wrong("embed-next-id", gather<next_index>, 5.8e8, "the row of the next token id",
             at_embed(""));
  list.wrong("embed-id-in-15-bits", gather<index_of_15_bits>, 4.9e7, "ids as int16",
             at_embed("token ids over 32767"));
  list.wrong("embed-row-before", gather<index_of_row_before>, 9e7,
             "each token but the first has the one before's row",
             at_embed("a pass with several tokens"));
  list.wrong("embed-second-shard", gather<index_in_first_half>, 15000,
             "ids of the second half of the vocabulary read the first half",
             at_embed("token ids in the second half of the vocabulary"));
  list.wrong("embed-scaled", gather_changed<times_root>, 2300,
             "times the root of the width, as Gemma", at_embed(""));
  list.wrong("embed-in-fp8", gather_changed<as_e4m3>, 260, "rounded to e4m3", at_embed(""));
  list.wrong("embed-last-8-zero", gather_changed<without_last_8>, 260,
             "the last 8 columns are zero", at_embed(""));
  list.wrong("embed-through-fp16", gather_changed<through_fp16>, 230,
             "through fp16: what is below 1e-5 loses bits",
             {.points = "embed",
              .first_point = "embed",
              .dtypes = "bf16,fp32",
              .needs = "weights below 1e-5 in bf16 runs"});
  return list.rows();
}

std::vector<OtherKernel> greedy_choices() {
  Family<decltype(lockstep_argmax)> list("lockstep_argmax", "token");
  list.right("argmax-forward", argmax<first_largest>, "fused", "first to last");
  list.right("argmax-backward", argmax<largest_from_behind>, "fused",
             "last to first, equal ones taken");
  list.right("argmax-lanes", argmax<largest_of_lanes>, "fused", "32 lanes, then the best of those");
  list.wrong("argmax-last-of-equals", argmax<last_largest>, 2,
             "the last of equal logits (ohdearquant/lattice#280)",
             {.needs = "a row whose largest logit is there twice"});
  list.wrong("argmax-runner-up", argmax<runner_up>, 9, "the second largest");
  list.wrong("argmax-last-half", argmax<largest_of_last_half>, 6,
             "the largest of the second half of the vocabulary",
             {.needs = "a largest logit in the first half"});
  list.wrong("argmax-last-block-lost", argmax<largest_without_last_block>, 8,
             "the last block of 256 is not looked at",
             {.needs = "a largest logit among the last 256"});
  list.wrong("argmax-of-sizes", argmax<largest_size>, 2, "the largest absolute value",
             {.needs = "a negative logit larger in size than the largest one"});
  list.wrong("argmax-in-bf16", argmax<largest_in_bf16>, 1, "logits compared as bf16",
             {.dtypes = "fp16,fp32", .needs = "two largest logits within 0.4 % of each other"});
  return list.rows();
}

}  // namespace lockstep::other_hand
