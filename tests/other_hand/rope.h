// What right and wrong rotary embeddings share: the rows of a call, and the frequencies behind its
// tables.
#pragma once

#include <algorithm>
#include <vector>

#include "tests/other_hand/numbers.h"

namespace lockstep::other_hand {

// cos and sin of position * frequency[j], in rows of `half` numbers, one a position.
struct Tables {
  const float* cos;
  const float* sin;
  int64_t entries, half;
};

// One head of one token, and what becomes of it.
struct Turn {
  const float* x;
  int64_t half;
  int64_t position;  // the row of the tables
  int64_t head, heads;
  Kind kind;
  Tables tables;
  double* out;

  float cos(int64_t j) const { return tables.cos[position * half + j]; }
  float sin(int64_t j) const { return tables.sin[position * half + j]; }
};

using Rotate = void(const Turn& turn);
// Which row of the tables token t reads; held within the tables.
using Place = int64_t(const int32_t* positions, int64_t t);

Rotate rotate_plainly;  // fp32, each product rounded to it
Place own_position;

template <Rotate* rotate, Place* place = own_position>
const char* rope(const LockstepCall*, const DLTensor* out, const DLTensor* x, const DLTensor* cos,
                 const DLTensor* sin, const DLTensor* positions) {
  if (const char* why = refused({out, x, cos, sin})) return why;
  const Tensor to(out), from(x);
  const std::vector<float> all_cos = Tensor(cos).all(), all_sin = Tensor(sin).all();
  const Tables tables = {all_cos.data(), all_sin.data(), cos->shape[0], cos->shape[1]};
  const int64_t heads = x->shape[1], width = x->shape[2];
  std::vector<float> values(static_cast<size_t>(width));
  std::vector<double> results(values.size());
  for (int64_t row = 0; row < x->shape[0] * heads; ++row) {
    from.load(row * width, width, values.data());
    const int64_t position =
        std::clamp<int64_t>(place(indices(positions), row / heads), 0, tables.entries - 1);
    rotate({values.data(), width / 2, position, row % heads, heads, to.kind(), tables,
            results.data()});
    for (int64_t i = 0; i < width; ++i) to.put(row * width + i, results[static_cast<size_t>(i)]);
  }
  return nullptr;
}

// The frequencies that the tables were made of, to the last bit but one: the angles of row 1, which
// are below pi.
std::vector<double> frequencies_of(const Tables& tables);

// The base of the frequencies base^(-j / half), or 0 when the tables are not of that form: where
// long contexts are scaled, or the tables have one row.
double base_of(const Tables& tables);

}  // namespace lockstep::other_hand
