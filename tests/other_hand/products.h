// What right and wrong linear layers share.
#pragma once

#include <vector>

#include "tests/other_hand/numbers.h"
#include "tests/other_hand/sums.h"

namespace lockstep::other_hand {

// The operands of a call, in fp32; `change_x` and `change_weight` may round them.
struct Operands {
  std::vector<float> x;       // [tokens, depth]
  std::vector<float> weight;  // one row at a time
  std::vector<float> bias;    // empty: none
  int64_t tokens, columns, depth;
  Kind kind;
};

using Change = void(std::vector<float>& values);  // all of x, or one row of the weight
// What is stored, of a sum of products and its bias (null: none).
using Finish = double(double sum, const float* bias, Kind kind);

Finish add_bias;          // in fp32
Finish add_bias_in_fp64;  // of a sum in fp64

// The products of a call, [tokens, columns], not yet put anywhere.
struct Products {
  int64_t tokens, columns;
  std::vector<double> values;
  double& at(int64_t token, int64_t column) {
    return values[static_cast<size_t>(token * columns + column)];
  }
};

struct Recipe {
  Dot* dot = dot_lanes8;
  Finish* finish = add_bias;
  Change* change_x = nullptr;
  Change* change_weight = nullptr;
};

Products multiply(const Recipe& recipe, const DLTensor* x, const DLTensor* weight,
                  const DLTensor* bias);
void put_all(const Products& products, const DLTensor* out);

template <Dot* dot, Finish* finish = add_bias, Change* change_x = nullptr,
          Change* change_weight = nullptr>
const char* matmul(const LockstepCall*, const DLTensor* out, const DLTensor* x,
                   const DLTensor* weight, const DLTensor* bias) {
  if (const char* why = refused({out, x, weight})) return why;
  put_all(multiply({dot, finish, change_x, change_weight}, x, weight, bias), out);
  return nullptr;
}

void round_all_to_tf32(std::vector<float>& values);
void round_all_to_bf16(std::vector<float>& values);
void round_all_to_fp16(std::vector<float>& values);

}  // namespace lockstep::other_hand
