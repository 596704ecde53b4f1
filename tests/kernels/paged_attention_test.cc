#include "kernels/paged_attention.h"

#include <memory>
#include <numeric>

#include "kernels/thread_pool.h"
#include "tests/kernels/samples.h"

namespace lockstep {
namespace {

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
void reference_row(const Dims& dims, const Part& part, int64_t position, int64_t head,
                   int64_t window, std::vector<double>& want, std::vector<double>& arithmetic) {
  const int64_t d = dims.head_dim, kv = head / (dims.heads / dims.kv_heads);
  const std::vector<double> q = part.request->q.values(), k = part.request->k.values(),
                            v = part.request->v.values();
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
    want.push_back(sum);
    arithmetic.push_back((2 * off + (keys * 1.1 + 24) * kUnit) * size);
  }
}

void expect_attention(const Dims& dims, const std::vector<Part>& parts, Layout layout,
                      int64_t window = 0) {
  SCOPED_TRACE(fmt::format("{} heads {}/{} dim {} page {} window {}", name_of(dims.dtype),
                           dims.heads, dims.kv_heads, dims.head_dim, layout.page_size, window));
  Pass pass(dims, parts, layout);
  pass.run(dims, layout, window);
  std::vector<double> want, arithmetic;
  for (const Part& part : parts)
    for (int64_t p = part.length - part.queries; p < part.length; ++p)
      for (int64_t h = 0; h < dims.heads; ++h)
        reference_row(dims, part, p, h, window, want, arithmetic);
  expect_rounded(*pass.out, want, arithmetic);
}

TEST(PagedAttention, IsSoftmaxOverEveryKeyUpToTheQuery) {
  on_every_isa([] {
    for (const DType dtype : kFloats) {
      for (const auto& [heads, kv, dim] :
           {std::array<int64_t, 3>{2, 2, 16}, {7, 1, 24}, {6, 2, 64}, {4, 1, 128}, {5, 5, 250}}) {
        const Dims dims = {dtype, heads, kv, dim};
        const Request a(dims, 41, 1), b(dims, 7, 20), c(dims, 33, 30);
        expect_attention(dims, {{&a, 3, 41}, {&b, 7, 7}, {&c, 1, 33}}, {16});
      }
    }
  });
}

TEST(PagedAttention, WorksWithEveryPageSize) {
  const Dims dims = {DType::bf16, 4, 2, 32};
  const Request a(dims, 100, 1), b(dims, 65, 10), c(dims, 1, 20);
  for (const int64_t page_size : {1, 3, 16, 64, 256})
    expect_attention(dims, {{&a, 1, 100}, {&b, 33, 65}, {&c, 1, 1}}, {page_size, 7});
}

TEST(PagedAttention, SeesTheWindowAndNothingBeforeIt) {
  for (const DType dtype : kFloats) {
    const Dims dims = {dtype, 4, 2, 16};
    const Request a(dims, 90, 1), b(dims, 40, 10);
    for (const int64_t window : {1, 2, 31, 32, 33, 64, 1000})
      expect_attention(dims, {{&a, 37, 90}, {&b, 2, 40}}, {4}, window);
  }
}

std::string row_bits(const Pass& pass, int64_t first, int64_t rows) {
  const auto row =
      static_cast<size_t>(pass.out->view().row_size() * size_of(pass.out->view().dtype));
  return pass.out->bits().substr(static_cast<size_t>(first) * row, static_cast<size_t>(rows) * row);
}

// The promise the metamorphic checks stand on: a query's bits depend on its own request alone.
TEST(PagedAttention, ARowHasTheSameBitsHoweverItIsServed) {
  on_every_isa([] {
    for (const DType dtype : kFloats) {
      const Dims dims = {dtype, 14, 2, 40};  // groups of 7
      const Request a(dims, 75, 1), b(dims, 50, 10), c(dims, 9, 20);
      for (const int64_t window : {0, 20}) {
        Pass whole(dims, {{&a, 75, 75}}, {16});
        whole.run(dims, {16}, window);
        for (const int64_t page_size : {1, 3, 64, 256}) {
          for (const int threads : {1, 2, 3}) {
            ThreadPool pool(threads);
            const Layout layout = {page_size, static_cast<unsigned>(threads), &pool};
            Pass mixed(dims, {{&b, 3, 50}, {&a, 10, 70}, {&c, 9, 9}}, layout);
            mixed.run(dims, layout, window);
            EXPECT_EQ(row_bits(mixed, 3, 10), row_bits(whole, 60, 10)) << page_size;
            Pass decode(dims, {{&a, 1, 64}}, layout);
            decode.run(dims, layout, window);
            EXPECT_EQ(row_bits(decode, 0, 1), row_bits(whole, 63, 1)) << page_size;
          }
        }
      }
    }
  });
}

TEST(PagedAttention, AQueryThatSeesNoKeyGivesZeros) {
  const Dims dims = {DType::bf16, 2, 1, 16};
  const Request a(dims, 8, 1);
  Pass pass(dims, {{&a, 8, 8}}, {4});
  pass.length->set(0, 5);  // the first three queries then stand before position 0
  pass.run(dims, {4}, 0);
  const std::vector<double> got = pass.out->values();
  for (size_t i = 0; i < got.size(); ++i)
    EXPECT_EQ(got[i] == 0, i < 3 * 2 * 16) << "element " << i << " is " << got[i];
  pass.length->set(0, 0);
  pass.run(dims, {4}, 0);
  for (const double value : pass.out->values()) EXPECT_EQ(value, 0);
}

TEST(PagedAttention, ANanStaysWithTheQueriesThatSeeIt) {
  const Dims dims = {DType::f32, 2, 1, 16};
  for (const bool in_v : {false, true}) {
    Request a(dims, 40, 1);
    (in_v ? a.v : a.k).set(18 * 16, NAN);  // position 18
    Pass pass(dims, {{&a, 40, 40}}, {16});
    pass.run(dims, {16}, 10);
    const std::vector<double> got = pass.out->values();
    for (size_t p = 0; p < 40; ++p)
      EXPECT_EQ(std::isnan(got[p * 2 * 16]), p >= 18 && p < 28) << in_v << " " << p;
  }
}

TEST(PagedAttention, KeepsScoresOfAnySizeInRange) {
  const Dims dims = {DType::f32, 1, 1, 16};
  Request a(dims, 70, 1);
  for (int64_t p = 0; p < 70; ++p)  // growing scores up to some hundreds: exp alone would overflow
    for (int64_t i = 0; i < 16; ++i) a.k.set(p * 16 + i, static_cast<double>(p) * 5);
  for (int64_t i = 0; i < 70 * 16; ++i) a.q.set(i, i / 16 % 2 ? 0.5 : -0.5);
  expect_attention(dims, {{&a, 70, 70}}, {16});
}

TEST(PagedAttention, ScoresOfMinusInfinityWeighNothing) {
  const Dims dims = {DType::f32, 1, 1, 16};
  Request a(dims, 40, 1);
  a.q.fill(std::vector<double>(40 * 16, 1));
  for (int64_t p = 0; p < 35; ++p) a.k.set(p * 16, -INFINITY);  // more than the first block
  Pass pass(dims, {{&a, 40, 40}}, {16});
  pass.run(dims, {16}, 0);
  const std::vector<double> got = pass.out->values(), v = a.v.values();
  EXPECT_TRUE(std::isnan(got[34 * 16])) << "no score is finite: 0 / 0";
  for (size_t i = 0; i < 16; ++i) EXPECT_EQ(got[35 * 16 + i], v[35 * 16 + i]);
  for (size_t i = 36 * 16; i < got.size(); ++i) EXPECT_TRUE(std::isfinite(got[i]));
}

TEST(PagedAttention, RefusesWhatDoesNotFit) {
  const Dims dims = {DType::f32, 4, 2, 16};
  const Request a(dims, 20, 1);
  const auto refused = [&](auto change, std::initializer_list<std::string> words,
                           int64_t window = 0) {
    Pass pass(dims, {{&a, 2, 20}}, {8});
    change(pass);
    expect_refused([&] { pass.run(dims, {8}, window); }, words);
  };
  refused([](Pass& p) { p.table->set(1, 6); }, {"page 6", "entry 1"});
  refused([](Pass& p) { p.table->set(2, -1); }, {"page -1", "entry 2"});
  refused([](Pass& p) { p.length->set(0, 33); }, {"at least 5 pages", "found 4"});
  refused([](Pass& p) { p.length->set(0, -1); }, {"context", "-1"});
  refused([](Pass& p) { p.start->set(0, 1); }, {"query_start", "1 to 2"});
  refused([](Pass& p) { p.start->set(1, 3); }, {"query_start", "0 to 3"});
  refused([](Pass&) {}, {"window", "-1"}, -1);
  refused(
      [](Pass& p) {
        p.q = std::make_unique<Sample>(Shape{2, 3, 16}, DType::f32);
      },
      {"heads", "3"});
  refused(
      [](Pass& p) {
        p.q = std::make_unique<Sample>(Shape{2, 4, 16}, DType::bf16);
      },
      {"q", "fp32", "bf16"});
  refused(
      [](Pass& p) {
        p.out = std::make_unique<Sample>(Shape{2, 4, 8}, DType::f32);
      },
      {"out", "[2, 4, 16]", "[2, 4, 8]"});
  refused([](Pass& p) { p.length = std::make_unique<Sample>(Shape{1}, DType::i64); },
          {"context_length", "int32", "int64"});
}

// A window frees the pages before it: they need not be there.
TEST(PagedAttention, AsksForThePagesOfTheWindowOnly) {
  const Dims dims = {DType::f32, 1, 1, 16};
  const Request a(dims, 20, 1);
  Pass pass(dims, {{&a, 1, 20}}, {4});
  pass.table->set(0, -1);
  pass.run(dims, {4}, 8);
  for (const double value : pass.out->values()) EXPECT_TRUE(std::isfinite(value));
  EXPECT_THROW(pass.run(dims, {4}, 17), Error);
}

}  // namespace
}  // namespace lockstep
