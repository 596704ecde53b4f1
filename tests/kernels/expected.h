// The results that ops should give, in fp64, and the error that fp32 arithmetic may add: shared by
// the tests of an op and of its twins.
#pragma once

#include "tests/kernels/samples.h"

namespace lockstep {

struct Expected {
  std::vector<double> values, arithmetic;
};

// x weight^T + bias.
inline Expected product(const Sample& x, const Sample& weight, const Sample* bias) {
  const int64_t tokens = x.view().rows(), n = weight.view().rows(), k = x.view().shape[1];
  const std::vector<double> a = x.values(), w = weight.values();
  const std::vector<double> b = bias ? bias->values() : std::vector<double>(static_cast<size_t>(n));
  Expected out;
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t j = 0; j < n; ++j) {
      double sum = b[static_cast<size_t>(j)], size = std::fabs(sum);
      for (int64_t i = 0; i < k; ++i) {
        const double term = a[static_cast<size_t>(t * k + i)] * w[static_cast<size_t>(j * k + i)];
        sum += term;
        size += std::fabs(term);
      }
      out.values.push_back(sum);
      out.arithmetic.push_back(static_cast<double>(k + 2) * kUnit * size);
    }
  }
  return out;
}

// Each row i of out is row i (or i / choices, where `shared`) of x by the weights it names.
inline Expected expert_product(const Sample& x, const Sample& index,
                               const std::vector<TensorView>& weights) {
  const std::vector<double> in = x.values(), which = index.values();
  const int64_t n = weights[0].rows(), k = weights[0].shape[1];
  const bool shared = x.view().shape.rank() == 2;
  const auto choices = static_cast<size_t>(index.view().shape[1]);
  Expected out;
  for (size_t i = 0; i < which.size(); ++i) {
    const size_t row = shared ? i / choices : i;
    for (int64_t j = 0; j < n; ++j) {
      double sum = 0, size = 0;
      for (int64_t d = 0; d < k; ++d) {
        const double term = in[row * static_cast<size_t>(k) + static_cast<size_t>(d)] *
                            value_at(weights[static_cast<size_t>(which[i])], j * k + d);
        sum += term;
        size += std::fabs(term);
      }
      out.values.push_back(sum);
      out.arithmetic.push_back(static_cast<double>(k) * kUnit * size);
    }
  }
  return out;
}

// out[t, :] = sum over c of weights[t, c] * x[t, c, :].
inline Expected weighted(const Sample& x, const Sample& weights) {
  const std::vector<double> in = x.values(), w = weights.values();
  const int64_t k = x.view().shape[1], width = x.view().shape[2];
  Expected out;
  for (int64_t i = 0; i < x.view().rows() * width; ++i) {
    double sum = 0, size = 0;
    for (int64_t c = 0; c < k; ++c) {
      const int64_t row = i / width * k + c;
      const double term =
          w[static_cast<size_t>(row)] * in[static_cast<size_t>(row * width + i % width)];
      sum += term;
      size += std::fabs(term);
    }
    out.values.push_back(sum);
    out.arithmetic.push_back(static_cast<double>(k + 1) * kUnit * size);
  }
  return out;
}

// The halves of each head of x, rotated by the angles of the row of the tables that `positions`
// names for its token.
inline Expected rotated(const Sample& x, const Sample& cos, const Sample& sin,
                        const Sample& positions) {
  const std::vector<double> in = x.values(), c = cos.values(), s = sin.values(),
                            p = positions.values();
  const int64_t heads = x.view().shape[1], half = x.view().shape[2] / 2;
  Expected out = {std::vector<double>(in.size()), std::vector<double>(in.size())};
  for (int64_t row = 0; row < x.view().rows() * heads; ++row) {
    for (int64_t j = 0; j < half; ++j) {
      const auto low = static_cast<size_t>(row * 2 * half + j);
      const size_t high = low + static_cast<size_t>(half);
      const auto at =
          static_cast<size_t>(p[static_cast<size_t>(row / heads)]) * static_cast<size_t>(half) +
          static_cast<size_t>(j);
      out.values[low] = in[low] * c[at] - in[high] * s[at];
      out.values[high] = in[high] * c[at] + in[low] * s[at];
      out.arithmetic[low] = 2 * kUnit * (std::fabs(in[low] * c[at]) + std::fabs(in[high] * s[at]));
      out.arithmetic[high] = 2 * kUnit * (std::fabs(in[high] * c[at]) + std::fabs(in[low] * s[at]));
    }
  }
  return out;
}

// The softmax of each row of logits, over all of them or over those that `index` names, at index.
inline std::vector<double> softmax(const Sample& logits, const Sample& index, bool normalised) {
  const std::vector<double> x = logits.values(), which = index.values();
  const auto experts = static_cast<size_t>(logits.view().shape[1]);
  const auto k = static_cast<size_t>(index.view().shape[1]);
  std::vector<double> want;
  for (size_t i = 0; i < which.size(); ++i) {
    const size_t row = i / k;
    double sum = 0;
    for (size_t e = 0; e < experts; ++e) {
      bool counts = !normalised;
      for (size_t c = 0; c < k; ++c)
        counts = counts || which[row * k + c] == static_cast<double>(e);
      if (counts) sum += std::exp(x[row * experts + e]);
    }
    want.push_back(std::exp(x[row * experts + static_cast<size_t>(which[i])]) / sum);
  }
  return want;
}

}  // namespace lockstep
