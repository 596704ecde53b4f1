// Weights stay in the file's dtype and are widened to fp64 some rows at a time, inside a product:
// the whole of a large matrix in fp64 would not fit. On the CPU such a block stays in a cache; on a
// device it is as large as products need to be fast. The magnitude sum |a||w| is made of the same
// block while it is there: on the CPU in fp32, rounded up, as it needs few digits.
#include "reference/held_weights.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/nonzero.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>

#include "kernels/base/check.h"
#include "reference/bridge.h"
#include "reference/few_rows.h"
#include "reference/few_rows_kernels.h"
#include "reference/kept_weights.h"
#include "reference/magnitudes.h"
#include "reference/own_stream.h"
#include "reference/rounding.h"

namespace lockstep {
namespace {

// Elements of a weight that are widened at a time: 1 MiB in fp64, so that they stay in a cache.
constexpr int64_t kBlock = 1 << 17;
// The same on a device, where a product must be large to be fast: 256 MiB, twice for a magnitude.
constexpr int64_t kWidestOnDevice = 1 << 25;
// And on the CPU where one product after another is added up, each by all threads: 8 MiB.
constexpr int64_t kSummedBlock = 1 << 20;
// Rows of x from which on magnitudes in fp32 are faster than in fp64, though they take more calls.
constexpr int64_t kManyRows = 16;

// The checkpoint's name of a tensor of that place.
std::string name_at(const Place& place, const char* part) {
  const std::string layer =
      place.layer < 0 ? "" : "model.layers." + std::to_string(place.layer) + ".";
  return layer + std::string(place.point->weight) + part;
}

std::string name_of_expert(const Place& place, int64_t expert) {
  return fmt::format("model.layers.{}.mlp.experts.{}.{}.weight", place.layer, expert,
                     place.point->weight);
}

// The rows that a weight multiplies, with their sizes, and these in fp32; undefined: not needed.
struct RowsOfProduct {
  const at::Tensor &x, &x_size, &x_narrow;
  const HeldWeights::Tf32* tf32;
  DType wide;
};

// Multiplies by some rows of a weight, `held` in the run's dtype, into the outputs from `first` on.
// Each result is made where it belongs: a copy reads and writes it once more.
void put_block(const RowsOfProduct& rows, const at::Tensor& held, int64_t first,
               const at::Tensor& y, const at::Tensor* magnitude) {
  const auto part = [&](const at::Tensor& of) { return of.narrow(1, first, held.size(0)); };
  const auto multiply = [&](const at::Tensor& into, const at::Tensor& a, const at::Tensor& b) {
    at::Tensor some = part(into);
    at::mm_out(some, a, b.t());
  };
  const HeldWeights::Tf32* const tf32 = rows.tf32;
  const at::Tensor whole = as_dtype(held, rows.wide);
  const at::Tensor block = tf32 ? kTf32.rounded(whole) : whole;
  multiply(y, rows.x, block);
  if (magnitude) {
    at::Tensor size;
    if (rows.x_narrow.defined())
      size = magnitudes_in_fp32(rows.x_narrow, as_dtype(tf32 ? block : held, DType::f32));
    if (size.defined())
      part(*magnitude).copy_(size);
    else
      multiply(*magnitude, rows.x_size, block.abs());
  }
  if (!tf32) return;
  // An operand that lay halfway between two numbers of tf32 may have gone the other way: x by its
  // spacing with all of |W|, W by its own with all of |x|.
  part(*tf32->halves)
      .copy_(at::mm(*tf32->x_halves, block.abs().t()) +
             at::mm(rows.x_size, kTf32.halves(whole).t()));
}

}  // namespace

HeldWeights::HeldWeights(const Checkpoint& checkpoint, const ReferenceOptions& options, DType wide)
    : checkpoint_(checkpoint),
      run_(options.dtype),
      wide_(wide),
      threads_(options.threads),
      gpu_(options.gpu),
      kept_(gpu_ < 0 ? nullptr : KeptWeights::of(checkpoint, run_, gpu_)) {
  check(wide == DType::f32 || wide == DType::f64,
        "the reference computes in fp32 or fp64, {} was asked for", name_of(wide));
}

at::Device HeldWeights::device() const {
  return gpu_ < 0 ? at::Device(at::kCPU) : at::Device(at::kCUDA, static_cast<int8_t>(gpu_));
}

// The tensor as products read it: the mapped file on the CPU.
at::Tensor HeldWeights::stored(const std::string& name, const c10::Device& where) const {
  return where.is_cpu() ? to_torch(checkpoint_.tensor(name)) : kept_->tensor(name);
}

at::Tensor HeldWeights::stored(const std::string& name) const { return stored(name, device()); }

// First rounded to the run's dtype, which does nothing to a file that has it, and then exactly to
// the wide one.
at::Tensor HeldWeights::widened(const at::Tensor& part) const {
  return as_dtype(as_dtype(part, run_), wide_);
}

at::Tensor HeldWeights::whole(const std::string& name) const { return widened(stored(name)); }

at::Tensor HeldWeights::norm(const Place& place, const c10::Device& where) const {
  return widened(stored(name_at(place, ".weight"), where));
}

at::Tensor HeldWeights::norm(const Place& place) const { return norm(place, device()); }

at::Tensor HeldWeights::weight(const Place& place) const {
  return whole(name_at(place, ".weight"));
}

at::Tensor HeldWeights::embedding(std::span<const int32_t> tokens) const {
  return embedding(tokens, device());
}

at::Tensor HeldWeights::embedding(std::span<const int32_t> tokens, const c10::Device& where) const {
  for (int32_t token : tokens)
    check(token >= 0 && token < config().vocab,
          "token ids below the vocabulary's {} were wanted, found {}: use this model's tokenizer",
          config().vocab, token);
  const at::Tensor ids = at::empty({std::ssize(tokens)}, at::kLong);
  std::ranges::copy(tokens, ids.mutable_data_ptr<int64_t>());
  const at::Tensor table = stored(name_at({&point("embed")}, ".weight"), where);
  return widened(table.index_select(0, ids.to(where)));
}

void HeldWeights::multiply_there(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& y,
                                 const at::Tensor* magnitude) const {
  const at::Tensor x_rows = x.contiguous();
  multiply_few_rows(queue_of_this_thread(device()),
                    {.rows = x.size(0),
                     .terms = x.size(1),
                     .outputs = y.size(1),
                     .x = x_rows.const_data_ptr<double>(),
                     .w = weight.const_data_ptr(),
                     .dtype = run_,
                     .y = y.mutable_data_ptr<double>(),
                     .sizes = magnitude ? magnitude->mutable_data_ptr<double>() : nullptr});
}

at::Tensor HeldWeights::product(const std::string& name, const at::Tensor& x, at::Tensor* magnitude,
                                const HeldWeights::Tf32* tf32) const {
  const at::Tensor weight = stored(name);
  const int64_t outputs = weight.size(0), inputs = weight.size(1);
  check(x.dim() == 2 && x.size(1) == inputs, "{} multiplies rows of {} values, found a tensor {}",
        name, inputs, shape_of(x).text());
  const at::Tensor y = at::empty({x.size(0), outputs}, x.options());
  if (magnitude) *magnitude = at::empty_like(y);
  if (tf32) *tf32->halves = at::empty_like(y);
  const bool few = wide_ == DType::f64 && run_ != DType::f64 && x.size(0) <= kMostFewRows && !tf32;
  if (few && gpu_ >= 0 && has_few_rows_kernels() && inputs % kFewRowsTerms == 0 && y.numel() > 0) {
    multiply_there(x, weight, y, magnitude);
    return y;
  }
  const at::Tensor x_size = magnitude || tf32 ? x.abs() : at::Tensor();
  // On the CPU a magnitude of many rows is made in fp32.
  const bool in_fp32 = magnitude && gpu_ < 0 && x.size(0) >= kManyRows;
  const at::Tensor x_narrow = in_fp32 ? x_size.to(at::kFloat) : at::Tensor();
  const bool by_processor = few && gpu_ < 0;
  const at::Tensor x_rows = by_processor ? x.contiguous() : x;
  // Widening an element costs about as much as ten multiply-adds.
  const auto work = static_cast<double>(weight.numel()) * static_cast<double>(x.size(0) + 10);
  const Threads threads(gpu_ < 0 ? work : 0, threads_);
  // The blocks are the same whatever the number of threads, and so are the results.
  const int64_t rows =
      std::max<int64_t>(1, (gpu_ < 0 ? kBlock : kWidestOnDevice) / std::max<int64_t>(1, inputs));
  at::parallel_for(0, (outputs + rows - 1) / rows, 1, [&](int64_t begin, int64_t end) {
    // MKL, which works alone in here, orders its sums by how many threads it might have.
    if (gpu_ < 0) at::set_num_threads(1);
    for (int64_t first = begin * rows; first < std::min(end * rows, outputs); first += rows) {
      const int64_t count = std::min(rows, outputs - first);
      const at::Tensor held = as_dtype(weight.narrow(0, first, count), run_);
      if (by_processor) {
        at::Tensor some_y = y.narrow(1, first, count), some_sizes;
        if (magnitude) some_sizes = magnitude->narrow(1, first, count);
        multiply_few_rows(x_rows, as_dtype(held, DType::f32), some_y,
                          magnitude ? &some_sizes : nullptr);
        continue;
      }
      put_block({x, x_size, x_narrow, tf32, wide_}, held, first, y, magnitude);
    }
  });
  return y;
}

bool HeldWeights::has_bias(const Point& p) const {
  if (p == point("attn.q") || p == point("attn.k") || p == point("attn.v"))
    return config().qkv_bias;
  return p == point("attn.o") && config().o_bias;
}

at::Tensor HeldWeights::bias(const Place& place) const { return whole(name_at(place, ".bias")); }

at::Tensor HeldWeights::product(const Place& place, const at::Tensor& x, at::Tensor* magnitude,
                                const HeldWeights::Tf32* tf32) const {
  return product(name_at(place, ".weight"), x, magnitude, tf32);
}

at::Tensor HeldWeights::linear(const Place& place, const at::Tensor& x) const {
  const at::Tensor y = product(place, x, nullptr, nullptr);
  return has_bias(*place.point) ? y + bias(place) : y;
}

// Rows are gathered by expert, multiplied by that expert's matrix at once, and scattered back to
// (token, choice): each matrix is widened once, however many tokens chose it.
at::Tensor HeldWeights::experts(const Place& place, const at::Tensor& x, const at::Tensor& chosen,
                                at::Tensor* magnitude, const HeldWeights::Tf32* tf32) const {
  const int64_t tokens = chosen.size(0), k = chosen.size(1);
  const at::Tensor flat = chosen.flatten(), outside = (flat < 0) | (flat >= config().experts.count);
  check(!outside.any().item<bool>(),
        "{} reads choices among {} experts, found another: record mlp.experts as it was made",
        place.point->name, config().experts.count);
  const auto by_choice = [&](const at::Tensor& t) {
    return t.dim() == 3 ? t.flatten(0, 1) : t.repeat_interleave(k, 0);
  };
  const at::Tensor rows = by_choice(x);
  const at::Tensor row_halves = tf32 ? by_choice(*tf32->x_halves) : at::Tensor();
  at::Tensor y;
  const auto put = [&](at::Tensor& to, const at::Tensor& those, const at::Tensor& from) {
    if (!to.defined()) to = at::empty({tokens * k, from.size(1)}, from.options());
    to.index_copy_(0, those, from);
  };
  // An expert that no token chose has no part in anything, and its weights are not read.
  for (int64_t e = 0; e < config().experts.count; ++e) {
    const at::Tensor those = at::nonzero(flat == e).flatten();
    if (those.size(0) == 0) continue;
    at::Tensor size, their_halves, of_those;
    if (tf32) of_those = row_halves.index_select(0, those);
    const HeldWeights::Tf32 part{&of_those, &their_halves};
    const std::string name = name_of_expert(place, e);
    put(y, those,
        product(name, rows.index_select(0, those), magnitude ? &size : nullptr,
                tf32 ? &part : nullptr));
    if (magnitude) put(*magnitude, those, size);
    if (tf32) put(*tf32->halves, those, their_halves);
  }
  const auto by_token = [&](const at::Tensor& t) { return t.view({tokens, k, -1}); };
  if (magnitude) *magnitude = by_token(*magnitude);
  if (tf32) *tf32->halves = by_token(*tf32->halves);
  return by_token(y);
}

at::Tensor HeldWeights::back(const std::string& name, const at::Tensor& g) const {
  const at::Tensor weight = stored(name);
  const int64_t outputs = weight.size(0), inputs = weight.size(1);
  const at::Tensor x = at::zeros({g.size(0), inputs}, g.options());
  const auto work = static_cast<double>(weight.numel()) * static_cast<double>(g.size(0) + 10);
  const Threads threads(gpu_ < 0 ? work : 0, threads_);
  const int64_t rows = std::max<int64_t>(
      1, (gpu_ < 0 ? kSummedBlock : kWidestOnDevice) / std::max<int64_t>(1, inputs));
  // Block after block, each onto the sum so far, in one order: unlike in product(), blocks share
  // the elements that they add to.
  for (int64_t first = 0; first < outputs; first += rows) {
    const int64_t count = std::min(rows, outputs - first);
    x.addmm_(g.narrow(1, first, count), widened(weight.narrow(0, first, count)));
  }
  return x;
}

at::Tensor HeldWeights::back(const Place& place, const at::Tensor& g) const {
  return back(name_at(place, ".weight"), g);
}

at::Tensor HeldWeights::experts_back(const Place& place, const at::Tensor& g,
                                     const at::Tensor& chosen) const {
  const at::Tensor flat = chosen.flatten(), rows = g.flatten(0, 1);
  at::Tensor x;
  for (int64_t e = 0; e < config().experts.count; ++e) {
    const at::Tensor those = at::nonzero(flat == e).flatten();
    if (those.size(0) == 0) continue;
    const at::Tensor part =
        back(name_of_expert(place, e), rows.index_select(0, those).contiguous());
    if (!x.defined()) x = at::zeros({rows.size(0), part.size(1)}, part.options());
    x.index_copy_(0, those, part);
  }
  return x.view({chosen.size(0), chosen.size(1), -1});
}

}  // namespace lockstep
