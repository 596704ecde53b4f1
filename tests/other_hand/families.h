// The parts that the table of kernels.h is put together from: one list a kind of op.
#pragma once

#include <vector>

#include "kernels/lockstep_ops.h"
#include "tests/other_hand/kernels.h"

namespace lockstep::other_hand {

// Where and when a wrong kernel shows; what is left out holds for most.
struct Shows {
  const char* points = "*";
  const char* first_point = nullptr;  // null: that of the family
  const char* dtypes = "bf16,fp16,fp32";
  const char* needs = "";
  const char* rounding = "fused";
};

// Rows of the kernels of one op. `Function` is that of the C interface, so that a kernel of another
// signature does not compile.
template <typename Function>
class Family {
 public:
  Family(const char* symbol, const char* first_point)
      : symbol_(symbol), first_point_(first_point) {}

  void right(const char* name, Function* function, const char* rounding, const char* says,
             const char* dtypes = "bf16,fp16,fp32", const char* needs = "") {
    rows_.push_back({name, symbol_, reinterpret_cast<void*>(function), true, rounding, "*",
                     first_point_, dtypes, needs, 0, says});
  }

  void wrong(const char* name, Function* function, double least_ulp, const char* says,
             const Shows& shows = {}) {
    const char* first = shows.first_point == nullptr ? first_point_ : shows.first_point;
    rows_.push_back({name, symbol_, reinterpret_cast<void*>(function), false, shows.rounding,
                     shows.points, first, shows.dtypes, shows.needs, least_ulp, says});
  }

  std::vector<OtherKernel> rows() const { return rows_; }

 private:
  const char* symbol_;
  const char* first_point_;
  std::vector<OtherKernel> rows_;
};

std::vector<OtherKernel> embeddings();
std::vector<OtherKernel> right_norms();
std::vector<OtherKernel> wrong_norms();
std::vector<OtherKernel> right_products();
std::vector<OtherKernel> wrong_products();
std::vector<OtherKernel> right_ropes();
std::vector<OtherKernel> wrong_ropes();
std::vector<OtherKernel> cache_writes();
std::vector<OtherKernel> cache_reads();
std::vector<OtherKernel> right_attentions();
std::vector<OtherKernel> wrong_attentions();       // in what they compute
std::vector<OtherKernel> wrong_attention_reads();  // in what they look at
std::vector<OtherKernel> additions();
std::vector<OtherKernel> activations();
std::vector<OtherKernel> routings();         // top_k
std::vector<OtherKernel> routing_weights();  // softmax_of
std::vector<OtherKernel> expert_products();
std::vector<OtherKernel> expert_sums();
std::vector<OtherKernel> greedy_choices();  // argmax

}  // namespace lockstep::other_hand
