#include "kernels/paged_attention.h"

#include "kernels/base/thread_pool.h"
#include "tests/kernels/attention_cases.h"

namespace lockstep {
namespace {

void expect_attention(const Dims& dims, const std::vector<Part>& parts, Layout layout,
                      int64_t window = 0) {
  SCOPED_TRACE(fmt::format("{} heads {}/{} dim {} page {} window {}", name_of(dims.dtype),
                           dims.heads, dims.kv_heads, dims.head_dim, layout.page_size, window));
  Pass pass(dims, parts, layout);
  pass.run(dims, layout, window);
  const Expected want = attended(dims, parts, window);
  expect_rounded(*pass.out, want.values, want.arithmetic);
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
