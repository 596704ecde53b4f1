// What other_hand_check puts to the kernels: calls of an op, what they should give in exact
// arithmetic (fp64, written here and nowhere else), and how far a right kernel may be from it.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/other_hand/numbers.h"

namespace lockstep::other_hand {

// Numbers that are the same everywhere: those of the standard library are its own affair.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15u + 1) {}
  double uniform();                // in [0, 1)
  double normal(double size = 1);  // with that standard deviation
  int64_t below(int64_t n) { return static_cast<int64_t>(uniform() * to_double(n)); }
  std::vector<int64_t> permutation(int64_t n);

 private:
  uint64_t state_;
};

// A tensor that owns its memory. It begins behind an offset and ends before a guard.
class Array {
 public:
  Array(Kind kind, std::vector<int64_t> shape, const std::vector<double>& values = {});
  static Array of_int32(std::vector<int64_t> shape, const std::vector<int64_t>& values = {});
  static Array of_int64(std::vector<int64_t> shape, const std::vector<int64_t>& values);

  const DLTensor* get();
  int64_t count() const;
  std::vector<double> values();
  void clear();  // to NaN, or to -1: nothing has been written
  bool guards_are_whole() const;
  bool is_unchanged() const;  // since it was made

 private:
  Array(std::vector<int64_t> shape, DLDataType type);

  DLTensor tensor_ = {};
  std::vector<int64_t> shape_;
  std::vector<char> bytes_, pristine_;
};

// What is counted of an element that is not what it should be.
enum class Unit {
  ulp,      // how far it is beyond half an ulp and the contract's allowance
  exact,    // how far it is from the correctly rounded one, in ulp
  indices,  // each that is another one
};

struct Case {
  std::string what = {};
  Kind kind = Kind::fp32;
  Unit unit = Unit::ulp;
  // Calls the function; its outputs are then in `outputs`. `stale`: memory that no kernel should
  // look at holds plausible numbers, and not NaN.
  std::function<const char*(void* function, bool stale)> run = {};
  std::vector<std::shared_ptr<Array>> outputs = {}, inputs = {};
  std::vector<double> exact = {};  // of all outputs, one after the other
  // By contract: what each element may be off beyond half an ulp of its exact value.
  std::map<std::string, std::vector<double>> slack = {};
  // Where sums may cancel: the size that results have here, at which the errors of wrong kernels
  // are measured, lest a result that is zero by chance makes them all look gross. Empty: their own.
  std::vector<double> typical = {};
  bool is_adversarial = false;  // nothing that a model would make: for right kernels alone
  // Where indices are counted: whether these are as good as the exact ones; null: equal ones are.
  std::function<double(const std::vector<double>& got)> wrong_indices = {};
};

// The root mean square of each `width` results, for `typical`.
std::vector<double> sizes_of_rows(const std::vector<double>& results, int64_t width);

// u = 2^-precision, and half of the smallest subnormal number.
double roundoff(Kind kind);
double underflow(Kind kind);
// The allowance of a sum of n terms in fp32, for each unit of their absolute values.
double sum_slack(int64_t n);
constexpr double kFp32 = 0x1p-24;

std::vector<double> normals(Random& random, int64_t count, double size);
// Rows with two channels much larger than the rest, as hidden states of language models have them.
std::vector<double> with_outliers(Random& random, int64_t rows, int64_t width, double size);

// What is wrong with the numbers that kernels and cases share, or "": every number of 16 bits is
// taken apart by another formula, and halves between neighbours must go to the even one.
std::string trouble_with_numbers();

std::vector<Case> norm_cases(Kind kind);
std::vector<Case> rope_cases(Kind kind);
std::vector<Case> silu_cases(Kind kind);
std::vector<Case> add_cases(Kind kind);
std::vector<Case> gather_cases(Kind kind);
std::vector<Case> argmax_cases(Kind kind);
std::vector<Case> product_cases(Kind kind);
std::vector<Case> expert_cases(Kind kind);
std::vector<Case> combine_cases(Kind kind);
std::vector<Case> top_k_cases(Kind kind);
std::vector<Case> router_cases(Kind kind);
std::vector<Case> attention_cases(Kind kind);
std::vector<Case> kv_write_cases(Kind kind);
std::vector<Case> kv_gather_cases(Kind kind);

}  // namespace lockstep::other_hand
