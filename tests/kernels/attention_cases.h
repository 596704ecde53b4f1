// Passes of attention over ragged requests, and what they should give: shared by the tests of
// paged_attention and of its twins.
#pragma once

#include <memory>
#include <numeric>

#include "kernels/base/thread_pool.h"
#include "kernels/paged_attention.h"
#include "tests/kernels/expected.h"

namespace lockstep {

struct Dims {
  DType dtype;
  int64_t heads, kv_heads, head_dim;
  float scale() const { return static_cast<float>(1 / std::sqrt(static_cast<double>(head_dim))); }
};

// One request as its model sees it: a q, k and v for each of its positions.
struct Request {
  Request(const Dims& dims, int64_t length, unsigned seed)
      : q({length, dims.heads, dims.head_dim}, dims.dtype),
        k({length, dims.kv_heads, dims.head_dim}, dims.dtype),
        v({length, dims.kv_heads, dims.head_dim}, dims.dtype) {
    q.fill_normal(seed, 2);
    k.fill_normal(seed + 1);
    v.fill_normal(seed + 2, 1, 0.5);
  }
  int64_t length() const { return q.view().rows(); }
  Sample q, k, v;
};

// Queries [length - queries, length) of a request whose cache holds `length` positions.
struct Part {
  const Request* request;
  int64_t queries, length;
};

struct Layout {
  int64_t page_size;
  unsigned seed = 1;  // of the order of the pages
  ThreadPool* threads = nullptr;
};

// Everything a pass needs, in pages handed out in a random order from a pool in which all else is
// NaN.
struct Pass {
  Pass(const Dims& dims, const std::vector<Part>& parts, Layout layout) {
    const auto requests = static_cast<int64_t>(parts.size());
    int64_t most = 1, pages = 3, tokens = 0;
    for (const Part& p : parts) {
      const int64_t used = (p.length + layout.page_size - 1) / layout.page_size;
      most = std::max(most, used + 1);
      pages += used;
      tokens += p.queries;
    }
    const Shape pool = {pages, layout.page_size, dims.kv_heads, dims.head_dim};
    k = std::make_unique<Sample>(pool, dims.dtype);
    v = std::make_unique<Sample>(pool, dims.dtype);
    q = std::make_unique<Sample>(Shape{tokens, dims.heads, dims.head_dim}, dims.dtype);
    out = std::make_unique<Sample>(Shape{tokens, dims.heads, dims.head_dim}, dims.dtype);
    start = std::make_unique<Sample>(Shape{requests + 1}, DType::i32);
    length = std::make_unique<Sample>(Shape{requests}, DType::i32);
    table = std::make_unique<Sample>(Shape{requests, most}, DType::i32);  // all bits set: -1
    std::vector<int32_t> order(static_cast<size_t>(pages));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), std::mt19937(layout.seed));
    start->set(0, 0);
    for (int64_t r = 0, token = 0; r < requests; ++r) {
      place(parts[static_cast<size_t>(r)], r, token, order, layout.page_size);
      token += parts[static_cast<size_t>(r)].queries;
      start->set(r + 1, static_cast<double>(token));
    }
  }

  void place(const Part& part, int64_t r, int64_t token, std::vector<int32_t>& order,
             int64_t page_size) {
    const Request& request = *part.request;
    const auto row = static_cast<size_t>(request.k.view().row_size() * size_of(q->view().dtype));
    for (int64_t p = 0; p < part.length; ++p) {
      if (p % page_size == 0) {
        table->set(r * table->view().shape[1] + p / page_size, order.back());
        order.pop_back();
      }
      const int32_t page = table->view().as<int32_t>()[r * table->view().shape[1] + p / page_size];
      const auto slot = static_cast<size_t>(page * page_size + p % page_size);
      const auto from = static_cast<size_t>(p) * row;
      std::memcpy(k->view().as<char>() + slot * row, request.k.view().as<char>() + from, row);
      std::memcpy(v->view().as<char>() + slot * row, request.v.view().as<char>() + from, row);
    }
    const TensorView queries = request.q.view().slice(part.length - part.queries, part.queries);
    std::memcpy(q->view().slice(token, part.queries).data, queries.data,
                static_cast<size_t>(queries.bytes()));
    length->set(r, static_cast<double>(part.length));
  }

  KvCache cache() const { return {*k, *v}; }
  AttentionBatch batch() const { return {*start, *length, *table}; }
  void run(const Dims& dims, Layout layout, int64_t window) {
    paged_attention({.threads = layout.threads}, *out, *q, cache(), batch(), dims.scale(), window);
  }

  std::unique_ptr<Sample> k, v, q, out, start, length, table;
};

// One row of softmax(q K^T scale) V in double, and what fp32 may add to it: the error of a score
// moves its probability by as much, relatively; then come sums over the keys.
inline void attend_row(const Dims& dims, const std::vector<double>& q, const std::vector<double>& k,
                       const std::vector<double>& v, int64_t position, int64_t head, int64_t window,
                       Expected& out) {
  const int64_t d = dims.head_dim, kv = head / (dims.heads / dims.kv_heads);
  const auto at = [&](int64_t p, int64_t heads, int64_t h, int64_t i) {
    return static_cast<size_t>((p * heads + h) * d + i);
  };
  const int64_t first = window > 0 ? std::max<int64_t>(0, position - window + 1) : 0;
  std::vector<double> score, p;
  double off = 0, most = -INFINITY, total = 0;
  for (int64_t j = first; j <= position; ++j) {
    double sum = 0, size = 0;
    for (int64_t i = 0; i < d; ++i) {
      const double term = q[at(position, dims.heads, head, i)] * k[at(j, dims.kv_heads, kv, i)];
      sum += term;
      size += std::fabs(term);
    }
    score.push_back(sum * dims.scale());
    off = std::max(off, static_cast<double>(d / 4 + 8) * kUnit * size * dims.scale());
    most = std::max(most, score.back());
  }
  for (const double s : score) p.push_back(std::exp(s - most)), total += p.back();
  const auto keys = static_cast<double>(score.size());
  for (int64_t i = 0; i < d; ++i) {
    double sum = 0, size = 0;
    for (size_t j = 0; j < p.size(); ++j) {
      const double term =
          p[j] / total * v[at(first + static_cast<int64_t>(j), dims.kv_heads, kv, i)];
      sum += term;
      size += std::fabs(term);
    }
    out.values.push_back(sum);
    out.arithmetic.push_back((2 * off + (keys * 1.1 + 24) * kUnit) * size);
  }
}

// The expected output of a pass over these parts.
inline Expected attended(const Dims& dims, const std::vector<Part>& parts, int64_t window) {
  Expected out;
  for (const Part& part : parts) {
    const std::vector<double> q = part.request->q.values(), k = part.request->k.values(),
                              v = part.request->v.values();
    for (int64_t p = part.length - part.queries; p < part.length; ++p)
      for (int64_t h = 0; h < dims.heads; ++h) attend_row(dims, q, k, v, p, h, window, out);
  }
  return out;
}

}  // namespace lockstep
